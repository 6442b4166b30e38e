"""What a hit costs, against redis-py's own GET in the same run, on a quiet machine: `sh test/run.sh --only python bench`. Prints TAP.

GETs come one after the other, each key of several is compared with one of them, and values are bytes on both sides.
Each line is the median of rounds in which both take turns, so that what else the machine does meets both. A ratio of 0.7 is: a read
takes 1/0.7 of the time of a GET. Kept values are checked, and not sent again.
"""

import asyncio
import statistics
import sys
import tempfile
import time

from conftest import running, wait_for
from pgcache_fence import AsyncFences, Fences, Raw

ROUNDS, CALLS, KEYS = 15, 150, list(range(1, 21))
LEAST = {'one key': 0.7, '20 keys': 1.0}


def seconds(call, n):
    begin = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - begin) / n


class Loop:
    """What is asynchronous, one call at a time."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()

    def seconds(self, call, n):
        async def body():
            begin = time.perf_counter()
            for _ in range(n):
                await call()
            return (time.perf_counter() - begin) / n
        return self.loop.run_until_complete(body())


def compare(what, timed, get, read, keys=1):
    """One line of the table: the costs of GET and of the library, each for one key, and their ratio."""
    ratios, gets, reads = [], [], []
    for _ in range(ROUNDS):
        gets.append(timed(get, CALLS))
        reads.append(timed(read, max(1, CALLS // keys)) / keys)
        ratios.append(gets[-1] / reads[-1])
    ratio = statistics.median(ratios)
    print('# | %-34s | %7.1f us | %7.1f us | %5.2f |' % (what, 1e6 * statistics.median(gets), 1e6 * statistics.median(reads), ratio), flush=True)
    return ratio


def warm(fences, call=lambda result: result):
    def all_hits():
        before = fences.counters.snapshot()['reads'].get('account', {}).get('database', 0)
        call(fences.read_many('account', KEYS))
        return fences.counters.snapshot()['reads']['account'].get('database', 0) == before
    wait_for(all_hits, 'hits')


def blocking(world, where):
    client, name = world.redis(), world.name('account', 1)
    fences = Fences(client, world.connect(), codec=Raw)
    kept = Fences(client, world.connect(), codec=Raw, local=100)
    for each in (fences, kept):
        warm(each)
    kept.read('account', 1)
    yield 'one key', compare(where + ', one key', seconds, lambda: client.get(name), lambda: fences.read('account', 1))
    yield '20 keys', compare(where + ', 20 keys', seconds, lambda: client.get(name), lambda: fences.read_many('account', KEYS), len(KEYS))
    yield '', compare(where + ', one that is kept', seconds, lambda: client.get(name), lambda: kept.read('account', 1))
    yield '', compare(where + ', 20 that are kept', seconds, lambda: client.get(name), lambda: kept.read_many('account', KEYS), len(KEYS))


def asynchronous(world, where):
    loop, name = Loop(), world.name('account', 1)

    async def make():
        return world.async_redis()
    client = loop.loop.run_until_complete(make())
    sync = Fences(world.redis(), world.connect(), codec=Raw)
    warm(sync)
    fences = AsyncFences(client, codec=Raw)
    fences._core._domains = sync._core._domains
    yield 'one key', compare(where + ', one key', loop.seconds, lambda: client.get(name), lambda: fences.read('account', 1))
    yield '20 keys', compare(where + ', 20 keys', loop.seconds, lambda: client.get(name), lambda: fences.read_many('account', KEYS), len(KEYS))


def main():
    done = bad = 0
    print('# | hit, per key                       |  GET       | library    | ratio |\n# | --- | ---: | ---: | ---: |')
    with tempfile.TemporaryDirectory() as directory:
        for cluster, where in ((False, ''), (True, 'cluster, ')):
            with running(directory + '/%d' % cluster, cluster) as world:
                for kind, measure in (('threads', blocking), ('asyncio', asynchronous)):
                    for what, ratio in measure(world, where + kind):
                        if what:
                            good = ratio >= LEAST[what]
                            done, bad = done + 1, bad + (not good)
                            print('%sok %d - %s%s, %s: %.2f of %.1f' % ('' if good else 'not ', done, where, kind, what, ratio, LEAST[what]), flush=True)
    print('1..%d' % done)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
