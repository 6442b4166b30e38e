'use strict';
// What a hit costs, against a bare GET of the same bytes by the same client in the same run.
//
//     node bench/hits.js [rounds]        REDIS_PORT says where Redis is, PGHOST, PGDATABASE ... where PostgreSQL
//
// Makes the table fence_bench, and drops it. A ratio above 1 says that the library is faster than GET. The rounds of all kinds take
// turns; of the rates and of the ratio of each pair the median counts.
const { Pool } = require('pg');
const { Fences } = require('..');

const ROUNDS = Number(process.argv[2] || 15);
const ROUND_MS = 150;
const MANY = 20;
const PORT = Number(process.env.REDIS_PORT || 6379);

const CLIENTS = {
  ioredis() {
    const Redis = require('ioredis');
    const client = new Redis({ port: PORT });
    return { client, end: () => client.disconnect() };
  },
  redis() {
    const client = require('redis').createClient({ socket: { port: PORT } });
    client.connect();
    return { client, end: () => client.destroy() };
  },
};

const times = (n, make) => Promise.all(Array.from({ length: n }, (_, i) => make(i)));

async function perSecond(once) {
  const start = process.hrtime.bigint();
  const end = start + BigInt(ROUND_MS) * 1000000n;
  let n = 0;
  let now = start;
  while (now < end) {
    for (let i = 0; i < 10; i++) await once();
    n += 10;
    now = process.hrtime.bigint();
  }
  return n * 1e9 / Number(now - start);
}

const median = list => list.sort((a, b) => a - b)[list.length >> 1];

async function measure(pool, name) {
  const { client, end } = CLIENTS[name]();
  const fences = new Fences({ redis: client, pg: pool });
  const kept = new Fences({ redis: client, pg: pool, local: true });
  await fences.ready();
  await kept.ready();
  const keys = Array.from({ length: MANY }, (_, n) => n + 1);
  for (const each of [fences, kept]) {
    for (let n = 0; n < 50; n++) await each.readMany('fence_bench', keys);
  }
  const { rows: [{ row }] } = await pool.query('SELECT to_jsonb(b)::text AS row FROM fence_bench b WHERE id = 1');
  await client.set('fence_bench', row);

  const kinds = [
    ['one key', () => client.get('fence_bench'), () => fences.read('fence_bench', 1)],
    [`${MANY} keys`, () => times(MANY, () => client.get('fence_bench')), () => fences.readMany('fence_bench', keys)],
    [`one key, ${MANY} readers`, () => times(MANY, () => client.get('fence_bench')), () => times(MANY, n => fences.read('fence_bench', n + 1))],
    ['one key, kept in the process', () => client.get('fence_bench'), () => kept.read('fence_bench', 1)],
    [`${MANY} keys, kept in the process`, () => times(MANY, () => client.get('fence_bench')), () => kept.readMany('fence_bench', keys)],
  ];
  const results = kinds.map(() => [[], []]);
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [k, [, bare, library]] of kinds.entries()) {
      const [b, l] = [await perSecond(bare), await perSecond(library)];
      if (round === 0) continue;                        // warm-up
      results[k][0].push(b);
      results[k][1].push(l);
    }
  }
  for (const [k, [what]] of kinds.entries()) {
    const ratio = median(results[k][0].map((rate, n) => results[k][1][n] / rate));
    const [bare, library] = results[k].map(median);
    console.log(`${name.padEnd(8)} ${what.padEnd(30)} GET ${bare.toFixed(0).padStart(7)}/s  library ${library.toFixed(0).padStart(7)}/s`
      + `  ratio ${ratio.toFixed(2)}`);
  }
  const counts = fences.counters().reads.fence_bench;
  console.log(`${name.padEnd(8)} hits ${(100 * counts.hit / Object.values(counts).reduce((a, b) => a + b)).toFixed(2)} %`);
  await fences.close();
  await kept.close();
  end();
}

async function main() {
  const pool = new Pool();
  await pool.query(`CREATE TABLE fence_bench (id int PRIMARY KEY, owner text, balance int, version bigint NOT NULL DEFAULT 0);
    INSERT INTO fence_bench SELECT g, 'owner ' || g, 100 FROM generate_series(1, ${MANY}) g; SELECT fence.attach('fence_bench')`);
  try {
    for (const name of Object.keys(CLIENTS)) await measure(pool, name);
  } finally {
    await pool.query('DROP TABLE fence_bench');
    await pool.end();
  }
}

main();
