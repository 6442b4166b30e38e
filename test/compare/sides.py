"""A PostgreSQL server with two databases, which capture changed rows in different ways, and a Redis server. Runs the same
statements in both databases and returns the results of each in a form that can be compared.

Owns: the two servers and their directory.
"""

import concurrent.futures
import io
import os
import re
import socket
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'history'))

import psycopg2                                                                 # noqa: E402
import psycopg2.extensions                                                      # noqa: E402

from fence_site import postgres_bindir, read_place                              # noqa: E402
from servers import PostgresServer, RedisServer, wait_for                       # noqa: E402

# Nothing is hashed, because the values of an enum have other oids in the other database, so rows would come in another order.
SETTINGS = '''
listen_addresses = ''
fsync = off
autovacuum = off
enable_hashjoin = off
enable_hashagg = off
max_worker_processes = 16
shared_preload_libraries = 'pgcache_fence'
log_min_error_statement = panic
log_min_messages = log
log_line_prefix = '%m [%p] %d '
pgcache_fence.audit_rate = 0
pgcache_fence.fill_lease = 0
pgcache_fence.lease = '10s'
pgcache_fence.timeout = '10s'
pgcache_fence.patrol_interval = '100ms'
pgcache_fence.patrol_grace = '1h'
# buckets open at moments of their own, and the sides would cache and reserve different rows
pgcache_fence.watch_buckets = 0
'''
STATEMENT_SECONDS = 60
WAYS = {'auto': 'executor', 'triggers': 'triggers'}

# bytea values stay the text that the server sends. psycopg2's own object would print its address.
psycopg2.extensions.register_type(psycopg2.extensions.new_type((17,), 'BYTEA', lambda value, cursor: value))

# All tombstones, floors and domains, in an order that depends only on the rows
STATE = '''
SELECT 'tombstone', d.name, t.key || ' ' || t.version FROM fence.tombstone t JOIN fence.domain d ON d.id = t.domain_id
UNION ALL SELECT 'floor', d.name, f.version::text FROM fence.floor f JOIN fence.domain d ON d.id = f.domain_id
UNION ALL SELECT 'domain', domain, relation::text FROM fence.domains
'''
# Rows of the log in their order. The ids themselves may differ, because a statement that fails gives none back.
LOG = '(SELECT row_number() OVER (ORDER BY id) AS n, what FROM w.log)'
TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'w'::regnamespace AND relkind = 'r' ORDER BY 1"


class Side:
    """One of the databases, with its sessions and its reservations."""

    def __init__(self, pair, name):
        self.pair, self.name = pair, name
        self.control = self.connect()
        self.query('CREATE EXTENSION pgcache_fence')
        self.prefix = self.query("SELECT fence.fence_prefix('')")[0][0].split(':f:')[1].replace('%00', '')
        self.sessions = []
        self.told = dict.fromkeys(WAYS.values(), 0)

    def connect(self, application=''):
        connection = psycopg2.connect(self.pair.postgres.dsn(self.name), connect_timeout=30, application_name=application,
                                      options='-c statement_timeout=%ds -c client_min_messages=notice' % STATEMENT_SECONDS)
        connection.autocommit = True
        return connection

    def query(self, sql):
        with self.control.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else None

    def end(self):
        """Terminates the sessions, whatever they are doing or waiting for."""
        sessions = "SELECT %s FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'compared'"
        self.query(sessions % 'pg_terminate_backend(pid)')
        wait_for(lambda: not self.query(sessions % 'pid'), 'sessions to end')
        self.sessions = []

    def begin(self, prepared):
        """Opens two new sessions."""
        self.end()
        self.sessions = [self.connect('compared'), self.connect('compared')]
        for n in (0, 1):
            for text in ['SET search_path = w', *prepared]:
                self.run((n, text, None))

    def run(self, step):
        """Runs a step. Returns SQLSTATE and message, or the command's tag and the sorted rows, and the notices."""
        session, text, data = step
        connection = self.sessions[session]
        connection.notices.clear()
        rows = None
        with connection.cursor() as cursor:
            try:
                if data is None:
                    cursor.execute(text)
                else:
                    cursor.copy_expert(text, io.StringIO(data))
                if cursor.description and not text.startswith('EXPLAIN'):
                    rows = sorted(map(repr, cursor.fetchall()))
                said = cursor.statusmessage
            except psycopg2.Error as error:
                said = '%s: %s' % (error.pgcode, (error.diag.message_primary or str(error)).replace(self.prefix, '<database>.'))
                if connection.closed:
                    raise RuntimeError('%s has lost its session in: %s' % (self.name, text)) from error
        return said, rows, list(connection.notices)

    def failed(self, session):
        """Whether the transaction of the session has failed and waits for its ROLLBACK."""
        return self.sessions[session].info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR

    def way(self):
        """What captures changed rows: the executor or triggers."""
        return self.query('SELECT capture FROM fence.state')[0][0]

    def count_told(self):
        """Adds the changed rows of the world that has run. The next world detaches its tables, and their counters go with them."""
        for way in self.told:
            self.told[way] += self.query("SELECT coalesce(sum(value), 0)::bigint FROM fence.metrics "
                                         "WHERE name = 'cache_fence_changed_rows_total' AND labels ->> 'way' = '%s'" % way)[0][0]

    def is_blocked(self, session):
        pid = self.sessions[session].info.backend_pid
        return self.query('SELECT pg_blocking_pids(%d) <> ARRAY[]::int[]' % pid)[0][0]

    def state(self):
        tables = [row[0] for row in self.query(TABLES)]
        parts = ["SELECT 'row', '%s', to_jsonb(x)::text FROM %s x" % (t, LOG if t == 'w.log' else 'ONLY ' + t) for t in tables]
        return sorted(self.query(' UNION ALL '.join([STATE, *parts])))


class Pair:
    def __init__(self, directory, captures):
        self.redis = RedisServer(os.path.join(directory, 'redis'), ['save ""'])
        self.postgres = PostgresServer(os.path.join(directory, 'pg'), postgres_bindir())
        self.captures = captures
        self.threads = concurrent.futures.ThreadPoolExecutor(4)

    def start(self):
        self.redis.start()
        self.postgres.initdb()
        self.postgres.configure(SETTINGS + read_place() + "pgcache_fence.redis_url = 'unix://%s'\n" % self.redis.socket)
        self.postgres.start()
        self.postgres.query('CREATE ROLE cmp_user')
        self.sides = []
        for name, capture in zip(('first', 'other'), self.captures):
            self.postgres.query('CREATE DATABASE ' + name)
            self.postgres.query("ALTER DATABASE %s SET pgcache_fence.capture = '%s'" % (name, capture))
            self.sides.append(Side(self, name))
        self.monitor = Monitor(self.redis.socket)
        wait_for(lambda: self.sides[0].query('SELECT state FROM fence.state')[0][0] == 'OPEN', 'the fences to open')
        for side, capture in zip(self.sides, self.captures):
            wait_for(lambda side=side, capture=capture: side.way() == WAYS[capture], 'changed rows to be told by: ' + WAYS[capture])

    def stop(self):
        self.postgres.stop('immediate')
        self.redis.stop()

    # ------------------------------------------------------------------------------------------------------------------
    # Messages to Redis
    # ------------------------------------------------------------------------------------------------------------------

    def settle(self):
        """Waits until no reservation is left."""
        wait_for(lambda: not any(side.query('SELECT 1 FROM fence.pending') for side in self.sides), 'reservations to end')

    def asked(self):
        """For each side the requests to Redis since the last call: rows reserved, domains reserved, rows stored."""
        found = [(set(), set(), []) for _ in self.sides]
        of = {side.prefix: n for n, side in enumerate(self.sides)}

        def put(kind, name, *more):
            match = re.match(r'(?:[^:]+:f:)?(\w+\.)(.*)', name)
            n = of.get(match.group(1))
            if n is None:
                return
            if kind == 2:
                found[n][2].append((match.group(2), *more))
            else:
                found[n][kind].add(match.group(2))
        mark = 'settled %d' % time.monotonic_ns()
        self.redis.call('ECHO', mark)
        for words in self.monitor.until(mark):
            if words[0] != 'FCALL':
                continue
            if words[1] == 'fence_write':
                for fence in words[6:6 + int(words[5].partition('#')[0])]:    # n[echo]
                    put(0, fence)
            elif words[1] == 'fence_domain_reserve':
                put(1, words[4])
            elif words[1] == 'fence_store':
                for i in range(6, 6 + 5 * int(words[5]), 5):
                    put(2, words[i], words[i + 2], words[i + 3], words[i + 4])
        return [(rows, domains, sorted(stored)) for rows, domains, stored in found]

    def cached(self):
        """For each side its fences, without token and stamp."""
        found = [{} for _ in self.sides]
        with self.redis.client() as client:
            for n, side in enumerate(self.sides):
                prefix = 'fence:f:' + side.prefix
                for key in client.scan_iter(match=prefix + '*', count=1000):
                    value = client.get(key)
                    if value is not None:
                        head, _, payload = value.partition('\n')
                        found[n][key[len(prefix):]] = (head.split(' ')[1], payload)
        return found


class Monitor:
    """The commands that Redis receives, as lists of words."""

    WORD = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(30)
        self.socket.sendall(b'MONITOR\r\n')
        self.rest = ''

    def until(self, mark):
        while True:
            line, found, self.rest = self.rest.partition('\r\n')
            if not found:
                self.rest = line + self.socket.recv(1 << 16).decode('latin-1')
                continue
            words = self.WORD.findall(line.partition(']')[2])
            if mark in words:
                return
            if words:
                yield words
