"""UPDATE of one row by 8 clients with pgcache_fence.watch_buckets, where none, few or many of the rows are cached and read."""

import random
import threading

import compare
import report
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
    return result


def show(result):
    lines = []
    for key, r in result.items():
        share, sync = key.split()
        lines.append([f'{share} % of the rows cached and read, synchronous_commit={sync}', *report.beside(r, 'fenced', 'unfenced')])
    return report.table(['UPDATE of one row, 8 clients, watch_buckets', *report.BESIDE], lines)
