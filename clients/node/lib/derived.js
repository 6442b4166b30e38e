'use strict';
// Derived values. Asks Redis for the value, and whether all of its sources are current. Otherwise fence.read_derived computes
// the value and stores it in Redis.
const { inputText } = require('./names');
const { limited } = require('./time');

const NAMES_MS = 5000;                  // time for which a name is kept; a new definition changes the names of its values
const NAMES_KEPT = 10000;
const CHECK = 1000;

const NAME = 'SELECT value FROM fence.derived_keys($1::pg_catalog.text, VARIADIC $2::pg_catalog.text[])';
const COMPUTE = 'SELECT fence.read_derived($1::pg_catalog.text, VARIADIC $2::pg_catalog.text[])::pg_catalog.text AS payload';

class Derived {
  #link;
  #pg;
  #counters;
  #timeout;
  #onError;
  #names = new Map();                   // JSON of name and arguments -> { name, until }

  constructor({ link, pg, counters, timeout, onError }) {
    this.#link = link;
    this.#pg = pg;
    this.#counters = counters;
    this.#timeout = timeout;
    this.#onError = onError;
  }

  async read(name, args) {
    const texts = args.map(inputText);
    const found = await this.#get(await this.#nameOf(name, texts));
    this.#counters.read(name, found.source);
    if (found.source === 'hit') return found;
    this.#counters.event(name, 'loaded');
    const { rows } = await this.#pg.query(COMPUTE, [name, texts]);
    return { ...found, payload: rows[0].payload };
  }

  async #nameOf(name, texts) {
    const kept = JSON.stringify([name, texts]);
    const known = this.#names.get(kept);
    if (known && Date.now() < known.until) return known.value;
    const until = Date.now() + NAMES_MS;
    const { rows: [{ value }] } = await this.#pg.query(NAME, [name, texts]);
    if (this.#names.size >= NAMES_KEPT) this.#names.delete(this.#names.keys().next().value);
    this.#names.set(kept, { value, until });
    return value;
  }

  async #get(value) {
    const none = source => ({ version: null, payload: null, source });
    try {
      const [word, told] = await limited(this.#link.ask('fence_get_derived', [value]), this.#timeout);
      if (word === 'hit') return { version: null, payload: told, source: 'hit' };
      if (word === 'elsewhere' && await this.#areCurrent(told)) {
        return { version: null, payload: told.slice(told.indexOf('\n\n') + 2), source: 'hit' };
      }
      return none('miss');
    } catch (error) {
      this.#onError(error);
      return none('unavailable');
    }
  }

  // Checks the lines "fence token version" of a record whose sources are in other processes, with one check for each place.
  async #areCurrent(record) {
    const places = new Map();
    for (const line of record.slice(0, record.indexOf('\n\n')).split('\n')) {
      const source = line.split(' ');
      const place = this.#link.placeOf(source[0]);
      places.set(place, [...places.get(place) || [], source]);
    }
    const told = await Promise.all([...places.values()].map(sources => sources.length > CHECK ? '0' :
      limited(this.#link.check(sources), this.#timeout)));
    return !told.join('').includes('0');
  }
}

module.exports = { Derived };
