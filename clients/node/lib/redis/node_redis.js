'use strict';
// node-redis: a connection of our own, like the application's but for the options that decide what a block may be taken for.
const { wrong } = require('../errors');
const { slotText } = require('../names');

const SILENT_MS = 1000;                 // a connection without an answer for so long is replaced; pings keep an idle one
const PING_MS = 300;
const AGAIN_MS = 500;
const pause = attempts => Math.min(50 * 2 ** Math.min(attempts, 5), 1000);

// Database 0, nothing answered from memory, replies as texts; nothing waits for a connection.
const own = options => ({
  ...options, url: undefined, database: 0, readonly: false, clientSideCache: undefined, commandOptions: undefined, legacyMode: false,
  disableOfflineQueue: true, pingInterval: PING_MS,
  socket: { ...options?.socket, connectTimeout: SILENT_MS, socketTimeout: SILENT_MS, reconnectStrategy: pause },
});

const isCluster = client => Array.isArray(client.masters) && Array.isArray(client.slots);

function duplicate(client) {
  if (!isCluster(client)) return client.duplicate(own(client.options));
  const options = (client._self ?? client)._options;
  if (!options) throw wrong('REDIS', 'clusters of node-redis 4 do not tell their options: use redis 5 or later, or ioredis');
  return client.duplicate({
    useReplicas: false, minimizeConnections: false, clientSideCache: undefined, commandOptions: undefined,
    maxCommandRedirections: 4, defaults: own(options.defaults),
  });
}

class NodeRedis {
  #redis;
  #closed = false;
  #again = null;

  constructor(client, onError) {
    this.cluster = isCluster(client);
    this.#redis = duplicate(client);
    this.#redis.on('error', onError);
    this.#connect();
  }

  // A client goes on trying by itself; a cluster none of whose nodes answers does not.
  #connect() {
    this.#redis.connect().catch(() => {
      if (this.#closed) return;
      this.#again = setTimeout(() => this.#connect(), AGAIN_MS);
      this.#again.unref();
    });
  }

  placeOf(name) {
    return this.cluster ? slotText(name) : '';
  }

  get isReady() {
    return this.cluster ? this.#redis.masters.length > 0 : this.#redis.isReady;
  }

  // MULTI, MGET, fence_token, EXEC: the answer to EXEC
  block(names, firsts, nonce) {
    return this.cluster ? this.#transaction(names, firsts, nonce) : this.#atOnce(names, firsts, nonce);
  }

  // Four commands that nothing comes between, for less than a transaction of the client costs. If only some of them arrive, one of
  // them fails: EXEC does without MULTI. send is async: if one of them throws, the promises of the others still have a reader.
  async #atOnce(names, firsts, nonce) {
    const send = async command => this.#redis.sendCommand(command);
    const [, , , told] = await Promise.all([send(['MULTI']), send(['MGET', ...names]),
      send(['FCALL_RO', 'fence_token', String(firsts.length), ...firsts, nonce]), send(['EXEC'])]);
    const error = Array.isArray(told) && told.find(answer => answer instanceof Error);
    if (error) throw error;
    return told;
  }

  async #transaction(names, firsts, nonce) {
    try {
      return await this.#redis.multi().mGet(names).fCallRo('fence_token', { keys: firsts, arguments: [nonce] }).exec();
    } catch (error) {
      // a block follows no redirection, and no client learns from it where a slot is now: a single command does
      this.ask('fence_token', firsts.slice(0, 1)).catch(() => {});
      throw error;
    }
  }

  async ask(name, keys, ...args) {
    return this.#redis.fCallRo(name, { keys, arguments: args });
  }

  async put(name, keys, ...args) {
    return this.#redis.fCall(name, { keys, arguments: args });
  }

  async set(key, record, ms) {
    return this.#redis.set(key, record, { PX: ms });
  }

  #end() {
    if (!this.#redis.isOpen) return;
    if (this.#redis.destroy) this.#redis.destroy();
    else this.#redis.disconnect().catch(() => {});      // version 4
  }

  // Ends the connection, in a cluster all of them, and makes it anew.
  hangUp() {
    if (this.#closed || !this.isReady) return;
    this.#end();
    this.#connect();
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#again);
    this.#redis.on('error', () => {});
    this.#end();
  }
}

module.exports = { NodeRedis };
