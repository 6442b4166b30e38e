// The library clients/node for the storm: drive.js SETTINGS, see drive.py. The one more setting is "client": ioredis or node_redis.
// The modules are found from the current directory.
const readline = require('readline');

const { Fences } = require('../../clients/node');

const from = name => require(require.resolve(name, { paths: ['.'] }));
const DETAILS = { details: true };

const CLIENTS = {
  ioredis(nodes, cluster) {
    const Redis = from('ioredis');
    return cluster ? new Redis.Cluster(nodes, { lazyConnect: true }) : new Redis({ ...nodes[0], lazyConnect: true });
  },
  node_redis(nodes, cluster) {
    const { createClient, createCluster } = from('redis');
    return cluster ? createCluster({ rootNodes: nodes.map(socket => ({ socket })) }) : createClient({ socket: nodes[0] });
  },
};

const settings = JSON.parse(process.argv[2]);
const say = answer => process.stdout.write(JSON.stringify(answer) + '\n');

function poolOf(dsn) {
  const { Pool } = from('pg');
  const words = Object.fromEntries(dsn.split(' ').map(word => word.split('=')));
  return new Pool({ host: words.host, port: Number(words.port), user: words.user, database: words.dbname });
}

async function main() {
  const redis = CLIENTS[settings.client](settings.nodes.map(([host, port]) => ({ host, port })), settings.cluster);
  const fences = new Fences({ redis: redis.on('error', () => {}), pg: poolOf(settings.dsn), onError() {} });
  const requests = {
    read: async ({ id }) => [await fences.read('account', id, undefined, DETAILS)],
    together: ({ ids }) => fences.readTogether('account', ids, undefined, DETAILS),
  };

  say('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    try {
      const found = await requests[request.do](request);
      say({ rows: found.map(({ value }) => value && JSON.stringify(value)), queries: found.filter(({ source }) => source !== 'hit').length });
    } catch (error) {
      say({ error: String(error) });
    }
  }
  process.exit(0);
}

main();
