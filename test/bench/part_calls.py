"""Messages, system calls and instructions per transaction, and where the time of a fenced UPDATE goes."""

import collections
import os
import re
import signal
import subprocess

import compare
import report
from servers import BASE, HERE, Postgres, fill, header, running, wait_until

SELECT = 'sql:SELECT data FROM {} WHERE id = $1'
ROWS = 1000


# ----------------------------------------------------------------------------------------------------------------------
# Messages to Redis
# ----------------------------------------------------------------------------------------------------------------------

def messages(bench):
    """The commands that Redis executes for one client's transactions: command -> (calls per transaction, microseconds per call)."""
    count = bench.amount(2000, 10000)
    before = bench.redis.command_stats()
    compare.load(compare.VARIANTS['fenced'], bench.pg, transactions=count, synchronous_commit='off')
    after = bench.redis.command_stats()
    result = {}
    for name, (calls, usec) in after.items():
        old_calls, old_usec = before.get(name, (0, 0))
        if (calls - old_calls) / count > 0.5:
            result[name] = ((calls - old_calls) / count, (usec - old_usec) / (calls - old_calls))
    return result


def functions(bench):
    """Processor microseconds that Redis spends in each function. Each function is measured alone, with many calls in a pipeline."""
    fence = bench.pg.value("SELECT fence.fence_key('fenced', '0')").replace('{0}', '{%i}')
    write = f'redis:FCALL fence_write 0 {header(bench.pg)}'
    token = f'FCALL_RO fence_token 1 {fence}'
    calls = {'GET': [f'redis:GET {fence}'], 'SET (100 bytes)': ['redis:SET bench:%i %p'], 'fence_token': [f'redis:{token}'],
             'MULTI, MGET, fence_token, EXEC': [f'redis:MULTI | MGET {fence} | {token} | EXEC'],
             'fence_get, a hit': [f'redis:FCALL_RO fence_get 1 {fence}'],
             'fence_write: one ends, one row is reserved': [f'{write} 700.00000000 1 {fence} 700.00000000'],
             'fence_write: a row is reserved; fence_write: it ends': [f'{write} %s.%i 1 {fence}', f'{write} - 0 %s.%i']}
    first = 10 ** 9                                     # these fences belong to no rows, so those of the tables do not change
    fill(bench.pg, bench.redis, 'fenced', ROWS, first=first)
    result = {}
    for name, steps in calls.items():
        result[name] = compare.load(steps, redis_server=bench.redis, pipeline=50, seconds=0.7, warmup=0.2, rows=ROWS,
                                    first_row=first)['cpu_redis']
    return result


# ----------------------------------------------------------------------------------------------------------------------
# System calls
# ----------------------------------------------------------------------------------------------------------------------

def traced(bench, steps, sync, count):
    """System calls of one backend: name -> calls per transaction."""
    # Two sessions, with few and with many transactions, so that the start and the end of a session cancel out
    few, many = (calls_of_session(bench, steps, n, sync) for n in (count // 10, count))
    result = {name: (many[name] - few[name]) / (count - count // 10) for name in many}
    return {name: calls for name, calls in sorted(result.items(), key=lambda item: -item[1]) if calls > 0.005}


def calls_of_session(bench, steps, count, sync):
    """Traces all processes, because the backend has not started yet, and counts only the lines of the backend."""
    out = f'{BASE}/strace.out'
    tracer = subprocess.Popen(['strace', '-f', '-o', out, '-p', str(bench.pg.process.pid)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: attached(bench.pg.process.pid), 10, 'strace does not attach')
        pid = compare.load(steps, bench.pg, rows=ROWS, transactions=count, synchronous_commit=sync)['pid']
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
    with open(out, errors='replace') as f:
        return collections.Counter(re.findall(rf'^{pid} +(\w+)\(', f.read(), re.M))


def attached(pid):
    with open(f'/proc/{pid}/status') as f:
        return re.search(r'^TracerPid:\t[1-9]', f.read(), re.M) is not None


# ----------------------------------------------------------------------------------------------------------------------
# Instructions
# ----------------------------------------------------------------------------------------------------------------------

# Settings for whatever costs instructions only now and then are the same as those of the other servers.
VALGRIND_SETTINGS = '''
synchronous_commit = off
fsync = off
bgwriter_lru_maxpages = 0
pgcache_fence.lease = 10s
pgcache_fence.timeout = 5s
pgcache_fence.patrol_interval = 60s
'''


class Counted:
    """A server under callgrind, where the instructions of a session are counted. cached: whether the rows of `fenced` are."""

    def __init__(self, name, redis_server, preload=True, settings='', cached=True):
        self.directory = f'{BASE}/callgrind-{name}'
        os.mkdir(self.directory)
        self.preload = preload
        self.redis = redis_server
        settings += VALGRIND_SETTINGS if preload else VALGRIND_SETTINGS.split('pgcache_fence')[0]
        settings += "pgcache_fence.namespace = 'counted'\n" if preload else ''
        # An ordinary server makes the tables, which is fifty times as fast.
        self.pg = Postgres(f'counted-{name}', redis_server, preload, settings, cached=cached)
        if preload:
            compare.make_tables(self.pg, redis_server, ROWS)
        else:
            with open(f'{HERE}/tables.sql') as f:
                self.pg.sql(f.read().split('CREATE TABLE fenced')[0].replace('{rows}', str(ROWS)))
        self.pg.sql('VACUUM ANALYZE')
        self.pg.stop()
        self.pg.valgrind = ['valgrind', '--tool=callgrind', '--trace-children=no', '-q',
                            f'--callgrind-out-file={self.directory}/%p.out']
        self.pg.start()
        if preload:
            self.pg.wait_open()
            fill(self.pg, redis_server, 'fenced', ROWS)

    def stop(self):
        self.pg.stop()

    def session(self, steps, count, settings):
        """Runs a session of so many transactions. Returns callgrind's file."""
        self.pg.forget()
        path = f"{self.directory}/{compare.load(steps, self.pg, rows=ROWS, transactions=count, **settings)['pid']}.out"
        wait_until(lambda: totals(path), 30, 'callgrind wrote nothing')
        return path

    def per_transaction(self, steps, few, many, tries, settings=None):
        """The minimum of some tries, because now and then a session does additional work, such as reading a catalogue again."""
        found = []
        for _ in range(tries):
            a, b = (self.session(steps, count, settings or {}) for count in (few, many))
            found.append(((totals(b) - totals(a)) / (many - few), (a, b, many - few)))
        return min(found)


def totals(path):
    if not os.path.exists(path):
        return 0
    with open(path, errors='replace') as f:
        found = re.search(r'^(?:totals|summary): (\d+)', f.read(), re.M)
    return int(found.group(1)) if found else 0


def by_function(path, inclusive):
    """callgrind_annotate's table: (function, object) -> instructions."""
    how = f'--inclusive={"yes" if inclusive else "no"}'
    done = subprocess.run(['callgrind_annotate', how, '--threshold=100', '--auto=no', path], stdout=subprocess.PIPE, text=True)
    result = collections.Counter()
    for count, name, where in re.findall(r'^\s*([\d,]+) \([ \d.]+%\)\s+\S*?:(\S+)(?: \[(.*)\])?$', done.stdout, re.M):
        function, n = (re.sub(r"'\d+$", '', name), os.path.basename(where)), int(count.replace(',', ''))
        # a function has a row for each source file of its lines, and for each level of a recursion
        result[function] = max(result[function], n) if inclusive else result[function] + n
    return result


def profile(files, inclusive):
    """(function, object, instructions per transaction), sorted by instructions."""
    few, many, count = files
    a, b = by_function(few, inclusive), by_function(many, inclusive)
    rows = [(name, where, (b[name, where] - a[name, where]) / count) for name, where in b]
    return sorted((row for row in rows if row[2] > 50), key=lambda row: -row[2])


def in_library(files):
    """Instructions per transaction in the extension's own functions. This number is exact; the difference of two servers is not."""
    few, many, count = files
    a, b = (sum(n for (_, where), n in by_function(path, False).items() if 'pgcache_fence' in where) for path in (few, many))
    return (b - a) / count


def instructions(bench):
    few, many, tries = 200, bench.amount(700, 2200), bench.amount(2, 3)
    with_it = Counted('with', bench.redis)
    result, inside = {}, {}
    with running(with_it):
        cases = {'UPDATE, unfenced table': (compare.update('unfenced'), {}), 'SELECT, fenced table': ([SELECT.format('fenced')], {}),
                 'SELECT, unfenced table': ([SELECT.format('unfenced')], {})}
        for way in bench.ways:
            table, settings = compare.in_way(way)
            cases['UPDATE, fenced table' + ('' if way == 'fenced' else f', {way}')] = compare.update(table), settings
        for name, (steps, settings) in cases.items():
            result[name], files = with_it.per_transaction(steps, few, many, tries, settings)
            if name == 'UPDATE, fenced table':
                inclusive, own = profile(files, True), profile(files, False)
            if name == 'UPDATE, unfenced table':
                base = profile(files, True)
            inside[name] = in_library(files)
        per_row = {what: {way: rows_as_a_whole(with_it, what, way) for way in ['unfenced', *bench.ways]} for what in MANY_ROWS}
    without = Counted('without', None, preload=False)
    with running(without):
        for name, steps in (('UPDATE, not preloaded', compare.update('unfenced')),
                            ('SELECT, not preloaded', [SELECT.format('unfenced')])):
            result[name], _ = without.per_transaction(steps, few, many, tries)
    return {'counts': result, 'inside': inside, 'per_row': per_row, 'inclusive': inclusive[:120], 'own': own[:60], 'base': base[:120]}


MANY_ROWS = {
    'UPDATE': 'UPDATE {} SET data = $2 WHERE id > 0 OR id = $1',
    'INSERT': f'INSERT INTO {{}} SELECT i, 0, $2 FROM generate_series($1 + 1000000, $1 + 1000000 + {ROWS - 1}) i',
    'DELETE': 'DELETE FROM {} WHERE id > 0 OR id = $1',
}


def rows_as_a_whole(counted, what, way):
    """Instructions per row of a statement of many rows, beyond bulk_threshold, and those of them in the extension's functions. The
    transaction is rolled back, so each one finds the same rows."""
    table, settings = compare.in_way(way)
    counted.pg.set(pgcache_fence__bulk_threshold=64)
    # so that all tables are alike: each page has room for new versions of its rows (HOT), and no dead rows
    counted.pg.sql(f'ALTER TABLE {table} SET (fillfactor = 40)')
    counted.pg.sql(f'VACUUM FULL {table}')
    steps = ['sql:BEGIN', 'sql:' + MANY_ROWS[what].format(table), 'sql:ROLLBACK']
    count, files = counted.per_transaction(steps, 1, 4, 1, settings)
    return count / ROWS, in_library(files) / ROWS


def run(bench):
    count = bench.amount(500, 2000)
    result = {'messages': messages(bench), 'functions': functions(bench)}
    result['calls'] = {f'{table}, synchronous_commit={sync}': traced(bench, compare.update(table), sync, count)
                       for sync in ('on', 'off') for table in ('unfenced', 'fenced')}
    result['calls']['SELECT, fenced table'] = traced(bench, [SELECT.format('fenced')], 'on', count)
    # The client's round trips between UPDATE and COMMIT take longer than the one to Redis, so any wait that is left is the extension's.
    apart = {table: traced(bench, ['sql:BEGIN', *compare.update(table), 'sql:SELECT 1', 'sql:COMMIT'], 'off', count)
             for table in ('unfenced', 'fenced')}
    result['calls'] |= {f'{table}, BEGIN … SELECT … COMMIT, synchronous_commit=off': calls for table, calls in apart.items()}
    result['waits'] = max(waits(apart['fenced']) - waits(apart['unfenced']), 0)
    result.update(instructions(bench))
    return result


def waits(calls):
    """The waits, without those for the client's next message: a backend waits for one after it has tried to read it in vain."""
    waited = sum(calls.get(name, 0) for name in ('epoll_wait', 'epoll_pwait', 'poll', 'ppoll', 'select', 'pselect6'))
    return waited - max(calls.get('recvfrom', 0) - calls.get('sendto', 0), 0)


def show(result):
    parts = [
        report.table(['Redis, per fenced UPDATE', 'calls', 'µs per call (commandstats)'],
                     [[name, f'{calls:.2f}', f'{usec:.2f}'] for name, (calls, usec) in result['messages'].items()]),
        report.table(['Redis, pipelined, processor time', 'µs per call'],
                     [[name, f'{usec:.2f}'] for name, usec in result['functions'].items()]),
        report.table(['system calls of the backend', 'per transaction', 'which'],
                     [[name, f'{sum(calls.values()):.2f}', ', '.join(f'{n} {c:.2f}' for n, c in calls.items())]
                      for name, calls in result['calls'].items()]),
        report.table(['instructions of the backend', 'per transaction', 'of these in functions of pgcache_fence.so'],
                     [[name, f'{count:.0f}', f'{result["inside"].get(name, 0):.0f}'] for name, count in result['counts'].items()]),
        report.table([f'instructions of the backend, {ROWS:,} rows past bulk_threshold', 'per row',
                      'of these in functions of pgcache_fence.so', 'unfenced : this'],
                     [[f'{what}: {report.way(name)}', f'{count:.0f}', f'{inside:.0f}', f"{r['unfenced'][0] / count:.2f}"]
                      for what, r in result['per_row'].items() for name, (count, inside) in r.items()]),
        profile_table(result),
    ]
    return '\n\n'.join(parts)


def profile_table(result):
    base = {(name, where): count for name, where, count in result['base']}
    ours = [row for row in result['inclusive'] if 'pgcache_fence' in row[1]][:40]
    names = {name for name, _, _ in ours}
    more = [(name, where, count - base.get((name, where), 0)) for name, where, count in result['inclusive'] if name not in names]
    more = sorted((row for row in more if row[2] > 300), key=lambda row: -row[2])[:40]
    return '\n\n'.join([
        report.table(['inside pgcache_fence.so, inclusive', 'instructions per transaction'], [[n, f'{c:.0f}'] for n, _, c in ours]),
        report.table(['elsewhere, inclusive, more than in the unfenced UPDATE', 'object', 'instructions per transaction'],
                     [[n, w, f'{c:.0f}'] for n, w, c in more]),
        report.table(['own instructions of the fenced UPDATE', 'object', 'instructions per transaction'],
                     [[n, w, f'{c:.0f}'] for n, w, c in result['own'][:30]]),
    ])
