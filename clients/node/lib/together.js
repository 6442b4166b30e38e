'use strict';
// Reads several rows that were all current at one instant (doc/protocol.md, "Several keys"). Either all are hits of one block,
// or of several blocks that were checked after the last one; or one statement reads all of them from PostgreSQL.
const { answer } = require('./block');
const { tokenOf } = require('./judge');
const { limited } = require('./time');

const BLOCK = 100;
const DOMAINS = `SELECT r.version::pg_catalog.text, r.value::pg_catalog.text AS payload
  FROM pg_catalog.unnest($1::pg_catalog.text[]) WITH ORDINALITY AS k (fence, n)
  LEFT JOIN fence.read_many($1::pg_catalog.text[]) r ON r.fence OPERATOR(pg_catalog.=) k.fence ORDER BY k.n`;

class Together {
  #link;
  #pg;
  #domains;
  #counters;
  #puts;
  #timeout;
  #onError;

  constructor({ link, pg, domains, counters, puts, timeout, onError }) {
    this.#link = link;
    this.#pg = pg;
    this.#domains = domains;
    this.#counters = counters;
    this.#puts = puts;
    this.#timeout = timeout;
    this.#onError = onError;
  }

  // wanted: { place, key, fence }, of one place if there is a load, else of any. In their order; null if a domain was attached anew.
  async read(wanted, load) {
    const reads = new Map(wanted.map(each => [each.fence, { ...each, name: each.fence, answer: null }]));
    const hits = await this.#get(this.#parts([...reads.values()]));
    const rows = hits ? null : await this.#load([...reads.values()], load);
    if (!hits && !rows) return null;
    return wanted.map(({ place, fence }) => {
      const { state, version, payload } = reads.get(fence).answer;
      this.#counters.read(place.domain, !hits && state === 'hit' ? 'miss' : state);
      if (hits) return { version, payload, source: 'hit' };
      return { version: null, payload: null, ...rows.get(fence), source: state === 'hit' ? 'miss' : state };
    });
  }

  #parts(reads) {
    const parts = new Map();
    let n = 0;
    for (const read of reads) {
      const part = `${this.#link.placeOf(read.fence)} ${Math.floor(n++ / BLOCK)}`;
      parts.set(part, [...parts.get(part) || [], read]);
    }
    return [...parts.values()];
  }

  // Whether all answers are hits that were current at one instant.
  async #get(parts) {
    try {
      await Promise.all(parts.map(part => answer(this.#link, part, this.#timeout)));
      if (!parts.flat().every(read => read.answer.state === 'hit')) return false;
      return parts.length === 1 || (await Promise.all(parts.map(part => this.#areCurrent(part)))).every(Boolean);
    } catch (error) {
      this.#onError(error);
      for (const read of parts.flat()) read.answer ??= { state: 'unavailable' };
      return false;
    }
  }

  // Sent after the last block has answered: token and version do not come back once they have changed.
  async #areCurrent(part) {
    const sources = part.map(({ fence, answer: { token, version } }) => [fence, token, version]);
    const told = await limited(this.#link.check(sources), this.#timeout);
    return !told.includes('0');
  }

  async #load(reads, load) {
    const places = new Map();           // place -> tokens
    for (const { place, answer: { permit } } of reads) {
      if (!places.has(place)) places.set(place, new Set());
      if (permit) places.get(place).add(tokenOf(permit));
    }
    for (const [place, tokens] of places) {
      if (await this.#domains.confirm(place, [...tokens]) !== place) return null;
      this.#counters.event(place.domain, 'loaded');
    }
    const rows = load ? await load.run(reads[0].place, reads, this.#pg) : await this.#readMany(reads);
    return new Map(reads.map((read, n) => {
      if (load) this.#puts.settle(read, rows[n]);
      return [read.fence, rows[n]];
    }));
  }

  // Reads rows of several domains in one snapshot. fence.read_many puts what Redis does not have.
  async #readMany(reads) {
    const { rows } = await this.#pg.query(DOMAINS, [reads.map(read => read.fence)]);
    return rows;
  }
}

module.exports = { Together };
