"""Effects: what one append, or one counter_add, adds to a transaction: TPS side by side, messages, system calls, waits."""

import compare
import part_calls
import report

CLIENTS = 8
APPEND = "sql:SELECT fence.append('bench:log:' || ($1::int8 % 100), 'entry', max_entries => 100)"
COUNTER = "sql:SELECT fence.counter_add('bench:count:' || ($1::int8 % 100), 1)"
TABLES = 'unfenced', 'fenced'
EFFECTS = {'': ['sql:SELECT $1::int8'], ', append': [APPEND], ', counter_add': [COUNTER]}     # statement for statement


def steps(table, effect, apart=False):
    """apart: put round trips of the client between the effect and COMMIT. They take longer than the one to Redis, so any wait that is
    left is the extension's."""
    return ['sql:BEGIN', *compare.update(table), *EFFECTS[effect], *(['sql:SELECT 1'] if apart else []), 'sql:COMMIT']


NAMES = {table + effect: (table, effect) for table in TABLES for effect in EFFECTS}


def messages(bench, name):
    """FCALLs per transaction of one client, with synchronous commits."""
    count = bench.amount(1000, 5000)
    before = bench.redis.command_stats().get('fcall', (0, 0))[0]
    compare.load(steps(*NAMES[name]), bench.pg, transactions=count, synchronous_commit='on')
    return (bench.redis.command_stats()['fcall'][0] - before) / count


def run(bench):
    count = bench.rounds or bench.amount(4, 10)
    seconds = bench.seconds or bench.amount(1.0, 2.0)
    result = {'messages': {name: messages(bench, name) for name in NAMES}}
    for clients in 1, CLIENTS:
        result[f'{clients} clients'] = compare.rounds(list(NAMES), count, lambda name, clients=clients: compare.load(
            steps(*NAMES[name]), bench.pg, bench.redis, clients, seconds, synchronous_commit='on'), bench.refresh)
    result['calls'] = {name: part_calls.traced(bench, steps(*NAMES[name], apart=True), 'on', bench.amount(500, 2000))
                       for name in NAMES}
    return result


def show(result):
    rows = []
    for name, (table, _) in NAMES.items():
        calls = result['calls'][name]
        what = name if ',' in name else f'{name}, a SELECT of nothing'
        line = [f'BEGIN, UPDATE {what}, COMMIT', f"{result['messages'][name]:.2f}", f'{sum(calls.values()):.1f}',
                f"{max(part_calls.waits(calls) - part_calls.waits(result['calls']['unfenced']), 0):.2f}"]
        for clients in 1, CLIENTS:
            r = result[f'{clients} clients']
            line += [f"{compare.median(r, name, 'tps'):.0f}", compare.format_spread(compare.ratio(r, name, table))]
        rows.append([*line, *(f'{compare.median(r, name, field):.0f}' for field in ('cpu_backends', 'cpu_redis'))])
    return report.table(['synchronous_commit=on', 'FCALLs per transaction', 'system calls', 'more waits than without Redis',
                         '1 client, TPS', 'ratio to no effect (spread)', f'{CLIENTS} clients, TPS',
                         'ratio to no effect (spread)', 'CPU µs/tx backends', 'Redis'], rows)
