"""The sessions that make the calls. Each has a thread and a random generator. What it calls does not depend on answers.

A session of PostgreSQL keeps its role through the run. Most calls inside a transaction have a savepoint of their own, so
that an error does not end the transaction.
"""

import random
import re
import threading
import time

import psycopg2
import redis

import values
from world import LIARS_REDIS, LIARS_SQL, LIED, NAMESPACE, OWN_NAMESPACES, abbreviated

# The maximum statement_timeout. The watch for slow calls reports a statement long before.
STATEMENT_SECONDS = 12
LOCK_SECONDS = 0.7

# Redis' own errors for calls that are malformed, or that the user may not make.
REDIS_OWN_ERRORS = re.compile(
    r'wrong number of arguments|Bad number of keys|Number of keys|Function not found|value is not an integer|'
    r'Can not execute a (script|function) with write flag')
LUA_ERROR = re.compile(r'user_function|attempt to |stack |bad argument|Wrong number of args')

# Errors of an effect on a key of the user that has another type, or is no number.
USERS_KEY = re.compile(r'^(WRONGTYPE |ERR value is not an integer|ERR increment or decrement would overflow).*script: fence_(effect|log_stamps)')

# PostgreSQL itself raises this XX000 when two sessions run DDL at once.
POSTGRES_OWN = re.compile(r'^tuple concurrently (updated|deleted)')


def said(call):
    """A statement, or the words of a command, as text for a report."""
    if isinstance(call, str):
        return abbreviated(call)
    return abbreviated(' '.join(repr(abbreviated(w.decode('utf-8', 'backslashreplace'), 300)) for w in call))


class Session:
    def __init__(self, world, watch, name):
        self.name, self.world, self.watch = name, world, watch
        self.doing = None               # (since, the call)
        self.steps = 0
        self.round = 0

    def begin_round(self, number, steps):
        """Starts the thread that makes this round's calls."""
        self.round, self.steps = number, steps
        self.rng = random.Random('%d %d %s' % (self.world.seed, number, self.name))
        thread = threading.Thread(target=self.run_round, name=self.name, daemon=True)
        thread.start()
        return thread

    def run_round(self):
        try:
            self.open()
            for _ in range(self.steps):
                if self.watch.over():
                    break
                self.step()
            self.close_round()
        except Exception as error:
            self.watch.defect('session', '%s: %s: %s' % (self.where(), type(error).__name__, error))

    def where(self):
        doing = self.doing
        return '%s, seed %d, round %d%s' % (self.name, self.world.seed, self.round, ', in: ' + said(doing[1]) if doing else '')

    def timed(self, call, run):
        """Makes the call and returns its answer. Tells the watch how long it took."""
        begun = time.monotonic()
        self.doing = (begun, call)
        try:
            return run()
        finally:
            self.doing = None
            self.watch.took(self, call, begun, time.monotonic())


class SqlSession(Session):
    """A session of PostgreSQL. stays: it never disconnects, so that its memory can be watched."""

    def __init__(self, world, watch, name, role, tables_owner=False, stays=False):
        super().__init__(world, watch, name)
        self.role = role
        self.stays = stays
        self.ddl = tables_owner
        self.values = values.SqlValues(world)
        self.connection = None
        self.depth = 0                  # planned nesting: 0 no transaction, 1 a transaction, more: savepoints
        self.left = 0                   # steps that are left in the planned transaction

    def open(self):
        if self.connection is None or self.connection.closed:
            self.connection = self.world.connect(self.role, statement_timeout='%ds' % STATEMENT_SECONDS,
                                                 lock_timeout='%dms' % (LOCK_SECONDS * 1000), client_min_messages='error')
        self.depth = 0

    def close_round(self):
        """Checks that the session still answers. A late cancel may hit this query, which is then repeated."""
        for attempt in range(3):
            try:
                if self.connection.closed:
                    self.open()
                self.connection.rollback()
                with self.connection.cursor() as cursor:
                    cursor.execute('ROLLBACK')
                    cursor.execute('SELECT 1')
                return
            except (psycopg2.errors.QueryCanceled, psycopg2.OperationalError):
                if attempt == 2:
                    raise

    def send(self, sql):
        """Rows, or None after an error (which the watch judges)."""
        def run():
            with self.connection.cursor() as cursor:
                cursor.execute(sql.encode('utf-8', 'surrogateescape'))
                return cursor.fetchmany(20) if cursor.description else []
        try:
            return self.timed(sql, run)
        except psycopg2.Error as error:
            self.judge(sql, error)
        except ValueError:              # psycopg2 cannot convert the result to a Python value (a timestamp of year 300000)
            pass
        return None

    def judge(self, sql, error):
        if error.pgcode is None or error.pgcode.startswith('57P'):
            if self.connection.closed:
                self.watch.lost(self, sql, str(error))
                self.open()
            return
        message = error.diag.message_primary or ''
        if error.pgcode and error.pgcode.startswith('XX') and not POSTGRES_OWN.search(message):
            self.watch.defect('internal error', '%s\n%s\n%s: %s' % (self.where(), abbreviated(sql), error.pgcode,
                                                                    message))

    def in_failed_transaction(self):
        return self.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR

    def step(self):
        rng = self.rng
        kind, number = rng.random(), rng.getrandbits(64)
        if self.depth:
            self.left -= 1
            if self.left <= 0:
                return self.end_transaction(number)
        if kind < 0.10:
            return self.transaction_step(number)
        if kind < 0.12 and not self.depth:
            return self.disconnect()
        if kind < 0.16:
            return self.cancelled(number)
        self.one(number)

    def one(self, number):
        """Runs a statement; in a transaction mostly with a savepoint of its own."""
        rng = random.Random(number)
        sql = self.statement(rng)
        guarded = self.depth and rng.random() < 0.9
        if guarded:
            self.send('SAVEPOINT guard')
        rows = self.send(sql)
        if rows is not None:
            self.world.remember(rows)
        if guarded:
            self.send('ROLLBACK TO guard' if self.in_failed_transaction() else 'RELEASE guard')
        elif self.depth and self.in_failed_transaction():
            self.send('ROLLBACK')

    def transaction_step(self, number):
        rng = random.Random(number)
        if not self.depth:
            self.depth, self.left = 1, rng.randint(2, 9)
            self.send('BEGIN ISOLATION LEVEL ' + rng.choice(('READ COMMITTED', 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')))
            if rng.random() < 0.2:
                self.send('SET LOCAL statement_timeout = %d' % rng.choice((1, 3, 10, 50)))
        elif self.depth == 1 or rng.random() < 0.5:
            self.send('SAVEPOINT s%d' % self.depth)
            self.depth += 1
        else:
            self.depth -= 1
            self.send('%s s%d' % (rng.choice(('RELEASE', 'ROLLBACK TO')), self.depth))

    def end_transaction(self, number):
        rng = random.Random(number)
        self.depth = 0
        kind = rng.random()
        if kind < 0.60:
            self.send('COMMIT')
        elif kind < 0.85:
            self.send('ROLLBACK')
        elif kind < 0.92:
            self.send("PREPARE TRANSACTION 'fz%d'" % rng.getrandbits(40))
            self.send('ROLLBACK')       # in case COMMIT or PREPARE TRANSACTION was refused
        else:
            self.disconnect()

    def disconnect(self):
        """Closes the connection, whatever the session is doing."""
        if self.stays:
            self.send('ROLLBACK')
            self.send('DISCARD ALL')
        else:
            self.connection.close()
            self.open()

    def cancelled(self, number):
        rng = random.Random(number)
        connection = self.connection

        def cancel():
            try:
                connection.cancel()
            except psycopg2.Error:
                pass
        timer = threading.Timer(rng.choice((0, 0.001, 0.005, 0.02)), cancel)
        timer.start()
        self.one(rng.getrandbits(64))
        timer.join()

    # ------------------------------------------------------------------------------------------------------------------
    # Statements
    # ------------------------------------------------------------------------------------------------------------------

    def statement(self, rng):
        kind = rng.random()
        if kind < 0.62 or self.role == 'fz_nobody' and kind < 0.9:
            return self.function(rng)
        if kind < 0.90:
            return self.dml(rng)
        if kind < 0.94 and self.ddl:
            return self.definition(rng)
        return 'SELECT * FROM %s LIMIT 50' % rng.choice(self.world.views)

    def function(self, rng):
        function = rng.choice(self.world.functions_sql)
        if function['trigger'] and rng.random() < 0.8:
            function = rng.choice(self.world.functions_sql)
        liar = function['name'] in LIARS_SQL
        domain = self.world.domain(rng, liar)
        effect = any(n.endswith(('_key', '_keys')) for n in function['names'])
        numbers = [rng.getrandbits(64) for _ in function['types']]
        arguments, given = [], len(numbers)
        if rng.random() < 0.3:          # some of the last arguments have defaults
            given = rng.randint(0, len(numbers))
        for n, (number, type_name) in enumerate(zip(numbers, function['types'])):
            if n >= given and not (function['variadic'] and n == len(numbers) - 1):
                continue
            name = function['names'][n] if n < len(function['names']) else ''
            if liar and name == 'domain':
                text = values.literal(rng.choice((LIED, 'by_hand')))
            else:
                text = self.values.argument(number, name, type_name, domain, effect)
            if function['variadic'] and n == len(numbers) - 1:
                text = 'VARIADIC ' + text
            elif n != len(arguments):
                text = '%s => %s' % (name, text)
            arguments.append(text)
        if rng.random() < 0.01:
            arguments.append("'one more'")
        call = 'fence.%s(%s)' % (function['name'], ', '.join(arguments))
        if rng.random() < 0.9:
            return 'SELECT * FROM ' + call
        return 'SELECT %s FROM generate_series(1, %d)' % (call, rng.randint(0, 3))

    def dml(self, rng):
        domain = self.world.domain(rng, False)
        table = domain if domain in self.world.relations else 'item'
        key = self.world.key(rng, table)
        wide = table in ('member', 'room_group')
        columns = ('room', 'usr') if wide else ('id',)
        if wide and len(key) == 1:
            key = (key[0], str(rng.randint(1, 3)))
        where = ' AND '.join('%s = %s' % (c, values.literal(k)) for c, k in zip(columns, key))
        kind = rng.random()
        version = rng.choice([n for n in values.NUMBERS if n <= 1000] + [3, 8])
        if kind < 0.45:
            return 'UPDATE %s SET n = n + 1 WHERE %s' % (table, where)
        if kind < 0.62:
            return 'INSERT INTO %s (%s, n) VALUES (%s, 0) ON CONFLICT (%s) DO UPDATE SET n = %s.n + 1' % (
                table, ', '.join(columns), ', '.join(map(values.literal, key)), ', '.join(columns), table)
        if kind < 0.74:
            return 'DELETE FROM %s WHERE %s' % (table, where)
        if kind < 0.80:
            return 'UPDATE %s SET version = %d WHERE %s' % (table, version, where)
        if kind < 0.84:
            return 'INSERT INTO %s (%s, n, version) VALUES (%s, 0, %d) ON CONFLICT DO NOTHING' % (
                table, ', '.join(columns), ', '.join(map(values.literal, key)), version)
        if kind < 0.88:
            return 'UPDATE %s SET %s = %s WHERE %s' % (table, columns[-1], values.literal(self.world.key(rng, table)[-1]), where)
        if kind < 0.92:
            return 'UPDATE %s SET n = n + 1' % table
        if kind < 0.95:
            return 'SELECT * FROM %s WHERE %s FOR %s' % (table, where, rng.choice(('UPDATE', 'SHARE', 'KEY SHARE')))
        if kind < 0.98 or wide or table == 'word':
            return 'UPDATE %s SET n = NULL WHERE n %% 3 = %d' % (table, rng.randrange(3))
        return 'INSERT INTO %s (id, n) SELECT g, 0 FROM generate_series(1, 14) g ON CONFLICT DO NOTHING' % table

    def definition(self, rng):
        table = rng.choice(self.world.relations)
        return rng.choice((
            'TRUNCATE %s' % table,
            'ALTER TABLE %s ADD COLUMN IF NOT EXISTS extra int DEFAULT 1' % table,
            'ALTER TABLE %s DROP COLUMN IF EXISTS extra' % table,
            'ALTER TABLE %s ALTER COLUMN n TYPE bigint' % table,
            'ALTER TABLE %s ALTER COLUMN n TYPE int' % table,
            'ALTER TABLE %s ALTER COLUMN version DROP DEFAULT' % table,
            'ALTER TABLE %s RENAME COLUMN n TO m' % table,
            'ALTER TABLE %s RENAME COLUMN m TO n' % table,
            "SELECT fence.detach('%s')" % table,
            "SELECT fence.attach('%s')" % rng.choice(('item', 'spare', 'word', 'lied')),
            "SELECT fence.attach('%s', cache => 'row')" % rng.choice(('cached', 'parted', 'spare')),
            "SELECT fence.attach('member', tag => 'room/{room}')",
            "SELECT fence.attach('room_group', key => '{room}', scope => 'group', tag => 'room/{room}')",
            'ALTER TABLE parted DETACH PARTITION parted_1',
            'ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)',
            'LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE' % table,
            'VACUUM %s' % table, 'CLUSTER %s USING %s_pkey' % (table, table), 'REINDEX TABLE %s' % table))


class RedisSession(Session):
    """A session of one of the Redis users in the documentation. User pg acts as the extension, in the fuzzer's own namespaces."""

    def __init__(self, world, watch, name, user):
        super().__init__(world, watch, name)
        self.user = user
        self.values = values.RedisValues(world)
        self.client = None
        rules = world.acl[user]
        self.allowed = sorted(r.partition('|')[2] for r in rules if r.startswith(('+fcall|', '+fcall_ro|'))) or \
            world.functions_redis
        self.commands = (b'FCALL_RO', b'FCALL') if any(r.startswith('+fcall_ro') for r in rules) else (b'FCALL', b'FCALL_RO')
        self.raw = [r[1:] for r in rules if r.startswith('+') and '|' not in r and r not in ('+fcall', '+fcall_ro', '+info', '+scan')]

    def open(self):
        if self.client is None:
            self.client = self.world.client(self.user)

    def close_round(self):
        self.send(b'SELECT', b'0')
        self.client.time()

    def send(self, *command):
        try:
            self.world.remember(self.timed(command, lambda: self.client.execute_command(*command)))
        except redis.exceptions.NoPermissionError:
            pass
        except redis.ResponseError as error:
            self.judge(command, str(error))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self.watch.lost(self, said(command), str(error))
            self.client = None
            self.open()

    def judge(self, command, message):
        """Judges an error. The library's own errors are "ERR fence_..." (redis-py removes the ERR), and Redis has its own.
        Any other error is a bug in the library."""
        if command[0] in (b'FCALL', b'FCALL_RO'):
            known = re.match(r'(ERR )?fence_\w+: ', message) or REDIS_OWN_ERRORS.search(message)
            if (not known or LUA_ERROR.search(message)) and not USERS_KEY.search(message):
                self.watch.defect('error in the library', '%s\n%s\n%s' % (self.where(), said(command), abbreviated(message)))

    def step(self):
        number, kind = self.rng.getrandbits(64), self.rng.random()
        rng = random.Random(number)
        if kind < 0.12:
            self.raw_command(rng)
        elif kind < 0.14:
            self.client.close()
            self.client = None
            self.open()
        else:
            self.function(rng)

    def raw_command(self, rng):
        command = rng.choice(self.raw)
        name = self.values.name(rng.getrandbits(64), LIED, value=rng.random() < 0.5) if command in ('set', 'del') else \
            self.values.name(rng.getrandbits(64), self.world.domain(rng, False), value=rng.random() < 0.5)
        if command == 'set':
            value = self.values.argument(rng.getrandbits(64))
            self.send(b'SET', name, value)
        elif command in ('get', 'del'):
            self.send(command.upper().encode(), name)
        elif command == 'mget':
            self.send(b'MGET', *[name] * rng.randint(0, 50))
        elif command in ('multi', 'exec', 'discard'):
            fence = self.values.name(rng.getrandbits(64), self.world.domain(rng, False))
            for words in ((b'MULTI',), (b'MGET', name, fence), (b'FCALL_RO', b'fence_token', b'1', fence), (b'EXEC',)):
                self.send(*words)
        elif command == 'select':
            self.send(b'SELECT', rng.choice((b'0', b'0', b'1', b'15', b'16', b'-1', b'x')))
        else:
            self.send(command.encode())

    def function(self, rng):
        name = rng.choice(self.world.functions_redis)
        if name not in self.allowed and rng.random() < 0.8:
            name = rng.choice(self.allowed)
        call = self.commands[rng.random() < 0.03]
        own = self.user == 'pg' and (name not in self.world.read_by or rng.random() < 0.6)
        samples = self.world.samples.get(name)
        if self.user == 'pg' and samples and rng.random() < 0.8:
            words = self.from_sample(rng, samples[int(rng.random() * len(samples))])
        else:
            words = self.from_nothing(rng, name, self.user == 'pg' or name in LIARS_REDIS)
        if self.user == 'pg':
            space = OWN_NAMESPACES[self.round % len(OWN_NAMESPACES)] if own else NAMESPACE
            words = [self.moved(word, space) for word in words]
        if rng.random() < 0.03:
            words[0] = rng.choice((b'-1', b'1000', b'x', b'', b'99999999999'))
        self.send(call, name.encode(), *words)

    def from_sample(self, rng, sample):
        """A call that the extension has made, with some of its arguments replaced."""
        words = list(sample)
        for n in range(1, len(words)):
            number, changes = rng.getrandbits(64), rng.random()
            if changes < min(0.25, 1.5 / len(words)):
                words[n] = self.values.argument(number, words[n])
        kind = rng.random()
        if kind < 0.05:
            words.pop()
        elif kind < 0.10:
            words.append(self.values.argument(rng.getrandbits(64)))
        elif kind < 0.13:
            words[1:] = words[1:] * rng.choice((2, 10, 200))
        return words or [b'0']

    def from_nothing(self, rng, name, liar):
        """A call with fences, or with a fence and a value beside it, and some arguments."""
        domain, several = self.world.domain(rng, liar), name in ('fence_token', 'fence_check')
        count = rng.choice((1, 1, 1, 1, 2, 3, 100, 1000, 1001, 0) if several else (1, 1, 1, 1, 1, 1, 0, 2))
        numbers = [rng.getrandbits(64) for _ in range(count)]
        keys = [self.values.name(number, domain) for number in numbers]
        if count == 1 and not several and rng.random() < 0.4:
            keys.append(self.values.name(numbers[0], domain, value=True))
        arguments = [self.values.argument(rng.getrandbits(64)) for _ in range(rng.choice((0, 0, 0, 1, 2, 2, 3, 4, 4, 5)))]
        if name == 'fence_check' and rng.random() < 0.7:
            arguments = [self.values.argument(rng.getrandbits(64))[:40] for _ in range(2 * len(keys))]
        if name in ('fence_put', 'fence_put_from') and len(arguments) > 1:
            epoch, _, random_part = self.world.samples_epoch().partition('-')
            arguments[1] = b'%s-%s.%d' % (epoch.encode(), random_part[:6].encode(), rng.choice([n for n in values.NUMBERS if n >= 0]))
        return [b'%d' % len(keys), *keys, *arguments]

    def moved(self, word, space):
        """The word with the namespace and the epoch replaced by those of `space`. If that is the extension's own namespace, the
        domain is replaced by "lied"."""
        if space == NAMESPACE:
            return re.sub(rb'^((?:fence:[a-z]:)?\w+\.)(item|cached|member|room_group|parted|word|by_hand|spare)\b',
                          rb'\1' + LIED.encode(), word)
        if re.fullmatch(rb'\d+-[0-9a-f]{4,}', word):
            return self.world.own_epochs.get(space, "1-0000").encode()
        name, blank, rest = word.partition(b' ')
        if blank and name == NAMESPACE.encode():
            return b'%s %s' % (space.encode(), self.moved(rest, space))
        if word == NAMESPACE.encode() or word.startswith(NAMESPACE.encode() + b':'):
            return space.encode() + word[len(NAMESPACE):]
        return word
