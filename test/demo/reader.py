"""A reader: strong reads straight through Redis, each one judged.

A read is right if it returns the newest committed version as of some instant between its start and its end. The
reader asks PostgreSQL just before and just after: a snapshot taken before the read shows the oldest version that is
allowed, one taken after it the newest. What the version contained is compared with these snapshots at once, and with
the history of commits afterwards (history.py).

To be fast it reads in batches: one statement is at once the "after" of a batch (and what its misses fall back to) and
the "before" of the next.
"""

import random

import psycopg2
import redis

# table, key column, balance column, rows, how many of a batch
TABLES = (
    ('pgbench_accounts', 'aid', 'abalance', 1000000, 40),
    ('pgbench_tellers', 'tid', 'tbalance', 100, 12),
    ('pgbench_branches', 'bid', 'bbalance', 10, 4),
)

# What a reader counts, per table. The last three must stay 0.
COUNTERS = ('hits', 'misses', 'pending', 'unarmed', 'stored', 'stale', 'early', 'wrong')

PROBE = ' UNION ALL '.join(
    'SELECT %d, %s, version::bigint, %s FROM %s WHERE %s = ANY ($%d)' % (n, key, balance, table, key, n + 1)
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
        self.names = [self.key_prefixes(table) for table, *_ in TABLES]
        self.counts = counts
        self.seen = {}          # (table, key, version) -> balance, of every value that a read returned

    def key_prefixes(self, table):
        """The names of a row's fence and value are a prefix and {key}; fence_key tells the prefix."""
        self.cursor.execute("SELECT fence.fence_key(%s, '1'), fence.value_key(%s, '1')", (table, table))
        fence, value = self.cursor.fetchone()
        if not (fence.endswith('{1}') and value.endswith('{1}')):
            raise RuntimeError('unexpected key: ' + fence)
        return fence[:-3], value[:-3]

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
        """(table, key) -> (version, balance), all from one snapshot that is taken now."""
        keys = [[], [], []]
        for n, key in rows:
            keys[n].append(key)
        self.cursor.execute('EXECUTE probe (%s::int[], %s::int[], %s::int[])', keys)
        return {(n, key): (version, balance) for n, key, version, balance in self.cursor}

    def exchange(self, puts, gets):
        """Sends what the last batch found in PostgreSQL, then asks for the next; returns the answers of the gets."""
        pipeline = self.redis.pipeline(transaction=False)
        for (n, key), token, ticket, (version, balance) in puts:
            fence, value = self.names[n]
            pipeline.execute_command('FCALL', 'fence_put', 2, '%s{%d}' % (fence, key), '%s{%d}' % (value, key),
                                     token, ticket, version, balance, 0)
        for n, key in gets:
            fence, value = self.names[n]
            pipeline.execute_command('FCALL', 'fence_get', 2, '%s{%d}' % (fence, key), '%s{%d}' % (value, key))
        answers = pipeline.execute()
        for (row, *_), answer in zip(puts, answers):
            if answer[0] == b'stored':
                self.count(row[0], 'stored')
        return answers[len(puts):]

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
        version, balance = got
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
                kind = answer[0]
                if kind == b'hit':
                    self.count(row[0], 'hits')
                    self.judge(row, before[row], (int(answer[2]), int(answer[3])), after[row])
                    continue
                if kind == b'miss':
                    self.count(row[0], 'misses')
                    puts.append((row, answer[1], answer[2], after[row]))
                else:
                    self.count(row[0], kind.decode())
                self.remember(row, after[row])
            rows, before = next_rows, after
        return self.seen
