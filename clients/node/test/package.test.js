'use strict';
// The package as it is installed: CommonJS, ESM and types; and its counters where metrics are collected.
const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { test } = require('node:test');
const { open, table, becomesHit, DETAILS } = require('./setup');

const here = path.join(__dirname, '..');

const USE = `
import { Pool } from 'pg';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { Repository } from 'typeorm';
import { Fences, FenceError, Details } from 'pgcache-fence';
import { fencedRepository } from 'pgcache-fence/typeorm';

interface Account { id: number; owner: string }
const pg = new Pool();
const fences = new Fences({ redis: new Redis(), pg, local: { max: 10 }, onError: error => console.error(error.message) });
new Fences({ redis: createClient(), pg });
export async function use(repository: Repository<Account>) {
  const one: Account | null = await fences.read<Account>('account', 42n);
  const many: (Account | null)[] = await fences.readMany<Account>('account', [1, '2', [3, 'x']]);
  const load = async (keys: unknown[]) => keys.map(() => ({ version: '6-3fa21c.1', value: 'x' }));
  const told: Details<string> = await fences.read<string>('account', 1, load, { details: true });
  const entity: Account | null = await fencedRepository(fences, repository).findById(1);
  if (new FenceError('x').code) return [one, many, told.version?.length, entity];
  // @ts-expect-error a plain version does not name the server that was read
  fences.read('account', 1, async () => [{ version: 1n, value: 1 }]);
  // @ts-expect-error a pool is needed
  new Fences({ redis: new Redis() });
  return null;
}
`;

// A directory in which the packed package is installed, with the modules of the tests.
function installed(t) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'packed.'));
  t.after(() => fs.rmSync(directory, { recursive: true }));
  const [{ filename, files }] = JSON.parse(execFileSync('npm', ['pack', '--json', '--pack-destination', directory], { cwd: here, encoding: 'utf8',
    env: { ...process.env, npm_config_cache: path.join(directory, 'cache') }, stdio: ['ignore', 'pipe', 'ignore'] }));
  const modules = path.join(directory, 'node_modules');
  fs.mkdirSync(modules);
  for (const name of fs.readdirSync(path.join(here, 'node_modules'))) {
    fs.symlinkSync(fs.realpathSync(path.join(here, 'node_modules', name)), path.join(modules, name));
  }
  execFileSync('tar', ['-xzf', path.join(directory, filename), '-C', directory]);
  fs.renameSync(path.join(directory, 'package'), path.join(modules, 'pgcache-fence'));
  return { directory, files: files.map(file => file.path) };
}

test('it is packed, required, imported, and has types', t => {
  const { directory, files } = installed(t);
  assert.deepEqual(files.filter(file => /^(test|bench|node_modules)/.test(file)), []);
  const run = (...args) => execFileSync(process.execPath, args, { cwd: directory, encoding: 'utf8' });
  assert.equal(run('-p', "typeof require('pgcache-fence').Fences + typeof require('pgcache-fence/typeorm').fencedRepository"), 'functionfunction\n');
  fs.writeFileSync(path.join(directory, 'use.mjs'), "import all, { Fences, FenceError } from 'pgcache-fence'; import { fencedRepository } from"
    + " 'pgcache-fence/typeorm'; console.log(all.Fences === Fences, typeof FenceError, typeof fencedRepository)");
  assert.equal(run('use.mjs'), 'true function function\n');
  const names = ['use.ts', 'use.mts'];                  // as CommonJS, as ESM
  for (const name of names) fs.writeFileSync(path.join(directory, name), USE);
  run(path.join(here, 'node_modules', 'typescript', 'bin', 'tsc'), '--strict', '--noEmit', '--skipLibCheck', '--module', 'nodenext', '--target', 'es2022',
    '--types', 'node', ...names);
});

test('counters go to prom-client and OpenTelemetry', async t => {
  const { fences, sql } = await open(t);
  await table(sql, 'counted', 'id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0');
  await sql('INSERT INTO counted VALUES (1)');
  await becomesHit(() => fences.read('counted', 1, undefined, DETAILS));
  const prometheus = require('prom-client');
  const register = new prometheus.Registry();
  fences.registerPrometheus(prometheus, register);
  const { hit, database } = fences.counters().reads.counted;
  for (let n = 0; n < 2; n++) {
    const text = await register.metrics();
    assert.match(text, new RegExp(`^pgcache_fence_client_reads_total\\{domain="counted",source="hit"\\} ${hit}$`, 'm'));
    assert.match(text, new RegExp(`^pgcache_fence_client_reads_total\\{domain="counted",source="database"\\} ${database}$`, 'm'));
    assert.match(text, /^pgcache_fence_client_events_total\{domain="counted",event="stored"\} 1$/m);
  }
  const { MeterProvider, MetricReader } = require('@opentelemetry/sdk-metrics');
  class Reader extends MetricReader {
    onForceFlush() { return Promise.resolve(); }
    onShutdown() { return Promise.resolve(); }
  }
  const reader = new Reader();
  const provider = new MeterProvider({ readers: [reader] });
  fences.registerOpenTelemetry(provider.getMeter('test'));
  const { resourceMetrics } = await reader.collect();
  const [reads] = resourceMetrics.scopeMetrics[0].metrics.filter(({ descriptor }) => descriptor.name === 'pgcache_fence.client.reads');
  assert.deepEqual(reads.dataPoints.map(({ attributes, value }) => [attributes.source, value]).sort(), [['database', database], ['hit', hit]]);
});
