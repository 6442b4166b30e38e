"""Measures costs per cached row and per message, and computes from them the load of 30 masters with 10^9 cached rows and 10^5
writes per second.

The kernel reports processor times for each process. So other work on the machine makes the run longer but changes the results
only through shared caches and clock rates. All messages to Redis have the form in which the extension sends them.
"""

import multiprocessing
import time

import psycopg2

import report
from part_library import LIBRARY
from servers import Postgres, Redis, cpu_us, running, wait_until

HOUR = 3_600_000
NAME = 'bench:f:16384abcdef.account:{%d}'    # as fence_key makes them for a table of a few letters
PAYLOAD = 'x' * 100
BATCH = 64                              # reservations in one fence_write
MASTERS, ROWS, WRITES, READS = 30, 10 ** 9, 10 ** 5, 10 ** 6


class Armed:
    """A Redis that this program has armed itself, in an epoch of its own."""

    def __init__(self, server):
        self.server, self.client = server, server.client
        text = ''
        for name in LIBRARY:
            with open(name) as file:
                text += file.read()
        self.client.function_load(text, replace=True)
        identity, now = self.call('fence_hello', 0, 'bench', 'abcdef')[:2]
        self.header = 'bench 1-aa'
        reply = self.call('fence_arm', 1, 'bench:heartbeat', identity, '1-aa', int(now) + HOUR, '', 'owner', 1, 'server',
                          '86400000 100 1000 0')
        assert reply[0] == b'armed', reply
        reply = self.call('fence_announce', 0, 'bench', '1-aa', '16384.account', 1, 'none', 0)
        assert reply[0] == b'announced', reply

    def call(self, *words):
        return self.client.execute_command('FCALL', *words)

    def pipelined(self, commands, most=200):
        """Sends all commands. Returns the replies in order, and the server's processor microseconds per command."""
        before, n, replies = cpu_us(self.server.pid), 0, []
        batch = self.client.pipeline(transaction=False)
        for command in commands:
            batch.execute_command('FCALL', *command)
            n += 1
            if n % most == 0:
                replies += batch.execute()
        replies += batch.execute()
        return replies, (cpu_us(self.server.pid) - before) / n

    def used(self, field='used_memory'):
        return self.client.info('memory')[field]


def names(first, n):
    return [NAME % i for i in range(first, first + n)]


def write(armed, first, fences, ended):
    """For each BATCH of fences, from number `first` on, a transaction reserves them, or ends. Returns the server's time per fence."""
    stamps = [f'{first + n}.89abcdef' for n in range(0, len(fences), BATCH)]
    words = [('fence_write', 0, armed.header, '-', 0, stamp) if ended else
             ('fence_write', 0, armed.header, stamp, BATCH, *fences[BATCH * n:BATCH * (n + 1)]) for n, stamp in enumerate(stamps)]
    replies, each = armed.pipelined(words, 20)
    assert all(replies), replies[0]
    return each / BATCH


def fences(server, count):
    """The memory of cached rows, and the processor time of Redis for each function."""
    armed, costs = Armed(server), {}
    empty = armed.used()
    replies, costs['token'] = armed.pipelined(('fence_token', 1, NAME % i) for i in range(count))
    replies, costs['put'] = armed.pipelined(('fence_put', 1, NAME % i, permit, permit.partition(b'.')[0] + b'.123456', PAYLOAD, 0) for i, permit in enumerate(replies))
    assert all(r == b'stored' for r in replies)
    row_bytes = (armed.used() - empty) / count
    some = min(count, 50_000) // BATCH * BATCH
    replies, costs['get that hits'] = armed.pipelined(('fence_get', 1, NAME % i) for i in range(some))
    assert all(r[0] == b'hit' for r in replies)
    lua = armed.used('used_memory_vm_functions')
    costs[f'reserve, warm, {BATCH} in a call'] = write(armed, 1, names(0, some), False)
    reservation_bytes = (armed.used('used_memory_vm_functions') - lua) / some
    costs[f'end, of {BATCH}'] = write(armed, 1, names(0, some), True)
    cold = names(10 ** 9, some)
    costs[f'reserve, no fence, {BATCH} in a call'] = write(armed, 10 ** 6, cold, False)
    costs[f'end, of {BATCH}, of rows without fence'] = write(armed, 10 ** 6, cold, True)
    costs['hello'] = armed.pipelined((('fence_hello', 0, 'bench', 'abcdef') for _ in range(some)))[1]
    return {'row': row_bytes, 'reservation': reservation_bytes, 'costs': costs, 'name': len(NAME % count)}


# Runs single-row transactions for that many seconds inside the server, so that clients need no processor time.
WRITE_ON = """
CREATE PROCEDURE write_on(seconds float8, INOUT n bigint) LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := clock_timestamp() + seconds * interval '1 s';
BEGIN
    n := 0;
    WHILE clock_timestamp() < until LOOP
        UPDATE account SET n = account.n + 1 WHERE id = 1 + (random() * 9999)::int;
        COMMIT;
        n := n + 1;
    END LOOP;
END $$"""


def write_on(conninfo, seconds, done):
    connection = psycopg2.connect(conninfo)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute('CALL write_on(%s, NULL)', (seconds,))
    with done.get_lock():
        done.value += cursor.fetchone()[0]


def calls(nodes):
    """The number of FCALLs that the nodes have executed."""
    return sum(node.command_stats().get('fcall', (0, 0))[0] for node in nodes)


def idle(pg, nodes, seconds):
    """The messages of the workers while no session writes."""
    keeper = pg.worker('keeper')
    before, used = calls(nodes), cpu_us(keeper)
    time.sleep(seconds)
    return {'calls': (calls(nodes) - before) / len(nodes) / seconds, 'keeper': (cpu_us(keeper) - used) / seconds}


def messages(pg, nodes, sessions, seconds):
    """The load of the courier and of Redis while sessions write single rows with asynchronous commits."""
    courier, done = pg.worker('courier'), multiprocessing.Value('l', 0)
    before, used, redis_used = calls(nodes), cpu_us(courier), sum(cpu_us(node.pid) for node in nodes)
    processes = [multiprocessing.Process(target=write_on, args=(pg.conninfo(synchronous_commit='off'), seconds, done))
                 for _ in range(sessions)]
    for process in processes:
        process.start()
    time.sleep(seconds / 2)
    connections = sum(node.client.info('clients')['connected_clients'] - 1 for node in nodes) / len(nodes)
    for process in processes:
        process.join()
    writes = done.value
    return {'sessions': sessions, 'writes': writes / seconds, 'courier': (cpu_us(courier) - used) / writes,
            'redis': (sum(cpu_us(node.pid) for node in nodes) - redis_used) / writes,
            'batch': 2 * writes / max(1, calls(nodes) - before), 'connections': connections}


def system(name, nodes, url, seconds):
    """A PostgreSQL that uses these nodes; None if it refuses them."""
    pg = Postgres(name, settings=f"shared_preload_libraries = 'pgcache_fence'\npgcache_fence.redis_url = '{url}'\n", preload=False)
    try:
        if pg.value('SHOW pgcache_fence.redis_url') != url:
            return None
        pg.sql('CREATE EXTENSION pgcache_fence')
        pg.wait_open()
        pg.sql('CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, data text, version bigint NOT NULL DEFAULT 0)')
        pg.sql("INSERT INTO account (id, data) SELECT g, repeat('x', 100) FROM generate_series(1, 10000) g")
        pg.sql("SELECT fence.attach('account')")
        wait_until(lambda: pg.value("SELECT status FROM fence.get('account', '1')") in ('miss', 'hit'), 30, 'account is not served')
        pg.sql('VACUUM ANALYZE account')
        pg.sql(WRITE_ON)
        return {'nodes': len(nodes), 'lease': pg.value('SHOW pgcache_fence.lease'), 'idle': idle(pg, nodes, 2 * seconds),
                'shared': pg.value("SELECT allocated_size FROM pg_shmem_allocations WHERE name = 'pgcache_fence'"),
                'backends': pg.value("SELECT sum(setting::int) FROM pg_settings WHERE name IN "
                                     "('max_connections', 'max_worker_processes', 'autovacuum_max_workers', 'max_wal_senders')"),
                'loads': [messages(pg, nodes, n, seconds) for n in (1, 8, 64)]}
    finally:
        pg.stop()


def run(bench):
    count, seconds = bench.amount(100_000, 200_000), bench.amount(2, 5)
    first = Redis('fences')
    with running(first):
        result = {'fences': fences(first, count), 'systems': []}
    for n in 1, MASTERS:
        nodes = [Redis(f'node{i}') for i in range(n)]
        with running(*nodes):
            found = system(f'pg{n}', nodes, ','.join(node.url(tcp=True) for node in nodes), seconds)
        result['systems'] += [found] if found else []
    return result


def worked_out(result):
    """The figures that follow from these costs: (description, value)."""
    r, costs = result['fences'], result['fences']['costs']
    write = costs[f'reserve, warm, {BATCH} in a call'] + costs[f'end, of {BATCH}']
    many = result['systems'][-1]
    load = many['loads'][-1]
    return [
        [f'cached rows of {len(PAYLOAD)} bytes: memory of Redis in all, GB', f"{ROWS * r['row'] / 1e9:.0f}"],
        ['… of each master, GB', f"{ROWS * r['row'] / 1e9 / MASTERS:.0f}"],
        ['rows that expire with a time to live of a day, per second and master', f'{ROWS / 86_400 / MASTERS:.0f}'],
        ['reservations of transactions of 10 ms, at a time, in kB', f"{WRITES / 100 * r['reservation'] / 1000:.0f}"],
        ['… of 500 sessions that reserve 3,000 rows each, in MB', f"{500 * 3000 * r['reservation'] / 1e6:.0f}"],
        ['writes: of one core of each master, in long calls, %', f'{100 * WRITES / MASTERS * write / 1e6:.0f}'],
        [f"… in calls as with {many['nodes']} Redis and {load['sessions']} sessions, %", f"{100 * WRITES / MASTERS * load['redis'] / 1e6:.0f}"],
        ['processors that the courier would need, of which it can use one', f"{WRITES * load['courier'] / 1e6:.1f}"],
        ["writes per second at which one courier is busy all the time", f"{1e6 / load['courier']:,.0f}"],
        ['connections of 500 sessions at the Redis servers in all', f'{500 * MASTERS:,}'],
        [f'minutes until half of the reads hit again after a new epoch, at {READS:,} reads per second', f'{0.7 * ROWS / READS / 60:.0f}'],
    ]


def show(result):
    r, systems = result['fences'], result['systems']
    loads = [[f"{s['nodes']} Redis, {load['sessions']} session{'s' * (load['sessions'] > 1)}", f"{load['writes']:.0f}", *(f'{load[f]:.1f}' for f in ('batch', 'courier', 'redis', 'connections'))]
             for s in systems for load in s['loads']]
    return '\n\n'.join([
        report.table(['memory of Redis', 'bytes'], [
            [f"a cached row of {len(PAYLOAD)} bytes (name of {r['name']} bytes), growth of used_memory", f"{r['row']:.0f}"],
            ['a reservation, while it lasts (memory of the functions)', f"{r['reservation']:.0f}"]]),
        report.table(['processor time of Redis, pipelined', 'µs'], [[name, f'{cost:.2f}'] for name, cost in r['costs'].items()]),
        report.table(['writes of one row, synchronous_commit = off', 'writes/s', 'operations per call', 'courier, µs per write',
                      'Redis, µs per write', 'connections at each Redis'], loads),
        report.table(['when nobody writes', 'calls to each Redis per second', 'keeper, µs per second', 'lease', 'MiB of shared memory', 'for backends'],
                     [[f"{s['nodes']} Redis", f"{s['idle']['calls']:.1f}", f"{s['idle']['keeper']:.0f}", s['lease'], f"{s['shared'] / 2 ** 20:.1f}",
                       s['backends']] for s in systems]),
        report.table([f'worked out: {MASTERS} masters, 10^9 cached rows, 10^5 writes per second', ''], worked_out(result))])
