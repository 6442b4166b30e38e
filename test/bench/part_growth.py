"""Measures whether the ratio to unfenced falls with more fenced rows, attached tables or backends. It must not."""

import compare
import report
from servers import fill

FENCES_MAX = 1_000_000                  # fences that are filled; the tables may have more rows


def compare_tables(bench, fenced, unfenced, rows, count, clients=8):
    def measure(name):
        table = fenced if name == 'fenced' else unfenced
        return compare.load(compare.update(table), bench.pg, bench.redis, clients, bench.seconds or bench.amount(0.6, 1.5),
                            rows=rows, synchronous_commit='off')
    for name in 'unfenced', 'fenced':
        measure(name)
    return compare.rounds(['unfenced', 'fenced'], count, measure)


def grow_rows(bench, count):
    result = {}
    for rows in bench.amount((10_000, 100_000), (10_000, 100_000, 1_000_000, 10_000_000)):
        names = f'rows_{rows}', f'unfenced_{rows}'
        for name in names:
            bench.pg.sql(f'CREATE TABLE {name} (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off)')
            bench.pg.sql(f"INSERT INTO {name} SELECT i, 0, 'x' FROM generate_series(1, %s) i", rows)
            bench.pg.sql(f'VACUUM ANALYZE {name}')
        bench.pg.sql('SELECT fence.attach(%s)', names[0])
        bench.pg.sql('CHECKPOINT')
        warm = min(rows, FENCES_MAX)
        fill(bench.pg, bench.redis, names[0], warm, payload=1)
        result[f'{rows:,} rows, {warm:,} fences'] = compare_tables(bench, *names, warm, count)
        bench.pg.sql('SELECT fence.detach(%s)', names[0])
        for name in names:
            bench.pg.sql(f'DROP TABLE {name}')
    return result


def grow_tables(bench, count):
    result = {}
    attached = 0
    for tables in bench.amount((64,), (1, 8, 64)):
        while attached < tables - 1:
            attached += 1
            bench.pg.sql(f'CREATE TABLE extra_{attached} (id int8 PRIMARY KEY, version int8 NOT NULL)')
            bench.pg.sql('SELECT fence.attach(%s)', f'extra_{attached}')
        result[f'{tables} more tables attached'] = compare_tables(bench, 'fenced', 'unfenced', compare.ROWS, count)
    return result


def grow_backends(bench, count):
    return {f'{clients} backends': compare_tables(bench, 'fenced', 'unfenced', compare.ROWS, count, clients)
            for clients in bench.amount((1, 200), (1, 8, 32, 64, 200))}


def run(bench):
    count = bench.rounds or bench.amount(2, 4)
    return {**grow_rows(bench, count), **grow_tables(bench, count), **grow_backends(bench, count)}


def show(result):
    return report.table(['UPDATE of one row, 8 clients unless said, synchronous_commit=off', 'unfenced TPS', 'fenced TPS',
                         'ratio (spread)', 'p99 µs unfenced', 'fenced', 'CPU µs of Redis'],
                        [[name, f"{compare.median(r, 'unfenced', 'tps'):.0f}", f"{compare.median(r, 'fenced', 'tps'):.0f}",
                          compare.format_spread(compare.ratio(r, 'fenced', 'unfenced')),
                          f"{compare.median(r, 'unfenced', 'p99'):.0f}", f"{compare.median(r, 'fenced', 'p99'):.0f}",
                          f"{compare.median(r, 'fenced', 'cpu_redis'):.1f}"] for name, r in result.items()])
