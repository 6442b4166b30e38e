"""One connection to Redis for all backends, or one for each: a model of both (`multiplexer.c`).

Clients compute for as long as an UPDATE with synchronous_commit=off takes, then have one call of fence_write done. The
ratio is to the same without the call. latch: a process gathers the calls of all clients and wakes them as PostgreSQL's
latches do. futex: the same with the cheapest wake-up that the kernel has.
"""

import json
import subprocess

import compare
import report
from servers import BASE, header

MODES = ['none', 'own', 'latch', 'futex']
UPDATE_MICROSECONDS = 25
CLIENTS = [1, 8, 32, 200]


def run(bench):
    fence = bench.pg.value("SELECT fence.fence_key('fenced', '0')").replace('{0}', '{multiplexer%i}')
    said = header(bench.pg).replace('%_', ' ')
    seconds = bench.seconds or bench.amount(0.6, 1.5)

    def measure(mode, clients):
        done = subprocess.run([f'{BASE}/bin/multiplexer', mode, bench.redis.socket, str(bench.redis.pid), fence, said, str(clients),
                               str(seconds), str(UPDATE_MICROSECONDS)], stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)
    return {str(clients): compare.rounds(MODES, bench.rounds or bench.amount(3, 7), lambda mode, n=clients: measure(mode, n))
            for clients in CLIENTS}


def show(result):
    lines = [[f'{clients} clients: {mode}', f"{compare.median(r, mode, 'tps'):.0f}",
              compare.format_spread(compare.ratio(r, mode, 'none')), compare.format_spread(compare.ratio(r, mode, 'own')),
              *(f'{compare.median(r, mode, f):.0f}' for f in ('p50', 'p99')),
              *(f'{compare.median(r, mode, f):.1f}' for f in ('cpu_clients', 'cpu_redis', 'cpu_gatherer'))]
             for clients, r in result.items() for mode in MODES]
    return report.table(['', 'transactions/s', 'ratio to none (spread)', 'to own', 'p50 µs of the call', 'p99 µs',
                         'CPU µs/tx clients', 'Redis', 'gatherer'], lines)
