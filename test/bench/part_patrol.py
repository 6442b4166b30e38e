"""Measures how fast the patrol ends 100,000 reservations of as many transactions that ended without a message to Redis."""

import time

import compare
import report
from servers import header, wait_until

ORPHANS = 100_000
END_MANY = """
CREATE OR REPLACE PROCEDURE end_many(n int, good bool) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..n LOOP
        PERFORM pg_current_xact_id();
        IF good THEN COMMIT; ELSE ROLLBACK; END IF;
    END LOOP;
END $$"""


def dead_transactions(bench, commit):
    """Runs many transactions that write nothing. Returns (number of the first, nonce of their stamps)."""
    connection = bench.pg.connect()
    with connection.cursor() as cursor:
        cursor.execute('SET synchronous_commit = off')
        cursor.execute(END_MANY)
        cursor.execute('UPDATE fenced SET data = data WHERE id = 1')        # now this session is connected to Redis
        cursor.execute('BEGIN')
        cursor.execute('UPDATE fenced SET data = data WHERE id = 1')
        cursor.execute('SELECT stamp FROM fence.pending WHERE pid = pg_backend_pid()')
        first, nonce = cursor.fetchone()[0].split('.')
        cursor.execute('COMMIT')
        cursor.execute('CALL end_many(%s, %s)', (ORPHANS, commit))
    connection.close()
    return int(first) + 1, nonce


def pending(bench):
    """Whether any reservation is pending."""
    reply = bench.redis.client.execute_command('FCALL', 'fence_pending', 0, 'fence', 1, '')
    return len(reply) > 2


def run(bench):
    fence = bench.pg.value("SELECT fence.fence_key('fenced', '0')").replace('{0}', '{%i}')
    result = {'before': update(bench)}
    for fate in 'aborted', 'committed':
        first, nonce = dead_transactions(bench, fate == 'committed')
        wait_until(lambda: not pending(bench), 20, 'reservations are left')
        compare.load([f'redis:FCALL fence_write 0 {header(bench.pg)} %i.{nonce} 1 {fence}'], redis_server=bench.redis,
                     pipeline=ORPHANS, transactions=1, rows=ORPHANS, first_row=first)
        created, calls = time.monotonic(), fcalls(bench)
        wait_until(lambda: fcalls(bench) > calls + 500, 60, 'the patrol does not begin')
        begun = time.monotonic()
        wait_until(lambda: not pending(bench), 300, 'the patrol does not finish')
        ended = time.monotonic()
        result[fate] = {'waited': begun - created, 'seconds': ended - begun, 'rate': ORPHANS / (ended - begun)}
    result['after'] = update(bench)
    return result


def update(bench):
    """Times UPDATEs, because a hash table in Redis' memory that was large once may stay slow."""
    return compare.load(compare.VARIANTS['fenced'], bench.pg, bench.redis, 8, bench.amount(1.5, 3), synchronous_commit='off')


def fcalls(bench):
    return bench.redis.command_stats()['fcall'][0]


def show(result):
    return report.table([f'{ORPHANS:,} orphaned reservations', 'began after s', 'took s', 'ended/s'],
                        [[f'transaction {fate}', f"{r['waited']:.1f}", f"{r['seconds']:.2f}", f"{r['rate']:.0f}"]
                         for fate, r in result.items() if 'rate' in r]) + '\n\n' + report.table(
        ['fenced UPDATE, 8 clients, synchronous_commit=off', 'TPS', 'CPU µs of Redis'],
        [[f'{when} that', f"{result[when]['tps']:.0f}", f"{result[when]['cpu_redis']:.1f}"] for when in ('before', 'after')])
