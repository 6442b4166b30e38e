#!/usr/bin/python3
"""One run: starts servers and a workload that uses one strategy, injects faults, and judges the history.

    sh test/history.sh run [--strategy NAME] [--faults A,B | random | none] [--seconds N] [--reads N] [--seed N] ...

All random choices come from the seed, which is printed. How operations interleave depends on the machine, so the same seed
repeats the choices but not the exact history.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import sys
import time

import checker
import faults
from fence_site import Site
from nodes_site import NodesSite
from servers import Timeout
from workload import CLIENT_FAULTS, FENCED, MISREAD, Workload, build

ALL_FAULTS = {**faults.FAULTS, **CLIENT_FAULTS}         # the faults for a site with one Redis server
FAULTS_OF = {'single': ALL_FAULTS, **{layout: {**found, **CLIENT_FAULTS} for layout, found in faults.NODES_FAULTS.items()}}
STRATEGIES = ('fence', 'program', *MISREAD, 'delete', 'delete-twice', 'write-through', 'notify', 'version-check', 'lease-timeout')
SETTLE_SECONDS = 40
PREPARED = {'c': 'committed', 'a': 'rolled back', '?': 'unknown', 'outlived': 'committed in another session than prepared'}


def number_of_keys(text):
    if not 2 <= int(text) <= 200:
        raise argparse.ArgumentTypeError('the workload has 2 to 200 keys')
    return int(text)


def arguments(parser):
    parser.add_argument('--strategy', choices=STRATEGIES, default='fence')
    parser.add_argument('--program', metavar='COMMAND', help='for strategy program: a reader in any language. sh -c starts it in the '
                        'top directory, once for each reader; test/clients/conformance.md describes its input and output')
    parser.add_argument('--nodes', choices=tuple(FAULTS_OF), default='single',
                        help='the layout of the Redis servers; more than one server needs strategy fence')
    parser.add_argument('--faults', default='none', help='names separated by commas, injected in this order again and '
                        'again; or random; or none')
    parser.add_argument('--clients', default='', help='faults of clients, which last as long as the run')
    parser.add_argument('--seconds', type=float, default=20, help='minimum duration')
    parser.add_argument('--reads', type=int, default=0, help='minimum number of reads')
    parser.add_argument('--limit', type=float, default=1800, help='seconds after which the run ends even with fewer reads')
    parser.add_argument('--seed', type=int, default=None)
    parser.add_argument('--readers', type=int, default=6)
    parser.add_argument('--writers', type=int, default=4)
    parser.add_argument('--keys', type=number_of_keys, default=64)
    parser.add_argument('--cache', choices=('none', 'row'), default=None,
                        help='for strategy fence: whether commits fill the cache too (row), or readers only (none); default: drawn')
    parser.add_argument('--versions', choices=('trigger', 'application', 'aside', 'group', 'attachments'), default=None,
                        help='for strategy fence: who sets the versions of changed rows. aside: the table is attached with '
                        'version => NULL; group: each row is a group; both imply --cache none. attachments: the table has three; '
                        'readers read by the unique key of rows that also have another; with --capture triggers that key is a '
                        'generated column. Default: trigger or application, drawn')
    parser.add_argument('--absent', choices=('no', 'yes'), default=None,
                        help='for strategy fence: whether the absence of a row is cached; default: drawn')
    parser.add_argument('--reserve', choices=('early', 'commit'), default=None,
                        help='for strategy fence: when transactions reserve rows; default: drawn')
    parser.add_argument('--capture', choices=('auto', 'triggers', 'mixed'), default=os.environ.get('FENCE_CAPTURE') or None,
                        help='pgcache_fence.capture in the sessions. mixed: each session draws it. Default: the environment '
                        'variable FENCE_CAPTURE, else drawn')
    parser.add_argument('--buckets', type=int, default=None, help='for strategy fence: pgcache_fence.watch_buckets, 0 for none; default: drawn')
    parser.add_argument('--pause-us', type=int, default=3000, help='microseconds that a writer pauses between transactions')
    parser.add_argument('--gap', type=float, default=1.0, help='seconds between two faults')
    parser.add_argument('--once', action='store_true', help='inject each fault once')
    parser.add_argument('--defects', default='1,2,3,4,6',
                        help='defects of strategy lease-timeout (see lease.c). With defect 5, versions begin at 2^53')
    parser.add_argument('--examples', type=int, default=2, help='how many violations of each kind to print')
    parser.add_argument('--keep', metavar='DIR', help='where to keep histories and logs')
    parser.add_argument('--verbose', action='store_true', help='print each fault when it has healed')
    parser.add_argument('--list', action='store_true', help='list strategies and faults')


class Run:
    """options: see arguments(). directory: where the run leaves its files."""

    def __init__(self, options, directory, program):
        self.options, self.directory, self.program = options, directory, program
        self.rng = random.Random(options.seed)
        self.known = FAULTS_OF[options.nodes]
        self.names = [] if options.faults in ('none', '') else options.faults.split(',') if options.faults != 'random' \
            else sorted(self.known)
        self.broken = False
        self.records, self.losses, self.logs, self.complaints = [], [], [], []

    def site_options(self):
        found = {}
        for name in self.names:
            found.update(self.known[name].options)
        if self.options.buckets is not None:
            found['settings'] = {**found.get('settings', {}), 'pgcache_fence.watch_buckets': self.options.buckets}
        return found

    def next_names(self):
        """Yields the names of faults in the order to inject them, endlessly unless options.once."""
        order = list(self.names)
        while order:
            if self.options.faults == 'random':
                self.rng.shuffle(order)
            yield from order
            if self.options.once:
                return

    def inject(self, name):
        fault = self.known[name]
        try:
            record = fault.inject(self.workload if name in CLIENT_FAULTS else self.site, self.rng)
        except faults.NotDone as error:
            print('fault %-28s not done: %s' % (name, error), flush=True)
            return
        except Exception as error:      # the checker judges the reads until now all the same
            self.complaints.append('fault %s: %s: %s' % (name, type(error).__name__, error))
            self.broken = True
            return
        record['name'] = name
        if self.options.verbose:
            print('fault %-28s %.1f s' % (name, record['healed'] - record['injected']), flush=True)
        if record['lost_commits_possible']:
            self.losses.append(record['lost_commits_possible'][1])
            self.logs.append('item_log.%d' % len(self.losses))
            self.workload.dump_log(self.logs[-1])
        self.records.append(record)

    def enough(self, begin):
        """Whether the run may end: it has lasted long enough and read enough, or reached its limit, or the workload has ended."""
        lasted = time.monotonic() - begin
        return not self.workload.running() or (lasted > self.options.seconds and (
            self.workload.reads() >= self.options.reads or lasted > self.options.limit))

    def disturb(self):
        """Injects faults one after the other until the run may end."""
        begin = time.monotonic()
        names = self.next_names()
        name = next(names, None)
        time.sleep(1.5)
        while not self.broken and self.workload.running() and (not self.enough(begin) or self.options.once and name):
            if name:
                self.inject(name)
                name = next(names, None)
            time.sleep(self.options.gap * self.rng.uniform(0.7, 1.3))

    def examine(self):
        """Checks after the workload that no reservation is left, and that fences agree with their rows or tombstones."""
        if self.options.strategy == 'lease-timeout':
            self.examine_leases()
        if self.options.strategy not in ('fence', 'program'):
            return
        self.site.wait_open(90)
        try:
            self.site.wait_settled(SETTLE_SECONDS)
        except Timeout as error:
            self.complaints.append('reservations are left: %s' % error)
        rows = self.site.psql(
            "SELECT n, s.fence_version, s.row_version, s.relation, s.pending FROM generate_series(1, %d) n, "
            "fence.status('item', n::text) s WHERE s.relation NOT IN ('equal', 'missing') OR s.pending <> 0"
            % (2 * self.options.keys))
        for row in rows:
            self.complaints.append('key %s: fence %s, row %s: %s, %s pending' % row)
        rows = self.site.psql("SELECT d.domain, a.relation, a.count FROM fence.domains d, fence.audit(d.domain) a "
                              "WHERE a.relation NOT IN ('equal', 'missing') AND a.count > 0")
        for row in rows:
            self.complaints.append('domain %s: %s of %d keys' % row)

    def examine_leases(self):
        client = self.site.redis.client()
        for key, version in self.site.psql('SELECT id, version FROM item'):
            fence = client.hget('lease:{%d}' % key, 'c')
            if fence is not None and int(fence) > version:
                self.complaints.append('key %d: fence %s, row %d: fence_ahead_db' % (key, fence, version))
        client.close()

    def run(self):
        """Does the whole run. Returns the figures of the checker, with the complaints of examine()."""
        options = self.options
        directory = os.path.join(self.directory, 'site')
        self.site = Site(directory, options.seed, **self.site_options()) if options.nodes == 'single' else \
            NodesSite(directory, options.seed, options.nodes, **self.site_options())
        defects = {int(n) for n in options.defects.split(',') if n}
        self.workload = Workload(self.site, os.path.join(self.directory, 'run'), options.strategy, options.seed,
                                 options.keys, options.readers, options.writers, options.pause_us,
                                 sum(1 << (n - 1) for n in defects), 400,
                                 2 ** 53 if options.strategy == 'lease-timeout' and 5 in defects else 0,
                                 options.cache, options.versions, options.absent == 'yes', options.reserve, options.capture)
        try:
            self.site.start()
            if options.strategy == 'token-elsewhere':
                self.site.ensure_replica()
            self.workload.start(self.program)
            for name in filter(None, options.clients.split(',')):
                CLIENT_FAULTS[name].begin(self.workload)
            self.disturb()
            self.workload.stop()
            self.logs.append('item_log.end')
            self.workload.dump_log(self.logs[-1])
            self.examine()
        finally:
            try:
                if self.workload.process:
                    self.workload.process.kill()
                    self.workload.process.wait()
            finally:
                self.site.stop()
        self.write_record()
        return self.judge()

    def judge_ways(self, result):
        """Complains if the run did not exercise what its options ask for."""
        options, ways = self.options, result['ways']
        if (result['written'] > 0) != (options.cache == 'row'):
            self.complaints.append('cache %s, and %d hits of what commits wrote' % (options.cache, result['written']))
        if result['absent'] and options.absent == 'no' and options.versions not in ('group', 'attachments'):
            self.complaints.append('%d hits that there is no row, which was not to be cached' % result['absent'])
        for way in ('block', 'plain', 'pipeline', 'slow', 'beside', 'fence.get', 'derived'):
            if not ways.get(way, {}).get('hit'):
                self.complaints.append('no hit of the kind "%s"' % way)

    def write_record(self):
        def ns(seconds):
            return None if seconds is None else int(seconds * 1e9)

        def stopped(who):
            return who and (who[0], ns(who[1]), ns(who[2]))
        with open(os.path.join(self.directory, 'run', 'run.json'), 'w') as file:
            json.dump({'strategy': self.options.strategy, 'seed': self.options.seed,
                       'losses': [ns(loss) for loss in self.losses], 'lost_grace': ns(self.site.lease),
                       'logs': self.logs,
                       'faults': [{'name': r['name'], 'injected': ns(r['injected']), 'healed': ns(r['healed']),
                                   'stopped': stopped(r.get('stopped'))} for r in self.records]}, file, indent=1)

    def judge(self):
        result = checker.check(os.path.join(self.directory, 'run'), self.options.examples)
        result['complaints'] = self.complaints
        if not result['hits']:
            self.complaints.append('there was no hit, so nothing is proven')
        if self.options.strategy == 'fence':
            self.judge_ways(result)
        elif self.options.strategy == 'program' and not result['ways'].get('program', {}).get('hit'):
            self.complaints.append('the program told of no hit')
        for complaint in self.complaints:
            print('AT THE END: ' + complaint)
        result['slow'] = ['%s: a COMMIT waited %.2f s, of %.2f' % (effect['name'], effect['wait'], self.site.longest_wait())
                          for effect in result['effects'] if effect['wait'] > self.site.longest_wait()]
        result['wrong_hits'] = sum(result[kind] for kind in checker.READ_KINDS)
        result['good'] = not result['wrong_reads'] and not self.complaints
        result['faults'] = [record['name'] for record in self.records]
        return result


def per_million(number, reads):
    return 1e6 * number / reads if reads else 0


def summary(result):
    print('reads %d, hits %d (%.1f %%; %d of a value that came with its commit), groups of one snapshot %d; '
          'transactions %s' % (
        result['reads'], result['hits'], 100 * result['hits'] / max(1, result['reads']), result['written'],
        result['groups'],
        ', '.join('%s %d' % ({'c': 'committed', 'a': 'failed', '?': 'unknown'}[k], n)
                  for k, n in sorted(result['transactions'].items()))))
    print('answers: ' + ', '.join('%s %d' % (checker.WORDS.get(k, 'nothing'), n)
                                  for k, n in sorted(result['kinds'].items(), key=lambda item: -item[1])))
    if result['ways']:
        print('ways: ' + '; '.join('%s: %s' % (way, ', '.join('%s %d' % item for item in sorted(how.items())))
                                   for way, how in result['ways'].items()) +
              '; hits that there is no row %d' % result['absent'])
    if result['prepared']:
        print('two-phase transactions: ' + ', '.join('%s %d' % (PREPARED[how], n)
                                                     for how, n in sorted(result['prepared'].items())))
    for note, number in result['notes'].items():
        print('note: %d %s' % (number, note))
    for effect in result['effects']:
        print('fault %-28s no hit for %6.2f s, longest COMMIT %6.2f s, hit rate %s -> %s' % (
            effect['name'], effect['bypass'], effect['wait'], effect['before'], effect['after']))
    print('stale reads %d (%.1f per million), %d of them after all work of the write was done' % (
        result['stale'], per_million(result['stale'], result['reads']), result['lasting']))
    others = {kind: result[kind] for kind in checker.KINDS if kind != 'stale' and result[kind]}
    if others:
        print('other violations: ' + ', '.join('%s %d' % item for item in others.items()))
    if result['lost_writes']:
        print('writes that PostgreSQL lost in faults: %d' % result['lost_writes'])
    print('GOOD: nothing stale was read' if result['good'] else 'BAD')


def base_directory():
    return os.environ.get('TMPDIR') or '/tmp'


def make_options(**given):
    parser = argparse.ArgumentParser()
    arguments(parser)
    options = parser.parse_args([])
    for name, value in given.items():
        if not hasattr(options, name):
            raise TypeError(name)
        setattr(options, name, value)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    return options


def run_once(options, program=None):
    """Prints the command that repeats the run, does the run, and removes its files."""
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    if options.program:
        options.strategy = 'program'
        os.environ['HISTORY_PROGRAM'] = options.program
    if options.versions in ('aside', 'group'):
        options.cache = 'none'
    if options.cache is None:
        options.cache = ('none', 'row')[options.seed % 2]
    if options.versions is None:
        options.versions = ('trigger', 'application')[options.seed // 2 % 2]
    if options.absent is None:
        options.absent = 'no' if options.versions in ('group', 'attachments') else ('no', 'yes')[options.seed // 4 % 2]
    if options.reserve is None:
        options.reserve = ('early', 'commit')[options.seed // 8 % 2]
    if options.capture is None:
        options.capture = ('auto', 'triggers', 'mixed')[options.seed // 16 % 3]
    if options.buckets is None and options.strategy in FENCED:      # wrong readers have none, which might refuse what they put
        options.buckets = 0 if options.strategy in MISREAD else (1 << 20, 64, 4096, 0)[options.seed // 48 % 4]
    directory = options.keep or os.path.join(base_directory(), 'history-%d-%d' % (os.getpid(), random.getrandbits(24)))
    os.makedirs(directory, exist_ok=True)
    words = ['run']
    for name in ('strategy', 'program', 'nodes', 'defects', 'cache', 'versions', 'absent', 'reserve', 'capture', 'buckets', 'faults', 'clients', 'seconds', 'reads',
                 'readers', 'writers', 'keys', 'gap', 'seed'):
        value = getattr(options, name)
        if (value or name == 'buckets') and options.strategy in {'defects': ('lease-timeout',), 'cache': FENCED, 'versions': FENCED, 'absent': FENCED,
                                          'reserve': FENCED, 'capture': FENCED, 'buckets': FENCED}.get(name, STRATEGIES):
            words += ['--' + name, shlex.quote(str(value))]
    if options.once:
        words.append('--once')
    print(' '.join(words), flush=True)
    try:
        return Run(options, directory, program or build(directory)).run()
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(prog='history.sh run', description='One run of the history checker.')
    arguments(parser)
    options = parser.parse_args()
    if options.list:
        print('strategies: ' + ' '.join(STRATEGIES))
        for layout, found in FAULTS_OF.items():
            print('%s:' % layout)
            for name, fault in found.items():
                if layout == 'single' or name not in ALL_FAULTS:
                    print('%-28s %s' % (name, fault.describe))
        return 0
    begin = time.monotonic()
    result = run_once(options)
    summary(result)
    print('%.0f s' % (time.monotonic() - begin))
    return 0 if result['good'] else 1


if __name__ == '__main__':
    sys.exit(main())
