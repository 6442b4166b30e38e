// The package clients/node before the history checker; conformance.md tells what is said.
//
//     node test/clients/conformance.js ioredis|redis     where NODE_PATH has the modules; ioredis-6, redis-4, redis-6: other versions
//
// Half of the processes keep values. Beside the read that answers others go on, of the same key and of others.
const readline = require('readline');
const { Pool } = require('pg');
const { Fences } = require('../../clients/node');

const which = process.argv[2];
const replicas = process.argv.includes('replicas');     // the application reads from replicas; its fences must not
const local = Math.random() < 0.5 && { max: 50 };
const chance = share => Math.random() < share;
const ignore = () => {};
const DETAILS = { details: true };

const clients = {
  ioredis(cluster, nodes) {
    const Redis = require(which);
    const options = { lazyConnect: true, keyPrefix: 'application:' };
    return cluster ? new Redis.Cluster(nodes, { ...options, scaleReads: replicas ? 'slave' : 'all' }) : new Redis({ ...nodes[0], ...options });
  },
  redis(cluster, nodes) {
    const { createClient, createCluster } = require(which);
    return cluster ? createCluster({ rootNodes: nodes.map(socket => ({ socket })), useReplicas: replicas })
      : createClient({ socket: nodes[0], database: 3 });
  },
};

function redisAt(layout, nodes) {
  const make = (...ofOne) => clients[which.split('-')[0]](...ofOne).on('error', ignore);
  return layout === 'shards' ? nodes.map(node => make(false, [node])) : make(layout === 'cluster', nodes);
}

let pool, fences;
let where = null;                       // of Redis: layout, nodes

function begin() {
  fences?.close().catch(ignore);
  fences = null;
  if (where && pool) fences = new Fences({ redis: redisAt(...where), pg: pool, local, onError: ignore });
}

const payloads = found => found.map(({ value }) => JSON.stringify(value));
const kind = found => (found.every(({ source }) => source === 'hit' || source === 'local') ? 'hit' : 'read');
const told = found => [kind(found), ...payloads(found)];

const requests = {
  redis(layout, addresses) {
    where = [layout, addresses.split(',').map(address => {
      if (address[0] === '/') return { path: address };
      const colon = address.lastIndexOf(':');
      return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
    })];
    begin();
    return ['ok'];
  },
  postgres(conninfo, name) {
    const { dbname, port, ...words } = Object.fromEntries(conninfo.split(' ').map(word => word.split('=')));
    pool?.end().catch(ignore);
    pool = new Pool({ ...words, port: Number(port), database: dbname, application_name: name, connectionTimeoutMillis: 2000, max: 4 });
    pool.on('error', ignore);
    begin();
    return ['ok'];
  },
  async read(text) {
    const key = Number(text);
    const beside = () => fences.read('item', chance(0.5) ? key : 1 + Math.floor(Math.random() * 8)).catch(ignore);
    const others = chance(0.3) ? [beside(), beside()] : [];
    if (chance(0.2)) await new Promise(setImmediate);
    const found = chance(0.8) ? [await fences.read('item', key, undefined, DETAILS)]
      : (await fences.readMany('item', [key, key + 1], undefined, DETAILS)).slice(0, 1);
    if (chance(0.5)) await Promise.all(others);
    return told(found);
  },
  async together(...keys) {
    return told(await fences.readTogether('item', keys.map(Number), undefined, DETAILS));
  },
  async derived(...keys) {
    return told([await fences.derived('pair', keys, DETAILS)]);
  },
};

const say = words => process.stdout.write(words.join('\t') + '\n');

async function main() {
  say(['ready', 'read', 'together', 'derived']);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [request, ...words] = line.split('\t');
    say(await Promise.resolve().then(() => requests[request](...words))
      .catch(error => ['error', String(error.message).replace(/\s/g, ' ')]));
  }
  process.exit(0);
}

main();
