#!/usr/bin/python3
# herd.py - many readers miss one value at the same instant: how often is PostgreSQL read?
#
# usage: herd.py REDIS_SOCKET CONNINFO READERS MODE FENCE QUERY
#
# Each reader is a thread with its own connection to Redis. It follows doc/clients.md: it calls fence_get, and on a miss it
# reads PostgreSQL and puts the row. MODE: "wait" heeds busy (it calls fence_get again until the time that busy tells is
# over); "ignore" does not heed it; "dead" heeds it, but the reader that is to fill the value never does. The readers share a
# few connections to PostgreSQL, as in a pool. QUERY returns version and payload, and must be slow. Prints the number of
# reads of PostgreSQL, the number of hits, and the longest time in milliseconds.

import socket
import sys
import threading
import time

import psycopg2

CONNECTIONS = 8


class Redis:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.file = self.socket.makefile('rb')

    def call(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.socket.sendall(b'*%d\r\n' % len(words) + b''.join(b'$%d\r\n%s\r\n' % (len(w), w) for w in words))
        return self.reply()

    def reply(self):
        line = self.file.readline().rstrip(b'\r\n')
        kind, rest = line[:1], line[1:]
        if kind == b'*':
            return [self.reply() for _ in range(int(rest))]
        if kind == b'$':
            return self.file.read(int(rest) + 2)[:-2]
        if kind == b'-':
            raise RuntimeError(rest.decode())
        return rest


class Herd:
    def __init__(self, path, conninfo, readers, mode, fence, query):
        self.mode, self.fence, self.query = mode, fence, query
        self.links = [Redis(path) for _ in range(readers)]
        self.pool = [psycopg2.connect(conninfo) for _ in range(CONNECTIONS)]
        for connection in self.pool:
            connection.autocommit = True
        self.free = threading.Semaphore(CONNECTIONS)
        self.lock = threading.Lock()
        self.start = threading.Barrier(readers)
        self.asked = threading.Barrier(readers)
        self.reads = self.hits = 0
        self.longest = 0.0
        self.wrong = []
        self.dead = threading.Event()

    def read_postgres(self):
        with self.free:
            with self.lock:
                connection = self.pool.pop()
                self.reads += 1
            with connection.cursor() as cursor:
                cursor.execute(self.query)
                row = cursor.fetchone()
            with self.lock:
                self.pool.append(connection)
        return row

    def get(self, redis):
        return redis.call('FCALL_RO', 'fence_get', 1, self.fence)

    def answer(self, redis):
        answer = self.get(redis)
        self.asked.wait()                                   # no reader puts before all others have called fence_get
        for _ in range(0 if self.mode == 'ignore' else 2):  # fillers to wait for
            deadline, pause = time.monotonic() + int(answer[3] if len(answer) == 4 else 0) / 1000, 0.001
            while len(answer) == 4 and time.monotonic() < deadline:
                time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
                pause *= 2
                answer = self.get(redis)
        if answer[0] == b'hit':
            return answer[1].partition(b'\n')[2].decode(), True
        if self.mode == 'dead' and not self.dead.is_set():
            self.dead.set()
            return None, False
        version, payload = self.read_postgres()
        if answer[0] == b'miss':
            redis.call('FCALL', 'fence_put', 1, self.fence, answer[1], version, payload, 0)
        return payload, False

    def reader(self, redis):
        try:
            self.start.wait()
            began = time.monotonic()
            payload, hit = self.answer(redis)
            took = time.monotonic() - began
            with self.lock:
                self.hits += hit
                self.longest = max(self.longest, took)
                if payload not in (None, 'right'):
                    self.wrong.append(payload)
        except Exception as problem:                       # a thread's end must not look like success
            with self.lock:
                self.wrong.append(repr(problem))

    def run(self):
        threads = [threading.Thread(target=self.reader, args=(link,)) for link in self.links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.wrong:
            sys.exit('wrong: %s' % self.wrong[:3])
        print(self.reads, self.hits, round(self.longest * 1000))


Herd(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:7]).run()
