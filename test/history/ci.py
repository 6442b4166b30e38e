#!/usr/bin/python3
"""The short set of runs for every change. Prints TAP.

    ci.py [--seed N] [--all]

pgcache_fence must return nothing stale under random faults. This is tested with a fixed seed and with a second one (given or
drawn), with each way to set versions and to fill the cache, and with several Redis servers while slots move and masters fail.
Readers in other languages are tested too: see test/clients/conformance.md. caught.py shows that the checker can fail.
--all makes the runs longer.
"""

import argparse
import random
import sys
import time

import run

FIXED_SEED = 20240
REPLIES = 'replies_swapped,replies_repeated,replies_dropped,replies_delayed'


class Tap:
    def __init__(self):
        self.number = self.failed = 0

    def result(self, good, name):
        self.number += 1
        self.failed += not good
        print('%s %d - %s' % ('ok' if good else 'not ok', self.number, name), flush=True)

    def comment(self, text):
        for line in text.splitlines():
            print('# ' + line, flush=True)


class Commented:
    """A context that turns standard output into TAP comments."""

    def __init__(self, tap):
        self.tap, self.text = tap, ''

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def __enter__(self):
        self.former, sys.stdout = sys.stdout, self
        return self

    def __exit__(self, *error):
        sys.stdout = self.former
        self.tap.comment(self.text)


def one_run(tap, **options):
    """The result of a run; None if it failed to run."""
    begin = time.monotonic()
    result = None
    tap.comment('now: %s' % ', '.join('%s %s' % item for item in options.items()))
    with Commented(tap):
        try:
            result = run.run_once(run.make_options(**options))
            run.summary(result)
        except Exception as error:      # servers that do not start, faults that do not heal
            print('%s: %s' % (type(error).__name__, error))
        print('%.0f s' % (time.monotonic() - begin))
    return result


def nothing_stale(tap, seed, what, **options):
    """Tests pgcache_fence under faults. If nothing is wrong but that a fault could not be injected, the run is repeated."""
    for retry in range(3):
        result = one_run(tap, strategy='fence', seed=seed + 4 * retry, **options)
        if result is not None and (result['good'] or result['wrong_reads'] or
                                   not all(text.startswith('fault ') for text in result['complaints'])):
            break
    tap.result(result is not None and result['good'], 'fence: nothing stale %s (seed %d)' % (what, seed + 4 * retry))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(1 << 29), help='seed of the runs without a fixed one')
    parser.add_argument('--all', action='store_true', help='longer runs')
    given = parser.parse_args()
    tap = Tap()
    seconds = 60 if given.all else 24
    # The seed's lowest bits also decide whether commits fill the cache, who sets the versions, how the extension captures
    # changed rows, and so on: see run_once().
    for seed in (FIXED_SEED, given.seed * 16 + 15):
        nothing_stale(tap, seed, 'under random faults', faults='random', seconds=seconds)
    nothing_stale(tap, given.seed, 'with versions that are kept aside', faults='random', versions='aside', seconds=seconds)
    nothing_stale(tap, given.seed, 'with groups', faults='random', versions='group', seconds=seconds)
    nothing_stale(tap, given.seed, 'with three attachments of one table', faults='random', versions='attachments', seconds=seconds)
    nothing_stale(tap, given.seed, 'with buckets', faults='random', buckets=4096, seconds=seconds)
    nothing_stale(tap, FIXED_SEED, 'in a cluster', nodes='cluster', seconds=15, once=True,
                  faults='slots_move,cluster_failover,standby_promotion,master_pause_long')
    nothing_stale(tap, FIXED_SEED + 1, 'with shards', nodes='shards', seconds=10, once=True,
                  faults='shard_kill9,shard_pause_long,server_kill9')
    nothing_stale(tap, FIXED_SEED, 'when replies to readers are confused', faults=REPLIES, seconds=10, once=True, gap=0.3)
    nothing_stale(tap, FIXED_SEED, 'while an old primary lives on and is read', faults='old_primary_alive', seconds=8, once=True)
    library = '/usr/bin/python3 test/clients/conformance.py'
    nothing_stale(tap, FIXED_SEED, 'by the Python library', program=library, seconds=10, once=True, readers=4,
                  faults='redis_kill9_rdb,replies_swapped,replies_repeated')
    nothing_stale(tap, FIXED_SEED + 1, 'by the Python library, asynchronous and with kept values, in a cluster', nodes='cluster',
                  program=library + ' --async --local --replicas', seconds=10, once=True, readers=4, faults='slots_move,cluster_failover')
    package = 'node test/clients/conformance.js '
    nothing_stale(tap, FIXED_SEED, 'by the Node.js library, with ioredis', program=package + 'ioredis', seconds=10, once=True, readers=4,
                  faults='old_master_alive,replies_swapped,replies_repeated')
    nothing_stale(tap, FIXED_SEED + 1, 'by the Node.js library, with node-redis that reads from replicas, in a cluster', nodes='cluster',
                  program=package + 'redis replicas', seconds=10, once=True, readers=4, faults='slots_move,cluster_failover')
    nothing_stale(tap, FIXED_SEED, "by the shell's reader", program='bash test/clients/conformance.bash', seconds=5,
                  readers=2, reads=100, limit=120, keys=8, pause_us=200000)
    print('1..%d' % tap.number)
    return 1 if tap.failed else 0


if __name__ == '__main__':
    sys.exit(main())
