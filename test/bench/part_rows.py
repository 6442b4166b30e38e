"""Rows per transaction, 1 to a million: one UPDATE, one client."""

import compare
import report
from servers import fill

WARM = 100_000
OF_SESSIONS = ('FCALL fence_write ', 'FCALL fence_domain_')
NAMES = ['many_unfenced', 'many_fenced', 'many_by_triggers']
SIZES = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]


def make_tables(bench, rows):
    for name in NAMES:
        bench.pg.sql(f'CREATE TABLE {name} (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off)')
        bench.pg.sql(f"INSERT INTO {name} SELECT i, 0, repeat('x', 100) FROM generate_series(1, %s) i", rows)
        bench.pg.sql(f'VACUUM ANALYZE {name}')
    for name in NAMES[1:]:
        bench.pg.sql(f"SELECT fence.attach('{name}')")
    bench.pg.sql('CHECKPOINT')
    for name in NAMES[1:]:
        fill(bench.pg, bench.redis, name, min(rows, WARM))


def run(bench):
    sizes = SIZES[:-1] if bench.quick else SIZES
    table_rows = sizes[-1]
    make_tables(bench, table_rows)
    result = {}
    for size in sizes:
        # small ones by time, large ones by number
        count = 0 if size <= 1000 else 2 if size <= 10_000 else 1
        among = max(min(WARM, table_rows) - size + 1, 1)
        seconds = bench.seconds or bench.amount(0.6, 1.5)

        def measure(name, transactions=count):
            bench.pg.sql(f'VACUUM {name}')
            # a session that has written before: it is connected to Redis
            return compare.load(compare.update(name, f'id >= $1 AND id < $1 + {size}'), bench.pg, bench.redis,
                                seconds=seconds, rows=among, transactions=transactions, warmup=0.2,
                                initial=compare.update(name, 'id = 1')[0][4:].replace('$2', 'data'))
        n = bench.rounds or (bench.amount(3, 5) if size <= 100_000 else 3)
        if count:
            for name in NAMES:
                measure(name)
        result[str(size)] = compare.rounds(NAMES, n, measure)
        transactions = 50 if size <= 1000 else 1
        calls = calls_of_sessions(bench.redis.client, lambda: measure('many_fenced', transactions))
        result[str(size)]['messages'] = (calls - 2) / transactions      # 2: the session's first UPDATE
    return result


def calls_of_sessions(client, work):
    """How many calls sessions make for their transactions during the work; workers call other functions all the time."""
    count = 0
    with client.monitor() as monitor:
        work()
        client.echo('the end')
        while (command := monitor.next_command()['command']) != 'ECHO the end':
            count += command.startswith(OF_SESSIONS)
    return count


def show(result):
    lines = []
    for size, r in result.items():
        unfenced = 1e6 / compare.median(r, 'many_unfenced', 'tps')
        fenced = 1e6 / compare.median(r, 'many_fenced', 'tps')
        lines.append([f'{int(size):,}', f'{unfenced / 1000:.3f}', f'{fenced / 1000:.3f}',
                      *(compare.format_spread(compare.ratio(r, name, 'many_unfenced')) for name in NAMES[1:]),
                      f"{r['messages']:.1f}"])
    return report.table(['rows in the transaction', 'unfenced ms', 'fenced ms', 'ratio of throughput (spread)',
                         'told by triggers',                          'messages to Redis per transaction'], lines)
