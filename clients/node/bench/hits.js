'use strict';
// What a hit costs, against a bare GET of the same bytes by the same client in the same run.
// `sh test/run.sh --only node bench` in the project's directory starts the servers, which the file that FENCE_TEST names describes.
// Prints TAP.
//
// A ratio above 1 says that the library is faster than GET. Several keys are compared with GETs one after the other, as
// clients/python/tests/bench.py does it, and with GETs that are all sent at once, which is stricter: a client then writes them in
// few pieces. GET returns a text, so most reads are `raw`; where the library also makes the values of the texts, the line says
// "parsed". The rounds of all kinds take turns; of the rates and of the ratio of each pair the median counts.
const { readFileSync } = require('node:fs');
const { Pool } = require('pg');
const { Fences } = require('..');

const PLACE = JSON.parse(readFileSync(process.env.FENCE_TEST)).single;
const ROUNDS = 15;
const ROUND_MS = 100;
const MANY = 20;
const RAW = { raw: true };
let checks = 0;

const CLIENTS = {
  ioredis() {
    const Redis = require('ioredis');
    const client = new Redis({ port: PLACE.redis[0].port });
    return { client, end: () => client.disconnect() };
  },
  redis() {
    const client = require('redis').createClient({ socket: { port: PLACE.redis[0].port } });
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

function check(good, what) {
  console.log(`${good ? '' : 'not '}ok ${++checks} - ${what}`);
  if (!good) process.exitCode = 1;
}

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

  const get = () => client.get('fence_bench');
  const inTurn = async () => { for (let n = 0; n < MANY; n++) await get(); };
  const atOnce = () => times(MANY, get);
  const one = (each, options) => () => each.read('fence_bench', 1, undefined, options);
  const many = (each, options) => () => each.readMany('fence_bench', keys, undefined, options);
  const kinds = [                       // what, GET, library, the least ratio
    ['one key', get, one(fences, RAW), 0.7],
    ['one key, parsed', get, one(fences)],
    ['one key, kept', get, one(kept, RAW)],
    [`${MANY} keys, GETs in turn`, inTurn, many(fences, RAW), 1.0],
    [`${MANY} keys, GETs in turn, parsed`, inTurn, many(fences)],
    [`${MANY} keys, GETs in turn, kept`, inTurn, many(kept, RAW)],
    [`${MANY} keys, GETs at once`, atOnce, many(fences, RAW), 1.0],
    [`${MANY} keys, GETs at once, parsed`, atOnce, many(fences)],
    [`${MANY} readers, GETs at once`, atOnce, () => times(MANY, n => fences.read('fence_bench', n + 1, undefined, RAW))],
    [`${MANY} keys, GETs at once, kept`, atOnce, many(kept, RAW)],
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
  for (const [k, [what, , , least]] of kinds.entries()) {
    const ratio = median(results[k][0].map((rate, n) => results[k][1][n] / rate));
    const [bare, library] = results[k].map(median);
    console.log(`# ${name.padEnd(8)} ${what.padEnd(32)} GET ${bare.toFixed(0).padStart(7)}/s  library ${library.toFixed(0).padStart(7)}/s`
      + `  ratio ${ratio.toFixed(2)}`);
    if (least) check(ratio >= least, `${name}, ${what}: ${ratio.toFixed(2)} of ${least}`);
  }
  const counts = fences.counters().reads.fence_bench;
  console.log(`# ${name.padEnd(8)} hits ${(100 * counts.hit / Object.values(counts).reduce((a, b) => a + b)).toFixed(2)} %`);
  await fences.close();
  await kept.close();
  end();
}

async function main() {
  Object.assign(process.env, PLACE.pg);
  const pool = new Pool();
  await pool.query(`CREATE TABLE fence_bench (id int PRIMARY KEY, owner text, balance int, version bigint NOT NULL DEFAULT 0);
    INSERT INTO fence_bench SELECT g, 'owner ' || g, 100 FROM generate_series(1, ${MANY}) g; SELECT fence.attach('fence_bench')`);
  try {
    for (const name of Object.keys(CLIENTS)) await measure(pool, name);
  } finally {
    await pool.end();
  }
  console.log(`1..${checks}`);
}

main();
