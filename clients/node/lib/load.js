'use strict';
// Reads from PostgreSQL what Redis does not have. A load has run(place, wanted, pg). wanted is an array of { key, fence }
// without duplicates. The result has for each of them what rowOf makes, or null. kind says what makes the payloads.
const { wrong } = require('./errors');
const { quoted, textsOfName } = require('./names');

// Prints rows like fence.read. The settings are local to the statement, because a pool may use another connection for the next.
const SETTINGS = `s AS MATERIALIZED (SELECT ${[['bytea_output', 'hex'], ['datestyle', 'ISO'], ['extra_float_digits', '3'],
  ['intervalstyle', 'postgres'], ['lc_monetary', 'C'], ['search_path', 'pg_catalog, pg_temp'], ['timezone', 'UTC'],
].map(([name, value]) => `pg_catalog.set_config('${name}', '${value}', true)`).join(', ')})`;

const AS_TEXT = { getTypeParser: () => text => text };
const ROW_VERSION = /^\d+-[0-9a-f]+\.(\d+)$/;

// A row that a load has found. rowVersion is what fence.row_version told: the epoch of the server that was read, a dot and the
// version. It is null if the row must not be put. Then nobody knows the version either.
function rowOf(place, rowVersion, payload) {
  if (rowVersion === null || rowVersion === undefined) return { rowVersion: null, version: null, payload };
  const [, version] = ROW_VERSION.exec(rowVersion) ?? [];
  if (version === undefined) {
    throw wrong('VERSION', `the load of domain "${place.domain}" gave the version ${rowVersion}, which does not name the server that was`
      + ' read: select fence.row_version(version) in the statement that reads the row, and give its result');
  }
  return { rowVersion, version, payload };
}

// The keys as arrays of texts, one for each column.
function arraysOf(place, wanted) {
  const keys = wanted.map(({ fence }) => textsOfName(place, fence));
  return place.columns.map((_, n) => keys.map(texts => texts[n]));
}

// Loads the rows themselves, as to_jsonb prints them; for a group, all of its rows.
class RowLoad {
  kind = 'row';
  #sql;

  constructor(place) {
    if (!place.relation) {
      throw wrong('LOAD', `domain "${place.domain}" has no table: pass a load, which tells version and value`);
    }
    if (place.hidden) {
      throw wrong('LOAD', `row-level security applies to you on ${place.relation}, and a cached row would be shown to everybody:`
        + ' read the table itself');
    }
    this.#sql = RowLoad.#statement(place);
  }

  static #statement(place) {
    // with .*, because a column may have the same name as the alias of the table
    const row = place.selected ? `(SELECT pg_catalog.to_jsonb(c.*) FROM (SELECT ${place.selected.map(name => `t.${quoted(name)}`).join(', ')}) c)`
      : 'pg_catalog.to_jsonb(t.*)';
    // both sides cast to the operator's own type, so that no other operator fits better
    const same = place.columns.map(({ sql, cast, equal }, n) => `t.${sql}::${cast} OPERATOR(${equal}) k.k${n}::${cast}`).join(' AND ');
    const keys = place.columns.map((_, n) => `k${n}`);
    const version = place.version && place.scope !== 'group' ? `t.${quoted(place.version)}::pg_catalog.int8`
      : `fence.group_version('${place.domain.replace(/'/g, "''")}', VARIADIC ARRAY[${keys.map(key => `k.${key}`).join(', ')}])`;
    const arrays = keys.map((_, n) => `pg_catalog.unnest($${n + 1}::pg_catalog.text[])`).join(', ');
    const statement = value => `WITH ${SETTINGS} SELECT k.n, fence.row_version(${version}) AS version, ${value}::pg_catalog.text AS value
      FROM s, ROWS FROM (${arrays}) WITH ORDINALITY AS k (${keys.join(', ')}, n)`;
    if (place.scope === 'group') {
      return statement(`(SELECT coalesce(pg_catalog.jsonb_agg(r.j ORDER BY r.j::pg_catalog.text COLLATE pg_catalog."C"), '[]')
        FROM (SELECT ${row} AS j FROM ${place.relation} t WHERE ${same}) r)`);
    }
    return `${statement(row)} JOIN ${place.relation} t ON ${same}`;
  }

  async run(place, wanted, pg) {
    const { rows } = await pg.query({ text: this.#sql, values: arraysOf(place, wanted), types: AS_TEXT, rowMode: 'array' });
    const found = new Array(wanted.length).fill(null);
    for (const [n, rowVersion, payload] of rows) found[n - 1] = rowOf(place, rowVersion, payload);
    return found;
  }
}

// The application's own query. $1 is an array of the values of the first key column, $2 of the second; the rows have the key
// columns, version (a row version) and value (JSON).
class QueryLoad {
  #sql;

  constructor(place, sql) {
    if (place.columns.length === 0) {
      throw wrong('LOAD', `domain "${place.domain}" has no table, so no query is given its keys: pass a function`);
    }
    this.kind = `query ${sql}`;
    this.#sql = sql;
  }

  async run(place, wanted, pg) {
    const { rows, fields } = await pg.query({ text: this.#sql, values: arraysOf(place, wanted), types: AS_TEXT });
    for (const name of [...place.columns.map(column => column.name), 'version', 'value']) {
      if (!fields.some(field => field.name === name)) {
        throw wrong('LOAD', `the query of domain "${place.domain}" has no column "${name}": it must return`
          + ` ${place.columns.map(column => column.name).join(', ')}, fence.row_version(version) AS version, and value`);
      }
    }
    const numbers = new Map(wanted.map(({ fence }, n) => [fence, n]));
    const found = new Array(wanted.length).fill(null);
    for (const row of rows) {
      const n = numbers.get(await place.nameOf(place.columns.map(column => row[column.name]), pg));
      if (n === undefined) {
        throw wrong('LOAD', `the query of domain "${place.domain}" returned a row that was not asked for: it must say`
          + ` WHERE ${place.columns.map((column, i) => `${column.name} OPERATOR(${column.equal}) ANY ($${i + 1}::${column.cast}[])`).join(' AND ')}`);
      }
      if (found[n]) throw wrong('LOAD', `the query of domain "${place.domain}" returned two rows of one key`);
      found[n] = rowOf(place, row.version, row.value ?? 'null');
    }
    return found;
  }
}

// A function of the application: load(keys, pg) answers with an array, for each key { version, value } or null.
class FunctionLoad {
  kind = 'function';
  #load;

  constructor(load) {
    this.#load = load;
  }

  async run(place, wanted, pg) {
    const rows = await this.#load(wanted.map(({ key }) => key), pg);
    const isNone = row => row === null || row === undefined;
    const fits = row => isNone(row) || row.version !== undefined || row.value !== undefined;
    if (!Array.isArray(rows) || rows.length !== wanted.length || !rows.every(fits)) {
      throw wrong('LOAD', `the load of domain "${place.domain}" must answer with an array that has { version, value } or null for`
        + ` each of the ${wanted.length} keys that it was given`);
    }
    return rows.map(row => (isNone(row) ? null : rowOf(place, row.version, JSON.stringify(row.value ?? null))));
  }
}

function make(place, load) {
  if (load === undefined || load === null) return new RowLoad(place);
  if (typeof load === 'string') return new QueryLoad(place, load);
  if (typeof load === 'function') return new FunctionLoad(load);
  throw wrong('LOAD', `a load is a query or a function, not a ${typeof load}`);
}

// Returns the load, the same object for all reads of this place that may be loaded together. If a program used two loads for
// one place, it would get values that the other load has put.
function loadFor(place, load, suffix) {
  let kept = place.loads.get(suffix);
  const found = kept?.of.get(load);
  if (found) return found;
  const made = make(place, load);
  if (kept ? kept.kind !== made.kind : suffix === undefined && place.cache === 'row' && made.kind !== 'row') {
    throw wrong('LOAD', `domain "${place.domain}" is read with ${kept ? 'two different loads' : 'a load, but commits put its rows'}:`
      + ' readers that share a fence must agree on what is in it. Give this one a name of its own, { beside: \'name\' }');
  }
  if (!kept) place.loads.set(suffix, kept = { kind: made.kind, of: typeof load === 'function' ? new WeakMap() : new Map() });
  kept.of.set(load, made);
  return made;
}

module.exports = { loadFor };
