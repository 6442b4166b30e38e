"""The history of commits, in commit order, as PostgreSQL's log tells it (a logical replication slot).

Independent of all that is being tested: neither triggers nor Redis have a part in it.
"""

import re

from reader import TABLES

SLOT = 'demo_history'

CHANGE = re.compile(
    r'^table public\.(\w+): UPDATE: \w+\[integer\]:(\d+).* [atb]balance\[integer\]:(-?\d+).* version\[bigint\]:(\d+)')


class History:
    def __init__(self, cursor):
        self.cursor = cursor
        self.tables = {table: n for n, (table, *_) in enumerate(TABLES)}
        cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (SLOT,))
        cursor.execute('SELECT min(version), max(version) FROM pgbench_tellers')
        self.first, newest = cursor.fetchone()
        if self.first != newest:
            raise RuntimeError('the tables are not fresh')
        self.contents = {}      # (table, key, version) -> balance
        self.newest = {}        # (table, key) -> version
        self.gaps = 0           # commits whose version is not that of the commit before, plus 1

    def collect(self):
        """Everything committed so far."""
        while True:
            self.cursor.execute('SELECT data FROM pg_logical_slot_get_changes(%s, NULL, 100000)', (SLOT,))
            if self.cursor.rowcount == 0:
                break
            for data, in self.cursor:
                change = CHANGE.match(data)
                if change:
                    self.add(self.tables[change[1]], int(change[2]), int(change[4]), int(change[3]))
        self.cursor.execute('SELECT pg_drop_replication_slot(%s)', (SLOT,))

    def add(self, table, key, version, balance):
        if version != self.newest.get((table, key), self.first) + 1:
            self.gaps += 1
        self.newest[table, key] = version
        self.contents[table, key, version] = balance

    def contradicts(self, value, balance):
        """Whether value (table, key, version) never was committed with that balance. All began with 0."""
        if value[2] == self.first:
            return balance != 0
        return self.contents.get(value) != balance
