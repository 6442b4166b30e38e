"""Variants, interleaved rounds, ratios with their spread."""

import json
import statistics
import subprocess
import time

from servers import BASE, BINDIR, HERE

ROWS = 100_000
PAYLOAD = 100
THREADS = 2
deadline = float('inf')                 # set by bench.py
TOGETHER = 10                           # rows of a read of several


def update(table, where='id = $1'):
    return [f'sql:UPDATE {table} SET data = $2 WHERE {where}']


APP_UPDATE = 'sql:UPDATE app SET data = $2, version = $3 WHERE id = $1 AND version < $3'
APP_BEGIN = 'redis:FCALL app_begin 1 app:{%i}'
APP_COMMIT = 'redis:FCALL app_commit 1 app:{%i} %v'

VARIANTS = {
    'unfenced': update('unfenced'),
    'fenced': update('fenced'),
    'plpython': update('plpython'),
    'notify': update('notify'),
    'app': [APP_BEGIN, 'sql:BEGIN', APP_UPDATE, 'sql:COMMIT', APP_COMMIT],
    'app, one statement': [APP_BEGIN, APP_UPDATE, APP_COMMIT],
    'unfenced, BEGIN and COMMIT': ['sql:BEGIN', *update('unfenced'), 'sql:COMMIT'],
    'fenced, BEGIN and COMMIT': ['sql:BEGIN', *update('fenced'), 'sql:COMMIT'],
}

# The ways in which a fenced table is written: settings of the session. See ways().
WAYS = {
    'fenced': {},
    'reserve = commit': {'pgcache_fence.reserve': 'commit'},
    'capture = triggers': {'pgcache_fence.capture': 'triggers'},
}
SERVERS = 'cpu_backends', 'cpu_redis', 'cpu_courier'


def ways(bench):
    """Those that were asked for."""
    return [name for name in WAYS if bench.capture or not name.startswith('capture')]


def in_way(name, prefix=''):
    """Table and settings of a way, or of the unfenced table."""
    return prefix + ('fenced' if name in WAYS else 'unfenced'), WAYS.get(name, {})


def make_tables(pg, redis_server, rows=ROWS):
    with open(f'{HERE}/tables.sql') as f:
        text = f.read().replace('{rows}', str(rows)).replace('{socket}', redis_server.socket)
    subprocess.run([f'{BINDIR}/psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-h', pg.directory, '-p', str(pg.port), '-U', 'postgres',
                    'postgres'], input=text, text=True, check=True, stdout=subprocess.DEVNULL)
    pg.wait_open()
    redis_server.load_functions(f'{HERE}/app.lua')


def load(steps, pg=None, redis_server=None, clients=1, seconds=2.0, warmup=0.3, rows=ROWS, first_row=1, payload=PAYLOAD,
         pipeline=1, transactions=0, tcp=False, initial=None, beside=None, hits=False, **settings):
    """One run of the load generator: its results. hits: an answer of Redis that is no strong hit ends the benchmark."""
    command = [f'{BASE}/bin/load', '--clients', clients, '--threads', THREADS, '--seconds', seconds, '--warmup', warmup,
               '--rows', rows, '--first-row', first_row, '--payload', payload,
               '--pipeline', pipeline, '--transactions', transactions]
    if pg:
        command += ['--pg', pg.conninfo(tcp=tcp, **settings)]
    if redis_server:
        command += ['--redis', redis_server.address(tcp), '--redis-pid', redis_server.pid]
        command += ['--courier-pid', pg.worker('courier')] if pg else []
    if initial:
        command += ['--initial', initial]
    if beside:
        command += ['--beside', beside]
    if hits:
        command += ['--hits']
    for step in steps:
        command += ['--step', step]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f'bench: {" ".join(steps)}\n{done.stderr}')
    return json.loads(done.stdout)


def rounds(names, count, run, between=None):
    """run(name) for every name in every round, in turn, each round beginning with another. name -> list of results.

    After the deadline there is no further round.
    """
    results = {name: [] for name in names}
    for number in range(count):
        if number > 1 and time.monotonic() > deadline:
            break
        if between:
            between()
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            results[name].append(run(name))
    return results


def spread(values):
    return {'min': min(values), 'median': statistics.median(values), 'max': max(values)}


def ratio(results, name, base, field='tps', each=1):
    """Round by round: what was measured minutes apart is not compared. each: how many there are in one of the first."""
    return spread([each * a[field] / b[field] for a, b in zip(results[name], results[base])])


def cheaper(results, name, base, fields=SERVERS):
    """Round by round: the processor time of the servers per transaction of base, to that of name. A busy machine disturbs it least."""
    return spread([sum(b[f] for f in fields) / sum(a[f] for f in fields) for a, b in zip(results[name], results[base])])


def median(results, name, field):
    return statistics.median(r[field] for r in results[name])


def format_spread(s, form='{:.2f}'):
    return '{} ({} – {})'.format(*(form.format(s[k]) for k in ('median', 'min', 'max')))
