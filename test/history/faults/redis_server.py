"""Faults of a single Redis server: it dies, loses data, runs out of memory, or its clock is stepped."""

import time

from faults.fault import Fault, new_mark, sleep

FILLER = 2000               # bytes of each key that fills the memory


class RedisKilled(Fault):
    """kill -9 and restart. The restarted server has the data that this kind of persistence has saved."""

    epoch = 'new'

    def __init__(self, name, persistence, describe):
        self.name, self.persistence, self.describe = name, persistence, describe

    def do(self, site, rng, record):
        server = site.redis
        proof = record['proof']
        server.persist(self.persistence)
        proof['run_before'] = server.identity()
        proof['saved'] = new_mark(site, 'saved')
        server.call('SET', 'fault:' + proof['saved'], 1)
        if self.persistence == 'rdb':
            server.call('SAVE')
        # Redis calls fsync every second, but what a process has written survives its end anyway.
        sleep(rng, 0.1, 0.6)
        went = time.monotonic()
        proof['keys_before'] = server.call('DBSIZE')
        server.kill9()
        sleep(rng, 0, 2 * site.lease)
        server.start()
        record['down'] = (went, time.monotonic())
        proof['run_after'] = server.identity()
        proof['keys_after'] = server.call('DBSIZE')
        proof['came_back'] = server.call('EXISTS', 'fault:' + proof['saved']) == 1
        server.persist(None)
        server.call('DEL', 'fault:' + proof['saved'])


class Forget(Fault):
    """Sends a command that makes Redis lose data, several times."""

    def __init__(self, name, commands, epoch, describe):
        self.name, self.commands, self.epoch, self.describe = name, commands, epoch, describe

    def do(self, site, rng, record):
        proof = record['proof']
        proof['keys_before'] = site.redis.call('DBSIZE')
        proof['keys_after'] = []
        proof['libraries_after'] = []
        for _ in range(rng.randint(2, 5) if self.epoch == 'same' else 1):
            for command in self.commands:
                client = site.redis.client()
                # in one transaction, to see what Redis has right after the command
                *_, keys, libraries = client.pipeline(transaction=True).execute_command(*command) \
                    .execute_command('DBSIZE').execute_command('FUNCTION', 'LIST').execute()
                client.close()
                proof['keys_after'].append(keys)
                proof['libraries_after'].append(len(libraries))
            sleep(rng, 0.05, 0.4)


class ClientsKilled(Fault):
    name = 'clients_killed'
    describe = 'Redis closes the connections of all its clients, several times'

    def do(self, site, rng, record):
        record['proof']['killed'] = 0
        for _ in range(rng.randint(3, 8)):
            record['proof']['killed'] += site.redis.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
            sleep(rng, 0.02, 0.2)


class Eviction(Fault):
    """Fills the memory with other keys until Redis evicts ours. If Redis has no key left that it may evict, it refuses
    writes for a moment, and a new epoch follows."""

    def __init__(self, policy):
        self.policy = policy
        self.name = 'eviction_' + policy.replace('-', '_')
        self.describe = 'memory runs out under ' + policy

    def do(self, site, rng, record):
        server = site.redis
        proof = record['proof']
        client = server.client()
        before = [client.config_get(name)[name] for name in ('maxmemory', 'maxmemory-policy')]
        evicted = int(server.info('stats', 'evicted_keys'))
        server.call('CONFIG', 'SET', 'maxmemory-policy', self.policy)
        used = int(server.info('memory', 'used_memory'))
        server.call('CONFIG', 'SET', 'maxmemory', used + rng.randint(400, 800) * 1024)
        until = time.monotonic() + rng.uniform(1, 2)
        proof['fences_before'] = count_keys(client, site.namespace + ':f:*')
        proof['fences_least'] = proof['fences_before']
        number = 0
        while time.monotonic() < until:
            with client.pipeline(transaction=False) as pipeline:
                for _ in range(30):     # not more at once, because the buffers of commands count as used memory
                    number += 1
                    # with a time to live, so that every eviction policy may evict the key
                    pipeline.execute_command('SET', 'filler:%d' % number, 'x' * FILLER, 'EX', 60)
                pipeline.execute(raise_on_error=False)
            proof['fences_least'] = min(proof['fences_least'], count_keys(client, site.namespace + ':f:*'))
            time.sleep(0.005)
        proof['evicted'] = int(server.info('stats', 'evicted_keys')) - evicted
        server.call('CONFIG', 'SET', 'maxmemory', before[0])
        server.call('CONFIG', 'SET', 'maxmemory-policy', before[1])
        for first in range(1, number + 1, 1000):
            client.execute_command('UNLINK', *('filler:%d' % n for n in range(first, first + 1000)))
        client.close()


def count_keys(client, pattern):
    return sum(1 for _ in client.scan_iter(match=pattern, count=5000))


class ClockSteps(Fault):
    name = 'clock_steps'
    describe = "the clock of Redis's machine is stepped forward and back, by no more than the margin"
    options = {'clock': True}
    epoch = 'any'

    def do(self, site, rng, record):
        """Sets offsets between 0 and the margin only. So whenever a lease was computed, the clock falls behind by less than
        the margin after that."""
        server = site.redis
        most = 0.9 * site.margin
        steps = [0, most, 0, most] + [rng.uniform(0, most) for _ in range(rng.randint(2, 8))] + [0]
        record['proof']['most'] = most
        record['proof']['offsets'] = []
        for step in steps:
            server.step_clock(step)
            record['proof']['offsets'].append((step, server.clock_offset()))
            sleep(rng, 0.05, 0.5 * site.lease)


FAULTS = [
    RedisKilled('redis_kill9', None, 'kill -9 of Redis, which comes back empty'),
    RedisKilled('redis_kill9_rdb', 'rdb', 'kill -9 of Redis, which comes back with a snapshot that is some time old'),
    RedisKilled('redis_kill9_aof', 'aof', 'kill -9 of Redis with an append-only file (everysec)'),
    Forget('flushall', [('FLUSHALL',)], 'same', 'FLUSHALL, several times'),
    Forget('script_flush', [('SCRIPT', 'FLUSH')], 'same', 'SCRIPT FLUSH, several times'),
    Forget('function_flush', [('FUNCTION', 'FLUSH')], 'new', 'FUNCTION FLUSH: Redis loses the library and its variables'),
    ClientsKilled(),
    Eviction('volatile-lru'),
    Eviction('allkeys-lru'),
    ClockSteps(),
]
