"""Strong hits against a plain GET and a prepared SELECT by primary key, by payload, pipelined and not.

hit: MULTI, MGET, fence_token, EXEC. two commands: MGET and fence_token, sent together. ten: ten rows in one read. empty: a
function that does nothing, which no function of Redis can be faster than. Pipelined: 50 reads are sent at once, each of these with a token
of its own. one token: a pipeline of 50 commands, 49 GET of one row each and fence_token last, which vouches for all of them. Judged by the
processor time of Redis, which is the kernel's for its process: reads per second on two cores are bound by the load generator too, which
looks whether every answer is a hit.
"""

import compare
import report
from servers import fill, permit

ROWS = 10_000
TOGETHER = compare.TOGETHER
PIPELINE = 50
NAMES = {'unpipelined': ['GET', 'hit', 'two commands', 'ten', 'empty', 'SELECT'],
         'pipelined': ['GET', 'one token', 'hit', 'two commands', 'ten', 'empty']}
SHOWN = ['GET', 'one token', 'hit', 'two commands', 'ten', 'empty', 'SELECT']
WHAT = {'GET': 'GET', 'one token': 'strong hit, one token for the pipeline', 'hit': 'strong hit, as a block', 'two commands': 'strong hit, two commands', 'ten': 'ten strong hits, as a block',
        'empty': 'a function that does nothing', 'SELECT': 'prepared SELECT'}
EMPTY = """#!lua name=empty
redis.register_function{function_name='empty', callback=function() return 1 end, flags={'no-writes'}}"""


def steps(domain, fence):
    token = f'FCALL_RO fence_token 1 {fence}'
    ten = ' '.join(fence.replace('%i', f'%{n}') for n in range(TOGETHER))
    return {'GET': [f'redis:GET {fence}'], 'one token': [f'redis:GET {fence} || {token}'], 'hit': [f'redis:MULTI | MGET {fence} | {token} | EXEC'],
            'two commands': [f'redis:MGET {fence} | {token}'], 'ten': [f'redis:MULTI | MGET {ten} | {token} | EXEC'],
            'empty': [f'redis:FCALL_RO empty 1 {fence}'], 'SELECT': [f'sql:SELECT data FROM {domain} WHERE id = $1']}


def run(bench):
    count = bench.rounds or bench.amount(2, 5)
    seconds = bench.seconds or bench.amount(0.6, 1.5)
    result = {}
    bench.redis.client.function_load(EMPTY, replace=True)
    for payload in 100, 1000, 10_000:
        domain = f'hits_{payload}'
        bench.pg.sql(f'CREATE TABLE {domain} (id int8 PRIMARY KEY, version int8 NOT NULL DEFAULT 0, data text NOT NULL)')
        # as it is, not compressed to nothing
        bench.pg.sql(f'ALTER TABLE {domain} ALTER data SET STORAGE EXTERNAL')
        bench.pg.sql(f"INSERT INTO {domain} SELECT i, 0, repeat('x', %s) FROM generate_series(1, %s) i", payload, ROWS)
        bench.pg.sql(f'VACUUM ANALYZE {domain}')
        bench.pg.sql('SELECT fence.attach(%s)', domain)
        fill(bench.pg, bench.redis, domain, ROWS + TOGETHER, payload)
        fence = bench.pg.value('SELECT fence.fence_key(%s, %s)', domain, '0').replace('{0}', '{%i}')
        every = steps(domain, fence)
        for how, clients, pipeline in ('unpipelined', 8, 1), ('pipelined', 2, PIPELINE):
            def measure(name):
                sql = name == 'SELECT'
                return compare.load(every[name], bench.pg if sql else None, bench.redis, clients=clients, seconds=seconds,
                                    rows=ROWS, pipeline=1 if sql else pipeline - (name == 'one token'), hits=True)
            result[f'{payload} {how}'] = compare.rounds(NAMES[how], count, measure)
        assert_hit(bench, fence.replace('%i', str(ROWS)))
    return result


def assert_hit(bench, fence):
    """At the end too it was hits that were measured."""
    record, told = bench.redis.client.get(fence), permit(bench.redis, fence)
    assert told and record.startswith(told.split(b' ')[0] + b' '), (record[:60], told)


def to_get(r, name):
    """A GET's processor time of Redis, to that of a row read so: 1 is as cheap as GET."""
    return compare.ratio(r, 'GET', name, 'cpu_redis', TOGETHER if name == 'ten' else 1)


def to_select(r, name):
    """Processor time of the backend for a prepared SELECT, to that of Redis for a row read so."""
    return compare.spread([(TOGETHER if name == 'ten' else 1) * select['cpu_backends'] / read['cpu_redis']
                           for select, read in zip(r['SELECT'], r[name])])


def what_of(name, how):
    """In a pipeline the ways of a single read have a token each."""
    return WHAT[name] + (', a token for each' if how == 'pipelined' and name in ('hit', 'two commands') else '')


def show(result):
    lines, rates = [], []
    for what, r in result.items():
        payload, how = what.split()
        for name in (name for name in NAMES[how][1:] if name in r and name != 'SELECT'):
            lines.append([f'{int(payload):,} bytes, {how}: {what_of(name, how)}', f"{compare.median(r, name, 'cpu_redis'):.1f}",
                          compare.format_spread(to_get(r, name)),
                          compare.format_spread(compare.ratio(r, name, 'GET', each=TOGETHER if name == 'ten' else 1)),
                          *(f'{compare.median(r, name, f):.0f}' for f in ('p50', 'p99')),
                          compare.format_spread(to_select(r, name)) if 'SELECT' in r else ''])
        rates.append([f'{int(payload):,} bytes, {how}', *(f"{compare.median(r, name, 'tps'):.0f}" if name in r else '' for name in SHOWN),
                      f"{compare.median(r, 'GET', 'cpu_redis'):.1f}",
                      f"{compare.median(r, 'SELECT', 'cpu_backends'):.1f}" if 'SELECT' in r else ''])
    return report.table(['reads of Redis', 'CPU µs of Redis per read', 'GET : a row of this, by CPU (spread)', 'a row of this : GET, by rate (spread)',
                         'p50 µs', 'p99 µs', 'SELECT : a row of this, by CPU of the servers (spread)'], lines) + '\n\n' + report.table(
        ['reads per second', *(WHAT[name] for name in SHOWN), 'CPU µs of Redis per GET', 'CPU µs of the backend per SELECT'], rates)
