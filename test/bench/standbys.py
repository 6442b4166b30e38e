"""Measures what becomes of misses on hot standbys. standbys.sh calls it.

Readers and writers are processes. Each reader reads random rows of a standby at its share of the rate with fence.try_read. If that
says "primary", it reads the row with fence.read on the primary. Each reader also checks that no version is older than the one
that a writer had committed when the read began.
"""

import argparse
import multiprocessing
import os
import random
import signal
import subprocess
import time

import psycopg2

import servers
from servers import BASE, BINDIR, Postgres, Redis, free_port, running, wait_until

READERS = 2                             # of each standby
WRITERS = 2
SOURCES = 'cache', 'database', 'primary'
CASES = (0, '50ms', 'off'), (0, '0', 'off'), (1, '50ms', 'off'), (1, '2s', 'off'), (1, '2s', 'on'), (10, '50ms', 'off')


class Standby(Postgres):
    """A hot standby of the primary."""

    def __init__(self, name, primary):
        self.data = f'{BASE}/{name}'
        self.directory = f'{BASE}/{name}.s'
        self.port = free_port()
        self.log = f'{BASE}/{name}.log'
        self.valgrind = None
        self.process = None
        self.idle = {}
        os.mkdir(self.directory)
        subprocess.run([f'{BINDIR}/pg_basebackup', '-h', primary.directory, '-p', str(primary.port), '-U', 'postgres', '-D', self.data,
                        '-R', '-c', 'fast'], check=True)
        with open(f'{self.data}/postgresql.conf', 'a') as conf:
            conf.write(f"port = {self.port}\nunix_socket_directories = '{self.directory}'\n")
        self.start()

    def follow(self, delay, feedback):
        self.set(recovery_min_apply_delay=f'{delay}s', hot_standby_feedback=feedback)


def paced(rate, until):
    due = time.monotonic()
    while (now := time.monotonic()) < until.value:
        if now < due:
            time.sleep(due - now)
        due = max(due + 1 / rate, now - 0.1)
        yield


def any_row(args):
    """Half of the reads and writes are of the hot table, half of the one that is cold at first."""
    if random.random() < 0.5:
        return 'hot', random.randint(1, args.hot)
    return 'cold', random.randint(1, args.rows)


def read_on(args, standby, primary, wait, until, committed, results):
    random.seed(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connections = [psycopg2.connect(conninfo) for conninfo in (standby, primary)]
    for connection in connections:
        connection.autocommit = True
    here, there = (connection.cursor() for connection in connections)
    here.execute('SET pgcache_fence.standby_wait = %s', (wait,))
    counts = {(table, source): [] for table in ('hot', 'cold') for source in SOURCES}
    stale = 0
    for _ in paced(args.rate / READERS, until):
        table, key = any_row(args)
        known = committed[table][key]
        started = time.monotonic()
        here.execute('SELECT version, source FROM fence.try_read(%s, %s::int)', (table, key))
        version, source = here.fetchone()
        counts[table, source].append(time.monotonic() - started)
        if source == 'primary':
            there.execute("SELECT (fence.read(%s, %s::int) ->> 'version')::bigint", (table, key))
            version = there.fetchone()[0]
        stale += version < known
    results.put((counts, stale))


def write_on(args, primary, until, committed):
    random.seed(os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = psycopg2.connect(primary)
    connection.autocommit = True
    cursor = connection.cursor()
    for _ in paced(args.writes / WRITERS, until):
        table, key = any_row(args)
        cursor.execute(f'UPDATE {table} SET n = n + 1 WHERE id = %s RETURNING version', (key,))
        version = cursor.fetchone()[0]
        with committed[table].get_lock():
            committed[table][key] = max(committed[table][key], version)


def set_up(pg, args):
    pg.sql('CREATE EXTENSION pgcache_fence')
    pg.wait_open()
    for table, rows in ('hot', args.hot), ('cold', args.rows):
        pg.sql(f'CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, data text, version bigint NOT NULL DEFAULT 0)')
        pg.sql(f"INSERT INTO {table} (id, data) SELECT g, repeat('x', 100) FROM generate_series(1, %s) g", rows)
        pg.sql('SELECT fence.attach(%s)', table)
    pg.sql('VACUUM ANALYZE')


def make_cold(pg, redis_server):
    redis_server.client.flushall()
    wait_until(lambda: all(pg.value('SELECT status FROM fence.get(%s, 1)', table) in ('miss', 'hit') for table in ('hot', 'cold')), 20,
               'the tables are not served')


def measure(args, pg, standbys, wait):
    until = multiprocessing.Value('d', time.monotonic() + args.seconds)
    committed = {table: multiprocessing.Array('q', 1 + rows) for table, rows in (('hot', args.hot), ('cold', args.rows))}
    results = multiprocessing.Queue()
    readers = [multiprocessing.Process(target=read_on, args=(args, standby.conninfo(), pg.conninfo(), wait, until, committed, results))
               for standby in standbys for _ in range(READERS)]
    writers = [multiprocessing.Process(target=write_on, args=(args, pg.conninfo(), until, committed)) for _ in range(WRITERS)]
    for process in readers + writers:
        process.start()
    counts, stale = {}, 0
    for _ in readers:
        some, old = results.get(timeout=args.seconds + 60)
        stale += old
        for what, times in some.items():
            counts.setdefault(what, []).extend(times)
    for process in readers + writers:
        process.join(30)
        if process.exitcode != 0:
            raise SystemExit('standbys: a client failed')
    return counts, stale


def line(delay, wait, feedback, table, counts):
    took = {source: sorted(counts[table, source]) for source in SOURCES}
    misses = len(took['database']) + len(took['primary'])
    middle = [f'{1000 * took[source][len(took[source]) // 2]:.1f} ms' if took[source] else '' for source in SOURCES]
    share = f"{100 * len(took['database']) / misses:.1f} %" if misses else ''
    return [f'{delay} s', wait, feedback, table, str(len(took['cache'])), str(misses), share, *middle]


def run(args):
    redis_server = Redis()
    with running(redis_server):
        primary = Postgres('pg', redis_server, settings='wal_keep_size = 1GB\n')
        with running(primary):
            set_up(primary, args)
            standbys = [Standby(f'standby{i}', primary) for i in (1, 2)]
            with running(*standbys):
                print(f'{primary.version()}, {redis_server.version()}, {os.cpu_count()} processors; two standbys with {args.rate} reads per second '
                      f'each, {args.writes} writes per second, {args.hot} hot rows and {args.rows} rows that are cold at first, '
                      f'{args.seconds:.0f} s each; load average {os.getloadavg()[0]:.0f}\n')
                print('| replay delayed by | `standby_wait` | `hot_standby_feedback` | rows | hits | misses | served by the standby | hit | standby | says primary |')
                print('| ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |', flush=True)
                stale = 0
                for delay, wait, feedback in CASES:
                    for standby in standbys:
                        standby.follow(delay, feedback)
                    # the marks of before the delay are not those of a standby that has had it for long
                    primary.sql('UPDATE hot SET n = n')
                    make_cold(primary, redis_server)
                    time.sleep(delay + 2)
                    counts, old = measure(args, primary, standbys, wait)
                    stale += old
                    for table in 'hot', 'cold':
                        print('| ' + ' | '.join(line(delay, wait, feedback, table, counts)) + ' |', flush=True)
                print(f'\nThe last three columns are medians of the time of the call. Stale reads: {stale}.')
                return stale == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--rows', type=int, default=20000)
    parser.add_argument('--hot', type=int, default=200)
    parser.add_argument('--rate', type=int, default=300)
    parser.add_argument('--writes', type=int, default=50)
    parser.add_argument('--seconds', type=float, default=10)
    args = parser.parse_args()
    os.chdir(servers.HERE)
    raise SystemExit(0 if run(args) else 1)


main()
