#!/usr/bin/python3
"""The shell's code of doc/clients.md against PostgreSQL and Redis (test_cluster.py: a Redis Cluster); then the libraries and that
code all at once. Prints TAP.

What is tested is the file of the document as it stands there. That the tests can fail is tested too: with one rule of
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

SCENES = Steps()


class Scenes:
    """What the shell's code must do right, step by step. Each has rows of its own."""

    def __init__(self, system):
        self.system = system
        self.id = 1000

    def driver(self, **options):
        return self.system.driver('shell', **options)

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
            for text in TEXTS:
                names = driver.ask('names', domain='odd {na}me:%,é', key=[['text', text]])['names']
                self.names_are(cursor, 'odd {na}me:%,é', [text], names)

    @staticmethod
    def names_are(cursor, domain, texts, names):
        cursor.execute('SELECT fence.fence_key(%s, VARIADIC %s)', (domain, texts))
        same(names, list(cursor.fetchone()), repr(texts))

    @SCENES
    def a_database_of_another_encoding_has_the_same_names(self):
        driver = self.driver(dbname='latin1')
        with contextlib.closing(psycopg2.connect(self.system.postgres.dsn('latin1'))) as pg, pg.cursor() as cursor:
            pg.autocommit = True
            for text in ('José', 'ÿ', 'plain'):
                names = driver.ask('names', domain='étage', key=[['text', text]])['names']
                self.names_are(cursor, 'étage', [text], names)
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
        done = subprocess.run(['bash', 'example.bash'], cwd=self.system.snippets('files'), env=self.system.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, check=False, text=True)
        same(done.returncode, 0, done.stdout)
        same(len(re.findall(r'"owner": "owner 1"', done.stdout)), 1, done.stdout)


# The example connects to one Redis.
ONE_REDIS = {'the_example_runs_as_it_stands'}

# What must be found if the document's code broke a rule: scene, and in which file which rule as it stands becomes what.
BROKEN = [
    ('the row is read before its permit is got', 'who_reads_slowly_stores_nothing_old',
     [('reader.bash', '    [ -n "$row" ] || return 1\n', '    mapfile -t answer < <(ask FCALL_RO fence_get 1 "$fence")\n')]),
]


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
    scenes = Scenes(system)
    for name in SCENES:
        if not (system.cluster and name in ONE_REDIS):
            report.check('shell%s: %s' % (where, name.replace('_', ' ')), lambda: getattr(scenes, name)())
    for n, (what, name, changes) in enumerate(BROKEN):
        options = {'snippets': 'broken-%d' % n, 'changes': changes}
        report.check('shell%s: it is found if %s' % (where, what), lambda: must_fail(getattr(scenes, name), **options))
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
