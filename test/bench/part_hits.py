"""Strong hits against a plain GET and a prepared SELECT by primary key, by payload, pipelined and not.

hit: MULTI, MGET, fence_token, EXEC. two commands: MGET and fence_token, sent together. ten: ten rows in one read. empty: a
function that does nothing, which no function of Redis can be faster than.
"""

import compare
import report
from servers import fill, permit

ROWS = 10_000
TOGETHER = compare.TOGETHER
NAMES = ['GET', 'hit', 'two commands', 'ten', 'empty', 'SELECT']
EMPTY = """#!lua name=empty
redis.register_function{function_name='empty', callback=function() return 1 end, flags={'no-writes'}}"""


def steps(domain, fence):
    token = f'FCALL_RO fence_token 1 {fence}'
    ten = ' '.join(fence.replace('%i', f'%{n}') for n in range(TOGETHER))
    return {'GET': [f'redis:GET {fence}'], 'hit': [f'redis:MULTI | MGET {fence} | {token} | EXEC'],
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
        for how, clients, pipeline in ('unpipelined', 8, 1), ('pipelined', 2, 50):
            def measure(name):
                sql = name == 'SELECT'
                return compare.load(every[name], bench.pg if sql else None, bench.redis, clients=clients, seconds=seconds,
                                    rows=ROWS, pipeline=1 if sql else pipeline)
            names = NAMES if pipeline == 1 else NAMES[:-1]
            result[f'{payload} {how}'] = compare.rounds(names, count, measure)
        assert_hit(bench, fence.replace('%i', str(ROWS)))
    return result


def assert_hit(bench, fence):
    """At the end too it was hits that were measured."""
    record, told = bench.redis.client.get(fence), permit(bench.redis, fence)
    assert told and record.startswith(told.split(b' ')[0] + b' '), (record[:60], told)


def show(result):
    lines = []
    for what, r in result.items():
        payload, how = what.split()
        line = [f'{int(payload):,} bytes, {how}']
        line += [f"{compare.median(r, name, 'tps'):.0f}" if name in r else '' for name in NAMES]
        line += [compare.format_spread(compare.ratio(r, name, 'GET')) for name in ('hit', 'two commands')]
        line.append(compare.format_spread(compare.ratio(r, 'ten', 'GET', each=TOGETHER)))
        line.append(compare.format_spread(compare.ratio(r, 'empty', 'GET')))
        for name in 'hit', 'GET':
            line.append(compare.format_spread(compare.ratio(r, name, 'SELECT')) if 'SELECT' in r else '')
        line += [f"{compare.median(r, name, 'cpu_redis'):.1f}" for name in NAMES[:4]]
        lines.append(line)
    return report.table(['reads per second', 'GET', 'strong hit', 'in two commands', 'of ten rows', 'empty function', 'SELECT', 'hit : GET',
                         'in two commands : GET', 'a row of ten : GET', 'empty function : GET', 'hit : SELECT', 'GET : SELECT',
                         'CPU µs of Redis per GET', 'per hit', 'in two commands', 'of ten rows'], lines)
