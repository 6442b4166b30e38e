'use strict';
// Strong reads, gathered: those that begin in one turn of the event loop are asked for in one block (in a cluster one for each
// slot), and what Redis does not have of them is loaded in one query. A read is { place, key, fence, name (of what is read: the
// fence, or a value beside it), load, patient, resolve, reject }.
const { judge, judgeAnswer, tokenOf } = require('./judge');
const { limited, sleep } = require('./time');
const { slotText } = require('./names');

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
    this.#again = again;                // begins a read anew, of a domain that was attached anew
  }

  add(read) {
    if (this.#waiting.push(read) === 1) process.nextTick(() => this.#flush());
  }

  #flush() {
    const reads = this.#waiting;
    this.#waiting = [];
    const kept = [];
    const others = this.#local ? [] : reads;
    if (this.#local) for (const read of reads) (this.#local.get(read.name) ? kept : others).push(read);
    if (others.length > 0) this.#get(others).catch(error => reject(others, error));
    if (kept.length > 0) {
      this.#check(kept).then(stale => stale.length > 0 && this.#get(stale)).catch(error => reject(kept, error));
    }
  }

  #done(read, state, version, payload) {
    this.#counters.read(read.place.domain, state);
    read.resolve({ payload, version, source: state });
  }

  #failed(read, error) {
    this.#onError(error);
    read.answer = { state: 'unavailable' };
  }

  // In parts that one call may have, each of one slot.
  #parts(reads, most) {
    if (!this.#link.cluster) return cut(reads, most);
    const slots = new Map();
    for (const read of reads) append(slots, slotText(read.fence), read);
    return [...slots.values()].flatMap(each => cut(each, most));
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

  // Answers what are hits, returns the others.
  async #block(reads) {
    const { names, firsts, firstOf, at } = layout(reads);
    let records, permits;
    try {
      const told = await limited(this.#link.block(names, firsts), this.#timeout);
      records = told[0];
      permits = firsts.length > 1 ? told[1] : [told[1]];
    } catch (error) {
      for (const read of reads) this.#failed(read, error);
      return reads;
    }
    const missed = [];
    for (const read of reads) {
      const record = records[at.get(read.fence)];
      read.answer = judge(record, permits[firstOf.get(read.place.prefix)],
        read.name === read.fence ? undefined : records[at.get(read.name)]);
      if (!this.#took(read, 'hit')) missed.push(read);
    }
    return missed;
  }

  // Whether the answer is a hit, which the read is given then.
  #took(read, source) {
    const { state, token, version, payload } = read.answer;
    if (state !== 'hit') return false;
    this.#local?.set(read.name, { token, version, payload });
    this.#done(read, source, version, payload);
    return true;
  }

  // Values that the process has kept: answers those that are current, returns the others. Nobody shares a check that is under
  // way already: it proves nothing for a read that began after it.
  async #check(reads) {
    const stale = await Promise.all(this.#parts(reads, CHECK).map(async part => {
      const entries = part.map(read => this.#local.get(read.name));
      let told;
      try {
        told = await limited(this.#link.ask('fence_check', part.map(read => read.fence),
          ...entries.flatMap(({ token, version }) => [token, version])), this.#timeout);
      } catch (error) {
        this.#onError(error);
        return part;                    // a block tells more, or nothing either
      }
      return part.filter((read, n) => {
        const current = told[n] === '1';
        if (current) this.#done(read, 'local', entries[n].version, entries[n].payload);
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
      if (read.patient && read.answer.state === 'miss' && !(await this.#mayFill(read))) return;
      append(loads, read.load, read);
    }));
    await Promise.all([...loads].map(([load, group]) => this.#load(load, group)));
  }

  // Asks whether somebody else is about to fill it in. False: the read is answered, or begins anew a little later.
  async #mayFill(read) {
    const names = read.name === read.fence ? [read.fence] : [read.fence, read.name];
    try {
      read.answer = judgeAnswer(await limited(this.#link.ask('fence_get', names), this.#timeout));
    } catch (error) {
      this.#failed(read, error);
    }
    if (this.#took(read, 'hit')) return false;
    const { busy } = read.answer;
    if (!busy) return true;
    // he has that long; whoever comes after him has it once more; then this reader does it himself
    read.until ??= Date.now() + 2 * busy;
    if (Date.now() >= read.until) return true;
    read.pauses = (read.pauses ?? 0) + 1;
    this.#counters.event(read.place.domain, 'waited');
    const [least, most] = BUSY_MS;
    sleep(Math.min(busy, (least + Math.random() * (most - least)) * 2 ** (read.pauses - 1))).then(() => this.add(read));
    return false;
  }

  // The permits have come: what is read from now on may be put.
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
    read.restarts = (read.restarts ?? 0) + 1;
    if (read.restarts > RESTARTS) read.reject(new Error(`domain "${read.place.domain}" is attached again and again`));
    else this.#again(read);
  }
}

// What nobody expected must not leave a read without an answer.
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

// What a block asks for: each name once, and of each domain the first fence.
function layout(reads) {
  const at = new Map();                 // name -> its place in names
  const firstOf = new Map();            // prefix of a domain -> its place in firsts
  const names = [];
  const firsts = [];
  const add = name => { if (!at.has(name)) at.set(name, names.push(name) - 1); };
  for (const { place, fence, name } of reads) {
    add(fence);
    if (name !== fence) add(name);
    if (!firstOf.has(place.prefix)) firstOf.set(place.prefix, firsts.push(fence) - 1);
  }
  return { names, firsts, firstOf, at };
}

module.exports = { Reads, layout };
