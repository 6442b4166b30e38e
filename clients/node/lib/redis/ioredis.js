'use strict';
// ioredis: a connection of our own, like the application's but for the options that decide what a block may be taken for.
const { wrong } = require('../errors');

const SILENT_MS = 1000;                 // a connection that owes an answer for so long is replaced
const pause = attempts => Math.min(50 * 2 ** Math.min(attempts, 5), 1000);

// No prefix, database 0, masters only; what was sent is never sent again, and nothing waits for a connection.
const OWN = {
  db: 0, keyPrefix: '', readOnly: false, role: 'master', monitor: false, lazyConnect: false, enableOfflineQueue: false,
  enableAutoPipelining: false, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0, reconnectOnError: null,
  commandTimeout: undefined, socketTimeout: SILENT_MS, retryStrategy: pause,
};

const UTF8 = { replyEncoding: 'utf8' };
const ignore = () => {};

// The class of the commands that this client sends, if it is of the ioredis that is found from here; a client does not tell.
function commandsOf(client) {
  try {
    const { Redis, Command } = require('ioredis');
    return client instanceof Redis ? Command : undefined;
  } catch {
    return undefined;
  }
}

function own(client) {
  if (!client.isCluster) return client.duplicate(OWN);
  const { retryStrategy, ...ofNodes } = OWN;            // the cluster itself makes connections anew
  return client.duplicate([], {
    keyPrefix: '', scaleReads: 'master', lazyConnect: false, enableOfflineQueue: false, enableAutoPipelining: false,
    maxRedirections: 4, clusterRetryStrategy: pause, redisOptions: { ...client.options.redisOptions, ...ofNodes },
  });
}

// A command of which nobody awaits the answer: OK or QUEUED. It is written together with EXEC, so here it is empty.
class Queued {
  args = [];
  isTraced = true;

  constructor(name, note) {
    this.name = name;
    this.reject = note;
  }

  resolve() {}

  toWritable() {
    return '';
  }
}

// As Redis wants it: all is ASCII here, so a character is a byte.
const wire = words => words.reduce((text, word) => `${text}$${word.length}\r\n${word}\r\n`, `*${words.length}\r\n`);

// What EXEC answers, if none of it is an error.
function both(answers) {
  for (const answer of answers) if (answer instanceof Error) throw answer;
  return answers;
}

class Ioredis {
  #redis;
  #Command;

  constructor(client, onError) {
    if (client.mode === 'subscriber' || client.mode === 'monitor') {
      throw wrong('REDIS', 'this client of ioredis is subscribed: pass one that sends commands');
    }
    this.cluster = Boolean(client.isCluster);
    this.#redis = own(client).on('error', onError);
    this.#Command = commandsOf(client);
  }

  get isReady() {
    return this.#redis.status === 'ready';
  }

  // MULTI, MGET, fence_token, EXEC: [records, permits]
  block(names, firsts) {
    return this.cluster || !this.#Command ? this.#pipeline(names, firsts) : this.#atOnce(names, firsts);
  }

  async #pipeline(names, firsts) {
    const answers = await this.#redis.multi().mget(names).fcall_ro('fence_token', firsts.length, ...firsts).exec();
    return both(answers.map(([error, answer]) => error || answer));
  }

  // The same for a fraction of what a pipeline costs: four commands in one go and one write, so nothing comes between.
  #atOnce(names, firsts) {
    let last = '';
    let refused;
    const writer = { write: text => { last += text; } };
    const note = error => { refused ??= error; };
    const exec = new this.#Command('exec', [], UTF8);
    for (const name of ['multi', 'mget', 'fcall_ro']) this.#redis.sendCommand(new Queued(name, note), writer);
    this.#redis.sendCommand(exec, writer);
    if (last) {                         // else there is no connection, and it is rejected
      this.#redis.stream.write(wire(['MULTI']) + wire(['MGET', ...names])
        + wire(['FCALL_RO', 'fence_token', String(firsts.length), ...firsts]) + last);
    }
    return exec.promise.then(both, error => { throw refused ?? error; });
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
    this.#redis.on('error', ignore);
    this.#redis.disconnect();
  }
}

module.exports = { Ioredis };
