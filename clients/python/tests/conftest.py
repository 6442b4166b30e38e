"""Servers for the tests: PostgreSQL with the extension and Redis, one or a cluster, from the project's own scripts.

They are started by `sh test/run.sh --only python`, which sets what the environment must tell (test/clients/system.py).
"""

import contextlib
import itertools
import os
import sys

import psycopg2
import pytest
import redis
import redis.asyncio

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'src'))
sys.path.insert(0, os.path.join(HERE, '..', '..', '..', 'test', 'clients'))

from system import System, wait_for                             # noqa: E402

TABLES = '''
CREATE TABLE account (id bigint PRIMARY KEY, owner text NOT NULL, balance int NOT NULL DEFAULT 100,
                      version bigint NOT NULL DEFAULT 0);
INSERT INTO account SELECT g, 'owner ' || g FROM generate_series(1, 200) g;
SELECT fence.attach('account');
CREATE TABLE seat (room text, row int, guest text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room, row));
INSERT INTO seat SELECT 'room ' || r, n, 'guest' FROM generate_series(1, 3) r, generate_series(1, 10) n;
SELECT fence.attach('seat', tag => 'room/{room}');
CREATE TABLE note (id int PRIMARY KEY, text text);
INSERT INTO note SELECT g, 'note' FROM generate_series(1, 20) g;
SELECT fence.attach('note', version => NULL);
CREATE TABLE maybe (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('maybe', cache_absent => true);
CREATE TABLE member (team int, name text, PRIMARY KEY (team, name));
INSERT INTO member SELECT t, 'member ' || n FROM generate_series(1, 5) t, generate_series(1, 3) n;
SELECT fence.attach('member', scope => 'group', key => '{team}');
SELECT fence.attach(NULL, domain => 'free', scope => 'manual');
CREATE FUNCTION pair(a bigint, b bigint) RETURNS jsonb STABLE LANGUAGE sql
    BEGIN ATOMIC SELECT jsonb_agg(balance ORDER BY id) FROM account WHERE id IN (a, b); END;
CREATE TABLE amount (id int PRIMARY KEY, n numeric, d float8, i int8, a numeric[], j jsonb, b bytea, at timestamptz, v interval,
                     version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('amount');
CREATE FUNCTION total(which int) RETURNS jsonb STABLE LANGUAGE sql BEGIN ATOMIC SELECT to_jsonb(n) FROM amount WHERE id = which; END;
SELECT fence.define_derived('total', '{amount($1)}', 'total(integer)');
SELECT fence.define_derived('pair', '{account($1),account($2)}', 'pair(bigint, bigint)');
'''

TIMEOUTS = {'socket_timeout': 0.5, 'socket_connect_timeout': 0.5}


class World:
    """A system, and what tests do to it."""

    def __init__(self, system):
        self.system, self.cluster = system, system.cluster
        self.sql = system.sql
        self.numbers = itertools.count(1000)        # each test has rows of its own

    def connect(self, **options):
        connection = psycopg2.connect(self.system.postgres.dsn(), **options)
        connection.autocommit = True
        return connection

    def redis(self, module=redis, **options):
        port = self.system.redis[0].port
        if not self.cluster:
            return module.Redis(host='127.0.0.1', port=port, **{**TIMEOUTS, **options})
        return module.cluster.RedisCluster(host='127.0.0.1', port=port, **{**TIMEOUTS, **options})

    def async_redis(self, **options):
        return self.redis(redis.asyncio, **options)

    def name(self, domain, *key):
        """As PostgreSQL tells it."""
        return self.sql('SELECT fence.fence_key(%s, VARIADIC %s::text[])', (domain, [str(value) for value in key]))[0][0]

    def row_version(self, id):
        """Of a row of account."""
        return self.sql('SELECT fence.row_version(version) FROM account WHERE id = %s', (id,))[0][0]

    def settled(self):
        """The last commit has ended in Redis too."""
        wait_for(lambda: not self.sql('SELECT FROM fence.pending'), 'the last write to end')

    def next_read_is_put(self, id):
        """Readers have missed the row of account lately, so Redis lets the next one put it (pgcache_fence.watch_buckets)."""
        wait_for(lambda: self.sql("SELECT source FROM fence.try_read('account', %s)", (str(id),)) == [('cache',)], 'the row is cached')
        self.sql('UPDATE account SET balance = balance WHERE id = %s', (id,))
        self.settled()

    def becomes(self, read, wanted, what='a hit'):
        wait_for(lambda: read() == wanted, what)


@contextlib.contextmanager
def running(directory, cluster):
    system = System(str(directory), cluster)
    try:
        system.start()
        system.sql(TABLES)
        yield World(system)
    except BaseException:
        system.show_logs()
        raise
    finally:
        system.stop()


@pytest.fixture(scope='session')
def single(tmp_path_factory):
    with running(tmp_path_factory.mktemp('single'), False) as world:
        yield world


@pytest.fixture(scope='session')
def clustered(tmp_path_factory):
    with running(tmp_path_factory.mktemp('cluster'), True) as world:
        yield world


@pytest.fixture(params=['single', 'clustered'])
def world(request):
    """Each test once with one Redis, once with a cluster."""
    return request.getfixturevalue(request.param)
