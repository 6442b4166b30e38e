"""The Python library before the history checker; conformance.md tells what is said.

    conformance.py [--async] [--local] [--replicas]

--async     AsyncFences, on asyncpg or psycopg, with several reads at a time; else Fences on psycopg2
--local     values are kept in the process
--replicas  the cluster client is one that reads from replicas
"""

import argparse
import asyncio
import contextlib
import contextvars
import json
import os
import random
import sys
import time

import asyncpg
import psycopg
import psycopg2
import redis
import redis.asyncio
import redis.cluster

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'clients', 'python', 'src'))

from pgcache_fence import AsyncFences, Fences, Raw                               # noqa: E402

ROW = 'SELECT fence.row_version(version), to_jsonb(item)::text FROM item WHERE id = '
TIMEOUTS = {'socket_timeout': 0.2, 'socket_connect_timeout': 0.2}
UNREACHABLE = (psycopg2.Error, psycopg.Error, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError,
               asyncio.TimeoutError, OSError)


asked = contextvars.ContextVar('asked')         # a list, not empty once this task has asked PostgreSQL


def clients(module, layout, addresses, replicas):
    """What Fences takes as redis."""
    places = [address.rpartition(':') for address in addresses.split(',')]
    if layout == 'cluster':
        kinds = redis.asyncio.cluster if module is redis.asyncio else redis.cluster
        return kinds.RedisCluster(startup_nodes=[kinds.ClusterNode(host, int(port), **(TIMEOUTS if module is redis.asyncio else {}))
                                                 for host, _, port in places], read_from_replicas=replicas, **TIMEOUTS)
    found = [module.Redis(unix_socket_path=address, **TIMEOUTS) if address.startswith('/') else module.Redis(host=host, port=int(port), **TIMEOUTS)
             for address, (host, _, port) in zip(addresses.split(','), places)]
    return found if layout == 'shards' else found[0]


class Program:
    """What both kinds share: where things are, and how answers look."""

    def __init__(self, options):
        self.options, self.fences, self.dsn, self.name = options, None, '', ''
        self.chance = random.Random()
        self.local = 16 if options.local else 0

    def redis(self, layout, addresses):
        self.layout, self.addresses, self.fences = layout, addresses, None
        return 'ok'

    def postgres(self, dsn, name):
        self.dsn, self.name, self.connection = dsn, name, None
        return 'ok'

    def make(self, kind, module, postgres):
        """None while no node of the cluster answers."""
        if self.fences is None:
            with contextlib.suppress(redis.RedisError, redis.exceptions.RedisClusterException):
                self.fences = kind(clients(module, self.layout, self.addresses, self.options.replicas), postgres, codec=Raw, local=self.local)
        return self.fences

    @staticmethod
    def text(*values):
        return '\t'.join(['read' if asked.get() else 'hit', *('null' if value is None else value.decode() if isinstance(value, bytes) else json.dumps(value) for value in values)])


class Threaded(Program):
    connection = None

    def connect(self):
        asked.get().append(True)
        if self.connection is None or self.connection.closed:
            self.connection = psycopg2.connect(self.dsn, application_name=self.name, connect_timeout=2)
            self.connection.autocommit = True
        return self.connection

    def load(self, connection, key):
        with connection.cursor() as cursor:
            cursor.execute(ROW + '%s', (key,))
            row = cursor.fetchone()
        return row and (row[0], row[1].encode())

    def load_many(self, connection, keys):
        return {key: self.load(connection, key) for key in keys}

    def old_snapshot(self, key):
        """A read in a transaction that has looked at the table before: what it finds must not be put."""
        connection = self.connect()
        connection.autocommit = False
        try:
            connection.set_session(isolation_level='REPEATABLE READ')
            self.load(connection, 1)
            time.sleep(self.chance.random() / 50)
            self.fences.read('item', key, self.chance.choice((None, self.load)), connection=connection)
        finally:
            connection.rollback()
            connection.set_session(isolation_level='DEFAULT')
            connection.autocommit = True

    def read(self, key):
        key = int(key)
        fences = self.make(Fences, redis, self.connect)
        if fences is None:
            row = self.load(self.connect(), key)
            return self.text(row and row[1])
        if self.chance.random() < 0.02:
            self.old_snapshot(key)
        asked.get().clear()
        if self.chance.random() < 0.2:
            others = [self.chance.randrange(1, 65) for _ in range(self.chance.randrange(12))]
            return self.text(fences.read_many('item', [*others, key], self.chance.choice((None, self.load_many)))[key])
        return self.text(fences.read('item', key, self.chance.choice((None, self.load))))

    def together(self, *keys):
        fences = self.make(Fences, redis, self.connect)
        if fences is None:
            return 'error\tno node of the cluster answers'
        return self.text(*fences.read_together([('item', int(key)) for key in keys]))

    def derived(self, *keys):
        fences = self.make(Fences, redis, self.connect)
        if fences is None:
            return 'error\tno node of the cluster answers'
        value = fences.derived('pair', *map(int, keys))
        if self.chance.random() < 0.5:              # among so many writers it would seldom be found again
            asked.get().clear()
            value = fences.derived('pair', *map(int, keys))
        return self.text(value)

    def answer(self, line):
        request, *words = line.rstrip('\n').split('\t')
        asked.set([])
        try:
            return getattr(self, request)(*words)
        except UNREACHABLE as error:
            with contextlib.suppress(Exception):
                self.connection.close()
            self.connection = None
            return 'error\t%s' % type(error).__name__

    def run(self):
        for line in sys.stdin:
            print(self.answer(line), flush=True)


class Asynchronous(Program):
    pool, idle = None, ()

    def postgres(self, dsn, name):
        self.pool, self.idle = None, []
        self.driver = self.chance.choice(('asyncpg', 'psycopg'))
        return super().postgres(dsn, name)

    @contextlib.asynccontextmanager
    async def connect(self):
        asked.get().append(True)
        if self.driver == 'psycopg':
            idle = self.idle
            connection = idle.pop() if idle else await psycopg.AsyncConnection.connect(self.dsn, application_name=self.name, connect_timeout=2)
            try:
                await connection.set_autocommit(self.chance.random() < 0.5)
                yield connection
            except BaseException:
                await connection.close()
                raise
            idle.append(connection)
            return
        if self.pool is None:
            place = dict(word.split('=') for word in self.dsn.split())
            self.pool = asyncpg.create_pool(host=place['host'], port=int(place['port']), user=place['user'], database=place['dbname'],
                                            min_size=0, max_size=4, timeout=2, command_timeout=20,
                                            server_settings={'application_name': self.name})
            await self.pool
        async with self.pool.acquire() as connection:
            yield connection

    async def load(self, connection, key):
        if hasattr(connection, 'fetch'):
            rows = await connection.fetch(ROW + '$1', key)
        else:
            rows = await (await connection.execute(ROW + '%s', (key,))).fetchall()
        return (rows[0][0], rows[0][1].encode()) if rows else None

    async def load_many(self, connection, keys):
        return {key: await self.load(connection, key) for key in keys}

    async def noise(self):
        """What else is read at the same time; now and then the task is cancelled."""
        asked.set([])
        key = self.chance.randrange(1, 65)
        reads = [self.fences.read('item', key), self.fences.read_many('item', range(key, key + 5)), self.fences.peek('item', key)]
        chosen = reads.pop(self.chance.randrange(3))
        for other in reads:
            other.close()
        task = asyncio.ensure_future(chosen)
        if self.chance.random() < 0.05:
            await asyncio.sleep(self.chance.random() / 500)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, *UNREACHABLE):
            await task

    async def read(self, key):
        key = int(key)
        if self.make(AsyncFences, redis.asyncio, self.connect) is None:
            return 'error\tno node of the cluster answers'
        if self.chance.random() < 0.2:
            wanted = self.fences.read_many('item', [key, 1, 2, 3], self.chance.choice((None, self.load_many)))
            value = (await asyncio.gather(wanted, self.noise()))[0][key]
        else:
            wanted = self.fences.read('item', key, self.chance.choice((None, self.load)))
            value = (await asyncio.gather(wanted, *(self.noise() for _ in range(self.chance.randrange(4)))))[0]
        return self.text(value)

    async def together(self, *keys):
        if self.make(AsyncFences, redis.asyncio, self.connect) is None:
            return 'error\tno node of the cluster answers'
        wanted = self.fences.read_together([('item', int(key)) for key in keys])
        return self.text(*(await asyncio.gather(wanted, self.noise()))[0])

    async def derived(self, *keys):
        if self.make(AsyncFences, redis.asyncio, self.connect) is None:
            return 'error\tno node of the cluster answers'
        value = await self.fences.derived('pair', *map(int, keys))
        if self.chance.random() < 0.5:
            asked.get().clear()
            value = await self.fences.derived('pair', *map(int, keys))
        return self.text(value)

    async def answer(self, line):
        request, *words = line.rstrip('\n').split('\t')
        asked.set([])
        try:
            answer = getattr(self, request)(*words)
            return answer if isinstance(answer, str) else await answer
        except UNREACHABLE as error:
            return 'error\t%s' % type(error).__name__

    async def run(self):
        loop = asyncio.get_running_loop()
        while True:
            line = await loop.run_in_executor(None, sys.stdin.readline)
            if not line:
                return
            print(await self.answer(line), flush=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ('async', 'local', 'replicas'):
        parser.add_argument('--' + name, action='store_true')
    options = parser.parse_args()
    print('ready\tread\ttogether\tderived', flush=True)
    if vars(options)['async']:
        asyncio.run(Asynchronous(options).run())
    else:
        Threaded(options).run()


main()
