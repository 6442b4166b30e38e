"""Bulk DELETE and COPY by one client: time and processor time of the statement and its COMMIT, fenced against unfenced."""

import io
import time

import compare
import report
from servers import cpu_us, fill


class Session:
    """A session that measures the time of statements, and the processor time of its backend, of Redis and of the courier."""

    def __init__(self, bench, settings):
        self.connection = bench.pg.connect(**settings)
        self.connection.autocommit = False
        self.pids = {'cpu_backends': self.connection.info.backend_pid, 'cpu_redis': bench.redis.pid,
                     'cpu_courier': bench.pg.worker('courier')}

    def times(self, work):
        before, start = {name: cpu_us(pid) for name, pid in self.pids.items()}, time.monotonic()
        with self.connection.cursor() as cursor:
            work(cursor)
        self.connection.commit()
        took = time.monotonic() - start
        spent = {name: cpu_us(pid) - before[name] for name, pid in self.pids.items()}
        return {'tps': 1 / took, 'p50': 1e6 * took, 'p99': 1e6 * took, 'cpu_load': 0, **spent}


def refill(bench, table, rows):
    """Restores all rows without dead ones, and caches the fenced ones."""
    bench.pg.sql(f'TRUNCATE {table}')
    bench.pg.sql(f"INSERT INTO {table} SELECT i, 0, repeat('x', 100) FROM generate_series(1, %s) i", rows)
    bench.pg.sql(f'VACUUM ANALYZE {table}')
    if not table.endswith('unfenced'):
        fill(bench.pg, bench.redis, table, rows)


def run(bench):
    rows = 100_000 if bench.publish else bench.amount(20_000, 100_000)
    new = ''.join(f'{i}\t0\t{"x" * 100}\n' for i in range(rows + 1, 2 * rows + 1))
    for table in 'unfenced', 'fenced':
        bench.pg.sql(f'CREATE TABLE bulk_{table} (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off)')
    bench.pg.sql("SELECT fence.attach('bulk_fenced')")
    names = ['unfenced', *bench.ways]

    def measure(name, work):
        table, settings = compare.in_way(name, 'bulk_')
        refill(bench, table, rows)
        session = Session(bench, settings)
        session.times(lambda cursor: cursor.execute(f'UPDATE {table} SET data = data WHERE id = 1'))       # connects to Redis
        result = session.times(lambda cursor: work(cursor, table))
        session.connection.close()
        return result
    works = {f'DELETE of {n:,} rows': lambda cursor, table, n=n: cursor.execute(f'DELETE FROM {table} WHERE id > {rows - n}') for n in (1000, rows)}
    works[f'COPY of {rows:,} new rows'] = lambda cursor, table: cursor.copy_expert(f'COPY {table} FROM STDIN', io.StringIO(new))
    count = bench.rounds or bench.amount(2, 5)
    return {what: compare.rounds(names, count, lambda name, work=work: measure(name, work)) for what, work in works.items()}


def show(result):
    lines = []
    for what, r in result.items():
        for name in r:
            lines.append([f'{what}: {report.way(name)}', f"{compare.median(r, name, 'p50') / 1000:.1f}",
                          compare.format_spread(compare.ratio(r, name, 'unfenced')),
                          *(f'{compare.median(r, name, f) / 1000:.1f}' for f in compare.SERVERS),
                          compare.format_spread(compare.cheaper(r, name, 'unfenced'))])
    return report.table(['one transaction', 'ms', 'ratio (spread)', 'CPU ms backend', 'Redis', 'courier', 'ratio by CPU (spread)'], lines)
