'use strict';
// Redis hangs, dies, comes back; the application's client is set up in every wrong way; and wrong uses.
const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const { test } = require('node:test');
const { Client } = require('pg');
const { Fences, FenceError } = require('..');
const { places, poolOf, clientOf, nodesOf, open, until, settled, table, becomesHit, isCached, KINDS, COMBINATIONS, DETAILS } = require('./setup');

async function items(t, kind, options, name = 'single') {
  const opened = await open(t, kind, name, options);
  await table(opened.sql, 'item', 'id int PRIMARY KEY, t text, version bigint NOT NULL DEFAULT 0');
  await opened.sql("INSERT INTO item VALUES (1, 'first'), (2, 'second')");
  return { ...opened, read: (id = 1) => opened.fences.read('item', id, undefined, DETAILS) };
}

const isOpen = sql => until('the fences to open', async () => (await sql('SELECT state FROM fence.state'))[0].state === 'OPEN');

for (const kind of KINDS) {
  test(`${kind}: a Redis that hangs delays a read and no more`, async t => {
    const { read, sql } = await items(t, kind, { timeout: 50 });
    await becomesHit(read);
    process.kill(places.single.redis[0].pid, 'SIGSTOP');
    try {
      for (let n = 0; n < 3; n++) {
        const start = Date.now();
        assert.deepEqual([(await read()).value.t, (await read()).source], ['first', 'unavailable']);
        assert.ok(Date.now() - start < 900, 'before the silent connection is replaced');
      }
    } finally {
      process.kill(places.single.redis[0].pid, 'SIGCONT');
    }
    await isOpen(sql);
    await sql("UPDATE item SET t = 'changed' WHERE id = 1");
    assert.equal((await read()).value.t, 'changed');
    await becomesHit(read);
  });
}

// Of the connections that the library makes of this client, a method throws if broken(its arguments) says so, before it returns a promise.
function breakable(client, broken) {
  for (const each of [client].flat()) {
    const duplicate = each.duplicate.bind(each);
    each.duplicate = (...args) => {
      const own = duplicate(...args);
      for (const name of ['multi', 'mget', 'fcall', 'fcall_ro', 'set', 'sendCommand', 'fCall', 'fCallRo']) {
        if (!own[name]) continue;
        const method = own[name].bind(own);
        own[name] = (...all) => {
          if (broken(...all)) throw new TypeError(`${name} is broken`);
          return method(...all);
        };
      }
      return own;
    };
  }
}

for (const [kind, name] of COMBINATIONS) {
  test(`${kind}, ${name}: whatever the client throws, PostgreSQL is read`, async t => {
    const { pool, sql } = await items(t, 'ioredis', {}, name);
    await sql(`CREATE OR REPLACE FUNCTION item_text(which int) RETURNS jsonb STABLE LANGUAGE sql
      BEGIN ATOMIC SELECT to_jsonb(i.t) FROM item i WHERE id = which; END`);
    await sql("SELECT fence.define_derived('item_text', '{item($1)}', 'item_text(int)')");
    const { client, end } = clientOf(kind, name);
    const errors = [];
    const never = () => false;
    let broken = never;
    breakable(client, (...args) => broken(...args));
    const fences = new Fences({ redis: client, pg: pool, timeout: 2000, local: { max: 1 }, onError: error => errors.push(error) });
    t.after(async () => {
      await fences.close();
      end();
    });
    assert.equal(await fences.ready(10000), true);
    const read = id => fences.read('item', id, undefined, DETAILS);
    await until('a kept value', async () => (await read(1)).source === 'local');
    broken = command => command?.[0] !== 'PING';        // node-redis sends pings by itself
    for (const id of [1, 2]) assert.equal((await read(id)).source, 'unavailable');
    assert.deepEqual((await fences.readMany('item', [1, 2])).map(({ t: text }) => text), ['first', 'second']);
    assert.deepEqual((await fences.readTogether('item', [1, 2])).map(({ t: text }) => text), ['first', 'second']);
    assert.equal(await fences.derived('item_text', [2]), 'second');
    assert.equal((await fences.peek('item', 1)).freshness, 'unavailable');
    assert.ok(errors.length >= 5 && errors.every(error => error instanceof TypeError), `${errors}`);
    broken = command => command?.[0] === 'MGET';        // after MULTI was sent, where these are commands of their own
    for (let n = 0; n < 3; n++) assert.equal((await read(2)).value.t, 'second');
    broken = never;
    await becomesHit(() => read(2));
    await sql("SELECT fence.drop_derived('item_text')");
  });
}

test('late answers are nobody\'s, whatever happens to the connection', async t => {
  const { read, sql, fences } = await items(t, 'ioredis', { timeout: 30 });
  await becomesHit(read);
  const admin = new (require('ioredis'))(nodesOf('single')[0]);
  t.after(() => admin.disconnect());
  for (let n = 0; n < 10; n++) {
    const reads = Array.from({ length: 30 }, (_, i) => fences.read('item', 1 + i % 2, undefined, DETAILS));
    if (n % 2) await admin.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    else process.kill(places.single.redis[0].pid, 'SIGSTOP');
    await sql(`UPDATE item SET t = 'changed ${n}' WHERE id = 1`).catch(() => {}).finally(() => process.kill(places.single.redis[0].pid, 'SIGCONT'));
    await Promise.all(reads);
    const [{ t: now }] = await sql('SELECT t FROM item WHERE id = 1');
    for (let i = 0; i < 5; i++) assert.equal((await read()).value.t, now);
  }
  await isOpen(sql);
  await becomesHit(read);
});

test('Redis is killed, and another process comes in its place', async t => {
  const { read, sql } = await items(t, 'ioredis', {}, 'victim');
  const other = await open(t, 'redis', 'victim');
  const readers = [read, () => other.fences.read('item', 1, undefined, DETAILS)];
  for (const each of readers) await becomesHit(each);
  const server = places.victim.redis[0];
  process.kill(server.pid, 'SIGKILL');
  for (const each of readers) assert.deepEqual(await each().then(({ value, source }) => [value.t, source]), ['first', 'unavailable']);
  const started = spawn(server.command[0], server.command.slice(1), { stdio: 'ignore' });
  t.after(() => started.kill('SIGKILL'));
  await isOpen(sql);
  await sql("UPDATE item SET t = 'after' WHERE id = 1");
  for (const each of readers) {
    assert.equal((await each()).value.t, 'after');
    await becomesHit(each);
  }
});

test('wrong uses raise, and say what to do', async t => {
  const { fences, sql, pool } = await items(t, 'ioredis');
  const { client, end } = clientOf('ioredis', 'single');
  t.after(end);
  const making = {
    'a Pool of the package pg': [{ redis: client, pg: new Client() }, { redis: client }, { redis: client, pg: {} }, undefined],
    'a client of ioredis': [{ pg: pool }, { redis: 'redis://localhost', pg: pool }, { redis: {}, pg: pool }],
    'milliseconds': [{ redis: client, pg: pool, timeout: '1s' }, { redis: client, pg: pool, ttl: -1 }],
  };
  for (const [message, all] of Object.entries(making)) {
    for (const options of all) assert.throws(() => new Fences(options), error => error instanceof FenceError && error.message.includes(message));
  }
  const reading = {
    'does not exist': () => fences.read('nothing', 1), 'named by a string': () => fences.read(1, 1),
    '2 values were given': () => fences.read('item', [1, 2]), 'is null': () => fences.read('item', null),
    'a query or a function': () => fences.read('item', 1, 7), 'short name': () => fences.read('item', 1, undefined, { beside: 'a b' }),
    'two different loads': () => fences.read('item', 1).then(() => fences.read('item', 1, async keys => keys.map(() => null))),
  };
  for (const [message, use] of Object.entries(reading)) {
    await assert.rejects(use, error => error instanceof FenceError && error.message.includes(message), message);
  }
  const named = new Fences({ redis: client, pg: pool, namespace: 'another' });
  t.after(() => named.close());
  await assert.rejects(named.read('item', 1), { code: 'ERR_FENCE_NAMESPACE' });
  const empty = poolOf('single', { database: 'template1' });
  const without = new Fences({ redis: client, pg: empty });
  t.after(async () => { await without.close(); await empty.end(); });
  await assert.rejects(without.read('item', 1), { code: 'ERR_FENCE_EXTENSION' });
  const closed = new Fences({ redis: client, pg: pool });
  await closed.close();
  for (const use of [() => closed.read('item', 1), () => closed.readMany('item', [1]), () => closed.readTogether('item', [1]),
    () => closed.derived('x'), () => closed.peek('item', 1)]) {
    await assert.rejects(use, { code: 'ERR_FENCE_CLOSED' });
  }
  await sql('DROP ROLE IF EXISTS reader');
  await sql('CREATE ROLE reader LOGIN; ALTER TABLE item ENABLE ROW LEVEL SECURITY; GRANT SELECT ON item TO reader');
  const limited = poolOf('single', { user: 'reader' });
  const secured = new Fences({ redis: client, pg: limited });
  t.after(async () => { await secured.close(); await limited.end(); });
  await assert.rejects(secured.read('item', 1), /row-level security/);
});

test('what nobody can put is read all the same', async t => {
  const warnings = [];
  const note = warning => warning.name === 'PgcacheFenceWarning' && warnings.push(warning.message);
  process.on('warning', note);
  t.after(() => process.off('warning', note));
  const { sql } = await items(t, 'ioredis');
  const admin = new (require('ioredis'))(nodesOf('single')[0]);
  t.after(() => admin.disconnect());
  await admin.acl('SETUSER', 'looker', 'on', '>x', '%R~fence:f:*', '%R~fence:v:*', '%R~fence:heartbeat*', '-@all', '+fcall_ro|fence_token',
    '+fcall_ro|fence_get', '+fcall_ro|fence_release', '+fcall_ro|fence_check', '+fcall_ro|fence_get_derived', '+multi', '+exec', '+mget',
    '+get', '+getrange', '+exists', '+time', '+select', '+info', '+client');
  const Redis = require('ioredis');
  const client = new Redis({ ...nodesOf('single')[0], username: 'looker', password: 'x', lazyConnect: true });
  const pool = poolOf('single');
  const fences = new Fences({ redis: client, pg: pool, timeout: 2000 });
  t.after(async () => {
    await fences.close();
    await pool.end();
  });
  await fences.ready();
  await sql("UPDATE item SET t = 'seen' WHERE id = 2");
  await settled(sql);
  for (let n = 0; n < 3; n++) assert.equal((await fences.read('item', 2)).t, 'seen');
  // on a busy machine a connection may have been replaced meanwhile, which is another warning
  const refused = () => warnings.filter(warning => /NOPERM|permission/.test(warning));
  await until('the warning', () => refused().length > 0);
  assert.equal(refused().length, 1, warnings.join());
  await sql("SELECT fence.read('item', 2)");
  assert.equal(isCached(await fences.read('item', 2, undefined, DETAILS)), true);
});
