"""All clients at once read a few rows that change all the time, while Redis forgets, is killed and comes back.

Every read is judged: what it returned must have been committed at some instant between its start and its end, and must
not be older than what the same client returned before. Nothing of it depends on how fast the machine is: each phase
ends when every client has done its share.
"""

import bisect
import contextlib
import random
import threading
import time

import psycopg2
import redis

from system import wait_for

PAIRS = ((1, 2), (3, 4))        # accounts between which money goes to and fro
SINGLE = (11, 12, 13)           # change by themselves; the last one comes and goes
# Each with the longest pause between its changes, so that there are hits however slow a reader is
PAUSES = {(1, 2): 0.05, (3, 4): 1, (11,): 0.02, (12,): 5, (13,): 0.3}
SHARE = 20                      # hits of each reader in a phase
SHELL_SHARE = 3                 # reads of the shell: it starts four programs for each, so a hit may take it long
PHASE_SECONDS = 120


class Log:
    """What became of a row: its states (version, balance), None while it is deleted, each with the time at which its
    commit was sent and the time at which it was known to be over. One writer per row."""

    def __init__(self, first):
        self.states = [(0.0, 0.0, first)]

    def note(self, sent, over, state):
        self.states.append((sent, over, state))

    def possible(self, start, end, state):
        """Numbers of the states that a read from start to end may have returned and that are equal to state."""
        states = self.states
        last = bisect.bisect_right(states, (end, float('inf'))) - 1
        found = []
        for n in range(last, -1, -1):
            if states[n][2] == state:
                found.append(n)
            if states[n][1] <= start:                           # older ones were certainly over
                break
        return found[::-1]


def state_of(row):
    return row and (row['version'], row['balance'])


class Storm:
    def __init__(self, system, clients):
        self.system = system
        self.clients = [name for name in clients for _ in range(1 if name == 'shell' else 2)]
        self.stop = threading.Event()
        self.faults = []
        self.hits = [0] * len(self.clients)
        self.reads_of = [0] * len(self.clients)
        self.results = []
        self.logs = {}
        self.commits = self.rollbacks = 0

    def summary(self):
        return 'storm: %d commits, %d rollbacks; reads and hits: %s' % (
            self.commits, self.rollbacks, ', '.join('%s %d %d' % each for each in zip(self.clients, self.reads_of, self.hits)))

    # ------------------------------------------------------------------------------------------------------------------

    def thread(self, function, *args):
        def body():
            try:
                function(*args)
            except Exception as error:          # ends the storm
                self.faults.append('%s: %s: %s' % (function.__name__, type(error).__name__, error))
                self.stop.set()
        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def write(self, rows, seed):
        """One writer: transfers in a pair, or changes of single rows."""
        chance = random.Random(seed)
        connection = psycopg2.connect(self.system.postgres.dsn())
        with contextlib.closing(connection), connection.cursor() as cursor:
            while not self.stop.is_set():
                new = self.transfer(cursor, rows, chance) if len(rows) == 2 else self.change(cursor, rows[0], chance)
                sent = time.monotonic()
                if chance.random() < 0.2:
                    connection.rollback()
                    self.rollbacks += 1
                    continue
                connection.commit()
                over = time.monotonic()
                self.commits += 1
                for id, state in new:
                    self.logs[id].note(sent, over, state)
                self.stop.wait(chance.random() * PAUSES[rows])

    @staticmethod
    def transfer(cursor, rows, chance):
        cursor.execute('UPDATE account SET balance = balance + CASE id WHEN %s THEN 1 ELSE -1 END * %s'
                       ' WHERE id = ANY (%s) RETURNING id, version, balance',
                       (rows[0], chance.randrange(-5, 6), list(rows)))
        return [(id, (version, balance)) for id, version, balance in cursor.fetchall()]

    @staticmethod
    def change(cursor, id, chance):
        if id == SINGLE[-1] and chance.random() < 0.3:
            cursor.execute('DELETE FROM account WHERE id = %s', (id,))
            return [(id, None)]
        cursor.execute("INSERT INTO account (id, owner, balance) VALUES (%s, 'single', %s) ON CONFLICT (id)"
                       ' DO UPDATE SET balance = excluded.balance RETURNING version, balance', (id, chance.randrange(1000)))
        return [(id, cursor.fetchone())]

    def forget(self, seed):
        """Takes a fence from Redis now and then, as eviction does."""
        chance = random.Random(seed)
        names = [self.system.sql("SELECT fence.fence_key('account', %s)", (str(id),))[0][0] for id in sum(PAIRS, ()) + SINGLE]
        while not self.stop.wait(chance.random() * 0.2):
            with contextlib.suppress(redis.RedisError):         # it is down
                name = chance.choice(names)
                self.system.on_redis(name, 'DEL', name)

    def read(self, number, driver):
        chance = random.Random(number)
        while not self.stop.is_set():
            if driver.client != 'shell' and chance.random() < 0.3:
                ids = chance.choice(PAIRS)
                start = time.monotonic()
                answer = driver.ask('together', ids=ids)
            else:
                ids = (chance.choice(sum(PAIRS, ()) + SINGLE),)
                start = time.monotonic()
                answer = driver.ask('read', id=ids[0])
            end = time.monotonic()
            states = [state_of(row) for row in answer['rows']]
            self.results.append((number, start, end, ids, states))
            self.reads_of[number] += 1
            self.hits[number] += answer['queries'] == 0

    # ------------------------------------------------------------------------------------------------------------------

    def phase(self, counts, what, share=SHARE):
        """Until every reader has done its share more of what is counted."""
        watched = [(self.reads_of, SHELL_SHARE) if name == 'shell' else (counts, share) for name in self.clients]
        before = [counted[n] for n, (counted, _) in enumerate(watched)]

        def done():
            if self.stop.is_set():
                raise AssertionError('; '.join(self.faults))
            return all(counted[n] - before[n] >= least for n, (counted, least) in enumerate(watched))
        wait_for(done, what, PHASE_SECONDS, 0.05)

    def run(self):
        for id in sum(PAIRS, ()) + SINGLE:
            version, balance = self.system.sql('SELECT version, balance FROM account WHERE id = %s', (id,))[0]
            self.logs[id] = Log((version, balance))
        drivers = [self.system.driver(name) for name in self.clients]
        threads = [self.thread(self.write, rows, n) for n, rows in enumerate(PAUSES)]
        threads += [self.thread(self.forget, 1)]
        threads += [self.thread(self.read, n, driver) for n, driver in enumerate(drivers)]
        try:
            self.phase(self.hits, 'hits')
            victim = self.system.redis[-1]
            victim.kill9()
            self.phase(self.reads_of, 'reads without Redis', 5)
            victim.start()
            self.phase(self.hits, 'hits after the restart')
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
            for driver in drivers:
                driver.end()
        if self.faults:
            raise AssertionError('; '.join(self.faults))
        self.judge()

    def judge(self):
        last = {}               # (reader, row) -> number of the state that it returned last
        for number, start, end, ids, states in self.results:
            for id, state in zip(ids, states):
                before = last.get((number, id), 0)
                possible = [n for n in self.logs[id].possible(start, end, state) if n >= before]
                if not possible:
                    raise AssertionError('%s read %s of row %d; before %s; committed last: %s' % (
                        self.clients[number], state, id, self.logs[id].states[before][2],
                        [s for sent, over, s in self.logs[id].states if over <= start][-2:]))
                last[number, id] = possible[0]
            if len(ids) == 2 and sum(balance for _, balance in states) != 200:
                raise AssertionError('%s read two rows that do not agree: %s' % (self.clients[number], states))
