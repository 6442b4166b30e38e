#!/usr/bin/python3
"""The code of doc/clients.md against PostgreSQL and Redis (test_cluster.py: a Redis Cluster). Prints TAP.

What is tested is each file of the document as it stands there. That the tests can fail is tested too: with one rule of
the document broken in the code they must find the stale value.
"""

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile

import psycopg2

from storm import Log, Storm
from system import System, wait_for
from tap import Report, Steps, same

CLIENTS = ('python', 'ioredis', 'node_redis', 'shell')

TABLES = '''
CREATE TABLE account (id bigint PRIMARY KEY, owner text NOT NULL, balance int NOT NULL DEFAULT 100,
                      version bigint NOT NULL DEFAULT 0);
INSERT INTO account SELECT g, 'owner ' || g FROM generate_series(1, 100) g;
SELECT fence.attach('account');
CREATE TABLE word (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('word', domain => 'odd {na}me:%,é');
CREATE TABLE seat (room text, row int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room, row));
SELECT fence.attach('seat', tag => 'room/{room}');
'''

LATIN1 = '''
CREATE EXTENSION pgcache_fence;
CREATE TABLE account (id bigint PRIMARY KEY, owner text NOT NULL, balance int NOT NULL DEFAULT 100,
                      version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('account');
CREATE TABLE floor (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
SELECT fence.attach('floor', domain => 'étage');
'''

TEXTS = ('plain-._~09AZ', '', ' ', 'a{b}c', '{', '}', ':', ',', '%', '%00', '%2C', 'a,b', 'new\nline', 'end\n', 'tab\tcr\r',
         '"', "'", "!'()*", '\\', '/', '?', '#&=+', 'ü', '漢字', '🙂', 'a:f:{x}', 'NULL', '$HOME `id`', '-n', '%s\\n')

# type -> (what the driver makes a value of its language from, what PostgreSQL is given)
VALUES = {
    'bigint': [(n, n) for n in ('0', '-1', '42', '9007199254740993', '-9223372036854775808')],
    'boolean': [('true', 'yes'), ('false', 'off')],
    'bytea': [('deadbeef', '\\xDEADBEEF'), ('', '\\x'), ('00', '\\x00')],
    'timestamptz': [('2026-01-31T12:00:00+00:00', '2026-01-31 12:00:00+00'), ('2026-01-31T14:00:00.500+02:00',
                    '2026-01-31 12:00:00.5+00'), ('1999-12-31T23:59:10.010+00:00', '1999-12-31 23:59:10.01+00')],
    'uuid': [('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}')],
}
ONLY_PYTHON = {
    'numeric': [(n, n) for n in ('1.50', '100', '1E+2', '0.0010', '-0.0', '123456789012345678901234567890.120', 'NaN')],
    'date': [('2024-02-29', '2024-02-29')],
    'time': [('04:05:06.789', '04:05:06.789'), ('04:05:00', '04:05')],
    'timestamp': [('2024-02-29T12:00:00.000001', '2024-02-29 12:00:00.000001'), ('2024-02-29T00:00:00', '2024-02-29')],
}


SCENES = Steps()


class Scenes:
    """What one client must do right, step by step. Each has rows of its own."""

    def __init__(self, system, client):
        self.system = system
        self.client = client
        self.id = 1000 * (1 + CLIENTS.index(client))

    def driver(self, **options):
        return self.system.driver(self.client, **options)

    def new_row(self):
        self.id += 1
        self.system.sql('INSERT INTO account (id, owner) VALUES (%s, %s)', (self.id, 'first'))
        return self.id

    def update(self, id, owner):
        self.system.sql('UPDATE account SET owner = %s WHERE id = %s', (owner, id))

    def row(self, id):
        """As it must be read now."""
        rows = self.system.sql('SELECT to_jsonb(a) FROM account a WHERE id = %s', (id,))
        return rows[0][0] if rows else None

    def is_read(self, driver, id, **options):
        """The driver reads what PostgreSQL has. Returns how many queries that took it."""
        row, queries = driver.read(id, **options)
        same(row, self.row(id), 'row %d' % id)
        return queries

    def becomes_hit(self, driver, id):
        """After a commit its end may still be on its way to Redis; what is read is right all the time."""
        wait_for(lambda: self.is_read(driver, id) == 0, 'a hit')

    def value_exists(self, id):
        name = self.system.sql("SELECT fence.fence_key('account', %s)", (str(id),))[0][0]
        return self.system.on_redis(name, 'EXISTS', name) == 1

    # ------------------------------------------------------------------------------------------------------------------

    @SCENES
    def names_are_those_of_postgresql(self):
        driver = self.driver()
        with contextlib.closing(psycopg2.connect(self.system.postgres.dsn())) as pg, pg.cursor() as cursor:
            def compare(domain, key, texts, tag=None):
                self.names_are(driver, cursor, domain, texts, driver.ask('names', domain=domain, key=key, tag=tag)['names'])

            for text in TEXTS:
                compare('odd {na}me:%,é', [['text', text]], [text])
            if self.client == 'shell':
                return
            for text in TEXTS:
                compare('seat', [['text', text], ['bigint', '-7']], [text, '-7'], ['room/', 0])
            for type_name, values in {**VALUES, **(ONLY_PYTHON if self.client == 'python' else {})}.items():
                cursor.execute('CREATE TABLE k (id %s PRIMARY KEY, version bigint NOT NULL DEFAULT 0)' % type_name)
                cursor.execute("SELECT fence.attach('k')")
                pg.commit()
                for given, text in values:
                    compare('k', [[type_name, given]], [text])
                cursor.execute('DROP TABLE k')
                pg.commit()

    @staticmethod
    def names_are(driver, cursor, domain, texts, names):
        """The fence, and but for the shell a value beside it."""
        cursor.execute("SELECT fence.fence_key(%s, VARIADIC %s), fence.value_key(%s, VARIADIC %s) || ':s'",
                       (domain, texts, domain, texts))
        same(names, list(cursor.fetchone())[:1 if driver.client == 'shell' else 2], repr(texts))

    @SCENES
    def a_database_of_another_encoding_has_the_same_names(self):
        driver = self.driver(dbname='latin1')
        with contextlib.closing(psycopg2.connect(self.system.postgres.dsn('latin1'))) as pg, pg.cursor() as cursor:
            pg.autocommit = True
            for text in ('José', 'ÿ', 'plain'):
                names = driver.ask('names', domain='étage', key=[['text', text]], tag=None)['names']
                self.names_are(driver, cursor, 'étage', [text], names)
            self.id += 1
            cursor.execute('INSERT INTO account (id, owner) VALUES (%s, %s)', (self.id, 'Zoë'))
            for owner in ('Zoë', 'José', 'ÿ'):
                cursor.execute('UPDATE account SET owner = %s WHERE id = %s', (owner, self.id))
                same(driver.read(self.id)[0]['owner'], owner, 'read')
                wait_for(lambda: driver.read(self.id)[1] == 0, 'a hit')
                same(driver.read(self.id)[0]['owner'], owner, 'hit')
                cursor.execute("SELECT fence.read('account', %s)->>'owner'", (str(self.id),))
                same(cursor.fetchone()[0], owner, 'by SQL')

    @SCENES
    def an_unchanged_row_is_a_hit(self):
        driver, id = self.driver(), self.new_row()
        self.becomes_hit(driver, id)
        self.becomes_hit(self.driver(), id)
        queries = [self.is_read(driver, id) for _ in range(40)]
        same(sum(queries) <= 20, True, 'a loaded machine may miss a deadline, but here were %d queries' % sum(queries))

    @SCENES
    def an_update_is_read_at_once(self):
        driver, id = self.driver(), self.new_row()
        for n in range(20):
            self.becomes_hit(driver, id)
            self.update(id, 'owner %d' % n)
            self.is_read(driver, id)

    @SCENES
    def what_changed_with_the_whole_table_is_read_at_once(self, **options):
        """The fence stays where it is then; the token is another."""
        driver, id = self.driver(**options), self.new_row()
        for n in range(5):
            self.becomes_hit(driver, id)
            self.system.sql("ALTER TABLE account ALTER owner TYPE text USING CASE id WHEN %s THEN 'owner %s' ELSE owner END", (id, n))
            wait_for(lambda: not self.system.sql('SELECT 1 FROM fence.pending'), 'the end of the reservation')
            self.is_read(driver, id)

    @SCENES
    def what_is_not_committed_is_not_read(self):
        driver, id = self.driver(), self.new_row()
        for end in ('rollback', 'commit'):
            self.becomes_hit(driver, id)
            with contextlib.closing(psycopg2.connect(self.system.postgres.dsn())) as writer:
                writer.cursor().execute('UPDATE account SET owner = %s WHERE id = %s', ('not yet', id))
                for _ in range(5):
                    row, _ = driver.read(id)
                    same(row['owner'], 'first')
                getattr(writer, end)()
            self.is_read(driver, id)
            self.becomes_hit(driver, id)
        same(driver.read(id)[0]['owner'], 'not yet')

    @SCENES
    def a_deleted_row_is_not_there(self):
        driver, id = self.driver(), self.new_row()
        self.becomes_hit(driver, id)
        self.system.sql('DELETE FROM account WHERE id = %s', (id,))
        for _ in range(5):
            same(driver.read(id), (None, 1))
        self.system.sql('INSERT INTO account (id, owner) VALUES (%s, %s)', (id, 'again'))
        same(driver.read(id)[0]['owner'], 'again')
        self.becomes_hit(driver, id)

    @SCENES
    def a_row_that_never_was_is_not_put(self):
        driver = self.driver()
        for _ in range(3):
            same(driver.read(999000 + self.id), (None, 1))
        same(self.value_exists(999000 + self.id), False, 'a value')

    @SCENES
    def who_reads_slowly_stores_nothing_old(self, **options):
        """PostgreSQL takes its time after it has taken the snapshot; meanwhile the row changes and Redis forgets it."""
        driver = self.driver(**options)
        for forget in (False, True):
            id = self.new_row()
            if not forget:
                self.becomes_hit(self.driver(), id)
                self.update(id, 'second')
            with contextlib.closing(psycopg2.connect(self.system.postgres.dsn())) as lock:
                lock.cursor().execute('SELECT pg_advisory_lock(1)')
                driver.begin('read', id=id, slow=True)
                wait_for(lambda: self.system.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
                         'the reader to wait')
                self.update(id, 'third')
                wait_for(lambda: not self.system.sql('SELECT 1 FROM fence.pending'), 'the end of the reservation')
                if forget:
                    self.system.flush()
            driver.finish()
            same(self.is_read(driver, id) >= 0, True)
            self.becomes_hit(driver, id)

    @SCENES
    def an_old_snapshot_is_not_put(self, **options):
        driver, id = self.driver(**options), self.new_row()
        driver.ask('sql', sql='BEGIN ISOLATION LEVEL REPEATABLE READ')
        driver.ask('sql', sql='SELECT count(*) FROM account')
        self.update(id, 'second')
        wait_for(lambda: not self.system.sql('SELECT 1 FROM fence.pending'), 'the end of the reservation')
        self.system.flush()
        same(driver.read(id)[0]['owner'], 'first', 'in the old snapshot')
        driver.ask('sql', sql='ROLLBACK')
        self.is_read(driver, id)
        self.becomes_hit(driver, id)

    @SCENES
    def what_a_transaction_wrote_itself_is_not_put(self, **options):
        driver, id = self.driver(**options), self.new_row()
        driver.ask('sql', sql='BEGIN')
        driver.ask('sql', sql="UPDATE account SET owner = 'mine' WHERE id = %d" % id)
        same(driver.read(id)[0]['owner'], 'mine', 'in the transaction')
        driver.ask('sql', sql='ROLLBACK')
        wait_for(lambda: not self.system.sql('SELECT 1 FROM fence.pending'), 'the end of the reservation')
        self.is_read(driver, id)
        self.becomes_hit(driver, id)

    @SCENES
    def several_are_hits_when_all_are(self):
        driver = self.driver()
        ids = [self.new_row() for _ in range(5)]
        for n in range(5):
            wait_for(lambda: self.are_read(driver, ids) == 0, 'all to be hits')
            self.update(ids[n], 'second')
        missing = ids[:2] + [999000 + self.id]
        same(driver.ask('together', ids=missing)['rows'], [self.row(id) for id in missing])

    def are_read(self, driver, ids):
        answer = driver.ask('together', ids=ids)
        same(answer['rows'], [self.row(id) for id in ids])
        return answer['queries']

    @SCENES
    def several_agree_though_all_are_hits(self, **options):
        """A transfer while two accounts are read, and another reader puts the new rows at once."""
        driver = self.driver(**options)
        other, first, second = self.driver(), self.new_row(), self.new_row()
        wait_for(lambda: self.are_read(driver, [first, second]) == 0, 'both to be hits')
        driver.begin('together', ids=[first, second], halt=True)
        same(driver.line(), '"halted"')
        self.system.sql('UPDATE account SET balance = balance + CASE id WHEN %s THEN -10 ELSE 10 END WHERE id IN (%s, %s)',
                        (first, first, second))
        self.becomes_hit(other, first)
        self.becomes_hit(other, second)
        driver.send('go')
        rows = driver.finish()['rows']
        same(sum(row['balance'] for row in rows), 200, 'sum of the two')

    @SCENES
    def who_waits_for_another_reader_asks_postgresql_nothing(self):
        """Fill leases: while one reader is filling, the others are told to wait. Where there are none they do not."""
        driver = self.driver()
        for _ in range(10):             # the filler may be slower than the lease
            busy, queries = self.fill_beside(driver, self.new_row())
            if not busy or self.client == 'shell' or queries == 0:
                return
        raise AssertionError('it did not wait')

    def fill_beside(self, driver, id):
        wait_for(lambda: not self.system.sql('SELECT 1 FROM fence.pending'), 'the end of all reservations')
        fence = self.system.sql("SELECT fence.fence_key('account', %s)", (str(id),))[0][0]
        with contextlib.closing(self.system.client(fence)) as filler:
            answer = filler.execute_command('FCALL_RO', 'fence_get', 1, fence)
            same(answer[0], 'miss')
            row = self.system.sql('SELECT version, to_jsonb(a)::text FROM account a WHERE id = %s', (id,))[0]
            busy = 'busy' in filler.execute_command('FCALL_RO', 'fence_get', 1, fence)
            driver.begin('read', id=id)
            if busy:
                same(filler.execute_command('FCALL', 'fence_put', 1, fence, answer[1], *row, 0), 'stored')
        answer = driver.finish()
        same(answer['rows'], [self.row(id)])
        return busy, answer['queries']

    @SCENES
    def a_redis_that_hangs_delays_a_read_and_no_more(self):
        driver, id = self.driver(), self.new_row()
        self.becomes_hit(driver, id)
        for server in self.system.redis:
            server.pause()
        try:
            for _ in range(3):
                row, queries = driver.read(id)
                same((row['owner'], queries), ('first', 1))
        finally:
            for server in self.system.redis:
                server.resume()
        self.system.wait_open()
        self.update(id, 'second')
        self.is_read(driver, id)
        self.becomes_hit(driver, id)

    @SCENES
    def the_example_runs_as_it_stands(self):
        directory = self.system.snippets('files')
        if self.client == 'python':
            text = ("import json, example, sys; s = json.loads(sys.argv[1]); o = example.connect(s['dsn'], *s['nodes'][0]);"
                    "print(example.account(*o, 1), example.several(*o, [1, 2]))")
            command = [sys.executable, '-c', text, self.system.settings()]
        else:
            command = ['bash', 'example.bash'] if self.client == 'shell' else ['node', 'example.js']
        done = subprocess.run(command, cwd=directory, env=self.system.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, check=False, text=True)
        same(done.returncode, 0, done.stdout)
        same(len(re.findall(r'"owner": "owner 1"', done.stdout)), 1 if self.client == 'shell' else 2, done.stdout)


NOT_FOR_SHELL = {'an_old_snapshot_is_not_put', 'what_a_transaction_wrote_itself_is_not_put',
                 'several_are_hits_when_all_are', 'several_agree_though_all_are_hits'}
# The examples connect to one Redis; the cluster's line in them is in the text.
ONE_REDIS = {'the_example_runs_as_it_stands'}

# What must be found if the document's code broke a rule: scene, and in which file which rule as it stands becomes what.
PYTHON_ROW = '''    with pg.cursor() as cursor:
        cursor.execute(sql, args)
        row = cursor.fetchone()
'''
NODE_ROW = "  const { rows: [row] } = await db.query({ text: sql, values: args, rowMode: 'array' });\n"
PATIENT = ('reader.js', 'LIMIT_MS = 200', 'LIMIT_MS = 60000')        # a halt of the tests is no reason to give up
BROKEN = {
    'python': [
        ('the token is not compared', 'what_changed_with_the_whole_table_is_read_at_once',
         [('reader.py', "if newline and head.startswith(token + ' '):", 'if newline:')]),
        ('the row is read before its permit is got', 'who_reads_slowly_stores_nothing_old',
         [('reader.py', PYTHON_ROW, PYTHON_ROW + '    answer = get(r, fence)\n')]),
        ('an old snapshot is put', 'an_old_snapshot_is_not_put',
         [('reader.py', "answer[0] == 'miss' and fresh:\n        put(r, fence, answer[1], row[0], row[1], ttl_ms)\n    return row and",
           "answer[0] == 'miss':\n        put(r, fence, answer[1], row[0], row[1], ttl_ms)\n    return row and")]),
        ('several are read one by one, and not checked', 'several_agree_though_all_are_hits',
         [('reader.py', "found.setdefault(fence[fence.index('{'):fence.index('}')] if is_cluster(r) else '', [])", 'found.setdefault(fence, [])'),
          ('reader.py', 'len(together) == 1 or ', 'True or ')]),
    ],
    'ioredis': [
        ('the token is not compared', 'what_changed_with_the_whole_table_is_read_at_once',
         [('reader.js', 'newline < 0 || !record.startsWith(`${token} `)', 'newline < 0')]),
        ('the row is read before its permit is got', 'who_reads_slowly_stores_nothing_old',
         [('reader.js', NODE_ROW, NODE_ROW + '  answer = await get(redis, fence);\n')]),
        ('an old snapshot is put', 'an_old_snapshot_is_not_put', [('reader.js', " || !(db instanceof Pool)", '')]),
        ('several are read one by one, and not checked', 'several_agree_though_all_are_hits',
         [('reader.js', "redis.cluster ? /{[^}]*}/.exec(fence)[0] : ''", 'fence'),
          ('reader.js', 'groups.length === 1 ? [true] :', 'true ? [true] :')]),
    ],
    'shell': [
        ('the row is read before its permit is got', 'who_reads_slowly_stores_nothing_old',
         [('reader.bash', '    [ -n "$row" ] || return 1\n', '    mapfile -t answer < <(ask FCALL_RO fence_get 1 "$fence")\n')]),
    ],
}


def must_fail(method, **options):
    """Not each time: on a loaded machine a call may take too long, and then PostgreSQL is read."""
    for _ in range(10):
        try:
            method(**options)
        except AssertionError:
            return
    raise RuntimeError('it passed')


def judge_finds_what_is_wrong():
    old, middle, new = (0, 100), (1, 90), (2, 80)
    for reads, wrong in (([(12, 13, middle)], False), ([(10.2, 10.5, old), (10.6, 10.8, middle)], False),
                         ([(22, 23, middle)], True), ([(5, 6, middle)], True), ([(12, 13, (1, 91))], True),
                         ([(12, 13, None)], True), ([(20.2, 20.5, new), (20.6, 20.8, middle)], True)):
        storm = Storm(None, ['python'])
        storm.logs = {1: Log(old)}
        storm.logs[1].note(10, 11, middle)
        storm.logs[1].note(20, 21, new)
        storm.results = [(0, start, end, (1,), [state]) for start, end, state in reads]
        try:
            storm.judge()
        except AssertionError:
            same(wrong, True, repr(reads))
        else:
            same(wrong, False, repr(reads))


def run(system, report, clients):
    where = ' (cluster)' if system.cluster else ''
    for client in clients:
        scenes = Scenes(system, client)
        for name in SCENES:
            if (client == 'shell' and name in NOT_FOR_SHELL) or (system.cluster and name in ONE_REDIS):
                continue
            options = {'snippets': 'patient', 'changes': [PATIENT]} if name == 'several_agree_though_all_are_hits' else {}
            report.check('%s%s: %s' % (client, where, name.replace('_', ' ')), lambda: getattr(scenes, name)(**options))
        for n, (what, name, changes) in enumerate(BROKEN.get(client, ())):
            changes = changes + [PATIENT] * (name == 'several_agree_though_all_are_hits')
            options = {'snippets': 'broken-%s-%d' % (client, n), 'changes': changes}
            report.check('%s%s: it is found if %s' % (client, where, what),
                         lambda: must_fail(getattr(scenes, name), **options))
    report.check('the judge of what all read%s finds what is wrong' % where, judge_finds_what_is_wrong)
    storm = Storm(system, clients)
    report.check('all at once%s: nothing stale, while Redis is killed and comes back' % where, storm.run)
    print('# ' + storm.summary(), flush=True)


def main(cluster=False):
    parser = argparse.ArgumentParser()
    parser.add_argument('--client', choices=CLIENTS, action='append')
    options = parser.parse_args()

    directory = tempfile.mkdtemp(prefix='clients.')
    system, report = System(directory, cluster), Report()
    try:
        system.start()
        system.sql(TABLES)
        system.sql("CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        with contextlib.closing(psycopg2.connect(system.postgres.dsn('latin1'))) as pg, pg, pg.cursor() as cursor:
            cursor.execute(LATIN1)
        run(system, report, options.client or CLIENTS)
    finally:
        system.stop()
        if report.bad:
            system.show_logs()
    shutil.rmtree(directory)
    return report.finish()


if __name__ == '__main__':
    sys.exit(main())
