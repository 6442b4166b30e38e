#!/usr/bin/python3
"""Repeats runs with random faults, each with its own seed, until the given time has passed.

    sh test/history/soak.sh --minutes N [--seed N]
"""

import argparse
import collections
import random
import statistics
import sys
import time

import run

RUN_SECONDS = 90


def main():
    parser = argparse.ArgumentParser(prog='soak.sh', description='Random faults for a long time.')
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(1 << 31), help='seed of the first run; each next run adds 1')
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    total, seen, bad = collections.Counter(), collections.defaultdict(list), []
    seed = options.seed
    while time.monotonic() < end:
        result = run.run_once(run.make_options(faults='random', seconds=RUN_SECONDS, seed=seed))
        run.summary(result)
        sys.stdout.flush()
        total.update({name: result[name] for name in ('reads', 'hits', 'wrong_hits', 'torn', 'lost_writes')})
        total['runs'] += 1
        for effect in result['effects']:
            seen[effect['name']].append(effect)
        if not result['good']:
            bad.append(seed)
        seed += 1
    print('\n%d runs, %d faults, %d reads, %d hits (%.1f %%), %d wrong, %d torn' % (
        total['runs'], sum(map(len, seen.values())), total['reads'], total['hits'],
        100 * total['hits'] / max(1, total['reads']), total['wrong_hits'], total['torn']))
    for name, effects in sorted(seen.items()):
        print('%-28s %3d times, no hit for %.2f s (worst %.2f), longest COMMIT %.2f s (worst %.2f)' % (
            name, len(effects), statistics.median(e['bypass'] for e in effects), max(e['bypass'] for e in effects),
            statistics.median(e['wait'] for e in effects), max(e['wait'] for e in effects)))
    print('GOOD' if not bad else 'BAD: seeds %s' % bad)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
