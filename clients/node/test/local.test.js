'use strict';
// Values that the process keeps: none is used without a check that began after the read.
const assert = require('node:assert/strict');
const { test } = require('node:test');
const { open, table, becomesHit, until, DETAILS } = require('./setup');
const { Local } = require('../lib/local');

for (const [kind, name] of [['ioredis', 'single'], ['redis', 'cluster']]) {
  test(`${kind}, ${name}: kept values are checked, many in one call`, async t => {
    const { fences, sql } = await open(t, kind, name, { local: { max: 100 } });
    await table(sql, 'kept', "id int PRIMARY KEY, t text, version bigint NOT NULL DEFAULT 0", ", tag => 't{id}'");
    await sql("INSERT INTO kept SELECT g, 'first' FROM generate_series(1, 50) g");
    const keys = Array.from({ length: 50 }, (_, n) => n + 1);
    const all = () => fences.readMany('kept', keys, undefined, DETAILS);
    await until('all to be kept', async () => (await all()).every(({ source }) => source === 'local'));
    for (let n = 0; n < 20; n++) {
      const id = 1 + n * 2;
      await sql('UPDATE kept SET t = $2 WHERE id = $1', [id, `changed ${n}`]);
      const found = await all();
      assert.equal(found[id - 1].value.t, `changed ${n}`);
      assert.equal(found[id].source, 'local');
      assert.equal((await fences.read('kept', id)).t, `changed ${n}`);
    }
  });
}

test('who changes what he was given changes nothing for others', async t => {
  const { fences, sql } = await open(t, 'ioredis', 'single', { local: true });
  await table(sql, 'kept', "id int PRIMARY KEY, t text, version bigint NOT NULL DEFAULT 0");
  await sql("INSERT INTO kept VALUES (1, 'first')");
  await becomesHit(() => fences.read('kept', 1, undefined, DETAILS));
  const [one, two] = await Promise.all([fences.read('kept', 1), fences.read('kept', 1)]);
  one.t = 'mine';
  assert.equal(two.t, 'first');
  assert.equal((await fences.read('kept', 1)).t, 'first');
});

test('it has as many as it may, those used last', () => {
  const local = new Local({ max: 3, maxBytes: 100 });
  const entry = size => ({ token: 't', version: '1', payload: 'x'.repeat(size) });
  for (const name of ['a', 'b', 'c']) local.set(name, entry(10));
  local.get('a');
  local.set('d', entry(10));
  assert.deepEqual(['a', 'b', 'c', 'd'].map(name => local.get(name) !== undefined), [true, false, true, true]);
  local.set('e', entry(85));
  assert.deepEqual(['a', 'c', 'd', 'e'].map(name => local.get(name) !== undefined), [false, false, true, true]);
  local.set('f', entry(101));
  assert.equal(local.get('f'), undefined);
  local.set('e', entry(1));
  local.delete('d');
  local.delete('d');
  local.set('g', entry(99));
  assert.deepEqual([local.size, local.get('g') !== undefined], [2, true]);
});
