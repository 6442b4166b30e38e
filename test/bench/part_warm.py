"""Measures what PostgreSQL bears after Redis has lost 100,000 rows: with and without pgcache_fence.warm_rate, and with fence.warm.

Readers are threads of several processes, with the Python library. Each reads one row after the other, with a pause in between as a
service has it: four of five reads are of one row in 300. A miss costs PostgreSQL as much as a query with some joins. Beside
them a connection of its own asks PostgreSQL for a row every 10 ms.
"""

import multiprocessing
import os
import random
import sys
import threading
import time

import psycopg2
import redis

import report
from servers import HERE, wait_until

sys.path.insert(0, f'{HERE}/../../clients/python/src')

ROWS = 100_000
PROCESSES, THREADS = 3, 16
PAUSE = 0.02                            # seconds between two reads of a thread
SKEW = 25                               # the share x of all rows gets the share x^(1/25) of all reads: seven of 100 rows get 90 %
SLICE = 0.5
BEFORE, AFTER = 5, 50                   # seconds of a run before and after the loss
WARM = 0.8                              # the share of hits that counts as warm
LOAD = """SELECT fence.row_version(version), to_jsonb(h) FROM hot h, (SELECT count(*) FROM generate_series(1, 20000)) joins WHERE id = %s"""
VARIANTS = {'no limit': (0, False), 'warm_rate = 100': (100, False), 'no limit, and fence.warm': (0, True),
            'warm_rate = 100, and fence.warm': (100, True)}


def load(connection, key):
    with connection.cursor() as cursor:
        cursor.execute(LOAD, (key,))
        return cursor.fetchone()


def read_on(socket, conninfo, begin, until, counts, slowest, wrong):
    from pgcache_fence import Fences
    connections = threading.local()

    def connection():
        if not hasattr(connections, 'one'):
            connections.one = psycopg2.connect(conninfo)
            connections.one.autocommit = True
        return connections.one

    def reader(number):
        rand = random.Random(os.getpid() * 1000 + number)
        while time.monotonic() < until:
            time.sleep(PAUSE * rand.uniform(0.5, 1.5))
            key = int(ROWS * rand.random() ** SKEW) + 1
            loaded = []
            began = time.monotonic()
            row = fences.read('hot', key, lambda c, k: loaded.append(k) or load(c, k))
            ended = time.monotonic()
            at = int((ended - begin) / SLICE)
            with counts.get_lock():
                if 0 <= at < len(counts) // 2:
                    counts[2 * at + len(loaded)] += 1
                slowest.value = max(slowest.value, ended - began)
                wrong.value += row['id'] != key

    fences = Fences(redis.Redis(unix_socket_path=socket, socket_timeout=1, max_connections=200), connection)
    threads = [threading.Thread(target=reader, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def probe_on(conninfo, begin, until, times):
    connection = psycopg2.connect(conninfo)
    connection.autocommit = True
    taken = []
    with connection.cursor() as cursor:
        while time.monotonic() < until:
            time.sleep(0.01)
            started = time.monotonic()
            cursor.execute('SELECT name FROM independent WHERE id = %s', (random.randint(1, 1000),))
            taken.append((started - begin, (time.monotonic() - started) * 1000))
    times.put(taken)


def quantile(values, q):
    values = sorted(values)
    return values[min(int(len(values) * q), len(values) - 1)] if values else float('nan')


def lose(bench):
    """What a restart without data does: keys, function library, reservations, all is gone."""
    bench.redis.client.flushall()
    bench.redis.client.function_flush()


def one(bench, rate, warm):
    pg = bench.pg
    pg.set(pgcache_fence__warm_rate=rate)
    pg.wait_open()
    started = time.monotonic()
    keys, filled = pg.sql("CALL fence.warm('hot')")[0]
    seconds = time.monotonic() - started
    begin = time.monotonic() + 1 + BEFORE
    until = begin + AFTER
    counts = multiprocessing.Array('l', 2 * int(AFTER / SLICE))
    slowest, wrong, times = multiprocessing.Value('d', 0), multiprocessing.Value('l', 0), multiprocessing.Queue()
    readers = [multiprocessing.Process(target=read_on, args=(bench.redis.socket, pg.conninfo(), begin, until, counts, slowest, wrong))
               for _ in range(PROCESSES)]
    probe = multiprocessing.Process(target=probe_on, args=(pg.conninfo(), begin, until, times))
    for process in (*readers, probe):
        process.start()
    time.sleep(max(begin - time.monotonic(), 0))
    epoch = pg.value('SELECT epoch FROM fence.state')
    lose(bench)
    wait_until(lambda: pg.value("SELECT state = 'OPEN' AND epoch <> %s FROM fence.state", epoch), 60, 'no new epoch')
    opened = time.monotonic() - begin
    warmed = None
    if warm:
        time.sleep(0.5)
        connection = pg.connect()
        with connection.cursor() as cursor:
            cursor.execute("CALL fence.warm('hot', 'SELECT id FROM hot ORDER BY id')")
            warmed = cursor.fetchone()
        connection.close()
    taken = times.get()
    for process in (*readers, probe):
        process.join()
    slices = [(counts[2 * i], counts[2 * i + 1]) for i in range(len(counts) // 2)]
    first = int(opened / SLICE) + 1
    cold = next((i for i in range(first, len(slices) - 3) if all(hits >= WARM * (hits + misses) for hits, misses in slices[i:i + 4])), None)
    end = cold * SLICE if cold is not None else AFTER
    after = [misses for _, misses in slices[first:max(int(end / SLICE), first + 1)]]
    return {'rate': rate, 'opened': opened, 'warm_after': end if cold is not None else None, 'misses': sum(after) / len(after) / SLICE,
            'peak': max(after) / SLICE, 'outage': sum(m for _, m in slices[:first]) / first / SLICE,
            'p99_before': quantile([ms for at, ms in taken if at < 0], 0.99),
            'p99_outage': quantile([ms for at, ms in taken if 0 <= at < opened], 0.99),
            'p99_cold': quantile([ms for at, ms in taken if opened <= at < end], 0.99),
            'reads': sum(h + m for h, m in slices[first:int(end / SLICE)]) / max(len(slices[first:int(end / SLICE)]), 1) / SLICE,
            'slowest': slowest.value, 'wrong': wrong.value, 'keys': keys, 'filled': filled, 'fill_seconds': seconds,
            'warmed': warmed and list(warmed)}


def run(bench):
    bench.pg.sql('CREATE TABLE hot (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 0);'
                 'CREATE TABLE independent (id int PRIMARY KEY, name text);'
                 f"INSERT INTO hot SELECT g, repeat('x', 100) FROM generate_series(1, {ROWS}) g;"
                 "INSERT INTO independent SELECT g, 'name' FROM generate_series(1, 1000) g; SELECT fence.attach('hot')")
    bench.pg.sql('VACUUM ANALYZE hot')
    wait_until(lambda: bench.pg.value("SELECT (fence.get('hot', 1)).status") == 'miss', 60, 'hot is not announced')
    try:
        return {name: one(bench, *variant) for name, variant in VARIANTS.items()}
    finally:
        bench.pg.set(pgcache_fence__warm_rate=0)


def show(result):
    rows = [[name, f"{r['outage']:.0f}", f"{r['misses']:.0f}", f"{r['peak']:.0f}", f"{r['reads']:.0f}",
             f"{r['p99_before']:.1f}", f"{r['p99_outage']:.1f}", f"{r['p99_cold']:.1f}",
             f"{r['warm_after'] - r['opened']:.0f}" if r['warm_after'] else f'more than {AFTER}', f"{r['slowest']:.1f}"]
            for name, r in result.items()]
    first = next(iter(result.values()))
    text = report.table([f'{ROWS:,} rows lost', 'loads/s while fences are not open', 'loads/s until warm', 'most loads/s', 'reads/s until warm',
                         'p99 ms of another query, before', '... fences not open', '... until warm', f'{WARM:.0%} hits after s', 'slowest read s'], rows)
    return text + f"\n\nfence.warm filled in {first['filled']:,} rows in {first['fill_seconds']:.1f} s on an idle server. " \
        f"Reads with a wrong row: {sum(r['wrong'] for r in result.values())}."
