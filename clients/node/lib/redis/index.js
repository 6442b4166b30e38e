'use strict';
// Which client of Redis it is. Of each we make a connection of our own: see there. A link has placeOf(name): what is asked together must
// be of one place.
const { wrong } = require('../errors');
const { Ioredis } = require('./ioredis');
const { NodeRedis } = require('./node_redis');
const { Questions } = require('./questions');
const { Shards } = require('./shards');

function linkFor(client, onError) {
  return new Questions(clientFor(client, onError));
}

function clientFor(client, onError) {
  if (!Array.isArray(client)) return linkOf(client, onError);
  if (client.length === 0 || client.some(each => each?.isCluster || Array.isArray(each?.masters))) {
    throw wrong('REDIS', 'an array of clients is one for each server of pgcache_fence.redis_url, in that order; a cluster is one client');
  }
  return new Shards(client.map(each => linkOf(each, onError)));
}

function linkOf(client, onError) {
  if (typeof client?.duplicate !== 'function') {
    throw wrong('REDIS', 'redis must be a client of ioredis (new Redis(), new Redis.Cluster()) or of node-redis (createClient(),'
      + ' createCluster()); the library makes a connection of its own from it');
  }
  if (typeof client.fcall_ro === 'function') return new Ioredis(client, onError);
  if (typeof client.fCallRo === 'function') return new NodeRedis(client, onError);
  throw wrong('REDIS', 'this client of Redis has no FCALL_RO: use ioredis 5 or 6, or redis 4.3 to 6');
}

module.exports = { linkFor };
