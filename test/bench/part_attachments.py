"""What a second and a third attachment of a table add to the UPDATE of one row: instructions of the backend, and messages to Redis."""

import compare
import report
from part_calls import ROWS, Counted, in_library
from servers import running

ATTACHMENTS = [
    ('by its primary key', "key => '{id}'"),
    ('also by another unique column', "key => '{other}', domain => '%s_other'"),
    ('also the rows of a team as a group', "scope => 'group', key => '{team}', domain => '%s_team'"),
]


def make(pg, n):
    """A table with n attachments."""
    table = f'attached_{n}'
    pg.sql(f'CREATE TABLE {table} (id int PRIMARY KEY, other int NOT NULL UNIQUE, team int NOT NULL, data text, '
           'version bigint NOT NULL DEFAULT 0) WITH (fillfactor = 40, autovacuum_enabled = off)')
    pg.sql(f"INSERT INTO {table} SELECT i, -i, i %% 50, repeat('x', 100) FROM generate_series(1, %s) i", ROWS)
    for _, options in ATTACHMENTS[:n]:
        pg.sql(f"SELECT fence.attach('{table}', {options.replace('%s', table)})")
    return table


def calls(redis):
    return redis.command_stats().get('fcall', (0, 0))[0]


def run(bench):
    few, many, tries = 200, bench.amount(700, 2200), bench.amount(2, 3)
    counted = Counted('attachments', bench.redis)
    result = {}
    with running(counted):
        for n in range(len(ATTACHMENTS) + 1):
            table = make(counted.pg, n)
            before = calls(bench.redis)
            instructions, files = counted.per_transaction(compare.update(table), few, many, tries)
            sent = (calls(bench.redis) - before) / ((few + many) * tries)
            result[n] = {'instructions': instructions, 'inside': in_library(files), 'calls': sent}
    return result


def show(result):
    lines = []
    for n, r in result.items():
        name = ATTACHMENTS[n - 1][0] if n else 'not attached'
        more = r['instructions'] - result[n - 1]['instructions'] if n else 0
        lines.append([f'{n}: {name}', f"{r['instructions']:.0f}", f'{more:+.0f}' if n else '', f"{r['inside']:.0f}", f"{r['calls']:.2f}"])
    return report.table(['UPDATE of one row, attachments of its table', 'instructions of the backend', 'more than the line before',
                         'in functions of pgcache_fence.so', 'calls of functions in Redis per transaction'], lines)
