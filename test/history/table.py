#!/usr/bin/python3
"""Makes the tables of doc/reliability.md: runs every strategy, and every way to use pgcache_fence, under every fault.

    sh test/history.sh table [--seconds N] [--strategies A,B] [--faults A,B] [--results FILE] [--output FILE]

One cell of a table is one run. The file of results keeps all cells measured so far, so a user may interrupt the program and
start it again.
"""

import argparse
import json
import os
import statistics
import sys

import run
from workload import FENCED

NOTHING = 'none'

# The ways to use pgcache_fence: name in the tables -> options of run.py
WAYS = {'fence': {'cache': 'row', 'versions': 'trigger', 'absent': 'no', 'reserve': 'early'},
        'fence-readers': {'cache': 'none', 'versions': 'application', 'absent': 'yes', 'reserve': 'commit'},
        'fence-aside': {'cache': 'none', 'versions': 'aside', 'absent': 'no', 'reserve': 'early'},
        'fence-groups': {'cache': 'none', 'versions': 'group', 'absent': 'no', 'reserve': 'commit'}}
COLUMNS = [*WAYS, *(name for name in run.STRATEGIES if name not in FENCED)]


def parse():
    parser = argparse.ArgumentParser(prog='history.sh table', description='The tables of doc/reliability.md.')
    parser.add_argument('--seconds', type=float, default=8, help='of each run')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--strategies', default=','.join(COLUMNS))
    parser.add_argument('--faults', default=','.join([NOTHING, *run.ALL_FAULTS]))
    parser.add_argument('--results', metavar='FILE', help='keeps measured cells; cells found there are not measured again')
    parser.add_argument('--output', metavar='FILE', help='where to write the tables, in Markdown; default: standard output')
    return parser.parse_args()


def measure(strategy, fault, options):
    """The figures of one cell; None if this fault cannot affect this strategy."""
    way = WAYS.get(strategy, WAYS['fence'])
    result = run.run_once(run.make_options(strategy='fence' if strategy in WAYS else strategy, faults=fault,
                                           seconds=options.seconds, seed=options.seed, gap=1.5, examples=0, **way))
    if fault != NOTHING and not result['faults']:
        return None
    result['complaints'] += result['slow']
    return {'reads': result['reads'], 'hits': result['hits'], 'wrong': result['wrong_hits'], 'torn': result['torn'],
            'lasting': result['lasting'], 'good': result['good'] and not result['slow'], 'effects': result['effects'],
            'complaints': result['complaints']}


def collect(options):
    results = {}
    if options.results and os.path.exists(options.results):
        with open(options.results) as file:
            results = json.load(file)
    for fault in options.faults.split(','):
        for strategy in options.strategies.split(','):
            cell = '%s/%s' % (strategy, fault)
            if cell not in results:
                results[cell] = measure(strategy, fault, options)
                if options.results:
                    with open(options.results + '.new', 'w') as file:
                        json.dump(results, file, indent=1)
                    os.rename(options.results + '.new', options.results)
    return results


def cell_text(figures):
    if figures is None:
        return '–'
    number = run.per_million(figures['wrong'], figures['reads'])
    return '0' if number == 0 else '%.0f' % number if number >= 10 else '%.1f' % number


def stale_table(options, results):
    strategies, lines = options.strategies.split(','), []
    lines.append('| fault | ' + ' | '.join(strategies) + ' |')
    lines.append('| --- |' + ' ---: |' * len(strategies))
    for fault in options.faults.split(','):
        cells = [cell_text(results['%s/%s' % (strategy, fault)]) for strategy in strategies]
        lines.append('| %s | %s |' % (fault, ' | '.join(cells)))
    reads = sum(cell['reads'] for name, cell in results.items() if cell and name.partition('/')[0] in WAYS)
    lines += ['', '%d reads of pgcache_fence in all.' % reads]
    return lines


def spread(values):
    """The median and the maximum, as text."""
    values = [value for value in values if value is not None]
    return '%.2f / %.2f' % (statistics.median(values), max(values)) if values else '–'


def rates(values):
    values = [value for value in values if value is not None]
    return '%.0f %%' % (100 * statistics.median(values)) if values else '–'


def effects_table(options, results):
    lines = ['| fault | times | no hit, s: median / worst | COMMIT waits, s: median / worst | hits before | after |',
             '| --- | ---: | ---: | ---: | ---: | ---: |']
    for fault in options.faults.split(','):
        cell = results.get('fence/' + fault)
        if not cell or not cell['effects']:
            continue
        effects = cell['effects']
        lines.append('| %s | %d | %s | %s | %s | %s |' % (
            fault, len(effects), spread([e['bypass'] for e in effects]), spread([e['wait'] for e in effects]),
            rates([e['before'] for e in effects]), rates([e['after'] for e in effects])))
    return lines


def main():
    options = parse()
    results = collect(options)
    lines = ['Stale reads per million reads', '', *stale_table(options, results), '',
             'What pgcache_fence costs meanwhile', '', *effects_table(options, results)]
    text = '\n'.join(lines) + '\n'
    if options.output:
        with open(options.output, 'w') as file:
            file.write(text)
    else:
        print('\n' + text)
    bad = [name for name, cell in results.items() if cell and name.partition('/')[0] in WAYS and not cell['good']]
    for name in bad:
        print('BAD: %s %s' % (name, results[name]['complaints']))
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
