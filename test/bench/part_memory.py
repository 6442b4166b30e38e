"""Bytes of Redis memory per fence that nobody uses: the growth of used_memory over many, and MEMORY USAGE of one."""

import report
from servers import fill

FIRST = 2 * 10 ** 9                     # no rows: nobody else touches these fences


def run(bench):
    count = bench.amount(100_000, 1_000_000)
    client = bench.redis.client
    fence = bench.pg.value("SELECT fence.fence_key('fenced', %s)", str(FIRST))
    value = bench.pg.value("SELECT fence.value_key('fenced', %s)", str(FIRST))
    before = client.info('memory')['used_memory']
    fill(bench.pg, bench.redis, 'fenced', count, payload=1, first=FIRST)
    delete(client, value, count)
    after = client.info('memory')['used_memory']
    result = {'name': fence, 'name bytes': len(fence), 'fence bytes': len(client.get(fence)),
              'MEMORY USAGE': client.memory_usage(fence), 'growth': (after - before) / count, 'count': count}
    delete(client, fence, count)
    return result


def delete(client, first_name, count):
    for start in range(0, count, 10_000):
        client.delete(*(first_name.replace(str(FIRST), str(FIRST + i)) for i in range(start, start + 10_000)))


def show(result):
    return report.table(['Redis memory per idle fence', 'bytes'], [
        [f"growth of used_memory over {result['count']:,} fences, key tables included", f"{result['growth']:.0f}"],
        ['MEMORY USAGE of one', result['MEMORY USAGE']],
        [f"name `{result['name']}`", result['name bytes']],
        ['content', result['fence bytes']]])
