'use strict';
// Asks PostgreSQL how a domain is attached: once, and again when a token shows that this may have changed.
const { wrong } = require('./errors');
const { CANONICAL, inputText, valuesOf, partsOf, nameOfParts, piecesOf, quoted } = require('./names');

const NAMES_KEPT = 10000;               // names from PostgreSQL that are kept for each domain
const TOKENS_KEPT = 64;

// Everything in the SQL has its schema, also operators, here and in load.js. Otherwise a role that may create objects in a schema of
// the search_path could run its own function as the application. test/unit/qualified.py watches this. A key column's cast is the
// type below its domain; equal is the operator that compares two of them.
const DOMAIN = `
  SELECT d.id, pg_catalog.current_setting('pgcache_fence.namespace') AS namespace, fence.fence_prefix(d.name) AS prefix, d.scope, d.cache, d.tag,
         d.version_column AS version, d.columns::pg_catalog.text[], pg_catalog.pg_is_in_recovery() AS standby,
         CASE WHEN c.oid IS NOT NULL THEN pg_catalog.format('%I.%I', n.nspname, c.relname) END AS relation,
         pg_catalog.row_security_active(c.oid) AS hidden,
         (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('name', a.attname, 'typmod', a.atttypmod,
                   'type', CASE WHEN t.typnamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace THEN t.typname END,
                   'cast', pg_catalog.format('%I.%I', s.nspname, b.typname), 'equal', coalesce(e.equal, 'pg_catalog.=')) ORDER BY k.n)
            FROM pg_catalog.unnest(d.key_columns) WITH ORDINALITY AS k (name, n)
            JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attname OPERATOR(pg_catalog.=) k.name
            JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
            CROSS JOIN LATERAL (
                 WITH RECURSIVE below AS (
                      SELECT t.*
                      UNION ALL
                      SELECT u.* FROM below JOIN pg_catalog.pg_type u ON u.oid OPERATOR(pg_catalog.=) below.typbasetype
                       WHERE below.typtype OPERATOR(pg_catalog.=) 'd')
                 SELECT oid, typname, typnamespace FROM below WHERE typtype OPERATOR(pg_catalog.<>) 'd') b
            JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) b.typnamespace
            LEFT JOIN LATERAL (
                 SELECT pg_catalog.format('%I.%s', s.nspname, o.oprname) AS equal
                   FROM pg_catalog.pg_opclass c
                   JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) c.opcmethod AND m.amname OPERATOR(pg_catalog.=) 'btree'
                   JOIN pg_catalog.pg_amop p ON p.amopfamily OPERATOR(pg_catalog.=) c.opcfamily AND p.amoplefttype OPERATOR(pg_catalog.=) b.oid
                        AND p.amoprighttype OPERATOR(pg_catalog.=) b.oid AND p.amopstrategy OPERATOR(pg_catalog.=) 3
                   JOIN pg_catalog.pg_operator o ON o.oid OPERATOR(pg_catalog.=) p.amopopr
                   JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) o.oprnamespace
                  WHERE c.opcintype OPERATOR(pg_catalog.=) b.oid AND c.opcdefault) e ON true) AS keys
    FROM fence.domain d
    LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.relation
    LEFT JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
   WHERE d.name OPERATOR(pg_catalog.=) $1::pg_catalog.text`;
const NAME = 'SELECT fence.fence_key($1::pg_catalog.text, VARIADIC $2::pg_catalog.text[]) AS fence';

// A domain's place in Redis and in PostgreSQL, as of one attachment.
class Place {
  constructor(domain, row) {
    Object.assign(this, {
      domain, id: row.id, scope: row.scope, cache: row.cache, version: row.version, relation: row.relation,
      hidden: row.hidden, selected: row.columns,
    });
    this.prefix = row.prefix;
    this.columns = (row.keys || []).map(({ name, type, cast, equal, typmod }) => ({
      name, cast, equal, sql: quoted(name), canonical: CANONICAL[type] || null, limit: typmod > 4 ? typmod - 4 : null,
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
