'use strict';
// Every hit is the row that was asked for, whatever becomes of the connection to Redis meanwhile.
const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Fences } = require('..');
const { proxyOf } = require('./proxy');
const { open, table, nodesOf, until, isCached, KINDS, DETAILS } = require('./setup');

const ROWS = 40;
const CUTS = 20;
const HITS_AFTER_A_CUT = 50;

function clientOf(kind, { host, port }) {
  const library = require(kind);
  const client = kind.startsWith('ioredis') ? new library({ host, port, retryStrategy: () => null })
    : library.createClient({ socket: { host, port, reconnectStrategy: false } });
  client.on('error', () => {});
  return { client, end: () => client.disconnect?.() };
}

// A table of its own, and Fences that reach Redis through a proxy.
async function through(t, kind, options = {}) {
  const { sql, pool } = await open(t);
  const name = `identity_${kind.replace('-', '')}`;
  await table(sql, name, 'id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
  await sql(`INSERT INTO ${name} SELECT generate_series(1, ${ROWS})`);
  const proxy = await proxyOf(t, nodesOf('single')[0], 2);
  const { client, end } = clientOf(kind, proxy.node);
  const errors = [];
  const fences = new Fences({ redis: client, pg: pool, onError: error => errors.push(error), timeout: 2000, ...options });
  t.after(async () => {
    await fences.close();
    if (kind.startsWith('ioredis')) end();
  });
  assert.equal(await fences.ready(10000), true);
  return { sql, proxy, fences, name, errors };
}

for (const kind of KINDS) {
  test(`${kind}: each hit is the row that was asked for, while connections are cut`, async t => {
    const { sql, proxy, fences, name } = await through(t, kind);
    const wrong = [];
    let hits = 0;
    let over = false;
    const readers = Array.from({ length: 16 }, async (_, n) => {
      for (let id = n; !over; id++) {
        const wanted = id % ROWS + 1;
        const { value, source } = await fences.read(name, wanted, undefined, DETAILS);
        if (value?.id !== wanted) wrong.push([wanted, value]);
        if (isCached({ source })) hits++;
        await new Promise(setImmediate);
      }
    });
    for (let n = 0; n < CUTS; n++) {
      const before = hits;
      await until(`hits after ${n} cuts`, () => hits >= before + HITS_AFTER_A_CUT);
      proxy.cut();
    }
    over = true;
    await Promise.all(readers);
    assert.deepEqual(wrong, [], `${hits} hits`);
  });
}

const otherKey = text => text.replace(/\{1\}\n/g, '{2}\n');
const otherNonce = text => text.replace(/#[0-9a-f]{6}/g, '#zzzzzz');
const NAMES = 'SELECT id, fence.row_version(version) AS version, to_jsonb(id) AS value FROM NAME WHERE id = ANY ($1::int[])';

const row = (fences, name) => fences.read(name, 1, undefined, DETAILS);
const valueBeside = (fences, name) => fences.read(name, 1, NAMES.replace('NAME', name), { ...DETAILS, beside: 'id' });

// What is read: [options of the Fences, read, what it changes in the answers, what else must be a hit before].
const READS = {
  'the key of a row': [{}, row, otherKey],
  'the nonce of a block': [{}, row, otherNonce],
  'the key of a value beside': [{}, valueBeside, text => text.replace(/\{1\}:id\n/g, '{2}:id\n')],
  'the key of the row of a value beside': [{}, valueBeside, otherKey, row],
  'the nonce of a check': [{ local: true }, row, otherNonce],
  'a key of several together': [{}, async (fences, name) => (await fences.readTogether(name, [1, 2, 3], undefined, DETAILS))[0], otherKey],
};

for (const kind of KINDS) {
  for (const [what, [options, read, change, other]] of Object.entries(READS)) {
    test(`${kind}: ${what} is another one: the connection ends, and PostgreSQL is read`, async t => {
      const { proxy, fences, name, errors } = await through(t, kind, options);
      const idOf = ({ value }) => value.id ?? value;
      const hit = () => until('a hit', async () => {
        const found = await read(fences, name);
        assert.equal(idOf(found), 1);
        return isCached(found) && (!other || isCached(await other(fences, name)));
      });
      await hit();
      errors.length = 0;
      const before = proxy.connections;
      proxy.change = change;
      const { source, ...found } = await read(fences, name);
      proxy.change = null;
      assert.deepEqual([idOf(found), source], [1, 'unavailable']);
      assert.ok(errors.some(({ code }) => code === 'ERR_FENCE_ANSWER'), errors.join());
      await hit();
      assert.ok(proxy.connections > before, 'the connection was made anew');
    });
  }
}
