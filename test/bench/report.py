"""The machine in words, tables in Markdown, targets, plots."""

import datetime
import os
import re
import subprocess

import compare
from servers import BASE


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
        f'- Machine: {os.cpu_count()} cores ({cpu}), {memory} GiB of memory, Linux {os.uname().release}, data on {disk()}. '
        'PostgreSQL, Redis and the load generator share the cores.',
        f"- {bench.pg.version()} (fsync {bench.pg.value('SHOW fsync')}, wal_sync_method {bench.pg.value('SHOW wal_sync_method')}, "
        f"shared_buffers {bench.pg.value('SHOW shared_buffers')}), {bench.redis.version()} without persistence, "
        f'hiredis {hiredis()}, pgcache_fence {extension()}.',
    ]


def processor_ticks():
    """Of all processors since the start of the machine: worked, and stolen by its host."""
    with open('/proc/stat') as f:
        user, nice, system, _, _, irq, softirq, steal = (int(n) for n in f.readline().split()[1:9])
    return user + nice + system + irq + softirq, steal


def stolen(since):
    """Per cent of the processor time that was wanted since then and went to other guests of the host."""
    worked, steal = (now - then for now, then in zip(processor_ticks(), since))
    return 100 * steal / max(worked + steal, 1)


def hiredis():
    done = subprocess.run(['pkg-config', '--modversion', 'hiredis'], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or '?'


def extension():
    return first_match('pgcache_fence.control', r"default_version = '(.*)'")


def table(head, lines):
    """Markdown; the first column is text, the others are numbers."""
    rows = ['| ' + ' | '.join(head) + ' |', '| --- |' + ' ---: |' * (len(head) - 1)]
    return '\n'.join(rows + ['| ' + ' | '.join(str(cell) for cell in line) + ' |' for line in lines])


# ----------------------------------------------------------------------------------------------------------------------
# Targets: what was asked for, beside what was measured. Ratios within this run, never absolute times of a machine.
# ----------------------------------------------------------------------------------------------------------------------

def judge(name, target, s, met, form='{:.2f}'):
    """A line of the table. s: a spread or one number; judged by the median."""
    value = s['median'] if isinstance(s, dict) else s
    shown = compare.format_spread(s, form) if isinstance(s, dict) else form.format(s)
    return [name, target, shown, '**met**' if met(value) else 'not met']


def at_least(limit):
    return lambda value: value >= limit


def at_most(limit):
    return lambda value: value <= limit


BY = [('fenced', ''), ('by_triggers', ', told by triggers')]


def update_targets(results):
    lines = []
    for sync, limit in ('on', 0.9), ('off', 0.6):
        r = results.get('single', {}).get(sync)
        if r:
            for name, who in BY:
                lines.append(judge(f'UPDATE of one row, 8 clients, synchronous_commit={sync}{who}, to unfenced', f'≥ {limit}',
                                   compare.ratio(r, name, 'unfenced'), at_least(limit)))
    for sync in 'on', 'off':
        r = results.get('against', {}).get(f'8 {sync} unix')
        for fenced, app, shape in ((('fenced', 'app, one statement', 'one statement'),
                                    ('fenced, BEGIN and COMMIT', 'app', 'BEGIN … COMMIT')) if r else ()):
            lines.append(judge(f'the same, to a fence kept by the application ({shape}), synchronous_commit={sync}', '≥ 2',
                               compare.ratio(r, fenced, app), at_least(2)))
            lines.append(judge('… its p99 latency', '< 1', compare.ratio(r, fenced, app, 'p99'), lambda value: value < 1))
    return lines


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
    for what in 'SELECT', 'UPDATE':
        name = f'{what}, unfenced table'
        lines.append(judge(f'instructions of {what}, table not fenced, with to without those in the library', '1.00',
                           counts[name] / (counts[name] - r['inside'][name]), at_most(1.005), '{:.4f}'))
    lines.append(judge('instructions of SELECT, fenced table to unfenced', '1.00',
                       counts['SELECT, fenced table'] / counts['SELECT, unfenced table'], at_most(1.005), '{:.4f}'))
    return lines


def row_targets(results):
    lines = []
    for size, limit in ('100', 0.8), ('10000', 0.8), ('100000', 0.9), ('1000000', 0.9):
        r = results.get('rows', {}).get(size)
        if r:
            for name, who in BY:
                lines.append(judge(f'UPDATE of {int(size):,} rows in one transaction{who}, to unfenced', f'≥ {limit}',
                                   compare.ratio(r, f'many_{name}', 'many_unfenced'), at_least(limit)))
    large = [r['messages'] for size, r in results.get('rows', {}).items() if int(size) >= 10_000]
    if len(large) > 1:
        lines.append(judge('messages to Redis past bulk_threshold, largest transaction to smallest', '1.0 (flat)',
                           large[-1] / large[0], at_most(1.1)))
    return lines


def read_targets(results):
    lines = []
    for what, r in results.get('hits', {}).items():
        payload, how = what.split()
        limit = 0.6 if how == 'unpipelined' else 0.35
        lines.append(judge(f'strong hit of {int(payload):,} bytes to GET, {how}', f'≥ {limit}', compare.ratio(r, 'hit', 'GET'),
                           at_least(limit)))
        lines.append(judge('… each of ten rows in one read', '≥ 1.0', compare.ratio(r, 'ten', 'GET', each=compare.TOGETHER), at_least(1)))
        if 'SELECT' in r:
            lines.append(judge('… one row to a prepared SELECT', '≥ 4', compare.ratio(r, 'hit', 'SELECT'), at_least(4)))
    return lines


def other_targets(results):
    lines = []
    for how, r in results.get('memory', {}).items():
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


def targets(results):
    return table(['what', 'target', 'measured: median (min – max)', ''],
                 update_targets(results) + call_targets(results) + row_targets(results) + read_targets(results) + other_targets(results))


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
    data = [[size, *compare.ratio(r, 'many_fenced', 'many_unfenced').values()] for size, r in result.items()]
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
# doc/performance.md
# ----------------------------------------------------------------------------------------------------------------------

BEGIN = '<!-- generated by test/bench/run.sh: begin -->'
END = '<!-- generated by test/bench/run.sh: end -->'


def run_in_words(bench):
    """Which run it was: quick or full, and what of it was asked for otherwise."""
    other = [f'--{name} {value:g}' for name, value in (('rounds', bench.rounds), ('seconds', bench.seconds)) if value]
    return f'{"Quick" if bench.quick else "Full"} run of {datetime.date.today()}' + (f' ({" ".join(other)})' if other else '')


def write(bench, parts):
    results = bench.results
    machine = '\n'.join(bench.machine)
    sections = ['## Measured', f'{machine}\n- {run_in_words(bench)}, in which other guests of the machine\'s host took '
                f'{stolen(bench.ticks):.0f} % of the processor time. Ratios are of runs that follow each other at once, round by round.',
                '### Targets', targets(results)]
    plots = []
    if results.get('against'):
        for sync in 'on', 'off':
            plot_against(results['against'], sync)
            plots.append(f'performance-update-{sync}')
    for name, draw, file in (('rows', plot_rows, 'rows'), ('hits', plot_hits, 'hits'), ('growth', plot_growth, 'backends')):
        if results.get(name):
            draw(results[name])
            plots.append(f'performance-{file}')
    sections += [f'![{name}]({name}.svg)' for name in plots]
    for name, result in results.items():
        sections += [f'### {parts[name].__doc__.strip()}', parts[name].show(result)]
    generated = f'{BEGIN}\n\n' + '\n\n'.join(sections) + f'\n\n{END}'

    path = f'{BASE}/results/performance.md'
    try:
        with open(path) as f:
            text = f.read()
    except FileNotFoundError:
        text = f'# Performance\n\n{BEGIN}\n{END}\n'
    text = text[:text.index(BEGIN)] + generated + text[text.index(END) + len(END):]
    with open(path, 'w') as f:
        f.write(text)
