"""Makes the report: describes the machine, writes tables in Markdown, judges targets, draws plots."""

import datetime
import json
import os
import re
import subprocess

import compare
from servers import BASE, HERE


def first_match(path, pattern, default='?'):
    try:
        with open(path) as f:
            found = re.search(pattern, f.read(), re.M)
    except OSError:
        return default
    return found.group(1).strip() if found else default


def disk():
    line = subprocess.run(['df', '--output=source,fstype', BASE], stdout=subprocess.PIPE, text=True).stdout.split('\n')[1]
    return ' '.join(line.split())


def machine(bench):
    memory = int(first_match('/proc/meminfo', r'MemTotal:\s+(\d+)', '0')) // 2**20
    cpu = first_match('/proc/cpuinfo', r'model name\s*: (.*)')
    return [
        f'{os.cpu_count()} cores ({cpu}), {memory} GiB of memory, Linux {os.uname().release}, data on {disk()}. '
        'PostgreSQL, Redis and the load generator share the cores',
        f"{bench.pg.version()} (fsync {bench.pg.value('SHOW fsync')}, wal_sync_method {bench.pg.value('SHOW wal_sync_method')}, "
        f"shared_buffers {bench.pg.value('SHOW shared_buffers')}), {bench.redis.version()} without persistence, "
        f'hiredis {hiredis()}, pgcache_fence {extension()}',
    ]


class Noise:
    """Disturbances of a measurement: the host's other guests, and other work on this machine."""

    def __init__(self):
        self.all, self.steal = processor_ticks()
        self.own = own_ticks()

    def words(self):
        worked, steal = processor_ticks()
        worked, steal, own = worked - self.all, steal - self.steal, own_ticks() - self.own
        return (f"of the processor time wanted, the host's other guests took {100 * steal / max(worked + steal, 1):.0f} % and other "
                f'work on this machine {100 * max(worked - own, 0) / max(worked + steal, 1):.0f} %; load average {os.getloadavg()[0]:.1f}')


def processor_ticks():
    """Ticks of all processors since the machine started: (busy, stolen by its host)."""
    with open('/proc/stat') as f:
        user, nice, system, _, _, irq, softirq, steal = (int(n) for n in f.readline().split()[1:9])
    return user + nice + system + irq + softirq, steal


def own_ticks():
    """Ticks of this program, of the processes that it has started, and of their ended children."""
    parents, ticks = {}, {}
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/stat') as f:
                fields = f.read().rsplit(')', 1)[1].split()
        except OSError:                                 # the process has ended meanwhile
            continue
        parents[int(pid)], ticks[int(pid)] = int(fields[1]), sum(int(n) for n in fields[11:15])

    def ours(pid):
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid
    return sum(ticks[pid] for pid in ticks if ours(pid))


def hiredis():
    done = subprocess.run(['pkg-config', '--modversion', 'hiredis'], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or '?'


def extension():
    return first_match(f'{HERE}/../../pgcache_fence.control', r"default_version = '(.*)'")


def table(head, lines):
    """A table in Markdown. The first column is text, the others are numbers."""
    rows = ['| ' + ' | '.join(head) + ' |', '| --- |' + ' ---: |' * (len(head) - 1)]
    return '\n'.join(rows + ['| ' + ' | '.join(str(cell) for cell in line) + ' |' for line in lines])


# ----------------------------------------------------------------------------------------------------------------------
# Targets, beside the measured values. They are ratios within this run, never absolute times of a machine.
# ----------------------------------------------------------------------------------------------------------------------

def judge(name, target, s, met, form='{:.2f}'):
    """A line of the table of targets. s: a spread, of which the median is judged, or a number."""
    value = s['median'] if isinstance(s, dict) else s
    shown = compare.format_spread(s, form) if isinstance(s, dict) else form.format(s)
    return [name, target, shown, '**met**' if met(value) else 'not met']


def at_least(limit):
    return lambda value: value >= limit


def at_most(limit):
    return lambda value: value <= limit


def given(name, s, form='{:.2f}'):
    """A line without a target."""
    return [name, '', compare.format_spread(s, form) if isinstance(s, dict) else form.format(s), '']


def way(name):
    return name if name in ('unfenced', 'fenced') else f'fenced, {name}'


BESIDE = ['TPS', 'ratio (spread)', 'p50 µs', 'p99 µs', 'CPU µs/tx backend', 'Redis', 'courier', 'ratio by CPU (spread)']


def beside(r, name, base):
    """The cells of BESIDE: throughput, latency and processor time of one variant relative to another."""
    tps = compare.median(r, name, 'tps')
    return [f'{tps:,.0f}' if tps >= 100 else f'{tps:.2f}', compare.format_spread(compare.ratio(r, name, base)),
            *(f'{compare.median(r, name, f):.0f}' for f in ('p50', 'p99')),
            *(f'{compare.median(r, name, f):.1f}' for f in compare.SERVERS), compare.format_spread(compare.cheaper(r, name, base))]


def write_lines(what, r, limit):
    """Throughput and processor time of every way relative to unfenced. Only the default way is judged."""
    names = [name for name in r if name not in ('unfenced', 'messages')]
    lines = []
    for name in names:
        text, s = what + ('' if name == 'fenced' else f', {name}') + ', to unfenced', compare.ratio(r, name, 'unfenced')
        lines.append(judge(text, f'≥ {limit}', s, at_least(limit)) if name == 'fenced' and limit else given(text, s))
    lines.append(given(f'{what}, to unfenced, by processor time of the servers', compare.cheaper(r, 'fenced', 'unfenced')))
    return lines


def update_targets(results, prefix=''):
    """Lines for the writes of rows that are cached. prefix: the title of other rows, whose lines begin with it."""
    lines = []
    for sync, limit in ('on', 0.75), ('off', 0.6):
        r = results.get('single', {}).get(sync)
        if r:
            what = f'UPDATE of one row, 8 clients, synchronous_commit={sync}'
            lines += write_lines(what, r, limit)
            lines.append(judge(f'{what}, to unfenced: p99 latency', '≤ 2', compare.ratio(r, 'fenced', 'unfenced', 'p99'), at_most(2)))
    for size, limit in ('100', 0.6), ('1000', 0.6), ('10000', None), ('100000', 0.95), ('1000000', None):
        r = results.get('rows', {}).get(size)
        lines += write_lines(f'UPDATE of {int(size):,} rows in one transaction', r, limit) if r else []
    for what, r in results.get('bulk', {}).items():
        lines += write_lines(f'{what} in one transaction', r, None)
    for sync in 'on', 'off':
        r = results.get('against', {}).get(f'8 {sync} unix')
        for fenced, app, shape in ((('fenced', 'app, one statement', 'one statement'),
                                    ('fenced, BEGIN and COMMIT', 'app', 'BEGIN … COMMIT')) if r else ()):
            name = f'UPDATE of one row, 8 clients, synchronous_commit={sync}, to a fence kept by the application ({shape})'
            lines.append(judge(name, '≥ 1.3', compare.ratio(r, fenced, app), at_least(1.3)))
            lines.append(judge(f'{name}: p99 latency', '< 1', compare.ratio(r, fenced, app, 'p99'), lambda value: value < 1))
    large = [r['messages'] for size, r in results.get('rows', {}).items() if int(size) >= 10_000]
    if len(large) > 1 and large[0] > 0:
        lines.append(judge('messages to Redis past bulk_threshold, largest transaction to smallest', '1.0 (flat)',
                           large[-1] / large[0], at_most(1.1)))
    return [[prefix + what, *judged] for what, *judged in lines]


def call_targets(results):
    r = results.get('calls')
    if not r:
        return []
    lines = []
    for sync in 'on', 'off':
        a, b = (sum(r['calls'][f'{table}, synchronous_commit={sync}'].values()) for table in ('fenced', 'unfenced'))
        lines.append(judge(f'more system calls than unfenced, synchronous_commit={sync}', '≤ 3', a - b, at_most(3.2), '{:.1f}'))
    lines.append(judge('waits in a transaction whose other work outlasts a round trip', '0', r['waits'], at_most(0.02)))
    counts = r['counts']
    for name in counts:
        if name.startswith('UPDATE, fenced table'):
            more = counts[name] - counts['UPDATE, unfenced table']
            text = f'instructions of the backend that a fence adds to an UPDATE of one row{name[len("UPDATE, fenced table"):]}'
            lines.append(given(text, more, '{:,.0f}') if 'triggers' in name else judge(text, '≤ 8,000', more, at_most(8000), '{:,.0f}'))
    for what in 'SELECT', 'UPDATE':
        name = f'{what}, unfenced table'
        lines.append(judge(f'instructions of {what}, table not fenced, with to without those in the library', '1.00',
                           counts[name] / (counts[name] - r['inside'][name]), at_most(1.005), '{:.4f}'))
    lines.append(judge('instructions of SELECT, fenced table to unfenced', '1.00',
                       counts['SELECT, fenced table'] / counts['SELECT, unfenced table'], at_most(1.005), '{:.4f}'))
    return lines


def library_targets(results):
    """Whether each call stays within its bound, and costs no more after many domains, fences and reservations."""
    import part_library
    lines = []
    for name, r in results.get('library', {}).items():
        bound, grown = part_library.CASES[name][1], r['grown'] / r['new']
        if bound:
            lines.append(judge(f'instructions of Redis: {name}, per key', f'≤ {bound:,}', r['new'], at_most(bound), '{:,.0f}'))
            lines.append(judge(f'instructions of Redis: {name}, after much of everything, to new', '≤ 1.05', grown, at_most(1.05)))
    return lines


def read_targets(results):
    import part_hits
    lines = []
    for what, r in results.get('hits', {}).items():
        payload, how = what.split()
        limit, each = (0.6, '') if how == 'unpipelined' else (0.35, ', a token for each')
        for name, text, least in (('one token', 'one token for the pipeline', limit), ('hit', 'as a block' + each, limit),
                                  ('two commands', 'as two commands' + each, limit), ('ten', 'each of ten in one block', 1.0)):
            if name not in r:
                continue
            text, s = f'strong hit of {int(payload):,} bytes, {how}, {text}: processor time of GET to this', part_hits.to_get(r, name)
            lines.append(judge(text, f'≥ {least}', s, at_least(least)) if payload == '100' else given(text, s))
        if 'SELECT' in r:
            lines.append(given(f'strong hit of {int(payload):,} bytes, {how}, as a block: processor time of a prepared SELECT to this', part_hits.to_select(r, 'hit')))
    return lines


def other_targets(results):
    lines = []
    for how, r in results.get('memory', {}).items():
        if how == 'idle':
            lines.append(judge('bytes of Redis memory per row that is written and not read', '0', r['keys'], at_most(0.5), '{:.1f}'))
        else:
            lines.append(judge(f'bytes of Redis memory per cached row, {how}', '≤ 350',
                               {'min': r['full'], 'median': (r['full'] + r['doubled']) / 2, 'max': r['doubled']}, at_most(350), '{:.0f}'))
    patrol = results.get('patrol', {})
    for fate, r in patrol.items():
        if 'rate' not in r:
            continue
        lines.append(judge(f'patrol, transactions ended per second ({fate})', '≥ 20,000', r['rate'], at_least(20000), '{:.0f}'))
    if patrol:
        lines.append(judge("Redis' processor time per fenced UPDATE after 100,000 reservations at once, to before", '≤ 1.1',
                           patrol['after']['cpu_redis'] / patrol['before']['cpu_redis'], at_most(1.1)))
    rows = [r for name, r in results.get('growth', {}).items() if ' rows' in name]
    if rows:
        lines.append(judge('ratio to unfenced, most rows to fewest', '≥ 0.9 (flat)',
                           compare.ratio(rows[-1], 'fenced', 'unfenced')['median'] /
                           compare.ratio(rows[0], 'fenced', 'unfenced')['median'], at_least(0.9)))
    return lines


def targets(bench):
    import part_cold
    results = bench.results
    return table(['what', 'target', 'measured: median (min – max)', ''],
                 [['the run', '', kind(bench), '']] + library_targets(results) + read_targets(results) + update_targets(results) +
                 update_targets(results.get('cold', {}), part_cold.TITLE) + call_targets(results) + other_targets(results))


# ----------------------------------------------------------------------------------------------------------------------
# Plots
# ----------------------------------------------------------------------------------------------------------------------

PLOT_HEAD = '''set terminal svg size 760,460 noenhanced font "sans-serif,13" background rgb "white"
set output "{path}"
set title "{title}"
set grid ytics
set border 3
set tics nomirror
'''


def plot(name, title, commands, data):
    text = PLOT_HEAD.format(path=f'{BASE}/results/{name}.svg', title=title)
    text += '$data << EOD\n' + '\n'.join('\t'.join(str(cell) for cell in row) for row in data) + '\nEOD\n'
    text += 'set datafile separator "\\t"\n' + commands
    subprocess.run(['gnuplot'], input=text, text=True, check=True)


def plot_against(result, sync):
    import part_against
    wheres = [w for w in result if w.endswith(f'{sync} unix')]
    names = [n for n in part_against.ONE if all(n in result[w] for w in wheres)]
    data = [['clients', *(part_against.WHAT[n] for n in names)]]
    data += [[w.split()[0], *(f"{compare.median(result[w], n, 'tps'):.0f}" for n in names)] for w in wheres]
    plot(f'performance-update-{sync}', f'UPDATE of one row, synchronous_commit={sync}',
         'set style data histograms\nset style fill solid 0.8\nset ylabel "transactions per second"\nset xlabel "clients"\n'
         'set yrange [0:*]\nset key below vertical maxcols 1 Left reverse\n'
         f'plot for [i=2:{len(names) + 1}] $data using i:xtic(1) title columnheader(i)\n', data)


def plot_rows(result):
    data = [[size, *(compare.ratio(r, 'fenced', 'unfenced')[k] for k in ('min', 'median', 'max'))] for size, r in result.items()]
    plot('performance-rows', 'Throughput of one UPDATE, fenced to unfenced',
         'set logscale x\nset format x "%.0f"\nset xlabel "rows in the transaction"\nset xrange [0.7:1.5e6]\nset yrange [0:1.1]\nset ylabel "ratio"\n'
         'plot $data using 1:3:2:4 with yerrorlines pt 7 ps 0.6 lw 2 title "median, min and max of the rounds", '
         '1 with lines dt 2 lc "gray" notitle\n', data)


def plot_hits(result):
    data = [['what', 'GET', 'strong hit', 'prepared SELECT']]
    for what, r in result.items():
        data.append([what.replace(' ', ' B '), *(f"{compare.median(r, n, 'tps'):.0f}" if n in r else 0
                                               for n in ('GET', 'hit', 'SELECT'))])
    plot('performance-hits', 'Reads per second',
         'set style data histograms\nset style fill solid 0.8\nset logscale y\nset yrange [1000:*]\nset ylabel "reads per second"\n'
         'set xtics rotate by -25\nset key outside right top\nplot for [i=2:4] $data using i:xtic(1) title columnheader(i)\n', data)


def plot_growth(result):
    data = [[name.split()[0], *compare.ratio(r, 'fenced', 'unfenced').values()] for name, r in result.items() if 'backends' in name]
    plot('performance-backends', 'UPDATE of one row, synchronous_commit=off, fenced to unfenced',
         'set logscale x 2\nset xlabel "backends"\nset yrange [0:1.1]\nset ylabel "ratio"\n'
         'plot $data using 1:3:2:4 with yerrorlines pt 7 ps 0.6 lw 2 title "median, min and max of the rounds", '
         '1 with lines dt 2 lc "gray" notitle\n', data)


# ----------------------------------------------------------------------------------------------------------------------
# The files written: measured.md with all tables, from which sh test/unit/readme.sh --write fills the pages; the results as JSON
# ----------------------------------------------------------------------------------------------------------------------

def kind(bench):
    """The kind of run, and its options that differ from the defaults."""
    name = '--publish' if bench.publish else '--quick: a short run, only good to a rough idea' if bench.quick else 'full'
    other = [f'--{name} {value:g}' for name, value in (('rounds', bench.rounds), ('seconds', bench.seconds)) if value]
    return ', '.join([name, *other]) + ''.join(f"; {why}: {', '.join(names)}" for why, names in
                                             (('left out for want of time', bench.left_out), ('failed', bench.failed)) if names)


def plots(results):
    """Draws the plots for which there are results. Returns their names."""
    names = []
    if results.get('against'):
        for sync in 'on', 'off':
            plot_against(results['against'], sync)
            names.append(f'performance-update-{sync}')
    for name, draw, file in (('rows', plot_rows, 'rows'), ('hits', plot_hits, 'hits'), ('growth', plot_growth, 'backends')):
        if results.get(name):
            draw(results[name])
            names.append(f'performance-{file}')
    return names


def rounded(value):
    """The results with four significant digits, for people and for diffs. Omits the profiles, which are in the tables."""
    if isinstance(value, dict):
        return {name: rounded(v) for name, v in value.items() if name not in ('inclusive', 'own', 'base')}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    return float(f'{value:.4g}') if isinstance(value, float) else value


def write(bench, parts):
    results = bench.results
    run = table(['the run', ''], [['date', datetime.date.today()], ['kind', kind(bench)], ['machine', bench.machine[0]],
                                  ['versions', bench.machine[1]], ['noise', bench.noise.words()]])
    sections = ['# Measured', 'Written by `sh test/bench/run.sh --publish`, changed by nobody else. Other pages take their tables from here '
                '(`sh test/unit/readme.sh --write`). A ratio is of measurements that follow each other at once, taken in each round; '
                'given are the median and, in brackets, the least and the greatest. "By CPU" is by the processor time of backends, Redis and courier.',
                '## The run', run, '## Targets', targets(bench)]
    sections += [f'![{name}]({name}.svg)' for name in plots(results)]
    for name, result in results.items():
        sections += [f'## {parts[name].__doc__.strip().split(chr(10))[0]}', *parts[name].__doc__.strip().split('\n\n')[1:], parts[name].show(result)]
    with open(f'{BASE}/results/measured.md', 'w') as f:
        f.write('\n\n'.join(sections) + '\n')
    with open(f'{BASE}/results/measured.json', 'w') as f:
        f.write('{\n' + ',\n'.join(f'"{name}": {json.dumps(rounded(r))}' for name, r in results.items() if r) + '\n}\n')
