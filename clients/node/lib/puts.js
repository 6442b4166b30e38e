'use strict';
// What a load has found is put with the permit that came before it. Nobody waits for it: a put that fails is a miss of the
// next reader.
const crypto = require('crypto');
const { beside } = require('./names');
const { tokenOf } = require('./judge');
const { limited } = require('./time');

const LARGE = 4096;                     // characters from which on a payload is not passed through Lua
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

  // After a load: row is { version, payload }, null if there is none or it failed.
  settle(read, row) {
    if (read.answer.state !== 'miss') return;
    if (!row && read.answer.busy !== 0) return;         // nobody waits for this reader
    const { domain } = read.place;
    const done = (row ? this.#put(read, row) : this.#link.ask('fence_release', [read.fence])).then(answer => {
      if (row) this.#counters.event(domain, answer === 'stored' ? 'stored' : 'refused');
    }, error => {
      this.#counters.event(domain, 'failed');
      this.#onError(error);
    }).finally(() => this.#underWay.delete(done));
    this.#underWay.add(done);
  }

  #put({ fence, name, answer: { permit } }, { version, payload }) {
    const value = name === fence ? [] : [name];
    if (payload.length < LARGE) {
      return this.#limited(this.#link.put('fence_put', [fence, ...value], permit, version, payload, this.#ttl));
    }
    if (Buffer.byteLength(payload) > MOST) return Promise.resolve('refused too large');
    // the record lies beside the fence, under a name of this put alone, until it has been proven and is renamed
    const side = beside(fence, `put-${crypto.randomBytes(9).toString('base64url')}`);
    const set = this.#link.set(side, `${tokenOf(permit)} ${version} \n${payload}`, SIDE_MS);
    const put = this.#link.put('fence_put_from', [fence, side, ...value], permit, version, this.#ttl);
    return this.#limited(Promise.all([set, put]).then(([, told]) => told));
  }

  #limited(promise) {
    return limited(promise, this.#timeout);
  }

  // When all that are under way are over.
  async idle() {
    await Promise.allSettled([...this.#underWay]);
  }
}

module.exports = { Puts };
