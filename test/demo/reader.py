"""A reader: strong reads straight through Redis, each one judged.

A read is right if it returns the newest committed version as of some instant between its start and its end. The
reader asks PostgreSQL just before and just after: a snapshot taken before the read shows the oldest version that is
allowed, one taken after it the newest. What the version contained is compared with these snapshots at once, and with
the history of commits afterwards (history.py).

To be fast it reads in batches: one MULTI, MGET, fence_token, EXEC for all keys; and one statement is at once the "after" of
a batch (and what its misses fall back to) and the "before" of the next.
"""

import os
import random
import sys

import psycopg2
import redis

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))

import strong                                                                   # noqa: E402

# table, key column, balance column, rows, how many of a batch
TABLES = (
    ('pgbench_accounts', 'aid', 'abalance', 1000000, 40),
    ('pgbench_tellers', 'tid', 'tbalance', 100, 12),
    ('pgbench_branches', 'bid', 'bbalance', 10, 4),
)

# What a reader counts, per table. The last three must stay 0.
COUNTERS = ('hits', 'misses', 'unarmed', 'stored', 'stale', 'early', 'wrong')

PROBE = ' UNION ALL '.join(
    'SELECT %d, %s, version::bigint, %s, fence.row_version(version) FROM %s WHERE %s = ANY ($%d)' % (n, key, balance, table, key, n + 1)
    for n, (table, key, balance, _, _) in enumerate(TABLES))


class Reader:
    """counts: a flat array, COUNTERS for each of TABLES."""

    def __init__(self, socket, counts, seed):
        self.random = random.Random(seed)
        self.redis = redis.Redis(unix_socket_path=socket)
        self.database = psycopg2.connect('')
        self.database.autocommit = True
        self.cursor = self.database.cursor()
        self.cursor.execute('PREPARE probe (int[], int[], int[]) AS ' + PROBE)
        self.prefixes = [self.key_prefix(table) for table, *_ in TABLES]
        self.counts = counts
        self.seen = {}          # (table, key, version) -> balance, of every value that a read returned

    def key_prefix(self, table):
        """The name of a row's fence is a prefix and {key}; fence_key tells the prefix."""
        self.cursor.execute("SELECT fence.fence_key(%s, '1')", (table,))
        fence = self.cursor.fetchone()[0]
        if not fence.endswith('{1}'):
            raise RuntimeError('unexpected key: ' + fence)
        return fence[:-3]

    def count(self, table, counter):
        self.counts[table * len(COUNTERS) + COUNTERS.index(counter)] += 1

    def pick(self):
        """Rows to read: for the large table few rows are most of the reads (a key's share falls with its number)."""
        picked = set()
        for n, (_, _, _, rows, share) in enumerate(TABLES):
            for _ in range(share):
                key = int(rows ** self.random.random()) if n == 0 else self.random.randint(1, rows)
                picked.add((n, key))
        return picked

    def probe(self, rows):
        """(table, key) -> (version, balance, row version for a put), all from one snapshot that is taken now."""
        keys = [[], [], []]
        for n, key in rows:
            keys[n].append(key)
        self.cursor.execute('EXECUTE probe (%s::int[], %s::int[], %s::int[])', keys)
        return {(n, key): (version, balance, word) for n, key, version, balance, word in self.cursor}

    def fence(self, row):
        return '%s{%d}' % (self.prefixes[row[0]], row[1])

    def exchange(self, puts, gets):
        """Sends what the last batch found in PostgreSQL, then asks for the next; returns what strong.judge says of each.
        fence_token is asked for one fence of each table."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for row, permit, (_, balance, word) in puts:
                pipeline.execute_command('FCALL', 'fence_put', 1, self.fence(row), permit, word, balance, 0)
            for (row, *_), answer in zip(puts, pipeline.execute()):
                if answer == b'stored':
                    self.count(row[0], 'stored')
        with self.redis.pipeline(transaction=True) as block:
            block.mget([self.fence(row) for row in gets])
            block.execute_command('FCALL_RO', 'fence_token', len(TABLES), *['%s{1}' % prefix for prefix in self.prefixes])
            records, permits = block.execute()
        return [strong.judge(record, permits[row[0]]) for row, record in zip(gets, records)]

    def judge(self, row, before, got, after):
        """Of a value that came from Redis: whether it was the newest version at some instant of the read."""
        version, balance = got
        table = row[0]
        if version < before[0]:
            self.count(table, 'stale')
        elif version > after[0]:
            self.count(table, 'early')          # nobody had committed it yet
        elif (version == before[0] and balance != before[1]) or (version == after[0] and balance != after[1]):
            self.count(table, 'stale')          # the row changed and its version did not
        self.remember(row, got)

    def remember(self, row, got):
        """Every value is kept for history.py; two contents of one version are wrong in any case."""
        version, balance, *_ = got
        if self.seen.setdefault((*row, version), balance) != balance:
            self.count(row[0], 'wrong')

    def run(self, stopped):
        rows = self.pick()
        before = self.probe(rows)
        puts = []
        while not stopped():
            answers = self.exchange(puts, rows)
            next_rows = self.pick()
            after = self.probe(rows | next_rows)
            puts = []
            for row, answer in zip(rows, answers):
                if answer[0] == 'hit':
                    self.count(row[0], 'hits')
                    self.judge(row, before[row], (answer[2], int(answer[3])), after[row])
                    continue
                if answer[0] == 'miss':
                    self.count(row[0], 'misses')
                    if after[row][2] is not None:
                        puts.append((row, answer[1], after[row]))
                else:
                    self.count(row[0], 'unarmed')
                self.remember(row, after[row])
            rows, before = next_rows, after
        return self.seen
