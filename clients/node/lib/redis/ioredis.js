'use strict';
// ioredis: a connection of our own, like the application's but for the options that decide what a block may be taken for.
const { wrong } = require('../errors');
const { slotText } = require('../names');

const SILENT_MS = 1000;                 // a connection that owes an answer for so long is replaced
const pause = attempts => Math.min(50 * 2 ** Math.min(attempts, 5), 1000);

// No prefix, database 0, masters only; what was sent is never sent again, and nothing waits for a connection.
const OWN = {
  db: 0, keyPrefix: '', readOnly: false, role: 'master', monitor: false, lazyConnect: false, enableOfflineQueue: false,
  enableAutoPipelining: false, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0, reconnectOnError: null,
  commandTimeout: undefined, socketTimeout: undefined, retryStrategy: pause,
};

const ignore = () => {};

function own(client) {
  if (!client.isCluster) return client.duplicate(OWN);
  const { retryStrategy, ...ofNodes } = OWN;            // the cluster itself makes connections anew
  return client.duplicate([], {
    keyPrefix: '', scaleReads: 'master', lazyConnect: false, enableOfflineQueue: false, enableAutoPipelining: false,
    maxRedirections: 4, clusterRetryStrategy: pause, redisOptions: { ...client.options.redisOptions, ...ofNodes, socketTimeout: SILENT_MS },
  });
}

// Replaces a connection that owed an answer at the last look and has brought nothing since. ioredis's own socketTimeout costs
// every read a timer and a listener.
function watcher(redis) {
  let silent = null;                    // the connection, and how much it had brought
  return () => {
    const { stream, commandQueue } = redis;
    const owes = stream && commandQueue.length > 0;
    if (owes && silent?.stream === stream && silent.bytes === stream.bytesRead) {
      stream.destroy(new Error(`Redis has not answered for ${SILENT_MS} ms`));
    }
    silent = owes ? { stream, bytes: stream.bytesRead } : null;
  };
}

class Ioredis {
  #redis;
  #watch;

  constructor(client, onError) {
    if (client.mode === 'subscriber' || client.mode === 'monitor') {
      throw wrong('REDIS', 'this client of ioredis is subscribed: pass one that sends commands');
    }
    this.cluster = Boolean(client.isCluster);
    this.#redis = own(client).on('error', onError);
    if (!this.cluster) this.#watch = setInterval(watcher(this.#redis), SILENT_MS).unref();
  }

  placeOf(name) {
    return this.cluster ? slotText(name) : '';
  }

  get isReady() {
    return this.#redis.status === 'ready';
  }

  // While a connection is being made, ioredis would send some commands and refuse others.
  get #ready() {
    if (!this.isReady) throw new Error('there is no connection to Redis yet');
    return this.#redis;
  }

  // MULTI, MGET, fence_token, EXEC: the answer to EXEC
  async block(names, firsts, nonce) {
    const answers = await this.#ready.multi().mget(names).fcall_ro('fence_token', firsts.length, ...firsts, nonce).exec();
    return answers.map(([error, answer]) => {
      if (error) throw error;
      return answer;
    });
  }

  async ask(name, keys, ...args) {
    return this.#ready.fcall_ro(name, keys.length, ...keys, ...args);
  }

  async put(name, keys, ...args) {
    return this.#ready.fcall(name, keys.length, ...keys, ...args);
  }

  async set(key, record, ms) {
    return this.#ready.set(key, record, 'PX', ms);
  }

  // Ends the connection that has the name, which is then made anew; in a cluster all of them.
  hangUp() {
    const error = new Error('an answer was of another question');
    for (const node of this.cluster ? this.#redis.nodes('master') : [this.#redis]) node.stream?.destroy(error);
  }

  close() {
    clearInterval(this.#watch);
    this.#redis.on('error', ignore);
    this.#redis.disconnect();
  }
}

module.exports = { Ioredis };
