"""The time from the commit record until Redis knows of the commit. For that long readers cannot put the row."""

import subprocess

import compare
import report
from servers import BASE, Postgres, fill, running, wait_until

SETTINGS = '''
track_commit_timestamp = on
pgcache_fence.namespace = 'window'
'''


def measure(bench, pg, sync, fence, count):
    done = subprocess.run([f'{BASE}/bin/window', pg.conninfo(synchronous_commit=sync), bench.redis.socket, 'fenced', '1', fence,
                           str(count)], stdout=subprocess.PIPE, check=True, text=True)
    times = sorted(int(line) for line in done.stdout.split())
    return {'p50': times[len(times) // 2], 'p99': times[len(times) * 99 // 100], 'max': times[-1]}


def start_background(bench, pg):
    """Starts eight other clients that write."""
    return subprocess.Popen([f'{BASE}/bin/load', '--clients', '8', '--threads', '1', '--seconds', '3600', '--rows', '9000',
                             '--first-row', '1000', '--pg', pg.conninfo(), '--step', compare.VARIANTS['fenced'][0]],
                            stdout=subprocess.DEVNULL)


def run(bench):
    count = bench.amount(300, 2000)
    pg = Postgres('window', bench.redis, settings=SETTINGS)
    result = {}
    with running(pg):
        compare.make_tables(pg, bench.redis, 10_000)
        fill(pg, bench.redis, 'fenced', 10_000)
        fence = pg.value("SELECT fence.fence_key('fenced', '1')")
        for sync in 'on', 'off':
            result[f'{sync}, alone'] = measure(bench, pg, sync, fence, count)
        background = start_background(bench, pg)
        try:
            wait_until(lambda: pg.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'UPDATE fenced%'") >= 8, 10,
                       'no background load')
            for sync in 'on', 'off':
                result[f'{sync}, 8 other clients'] = measure(bench, pg, sync, fence, count)
        finally:
            background.kill()
            background.wait()
    return result


def show(result):
    return report.table(['from commit record to the end of the reservation, µs; synchronous_commit', 'p50', 'p99', 'max'],
                        [[name, r['p50'], r['p99'], r['max']] for name, r in result.items()])
