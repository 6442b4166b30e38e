'use strict';
// Several independent servers, the shards: each has the names of an equal part of the slots (doc/clients.md, "Redis Cluster, shards").
const { slotText } = require('../names');

const SLOTS = 16384;

// CRC16 as Redis Cluster has it, byte by byte.
const TABLE = Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8;
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  return crc & 0xffff;
});

// All of a name is ASCII.
function slotOf(name) {
  let crc = 0;
  const text = slotText(name);
  for (let n = 0; n < text.length; n++) crc = ((crc << 8) & 0xffff) ^ TABLE[(crc >> 8) ^ text.charCodeAt(n)];
  return crc % SLOTS;
}

class Shards {
  #links;

  // links: in the order of pgcache_fence.redis_url.
  constructor(links) {
    this.#links = links;
  }

  get isReady() {
    return this.#links.every(link => link.isReady);
  }

  placeOf(name) {
    return Math.floor(slotOf(name) * this.#links.length / SLOTS);
  }

  // What is asked together is of one place.
  #of(name) {
    return this.#links[this.placeOf(name)];
  }

  block(names, firsts, nonce) {
    return this.#of(names[0]).block(names, firsts, nonce);
  }

  ask(name, keys, ...args) {
    return this.#of(keys[0]).ask(name, keys, ...args);
  }

  put(name, keys, ...args) {
    return this.#of(keys[0]).put(name, keys, ...args);
  }

  set(key, record, ms) {
    return this.#of(key).set(key, record, ms);
  }

  hangUp(name) {
    this.#of(name).hangUp();
  }

  close() {
    for (const link of this.#links) link.close();
  }
}

module.exports = { Shards };
