"""One client runs one UPDATE per transaction, of 1 to a million rows."""

import compare
import report
from servers import fill

WARM = 100_000
OF_SESSIONS = ('FCALL fence_write ', 'FCALL fence_domain_')
TABLES = ['unfenced', 'fenced']
SIZES = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]


def make_tables(bench, rows):
    for name in TABLES:
        bench.pg.sql(f'CREATE TABLE many_{name} (LIKE unfenced INCLUDING ALL) WITH (autovacuum_enabled = off)')
        bench.pg.sql(f"INSERT INTO many_{name} SELECT i, 0, repeat('x', 100) FROM generate_series(1, %s) i", rows)
        bench.pg.sql(f'VACUUM ANALYZE many_{name}')
    bench.pg.sql("SELECT fence.attach('many_fenced')")
    bench.pg.sql('CHECKPOINT')


def warm(bench, rows):
    fill(bench.pg, bench.redis, 'many_fenced', min(rows, WARM))


def run(bench):
    sizes = SIZES[:-1] if bench.quick else SIZES
    table_rows = sizes[-1]
    make_tables(bench, table_rows)
    names = ['unfenced', *bench.ways]
    result = {}
    for size in sizes:
        # run small ones for a time, and large ones a number of times
        count = 0 if size <= 1000 else 2 if size <= 10_000 else 1
        among = max(min(WARM, table_rows) - size + 1, 1)
        seconds = bench.seconds or bench.amount(0.6, 1.5)

        def measure(way, transactions=count):
            name, settings = compare.in_way(way, 'many_')
            bench.pg.sql(f'VACUUM {name}')
            # the session has written before, so it is connected to Redis
            return compare.load(compare.update(name, f'id >= $1 AND id < $1 + {size}'), bench.pg, bench.redis,
                                seconds=seconds, rows=among, transactions=transactions, warmup=0.2,
                                initial=compare.update(name, 'id = 1')[0][4:].replace('$2', 'data'), **settings)
        n = bench.rounds or (bench.amount(3, 5) if size <= 100_000 else 3)
        if count:
            for name in names:
                measure(name)
        result[str(size)] = compare.rounds(names, n, measure, lambda: warm(bench, table_rows))
        transactions = 50 if size <= 1000 else 1
        calls = calls_of_sessions(bench.redis.client, lambda: measure('fenced', transactions))
        first = 2 if bench.pg.cached else 0             # calls for the session's first UPDATE
        result[str(size)]['messages'] = (calls - first) / transactions
    return result


def calls_of_sessions(client, work):
    """The number of calls of sessions during the work. Workers also make calls, but of other functions."""
    count = 0
    with client.monitor() as monitor:
        work()
        client.echo('the end')
        while (command := monitor.next_command()['command']) != 'ECHO the end':
            count += command.startswith(OF_SESSIONS)
    return count


def show(result):
    lines = [[f'{int(size):,}: {report.way(name)}', *report.beside(r, name, 'unfenced'), f"{r['messages']:.1f}" if name == 'fenced' else '']
             for size, r in result.items() for name in r if name != 'messages']
    return report.table(['rows in one UPDATE, 1 client', *report.BESIDE, 'messages to Redis per transaction'], lines)
