"""Runs the parts of the benchmark in order; see run.sh."""

import argparse
import signal
import sys
import time
import traceback

import compare
import report
from servers import Postgres, Redis, fill, running

import part_against
import part_attachments
import part_bounds
import part_buckets
import part_bulk
import part_calls
import part_cold
import part_effects
import part_growth
import part_hits
import part_library
import part_memory
import part_patrol
import part_rows
import part_scaling
import part_single
import part_warm
import part_window

PARTS = {
    'library': part_library, 'hits': part_hits, 'memory': part_memory, 'single': part_single, 'buckets': part_buckets,
    'rows': part_rows, 'bulk': part_bulk, 'against': part_against, 'cold': part_cold, 'calls': part_calls, 'attachments': part_attachments,
    'window': part_window, 'patrol': part_patrol, 'growth': part_growth, 'bounds': part_bounds, 'effects': part_effects,
    'scaling': part_scaling, 'warm': part_warm,
}
PUBLISH_MINUTES = 40                    # after this time --publish begins no further part and no further round
PUBLISH = {'rounds': 6, 'seconds': 1.0}


class Bench:
    """Shared by the parts: the servers, how long to measure, and the results."""

    def __init__(self, arguments):
        self.publish = arguments.publish
        self.quick = arguments.quick or arguments.publish
        self.capture = arguments.capture
        self.rounds = arguments.rounds or (PUBLISH['rounds'] if arguments.publish else None)
        self.seconds = arguments.seconds or (PUBLISH['seconds'] if arguments.publish else None)
        self.results = {}
        self.noise = report.Noise()
        self.left_out, self.failed = [], []
        self.redis = None
        self.pg = None

    def amount(self, quick, full):
        return quick if self.quick else full

    def refresh(self):
        """Removes dead rows between rounds, and caches every row again, because a write removes its row from the cache."""
        for table in 'unfenced', 'fenced', 'plpython', 'notify', 'app':
            self.pg.sql(f'VACUUM {table}')
        self.warm()

    def warm(self):
        """Caches every row, so that each fence has a version and a value."""
        fill(self.pg, self.redis, 'fenced', compare.ROWS)

    def run(self, names):
        """Runs the parts one after the other; with --publish only while there is time."""
        for name in names:
            if time.monotonic() > compare.deadline:
                self.left_out.append(name)
                continue
            started, noise = time.monotonic(), report.Noise()
            try:
                result = PARTS[name].run(self)
                say('\n' + PARTS[name].show(result))
                self.results[name] = result
            except (Exception, SystemExit) as error:    # keep what the other parts have measured
                if isinstance(error, SystemExit) and isinstance(error.code, int):
                    raise
                traceback.print_exc()
                self.failed.append(name)
            say(f'({name}: {time.monotonic() - started:.0f} s; {noise.words()})')


def say(text):
    print(text, flush=True)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument('--out')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--publish', action='store_true')
    parser.add_argument('--capture', action='store_true')
    parser.add_argument('--only', action='append', choices=PARTS)
    parser.add_argument('--rounds', type=int)
    parser.add_argument('--seconds', type=float)
    return parser.parse_args()


def main():
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(arguments)
    if bench.publish:
        compare.deadline = time.monotonic() + PUBLISH_MINUTES * 60
    bench.redis = Redis()
    with running(bench.redis):
        bench.pg = Postgres('data', bench.redis)
        with running(bench.pg):
            bench.machine = report.machine(bench)
            say('\n'.join(bench.machine))
            compare.make_tables(bench.pg, bench.redis)
            bench.warm()
            bench.ways = compare.ways(bench)
            bench.run(arguments.only or PARTS)
    say(f'\nNoise: {bench.noise.words()}.')
    if not arguments.only or arguments.out:
        report.write(bench, PARTS)
    if bench.failed:
        sys.exit(f"bench: failed: {', '.join(bench.failed)}")


main()
