"""UPDATE of one row by 8 clients: fenced against unfenced. The number to optimize by."""

import re
import subprocess

import compare
import report
from servers import BASE, BINDIR

CLIENTS = 8
NAMES = {'unfenced': 'unfenced', 'fenced': 'fenced', 'by_triggers': 'fenced, told by triggers'}


def run(bench):
    count = bench.rounds or bench.amount(4, 10)
    seconds = bench.seconds or bench.amount(1.0, 2.0)
    result = {}
    for sync in 'on', 'off':
        def measure(name, sync=sync):
            return compare.load(compare.VARIANTS[name], bench.pg, bench.redis, CLIENTS, seconds, synchronous_commit=sync)
        for name in NAMES:
            measure(name)                               # full-page images, plans, connections
        result[sync] = compare.rounds(list(NAMES), count, measure, bench.vacuum)
        result[f'pgbench {sync}'] = compare.rounds(['unfenced', 'fenced'], 2,
                                                   lambda name, sync=sync: pgbench(bench, name, sync, seconds))
    return result


def pgbench(bench, table, sync, seconds):
    """The same with the load generator that everybody knows, as a check of ours."""
    script = f'{BASE}/{table}.pgbench'
    with open(script, 'w') as f:
        f.write(f"\\set id random(1, {compare.ROWS})\nUPDATE {table} SET data = repeat('x', 100) WHERE id = :id;\n")
    done = subprocess.run([f'{BINDIR}/pgbench', '-n', '-M', 'prepared', '-c', str(CLIENTS), '-j', str(compare.THREADS),
                           '-T', str(max(round(seconds), 1)), '-f', script, bench.pg.conninfo(synchronous_commit=sync)],
                          stdout=subprocess.PIPE, check=True, text=True)
    return {'tps': float(re.search(r'tps = ([\d.]+)', done.stdout).group(1))}


def cpu(r):
    """Of all three; its ratio is what a busy machine disturbs least."""
    return r['cpu_backends'] + r['cpu_redis'] + r['cpu_load']


def show(result):
    lines = []
    for sync, r in result.items():
        for name in r:
            if sync.startswith('pgbench'):
                lines.append([f'{name}, synchronous_commit={sync[8:]}, by pgbench', f"{compare.median(r, name, 'tps'):.0f}",
                              compare.format_spread(compare.ratio(r, name, 'unfenced')), *[''] * 6])
                continue
            lines.append([f'{NAMES[name]}, synchronous_commit={sync}', f"{compare.median(r, name, 'tps'):.0f}",
                          compare.format_spread(compare.ratio(r, name, 'unfenced')),
                          *(f'{compare.median(r, name, f):.0f}' for f in ('p50', 'p99')),
                          *(f'{compare.median(r, name, f):.1f}' for f in ('cpu_backends', 'cpu_redis', 'cpu_load')),
                          compare.format_spread(compare.spread([cpu(a) / cpu(b) for a, b in zip(r['unfenced'], r[name])]))])
    return report.table(['UPDATE of one row, 8 clients', 'TPS', 'ratio (spread)', 'p50 µs', 'p99 µs', 'CPU µs/tx backends',
                         'Redis', 'load generator', 'ratio by CPU (spread)'], lines)
