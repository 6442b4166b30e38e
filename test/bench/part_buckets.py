"""
UPDATE of one row by 8 clients with default settings, where none, few or many of the rows are cached and read; how
soon after its first miss a row can be cached; what the courier's questions cost while nobody reads; and how many of the writes of
rows that nobody has cached ask Redis, once many different keys were stored.
"""

import random
import statistics
import threading
import time

import compare
import report
from part_calls import Counted, in_library, profile
from servers import Postgres, Redis, cpu_us, permit, running, wait_until

CLIENTS = 8
SHARES = 0, 1, 10, 50                   # percent of the rows that are cached, and read at the same time
READS_PER_SECOND = 200
STORED = 100_000, 1_000_000, 3_000_000   # different keys
UNREAD = 2000                           # rows that are written and that nobody has read
COLD = 200                              # rows that are read for the first time


class Reader(threading.Thread):
    """Reads rows of the first `rows` through fence.read, which puts what it misses, at a moderate pace, until it is stopped."""

    def __init__(self, pg, rows):
        super().__init__()
        self.pg, self.rows, self.done = pg, rows, threading.Event()

    def run(self):
        connection = self.pg.connect()
        with connection.cursor() as cursor:
            while self.rows and not self.done.wait(1 / READS_PER_SECOND):
                cursor.execute("SELECT fence.read('fenced', %s)", (str(random.randint(1, self.rows)),))
        connection.close()

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.done.set()
        self.join()


def warm(pg, redis, rows):
    """Caches the rows. The first read of a row has its bucket opened, and the next one puts it."""
    def cached():
        pg.sql("SELECT count(fence.read('fenced', i::text)) FROM generate_series(1, %s) i", rows)
        return redis.client.dbsize() > rows             # and the heartbeat key
    wait_until(cached, 120, f'{rows} rows are not cached')


def idle(pg, redis, seconds):
    """Parts of a processor that Redis and the courier use, and fence_open's calls per second, while nobody reads or writes."""
    def look():
        calls = redis.client.info('commandstats').get('cmdstat_fcall', {'calls': 0})['calls']
        return time.monotonic(), cpu_us(redis.pid), cpu_us(pg.worker('courier')), calls
    time.sleep(2)                                       # what was wanted lately is not lately any more
    before = look()
    time.sleep(seconds)
    took, *used = (after - then for after, then in zip(look(), before))
    return dict(zip(('redis', 'courier', 'calls'), (used[0] / took / 1e6, used[1] / took / 1e6, used[2] / took)))


def first_by_client(redis, fence):
    """Puts the fence as a client of Redis does, until it is stored."""
    answer = b''
    while answer != b'stored':
        told = permit(redis, fence)
        answer = redis.client.execute_command('FCALL', 'fence_put', 1, fence, told, told.partition(b'.')[0] + b'.1', '{}', 0)
        time.sleep(0.0005)


def first_by_sql(pg, row):
    """Reads the row with fence.read until it is cached."""
    while pg.sql("SELECT source FROM fence.try_read('fenced', %s)", str(row))[0][0] != 'cache':
        time.sleep(0.0005)


def cold(pg, redis):
    """Milliseconds from the first miss of a row until it is cached: median and maximum, while nothing else is read."""
    fence = pg.value("SELECT fence.fence_key('fenced', '0')").replace('{0}', '{%d}')
    result = {}
    for name, first, read in (('client of Redis', 1, lambda row: first_by_client(redis, fence % row)),
                              ('fence.read', COLD + 1, lambda row: first_by_sql(pg, row))):
        times = []
        for row in range(first, first + COLD):
            # Every other one comes when nothing was wanted lately. None comes in step with the courier.
            time.sleep(random.uniform(0, 0.02) + (row % 20 == 0))
            begin = time.monotonic()
            read(row)
            times.append((time.monotonic() - begin) * 1000)
        result[name] = {'median': statistics.median(times), 'max': max(times)}
    return result


def store_others(redis, name, first, last):
    """Misses that many keys of a table, which has their buckets opened, as storing them would."""
    for begin in range(first, last, 500):
        with redis.client.pipeline(transaction=False) as pipe:
            for key in range(begin, min(begin + 500, last)):
                pipe.execute_command('FCALL', 'fence_get', 1, name % key)
            pipe.execute()
        time.sleep(0.006)                               # the courier takes 1,000 buckets each 5 ms


def filled(pg, redis, bench):
    """For each number of different keys: percent of the bits that are set, and of the writes of other rows that reserve, and the memory."""
    def reserved():
        return int(pg.value("SELECT sum(value)::bigint FROM fence.metrics WHERE name = 'cache_fence_operations_total'"
                            " AND labels ->> 'operation' = 'reserve' AND labels ->> 'result' = 'granted'") or 0)
    name = pg.value("SELECT fence.fence_key('fenced', '0')").replace('{0}', '{x%d}')
    result, done = {}, 0
    for keys in STORED[:bench.amount(2, 3)]:
        store_others(redis, name, done, keys)
        done = keys
        before = reserved()
        for row in range(1, UNREAD + 1):
            pg.sql('UPDATE fenced SET data = data WHERE id = %s', row)
        share = pg.value('SELECT 100.0 * (set_now + set_before) / buckets FROM fence.buckets')
        info = redis.client.info('memory')
        result[keys] = {'set': float(share), 'asked': 100 * (reserved() - before) / UNREAD, 'memory': info['used_memory_vm_functions']}
    return result


def run(bench):
    count = bench.rounds or bench.amount(4, 10)
    seconds = bench.seconds or bench.amount(1.0, 2.0)
    result = {}
    redis = Redis('many')
    with running(redis):
        pg = Postgres('many.data', redis, cached=False)
        with running(pg):
            compare.make_tables(pg, redis)
            share = filled(pg, redis, bench)
    redis = Redis('buckets')
    with running(redis):
        pg = Postgres('buckets.data', redis, cached=False)
        with running(pg):
            compare.make_tables(pg, redis)
            quiet = idle(pg, redis, bench.amount(10, 30))
            first = cold(pg, redis)
            for share in SHARES:
                rows = compare.ROWS * share // 100
                warm(pg, redis, rows)                          # opens the buckets; what is written later is read again by Reader
                for sync in 'on', 'off':
                    def measure(name, sync=sync, rows=rows):
                        with Reader(pg, rows):
                            return compare.load(compare.update(name), pg, redis, CLIENTS, seconds, synchronous_commit=sync)

                    for name in 'unfenced', 'fenced':
                        measure(name)                   # a warm-up: full-page images, plans, connections
                    result[f'{share} {sync}'] = compare.rounds(['unfenced', 'fenced'], count, measure,
                                                               lambda: [pg.sql(f'VACUUM {t}') for t in ('unfenced', 'fenced')])
    return {'filled': share, 'idle': quiet, 'cold': first, 'rates': result, 'instructions': instructions(bench)}


def instructions(bench):
    """Instructions of the backend per UPDATE of a row that nobody has cached, those in the library, and where they go."""
    counted = Counted('buckets', bench.redis, cached=False)
    result = {}
    with running(counted):
        for table in 'unfenced', 'fenced':
            # each page has room for new versions of its rows, so that both tables prune equally often
            counted.pg.sql(f'ALTER TABLE {table} SET (fillfactor = 40)')
            counted.pg.sql(f'VACUUM FULL {table}')
            count, files = counted.per_transaction(compare.update(table), 200, bench.amount(700, 2200), bench.amount(2, 3))
            result[table] = {'count': count, 'inside': in_library(files), 'own': profile(files, False)}
    return result


def show(result):
    lines = []
    counts = result['instructions']
    for key, r in result['rates'].items():
        share, sync = key.split()
        lines.append([f'{share} % of the rows cached and read, synchronous_commit={sync}', *report.beside(r, 'fenced', 'unfenced')])
    base = {(name, where): count for name, where, count in counts['unfenced']['own']}
    own = sorted(((n, w, c - base.get((n, w), 0)) for n, w, c in counts['fenced']['own']), key=lambda row: -row[2])[:30]
    idle = result['idle']
    return '\n\n'.join([
        report.table(['from the first miss of a row until it is cached, nothing else is read', 'median, ms', 'max, ms'],
                     [[name, f"{r['median']:.1f}", f"{r['max']:.1f}"] for name, r in result['cold'].items()]),
        report.table(['different keys that readers had stored', '% of the bits', '% of the writes of other rows that ask Redis',
                      "MB of Redis' functions"],
                     [[f'{int(keys):,}', f"{r['set']:.1f}", f"{r['asked']:.1f}", f"{r['memory'] / 1e6:.0f}"] for keys, r in result['filled'].items()]),
        report.table(['while nobody reads or writes', '% of a processor'],
                     [[f"Redis, with {idle['calls']:.0f} calls of fence_open per second", f"{idle['redis'] * 100:.2f}"],
                      ['the courier', f"{idle['courier'] * 100:.2f}"]]),
        report.table(['UPDATE of one row, 8 clients, default settings', *report.BESIDE], lines),
        report.table(['instructions of the backend, no row cached', 'per transaction', 'in functions of pgcache_fence.so'],
                     [[name, f"{r['count']:.0f}", f"{r['inside']:.0f}"] for name, r in counts.items()]),
        report.table(['own instructions, more than in the unfenced UPDATE', 'object', 'instructions per transaction'],
                     [[n, w, f'{c:.0f}'] for n, w, c in own])])
