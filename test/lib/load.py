#!/usr/bin/python3
# load.py - writers and readers of a fenced table, which go on whatever happens to the servers. It judges every read.
#
# usage: load.py REDIS_SOCKET CONNINFO TABLE KEYS
#
# The table has the columns id (1 to KEYS, fenced), n and version. Two threads write: each owns half of the keys, so that
# it knows the version of its last acknowledged commit. Three read from Redis as doc/clients.md says (on a miss they read
# PostgreSQL and put), one with fence.read. A hit is stale if its version is below one whose commit was acknowledged
# before the read began. The program answers each line on standard input with one line of JSON, which has the counts since
# the last answer. It ends at the end of its input.

import collections
import json
import random
import sys
import threading
import time

import psycopg2
import redis

import strong

PAUSE = 0.005


class Load:
    def __init__(self, path, conninfo, table, keys):
        self.path, self.conninfo, self.table, self.keys = path, conninfo, table, keys
        self.acknowledged = [0] * (keys + 1)
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.counts = collections.Counter()
        self.stale = []
        with psycopg2.connect(conninfo) as connection, connection.cursor() as cursor:
            cursor.execute('SELECT array_agg(fence.fence_key(%s, id::text) ORDER BY id) FROM generate_series(1, %s) id', (table, keys))
            self.fences = [None] + cursor.fetchone()[0]

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def judge(self, key, floor, version, how):
        if version < floor:
            with self.lock:
                self.stale.append('%s: key %d has version %d, %d was committed' % (how, key, version, floor))

    def sql(self, cursor_of, statement, values):
        """The row, or None if the server is down or has raised an error. cursor_of: a list with the thread's connection."""
        try:
            if not cursor_of:
                connection = psycopg2.connect(self.conninfo)
                connection.autocommit = True
                cursor_of.append(connection)
            with cursor_of[0].cursor() as cursor:
                cursor.execute(statement, values)
                return cursor.fetchone()
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            cursor_of.clear()
            self.count('disconnected')
            time.sleep(0.05)
        except psycopg2.Error as problem:
            self.count('refused: %s' % str(problem).split('\n')[0])
        return None

    def write(self, own):
        connection = []
        while not self.over.is_set():
            key = random.choice(own)
            row = self.sql(connection, 'UPDATE %s SET n = n + 1 WHERE id = %%s RETURNING version' % self.table, (key,))
            if row:
                self.acknowledged[key] = row[0]
                self.count('writes')
            time.sleep(PAUSE)

    def read_redis(self, _):
        connection = []
        server = redis.Redis(unix_socket_path=self.path, decode_responses=True)
        while not self.over.is_set():
            key = random.randrange(1, self.keys + 1)
            fence, floor = self.fences[key], self.acknowledged[key]
            answer = self.call(strong.read, server, fence)
            if answer[0] == 'hit':
                self.judge(key, floor, answer[2], 'hit')
                self.count('hits')
            else:
                self.count(answer[0])
                row = self.sql(connection, 'SELECT fence.row_version(version), to_jsonb(t)::text FROM %s t WHERE id = %%s' % self.table, (key,))
                if row and row[0] and answer[0] == 'miss':
                    self.call(strong.put, server, fence, answer[1], *row)
            time.sleep(PAUSE)

    def call(self, function, *words):
        try:
            return function(*words)
        except redis.RedisError as problem:
            return ['no answer: %s' % str(problem)[:60]]

    def read_sql(self, _):
        connection = []
        while not self.over.is_set():
            key = random.randrange(1, self.keys + 1)
            floor = self.acknowledged[key]
            row = self.sql(connection, "SELECT (fence.read(%s, %s)->>'version')::bigint", (self.table, str(key)))
            if row:
                self.judge(key, floor, row[0], 'fence.read')
                self.count('reads in SQL')
            time.sleep(PAUSE)

    def thread(self, function, *args):
        def body():
            try:
                function(*args)
            except Exception as problem:                   # a thread that has failed must not look like success
                with self.lock:
                    self.stale.append('%s ended: %r' % (function.__name__, problem))
        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def run(self):
        keys = list(range(1, self.keys + 1))
        threads = [self.thread(self.write, keys[n::2]) for n in range(2)]
        threads += [self.thread(self.read_redis, n) for n in range(3)] + [self.thread(self.read_sql, 0)]
        for _ in sys.stdin:
            with self.lock:
                told = dict(self.counts, stale=self.stale)
                self.counts, self.stale = collections.Counter(), []
            print(json.dumps(told), flush=True)
        self.over.set()
        for thread in threads:
            thread.join()


Load(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
