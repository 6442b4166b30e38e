'use strict';
// Rows in several slots: they are read by several blocks, between which a transaction may change them all.
const assert = require('node:assert/strict');
const { test } = require('node:test');
const { clientOf, open, table, becomesHit, until, isCached, DETAILS } = require('./setup');
const { Counters } = require('../lib/counters');
const { Domains } = require('../lib/domains');
const { linkFor } = require('../lib/redis');
const { loadFor } = require('../lib/load');
const { Together } = require('../lib/together');

test('hits that a transaction has come between are no answer', async t => {
  const { fences, sql, pool } = await open(t, 'ioredis', 'cluster');
  await table(sql, 'pair', 'id int PRIMARY KEY, balance int, version bigint NOT NULL DEFAULT 0');
  await sql('INSERT INTO pair VALUES (1, 100), (2, 100)');
  const { client, end } = clientOf('ioredis', 'cluster');
  const link = linkFor(client, () => {});
  t.after(() => { link.close(); end(); });
  await until('the connection', () => link.isReady);
  const both = () => Promise.all([1, 2].map(id => becomesHit(() => fences.read('pair', id, undefined, DETAILS))));
  await both();

  // the second block is sent when the first has answered, a transfer has been committed, and the new rows are there
  let first;
  let blocks = 0;
  const halting = {
    placeOf: name => link.placeOf(name),
    check: sources => link.check(sources),
    put: (...call) => link.put(...call),
    async block(...call) {
      if (++blocks > 1) {
        await first;
        await sql('UPDATE pair SET balance = balance + CASE id WHEN 1 THEN -10 ELSE 10 END');
        await both();
      } else {
        first = link.block(...call);
        return first;
      }
      return link.block(...call);
    },
  };
  const domains = new Domains(pool);
  const place = await domains.find('pair');
  const together = new Together({ link: halting, pg: pool, domains, counters: new Counters(), puts: { settle() {} }, timeout: 30000, onError() {} });
  const found = await together.read([1, 2].map(key => ({ place, key, fence: place.nameOf(key, pool) })), loadFor(place));
  const rows = found.map(({ payload }) => JSON.parse(payload));
  assert.equal(blocks, 2);
  assert.equal(rows[0].balance + rows[1].balance, 200);
  assert.equal(found.some(isCached), false);
});

for (const [kind, name] of [['ioredis', 'single'], ['redis', 'cluster'], ['ioredis', 'shards']]) {
  test(`${kind}, ${name}: rows of several domains agree`, async t => {
    const { fences, sql } = await open(t, kind, name);
    await table(sql, 'debit', 'id int PRIMARY KEY, balance int, version bigint NOT NULL DEFAULT 0');
    await table(sql, 'credit', 'owner text, id int, balance int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (owner, id)');
    await sql("INSERT INTO debit VALUES (1, 100); INSERT INTO credit VALUES ('a b', 1, 100)");
    const both = () => fences.readTogether([['debit', 1], ['credit', ['a b', 1]], ['debit', 2]], DETAILS);
    await until('hits, but for the row that is not there', async () => {
      await fences.readTogether([['debit', 1], ['credit', ['a b', 1]]]);
      return (await fences.readTogether([['debit', 1], ['credit', ['a b', 1]]], DETAILS)).every(isCached);
    });
    assert.equal((await both())[2].value, null);
    const stop = new AbortController();
    const writing = (async () => {
      while (!stop.signal.aborted) {
        await sql('WITH d AS (UPDATE debit SET balance = balance - 1 WHERE id = 1) UPDATE credit SET balance = balance + 1');
      }
    })();
    try {
      for (let n = 0; n < 100; n++) {
        const [debit, credit] = await fences.readTogether([['debit', 1], ['credit', ['a b', 1]]]);
        assert.equal(debit.balance + credit.balance, 200);
      }
    } finally {
      stop.abort();
      await writing;
    }
    const [debit, credit] = await sql('SELECT balance FROM debit UNION ALL SELECT balance FROM credit');
    assert.deepEqual((await both()).map(({ value }) => value?.balance), [debit.balance, credit.balance, undefined]);
    assert.deepEqual(await fences.readTogether([]), []);
  });
}
