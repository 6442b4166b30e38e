'use strict';
// Strong reads, in batches. Reads that begin in one turn of the event loop go to Redis in one block (in a cluster one for each
// slot, or one for each shard). One query loads what Redis does not have. A read is { place, load, key, fence, name (of what is read:
// the fence, or a value beside it), call (shape of what is answered, patient), resolve, reject, restarts }.
const { answer } = require('./block');
const { judgeAnswer, tokenOf } = require('./judge');
const { limited, sleep } = require('./time');

const BLOCK = 100;                      // fences in one block: Redis does nothing else meanwhile
const CHECK = 1000;                     // in one fence_check
const BUSY_MS = [2, 8];                 // the first pause for another reader, at random; each is twice as long
const RESTARTS = 3;

class Reads {
  #link;
  #pg;
  #domains;
  #counters;
  #local;
  #puts;
  #timeout;
  #onError;
  #again;
  #waiting = [];

  constructor({ link, pg, domains, counters, local, puts, timeout, onError, again }) {
    this.#link = link;
    this.#pg = pg;
    this.#domains = domains;
    this.#counters = counters;
    this.#local = local;
    this.#puts = puts;
    this.#timeout = timeout;
    this.#onError = onError;
    this.#again = again;                // begins a read again after its domain was attached again
  }

  add(read) {
    if (this.#waiting.push(read) === 1) process.nextTick(() => this.#flush());
  }

  #flush() {
    const reads = this.#waiting;
    this.#waiting = [];
    const kept = [];
    const others = this.#local ? [] : reads;
    if (this.#local) for (const read of reads) ((read.kept = this.#local.get(read.name)) ? kept : others).push(read);
    if (others.length > 0) this.#get(others).catch(error => reject(others, error));
    if (kept.length > 0) {
      this.#check(kept).then(stale => stale.length > 0 && this.#get(stale)).catch(error => reject(kept, error));
    }
  }

  #done(read, state, version, payload) {
    this.#counters.read(read.place.domain, state);
    try {
      read.resolve(read.call.shape({ payload, version, source: state }));
    } catch (error) {
      read.reject(error);
    }
  }

  #failed(read, error) {
    this.#onError(error);
    read.answer = { state: 'unavailable' };
  }

  // Divides reads into parts, each of one place and small enough for one call.
  #parts(reads, most) {
    if (reads.length === 1) return [reads];
    const places = new Map();
    for (const read of reads) append(places, this.#link.placeOf(read.fence), read);
    return [...places.values()].flatMap(each => cut(each, most));
  }

  // ------------------------------------------------------------------------------------------------------------------
  // From Redis
  // ------------------------------------------------------------------------------------------------------------------

  async #get(reads) {
    const parts = this.#parts(reads, BLOCK);
    const missed = parts.length === 1 ? await this.#block(parts[0]) :
      (await Promise.all(parts.map(part => this.#block(part)))).flat();
    if (missed.length > 0) await this.#fill(missed);
  }

  // Resolves the reads that are hits, and returns the others.
  #block(reads) {
    return answer(this.#link, reads, this.#timeout).then(() => reads.filter(read => !this.#took(read, 'hit')), error => {
      for (const read of reads) this.#failed(read, error);
      return reads;
    });
  }

  // If the answer is a hit, resolves the read with it. Returns whether it is.
  #took(read, source) {
    const { state, token, version, payload } = read.answer;
    if (state !== 'hit') return false;
    this.#local?.set(read.name, { token, version, payload });
    this.#done(read, source, version, payload);
    return true;
  }

  // Resolves the reads whose values the process has kept, if these are current, and returns the others. A read cannot share a
  // check that began before it, because that check proves nothing for it.
  async #check(reads) {
    const stale = await Promise.all(this.#parts(reads, CHECK).map(async part => {
      let told;
      try {
        told = await limited(this.#link.check(part.map(({ fence, kept }) => [fence, kept.token, kept.version])), this.#timeout);
      } catch (error) {
        this.#onError(error);
        return part;                    // the block may say more
      }
      return part.filter((read, n) => {
        const current = told[n] === '1';
        if (current) this.#done(read, 'local', read.kept.version, read.kept.payload);
        else this.#local.delete(read.name);
        return !current;
      });
    }));
    return stale.flat();
  }

  // ------------------------------------------------------------------------------------------------------------------
  // From PostgreSQL
  // ------------------------------------------------------------------------------------------------------------------

  async #fill(reads) {
    const loads = new Map();            // load -> reads; each load is of one place
    await Promise.all(reads.map(async read => {
      if (read.call.patient && read.answer.state === 'miss' && !(await this.#mayFill(read))) return;
      append(loads, read.load, read);
    }));
    await Promise.all([...loads].map(([load, group]) => this.#load(load, group)));
  }

  // Asks whether another reader is about to put the value. False: the read is resolved, or begins again a little later.
  async #mayFill(read) {
    const names = read.name === read.fence ? [read.fence] : [read.fence, read.name];
    try {
      read.answer = judgeAnswer(await limited(this.#link.ask('fence_get', names), this.#timeout), read.name);
      if (read.answer.state === 'foreign') this.#link.distrust(read.name);
    } catch (error) {
      this.#failed(read, error);
    }
    if (this.#took(read, 'hit')) return false;
    const { busy } = read.answer;
    if (!busy) return true;
    // wait for that reader, and once more for the next one; then this reader loads the value itself
    read.until ??= Date.now() + 2 * busy;
    if (Date.now() >= read.until) return true;
    read.pauses = (read.pauses ?? 0) + 1;
    this.#counters.event(read.place.domain, 'waited');
    const [least, most] = BUSY_MS;
    sleep(Math.min(busy, (least + Math.random() * (most - least)) * 2 ** (read.pauses - 1))).then(() => this.add(read));
    return false;
  }

  // The permits have arrived, so what is read from now on may be put.
  async #load(load, reads) {
    const { place } = reads[0];
    try {
      const tokens = reads.filter(read => read.answer.permit).map(read => tokenOf(read.answer.permit));
      if (await this.#domains.confirm(place, [...new Set(tokens)]) !== place) {
        for (const read of reads) this.#restart(read);
        return;
      }
      const wanted = [...new Map(reads.map(read => [read.fence, read])).values()];
      this.#counters.event(place.domain, 'loaded');
      const rows = await load.run(place, wanted, this.#pg);
      const found = new Map(wanted.map((read, n) => [read.fence, rows[n]]));
      for (const read of wanted) this.#puts.settle(read, found.get(read.fence));
      for (const read of reads) {
        const row = found.get(read.fence);
        this.#done(read, read.answer.state, row ? row.version : null, row ? row.payload : null);
      }
    } catch (error) {
      for (const read of reads) {
        this.#puts.settle(read, null);
        read.reject(error);
      }
    }
  }

  #restart(read) {
    if (read.restarts === RESTARTS) read.reject(new Error(`domain "${read.place.domain}" is attached again and again`));
    else this.#again(read);
  }
}

// Rejects reads after an unexpected error, so that no read stays without an answer.
const reject = (reads, error) => { for (const read of reads) read.reject(error); };

function append(map, key, value) {
  const found = map.get(key);
  if (found) found.push(value);
  else map.set(key, [value]);
}

function cut(list, most) {
  if (list.length <= most) return [list];
  const parts = [];
  for (let n = 0; n < list.length; n += most) parts.push(list.slice(n, n + most));
  return parts;
}

module.exports = { Reads };
