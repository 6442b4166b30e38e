"""UPDATE of one row by 8 clients with pgcache_fence.watch_buckets, where none, few or many of the rows are cached and read."""

import random
import threading

import compare
import report
from part_calls import Counted, in_library, profile
from servers import Postgres, Redis, running, wait_until

CLIENTS = 8
BUCKETS = 1 << 20
SHARES = 0, 1, 10, 50                   # percent of the rows that are cached, and read at the same time
READS_PER_SECOND = 200


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


def run(bench):
    count = bench.rounds or bench.amount(4, 10)
    seconds = bench.seconds or bench.amount(1.0, 2.0)
    result = {}
    redis = Redis('buckets')
    with running(redis):
        pg = Postgres('buckets.data', redis, settings=f'pgcache_fence.watch_buckets = {BUCKETS}\n')
        with running(pg):
            compare.make_tables(pg, redis)
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
    return {'rates': result, 'instructions': instructions(bench)}


def instructions(bench):
    """Instructions of the backend per UPDATE of a row that nobody has cached, those in the library, and where they go."""
    counted = Counted('buckets', bench.redis, settings=f'pgcache_fence.watch_buckets = {BUCKETS}\n', cached=False)
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
    return '\n\n'.join([
        report.table(['UPDATE of one row, 8 clients, watch_buckets', *report.BESIDE], lines),
        report.table(['instructions of the backend, no row cached', 'per transaction', 'in functions of pgcache_fence.so'],
                     [[name, f"{r['count']:.0f}", f"{r['inside']:.0f}"] for name, r in counts.items()]),
        report.table(['own instructions, more than in the unfenced UPDATE', 'object', 'instructions per transaction'],
                     [[n, w, f'{c:.0f}'] for n, w, c in own])])
