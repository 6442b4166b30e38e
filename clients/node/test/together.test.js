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
    cluster: true,
    ask: (...call) => link.ask(...call),
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
  const found = await together.read(place, [1, 2], [1, 2].map(id => place.nameOf(id, pool)), loadFor(place));
  const rows = found.map(({ payload }) => JSON.parse(payload));
  assert.equal(blocks, 2);
  assert.equal(rows[0].balance + rows[1].balance, 200);
  assert.equal(found.some(isCached), false);
});
