'use strict';
// Entities of TypeORM by their primary keys, through fences. What is cached is the row as fence.read has it; an entity is made of
// it as TypeORM makes one of what pg returns.
const { wrong } = require('./lib/errors');
const { parse, parseTexts } = require('./lib/json');

const asIs = ({ value }) => value;
const asText = ({ text }) => text;
const asNumber = ({ text }) => Number(text);
const asDate = ({ value }) => (/^-?infinity$/.test(value) ? Number(value.replace('i', 'I')) : new Date(value));
const asBuffer = ({ value }) => Buffer.from(value.slice(2), 'hex');

// By the type of the column: what pg would have returned. value: of the JSON; text: with every number as its text.
const TYPES = {
  smallint: asNumber, integer: asNumber, bigint: asText, numeric: asText, real: asNumber, 'double precision': asNumber,
  'timestamp with time zone': asDate, 'timestamp without time zone': asDate, bytea: asBuffer,
};
for (const type of ['text', 'character varying', 'character', 'citext', 'uuid', 'boolean', 'date', 'enum', 'json', 'jsonb', 'inet',
  'time without time zone', 'time with time zone', 'simple-array', 'simple-json', 'simple-enum']) TYPES[type] = asIs;

// How the column is made of the row, or an error that says what to do.
function conversionOf(column, driver) {
  const type = driver.normalizeType(column);
  const one = TYPES[type];
  if (!one || (column.isArray && ![asIs, asText, asNumber].includes(one))) {
    throw wrong('TYPEORM', `column ${column.propertyPath} is of type ${type}${column.isArray ? '[]' : ''}, which is not made of JSON`
      + ' here: exclude it with { select: false }, or use fences.read with a load of your own');
  }
  return column.isArray && one === asNumber ? ({ text }) => text.map(Number) : one;
}

function refuse(metadata) {
  const name = metadata.name;
  if (metadata.eagerRelations.length > 0) {
    throw wrong('TYPEORM', `${name} has eager relations, which are other rows: read them by their own fences, or use fences.read`);
  }
  if (metadata.discriminatorColumn || metadata.parentEntityMetadata) {
    throw wrong('TYPEORM', `${name} shares its table with other entities: use fences.read`);
  }
}

class FencedRepository {
  #fences;
  #repository;
  #domain;
  #columns;

  constructor(fences, repository, domain) {
    const { metadata } = repository;
    const { driver } = metadata.connection;
    refuse(metadata);
    this.#fences = fences;
    this.#repository = repository;
    this.#domain = domain ?? metadata.tableName;
    this.#columns = metadata.columns.filter(column => column.isSelect && !column.isVirtual && !column.isVirtualProperty)
      .map(column => ({ column, name: column.databaseName, convert: conversionOf(column, driver) }));
  }

  // The entity, or null. id: the primary key; of several columns an array in the order of the attachment's key.
  async findById(id) {
    return this.#entity(await this.#fences.read(this.#domain, id, undefined, { raw: true }));
  }

  // The same of several, in their order.
  async findByIds(ids) {
    const payloads = await this.#fences.readMany(this.#domain, ids, undefined, { raw: true });
    return Promise.all(payloads.map(payload => this.#entity(payload)));
  }

  async #entity(payload) {
    if (payload === null) return null;
    const values = parse(payload);
    if (values === null) return null;                   // it is cached that there is none
    const texts = parseTexts(payload);
    const { metadata } = this.#repository;
    const entity = this.#repository.create();
    for (const { column, name, convert } of this.#columns) {
      if (!(name in values)) {
        throw wrong('TYPEORM', `the cached row of domain "${this.#domain}" has no column "${name}": attach the table with all columns`);
      }
      const made = values[name] === null ? null : convert({ value: values[name], text: texts[name] });
      column.setEntityValue(entity, metadata.connection.driver.prepareHydratedValue(made, column));
    }
    for (const listener of metadata.afterLoadListeners) if (listener.isAllowed(entity)) await listener.execute(entity);
    return entity;
  }
}

// domain: that of fence.attach, if it is not the name of the table.
function fencedRepository(fences, repository, { domain } = {}) {
  return new FencedRepository(fences, repository, domain);
}

module.exports = { fencedRepository };
