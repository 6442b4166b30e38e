"""Measures reads and writes over time while a lagging replica is promoted. failover.sh calls it.

Readers and writers are processes. Each reader reads random rows at its share of the rate, as doc/clients.md describes: it calls
fence_get, which says why there is no hit, at the master that the sentinel names. Without a hit it reads the row from PostgreSQL.
Results are counted in slices of 100 ms since the start. Each reader also checks that no version is older than the one that a
writer had committed when the read began.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import time

import psycopg2
import redis
from redis.sentinel import Sentinel

import servers
from servers import BASE, REDIS_SERVER, Postgres, Redis, free_port, running, wait_until

SLICE = 0.1
READERS = 4
WRITERS = 2
WRITES_PER_SECOND = 20
BEFORE = 5                              # seconds before the failover
KINDS = 'hit', 'miss', 'pending', 'unarmed', 'error'


def sentinel(master):
    """Starts a single sentinel for the master. Returns it and its port."""
    port = free_port()
    conf = f'{BASE}/sentinel.conf'
    with open(conf, 'w') as file:
        file.write(f'port {port}\nbind 127.0.0.1\ndir {BASE}\nsentinel monitor main 127.0.0.1 {master.port} 1\n'
                   'sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n')
    process = subprocess.Popen([REDIS_SERVER, conf, '--sentinel'], stdout=open(f'{BASE}/sentinel.log', 'w'),
                               stderr=subprocess.STDOUT, start_new_session=True)
    return process, port


class Counts:
    """The number of each kind of result in each slice, in one array for all processes."""

    def __init__(self, names, slices):
        self.names = names
        self.slices = slices
        self.array = multiprocessing.Array('l', len(names) * slices)

    def add(self, name, at):
        if at < self.slices:
            with self.array.get_lock():
                self.array[self.names.index(name) * self.slices + at] += 1

    def sum(self, name, first, last):
        at = self.names.index(name) * self.slices
        return sum(self.array[at + max(first, 0):at + max(last, 0)])


def at_rate(rate, until):
    """Yields at that rate. After a delay it makes up for no more than one slice."""
    due = time.monotonic()
    while (now := time.monotonic()) < until.value:
        if now < due:
            time.sleep(due - now)
        due = max(due + 1 / rate, now - SLICE)
        yield


def slice_of(begin):
    return int((time.monotonic() - begin.value) / SLICE)


def read_on(args, port, conninfo, name, begin, until, counts, committed, stale):
    random.seed(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = psycopg2.connect(conninfo)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute('PREPARE row AS SELECT fence.row_version(version), to_json(i) FROM item i WHERE id = $1')
    client = Sentinel([('127.0.0.1', port)], socket_timeout=0.2).master_for('main', socket_timeout=0.2)
    for _ in at_rate(args.rate / READERS, until):
        key = random.randint(1, args.rows)
        fence = name % key
        known = committed[key]
        try:
            answer = client.execute_command('FCALL_RO', 'fence_get', 1, fence)
        except redis.RedisError:
            answer = [b'error']
        kind = answer[0].decode()
        counts.add(kind, slice_of(begin))
        if kind == 'hit':
            if int(answer[1].split(b' ')[1]) < known:
                stale.value += 1
            continue
        cursor.execute('EXECUTE row(%s)', (key,))
        version, row = cursor.fetchone()
        if kind == 'miss' and version:
            try:
                client.execute_command('FCALL', 'fence_put', 1, fence, answer[1], version, json.dumps(row), 0)
            except redis.RedisError:
                pass


def write_on(args, conninfo, begin, until, counts, committed, slowest):
    random.seed(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = psycopg2.connect(conninfo)
    connection.autocommit = True
    cursor = connection.cursor()
    for _ in at_rate(WRITES_PER_SECOND / WRITERS, until):
        key = random.randint(1, args.rows)
        started = time.monotonic()
        cursor.execute('UPDATE item SET n = n + 1 WHERE id = %s RETURNING version', (key,))
        version = cursor.fetchone()[0]
        with committed.get_lock():
            committed[key] = max(committed[key], version)
        took = time.monotonic() - started
        counts.add('write', slice_of(begin))
        with slowest.get_lock():
            slowest.value = max(slowest.value, took)


def warm(pg, args):
    pg.sql('CREATE EXTENSION pgcache_fence')
    pg.wait_open()
    pg.sql('CREATE TABLE item (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, data text, version bigint NOT NULL DEFAULT 0)')
    pg.sql("INSERT INTO item (id, data) SELECT g, repeat('x', 100) FROM generate_series(1, %s) g", args.rows)
    pg.sql("SELECT fence.attach('item')")
    wait_until(lambda: pg.value("SELECT status FROM fence.get('item', '1')") in ('miss', 'hit'), 20, 'item is not served')
    pg.sql("SELECT count(fence.read('item', id::text)) FROM item")
    pg.sql('VACUUM ANALYZE item')


def run(args):
    master = Redis('master')
    replica = Redis('replica', ['--replicaof', f'127.0.0.1 {master.port}', '--repl-diskless-sync-delay', '0'])
    watcher, port = sentinel(master)
    with running(master, replica):
        try:
            pg = None
            wait_until(lambda: replica.client.info('replication').get('master_link_status') == 'up', 20, 'no replica')
            seen = redis.Redis(port=port)
            wait_until(lambda: len(seen.execute_command('SENTINEL', 'REPLICAS', 'main')) == 1, 30, 'the sentinel knows no replica')
            settings = (f"pgcache_fence.redis_url = 'redis+sentinel://127.0.0.1:{port}/main'\n"
                        f"pgcache_fence.lease = '{args.lease}s'\n")
            pg = Postgres('pg', settings="shared_preload_libraries = 'pgcache_fence'\n" + settings, preload=False)
            warm(pg, args)
            return measure(args, pg, master, replica, port)
        finally:
            if pg:
                pg.stop()
            watcher.kill()
            watcher.wait()


def measure(args, pg, master, replica, port):
    name = pg.value("SELECT fence.fence_key('item', '0')").replace('{0}', '{%i}')
    slices = int((BEFORE + args.lag + args.after) / SLICE) + 20
    counts = Counts((*KINDS, 'write'), slices)
    begin, until = multiprocessing.Value('d', time.monotonic()), multiprocessing.Value('d', float('inf'))
    committed = multiprocessing.Array('q', args.rows + 1)
    stale, slowest = multiprocessing.Value('l', 0), multiprocessing.Value('d', 0)
    before = multiprocessing.Value('d', 0)
    processes = [multiprocessing.Process(target=read_on, args=(args, port, pg.conninfo(), name, begin, until, counts, committed, stale))
                 for _ in range(READERS)]
    processes += [multiprocessing.Process(target=write_on, args=(args, pg.conninfo(), begin, until, counts, committed, slowest))
                  for _ in range(WRITERS)]
    for process in processes:
        process.start()
    time.sleep(BEFORE)
    # from now on the replica does not get the master's writes
    replica.client.config_set('masteruser', 'nobody')
    replica.client.config_set('masterauth', 'x')
    master.client.execute_command('CLIENT', 'KILL', 'TYPE', 'replica')
    time.sleep(args.lag)
    before.value, slowest.value = slowest.value, 0
    died = slice_of(begin)
    master.process.kill()
    master.process.wait()
    time.sleep(args.after)
    until.value = 0
    for process in processes:
        process.join(30)
        if process.exitcode != 0:
            raise SystemExit('failover: a client failed')
    return {'counts': counts, 'died': died, 'stale': stale.value, 'slowest before': before.value, 'slowest': slowest.value,
            'versions': f'{pg.version()}, {replica.version()}, {os.cpu_count()} processors', 'load': os.getloadavg()[0]}


def rows_of_table(result, args):
    """Rows of the table by time since the master's death. Slices are short at first and longer later."""
    counts, died = result['counts'], result['died']
    edges = [-20, -10, 0, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 70, 80, 100, 120, 150, 200, 300, 600]
    edges = [e for e in edges if e <= args.after * 10]
    for first, last in zip(edges, edges[1:]):
        n = last - first
        numbers = [counts.sum(kind, died + first, died + last) / n for kind in (*KINDS, 'write')]
        yield [f'{first / 10:.1f} to {last / 10:.1f} s', *(f'{x:.0f}' for x in numbers[:1]), f'{sum(numbers[1:5]):.0f}',
               *(f'{x:.0f}' for x in numbers[1:])]


def show(result, args):
    counts, died = result['counts'], result['died']
    end = died + int(args.after / SLICE)
    hits = [counts.sum('hit', at, at + 1) for at in range(died, end)]
    first = next((at for at, n in enumerate(hits) if n and at > 0 and not any(hits[max(at - 5, 1):at])), None)
    usual = sum(counts.sum(kind, died - 20, died) for kind in KINDS[1:]) / 20
    load = [sum(counts.sum(kind, at, at + 1) for kind in KINDS[1:]) for at in range(died, end)]
    calm = next((at for at in range(len(load) - 10) if at > (first or 0) and sum(load[at:at + 10]) / 10 <= 2 * usual + 1), None)
    print(f"{result['versions']}; {args.rows} rows, {args.rate} reads and {WRITES_PER_SECOND} writes per second, lease {args.lease} s, "
          f"replica cut off {args.lag} s before; load average {result['load']:.0f}\n")
    print('| since the master died | hits | reads of PostgreSQL | of these: miss | pending | unarmed | error | writes |')
    print('| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |')
    for row in rows_of_table(result, args):
        print('| ' + ' | '.join(row) + ' |')
    print('\nPer 100 ms.\n')
    print(f"no hit for {first * SLICE:.1f} s" if first is not None else 'no hit any more', end='; ')
    print(f"slowest write {result['slowest']:.2f} s ({result['slowest before']:.2f} s before)", end='; ')
    print(f'reads of PostgreSQL per 100 ms: {usual:.0f} before, {max(load)} at most', end='; ')
    print('not twice what they were within the time' if calm is None else f'back at twice what they were after {calm * SLICE:.1f} s')
    print(f"stale reads: {result['stale']}")
    return result['stale'] == 0 and first is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--rows', type=int, default=1000)
    parser.add_argument('--rate', type=int, default=400)
    parser.add_argument('--lag', type=float, default=3)
    parser.add_argument('--after', type=float, default=20)
    parser.add_argument('--lease', type=float, default=3)
    args = parser.parse_args()
    os.chdir(servers.HERE)
    raise SystemExit(0 if show(run(args), args) else 1)


main()
