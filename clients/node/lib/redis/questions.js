'use strict';
// What all questions to Redis have in common, whatever client sends them. Each carries a nonce, and its answer must have it and the shape
// that was asked for. Otherwise the answers on that connection may be anybody's, so the connection ends (doc/protocol.md, rules K and
// N). Whatever a client throws, also before it returns a promise, rejects the promise that is returned here.
const crypto = require('node:crypto');
const { wrong } = require('../errors');

// The answer without the nonce, with which an array ends, and a text behind a blank; undefined if it ends otherwise.
function strip(answer, nonce) {
  if (Array.isArray(answer)) return answer.at(-1) === nonce ? answer.slice(0, -1) : undefined;
  return typeof answer === 'string' && answer.endsWith(` ${nonce}`) ? answer.slice(0, -nonce.length - 1) : undefined;
}

class Questions {
  #client;
  #prefix = `#${crypto.randomBytes(3).toString('hex')}`;    // a proxy may swap answers of two processes, too
  #asked = 0;

  constructor(client) {
    this.#client = client;
  }

  get isReady() {
    return this.#client.isReady;
  }

  placeOf(name) {
    return this.#client.placeOf(name);
  }

  #nonce() {
    this.#asked = (this.#asked + 1) % 1e9;
    return `${this.#prefix}${this.#asked}`;
  }

  // MULTI, MGET, fence_token, EXEC: [records, permits], one permit for each of firsts.
  async block(names, firsts) {
    const nonce = this.#nonce();
    const answers = await this.#client.block(names, firsts, nonce);
    if (!Array.isArray(answers) || answers.length !== 2) this.distrust(names[0]);
    const [records, told] = answers;
    const permit = strip(told, nonce);
    const permits = Array.isArray(permit) ? permit : [permit];
    if (!Array.isArray(records) || records.length !== names.length || permit === undefined || permits.length !== firsts.length) {
      this.distrust(names[0]);
    }
    return [records, permits];
  }

  // A question of one function.
  async ask(name, keys, ...args) {
    const nonce = this.#nonce();
    const answer = strip(await this.#client.ask(name, keys, ...args, nonce), nonce);
    return answer === undefined ? this.distrust(keys[0]) : answer;
  }

  // Which of these sources [fence, token, version] are current: a text with 1 or 0 for each.
  async check(sources) {
    const told = await this.ask('fence_check', sources.map(([fence]) => fence), ...sources.flatMap(([, token, version]) => [token, version]));
    return told.length === sources.length ? told : this.distrust(sources[0][0]);
  }

  async release(fence) {
    return this.#client.ask('fence_release', [fence]);
  }

  async put(name, keys, ...args) {
    return this.#client.put(name, keys, ...args);
  }

  async set(key, record, ms) {
    return this.#client.set(key, record, ms);
  }

  // Ends the connection on which that came, and raises.
  distrust(name) {
    this.#client.hangUp(name);
    throw wrong('ANSWER', `Redis gave an answer to another question than the one about "${name}", so the connection was closed`);
  }

  close() {
    this.#client.close();
  }
}

module.exports = { Questions };
