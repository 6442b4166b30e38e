'use strict';
// Several rows that were all current at one instant (doc/protocol.md, "Several keys"): all are hits of one block, or of several
// that were checked after the last one; else all of them are read from PostgreSQL in one statement.
const { judge, tokenOf } = require('./judge');
const { slotText } = require('./names');
const { limited } = require('./time');

const BLOCK = 100;

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

  // In the order of the fences; null if the domain was attached anew.
  async read(place, keys, fences, load) {
    const reads = new Map(fences.map((fence, n) => [fence, { place, key: keys[n], fence, name: fence, answer: null }]));
    const parts = this.#parts([...reads.values()]);
    const hits = await this.#get(parts);
    const rows = hits ? null : await this.#load(place, [...reads.values()], load);
    if (!hits && !rows) return null;
    return fences.map(fence => {
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
      const part = `${this.#link.cluster ? slotText(read.fence) : ''} ${Math.floor(n++ / BLOCK)}`;
      parts.set(part, [...parts.get(part) || [], read]);
    }
    return [...parts.values()];
  }

  // Whether all are hits that agree.
  async #get(parts) {
    try {
      await Promise.all(parts.map(async part => {
        const names = part.map(read => read.fence);
        const [records, permit] = await limited(this.#link.block(names, names.slice(0, 1)), this.#timeout);
        part.forEach((read, n) => { read.answer = judge(records[n], permit); });
      }));
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
    const told = await limited(this.#link.ask('fence_check', part.map(read => read.fence),
      ...part.flatMap(({ answer: { token, version } }) => [token, version])), this.#timeout);
    return !told.includes('0');
  }

  async #load(place, reads, load) {
    const tokens = reads.filter(read => read.answer.permit).map(read => tokenOf(read.answer.permit));
    if (await this.#domains.confirm(place, [...new Set(tokens)]) !== place) return null;
    this.#counters.event(place.domain, 'loaded');
    const rows = await load.run(place, reads, this.#pg);
    reads.forEach((read, n) => this.#puts.settle(read, rows[n]));
    return new Map(reads.map((read, n) => [read.fence, rows[n]]));
  }
}

module.exports = { Together };
