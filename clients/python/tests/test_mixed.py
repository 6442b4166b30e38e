"""Answers that belong to another question: late ones, those of another key, those that a cancelled task has left behind. The library
notices, closes the connection and reads PostgreSQL (rules K and N of doc/protocol.md)."""

import asyncio
import contextlib
import random
import socket
import threading
import time

import asyncpg
import pytest
import redis
import redis.asyncio

from conftest import TIMEOUTS, wait_for
from pgcache_fence import AsyncFences
from pgcache_fence.wire import MULTI
from test_reads import Asynchronous, Blocking, events, is_hit

MANY = list(range(31, 51))


def value_of(file):
    """The bytes of one value of the protocol, as they come."""
    line = file.readline()
    if not line:
        raise ConnectionError
    n = int(line[1:]) if line[:1] in b'*$' else -1
    if line[:1] == b'*':
        return line + b''.join(value_of(file) for _ in range(n))
    return line + (file.read(n + 2) if n >= 0 else b'')


class Proxy:
    """Between clients and Redis. late(n): from now on each connection answers every command with the answer to the n-th before.
    delay: seconds before each answer, but before OK and QUEUED in a block there is none. open: while it is not set, no answer comes."""

    def __init__(self, port, delay=0.0):
        self.target, self.delay, self.lag = port, delay, 0
        self.asked, self.open = 0, threading.Event()
        self.open.set()
        self.listener = socket.create_server(('127.0.0.1', 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def late(self, n):
        self.lag = n

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        said, in_block = [], False
        with contextlib.suppress(OSError, ValueError), client, socket.create_connection(('127.0.0.1', self.target)) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            questions, answers = client.makefile('rb'), server.makefile('rb')
            while True:
                asked = value_of(questions)
                self.asked += 1
                server.sendall(asked)
                said.append(value_of(answers))
                in_block = in_block and not said[-1].startswith(b'*') or asked == MULTI
                if not in_block:
                    time.sleep(self.delay)
                self.open.wait()
                client.sendall(said[-1 - self.lag] if len(said) > self.lag else said[-1])
                del said[:-10]

    def close(self):
        self.listener.close()


@pytest.fixture
def proxy(single):
    made = Proxy(single.system.redis[0].port)
    yield made
    made.close()


class Behind:
    """The world, but its Redis is behind the proxy."""

    def __init__(self, world, proxy):
        self.system, self.connect, self.proxy = world.system, world.connect, proxy

    def redis(self, **options):
        return redis.Redis(host='127.0.0.1', port=self.proxy.port, **TIMEOUTS, **options)

    def async_redis(self, **options):
        return redis.asyncio.Redis(host='127.0.0.1', port=self.proxy.port, **TIMEOUTS, **options)


@pytest.fixture(params=[Blocking, Asynchronous])
def fences(request, single, proxy):
    made = request.param(Behind(single, proxy), local=0)
    yield made
    made.close()


def becomes_hit(fences, id):
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', id)), 'a hit')


def test_a_late_answer_of_another_key(single, proxy, fences, caplog):
    for id in (31, 32):
        becomes_hit(fences, id)
    fences.read('account', 31)
    proxy.late(4)
    assert fences.read('account', 32)['id'] == 32
    assert 'another question' in caplog.text
    proxy.late(0)
    assert is_hit(fences, lambda: fences.read('account', 32))           # over a new connection


def test_a_late_answer_of_the_same_key(single, proxy, fences):
    row = single.sql("INSERT INTO account (id, owner) VALUES (%s, 'old') RETURNING id", (next(single.numbers),))[0][0]
    becomes_hit(fences, row)
    fences.read('account', row)
    proxy.late(4)
    single.sql("UPDATE account SET owner = 'new' WHERE id = %s", (row,))
    assert fences.read('account', row)['owner'] == 'new'


def test_late_answers_to_every_question(single, proxy, fences):
    """Whatever the answers are late by, and whatever is asked: every value is right."""
    pair = [('account', 33), ('note', 3)]
    wanted = [fences.read('account', 33), fences.read('note', 3)]
    assert fences.derived('pair', 33, 34) == [100, 100]
    for lag in (1, 2, 3, 4, 5, 8):
        for _ in range(3):
            proxy.late(lag)
            assert {key: row['id'] for key, row in fences.read_many('account', MANY).items()} == {key: key for key in MANY}
            assert fences.read_together(pair) == wanted
            assert fences.derived('pair', 33, 34) == [100, 100]
            assert fences.read('account', 35)['id'] == 35
            assert fences.peek('account', 36).value in (None, fences.read('account', 36))
            proxy.late(0)
            assert fences.read('account', 37)['id'] == 37


@pytest.mark.parametrize('kind', [Blocking, Asynchronous])
def test_a_late_check_of_a_kept_value(single, proxy, kind):
    fences = kind(Behind(single, proxy), local=100)
    row = single.sql("INSERT INTO account (id, owner) VALUES (%s, 'old') RETURNING id", (next(single.numbers),))[0][0]
    becomes_hit(fences, row)
    wait_for(lambda: fences.read('account', row) and fences.counters.snapshot()['reads']['account'].get('local'), 'a kept value')
    fences.read('account', row)
    proxy.late(1)
    single.sql("UPDATE account SET owner = 'new' WHERE id = %s", (row,))
    assert fences.read('account', row)['owner'] == 'new'
    proxy.late(0)
    fences.close()


def test_a_record_of_another_key(world):
    """Only its name tells that the record is another row's: token and nonce are right."""
    for kind in (Blocking, Asynchronous):
        fences = kind(world)
        for id in (38, 39):
            becomes_hit(fences, id)
        names = [world.name('account', id) for id in (38, 39)]
        record = world.system.on_redis(names[1], 'GET', names[1])
        world.system.on_redis(names[0], 'SET', names[0], record)
        assert fences.read('account', 38)['id'] == 38
        assert fences.read_many('account', [38, 39])[38]['id'] == 38
        assert fences.read_together([('account', 38), ('account', 39)])[0]['id'] == 38
        assert fences.peek('account', 38).freshness == 'unavailable'
        world.sql('UPDATE account SET balance = balance WHERE id = 38')
        assert fences.read('account', 38)['id'] == 38
        fences.close()


def test_a_large_value_names_its_key(world):
    for n, kind in enumerate((Blocking, Asynchronous)):
        fences = kind(world)
        row = world.sql("INSERT INTO account (id, owner) VALUES (%s, repeat('x', 10000)) RETURNING id", (next(world.numbers),))[0][0]
        becomes_hit(fences, row)
        assert events(fences).get('stored', 0) > 0, n
        assert world.system.on_redis(world.name('account', row), 'GET', world.name('account', row)).split('\n')[0].endswith(' {%d}' % row)
        fences.close()


def test_a_task_that_is_cancelled_while_it_connects(single, proxy):
    """The new connection owes the answer to what redis-py says first. Nobody may use it before that has come."""
    async def body():
        client = redis.asyncio.Redis(host='127.0.0.1', port=proxy.port, client_name='cancelled', socket_timeout=10, socket_connect_timeout=10)
        server = single.system.postgres
        pool = await asyncpg.create_pool(host=server.directory, port=server.PORT, user='postgres', database='postgres', min_size=1, max_size=2)
        fences = AsyncFences(client, pool)
        await fences.describe('account')
        proxy.open.clear()
        first = asyncio.ensure_future(fences.read('account', 31))
        while proxy.asked < 1:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(fences.read('account', 32))
        while proxy.asked < 2:
            await asyncio.sleep(0.001)
        proxy.open.set()
        assert (await second)['id'] == 32
        await client.close()
        await pool.close()
        return fences.counters.snapshot()['events'].get('account', {})
    assert not {'unavailable'} & set(asyncio.run(asyncio.wait_for(body(), 60)))


@pytest.mark.parametrize('local', [0, 20])
def test_tasks_that_are_cancelled_at_random(single, local):
    """What a cancelled task has asked is answered later. Nobody may take that for an answer to another question."""
    proxy, chance = Proxy(single.system.redis[0].port, delay=0.002), random.Random(7)
    done = {'read': 0, 'cancelled': 0}

    async def reads(fences, deadline):
        while min(done.values()) < 300 and time.monotonic() < deadline:
            id = chance.choice(MANY)
            many = chance.sample(MANY, 3)
            task = asyncio.ensure_future(fences.read('account', id) if chance.random() < 0.7 else fences.read_many('account', many))
            try:
                row = await asyncio.wait_for(task, chance.choice([None, chance.uniform(0, 0.01)]))
            except asyncio.TimeoutError:
                done['cancelled'] += 1
                continue
            done['read'] += 1
            if 'id' in row:
                assert row['id'] == id
            else:
                assert {key: each['id'] for key, each in row.items()} == {key: key for key in many}

    async def body():
        async with contextlib.AsyncExitStack() as stack:
            server = single.system.postgres
            pool = await stack.enter_async_context(asyncpg.create_pool(host=server.directory, port=server.PORT, user='postgres', database='postgres',
                                                                       min_size=1, max_size=8))
            # with a name, which each new connection tells Redis first
            client = redis.asyncio.Redis(host='127.0.0.1', port=proxy.port, client_name='cancelled', socket_timeout=10, socket_connect_timeout=10)
            fences = AsyncFences(client, pool, local=local)
            await asyncio.gather(*(reads(fences, time.monotonic() + 60) for _ in range(40)))
            await client.close()
            return fences
    fences = asyncio.run(body())
    proxy.close()
    assert min(done.values()) >= 300, done
    counted = fences.counters.snapshot()
    assert counted['reads']['account'].get('local' if local else 'hit', 0) > 50, counted
    assert not {'unavailable'} & set(counted['events'].get('account', {})), counted
