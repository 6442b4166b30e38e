'use strict';
// What the tests share: the servers, of which the file that FENCE_TEST names tells; clients of every kind; waiting.
const assert = require('node:assert/strict');
const fs = require('node:fs');
const { Pool } = require('pg');
const { Fences } = require('..');

const places = JSON.parse(fs.readFileSync(process.env.FENCE_TEST, 'utf8'));
const WAIT_MS = 30000;
const silent = () => {};

// Makers of an application's client, by the module. hostile: with the options that its reads may have, and a strong read may not.
const ioredis = module => ({ cluster, nodes }) => {
  const Redis = require(module);
  const hostile = { keyPrefix: 'application:', enableAutoPipelining: true, lazyConnect: true };
  const client = cluster ? new Redis.Cluster(nodes, { ...hostile, scaleReads: 'all' })
    : new Redis({ ...nodes[0], ...hostile, db: 2, maxRetriesPerRequest: null, retryStrategy: () => null });
  return { client: client.on('error', silent), end: () => client.disconnect() };
};
const nodeRedis = module => ({ cluster, nodes }) => {
  const { createClient, createCluster } = require(module);
  const client = cluster ? createCluster({ rootNodes: nodes.map(socket => ({ socket })), useReplicas: true })
    : createClient({ url: `redis://127.0.0.1:${nodes[0].port}/3`, socket: { reconnectStrategy: false } });
  return { client: client.on('error', silent), end: silent };           // it is never connected
};
const HAS_20 = Number(process.versions.node.split('.')[0]) >= 20;       // ioredis 6 and node-redis 6 need it
const KINDS = ['ioredis', 'redis', 'redis-4', ...HAS_20 ? ['ioredis-6', 'redis-6'] : []];
const CLIENTS = Object.fromEntries(KINDS.map(kind => [kind, (kind.startsWith('ioredis') ? ioredis : nodeRedis)(kind)]));
const COMBINATIONS = [...KINDS.map(kind => [kind, 'single']), ...KINDS.filter(kind => kind !== 'redis-4').map(kind => [kind, 'cluster']),
  ['ioredis', 'shards'], ['redis', 'shards']];

// A pool that counts its queries.
function poolOf(name, options) {
  const { PGHOST, PGPORT, PGUSER, PGDATABASE } = places[name].pg;
  const pool = new Pool({ host: PGHOST, port: Number(PGPORT), user: PGUSER, database: PGDATABASE, max: 8, ...options });
  const query = pool.query.bind(pool);
  pool.asked = [];
  pool.query = (...args) => {
    pool.asked.push(args[0].text ?? args[0]);
    return query(...args);
  };
  return pool;
}

const nodesOf = name => places[name].redis.map(({ port }) => ({ host: '127.0.0.1', port }));

// Of shards an array of clients.
function clientOf(kind, name) {
  const nodes = nodesOf(name);
  if (name !== 'shards') return CLIENTS[kind]({ cluster: name === 'cluster', nodes });
  const all = nodes.map(node => CLIENTS[kind]({ nodes: [node] }));
  return { client: all.map(({ client }) => client), end: () => all.forEach(({ end }) => end()) };
}

// What a test uses, and its end: t is the test's context.
async function open(t, kind = 'ioredis', name = 'single', options = {}) {
  const pool = poolOf(name);
  const { client, end } = clientOf(kind, name);
  const errors = [];
  const fences = new Fences({ redis: client, pg: pool, onError: error => errors.push(error), timeout: 2000, ...options });
  t.after(async () => {
    await fences.close();
    end();
    await pool.end();
  });
  assert.equal(await fences.ready(10000), true);
  return { pool, fences, errors, sql: async (...args) => (await pool.query(...args)).rows, name };
}

async function until(what, condition) {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited ${WAIT_MS} ms for ${what}`);
    await new Promise(resolve => { setTimeout(resolve, 5); });
  }
}

const settled = sql => until('the end of all reservations', async () => (await sql('SELECT 1 FROM fence.pending')).length === 0);

// Readers have missed the row lately, so Redis lets the next one put it (pgcache_fence.watch_buckets).
const opened = (sql, domain, id) => until('the row to be cached', async () =>
  (await sql('SELECT source FROM fence.try_read($1, $2::text)', [domain, `${id}`]))[0].source === 'cache');

// A table of the test's own, of that name and domain; made anew.
async function table(sql, name, columns, attach = '') {
  await sql(`DROP TABLE IF EXISTS ${name} CASCADE`);
  await sql(`CREATE TABLE ${name} (${columns})`);
  await sql(`SELECT fence.attach('${name}'${attach})`);
}

const DETAILS = { details: true };
const isCached = ({ source }) => source === 'hit' || source === 'local';

// Reads until it is a hit; what is read is right all the time.
function becomesHit(read, wanted) {
  return until('a hit', async () => {
    const found = await read();
    if (wanted !== undefined) assert.deepEqual(found.value, wanted);
    return isCached(found) && found;
  });
}

module.exports = { places, poolOf, nodesOf, clientOf, open, until, settled, opened, table, becomesHit, isCached, KINDS, COMBINATIONS, DETAILS, WAIT_MS };
