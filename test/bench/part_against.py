"""The fence against what services do today: UPDATE of one row, by number of clients, durability and transport."""

import subprocess

import compare
import report
from servers import BASE, wait_until

DURABILITY = ('on', 'off')
ONE = ['unfenced', 'fenced', 'app, one statement', 'plpython', 'notify']
SEVERAL = ['unfenced, BEGIN and COMMIT', 'fenced, BEGIN and COMMIT', 'app']
OVER_TCP = ['unfenced', 'fenced', 'app, one statement']
BASE_OF = {name: SEVERAL[0] if name in SEVERAL else ONE[0] for name in ONE + SEVERAL}

WHAT = {
    'unfenced': 'unfenced',
    'fenced': 'fenced',
    'app, one statement': 'application keeps the fence: begin, UPDATE, commit',
    'plpython': 'delete from a PL/Python trigger',
    'notify': 'NOTIFY and a listener that deletes',
    'unfenced, BEGIN and COMMIT': 'unfenced, in BEGIN … COMMIT',
    'fenced, BEGIN and COMMIT': 'fenced, in BEGIN … COMMIT',
    'app': 'application keeps the fence: begin, BEGIN, UPDATE, COMMIT, commit',
}


def start_listener(bench):
    listener = subprocess.Popen([f'{BASE}/bin/listener', bench.pg.conninfo(), bench.redis.socket], stdout=subprocess.PIPE)
    listener.stdout.readline()
    return listener


def set_transport(bench, tcp):
    """Sets the transport, also for the server's own connections to Redis. A new address means a new epoch, so this caches all rows
    again."""
    bench.pg.set(pgcache_fence__redis_url=bench.redis.url(tcp))
    address = f'127.0.0.1:{bench.redis.port}' if tcp else bench.redis.socket

    def moved():
        rows = bench.pg.sql("SELECT n.address FROM fence.nodes n, fence.state s WHERE s.state = 'OPEN'")
        return [row[0] for row in rows if address in row[0]]
    wait_until(moved, 40, f'the keeper does not go to {address}')
    bench.warm()


def compare_all(bench, names, clients, sync, tcp, count, seconds):
    def measure(name):
        return compare.load(compare.VARIANTS[name], bench.pg, bench.redis, clients, seconds, tcp=tcp, synchronous_commit=sync)
    return compare.rounds(names, count, measure, bench.refresh)


def run(bench):
    count = bench.rounds or bench.amount(2, 5)
    seconds = bench.seconds or bench.amount(0.6, 1.5)
    result = {}
    listener = start_listener(bench)
    try:
        for clients in bench.amount((8,), (1, 8, 32)):
            for sync in DURABILITY:
                result[f'{clients} {sync} unix'] = compare_all(bench, ONE + SEVERAL, clients, sync, False, count, seconds)
        if not bench.quick:
            set_transport(bench, True)
            for clients in (1, 8, 32):
                for sync in DURABILITY:
                    result[f'{clients} {sync} tcp'] = compare_all(bench, OVER_TCP, clients, sync, True, min(count, 3), seconds)
            set_transport(bench, False)
    finally:
        listener.terminate()
        listener.wait()
    return result


def show(result):
    lines = []
    for where, r in result.items():
        clients, sync, transport = where.split()
        for name in r:
            lines.append([WHAT[name], clients, sync, transport, f"{compare.median(r, name, 'tps'):.0f}",
                          compare.format_spread(compare.ratio(r, name, BASE_OF[name])),
                          *(f'{compare.median(r, name, f):.0f}' for f in ('p50', 'p99')),
                          *(f'{compare.median(r, name, f):.1f}' for f in ('cpu_backends', 'cpu_redis'))])
    return report.table(['UPDATE of one row', 'clients', 'synchronous_commit', 'transport', 'TPS', 'ratio to unfenced (spread)',
                         'p50 µs', 'p99 µs', 'CPU µs backends', 'CPU µs Redis'], lines)
