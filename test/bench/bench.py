"""The benchmark's parts, in order; see run.sh."""

import argparse
import json
import signal
import sys
import time

import compare
import report
from servers import BASE, Postgres, Redis, fill, running

import part_against
import part_bounds
import part_calls
import part_effects
import part_growth
import part_hits
import part_library
import part_memory
import part_multiplexer
import part_patrol
import part_rows
import part_single
import part_window

PARTS = {
    'single': part_single, 'against': part_against, 'bounds': part_bounds, 'rows': part_rows, 'hits': part_hits,
    'calls': part_calls, 'window': part_window, 'memory': part_memory, 'growth': part_growth, 'patrol': part_patrol,
    'effects': part_effects, 'multiplexer': part_multiplexer, 'library': part_library,
}


class Bench:
    """What the parts share: the servers, how long to measure, and where results go."""

    def __init__(self, arguments):
        self.quick = arguments.quick
        self.brief = bool(arguments.only)
        self.rounds = arguments.rounds
        self.seconds = arguments.seconds
        self.results = {}
        self.ticks = report.processor_ticks()
        self.redis = None
        self.pg = None

    def amount(self, quick, full):
        return quick if self.quick else full

    def vacuum(self):
        for table in 'unfenced', 'fenced', 'by_triggers', 'plpython', 'notify', 'app':
            self.pg.sql(f'VACUUM {table}')

    def warm(self):
        """Every fence has a version, every row a value."""
        for domain in 'fenced', 'by_triggers':
            fill(self.pg, self.redis, domain, compare.ROWS)


def say(text):
    print(text, flush=True)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument('--inside')
    parser.add_argument('--out')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--only', action='append', choices=PARTS)
    parser.add_argument('--rounds', type=int)
    parser.add_argument('--seconds', type=float)
    return parser.parse_args()


def main():
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(arguments)
    bench.redis = Redis()
    with running(bench.redis):
        bench.pg = Postgres('data', bench.redis)
        with running(bench.pg):
            bench.machine = report.machine(bench)
            say('\n'.join(bench.machine))
            compare.make_tables(bench.pg, bench.redis)
            bench.warm()
            for name in arguments.only or PARTS:
                started = time.monotonic()
                bench.results[name] = PARTS[name].run(bench)
                say('\n' + PARTS[name].show(bench.results[name]))
                say(f'({name}: {time.monotonic() - started:.0f} s)')
    with open(f'{BASE}/results.json', 'w') as f:
        json.dump(bench.results, f, indent=1)
    if not arguments.only or arguments.out:
        report.write(bench, PARTS)


main()
