// Runs the Node.js files of doc/clients.md for the tests: drive.js SETTINGS, see drive.py. The one more setting is "client":
// with_ioredis or with_node_redis.
const path = require('path');
const readline = require('readline');

const from = name => require(path.resolve(name));
const { Pool } = require(require.resolve('pg', { paths: ['.'] }));
const naming = from('./names.js');
const { readThrough, readTogether } = from('./reader.js');

const ROW = 'SELECT version, to_jsonb(a)::text FROM account a WHERE id = $1';
const SLOW = ROW.replace(' WHERE', ', pg_advisory_xact_lock_shared(1) WHERE');
const ROWS = `SELECT version, to_jsonb(a)::text
  FROM unnest($1::bigint[]) WITH ORDINALITY AS wanted (id, n) LEFT JOIN account a USING (id) ORDER BY n`;

const TYPES = {
  bigint: text => BigInt(text), boolean: text => text === 'true', bytea: text => Buffer.from(text, 'hex'),
  timestamptz: text => new Date(text),
};

const settings = JSON.parse(process.argv[2]);
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = answer => process.stdout.write(JSON.stringify(answer) + '\n');

let queries = 0;
function counted(db) {
  const query = db.query.bind(db);
  db.query = (...args) => { queries++; return query(...args); };
  return db;
}

function poolOf(dsn) {
  const words = Object.fromEntries(dsn.split(' ').map(word => word.split('=')));
  return counted(new Pool({ host: words.host, port: Number(words.port), user: words.user, database: words.dbname }));
}

// The first block is followed by a halt; the others come after it.
function halting(redis) {
  let halted = null;
  return {
    ...redis,
    async block(...args) {
      if (halted) await halted;
      const answer = redis.block(...args);
      if (!halted) {
        halted = answer.then(() => say('halted')).then(() => lines.next());
        await halted;
      }
      return answer;
    },
  };
}

async function main() {
  const pool = poolOf(settings.dsn);
  const nodes = settings.nodes.map(([host, port]) => ({ host, port }));
  const redis = from(`./${settings.client}.js`).connect(settings.cluster ? nodes : nodes[0]);
  const accounts = await naming.place(pool, 'account');
  const fences = id => naming.name(accounts, [id]);
  let session = null;                   // of "sql", a client of the pool: reads use it until ROLLBACK

  const requests = {
    async names({ domain, key, tag }) {
      const values = key.map(([type, text]) => (TYPES[type] || String)(text));
      const filled = tag && tag[0] + naming.encode(naming.canonical(values[tag[1]]));
      const fence = naming.name(await naming.place(pool, domain), values, filled);
      return { names: [fence, naming.beside(fence, 's')] };
    },
    async read({ id, slow }) {
      return { rows: [await readThrough(redis, session || pool, fences(id), slow ? SLOW : ROW, [id])] };
    },
    async together({ ids, halt }) {
      return { rows: await readTogether(halt ? halting(redis) : redis, session || pool, ids.map(fences), ROWS, [ids]) };
    },
    async sql({ sql }) {
      session = session || counted(await pool.connect());
      await session.query(sql);
      if (sql === 'ROLLBACK') {
        session.release(true);
        session = null;
      }
      return {};
    },
  };

  say('ready');
  for await (const line of lines) {
    const request = JSON.parse(line);
    queries = 0;
    const answer = await requests[request.do](request).catch(error => ({ error: String(error) }));
    say({ ...answer, queries });
  }
  process.exit(0);
}

main();
