'use strict';
// All ways of reading, in a database where another role has laid functions, operators and types in the application's search_path
// (test/clients/traps.sql). None of them may run, and every value is right.
const test = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { Pool } = require('pg');
const { Fences } = require('..');
const { places, poolOf, clientOf, until } = require('./setup');

const FAWN = { name: 'fawn', version: 0 };
const READS = [['prey', 'a', { ...FAWN, code: 'a', mood: 'calm', place: { x: 1, y: 2 }, days: [1, 2] }],
  ['prey_mood', 'calm', { ...FAWN, mood: 'calm' }], ['prey_shade', 'dark', { ...FAWN, shade: 'dark' }],
  ['prey_name', 'fawn', { ...FAWN, note: 'x    ' }], ['prey_note', 'x', { ...FAWN, note: 'x    ' }],
  ['prey_pair', ['a', 'wild'], { ...FAWN, code: 'a', mood: 'wild' }], ['prey_id', 1, { ...FAWN, id: 1 }],
  ['prey_bare', 1, { id: 1, name: 'fawn' }],
  ['herd', 'calm', [{ id: 1, pen: 'calm', name: 'fawn' }, { id: 2, pen: 'calm', name: 'kid' }]]];
const PATHS = ['"$user",public,app', 'public,pg_catalog,app'];
const script = name => fs.readFileSync(path.join(__dirname, '..', '..', '..', 'test', 'clients', name), 'utf8');

function poolAs(user, searchPath) {
  const { PGHOST, PGPORT } = places.single.pg;
  return new Pool({ host: PGHOST, port: Number(PGPORT), user, database: 'prey', max: 2, options: `-c search_path=${searchPath}` });
}

async function readAll(fences) {
  for (const [domain, key, value] of READS) {
    assert.deepEqual(await fences.read(domain, key), value, domain);
    assert.deepEqual(await fences.readTogether([[domain, key]]), [value], domain);
  }
  assert.equal(await fences.derived('count_of', [1]), 4);
  assert.deepEqual(await fences.readTogether(READS.map(([domain, key]) => [domain, key])), READS.map(([, , value]) => value));
}

test('nothing that others have laid runs', async t => {
  const first = poolOf('single');
  await first.query('CREATE DATABASE prey');
  await first.end();
  const admin = poolAs(places.single.pg.PGUSER, 'pg_catalog');
  const trapper = poolAs('trapper', '"$user",public');
  const applications = PATHS.map(searchPath => poolAs('application', searchPath));
  const { client, end } = clientOf('ioredis', 'single');
  t.after(async () => {
    for (const pool of [admin, trapper, ...applications]) await pool.end();
    end();
  });
  const fencesOf = async pool => {
    const fences = new Fences({ redis: client, pg: pool, timeout: 2000 });
    t.after(() => fences.close());
    assert.equal(await fences.ready(10000), true);
    return fences;
  };
  const sprung = async () => (await admin.query('SELECT is_called FROM public.sprung')).rows[0].is_called;
  const isOpen = async () => (await admin.query('SELECT state FROM fence.state')).rows[0].state === 'OPEN';

  await admin.query('CREATE EXTENSION pgcache_fence');
  await until('the fences to open', isOpen);
  await admin.query(`SET search_path = public; ${script('prey.sql')}`);
  const old = await fencesOf(applications[0]);
  await readAll(old);
  await trapper.query(script('traps.sql'));
  await applications[0].query('SELECT to_jsonb(t.*) FROM prey t');
  assert.equal(await sprung(), true, 'the traps work');
  await admin.query("SELECT setval('public.sprung', 1, false)");

  for (const fences of [old, ...await Promise.all(applications.map(fencesOf))]) {
    await admin.query("SET search_path = pg_catalog; SELECT fence.repair_domain(domain) FROM fence.domains");
    await readAll(fences);
    assert.equal(await sprung(), false);
  }
});
