'use strict';
// Entities of TypeORM are what its own repository makes of the same rows; optimistic locking goes on beside the fences.
require('reflect-metadata');
const assert = require('node:assert/strict');
const { test } = require('node:test');
const { DataSource, EntitySchema, OptimisticLockVersionMismatchError } = require('typeorm');
const { fencedRepository } = require('../typeorm');
const { open, places, until } = require('./setup');

class Invoice {}
const columns = {
  id: { type: 'bigint', primary: true, generated: true },
  state: { type: 'varchar', name: 'invoice_state' },
  version: { type: 'integer', version: true },
  amount: { type: 'numeric', precision: 30, scale: 2, nullable: true },
  large: { type: 'bigint', nullable: true },
  rate: { type: 'double precision', nullable: true },
  due: { type: 'date', nullable: true },
  at: { type: 'timestamptz', nullable: true },
  local: { type: 'timestamp', nullable: true },
  blob: { type: 'bytea', nullable: true },
  tags: { type: 'text', array: true, nullable: true },
  numbers: { type: 'bigint', array: true, nullable: true },
  counts: { type: 'integer', array: true, nullable: true },
  details: { type: 'jsonb', nullable: true },
  list: { type: 'simple-array', nullable: true },
  shout: { type: 'text', nullable: true, transformer: { to: text => text?.toLowerCase(), from: text => text?.toUpperCase() } },
  secret: { type: 'text', select: false, nullable: true },
  customerId: { type: 'integer', nullable: true },
};
const InvoiceSchema = new EntitySchema({ name: 'Invoice', target: Invoice, tableName: 'invoice', columns });
const OddSchema = new EntitySchema({ name: 'Odd', tableName: 'odd', columns: {
  id: { type: 'integer', primary: true }, at: { type: 'point', nullable: true } } });

async function source(t, opened) {
  const { PGHOST, PGPORT, PGUSER, PGDATABASE } = places.single.pg;
  await opened.sql('DROP TABLE IF EXISTS invoice, odd CASCADE');
  const dataSource = await new DataSource({ type: 'postgres', host: PGHOST, port: Number(PGPORT), username: PGUSER, database: PGDATABASE,
    entities: [InvoiceSchema, OddSchema], synchronize: true }).initialize();
  t.after(() => dataSource.destroy());
  await opened.sql("SELECT fence.attach('invoice')");
  return { repository: dataSource.getRepository(Invoice), dataSource };
}

test('entities are those of the repository, from the cache too', async t => {
  const opened = await open(t);
  const { repository } = await source(t, opened);
  const invoices = fencedRepository(opened.fences, repository);
  const full = await repository.save(repository.create({
    state: 'new', amount: '12345678901234567890.10', large: '9007199254740993', rate: 0.1, due: '2026-01-31', at: new Date('2026-01-31T12:00:00.5Z'),
    local: new Date(2026, 0, 31, 12, 0, 0, 500), blob: Buffer.from([0, 255]), tags: ['a', '"b"', ','], numbers: ['1', '9007199254740993'], counts: [1, 2],
    details: { a: [1, 'x', null] }, list: ['x', 'y'], shout: 'Loud', secret: 'hidden' }));
  const empty = await repository.save(repository.create({ state: 'empty' }));
  for (const { id } of [full, empty]) {
    const wanted = await repository.findOneBy({ id });
    await until('a hit', async () => {
      const before = opened.fences.counters().reads.invoice?.hit ?? 0;
      const found = await invoices.findById(id);
      assert.ok(found instanceof Invoice);
      assert.deepEqual(found, wanted);
      return opened.fences.counters().reads.invoice.hit > before;
    });
  }
  assert.equal(await invoices.findById(999), null);
  const found = await invoices.findByIds([empty.id, 999, full.id]);
  assert.deepEqual(found.map(entity => entity?.state), ['empty', undefined, 'new']);
});

test('optimistic locking: the version that TypeORM counts is the one of the fence', async t => {
  const opened = await open(t);
  const { repository, dataSource } = await source(t, opened);
  const invoices = fencedRepository(opened.fences, repository);
  const { id } = await repository.save(repository.create({ state: 'new' }));
  const agree = async version => {
    const cached = await invoices.findById(id);
    assert.equal(cached.version, version);
    assert.deepEqual(cached, await repository.findOneBy({ id }));
    return cached;
  };
  const first = await agree(1);
  for (let n = 2; n < 5; n++) {                         // an entity from the cache is saved
    const entity = await invoices.findById(id);
    entity.state = `state ${n}`;
    await repository.save(entity);
    assert.equal(entity.version, n);
    await agree(n);
  }
  const lock = version => dataSource.transaction(async manager => {
    const entity = await manager.findOne(Invoice, { where: { id }, lock: { mode: 'optimistic', version } });
    entity.state = 'locked';
    await manager.save(entity);
  });
  await assert.rejects(lock(first.version), OptimisticLockVersionMismatchError);
  const before = await agree(4);
  await opened.sql("UPDATE invoice SET invoice_state = 'by hand' WHERE id = $1", [id]);
  assert.equal((await agree(5)).state, 'by hand');
  await assert.rejects(lock(before.version), OptimisticLockVersionMismatchError, 'what is no mapper\'s counts too');
  await lock((await invoices.findById(id)).version);
  assert.equal((await agree(6)).state, 'locked');
  await repository.delete({ id });
  assert.equal(await invoices.findById(id), null);
});

test('what is not made of a row raises', async t => {
  const opened = await open(t);
  const { dataSource } = await source(t, opened);
  assert.throws(() => fencedRepository(opened.fences, dataSource.getRepository('Odd')), { code: 'ERR_FENCE_TYPEORM' });
});
