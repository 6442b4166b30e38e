"""Measures bounds for any fence that uses row triggers and a function in Redis.

nothing: BEFORE and AFTER ROW triggers, written in C, that do nothing. after: only the AFTER ROW trigger. Redis beside: one
connection sends Redis in pipelines as many calls as fenced transactions would send, and no transaction waits for it. That is like
a connection shared by all backends that costs PostgreSQL nothing.
"""

import compare
import part_single
import report
from servers import BASE, header

STAMP = '700.00000000'                  # always the same stamp: each call ends a transaction and reserves for the next one
NAMES = ['unfenced', 'nothing', 'after', 'Redis beside', 'both', 'fenced']
WHAT = {'unfenced': 'unfenced', 'nothing': 'row triggers that do nothing',
        'after': 'an AFTER ROW trigger that does nothing', 'Redis beside': 'Redis beside',
        'both': 'row triggers that do nothing, and Redis beside', 'fenced': 'fenced'}
TABLE = {'Redis beside': 'unfenced', 'both': 'nothing'}
NOTHING = {'nothing': ['BEFORE', 'AFTER'], 'after': ['AFTER']}
SIZES = [100, 10_000, 100_000]


def make_tables(bench):
    bench.pg.sql(f"CREATE FUNCTION nothing() RETURNS trigger LANGUAGE c AS '{BASE}/bin/nothing.so'")
    for table in NOTHING:
        bench.pg.sql(f'CREATE TABLE {table} (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off)')
        bench.pg.sql(f'INSERT INTO {table} SELECT * FROM unfenced')
        for when in NOTHING[table]:
            bench.pg.sql(f'CREATE TRIGGER {when}_nothing {when} UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION nothing()')
        bench.pg.sql(f'VACUUM ANALYZE {table}')


def whole_transaction(bench):
    """A call as backends send it, which ends one transaction and reserves a row for the next. The fences belong to no rows."""
    fence = bench.pg.value("SELECT fence.fence_key('fenced', '0')").replace('{0}', '{beside%i}')
    return f'redis:FCALL fence_write 0 {header(bench.pg)} {STAMP} 1 {fence} {STAMP}'


def one_row(bench, sync):
    count = bench.rounds or bench.amount(3, 7)
    seconds = bench.seconds or bench.amount(0.6, 1.5)

    def measure(name):
        beside = whole_transaction(bench) if name in ('Redis beside', 'both') else None
        return compare.load(compare.update(TABLE.get(name, name)), bench.pg, bench.redis, part_single.CLIENTS, seconds, beside=beside,
                            synchronous_commit=sync)

    def between():
        bench.refresh()
        for table in NOTHING:
            bench.pg.sql(f'VACUUM {table}')
    for name in NAMES:
        measure(name)
    return compare.rounds(NAMES, count, measure, between)


def many_rows(bench, size):
    """One client and one UPDATE of so many rows. Redis plays no part in this bound."""
    def measure(name):
        bench.pg.sql(f'VACUUM {name}')
        return compare.load(compare.update(name, f'id >= $1 AND id < $1 + {size}'), bench.pg,
                            seconds=bench.seconds or bench.amount(0.6, 1.5), rows=compare.ROWS - size + 1,
                            transactions=0 if size < 1000 else 2, warmup=0.2,
                            initial=compare.update(name, 'id = 1')[0][4:].replace('$2', 'data'))
    names = ['unfenced', 'nothing', 'after', 'fenced']
    for name in names:
        measure(name)
    return compare.rounds(names, bench.rounds or bench.amount(3, 5), measure)


def run(bench):
    make_tables(bench)
    result = {f'1 row, 8 clients, synchronous_commit={sync}': one_row(bench, sync) for sync in ('on', 'off')}
    result |= {f'{size:,} rows in a transaction, 1 client': many_rows(bench, size) for size in SIZES}
    return result


def show(result):
    lines = [[f'{what}: {WHAT[name]}', f"{compare.median(r, name, 'tps'):.0f}",
              compare.format_spread(compare.ratio(r, name, 'unfenced')),
              *(f'{compare.median(r, name, f):.1f}' for f in ('cpu_backends', 'cpu_redis'))]
             for what, r in result.items() for name in r]
    return report.table(['UPDATE', 'TPS', 'ratio to unfenced (spread)', 'CPU µs/tx backends', 'Redis'], lines)
