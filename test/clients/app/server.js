// A small service that shows a room, its settings and its members, read through fences; and changes them with plain SQL.
//
//     node server.js          PGHOST, PGDATABASE ... say where PostgreSQL is, REDIS_HOST and REDIS_PORT where Redis,
//                             PORT where to listen on the loopback (0: any; the first line of output tells)
//
// names.js, reader.js and with_ioredis.js beside it are those of doc/clients.md. The service counts what its reads were, and
// takes samples: before some reads it asks PostgreSQL for the version that is committed. A hit with a lower one is stale.
const fs = require('fs');
const http = require('http');
const path = require('path');
const { Pool } = require('pg');
const { place, name } = require('./names');
const { readThrough } = require('./reader');
const { connect } = require('./with_ioredis');

const SAMPLE = 5;                       // one read of so many is checked; odd, because reads come in pairs

// What the page shows: domain, how to read it, and how to learn its version only.
const PARTS = {
  settings: {
    domain: 'room',
    read: 'SELECT version, to_jsonb(r)::text FROM room r WHERE id = $1',
    version: 'SELECT version FROM room WHERE id = $1',
  },
  members: {
    domain: 'room_member',
    read: `SELECT fence.group_version('room_member', $1::text), (SELECT coalesce(jsonb_agg(m ORDER BY member), '[]')
             FROM room_member m WHERE room_id = $1::int)::text`,
    version: "SELECT fence.group_version('room_member', $1::text)",
  },
};

// What the page may change: plain statements, which know nothing of Redis.
const CHANGES = {
  settings: ['UPDATE room SET name = $2, topic = $3, colour = $4, guests = $5 WHERE id = $1',
    ['name', 'topic', 'colour', 'guests']],
  role: ['UPDATE room_member SET role = $3 WHERE room_id = $1 AND member = $2', ['member', 'role']],
  add: ["INSERT INTO room_member VALUES ($1, $2, 'guest') ON CONFLICT DO NOTHING", ['member']],
  remove: ['DELETE FROM room_member WHERE room_id = $1 AND member = $2', ['member']],
};

const counts = { reads: 0, hit: 0, miss: 0, pending: 0, unarmed: 0, unavailable: 0, checked: 0, stale: 0 };
const pool = new Pool({ max: 10 });
pool.on('error', error => console.error('PostgreSQL:', error.message));
const redis = connect({ host: process.env.REDIS_HOST || '127.0.0.1', port: Number(process.env.REDIS_PORT || 6379) });
const places = new Map();               // domain -> what its names begin with

async function fenceOf(domain, room) {
  if (!places.has(domain)) places.set(domain, await place(pool, domain));
  return name(places.get(domain), [room]);
}

async function committedVersion(part, room) {
  const { rows: [row] } = await pool.query({ text: part.version, values: [room], rowMode: 'array' });
  return row ? BigInt(row[0]) : null;
}

// One part of the page, and how it was read: source hit, miss ..., version, milliseconds.
async function readPart(part, room) {
  const info = { source: 'unavailable', version: null };
  const note = (source, record) => { [info.source, info.version] = [source, source === 'hit' ? record.split(' ', 2)[1] : null]; };
  const watched = {
    ...redis,
    async block(...args) {              // see judge() in reader.js
      const [[record], permit] = await redis.block(...args);
      const [token] = permit.split(' ');
      note(!token ? 'unarmed' : record && record.startsWith(`${token} `) ? 'hit' : 'miss', record);
      return [[record], permit];
    },
    async ask(name, ...args) {
      const answer = await redis.ask(name, ...args);
      if (name === 'fence_get') note(...answer);
      return answer;
    },
  };
  const sampled = counts.reads++ % SAMPLE === 0;
  const before = sampled ? await committedVersion(part, room) : null;
  const start = process.hrtime.bigint();
  const payload = await readThrough(watched, pool, await fenceOf(part.domain, room), part.read, [room]);
  info.milliseconds = Number(process.hrtime.bigint() - start) / 1e6;
  counts[info.source]++;
  if (sampled && info.source === 'hit' && before !== null) {
    counts.checked++;
    if (BigInt(info.version) < before) counts.stale++;
  }
  return { ...info, data: payload && JSON.parse(payload) };
}

async function show(room) {
  const [settings, members] = await Promise.all([readPart(PARTS.settings, room), readPart(PARTS.members, room)]);
  return { settings, members, counts };
}

async function change(room, { what, ...values }) {
  const [sql, fields] = CHANGES[what];
  await pool.query(sql, [room, ...fields.map(field => values[field])]);
}

async function bodyOf(request) {
  let text = '';
  for await (const chunk of request) {
    text += chunk;
    if (text.length > 10000) throw new Error('too long');
  }
  return JSON.parse(text);
}

const page = fs.readFileSync(path.join(__dirname, 'page.html'));

async function answer(request, response) {
  const room = /^\/room\/(\d{1,9})$/.exec(request.url);
  if (request.url === '/' && request.method === 'GET') {
    response.setHeader('Content-Type', 'text/html; charset=utf-8');
    return response.end(page);
  }
  response.setHeader('Content-Type', 'application/json');
  response.setHeader('Cache-Control', 'no-store');
  if (!room) {
    response.statusCode = 404;
    return response.end('{"error": "no such page"}');
  }
  const id = Number(room[1]);
  // JSON only: another site's page cannot send it without asking first
  if (request.method === 'POST' && request.headers['content-type'] === 'application/json') {
    await change(id, await bodyOf(request));
  }
  return response.end(JSON.stringify(await show(id)));
}

const server = http.createServer((request, response) => {
  answer(request, response).catch(error => {
    response.statusCode = 400;
    response.end(JSON.stringify({ error: error.message }));
  });
});

server.listen(Number(process.env.PORT || 8080), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/`);
});
