'use strict';
// The API for applications. reads.js executes the reads; this file connects the parts.
const { Counters, prometheus, openTelemetry } = require('./counters');
const { Derived } = require('./derived');
const { Domains } = require('./domains');
const { wrong } = require('./errors');
const { parse } = require('./json');
const { judge, permitOf } = require('./judge');
const { linkFor } = require('./redis');
const { loadFor } = require('./load');
const { Local } = require('./local');
const { beside } = require('./names');
const { Puts } = require('./puts');
const { Reads } = require('./reads');
const { Together } = require('./together');
const { limited, sleep } = require('./time');

const READY_MS = 10;
const SUFFIX = /^[A-Za-z0-9._~-]{1,100}$/;

function valueOf({ payload }) {
  try {
    return payload === null ? null : parse(payload);
  } catch (error) {
    throw wrong('PAYLOAD', 'what was read is no JSON: another reader has put something else in this fence, or the column "value" of'
      + ' the query is no json. Readers that share a fence must agree on what is in it', error);
  }
}
const detailsOf = found => ({ value: valueOf(found), version: found.version, source: found.source });
const rawOf = ({ payload }) => payload;

// Converts what was found to what the caller wants. raw: the payload itself, for adapters.
const shapeOf = options => (options?.details ? detailsOf : options?.raw ? rawOf : valueOf);

// Warns once of each kind of error of Redis. Reads continue without Redis, so nobody else would tell.
function warnOnce() {
  const told = new Set();
  return error => {
    const kind = error.code || error.message;
    if (told.has(kind) || told.size > 20) return;
    told.add(kind);
    process.emitWarning(`reads go to PostgreSQL: ${error.message}`, 'PgcacheFenceWarning');
  };
}

class Fences {
  #link;
  #pg;
  #domains;
  #counters = new Counters();
  #puts;
  #reads;
  #together;
  #derived;
  #timeout;
  #closed = false;

  constructor({ redis, pg, namespace, timeout = 200, ttl = 0, local, onError = warnOnce() } = {}) {
    if (typeof pg?.query !== 'function' || typeof pg.totalCount !== 'number') {
      throw wrong('PG', 'pg must be a Pool of the package pg: each load needs a snapshot of its own, taken after the permit of Redis.'
        + ' In a transaction read PostgreSQL itself');
    }
    for (const [name, value] of Object.entries({ timeout, ttl })) {
      if (!Number.isSafeInteger(value) || value < 0) throw wrong('OPTION', `${name} is in milliseconds, not ${value}`);
    }
    this.#pg = pg;
    this.#timeout = timeout;
    this.#link = linkFor(redis, onError);
    this.#domains = new Domains(pg, namespace);
    const shared = { link: this.#link, pg, domains: this.#domains, counters: this.#counters, timeout, onError };
    this.#puts = new Puts({ ...shared, ttl });
    this.#reads = new Reads({
      ...shared, puts: this.#puts, local: local ? new Local(local === true ? {} : local) : null, again: read => this.#again(read),
    });
    this.#together = new Together({ ...shared, puts: this.#puts });
    this.#derived = new Derived(shared);
  }

  // The newest committed value, or null if there is no row.
  read(domain, key, load, options) {
    return new Promise((resolve, reject) => {
      const place = this.#domains.known(domain);
      const enter = found => this.#enter(this.#callOf(found, load, options, true), key, resolve, reject);
      if (place) enter(place);
      else this.#domains.find(domain).then(enter).catch(reject);
    });
  }

  // The values of several keys, in their order, each read by itself. One query loads what Redis does not have.
  async readMany(domain, keys, load, options) {
    const place = this.#domains.known(domain) ?? await this.#domains.find(domain);
    const call = this.#callOf(place, load, options, false);
    if (keys.length === 0) return [];
    const values = new Array(keys.length);
    let missing = keys.length;
    return new Promise((resolve, reject) => {             // one for all: a promise for each key would cost more than its name
      keys.forEach((key, n) => this.#enter(call, key, value => {
        values[n] = value;
        if (--missing === 0) resolve(values);
      }, reject));
    });
  }

  // Values that were all current at one instant, of one domain, or of the pairs [[domain, key], ...].
  async readTogether(domain, keys, load, options) {
    this.#mayRead();
    if (Array.isArray(domain)) return this.#readPairs(domain, false, undefined, keys);
    return this.#readPairs(keys.map(key => [domain, key]), true, load, options);
  }

  async #readPairs(pairs, isOneDomain, load, options) {
    if (pairs.length === 0) return [];
    const read = async () => {
      const wanted = await Promise.all(pairs.map(async ([domain, key]) => {
        const place = await this.#domains.find(domain);
        return { place, key, load: loadFor(place, load), fence: await place.nameOf(key, this.#pg) };
      }));
      return this.#together.read(wanted, isOneDomain ? wanted[0].load : null);
    };
    const found = await read() ?? await read();         // null: a domain was attached anew
    if (!found) throw wrong('DOMAIN', 'a domain is attached again and again');
    return found.map(shapeOf(options));
  }

  // A value that fence.define_derived has defined.
  async derived(name, args = [], options) {
    this.#mayRead();
    const found = await this.#derived.read(name, Array.isArray(args) ? args : [args]);
    return shapeOf(options)(found);
  }

  // What Redis has: { freshness, version, value }. The value may be old unless it is fresh, so do not base a decision on it.
  async peek(domain, key) {
    this.#mayRead();
    const place = await this.#domains.find(domain);
    const fence = await place.nameOf(key, this.#pg);
    let record, state;
    try {
      const [[found], [permit]] = await limited(this.#link.block([fence], [fence]), this.#timeout);
      ({ state } = judge(record = found, permitOf(permit), fence));
      if (state === 'foreign') this.#link.distrust(fence);
    } catch {
      return { freshness: 'unavailable', version: null, value: null };
    }
    const newline = record === null ? -1 : record.indexOf('\n');
    if (newline < 0) return { freshness: 'none', version: null, value: null };
    return {
      freshness: state === 'hit' ? 'fresh' : 'unknown',
      version: record.split(' ', 2)[1], value: parse(record.slice(newline + 1)),
    };
  }

  // { reads: { domain: { source: number } }, events: { domain: { event: number } } }
  counters() {
    return this.#counters.snapshot();
  }

  // client: require('prom-client'); register: where to, if not to its default.
  registerPrometheus(client, register) {
    return prometheus(this.#counters, client, register);
  }

  registerOpenTelemetry(meter) {
    openTelemetry(this.#counters, meter);
  }

  // Waits for the connection to Redis, at most for that time, and resolves to whether it exists. Until then reads go to PostgreSQL.
  async ready(ms = 5000) {
    for (const until = Date.now() + ms; !this.#link.isReady && Date.now() < until;) await sleep(READY_MS);
    return this.#link.isReady;
  }

  // Ends the library's own connection to Redis. Client and pool are the application's.
  async close() {
    this.#closed = true;
    await this.#puts.idle();
    this.#link.close();
  }

  #mayRead() {
    if (this.#closed) throw wrong('CLOSED', 'these Fences are closed: make new ones');
  }

  // What the reads of one call have in common.
  #callOf(place, given, options, patient) {
    this.#mayRead();
    const suffix = options?.beside;
    if (suffix !== undefined && !SUFFIX.test(suffix)) {
      throw wrong('OPTION', `beside is a short name of letters, digits and . _ ~ -, not ${JSON.stringify(suffix)}`);
    }
    return { place, load: loadFor(place, given, suffix), given, options, suffix, shape: shapeOf(options), patient };
  }

  #enter(call, key, resolve, reject, restarts = 0) {
    const { place, load, suffix } = call;
    const add = fence => this.#reads.add({
      call, place, load, key, fence, name: suffix === undefined ? fence : beside(fence, suffix), resolve, reject, restarts,
      kept: undefined, answer: null,
    });
    const named = place.nameOf(key, this.#pg);
    if (typeof named === 'string') add(named);
    else named.then(add, reject);
  }

  // Begins a read again, after its domain was attached again.
  async #again({ place: { domain }, key, call: { given, options, patient }, resolve, reject, restarts }) {
    try {
      this.#enter(this.#callOf(await this.#domains.find(domain), given, options, patient), key, resolve, reject, restarts + 1);
    } catch (error) {
      reject(error);
    }
  }
}

module.exports = { Fences };
