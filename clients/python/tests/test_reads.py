"""Reads with Fences and AsyncFences, of one Redis and of a cluster: where values come from, and what is never served or put."""

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
import types
from decimal import Decimal

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import redis

from conftest import TIMEOUTS, wait_for
from servers import PostgresServer
from pgcache_fence import AsyncFences, Fences, Json, Raw, WrongKey, WrongUse, observe, wire

ROW = 'SELECT fence.row_version(version), owner FROM account WHERE id = %s'


def options_of(settings):
    """As libpq takes them."""
    return ' '.join('-c %s=%s' % each for each in settings.items())


class Blocking:
    """Fences, with a loop's interface: the tests below are written once."""

    def __init__(self, world, settings={}, **options):
        self.connection = world.connect(options=options_of(settings))
        self.fences = Fences(world.redis(), self.connection, **options)
        self.counters = self.fences.counters

    def __getattr__(self, name):
        return getattr(self.fences, name)

    def together(self, *calls):
        """Calls at the same time."""
        results, begin = [None] * len(calls), threading.Barrier(len(calls))

        def work(n):
            begin.wait()
            results[n] = calls[n]()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self):
        self.connection.close()


class Asynchronous:
    """AsyncFences in a loop of its own, called as if it were Fences."""

    def __init__(self, world, settings={}, **options):
        self.loop = asyncio.new_event_loop()

        async def make():
            self.pool = await asyncpg.create_pool(host=world.system.postgres.directory, port=world.system.postgres.PORT, user='postgres',
                                                  database='postgres', min_size=1, max_size=4, server_settings=settings)
            self.client = world.async_redis()
            return AsyncFences(self.client, self.pool, **options)
        self.fences = self.loop.run_until_complete(make())
        self.counters = self.fences.counters

    def __getattr__(self, name):
        method = getattr(self.fences, name)
        return lambda *arguments, **more: self.loop.run_until_complete(method(*arguments, **more))

    def together(self, *calls):
        real, self.loop = self.loop, None

        async def body():
            return await asyncio.gather(*(call() for call in calls))
        self.loop = real
        return self.loop.run_until_complete(body())

    def close(self):
        self.loop.run_until_complete(self.pool.close())
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


@pytest.fixture(params=[Blocking, Asynchronous])
def make(request, world):
    made = []

    def make_one(**options):
        made.append(request.param(world, **options))
        return made[-1]
    yield make_one
    for fences in made:
        fences.close()


@pytest.fixture
def fences(make):
    return make()


@pytest.fixture
def row(world):
    """The id of a row of one's own."""
    return world.sql("INSERT INTO account (id, owner) VALUES (%s, 'first') RETURNING id", (next(world.numbers),))[0][0]


def sources(fences, domain='account'):
    return fences.counters.snapshot()['reads'].get(domain, {})


def events(fences, domain='account'):
    return fences.counters.snapshot()['events'].get(domain, {})


def is_hit(fences, read):
    """Whether the value came from Redis."""
    before = sources(fences).get('hit', 0)
    read()
    return sources(fences).get('hit', 0) == before + 1


def owner(fences, id):
    value = fences.read('account', id)
    return value and value['owner']


def test_a_miss_becomes_a_hit_and_a_write_ends_it(world, fences, row):
    assert fences.read('account', row) == {'id': row, 'owner': 'first', 'balance': 100, 'version': 0}
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', row)), 'a hit')
    for text in ('second', 'third'):
        world.sql('UPDATE account SET owner = %s WHERE id = %s', (text, row))
        assert owner(fences, row) == text
        assert owner(fences, row) == text
    world.sql('DELETE FROM account WHERE id = %s', (row,))
    assert fences.read('account', row) is None
    assert sources(fences)['hit'] >= 1 and events(fences)['stored'] >= 1


def test_many_load_only_what_is_missed(world, fences, row):
    keys = [1, 2, 3, row, -1]
    world.next_read_is_put(3)
    fences.read_many('account', [1, 2])
    world.settled()
    fences.read_many('account', [1, 2])
    before = sources(fences)
    asked = []

    def load(connection, missed):
        asked.append(sorted(missed))
        return {3: (world.row_version(3), {'own': 3}), row: None}

    async def load_later(connection, missed):
        return load(connection, missed)
    found = fences.read_many('account', keys, load if isinstance(fences, Blocking) else load_later)
    assert found == {1: fences.read('account', 1), 2: fences.read('account', 2), 3: {'own': 3}, row: None, -1: None}
    assert asked == [[-1, 3, row]]
    assert sources(fences)['database'] == before.get('database', 0) + 3
    assert fences.read('account', 3) == {'own': 3}
    world.sql('UPDATE account SET balance = balance WHERE id IN (1, 3)')
    assert fences.read_many('account', [1, 3])[3]['owner'] == 'owner 3'
    assert fences.read_many('account', []) == {}
    assert list(fences.read_many('account', range(1, 181))) == list(range(1, 181))


def test_a_change_of_the_whole_table_leaves_its_fences_and_ends_them(world, fences):
    for read in (lambda: fences.read('account', 91), lambda: fences.read_many('account', [91])[91]):
        wait_for(lambda: is_hit(fences, read), 'a hit')
        world.sql('BEGIN; SET LOCAL pgcache_fence.bulk_threshold = 10; UPDATE account SET balance = balance + 1; COMMIT')
        name = world.name('account', 91)
        assert world.system.on_redis(name, 'EXISTS', name) == 1
        assert [read()['balance']] == [balance for balance, in world.sql('SELECT balance FROM account WHERE id = 91')]


def test_other_kinds_of_domains(world, fences, row):
    assert fences.read('seat', ('room 1', 3))['guest'] == 'guest'
    world.sql("INSERT INTO note VALUES (%s, 'note')", (row,))
    assert fences.read('note', row) == {'id': row, 'text': 'note'}
    assert [each['name'] for each in fences.read('member', 2)] == ['member 1', 'member 2', 'member 3']
    assert fences.read('member', row) == []
    for read, domain in ((lambda: fences.read('seat', ('room 1', 3)), 'seat'), (lambda: fences.read('note', row), 'note'),
                         (lambda: fences.read('member', row), 'member')):
        def hit():
            read()
            return sources(fences, domain).get('hit')
        wait_for(hit, 'a hit of ' + domain)
    world.sql("UPDATE note SET text = 'changed' WHERE id = %s", (row,))
    assert fences.read('note', row)['text'] == 'changed'
    world.sql("INSERT INTO member VALUES (%s, 'new')", (row,))
    assert fences.read('member', row) == [{'team': row, 'name': 'new'}]
    with pytest.raises(WrongUse, match='pass load='):
        fences.read('free', 'a')


def test_an_absence_that_is_cached(world, fences):
    id = next(world.numbers)
    assert fences.read('maybe', id) is None

    def absent():
        world.sql("SELECT fence.read('maybe', %s)", (id,))      # the library does not put an absence
        assert fences.read('maybe', id) is None
        return sources(fences, 'maybe').get('hit')
    wait_for(absent, 'a hit that there is no row')
    world.sql('INSERT INTO maybe VALUES (%s)', (id,))
    assert fences.read('maybe', id)['id'] == id


def test_what_was_read_before_a_write_is_not_put(world, fences, row):
    def load(connection, key):
        version = world.row_version(row)
        world.sql("UPDATE account SET owner = 'newer' WHERE id = %s", (row,))
        return version, {'owner': 'older'}

    fences.read('account', row, load)
    assert events(fences)['refused'] >= 1
    assert owner(fences, row) == 'newer'


def stored(world, id):
    """Whether Redis has a value of the row of account, current or not."""
    name = world.name('account', id)
    return '\n' in (world.system.on_redis(name, 'GET', name) or '')


def test_a_row_of_another_epoch_is_not_put(world, make, row):
    """A primary that was replaced still has the old rows, and its readers get permits from Redis."""
    fences, ended = make(local=10), world.row_version(row)
    for server in world.system.redis:
        server.kill9()
        server.start()
    wait_for(lambda: world.row_version(row) not in (None, ended), 'the next epoch', 60)
    for version in ('1-abcdef.5', ended):
        for value in ('older', 'older' * 2000):
            world.next_read_is_put(row)
            assert fences.read('account', row, lambda connection, key, read=(version, {'owner': value}): read) == {'owner': value}
            assert not stored(world, row)
    assert events(fences)['refused'] == 4 and 'stored' not in events(fences)
    assert not fences.fences._core.local.kept
    world.next_read_is_put(row)
    assert owner(fences, row) == 'first' and stored(world, row) and events(fences)['stored'] == 1


def test_rows_without_a_row_version_are_used_and_not_put(world, fences, row):
    keys = [61, row, 62]
    for key in keys:
        world.next_read_is_put(key)
    assert fences.read_many('account', keys, lambda connection, missed: {
        key: (None if key == row else world.row_version(key), {'own': key}) for key in missed}) == {key: {'own': key} for key in keys}
    assert events(fences)['kept_back'] == 1 and events(fences)['stored'] == 2
    assert [stored(world, key) for key in keys] == [True, False, True]
    assert owner(fences, row) == 'first' and 'waited' not in events(fences)
    world.sql('UPDATE account SET balance = balance WHERE id IN (61, 62)')


def test_values_of_one_instant(world, fences):
    keys = [('account', 11), ('account', 12), ('seat', ('room 2', 1))]
    world.sql('UPDATE account SET balance = 100 WHERE id IN (11, 12)')

    def balances():
        one, other, seat = fences.read_together(keys)
        assert seat['guest'] == 'guest'
        return one['balance'] + other['balance']

    def all_hits():
        assert balances() == 200
        return sources(fences).get('hit')
    wait_for(all_hits, 'hits')
    for n in range(10):
        world.sql('UPDATE account SET balance = balance + CASE id WHEN 11 THEN 1 ELSE -1 END WHERE id IN (11, 12)')
        assert balances() == 200
    world.sql('UPDATE account SET balance = balance + 7 WHERE id = 11')
    assert balances() == 207


def test_a_transaction_between_the_blocks_of_two_slots(clustered):
    fences, other = (Fences(clustered.redis(), clustered.connect) for _ in range(2))
    keys = [('account', 13), ('account', 14)]
    clustered.sql('UPDATE account SET balance = 100 WHERE id IN (13, 14)')

    def all_hits():
        return is_hit(other, lambda: other.read('account', 13)) and is_hit(other, lambda: other.read('account', 14))
    wait_for(all_hits, 'hits')
    exchange = fences._servers.exchange

    def one_after_the_other(requests):
        answers = []
        for request in requests:
            answers += exchange([request])
            if len(answers) == 1:
                fences._servers.exchange = exchange
                clustered.sql('UPDATE account SET balance = balance + CASE id WHEN 13 THEN 5 ELSE -5 END WHERE id IN (13, 14)')
                wait_for(all_hits, 'hits')
        return answers
    fences._servers.exchange = one_after_the_other
    assert [value['balance'] for value in fences.read_together(keys)] == [105, 95]


def test_derived_values(world, fences):
    world.sql('UPDATE account SET balance = 100 WHERE id IN (21, 22)')

    def hit():
        assert fences.derived('pair', 21, 22) == [100, 100]
        return sources(fences, 'pair').get('hit')
    wait_for(hit, 'a hit')
    world.sql('UPDATE account SET balance = 1 WHERE id = 22')
    assert fences.derived('pair', 21, 22) == [100, 1]


AMOUNT = '12345678901234567.89'
EXACT = {'n': Decimal(AMOUNT), 'd': Decimal('0.1'), 'i': 9223372036854775807, 'a': [Decimal('0.10'), 5, 'NaN', None],
         'j': {'deep': [Decimal('1.50'), 2, 'Infinity']}, 'b': '\\x00ff', 'at': '2024-02-29T12:00:00.5+00:00', 'v': '1 day 02:00:00'}
OWN_SETTINGS = {'TimeZone': 'Asia/Tokyo', 'DateStyle': 'German', 'bytea_output': 'escape', 'IntervalStyle': 'iso_8601', 'extra_float_digits': '-14'}


def exactly(value):
    """With the types of all that is in it."""
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


@pytest.fixture
def amount(world):
    """The id of a row of amount, which nobody has cached."""
    return world.sql("INSERT INTO amount VALUES (%s, %s, 0.1, 9223372036854775807, '{0.10,5,NaN,NULL}', '{\"deep\": [1.50, 2, \"Infinity\"]}', "
                     "'\\x00ff', '2024-02-29 12:00:00.5+00', '1 day 2 hours') RETURNING id", (next(world.numbers), AMOUNT))[0][0]


@pytest.mark.parametrize('settings', [{}, OWN_SETTINGS], ids=['plain', 'own_settings'])
def test_a_value_is_the_same_from_postgresql_and_from_redis(world, make, amount, settings):
    for version, read in enumerate((lambda fences: fences.read('amount', amount), lambda fences: fences.read_many('amount', [amount])[amount],
                                    lambda fences: fences.read_together([('amount', amount)])[0], lambda fences: fences.derived('total', amount))):
        fences, seen = make(settings=settings), {}

        def hit():
            value = exactly(read(fences))
            seen.setdefault('hit' if any('hit' in each for each in fences.counters.snapshot()['reads'].values()) else 'database', set()).add(value)
            return 'hit' in seen
        wait_for(hit, 'a hit')
        wanted = exactly({**EXACT, 'id': amount, 'version': version} if version < 3 else Decimal(AMOUNT))
        assert seen == {'database': {wanted}, 'hit': {wanted}}
        world.sql('UPDATE amount SET n = n WHERE id = %s', (amount,))
        world.settled()


def test_settings_of_a_transaction_stay(world):
    shown = 'SELECT name, setting FROM pg_settings ORDER BY name'
    with contextlib.closing(world.connect(options=options_of(OWN_SETTINGS))) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("SET LOCAL search_path = public, pg_temp; SET LOCAL TimeZone = 'Africa/Cairo'; " + shown)
        before = cursor.fetchall()
        reader = Fences(world.redis(), connection)
        assert reader.read('account', 98)['owner'] == 'owner 98' and len(reader.read('member', 4)) == 3
        assert sources(reader) == {'database': 1}
        cursor.execute(shown)
        assert cursor.fetchall() == before


def test_a_load_may_return_decimals(world, make, amount):
    value = {'n': Decimal(AMOUNT), 'e': Decimal('1E+3'), 'none': Decimal('NaN'), 'text': '"', 'd': 0.5}
    wanted = exactly({**value, 'none': 'NaN', 'd': Decimal('0.5')})
    fences = make()

    def load(connection, key):
        return world.sql('SELECT fence.row_version(version) FROM amount WHERE id = %s', (amount,))[0][0], value

    assert exactly(fences.read('amount', amount, load)) == wanted

    def hit():
        assert exactly(fences.read('amount', amount, load)) == wanted
        return sources(fences, 'amount').get('hit')
    wait_for(hit, 'a hit')
    with pytest.raises(TypeError, match='object cannot be JSON'):
        fences.read('amount', -1, lambda connection, key: ('1-a.1', object()))


def test_integers_of_any_length():
    for digits in (4300, 4301, 20000):
        assert str(Json.loads(b'[%s]' % (b'7' * digits))[0]) == '7' * digits
    with pytest.raises(ValueError):
        Json.loads(b'[')
    assert Json.dumps({'a': [Decimal('0.10'), 'x' * 32, Decimal('-Infinity')], 'b': Decimal('7')}) == \
        '{"a": [0.10, "%s", "-Infinity"], "b": 7}' % ('x' * 32)


def test_peek(world, fences, row):
    assert fences.peek('account', row) == (None, 'none')
    wait_for(lambda: fences.read('account', row) and fences.peek('account', row).freshness == 'fresh', 'a value')
    assert fences.peek('account', row).value['owner'] == 'first'


def test_large_values_and_other_codecs(world, make, row):
    fences = make(codec=Raw)
    payload = bytes(range(256)) * 400

    def load(connection, key):
        return world.row_version(row), payload
    assert fences.read('account', row, load) == payload
    wait_for(lambda: fences.read('account', row, load) == payload and sources(fences).get('hit'), 'a hit')
    assert events(fences)['stored'] >= 1
    assert world.system.on_redis(world.name('account', row), 'EXISTS', world.name('account', row)) == 1


def test_values_that_are_kept_are_checked(world, make, row):
    fences = make(local=3)

    def kept():
        assert owner(fences, row) == 'first'
        return sources(fences).get('local')
    wait_for(kept, 'a value that is kept')
    world.sql("UPDATE account SET owner = 'second' WHERE id = %s", (row,))
    assert owner(fences, row) == 'second'
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', row)), 'a hit')
    before = sources(fences)['local']
    fences.read_many('account', [row, 1])
    assert sources(fences)['local'] == before + 1
    world.sql("UPDATE account SET owner = 'third' WHERE id = %s", (row,))
    assert fences.read_many('account', [row, 1])[row]['owner'] == 'third'
    fences.read_many('account', range(1, 30))
    assert len(fences.fences._core.local.kept) <= 3


def test_many_readers_at_once_share_the_work(world, fences, row):
    world.next_read_is_put(row)
    world.sql('UPDATE account SET balance = 5 WHERE id = %s', (row,))
    world.settled()
    calls = []

    def load(connection, key):          # it takes until another reader waits for it
        calls.append(key)
        wait_for(lambda: 'waited' in events(fences), 'a reader that waits')
        return world.sql('SELECT fence.row_version(version), to_jsonb(a) FROM account a WHERE id = %s', (row,))[0]

    async def load_later(connection, key):
        return await asyncio.to_thread(load, connection, key)
    if isinstance(fences, Blocking):
        found = fences.together(*[lambda: fences.fences.read('account', row, load)] * 8)
    else:
        found = fences.together(*[lambda: fences.fences.read('account', row, load_later)] * 8)
    assert [value['balance'] for value in found] == [5] * 8
    assert len(calls) < 8 and events(fences)['waited'] >= 1


def test_a_reader_that_fails_keeps_nobody_waiting(world, fences, row):
    world.sql('UPDATE account SET balance = 6 WHERE id = %s', (row,))
    world.settled()

    def load(connection, key):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        fences.read('account', row, load)
    assert fences.read('account', row)['balance'] == 6
    assert 'waited' not in events(fences)


def test_a_reader_that_is_cancelled_keeps_nobody_waiting(world):
    async def body():
        fences = AsyncFences(world.async_redis(), lambda: psycopg.AsyncConnection.connect(world.system.postgres.dsn()))
        begun = asyncio.Event()

        async def load(connection, key):
            begun.set()
            await asyncio.sleep(60)
        task = asyncio.ensure_future(fences.read('account', 96, load))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while fences._left:
            await asyncio.sleep(0.001)
        await fences.read('account', 96)
        assert 'waited' not in events(fences)
    world.sql('UPDATE account SET balance = balance WHERE id = 96')
    world.settled()
    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_domain_that_is_attached_anew(world, fences):
    world.sql("CREATE TABLE moving (a int, b int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (a), UNIQUE (b)); ALTER TABLE moving ALTER b SET NOT NULL;"
              "INSERT INTO moving VALUES (1, 2), (2, 1); SELECT fence.attach('moving')")
    try:
        assert fences.read('moving', 1)['b'] == 2
        world.sql("SELECT fence.detach('moving'); SELECT fence.attach('moving', key => '{b}')")
        assert fences.read('moving', 1)['b'] == 1
        world.sql('ALTER TABLE moving RENAME TO moved')
        with contextlib.suppress(psycopg2.Error, asyncpg.PostgresError):
            fences.read('moving', 3)
        assert fences.read('moving', 3) is None
    finally:
        world.sql("SELECT fence.detach_domain('moving'); DROP TABLE IF EXISTS moving, moved")


@pytest.mark.parametrize('method', ['send_packed_command', 'read_response', 'connect'])
def test_whatever_the_client_raises_postgresql_is_read(world, make, row, method, monkeypatch):
    fences, fresh = make(local=10), make()
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', row)), 'a hit')

    def fail(*arguments, **options):
        raise TypeError('not what redis-py says')
    for kind in (redis.connection.Connection, redis.asyncio.connection.Connection):
        for name in {method, 'connect'}:            # none of the kept connections helps
            monkeypatch.setattr(kind, name, fail)
    for reader in [fresh] if method == 'connect' else [fences, fresh]:
        assert owner(reader, row) == 'first'
        assert reader.read_many('account', [row, 7])[row]['owner'] == 'first'
        assert [value['owner'] for value in reader.read_together([('account', row), ('account', 7)])] == ['first', 'owner 7']
        assert len(reader.derived('pair', 7, row)) == 2
        assert reader.peek('account', row).freshness == 'unavailable'
        assert set(sources(reader)) - {'hit', 'local'} == {'database'}
    monkeypatch.undo()
    wait_for(lambda: is_hit(fresh, lambda: fresh.read('account', row)), 'a hit')


def test_redis_that_is_gone(world, fences, row):
    assert owner(fences, row) == 'first'
    for server in world.system.redis:
        server.kill9()
    try:
        world.sql("UPDATE account SET owner = 'second' WHERE id = %s", (row,))
        for _ in range(3):
            assert owner(fences, row) == 'second'
        assert fences.read_many('account', [row, 1])[row]['owner'] == 'second'
        assert fences.read_together([('account', row)])[0]['owner'] == 'second'
        assert fences.peek('account', row).freshness == 'unavailable'
        assert events(fences)['unavailable'] >= 3
    finally:
        for server in world.system.redis:
            server.start()
    world.system.wait_open()
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', row)), 'a hit', 60)
    assert owner(fences, row) == 'second'


def test_errors_say_what_to_do(world, fences):
    with pytest.raises(WrongUse, match=r'no domain "nothing".*fence.attach'):
        fences.read('nothing', 1)
    with pytest.raises(WrongKey, match='convert it to the type'):
        fences.read('account', 1.5)
    for version in (5, 5.0, '5', b'6-3fa21c.5', '6.5', '6-3fa21c', '6-3fa21c.5 '):
        with pytest.raises(WrongUse, match=r'select fence.row_version\(version\) in the statement that reads the row'):
            fences.read('account', 1, lambda connection, key, version=version: (version, 'own'))


# ----------------------------------------------------------------------------------------------------------------------
# Connections
# ----------------------------------------------------------------------------------------------------------------------

def test_transactions_of_ones_own(single, row=31):
    connection = single.connect()
    fences = Fences(single.redis(), connection)
    connection.autocommit = False
    # nothing was written: the driver's transaction is over afterwards, and the value may be put
    single.sql('UPDATE account SET balance = 1 WHERE id = %s', (row,))
    single.settled()
    assert fences.read('account', row)['balance'] == 1
    assert connection.info.transaction_status == 0 and events(fences).get('stored', 0) + events(fences).get('refused', 0) == 1
    # what this transaction alone sees is not put, and its own transaction stays open
    single.sql('UPDATE account SET balance = 2 WHERE id = %s', (row,))
    single.settled()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE note SET text = text WHERE id = 1")
    assert fences.read('account', row)['balance'] == 2
    assert events(fences)['kept_back'] == 1 and connection.info.transaction_status == 2
    connection.rollback()
    # nor is what an old snapshot sees
    connection.set_session(isolation_level='REPEATABLE READ')
    with connection.cursor() as cursor:
        cursor.execute('SELECT 1')
    single.sql('UPDATE account SET balance = 4 WHERE id = %s', (row,))
    single.settled()
    assert fences.read('account', row)['balance'] == 2
    assert events(fences)['kept_back'] == 2
    connection.rollback()
    assert Fences(single.redis(), single.connect).read('account', row)['balance'] == 4
    connection.close()


def test_a_loader_that_writes(single, row=35):
    connection = single.connect()
    connection.autocommit = False
    fences = Fences(single.redis(), connection)

    def load(connection, key):
        with connection.cursor() as cursor:
            cursor.execute('UPDATE note SET text = text WHERE id = 1')
            cursor.execute(ROW, (key,))
            return cursor.fetchone()
    single.next_read_is_put(row)
    assert fences.read('account', row, load) == 'owner %d' % row
    assert events(fences) == {'kept_back': 1} and not stored(single, row)
    connection.close()


def test_a_primary_that_was_replaced(single, tmp_path):
    """It does not know that yet, and its own rows may be old."""
    replaced = PostgresServer(str(tmp_path / 'replaced'), single.system.postgres.bindir)
    single.sql('UPDATE account SET balance = 1 WHERE id = 36')
    replaced.copy_of(single.system.postgres)
    replaced.configure("unix_socket_directories = '%s'\npgcache_fence.redis_url = 'redis://127.0.0.1:1'\n" % replaced.directory)
    replaced.start()
    try:
        single.sql('UPDATE account SET balance = 2 WHERE id = 36')
        single.next_read_is_put(36)
        with contextlib.closing(psycopg2.connect(replaced.dsn())) as connection:
            fences = Fences(single.redis(), connection)
            assert fences.read('account', 36)['balance'] == 1
        assert events(fences) == {'kept_back': 1} and not stored(single, 36)
        assert Fences(single.redis(), single.connect).read('account', 36)['balance'] == 2
    finally:
        replaced.stop('immediate')


def test_drivers(single):
    """Cursors that return dicts, a function, and psycopg 3."""
    def read(source):
        single.next_read_is_put(33)
        single.sql('UPDATE account SET balance = 9 WHERE id = 33')
        single.settled()
        fences = Fences(single.redis(), source)
        assert fences.read('account', 33)['balance'] == 9
        assert events(fences) == {'stored': 1}

    dicts = psycopg2.connect(single.system.postgres.dsn(), cursor_factory=psycopg2.extras.RealDictCursor)
    read(dicts)
    read(lambda: dicts)
    third = psycopg.connect(single.system.postgres.dsn(), row_factory=psycopg.rows.dict_row)
    read(third)
    read(lambda: contextlib.nullcontext(third))
    assert third.info.transaction_status == 0
    dicts.close()
    third.close()


def test_asynchronous_drivers(single):
    async def read(source):
        single.next_read_is_put(34)
        single.sql('UPDATE account SET balance = 9 WHERE id = 34')
        single.settled()
        fences = AsyncFences(single.async_redis(), source)
        assert (await fences.read('account', 34))['balance'] == 9
        assert events(fences) == {'stored': 1}

    async def body():
        dsn = single.system.postgres.dsn()
        third = await psycopg.AsyncConnection.connect(dsn)
        await read(third)
        await read(lambda: contextlib.nullcontext(third))
        assert third.info.transaction_status == 0
        await third.close()
        await read(lambda: psycopg.AsyncConnection.connect(dsn))
        own = await asyncpg.connect(host=single.system.postgres.directory, user='postgres')
        await read(own)
        await own.close()
    asyncio.run(body())


def test_wrong_uses_raise(single, clustered):
    port = single.system.redis[0].port
    slave = redis.sentinel.SentinelConnectionPool('x', redis.sentinel.Sentinel([]), is_master=False, socket_timeout=1)
    for client, text in ((redis.Redis('127.0.0.1', port), 'socket_timeout'), (redis.Redis('127.0.0.1', port, db=1, socket_timeout=1), 'database 1'),
                         (redis.Redis(connection_pool=slave), 'replica'), (single.async_redis(), 'AsyncFences'), ({}, 'no client of redis-py'),
                         ([], 'one client'), ([clustered.redis(), single.redis()], 'one client')):
        with pytest.raises(WrongUse, match=text):
            Fences(client)
    with pytest.raises(WrongUse, match='give it to Fences'):
        AsyncFences(single.redis())
    with pytest.raises(WrongUse, match='pass postgres='):
        Fences(single.redis()).read('account', 1)
    with pytest.raises(WrongUse, match="namespace='other'"):
        Fences(single.redis(), single.connect, namespace='other').read('account', 1)


def test_a_standby_is_refused(single, tmp_path):
    standby = PostgresServer(str(tmp_path / 'standby'), single.system.postgres.bindir)
    standby.copy_of(single.system.postgres)
    (tmp_path / 'standby' / 'data' / 'standby.signal').touch()
    standby.configure("unix_socket_directories = '%s'" % standby.directory)
    standby.start()
    try:
        for load in (None, lambda connection, key: (single.row_version(92), 'old')):
            single.sql('UPDATE account SET balance = 1 WHERE id = 92')
            with contextlib.closing(psycopg2.connect(standby.dsn())) as connection, pytest.raises(WrongUse, match='standby'):
                Fences(single.redis(), connection).read('account', 92, load)
    finally:
        standby.stop('immediate')


def test_a_role_that_may_not_read(single):
    single.sql('CREATE ROLE stranger LOGIN; CREATE TABLE secret (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);'
               "SELECT fence.attach('secret'); CREATE TABLE mine (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);"
               "SELECT fence.attach('mine'); ALTER TABLE mine ENABLE ROW LEVEL SECURITY; GRANT SELECT ON mine TO stranger")
    connection = psycopg2.connect(single.system.postgres.dsn().replace('user=postgres', 'user=stranger'))
    fences = Fences(single.redis(), connection)
    for domain, why in (('secret', 'no SELECT'), ('mine', 'row-level security')):
        with pytest.raises(WrongUse, match=why):
            fences.read(domain, 1)
    connection.close()


def test_a_cluster_client_that_reads_from_replicas(clustered):
    """The library goes to the masters all the same."""
    fences = Fences(clustered.redis(read_from_replicas=True), clustered.connect)
    wait_for(lambda: fences.read('account', 41) and sources(fences).get('hit'), 'a hit')
    clustered.sql('UPDATE account SET balance = 55 WHERE id = 41')
    assert fences.read('account', 41)['balance'] == 55


def test_a_cancelled_task_leaves_no_answers_behind(single):
    async def body():
        fences = AsyncFences(single.async_redis(max_connections=2), single_connection)
        for n in range(200):
            task = asyncio.ensure_future(fences.read('account', 50 + n % 2))
            for _ in range(n % 12):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert (await fences.read('account', 60 + n % 3))['id'] == 60 + n % 3
        assert 'unavailable' not in events(fences)      # no connection was lost to the pool

    def single_connection():
        return psycopg.AsyncConnection.connect(single.system.postgres.dsn())
    asyncio.run(body())


def test_counters_for_collectors(single):
    import prometheus_client
    from pgcache_fence import PrometheusCollector
    fences = Fences(single.redis(), single.connect)
    single.next_read_is_put(70)
    fences.read('account', 70)
    registry = prometheus_client.CollectorRegistry()
    registry.register(PrometheusCollector(fences.counters))
    text = prometheus_client.generate_latest(registry).decode()
    assert 'pgcache_fence_client_reads_total{domain="account",source="database"} 1.0' in text
    assert 'pgcache_fence_client_events_total{domain="account",event="stored"} 1.0' in text
    assert json.dumps(fences.counters.snapshot())


def test_a_child_of_fork_has_connections_of_its_own(single):
    fences = Fences(single.redis(), single.connect)
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', 81)), 'a hit')
    [kept] = fences._servers.at(0).kept
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = fences.read('account', 82)['id'] == 82 and fences._servers.at(0).kept != [kept]
        finally:
            os._exit(0 if good else 1)
    for _ in range(50):
        assert fences.read('account', 81)['id'] == 81
    assert os.waitpid(child, 0)[1] == 0


def test_connections_that_redis_has_closed(world, fences, row):
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', row)), 'a hit')
    for server in world.system.redis:
        server.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
    world.system.wait_open()
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', row)), 'a hit')
    before = events(fences).get('unavailable', 0)
    for server in world.system.redis:
        server.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
    assert owner(fences, row) == 'first' and events(fences).get('unavailable', 0) == before


def test_reads_that_begin_together_share_a_check(single):
    def calls():
        return single.system.redis[0].info('commandstats', 'cmdstat_fcall_ro')['calls']

    async def body():
        fences = AsyncFences(single.async_redis(), lambda: psycopg.AsyncConnection.connect(single.system.postgres.dsn()), local=50)
        keys = range(101, 141)

        async def together():
            return await asyncio.gather(*(fences.read('account', key) for key in keys))

        async def one_by_one():                         # so each miss opens a connection when that of the one before is closed
            return [await fences.read('account', key) for key in keys]

        async def all_kept(read):
            before = sources(fences).get('local', 0)
            await read()
            return sources(fences).get('local', 0) == before + len(keys)
        while not await all_kept(one_by_one):
            await asyncio.sleep(0.01)
        before = calls()
        assert await all_kept(together)
        assert calls() - before <= 3
        single.sql('UPDATE account SET balance = 77 WHERE id = 101')
        found = await together()
        assert found[0]['balance'] == 77 and [value['id'] for value in found] == list(keys)
    asyncio.run(asyncio.wait_for(body(), 60))


def test_counters_for_opentelemetry(single, monkeypatch):
    """Its package is in no Debian: what is tested is what a meter is told."""
    class Observation(tuple):
        def __new__(cls, value, attributes):
            return super().__new__(cls, (value, attributes))

    class Meter:
        def create_observable_counter(self, name, callbacks, unit, description):
            observed[name] = callbacks[0]

    metrics = types.ModuleType('opentelemetry.metrics')
    metrics.Observation = Observation
    monkeypatch.setitem(sys.modules, 'opentelemetry', types.ModuleType('opentelemetry'))
    monkeypatch.setitem(sys.modules, 'opentelemetry.metrics', metrics)
    observed = {}
    fences = Fences(single.redis(), single.connect)
    observe(fences.counters, Meter())
    single.next_read_is_put(71)
    fences.read('account', 71)
    assert observed['pgcache_fence.client.reads'](None) == [(1, {'domain': 'account', 'source': 'database'})]
    assert observed['pgcache_fence.client.events'](None) == [(1, {'domain': 'account', 'event': 'stored'})]


@pytest.mark.parametrize('connected', [True, False])
@pytest.mark.parametrize('kind', [Blocking, Asynchronous])
def test_a_redis_that_hangs_costs_its_timeout_once(single, kind, connected):
    fences = kind(single)
    if connected:
        wait_for(lambda: is_hit(fences, lambda: fences.read('account', 95)), 'a hit')
    single.system.redis[0].pause()
    try:
        slow = 0
        for _ in range(20):
            begin = time.monotonic()
            assert fences.read('account', 95)['id'] == 95
            slow += time.monotonic() - begin > TIMEOUTS['socket_timeout'] * 0.9
        # Redis is tried again after a while, which a busy machine may reach several times
        assert 1 <= slow <= 10
    finally:
        single.system.redis[0].resume()
    wait_for(lambda: is_hit(fences, lambda: fences.read('account', 95)), 'a hit')
    fences.close()


def test_readers_that_a_rate_holds_back_get_the_row(world, fences):
    def held_back():
        """Makes 60 rows cold and reads them at once; whether Redis told the reader to wait."""
        before = events(fences).get('waited', 0)
        world.sql('UPDATE account SET balance = balance + 1 WHERE id BETWEEN 100 AND 159')
        world.settled()
        balances = dict(world.sql('SELECT id, balance FROM account WHERE id BETWEEN 100 AND 159'))
        begin = time.monotonic()
        found = fences.read_many('account', range(100, 160))
        assert time.monotonic() - begin < 10
        assert {key: row['balance'] for key, row in found.items()} == balances
        return events(fences).get('waited', 0) > before

    try:
        world.sql('ALTER SYSTEM SET pgcache_fence.warm_rate = 5')
        world.sql('SELECT pg_reload_conf()')
        wait_for(held_back, 'Redis to hold readers back')
    finally:
        world.sql('ALTER SYSTEM RESET pgcache_fence.warm_rate')
        world.sql('SELECT pg_reload_conf()')
        wait_for(lambda: not held_back(), 'Redis to hold nobody back')


def test_chance_names_the_key_that_redis_sees():
    names = ['fence:f:1.a:{%d}' % n for n in range(10)] + ['fence:f:1.b:{1}']
    named = set()
    for _ in range(500):
        words = wire.pack_block(0, names).packed.partition(b'fence_token')[2].decode().split('\r\n')
        fences = [word for word in words if word.startswith('fence:f:')]
        assert [wire.domain_of(fence) for fence in fences] == ['fence:f:1.a', 'fence:f:1.b']     # the order in which permits come
        named.update(fences)
    assert named == set(names)
