// A small service that shows a room, its settings and its members, read through fences; and changes them with plain SQL.
//
//     node server.js          PGHOST, PGDATABASE ... say where PostgreSQL is, REDIS_HOST and REDIS_PORT where Redis,
//                             PORT where to listen on the loopback (0: any; the first line of output tells)
//
// It reads with the package clients/node. The service counts what its reads were, and takes samples: before some reads it
// asks PostgreSQL for the version that is committed. A hit with a lower one is stale.
const fs = require('fs');
const http = require('http');
const path = require('path');
const Redis = require('ioredis');
const { Pool } = require('pg');
const { Fences } = require('pgcache-fence');

const SAMPLE = 5;                       // one read of so many is checked; odd, because reads come in pairs

// What the page shows: domain, and how to learn its version only. The members of a room are a group: one value.
const PARTS = {
  settings: { domain: 'room', version: 'SELECT version FROM room WHERE id = $1' },
  members: { domain: 'room_member', version: "SELECT fence.group_version('room_member', $1::text)" },
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
const redis = new Redis({ host: process.env.REDIS_HOST || '127.0.0.1', port: Number(process.env.REDIS_PORT || 6379), lazyConnect: true });
const fences = new Fences({ redis, pg: pool });

async function committedVersion(part, room) {
  const { rows: [row] } = await pool.query({ text: part.version, values: [room], rowMode: 'array' });
  return row ? BigInt(row[0]) : null;
}

// One part of the page, and how it was read: source hit, miss ..., version, milliseconds.
async function readPart(part, room) {
  const sampled = counts.reads++ % SAMPLE === 0;
  const before = sampled ? await committedVersion(part, room) : null;
  const start = process.hrtime.bigint();
  const { value, version, source } = await fences.read(part.domain, room, undefined, { details: true });
  const milliseconds = Number(process.hrtime.bigint() - start) / 1e6;
  counts[source]++;
  if (sampled && source === 'hit' && before !== null) {
    counts.checked++;
    if (BigInt(version) < before) counts.stale++;
  }
  return { source, version, milliseconds, data: value };
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
