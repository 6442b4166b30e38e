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

// As Redis wants it: all is ASCII here, so a character is a byte.
const wire = words => words.reduce((text, word) => `${text}$${word.length}\r\n${word}\r\n`, `*${words.length}\r\n`);

const MULTI = wire(['MULTI']);
const EXEC = wire(['EXEC']);
const BLOCK_ANSWERS = 4;
const NOWHERE = { write: ignore };

const textOf = reply => (reply instanceof Buffer ? reply.utf8Slice() : Array.isArray(reply) ? reply.map(textOf) : reply);

// A whole block as one command of ioredis, which takes all four answers: it is written at once, so nothing comes between, and
// costs a third of what a pipeline of four commands costs.
class Block {
  name = 'exec';
  args = [];
  isTraced = true;
  #text;
  #answers = 0;

  constructor(names, firsts) {
    this.#text = `${MULTI}${wire(['MGET', ...names])}${wire(['FCALL_RO', 'fence_token', String(firsts.length), ...firsts])}${EXEC}`;
    this.promise = new Promise((resolve, reject) => {
      this.fulfil = resolve;
      this.reject = reject;             // the first error counts: the others only follow from it
    });
  }

  toWritable() {
    return this.#text;
  }

  // Before the answer to EXEC: OK, QUEUED, QUEUED.
  resolve(reply) {
    if (++this.#answers < BLOCK_ANSWERS) return;
    const error = reply.find(answer => answer instanceof Error);
    if (error) this.reject(error);
    else this.fulfil(textOf(reply));
  }
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

  // MULTI, MGET, fence_token, EXEC: [records, permits]
  block(names, firsts) {
    if (this.cluster) return this.#pipeline(names, firsts);
    const block = new Block(names, firsts);
    this.#redis.sendCommand(block);
    for (let n = 1; n < BLOCK_ANSWERS; n++) this.#redis.sendCommand(block, NOWHERE);
    return block.promise;
  }

  async #pipeline(names, firsts) {
    const answers = await this.#redis.multi().mget(names).fcall_ro('fence_token', firsts.length, ...firsts).exec();
    return answers.map(([error, answer]) => {
      if (error) throw error;
      return answer;
    });
  }

  ask(name, keys, ...args) {
    return this.#redis.fcall_ro(name, keys.length, ...keys, ...args);
  }

  put(name, keys, ...args) {
    return this.#redis.fcall(name, keys.length, ...keys, ...args);
  }

  set(key, record, ms) {
    return this.#redis.set(key, record, 'PX', ms);
  }

  close() {
    clearInterval(this.#watch);
    this.#redis.on('error', ignore);
    this.#redis.disconnect();
  }
}

module.exports = { Ioredis };
