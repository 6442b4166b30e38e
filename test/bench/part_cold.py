"""
The same as the parts single, rows, bulk and against, with default settings and rows that nobody has cached. pgcache_fence.watch_buckets
spares their writers Redis.
"""

import copy

import compare
import part_against
import part_bulk
import part_rows
import part_single
from servers import Postgres, Redis, running

PARTS = {'single': part_single, 'rows': part_rows, 'bulk': part_bulk, 'against': part_against}
TITLE = 'nothing cached, '


def run(bench):
    cold = copy.copy(bench)
    cold.redis, cold.ways = Redis('cold'), ['fenced']
    with running(cold.redis):
        cold.pg = Postgres('cold.data', cold.redis, cached=False)
        with running(cold.pg):
            compare.make_tables(cold.pg, cold.redis)
            return {name: part.run(cold) for name, part in PARTS.items()}


def show(result):
    return '\n\n'.join(PARTS[name].show(r).replace('| ', '| ' + TITLE, 1) for name, r in result.items())
