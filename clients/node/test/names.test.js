'use strict';
// Names that the library makes are those of fence.fence_key, and what fence.fence_key refuses is refused.
const assert = require('node:assert/strict');
const { test } = require('node:test');
const { open, poolOf, table, until } = require('./setup');
const { Domains } = require('../lib/domains');

const TEXTS = ['plain-._~09AZ', '', ' ', '  two  ', 'a{b}c', '{', '}', '{}', ':', ',', '%', '%00', '%2C', 'a,b', 'new\nline', 'end\n',
  'tab\tcr\r', '"', "'", "!'()*", '\\', '/', '?', '#&=+', 'ü', 'u\u0308', '漢字', '🙂', '\u{10FFFF}', '\uFEFF', '\u0001', 'a:f:{x}',
  'NULL', 'null', '$HOME `id`', '-n', '%s\\n', 'x'.repeat(1999), '__proto__', 'constructor', '0', '-0', '+1', '1e3', ' 1'];
const INTEGERS = ['0', '-0', '+0', '00', '1', '-1', '42', ' 42', '42 ', '042', '+42', '-042', '0x10', '1_000', '1.0', '1e3', '', 'x', 'NaN',
  '32767', '32768', '-32768', '-32769', '2147483647', '2147483648', '-2147483648', '-2147483649', '9007199254740991', '9007199254740993',
  '9223372036854775807', '9223372036854775808', '-9223372036854775808', '-9223372036854775809', '99999999999999999999',
  0, -0, 42, -7, 32768, 2147483648, 2 ** 53 - 1, 0n, -1n, 2n ** 63n - 1n, 2n ** 63n, -(2n ** 63n), -(2n ** 63n) - 1n, true];
const DATES = ['2026-01-31T12:00:00.000Z', '2026-01-31T12:00:00.500Z', '1999-12-31T23:59:10.010Z', '1970-01-01T00:00:00.001Z',
  '0001-01-01T00:00:00.000Z', '9999-12-31T23:59:59.999Z', '1582-10-10T00:00:00.120Z', '2000-02-29T20:00:00.100Z'];

// type -> what is given; PostgreSQL is given the text.
const VALUES = {
  smallint: INTEGERS, integer: INTEGERS, bigint: INTEGERS,
  text: [...TEXTS, 7, -0, 2n ** 70n], 'character varying': TEXTS, 'character varying(5)': [...TEXTS, 'abcde', 'abcdef', 'abcde  ', '🙂🙂🙂🙂🙂', 'ab   '],
  'character(5)': [...TEXTS, 'abcde', 'abcdef', 'abcde  ', 'a    ', '🙂🙂🙂🙂🙂'],
  uuid: ['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}',
    'a0eebc999c0b4ef8bb6d6bb9bd380a11', 'x', ''],
  boolean: [true, false, 'yes', 'off', 't', '1', 'maybe'],
  bytea: [Buffer.from('deadbeef', 'hex'), Buffer.alloc(0), new Uint8Array([0, 255]), '\\xDEADBEEF', '\\x', 'abc'],
  numeric: ['1.50', '100', '1E+2', '0.0010', '-0.0', '123456789012345678901234567890.120', 'NaN', 5, -5n, 2n ** 80n, 1.5, 1e-7, '', 'x'],
  'numeric(6,2)': ['1.555', 12, 1.005, 99999n],
  date: ['2024-02-29', '2024-2-29', 'infinity', '29 Feb 2024'], time: ['04:05:06.789', '04:05'],
  'timestamp without time zone': ['2024-02-29 12:00:00.000001', '2024-02-29'],
  'timestamp with time zone': [...DATES.map(text => new Date(text)), '2026-01-31 14:00:00.5+02', '2026-01-31', '0044-03-15 BC'],
  inet: ['10.0.0.1', '10.0.0.1/8', '::1'], money: ['12.34'], name: ['abc'],
  odd_domain: ['abc'], mood: ['sad', 'ok,fine', 'angry'],
};

const textOf = value => (value instanceof Uint8Array ? '\\x' + Buffer.from(value).toString('hex')
  : value instanceof Date ? value.toISOString() : String(value));

const outcome = promise => Promise.resolve().then(promise).then(name => name, error => `error ${error.code ? '' : error.stack}`);

async function compare(pool, sql, domain, key) {
  const place = await new Domains(pool).find(domain);
  const values = Array.isArray(key) ? key : [key];
  const wanted = await outcome(async () =>
    (await sql('SELECT fence.fence_key($1, VARIADIC $2::text[]) AS name', [domain, values.map(textOf)]))[0].name);
  const got = await outcome(() => place.nameOf(key, pool));
  assert.equal(got, wanted, `${domain} ${JSON.stringify(values.map(String))}`);
}

test('names of all types are those of fence_key', async t => {
  const { pool, sql } = await open(t);
  await sql("DROP TABLE IF EXISTS k; DROP DOMAIN IF EXISTS odd_domain; DROP TYPE IF EXISTS mood");
  await sql("CREATE DOMAIN odd_domain AS text; CREATE TYPE mood AS ENUM ('sad', 'ok,fine')");
  for (const [type, values] of Object.entries(VALUES)) {
    await table(sql, 'k', `id ${type} PRIMARY KEY, version bigint NOT NULL DEFAULT 0`);
    for (const value of values) await compare(pool, sql, 'k', value);
  }
  await sql('DROP TABLE k');
});

test('so are names of keys of several columns, with a tag, in a domain of an odd name', async t => {
  const { pool, sql } = await open(t);
  await sql('DROP TABLE IF EXISTS seat');
  await sql(`CREATE TABLE seat (room text, "odd col" bigint, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room, "odd col"))`);
  await sql(`SELECT fence.attach('seat', domain => 'odd {na}me:%,é', tag => 'r/{odd col}/room-{room}')`);
  for (const text of TEXTS) {
    await compare(pool, sql, 'odd {na}me:%,é', [text, -7]);
    await compare(pool, sql, 'odd {na}me:%,é', [text, '007']);
  }
  await sql('DROP TABLE seat');
});

test('random texts and numbers', async t => {
  const { pool, sql } = await open(t);
  await table(sql, 'k', 'id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
  const draw = n => Math.floor(Math.random() * n);
  const place = await new Domains(pool).find('k');
  const texts = Array.from({ length: 2000 }, () => String.fromCodePoint(...Array.from({ length: 1 + draw(8) }, () => {
    const code = draw(4) ? 1 + draw(0x250) : 1 + draw(0x10FFFF);
    return code >= 0xD800 && code < 0xE000 ? 0x41 : code;
  })));
  const rows = await sql(`SELECT fence.fence_key('k', x) AS name FROM unnest($1::text[]) WITH ORDINALITY AS t (x, n) ORDER BY n`, [texts]);
  texts.forEach((text, n) => assert.equal(place.nameOf(text, pool), rows[n].name, JSON.stringify(text)));
  await sql('DROP TABLE k');
});

test('names of common types ask PostgreSQL nothing; others once', async t => {
  const { pool, sql } = await open(t);
  await table(sql, 'k', 'id bigint PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
  const place = await new Domains(pool).find('k');
  pool.asked.length = 0;
  for (const value of [1, 2n, '3']) assert.equal(typeof place.nameOf(value, pool), 'string');
  assert.deepEqual(pool.asked, []);
  for (let n = 0; n < 3; n++) assert.equal(await place.nameOf('+4', pool), place.nameOf(4, pool));
  assert.equal(pool.asked.length, 1);
  await sql('DROP TABLE k');
});

test('keys that name no row for sure raise', async t => {
  const { pool, sql } = await open(t);
  await table(sql, 'k', 'id bigint PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
  await table(sql, 'w', 'id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
  const domains = new Domains(pool);
  const numbers = await domains.find('k');
  const words = await domains.find('w');
  for (const value of [2 ** 53, 1.5, NaN, Infinity, null, undefined, {}, [], [1, 2], Symbol('x'), () => 1, new Date(), new Date(NaN)]) {
    assert.throws(() => numbers.nameOf(value, pool), { code: 'ERR_FENCE_KEY' }, String(value));
  }
  for (const value of ['\0', 'a\0b', '\uD800', 'a\uDC00', 2 ** 53, 'ü'.repeat(400), new Date()]) {
    assert.throws(() => words.nameOf(value, pool), { code: 'ERR_FENCE_KEY' }, String(value));
  }
  await sql('DROP TABLE k, w');
});

test('a database of another encoding has the same names', async t => {
  const { sql } = await open(t);
  await sql('DROP DATABASE IF EXISTS latin1');
  await sql("CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
  const pool = poolOf('single', { database: 'latin1' });
  const there = async (...args) => (await pool.query(...args)).rows;
  try {
    await there('CREATE EXTENSION pgcache_fence');
    await until('the fences to open', async () => (await there('SELECT state FROM fence.state'))[0].state === 'OPEN');
    await there("CREATE TABLE étage (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0); SELECT fence.attach('étage')");
    for (const text of ['José', 'ÿ', 'plain']) await compare(pool, there, 'étage', text);
  } finally {
    await pool.end();
  }
  // the pool does not wait until PostgreSQL has seen its connections close, and an error there would be nobody's
  await until('the connections to close', async () => (await sql(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = 'latin1' AND backend_type = 'client backend'"))[0].count === '0');
  await sql('DROP DATABASE latin1 WITH (FORCE)');
});
