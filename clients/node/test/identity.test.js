'use strict';
// Every hit is the row that was asked for, whatever becomes of the connection to Redis meanwhile.
const { test } = require('node:test');
const assert = require('node:assert/strict');
const { Fences } = require('..');
const { proxyOf } = require('./proxy');
const { open, table, nodesOf, until, isCached, DETAILS } = require('./setup');

const ROWS = 40;
const CUTS = 20;
const HITS_AFTER_A_CUT = 50;
const KINDS = ['ioredis', 'ioredis-6', 'redis', 'redis-6', 'redis-4'];

function clientOf(kind, { host, port }) {
  const library = require(kind);
  const client = kind.startsWith('ioredis') ? new library({ host, port, retryStrategy: () => null })
    : library.createClient({ socket: { host, port, reconnectStrategy: false } });
  client.on('error', () => {});
  return { client, end: () => client.disconnect?.() };
}

for (const kind of KINDS) {
  test(`${kind}: each hit is the row that was asked for, while connections are cut`, async t => {
    const { sql, pool } = await open(t);
    const name = `identity_${kind.replace('-', '')}`;
    await table(sql, name, 'id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
    await sql(`INSERT INTO ${name} SELECT generate_series(1, ${ROWS})`);
    const { node, cut } = await proxyOf(t, nodesOf('single')[0], 2);
    const { client, end } = clientOf(kind, node);
    const fences = new Fences({ redis: client, pg: pool, onError: () => {}, timeout: 2000 });
    t.after(async () => {
      await fences.close();
      if (kind.startsWith('ioredis')) end();
    });
    assert.equal(await fences.ready(10000), true);

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
      cut();
    }
    over = true;
    await Promise.all(readers);
    assert.deepEqual(wrong, [], `${hits} hits`);
  });
}
