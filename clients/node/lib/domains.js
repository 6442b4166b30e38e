'use strict';
// Asks PostgreSQL how a domain is attached: once, and again when a token shows that this may have changed.
const { wrong } = require('./errors');
const { CANONICAL, inputText, valuesOf, partsOf, nameOfParts, piecesOf, quoted } = require('./names');

const NAMES_KEPT = 10000;               // names from PostgreSQL that are kept for each domain
const TOKENS_KEPT = 64;

const DOMAIN = `
  SELECT d.id, current_setting('pgcache_fence.namespace') AS namespace, fence.fence_prefix(d.name) AS prefix, d.scope, d.cache, d.tag,
         d.version_column AS version, d.columns::text[], pg_is_in_recovery() AS standby,
         CASE WHEN c.oid IS NOT NULL THEN format('%I.%I', n.nspname, c.relname) END AS relation, row_security_active(c.oid) AS hidden,
         (SELECT json_agg(json_build_object('name', a.attname, 'type', CASE n.nspname WHEN 'pg_catalog' THEN t.typname END,
                                            'cast', format_type(a.atttypid, a.atttypmod), 'typmod', a.atttypmod) ORDER BY k.n)
            FROM unnest(d.key_columns) WITH ORDINALITY k (name, n)
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = k.name
            JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace) AS keys
    FROM fence.domain d
    LEFT JOIN pg_class c ON c.oid = d.relation
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE d.name = $1`;
const NAME = 'SELECT fence.fence_key($1, VARIADIC $2::text[]) AS fence';

// A domain's place in Redis and in PostgreSQL, as of one attachment.
class Place {
  constructor(domain, row) {
    Object.assign(this, {
      domain, id: row.id, scope: row.scope, cache: row.cache, version: row.version, relation: row.relation,
      hidden: row.hidden, selected: row.columns,
    });
    this.prefix = row.prefix;
    this.columns = (row.keys || []).map(({ name, type, cast, typmod }) => ({
      name, cast, sql: quoted(name), canonical: CANONICAL[type] || null, limit: typmod > 4 ? typmod - 4 : null,
    }));
    this.tag = row.tag && piecesOf(row.tag, this.columns);
    this.tokens = new Set();            // tokens under which this was read from PostgreSQL
    this.loads = new Map();             // what is put in the fence, or beside it: see load.js
    this.names = new Map();             // names from PostgreSQL
  }

  // The name of the fence, or a promise of it if only PostgreSQL knows it.
  nameOf(key, pg) {
    const values = valuesOf(this, key);
    const parts = partsOf(this, values);
    return parts ? nameOfParts(this, parts) : this.#ask(values.map(inputText), pg);
  }

  #ask(texts, pg) {
    const kept = JSON.stringify(texts);
    if (!this.names.has(kept)) {
      if (this.names.size >= NAMES_KEPT) this.names.delete(this.names.keys().next().value);
      const asked = pg.query(NAME, [this.domain, texts]).then(({ rows }) => rows[0].fence);
      asked.catch(() => this.names.delete(kept));
      this.names.set(kept, asked);
    }
    return this.names.get(kept);
  }
}

class Domains {
  #pg;
  #namespace;
  #places = new Map();                  // domain -> Place
  #asked = new Map();                   // domain -> promise of it

  constructor(pg, namespace) {
    this.#pg = pg;
    this.#namespace = namespace;
  }

  // The place if it is known already, else undefined.
  known(domain) {
    return this.#places.get(domain);
  }

  find(domain) {
    if (this.#places.has(domain)) return this.#places.get(domain);
    if (!this.#asked.has(domain)) {
      const asked = this.#look(domain).finally(() => this.#asked.delete(domain));
      asked.catch(() => {});
      this.#asked.set(domain, asked);
    }
    return this.#asked.get(domain);
  }

  // The place, if it is still what PostgreSQL has; else the new one. A new attachment draws new tokens, and a put under one
  // that has been replaced is refused. So it is enough to look once after a permit with a token has come.
  async confirm(place, tokens) {
    if (tokens.every(token => place.tokens.has(token))) return place;
    const now = await this.#look(place.domain);
    const same = now.id === place.id && now.prefix === place.prefix ? place : now;
    if (same.tokens.size > TOKENS_KEPT) same.tokens.clear();
    for (const token of tokens) same.tokens.add(token);
    this.#places.set(place.domain, same);
    return same;
  }

  async #look(domain) {
    if (typeof domain !== 'string') throw wrong('DOMAIN', `a domain is named by a string, not by a ${typeof domain}`);
    const { rows: [row] } = await this.#pg.query(DOMAIN, [domain]).catch(explain);
    if (!row) throw wrong('DOMAIN', `domain "${domain}" does not exist: SELECT domain FROM fence.domains lists those that do`);
    if (row.standby) {
      throw wrong('STANDBY', 'the pool of pg is connected to a standby, whose rows may be old: connect it to the primary');
    }
    if (this.#namespace !== undefined && this.#namespace !== row.namespace) {
      throw wrong('NAMESPACE', `namespace "${this.#namespace}" was given, but pgcache_fence.namespace is "${row.namespace}"`);
    }
    const place = new Place(domain, row);
    if (!this.#places.has(domain)) this.#places.set(domain, place);
    return place;
  }
}

function explain(error) {
  if (error.code === '42P01' || error.code === '3F000') {
    throw wrong('EXTENSION', 'this database does not have the extension: CREATE EXTENSION pgcache_fence', error);
  }
  throw error;
}

module.exports = { Domains };
