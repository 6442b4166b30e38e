'use strict';
// Which client of Redis it is. Of each we make a connection of our own: see there.
const { wrong } = require('../errors');
const { Ioredis } = require('./ioredis');
const { NodeRedis } = require('./node_redis');

function linkFor(client, onError) {
  if (typeof client?.duplicate !== 'function') {
    throw wrong('REDIS', 'redis must be a client of ioredis (new Redis(), new Redis.Cluster()) or of node-redis (createClient(),'
      + ' createCluster()); the library makes a connection of its own from it');
  }
  if (typeof client.fcall_ro === 'function') return new Ioredis(client, onError);
  if (typeof client.fCallRo === 'function') return new NodeRedis(client, onError);
  throw wrong('REDIS', 'this client of Redis has no FCALL_RO: use ioredis 5 or later, or redis 4.3 or later');
}

module.exports = { linkFor };
