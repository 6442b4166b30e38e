'use strict';
// Every kind of read, with every client, from one Redis and from a cluster. None may return what PostgreSQL has replaced.
const assert = require('node:assert/strict');
const { test } = require('node:test');
const { open, until, settled, table, becomesHit, isCached, COMBINATIONS, DETAILS } = require('./setup');

const ACCOUNT = 'id bigint PRIMARY KEY, owner text NOT NULL, version bigint NOT NULL DEFAULT 0';
const OWNERS = `SELECT id, fence.row_version(version) AS version, to_jsonb(owner) AS value FROM account WHERE id = ANY ($1::bigint[])`;
const SLOW = OWNERS.replace('WHERE', ', pg_advisory_xact_lock_shared(1) WHERE');

async function accounts(t, kind, name, options) {
  const opened = await open(t, kind, name, options);
  await table(opened.sql, 'account', ACCOUNT);
  await opened.sql("INSERT INTO account SELECT g, 'owner ' || g FROM generate_series(1, 40) g");
  return opened;
}

const loads = pool => pool.asked.filter(text => /FROM s, ROWS|ANY \(\$1/.test(text)).length;

for (const [kind, name] of COMBINATIONS) {
  test(`${kind}, ${name}`, async suite => {
    const opened = await accounts(suite, kind, name);
    const { fences, sql, pool } = opened;
    const read = (id, load, options) => fences.read('account', id, load, { ...DETAILS, ...options });
    const rowOf = async id => (await sql('SELECT id::int, owner, version::int FROM account WHERE id = $1', [id]))[0] ?? null;

    await suite.test('a row becomes a hit, and a change is read at once', async () => {
      for (let n = 0; n < 10; n++) {
        await becomesHit(() => read(1), await rowOf(1));
        await sql("UPDATE account SET owner = 'changed ' || $1::text WHERE id = 1", [n]);
        assert.deepEqual((await read(1)).value, await rowOf(1));
      }
    });

    await suite.test('versions are texts', async () => {
      await sql("INSERT INTO account VALUES (41, 'large', 9007199254740993)");
      const found = await becomesHit(() => read(41));
      assert.equal(found.version, '9007199254740993');
      assert.equal(found.value.version, '9007199254740993');
    });

    await suite.test('what is not committed is not read', async () => {
      await becomesHit(() => read(3));
      for (const end of ['ROLLBACK', 'COMMIT']) {
        const writer = await pool.connect();
        await writer.query("BEGIN; UPDATE account SET owner = 'not yet' WHERE id = 3");
        for (let n = 0; n < 3; n++) assert.equal((await read(3)).value.owner, 'owner 3');
        await writer.query(end);
        writer.release();
        assert.deepEqual((await read(3)).value, await rowOf(3));
      }
      await becomesHit(() => read(3), await rowOf(3));
    });

    await suite.test('what changed with the whole table is read at once', async () => {
      for (let n = 0; n < 3; n++) {
        await becomesHit(() => read(4));
        await sql(`ALTER TABLE account ALTER owner TYPE text USING CASE id WHEN 4 THEN 'all ${n}' ELSE owner END`);
        await settled(sql);
        assert.equal((await read(4)).value.owner, `all ${n}`);
      }
    });

    await suite.test('a row that is deleted, never was, comes back', async () => {
      await becomesHit(() => read(5));
      await sql('DELETE FROM account WHERE id = 5');
      for (let n = 0; n < 3; n++) assert.equal((await read(5)).value, null);
      assert.equal((await read(9999)).value, null);
      await sql("INSERT INTO account VALUES (5, 'again')");
      assert.equal((await read(5)).value.owner, 'again');
      await becomesHit(() => read(5), await rowOf(5));
    });

    await suite.test('readMany loads what was missed, in one query, and puts it', async () => {
      const keys = Array.from({ length: 20 }, (_, n) => 11 + n);
      await until('the first ten to be hits', async () =>
        (await fences.readMany('account', keys.slice(0, 10), undefined, DETAILS)).every(isCached));
      pool.asked.length = 0;
      const found = await fences.readMany('account', [...keys, 11, 9999], undefined, DETAILS);
      assert.equal(loads(pool), 1);
      assert.deepEqual(found.map(isCached), [...keys.map(id => id <= 20), true, false]);
      assert.deepEqual(found.map(({ value }) => value?.owner ?? null), [...keys, 11].map(id => `owner ${id}`).concat(null));
      await until('all to be hits', async () => (await fences.readMany('account', keys, undefined, DETAILS)).every(isCached));
    });

    await suite.test('reads at the same time are loaded in one query', async () => {
      pool.asked.length = 0;
      const found = await Promise.all([31, 32, 33, 31].map(id => fences.readMany('account', [id])));
      assert.deepEqual(found.map(([row]) => row.owner), [31, 32, 33, 31].map(id => `owner ${id}`));
      assert.equal(loads(pool), 1);
    });

    await suite.test('readTogether agrees', async () => {
      const both = () => fences.readTogether('account', [34, 35, 36], undefined, DETAILS);
      await until('all to be hits', async () => (await both()).every(isCached));
      const stop = new AbortController();
      const writing = (async () => {
        for (let n = 0; !stop.signal.aborted; n++) {
          await sql("UPDATE account SET owner = 'both ' || $1::text WHERE id IN (34, 35, 36)", [n]);
          await new Promise(resolve => { setTimeout(resolve, n % 10); });
        }
      })();
      for (let n = 0; n < 150; n++) {
        const owners = (await both()).map(({ value }) => value.owner);
        if (n > 0 && owners[0] !== 'owner 34') assert.equal(new Set(owners).size, 1, owners.join());
      }
      stop.abort();
      await writing;
      assert.deepEqual(await fences.readTogether('account', []), []);
    });

    await suite.test('who reads PostgreSQL slowly stores nothing old', async () => {
      for (let n = 0; n < 3; n++) {
        const lock = await pool.connect();
        await sql("UPDATE account SET owner = 'before' WHERE id = 37");
        await settled(sql);
        await lock.query('SELECT pg_advisory_lock(1)');
        const slow = read(37, SLOW, { beside: 'slow' });
        await until('the reader to wait', async () => (await sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")).length);
        await sql("UPDATE account SET owner = 'while he reads ' || $1::text WHERE id = 37", [n]);
        await settled(sql);
        await lock.query('SELECT pg_advisory_unlock(1)');
        lock.release();
        await slow;
        assert.equal((await read(37, SLOW, { beside: 'slow' })).value, `while he reads ${n}`);
      }
      await becomesHit(() => read(37, SLOW, { beside: 'slow' }));
    });

    await suite.test('several representations of one row lie beside each other', async () => {
      const asHtml = async (keys, from) => {
        const { rows: [{ version }] } = await from.query('SELECT fence.row_version(0) AS version');
        return keys.map(id => ({ version, value: `<b>${id}</b>` }));
      };
      await becomesHit(() => read(38), await rowOf(38));
      await becomesHit(() => read(38, OWNERS, { beside: 'owner' }), 'owner 38');
      await becomesHit(() => read(38, asHtml, { beside: 'html' }), '<b>38</b>');
      assert.equal(isCached(await read(38)), true, 'the row itself');
      await sql("UPDATE account SET owner = 'new' WHERE id = 38");
      assert.equal((await read(38, OWNERS, { beside: 'owner' })).value, 'new');
      assert.equal((await read(38)).value.owner, 'new');
    });

    await suite.test('raw is the text of the value', async () => {
      await becomesHit(() => read(10));
      const [{ text }] = await sql('SELECT to_jsonb(a)::text AS text FROM account a WHERE id = 10');
      assert.equal(await fences.read('account', 10, undefined, { raw: true }), text);
      assert.deepEqual(await fences.readMany('account', [10, 9999, 10], undefined, { raw: true }), [text, null, text]);
    });

    await suite.test('a key that is given twice, with values beside', async () => {
      const both = () => fences.readMany('account', [9, 8, 9], OWNERS, { ...DETAILS, beside: 'owner' });
      await until('hits', async () => (await both()).every(isCached));
      assert.deepEqual((await both()).map(({ value }) => value), ['owner 9', 'owner 8', 'owner 9']);
    });

    await suite.test('large values are put by renaming', async () => {
      const large = 'ü"\\\n'.repeat(20000);
      await sql('UPDATE account SET owner = $1 WHERE id = 39', [large]);
      assert.equal((await becomesHit(() => read(39))).value.owner, large);
    });

    await suite.test('peek tells what it found', async () => {
      await becomesHit(() => read(40), await rowOf(40));
      assert.deepEqual(await fences.peek('account', 40), { freshness: 'fresh', version: '0', value: await rowOf(40) });
      assert.deepEqual(await fences.peek('account', 9999), { freshness: 'none', version: null, value: null });
      await sql("ALTER TABLE account ALTER owner TYPE text USING owner || '!'");
      await settled(sql);
      assert.deepEqual(await fences.peek('account', 40), { freshness: 'unknown', version: '0', value: { ...await rowOf(40), owner: 'owner 40' } });
    });

    await suite.test('derived values', async () => {
      await sql('DROP TABLE IF EXISTS part');
      await sql("DROP FUNCTION IF EXISTS two(bigint, bigint); DELETE FROM fence.derived WHERE name = 'two'");
      await sql(`CREATE FUNCTION two(a bigint, b bigint) RETURNS jsonb STABLE LANGUAGE sql BEGIN ATOMIC
        SELECT jsonb_agg(owner ORDER BY id) FROM public.account WHERE id IN (a, b); END`);
      await sql("SELECT fence.define_derived('two', '{account($1),account($2)}', 'two(bigint, bigint)')");
      const both = () => fences.derived('two', [6, 7n], DETAILS);
      const six = (await rowOf(6)).owner;
      await becomesHit(both, [six, (await rowOf(7)).owner]);
      await sql("UPDATE account SET owner = 'seven' WHERE id = 7");
      assert.deepEqual((await both()).value, [six, 'seven']);
      await becomesHit(both, [six, 'seven']);
    });

    await suite.test('nothing went wrong meanwhile', () => {
      assert.deepEqual(opened.errors, []);
      const { reads, events } = fences.counters();
      assert.ok(reads.account.hit > 0 && reads.account.database > 0 && events.account.stored > 0);
    });
  });
}
