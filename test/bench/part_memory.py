"""Bytes of Redis memory per cached row: the growth of used_memory for many rows, with the hash tables of keys and expiries.

The fences are copies of a fence that a reader has put, with a payload of 100 bytes, in a Redis of their own. The hash tables double
when they are full: "full" is measured just before that, "doubled" just after. A row that was written and not read since takes no
memory: the program writes many, and used_memory must not grow.
"""

import report
from servers import Redis, permit, running, wait_until

STEP = 10_000
PERIOD_MS = 86_400_000


def contents(bench):
    """The content of a row's fence after put."""
    client, fence = bench.redis.client, bench.pg.value("SELECT fence.fence_key('fenced', '1')")
    bench.warm()
    result = {'100 bytes': client.get(fence)}
    bench.pg.sql('UPDATE fenced SET data = data WHERE id = 1')
    assert not client.exists(fence), f'{fence} is there after a write'
    return fence, result


def idle(bench):
    """Bytes per row for rows that are written, a thousand in a transaction, and not read: bytes of keys, and of the functions."""
    rows = bench.amount(20_000, 100_000)
    bench.pg.sql('CREATE TABLE idle (id int8 PRIMARY KEY, version int8 NOT NULL DEFAULT 0)')
    bench.pg.sql('INSERT INTO idle SELECT generate_series(0, %s - 1)', rows)
    bench.pg.sql("SELECT fence.attach('idle')")
    fence = bench.pg.value("SELECT fence.fence_key('idle', '1')")
    wait_until(lambda: permit(bench.redis, fence), 10, 'domain idle is not announced')
    bench.pg.sql('UPDATE idle SET id = id WHERE id < 1000')
    client = bench.redis.client
    before, functions = used(client), client.info('memory')['used_memory_vm_functions']
    for first in range(0, rows, 1000):
        bench.pg.sql('UPDATE idle SET id = id WHERE id BETWEEN %s AND %s + 999', first, first)
    return {'keys': (used(client) - before) / rows,
            'functions': (client.info('memory')['used_memory_vm_functions'] - functions) / rows}


def used(client):
    """used_memory once Redis has moved all keys into the larger table."""
    seen = []

    def settled():
        seen.append(client.info('memory')['used_memory'])
        return len(seen) > 3 and max(seen[-3:]) - min(seen[-3:]) < 10_000
    wait_until(settled, 20, "Redis' memory does not settle")
    return seen[-1]


def grow(client, fence, content, first, last):
    name = fence.split('{')[0] + '{%d}'
    for start in range(first, last, STEP):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + STEP, last)):
            pipe.set(name % (10 ** 9 + number), content, px=PERIOD_MS)
        pipe.execute()


def run(bench):
    full = bench.amount(2 ** 17, 2 ** 20)
    fence, found = contents(bench)
    result = {'idle': idle(bench)}
    server = Redis('memory')
    with running(server):
        for how, content in found.items():
            server.client.flushall()
            before = used(server.client)
            r = {'content': len(content)}
            at = 0
            for when, count in ('full', full), ('doubled', full + full // 20):
                grow(server.client, fence, content, at, count)
                at = count
                r[when] = (used(server.client) - before) / count
            r['name'] = server.client.randomkey().decode()
            r['MEMORY USAGE'] = server.client.memory_usage(r['name'])
            result[how] = r
    return result


def show(result):
    return report.table(['Redis memory per cached row, bytes', 'of its name', 'of its content', 'MEMORY USAGE',
                         'growth of used_memory, tables full', 'tables doubled'],
                        [[f"{how}: `{r['name'].split('{')[0]}{{…}}`", len(r['name']), r['content'], r['MEMORY USAGE'],
                          f"{r['full']:.0f}", f"{r['doubled']:.0f}"] for how, r in result.items() if how != 'idle']) + '\n\n' + report.table(
        ['Redis memory per row that is written and not read, bytes', 'growth of used_memory', 'of the memory of functions, until it is collected'],
        [['1,000 rows in a transaction', *(f"{result['idle'][what]:.1f}" for what in ('keys', 'functions'))]])
