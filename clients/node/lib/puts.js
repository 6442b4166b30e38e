'use strict';
// Puts what a load has found, with the permit that came before the load. Nobody waits for a put. If it fails, the next reader
// has a miss.
const crypto = require('crypto');
const { beside, keyOf } = require('./names');
const { tokenOf } = require('./judge');
const { limited } = require('./time');

const LARGE = 4096;                     // payloads of so many characters or more do not go through Lua
const MOST = 4 * 1024 * 1024;           // bytes
const SIDE_MS = 10000;

class Puts {
  #link;
  #counters;
  #timeout;
  #ttl;
  #onError;
  #underWay = new Set();

  constructor({ link, counters, timeout, ttl, onError }) {
    this.#link = link;
    this.#counters = counters;
    this.#timeout = timeout;
    this.#ttl = String(ttl);
    this.#onError = onError;
  }

  // Call it after a load. row is what the load has found, or null if there is no row or the load has failed.
  settle(read, row) {
    if (read.answer.state !== 'miss') return;
    const { domain } = read.place;
    const mayPut = row !== null && row.rowVersion !== null;
    if (row && !mayPut) this.#counters.event(domain, 'kept_back');
    if (!mayPut && read.answer.busy !== 0) return;      // nobody waits for this reader
    const done = (mayPut ? this.#put(read, row) : this.#link.release(read.fence)).then(answer => {
      if (mayPut) this.#counters.event(domain, answer === 'stored' ? 'stored' : 'refused');
    }, error => {
      this.#counters.event(domain, 'failed');
      this.#onError(error);
    }).finally(() => this.#underWay.delete(done));
    this.#underWay.add(done);
  }

  #put({ fence, name, answer: { permit } }, { rowVersion, version, payload }) {
    const value = name === fence ? [] : [name];
    if (payload.length < LARGE) {
      return this.#limited(this.#link.put('fence_put', [fence, ...value], permit, rowVersion, payload, this.#ttl));
    }
    if (Buffer.byteLength(payload) > MOST) return Promise.resolve('refused too large');
    // The record gets a name of its own beside the fence. Redis renames it after it has checked the permit. The record has the version
    // without the epoch, because its token begins with the epoch.
    const side = beside(fence, `put-${crypto.randomBytes(9).toString('base64url')}`);
    const set = this.#link.set(side, `${tokenOf(permit)} ${version} ${keyOf(name)}\n${payload}`, SIDE_MS);
    const put = this.#link.put('fence_put_from', [fence, side, ...value], permit, rowVersion, this.#ttl);
    return this.#limited(Promise.all([set, put]).then(([, told]) => told));
  }

  #limited(promise) {
    return limited(promise, this.#timeout);
  }

  // Resolves when all puts that are under way have ended.
  async idle() {
    await Promise.allSettled([...this.#underWay]);
  }
}

module.exports = { Puts };
