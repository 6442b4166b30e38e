"""UPDATE of one row by 8 clients, fenced against unfenced, in each way. This is the main figure to optimize."""

import re
import subprocess

import compare
import report
from servers import BASE, BINDIR

CLIENTS = 8


def run(bench):
    count = bench.rounds or bench.amount(4, 10)
    seconds = bench.seconds or bench.amount(1.0, 2.0)
    names = ['unfenced', *bench.ways]
    result = {}
    for sync in 'on', 'off':
        def measure(name, sync=sync):
            table, settings = compare.in_way(name)
            return compare.load(compare.update(table), bench.pg, bench.redis, CLIENTS, seconds, synchronous_commit=sync, **settings)
        for name in names:
            measure(name)                               # a warm-up: full-page images, plans, connections
        result[sync] = compare.rounds(names, count, measure, bench.refresh)
        result[f'pgbench {sync}'] = compare.rounds(['unfenced', 'fenced'], 2,
                                                   lambda name, sync=sync: pgbench(bench, name, sync, seconds))
    return result


def pgbench(bench, table, sync, seconds):
    """The same with pgbench, as a check of our own load generator."""
    script = f'{BASE}/{table}.pgbench'
    with open(script, 'w') as f:
        f.write(f"\\set id random(1, {compare.ROWS})\nUPDATE {table} SET data = repeat('x', 100) WHERE id = :id;\n")
    done = subprocess.run([f'{BINDIR}/pgbench', '-n', '-M', 'prepared', '-c', str(CLIENTS), '-j', str(compare.THREADS),
                           '-T', str(max(round(seconds), 1)), '-f', script, bench.pg.conninfo(synchronous_commit=sync)],
                          stdout=subprocess.PIPE, check=True, text=True)
    return {'tps': float(re.search(r'tps = ([\d.]+)', done.stdout).group(1))}


def show(result):
    lines = []
    for sync, r in result.items():
        for name in r:
            if sync.startswith('pgbench'):
                lines.append([f'{name}, synchronous_commit={sync[8:]}, by pgbench', f"{compare.median(r, name, 'tps'):.0f}",
                              compare.format_spread(compare.ratio(r, name, 'unfenced')), *[''] * 6])
            else:
                lines.append([f'{report.way(name)}, synchronous_commit={sync}', *report.beside(r, name, 'unfenced')])
    return report.table(['UPDATE of one row, 8 clients', *report.BESIDE], lines)
