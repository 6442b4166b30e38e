'use strict';
// What is put is what fence.read has, of every kind of domain; loads of the application; numbers; attachments that change.
const assert = require('node:assert/strict');
const { test } = require('node:test');
const { open, settled, opened, table, becomesHit, isCached, until, DETAILS } = require('./setup');
const { parse } = require('../lib/json');

const KINDS = `id int PRIMARY KEY, i bigint, n numeric, d double precision, t text, z timestamptz, b bytea, v interval, m money, a int[],
  j jsonb, version bigint NOT NULL DEFAULT 0`;
const HARD = `INSERT INTO kinds VALUES (1, 9007199254740993, 12345678901234567890.120, 0.1, 'ü"\\''{}', '2026-01-31 12:00:00.5+05', '\\x00ff',
  '1 day 2 hours', '12.34', '{1,2}', '{"a": 12345678901234567890, "b": [1.5, "2"]}')`;

test('the row itself is what fence.read makes of it, in whatever settings', async t => {
  const { fences, sql, pool } = await open(t);
  await table(sql, 'kinds', KINDS);
  await sql(HARD);
  for (const options of ['', "-c TimeZone=Asia/Tokyo -c DateStyle=German -c bytea_output=escape -c IntervalStyle=iso_8601"]) {
    const other = await open(t, 'ioredis', 'single');
    other.pool.options.options = options;
    await opened(sql, 'kinds', 1);
    await sql('UPDATE kinds SET t = t WHERE id = 1');
    await settled(sql);
    assert.equal(isCached(await other.fences.read('kinds', 1, undefined, DETAILS)), false);
    await until('the put', async () => (await sql("SELECT status FROM fence.get('kinds', 1)"))[0].status === 'hit');
    const [{ payload }] = await sql("SELECT payload FROM fence.get('kinds', 1)");
    assert.match(payload, /"2026-01-31T07:00:00.5\+00:00"/);
    assert.deepEqual(await sql("SELECT relation, count::int FROM fence.audit('kinds') WHERE relation <> 'equal' AND count > 0"), []);
    assert.equal((await other.pool.query('SHOW TimeZone')).rows[0].TimeZone === 'UTC' && options !== '', false, 'settings stay');
  }
  const row = await fences.read('kinds', 1);
  assert.equal(row.i, '9007199254740993');
  assert.equal(row.n, '12345678901234567890.120');
  assert.equal(row.d, 0.1);
  assert.deepEqual(row.j, { a: '12345678901234567890', b: [1.5, '2'] });
  assert.equal(pool.options.options, undefined);
});

test('a number that JavaScript would round is a text, wherever it stands in a value', () => {
  for (let n = 0; n < 40; n++) {
    const before = 'x'.repeat(n);
    assert.deepEqual(parse(`{"t": "${before}", "n": 9007199254740993, "short": 123456789012345}`),
      { t: before, n: '9007199254740993', short: 123456789012345 });
  }
});

test('groups, rows without a version column, columns, absent rows, keys of several columns', async t => {
  const { fences, sql } = await open(t);
  await table(sql, 'member', 'room int, name text, PRIMARY KEY (room, name)', ", key => '{room}', scope => 'group'");
  await table(sql, 'plain', 'id int PRIMARY KEY, t text', ', version => NULL');
  await table(sql, 'narrow', 'id int PRIMARY KEY, t text, secret text, version bigint NOT NULL DEFAULT 0', ", columns => '{id,t}'");
  await table(sql, 'gone', 'id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0', ', cache_absent => true');
  await table(sql, 'written', 'id int PRIMARY KEY, t text, version bigint NOT NULL DEFAULT 0', ", cache => 'row'");
  await table(sql, 'seat', '"row" int, room text, t text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY ("row", room)', ", tag => 'room/{room}'");
  await sql(`INSERT INTO member VALUES (7, 'b'), (7, 'a'), (8, 'c'); INSERT INTO plain VALUES (1, 'one'); INSERT INTO narrow VALUES (1, 'one', 'x');
    INSERT INTO written VALUES (1, 'one'); INSERT INTO seat VALUES (1, 'a,b', 'x'), (2, 'a,b', 'y')`);
  const read = (domain, key) => () => fences.read(domain, key, undefined, DETAILS);
  await becomesHit(read('member', 7), [{ room: 7, name: 'a' }, { room: 7, name: 'b' }]);
  await becomesHit(read('member', 9), []);
  await sql("INSERT INTO member VALUES (9, 'd')");
  await becomesHit(read('member', 9), [{ room: 9, name: 'd' }]);
  await becomesHit(read('plain', 1), { id: 1, t: 'one' });
  await sql("UPDATE plain SET t = 'two'");
  await becomesHit(read('plain', 1), { id: 1, t: 'two' });
  await becomesHit(read('narrow', 1), { id: 1, t: 'one' });
  assert.equal(await fences.read('gone', 1), null);
  await sql("SELECT fence.read('gone', 1)");
  assert.equal((await becomesHit(read('gone', 1))).value, null);
  await sql('INSERT INTO gone VALUES (1)');
  await becomesHit(read('gone', 1), { id: 1, version: (await fences.read('gone', 1)).version });
  await becomesHit(read('written', 1), { id: 1, t: 'one', version: 0 });
  await becomesHit(read('seat', [1, 'a,b']), { row: 1, room: 'a,b', t: 'x', version: 0 });
  assert.deepEqual((await fences.readMany('seat', [[2, 'a,b'], [1, 'a,b'], [3, 'a']])).map(row => row?.t), ['y', 'x', undefined]);
});

test('a query or a function of the application loads', async t => {
  const { fences, sql } = await open(t);
  await table(sql, 'item', 'id uuid PRIMARY KEY, t text, version bigint NOT NULL DEFAULT 0');
  const [{ id }] = await sql("INSERT INTO item VALUES (gen_random_uuid(), 'one') RETURNING id");
  const query = `SELECT id, fence.row_version(version) AS version, jsonb_build_object('n', 9007199254740993, 't', t) AS value FROM item
    WHERE id = ANY ($1::uuid[])`;
  await becomesHit(() => fences.read('item', id.toUpperCase(), query, DETAILS), { n: '9007199254740993', t: 'one' });
  let given;
  const load = async (keys, pool) => {
    given = keys;
    const { rows } = await pool.query('SELECT id, t, fence.row_version(version) AS version FROM item WHERE id = ANY ($1)', [keys]);
    return keys.map(key => rows.find(row => row.id === key)).map(row => row && { version: row.version, value: [row.t] });
  };
  await becomesHit(() => fences.read('item', id, load, { ...DETAILS, beside: 'f' }), ['one']);
  assert.deepEqual(given, [id]);
  const none = '00000000-0000-0000-0000-000000000000';
  assert.deepEqual(await fences.readMany('item', [none, id], load, { beside: 'f' }), [null, ['one']]);

  const wrong = {
    'SELECT id, version, 1 AS values FROM item WHERE id = ANY ($1::uuid[])': /has no column "value"/,
    'SELECT id, fence.row_version(version) AS version, to_json(t) AS value FROM item WHERE $1::text[] IS NOT NULL':
      /was not asked for.*OPERATOR\(pg_catalog\.=\) ANY \(\$1::pg_catalog\.uuid\[\]\)/s,
    'SELECT id, t AS version, to_json(t) AS value FROM item WHERE id = ANY ($1::uuid[])': /fence\.row_version\(version\)/,
    'SELECT id, NULL AS version, to_json(t) AS value FROM item, generate_series(1, 2) WHERE id = ANY ($1::uuid[])': /two rows of one key/,
  };
  await sql("INSERT INTO item VALUES (gen_random_uuid(), 'other')");
  let n = 0;
  for (const [text, message] of Object.entries(wrong)) {
    await assert.rejects(fences.read('item', id, text, { beside: `w${n++}` }), message);
  }
  for (const [name, answer] of Object.entries({ a: null, b: [], c: [{ id, t: 'one' }], d: [0] })) {
    await assert.rejects(fences.read('item', id, () => answer, { beside: name }), { code: 'ERR_FENCE_LOAD' }, name);
  }
  for (const version of [5, 5n, '5', '', 2 ** 60, 'x', '6-3FA21C.5', '6-3fa21c', '6-3fa21c.-5', '6-3fa21c.5 ', {}]) {
    await assert.rejects(fences.read('item', id, () => [{ version, value: 1 }], { beside: 'v' }),
      { code: 'ERR_FENCE_VERSION', message: /select fence\.row_version\(version\) in the statement that reads the row/ }, String(version));
  }
  await assert.rejects(fences.read('item', id, () => { throw new Error('of the application'); }, { beside: 'g' }), /of the application/);
  await assert.rejects(fences.read('item', id), { code: 'ERR_FENCE_LOAD' }, 'two loads for one fence');
});

const VALUES = 'SELECT id, fence.row_version(version) AS version, to_jsonb(t) AS value FROM item WHERE id = ANY ($1::int[])';

// A reader of an item that nobody has cached, although Redis lets a reader put it. n reads without a hit: they are right, and counted as
// that event.
async function item(t, load, text = 'old') {
  const { fences, sql, pool } = await open(t);
  await table(sql, 'item', 'id int PRIMARY KEY, t text, version bigint NOT NULL DEFAULT 0');
  await sql('INSERT INTO item VALUES (1, $1)', [text]);
  await opened(sql, 'item', 1);
  await sql("UPDATE item SET t = t || '!'");
  await settled(sql);
  const read = () => fences.read('item', 1, load, DETAILS);
  const textOf = ({ value }) => value.t ?? value;
  const missed = async (event, version, n = 3) => {
    const before = fences.counters().events.item?.[event] ?? 0;
    for (let i = 1; i <= n; i++) {
      const found = await read();
      assert.deepEqual([textOf(found), found.version, found.source], [`${text}!`, version, 'miss']);
      await until(event, () => fences.counters().events.item[event] === before + i);
      assert.equal((await fences.peek('item', 1)).freshness, 'none');
    }
    assert.equal(fences.counters().events.item.stored, undefined);
  };
  return { fences, sql, pool, read, missed, textOf };
}

for (const [size, text] of [['a small', 'old'], ['a large', 'old'.repeat(2000)]]) {
  test(`${size} row of a server that was replaced is not stored`, async t => {
    let change;
    const load = async (keys, pool) => {
      const { rows } = await pool.query(VALUES, [keys]);
      return keys.map(key => rows.find(row => row.id === key)).map(row => row && { ...row, version: change(row.version) });
    };
    const { sql, read, missed } = await item(t, load, text);
    for (change of [told => `1-abcdef.${told.split('.')[1]}`, told => told.replace(/-[0-9a-f]+/, '-000000')]) await missed('refused', '1');
    change = told => told;
    await becomesHit(read, `${text}!`);
    await sql("UPDATE item SET t = 'new'");
    assert.equal((await read()).value, 'new');
    await becomesHit(read, 'new');
  });
}

const fromFunction = async (keys, pool) => (await pool.query(VALUES, [keys])).rows;
const untold = async (keys, pool) => (await pool.query(VALUES, [keys])).rows.map(({ version, value }) => ({ version: version ?? undefined, value }));
for (const [what, load] of [['the library', undefined], ['a query', VALUES], ['a function', fromFunction], ['a function without null', untold]]) {
  test(`${what} reads a row in a transaction that has written: the row has no version, and is not stored`, async t => {
    const { pool, read, missed, textOf } = await item(t, load);
    const { query } = pool;
    pool.query = async (...args) => {
      const client = await pool.connect();
      try {
        await client.query('BEGIN; SELECT txid_current()');
        return await client.query(...args);
      } finally {
        await client.query('ROLLBACK');
        client.release();
      }
    };
    await missed('kept_back', null);
    pool.query = query;
    const found = await becomesHit(read);
    assert.deepEqual([textOf(found), found.version], ['old!', '1']);
  });
}

test('of a table that is attached anew with another tag, nothing goes to the old names', async t => {
  for (const kind of ['known', 'new']) {
    const { fences, sql } = await open(t);
    await table(sql, 'moved', 'a int, b int, t text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (a, b)', ", tag => 'a/{a}'");
    await sql("INSERT INTO moved VALUES (1, 2, 'one')");
    const read = () => fences.read('moved', [1, 2], undefined, DETAILS);
    if (kind === 'known') await becomesHit(read);
    else await fences.peek('moved', [1, 2]);            // the place is known, no token of it
    await sql("BEGIN; SELECT fence.detach('moved'); SELECT fence.attach('moved', tag => 'b/{b}'); COMMIT");
    await settled(sql);
    await becomesHit(read);
    await sql("UPDATE moved SET t = 'two'");
    assert.equal((await read()).value.t, 'two');
    await becomesHit(read);
    await sql("UPDATE moved SET t = 'three'");
    assert.equal((await read()).value.t, 'three');
  }
});

test('who waits for another reader asks PostgreSQL nothing', async t => {
  const { fences, sql, pool } = await open(t);
  await table(sql, 'busy', 'id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
  await sql('INSERT INTO busy SELECT generate_series(1, 20)');
  await fences.read('busy', 99);
  const client = new (require('ioredis'))(require('./setup').nodesOf('single')[0]);
  t.after(() => client.disconnect());
  for (let id = 1; ; id++) {            // whoever fills may be slower than the lease
    const [{ fence }] = await sql("SELECT fence.fence_key('busy', $1::text) AS fence", [id]);
    await opened(sql, 'busy', id);
    await client.del(fence);
    const [{ version }] = await sql('SELECT fence.row_version(0) AS version');
    const [, permit] = await client.fcall_ro('fence_get', 1, fence);
    pool.asked.length = 0;
    const reading = fences.read('busy', id);
    await new Promise(resolve => { setTimeout(resolve, 10); });
    assert.equal(await client.fcall('fence_put', 1, fence, permit, version, JSON.stringify({ id, version: 0 }), '0'), 'stored');
    assert.deepEqual(await reading, { id, version: 0 });
    // a reader that was late finds the value there, and has not waited either
    if (pool.asked.length === 0 && fences.counters().events.busy?.waited > 0) break;
    assert.ok(id < 15, 'it never waited');
  }
  const [{ fence }] = await sql("SELECT fence.fence_key('busy', 20) AS fence");
  await client.fcall_ro('fence_get', 1, fence);         // and never puts
  assert.deepEqual(await fences.read('busy', 20), { id: 20, version: 0 });
});
