"""Strong hits against a plain GET and a prepared SELECT by primary key, by payload, pipelined and not.

split: GET of the value and fence_current, sent together. empty: a function that does nothing, which no function of Redis
can be faster than.
"""

import compare
import report
from servers import fill

ROWS = 10_000
NAMES = ['GET', 'fence_get', 'split', 'empty', 'SELECT']
EMPTY = """#!lua name=empty
redis.register_function{function_name='empty', callback=function() return 1 end, flags={'no-writes'}}"""


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
        fill(bench.pg, bench.redis, domain, ROWS, payload)
        fence = bench.pg.value('SELECT fence.fence_key(%s, %s)', domain, '0').replace('{0}', '{%i}')
        value = bench.pg.value('SELECT fence.value_key(%s, %s)', domain, '0').replace('{0}', '{%i}')
        steps = {'GET': [f'redis:GET {value}'], 'fence_get': [f'redis:FCALL fence_get 2 {fence} {value}'],
                 'split': [f'redis:GET {value} | FCALL fence_current 1 {fence}'], 'empty': [f'redis:FCALL empty 2 {fence} {value}'],
                 'SELECT': [f'sql:SELECT data FROM {domain} WHERE id = $1']}
        for how, clients, pipeline in ('unpipelined', 8, 1), ('pipelined', 2, 50):
            def measure(name):
                sql = name == 'SELECT'
                return compare.load(steps[name], bench.pg if sql else None, bench.redis, clients=clients, seconds=seconds,
                                    rows=ROWS, pipeline=1 if sql else pipeline)
            names = NAMES if pipeline == 1 else NAMES[:-1]
            result[f'{payload} {how}'] = compare.rounds(names, count, measure)
    return result


def show(result):
    lines = []
    for what, r in result.items():
        payload, how = what.split()
        line = [f'{int(payload):,} bytes, {how}']
        line += [f"{compare.median(r, name, 'tps'):.0f}" if name in r else '' for name in NAMES]
        line.append(compare.format_spread(compare.ratio(r, 'fence_get', 'GET')))
        line.append(compare.format_spread(compare.ratio(r, 'split', 'GET')))
        line.append(compare.format_spread(compare.ratio(r, 'empty', 'GET')))
        for name in 'fence_get', 'GET':
            line.append(compare.format_spread(compare.ratio(r, name, 'SELECT')) if 'SELECT' in r else '')
        line += [f"{compare.median(r, name, 'cpu_redis'):.1f}" for name in NAMES[:3]]
        lines.append(line)
    return report.table(['reads per second', 'GET', 'strong hit', 'GET + fence_current', 'empty function', 'SELECT', 'hit : GET',
                         'GET + fence_current : GET', 'empty function : GET', 'hit : SELECT', 'GET : SELECT', 'CPU µs of Redis per GET', 'per hit',
                         'per GET + fence_current'], lines)
