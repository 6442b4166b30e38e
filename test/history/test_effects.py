#!/usr/bin/python3
"""Tests effects under faults: once all holds have been settled, an effect must have happened if and only if its transaction
committed.

    python3 test_effects.py [--seed N] [--rounds N | --all] [NAME...]

Prints TAP. The server must find the extension, which must be built with TEST_HOOKS=1: see test_faults.py. One transaction
does every kind of effect, each on a key of its own, and writes a row. If the row is there, each effect must be there once.
If the row is not there, no effect may be there.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

import psycopg2
import redis

from fence_site import Site, unprivileged
from servers import Timeout, process_state, send_signal, wait_for

POINTS = {                      # test hook at which a backend is stopped -> how its transaction ends
    'effect-held': 'COMMIT',
    'before-effects-collected': 'COMMIT',
    'effects-collected': 'COMMIT',
    'before-effects-applied': 'COMMIT',
    'after-effects-applied': 'COMMIT',
    'before-effects-undone': 'ROLLBACK',
}

# kind -> (statement, how to read the result from Redis, the result after the effect, the result before it). %(k)s is the
# transaction's own key.
KINDS = {
    'once': ("SELECT fence.once('%(k)s:once')", lambda r, k: r.get(k + ':once'), 'null', None),
    'result': ("SELECT fence.once('%(k)s:result'), fence.once_result('%(k)s:result', '[1]')",
               lambda r, k: r.get(k + ':result'), '[1]', None),
    'counter': ("SELECT fence.counter_add('%(k)s:counter', 2)", lambda r, k: r.get(k + ':counter'), '3', '1'),
    'transfer': ("SELECT fence.transfer('{%(k)s}:a', '{%(k)s}:b', 4)",
                 lambda r, k: r.mget('{%s}:a' % k, '{%s}:b' % k), ['6', '4'], ['10', None]),
    'compare_and_set': ("SELECT fence.compare_and_set('%(k)s:cas', 'old', 'new')",
                        lambda r, k: r.get(k + ':cas'), 'new', 'old'),
    'take': ("SELECT fence.take('%(k)s:take')", lambda r, k: r.get(k + ':take'), None, 'old'),
    'extend': ("SELECT fence.take_and_extend('%(k)s:extend', '1 hour')",
               lambda r, k: r.ttl(k + ':extend') > 0, True, False),
    'publish': ("SELECT fence.publish('%(k)s:page', repeat('x', 600000))",
                lambda r, k: r.strlen(k + ':page'), 600000, 3),
    'hash': ("SELECT fence.publish_hash('%(k)s:hash', '{\"a\": 1}')", lambda r, k: r.hgetall(k + ':hash'),
             {'a': '1'}, {}),
    'clamp': ("SELECT fence.counter_add('%(k)s:clamp', 9, max => 2, on_bound => 'clamp')", lambda r, k: r.get(k + ':clamp'), '2', None),
    'fields': ("SELECT fence.hash_set('{%(k)s}:fields', 'f', 'x', '{%(k)s}:log'), "
               "fence.hash_add('{%(k)s}:fields', 'n', 5, log_key => '{%(k)s}:log')",
               lambda r, k: (r.hgetall('{%s}:fields' % k), r.llen('{%s}:log' % k)), ({'f': 'x', 'n': '5'}, 2), ({}, 0)),
    'list': ("SELECT fence.append('%(k)s:list', 'x')", lambda r, k: r.llen(k + ':list'), 1, 0),
    'zset': ("SELECT fence.append('%(k)s:zset', 'x', 'zset')", lambda r, k: r.zcard(k + ':zset'), 1, 0),
    'stream': ("SELECT fence.append('%(k)s:stream', 'x', 'stream')", lambda r, k: r.xlen(k + ':stream'), 1, 0),
    'queue': ("SELECT fence.enqueue('%(k)s:queue', 'x')", lambda r, k: r.llen(k + ':queue'), 1, 0),
    'savepoint': ("SAVEPOINT s; SELECT fence.counter_add('%(k)s:never', 1), fence.append('%(k)s:never2', 'x'); "
                  "ROLLBACK TO s", lambda r, k: r.exists(k + ':never', k + ':never2'), 0, 0),
}

# The same for durable effects. Their rows in fence.outbox keep them when Redis loses everything.
DURABLE = {
    'once': ("SELECT fence.once('%(k)s:once', durable => true)", *KINDS['once'][1:]),
    'result': ("SELECT fence.once('%(k)s:result', durable => true), "
               "fence.once_result('%(k)s:result', '[1]', durable => true)", *KINDS['result'][1:]),
    'counter': ("SELECT fence.counter_add('%(k)s:counter', 2, durable => true)", KINDS['counter'][1], '2', None),
    'transfer': ("SELECT fence.transfer('{%(k)s}:a', '{%(k)s}:b', 4, NULL, durable => true)",
                 KINDS['transfer'][1], ['-4', '4'], [None, None]),
    'compare_and_set': ("SELECT fence.compare_and_set('%(k)s:cas', NULL, 'new', durable => true)",
                        KINDS['compare_and_set'][1], 'new', None),
    'publish': ("SELECT fence.publish('%(k)s:page', repeat('x', 600000), durable => true)", KINDS['publish'][1],
                600000, 0),
    'hash': ("SELECT fence.publish_hash('%(k)s:hash', '{\"a\": 1}', durable => true)", *KINDS['hash'][1:]),
    'clamp': ("SELECT fence.counter_add('%(k)s:clamp', 9, max => 2, durable => true, on_bound => 'clamp')", *KINDS['clamp'][1:]),
    'fields': ("SELECT fence.hash_set('{%(k)s}:fields', 'f', 'x', '{%(k)s}:log', true), "
               "fence.hash_add('{%(k)s}:fields', 'n', 5, log_key => '{%(k)s}:log', durable => true)", *KINDS['fields'][1:]),
    'list': ("SELECT fence.append('%(k)s:list', 'x', durable => true)", *KINDS['list'][1:]),
    'stream': ("SELECT fence.append('%(k)s:stream', 'x', 'stream', durable => true)", *KINDS['stream'][1:]),
    'queue': ("SELECT fence.enqueue('%(k)s:queue', 'x', durable => true)", *KINDS['queue'][1:]),
}

number = 0
failures = 0


def report(good, what, *comments):
    global number, failures
    number += 1
    failures += not good
    print('%s %d - %s' % ('ok' if good else 'not ok', number, what), flush=True)
    for comment in comments if not good else ():
        print('# %s' % (comment,), flush=True)


class Trial:
    """One transaction with all kinds of effects. It has a thread of its own because its backend is stopped or killed."""

    made = 0

    def __init__(self, site, end, kinds=None, prepare=False, settings=''):
        Trial.made += 1
        self.key = 'trial%d' % Trial.made
        self.site, self.end, self.prepare, self.settings = site, end, prepare, settings
        self.kinds = kinds or KINDS
        self.error = None
        if self.kinds is KINDS:
            client = site.redis.client()
            client.mset({self.key + ':counter': 1, '{%s}:a' % self.key: 10, self.key + ':cas': 'old',
                         self.key + ':take': 'old', self.key + ':extend': 'x', self.key + ':page': 'old'})
            client.close()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            connection = psycopg2.connect(self.site.pg_dsn())
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute('BEGIN; ' + self.settings)
            cursor.execute('INSERT INTO committed VALUES (%s)', (self.key,))
            for kind in self.kinds.values():
                cursor.execute(kind[0] % {'k': self.key})
            if self.prepare:
                cursor.execute("PREPARE TRANSACTION '%s'" % self.key)
            else:
                cursor.execute(self.end)
            connection.close()
        except psycopg2.Error as error:
            self.error = str(error)

    def join(self):
        self.thread.join(60)
        if self.thread.is_alive():
            raise Timeout('a transaction did not end')

    def wrong(self):
        """A description of what is wrong now."""
        client = self.site.redis.client()
        try:
            committed = self.site.value('SELECT count(*) FROM committed WHERE key = %s', (self.key,)) == 1
            wrong = []
            for name, kind in self.kinds.items():
                seen, expected = kind[1](client, self.key), kind[2 if committed else 3]
                if seen != expected:
                    wrong.append('%s: %r, not %r (%s)' % (name, seen, expected,
                                                          'committed' if committed else 'aborted'))
            left = [key for key in client.scan_iter(self.site.namespace + ':[hs]:*', count=1000)]
            return wrong + (['left: %s' % left[:5]] if left else [])
        finally:
            client.close()

    def settles(self, what):
        last = [None]

        def is_right():
            try:
                last[0] = self.wrong()
            except (psycopg2.Error, redis.RedisError) as error:
                last[0] = [error]
            return not last[0]
        try:
            wait_for(is_right, 'the dust to settle', 60, pause=0.05)
            report(True, what)
        except Timeout:
            report(False, what, *last[0], 'the transaction said: %s' % self.error)


class Stopped:
    """Stops the next backend that reaches a test hook, there."""

    def __init__(self, site, point):
        self.site, self.data, self.point = site, site.postgres.data, point
        self.wanted = os.path.join(self.data, 'fence_pause_' + point)
        open(self.wanted, 'w').close()

    def catch(self, trial):
        """Waits until the backend of the trial has stopped here."""
        def taken_files():
            names = [name for name in os.listdir(self.data) if name.startswith('fence_paused_')]
            if not names and not trial.thread.is_alive():
                raise AssertionError('the transaction ended before %s: %s' % (self.point, trial.error))
            return names

        taken = wait_for(taken_files, 'a backend at ' + self.point, 30)[0]
        self.pid = int(taken.rpartition('.')[2])
        os.unlink(os.path.join(self.data, taken))
        wait_for(lambda: process_state(self.pid) in ('T', None), 'the backend to stop')

    def go_on(self):
        send_signal(self.pid, signal.SIGCONT)

    def kill(self):
        """Kills the backend and waits until PostgreSQL has ended all other sessions because of it."""
        witness = psycopg2.connect(self.site.pg_dsn())
        witness.autocommit = True
        send_signal(self.pid, signal.SIGKILL)

        def is_ended():
            try:
                witness.cursor().execute('SELECT')
            except psycopg2.Error:
                return True
            return False

        wait_for(is_ended, 'PostgreSQL to end all sessions')
        witness.close()


def test_kills(site, _):
    """The backend gets SIGKILL at each step; PostgreSQL restarts all others."""
    for point, end in POINTS.items():
        stopped = Stopped(site, point)
        trial = Trial(site, end)
        stopped.catch(trial)
        stopped.kill()
        trial.join()
        trial.settles('kill -9 at %s' % point)
    site.wait_open()


def test_crash(site, _):
    """The whole server is killed when a transaction has committed and Redis has not been told, so that its holds are left."""
    for point in ('effect-held', 'before-effects-collected', 'effects-collected', 'before-effects-applied',
                  'after-effects-applied'):
        stopped = Stopped(site, point)
        # Before any effect is applied the commit is on disk, whatever synchronous_commit the transaction has set.
        trial = Trial(site, 'COMMIT', settings='SET LOCAL synchronous_commit = off')
        stopped.catch(trial)
        site.postgres.kill9(everything=True)
        trial.join()
        site.postgres.start()
        trial.settles('the server crashes at %s' % point)
    site.wait_open()


def test_lost_messages(site, _):
    """The message that ends the effects never arrives, or the connection breaks while the transaction asks for them."""
    for point, end in (('before-effects-applied', 'COMMIT'), ('before-effects-undone', 'ROLLBACK')):
        stopped = Stopped(site, point)
        trial = Trial(site, end)
        stopped.catch(trial)
        site.proxy.treat('extension', refuse=True)
        site.proxy.cut('extension')
        stopped.go_on()
        trial.join()
        time.sleep(site.timeout)
        site.proxy.treat('extension')
        trial.settles('the message of %s is lost' % end)
    for cut in (400, 3000, 10000, 200000):
        site.proxy.treat('extension', seed=cut, cut=cut, reset=True)
        trials = [Trial(site, 'COMMIT') for _ in range(4)]
        for trial in trials:
            trial.join()
        site.proxy.treat('extension')
        site.wait_open()
        for trial in trials:
            trial.settles('connections are cut after up to %d bytes (%s)' % (
                cut, trial.error and trial.error.split('\n')[0][:60]))


def test_lost_savepoint(site, _):
    """The message of ROLLBACK TO never arrives, and then the transaction commits."""
    connection = psycopg2.connect(site.pg_dsn())
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("BEGIN; SELECT fence.counter_add('saved', 1); SAVEPOINT s; SELECT fence.counter_add('saved', 10)")
    cursor.execute("SAVEPOINT t; SELECT fence.append('saved log', 'x'); RELEASE t")
    site.proxy.treat('extension', refuse=True)
    site.proxy.cut('extension')
    cursor.execute('ROLLBACK TO s')
    cursor.execute('COMMIT')
    connection.close()
    time.sleep(site.timeout)
    site.proxy.treat('extension')
    client = site.redis.client()
    try:
        wait_for(lambda: client.get('saved') and not list(client.scan_iter(site.namespace + ':h:*', count=1000)),
                 'the end', 60)
    except Timeout:
        pass
    seen = client.get('saved'), client.exists('saved log')
    client.close()
    report(seen == ('1', 0), 'effects that ROLLBACK TO took back are not applied, even if Redis never got that message', seen)


def test_two_phase(site, _):
    for end in ('COMMIT', 'ROLLBACK'):
        trial = Trial(site, end, prepare=True)
        trial.join()
        site.postgres.stop('fast')
        site.postgres.start()
        site.wait_open()
        time.sleep(3 * site.fence_settings['patrol_interval'] / 1000)
        client = site.redis.client()
        held = len(list(client.scan_iter(site.namespace + ':h:*', count=1000)))
        client.close()
        report(held == 16, 'the patrol leaves the holds of a prepared transaction alone', held, trial.error)
        site.psql("%s PREPARED '%s'" % (end, trial.key))
        trial.settles('%s PREPARED after a restart' % end)


def test_redis_restart(site, _):
    """Redis is killed. If its data survives, so do the holds; which data survives depends on its persistence."""
    site.redis.persist('aof')
    client = site.redis.client()
    wait_for(lambda: client.info('persistence')['aof_rewrite_in_progress'] == 0, 'the AOF')
    client.close()
    for point, end in (('before-effects-applied', 'COMMIT'), ('before-effects-undone', 'ROLLBACK')):
        stopped = Stopped(site, point)
        trial = Trial(site, end)
        stopped.catch(trial)
        site.redis.signal(signal.SIGKILL)
        site.redis.wait()
        site.redis.start()
        stopped.go_on()
        trial.join()
        trial.settles('Redis is killed and keeps its data before %s' % end)
        site.wait_open()
    site.redis.persist(None)


def test_durable(site, _):
    # The patrol sleeps until Redis has lost everything. Otherwise it would apply the effects while the backend is stopped.
    for point, end in POINTS.items():
        site.set_system(pgcache_fence__patrol_interval=60000)
        stopped = Stopped(site, point)
        trial = Trial(site, end, kinds=DURABLE)
        stopped.catch(trial)
        epoch = site.epoch()
        site.redis.signal(signal.SIGKILL)
        site.redis.wait()
        site.redis.start()
        site.set_system(pgcache_fence__patrol_interval=None)
        stopped.go_on()
        trial.join()
        trial.settles('durable effects: Redis loses everything at %s' % point)
        site.wait_open(above=epoch)
    site.set_system(pgcache_fence__patrol_interval=60000)
    stopped = Stopped(site, 'before-effects-applied')
    trial = Trial(site, 'COMMIT', kinds=DURABLE)
    stopped.catch(trial)
    site.postgres.kill9(everything=True)
    site.redis.signal(signal.SIGKILL)
    site.redis.wait()
    site.redis.start()
    site.postgres.start()
    trial.join()
    site.set_system(pgcache_fence__patrol_interval=None)
    trial.settles('durable effects: Redis and PostgreSQL are killed before they are applied')
    rows = site.value('SELECT count(*) FROM fence.outbox')
    report(rows == 0, 'no row of fence.outbox is left', rows)


def test_waits(site, _, delay=0.08):
    """Messages take long each way, so the time that a transaction takes shows for how many round trips it waits."""
    site.set_system(pgcache_fence__timeout=3000, pgcache_fence__lease=10000)
    site.proxy.treat('extension', delay=delay)
    try:
        connection = psycopg2.connect(site.pg_dsn(), connect_timeout=10)
        connection.autocommit = True
        cursor = connection.cursor()
        write = 'UPDATE fault_row SET n = n + 1 WHERE id = 1; '
        early = ("SELECT fence.append(ARRAY['wait log', 'wait log 2'], 'x'), fence.append('wait set', 'x', 'zset'), "
                 "fence.enqueue('wait queue', 'x'), fence.publish('wait page ' || txid_current(), repeat('x', 100000)), "
                 "fence.publish_hash('wait hash ' || txid_current(), '{\"a\": 1}'), fence.commit_marker(); ")
        answered = "SELECT fence.counter_add('wait count', 1); "
        for name, statements, trips in (
                ('a fenced row', write, 1), ('seven effects', early, 1), ('a fenced row and seven effects', write + early, 1),
                ('a counter', answered, 1), ('a fenced row, a counter and seven effects', write + answered + early, 2),
                ('seven effects that are rolled back', 'SAVEPOINT s; ' + early + 'ROLLBACK TO s; ', 0)):
            taken = []
            for _ in range(4):
                site.wait_open()
                started = time.monotonic()
                cursor.execute('BEGIN; ' + statements)
                cursor.execute('COMMIT')
                taken.append(time.monotonic() - started)
            # The first transaction has to connect, and load only makes a transaction slower, so the fastest one counts.
            seen = min(taken) / (2 * delay)
            report(trips - 0.2 <= seen < trips + 0.8, '%s: %d round trip(s), waited for %.2f' % (name, trips, seen), taken)
        connection.close()
    finally:
        site.proxy.treat('extension')
        site.set_system(pgcache_fence__timeout=None, pgcache_fence__lease=None)
        site.wait_open()


class Seller(threading.Thread):
    """Changes a counter that must stay between 0 and 100, and writes in the same transaction by how much."""

    def __init__(self, site, seed, stop):
        super().__init__(daemon=True)
        self.site, self.rng, self.stop, self.done = site, random.Random(seed), stop, 0

    def run(self):
        while not self.stop.is_set():
            try:
                connection = psycopg2.connect(self.site.pg_dsn())
                connection.autocommit = True
                cursor = connection.cursor()
                while not self.stop.is_set():
                    self.sell(cursor)
            except psycopg2.Error:
                time.sleep(0.02)

    def sell(self, cursor):
        total = 0
        cursor.execute('BEGIN')
        try:
            for _ in range(self.rng.randint(1, 4)):
                delta = self.rng.choice((-7, -3, -1, 1, 3, 6))
                cursor.execute('SAVEPOINT s')
                try:
                    cursor.execute("SELECT fence.counter_add('sold', %s, 0, 100, on_bound => %s)",
                                   (delta, self.rng.choice(('error', 'refuse'))))
                    refused = cursor.fetchone()[0] is None
                except psycopg2.errors.CheckViolation:
                    cursor.execute('ROLLBACK TO s')
                    continue
                if refused:
                    cursor.execute('RELEASE s')
                elif self.rng.random() < 0.2:
                    cursor.execute('ROLLBACK TO s')
                else:
                    cursor.execute('RELEASE s')
                    total += delta
            cursor.execute('INSERT INTO sale VALUES (%s)', (total,))
            cursor.execute('COMMIT' if self.rng.random() < 0.8 else 'ROLLBACK')
            self.done += 1
        except psycopg2.errors.OperationalError:
            raise
        except psycopg2.Error:
            cursor.execute('ROLLBACK')


def test_sums(site, rng, seconds=12):
    """Many sellers run, and backends are killed at random. The counter must equal the sum of the committed changes, and must
    never leave its bounds."""
    site.psql('CREATE TABLE sale (delta int)')
    site.psql("SELECT fence.counter_add('sold', 50)")
    site.psql('INSERT INTO sale VALUES (50)')
    stop = threading.Event()
    sellers = [Seller(site, rng.random(), stop) for _ in range(6)]
    client = site.redis.client()
    outside = []
    for seller in sellers:
        seller.start()
    deadline = time.monotonic() + seconds
    kill_next = time.monotonic() + 1
    kills = 0
    while time.monotonic() < deadline:
        value = int(client.get('sold') or 0)
        if not 0 <= value <= 100:
            outside.append(value)
        if time.monotonic() > kill_next:
            victims = site.postgres.children('postgres postgres')
            if victims:
                send_signal(rng.choice(victims), signal.SIGKILL)
                kills += 1
            kill_next = time.monotonic() + rng.uniform(1, 2.5)
        time.sleep(0.002)
    stop.set()
    for seller in sellers:
        seller.join(60)
    last = [None]

    def is_exact():
        try:
            last[0] = (site.value('SELECT sum(delta) FROM sale'), int(client.get('sold')),
                       list(client.scan_iter(site.namespace + ':h:*', count=1000)))
        except psycopg2.Error:
            return False
        return last[0][0] == last[0][1] and not last[0][2]
    try:
        wait_for(is_exact, 'the sum', 60)
        good = True
    except Timeout:
        good = False
    done = sum(seller.done for seller in sellers)
    report(good, 'the counter is the sum of what was committed: %s after %d transactions and %d kills' % (
        last[0][1], done, kills), last[0])
    report(not outside, 'it was never out of its bounds', outside[:10])
    report(done > 50 and kills > 1, 'there was something to see', done, kills)
    client.execute_command('DEL', 'sold')
    client.close()
    site.psql('DROP TABLE sale')


TESTS = {'kills': test_kills, 'crash': test_crash, 'lost_messages': test_lost_messages,
         'lost_savepoint': test_lost_savepoint, 'two_phase': test_two_phase,
         'redis_restart': test_redis_restart, 'durable': test_durable, 'sums': test_sums, 'waits': test_waits}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seed', type=int, default=random.randrange(1000000))
    parser.add_argument('--rounds', type=int, default=1)
    parser.add_argument('--all', action='store_const', const=3, dest='rounds', help='three rounds')
    parser.add_argument('names', nargs='*', metavar='NAME', help=' '.join(TESTS))
    arguments = parser.parse_args()
    unprivileged()
    print('# seed %d' % arguments.seed)
    rng = random.Random(arguments.seed)
    directory = tempfile.mkdtemp(prefix='fence_effects_')
    # without buckets: test_waits counts on it that each write of a fenced row asks Redis
    site = Site(os.path.join(directory, 'site'), arguments.seed, proxy='extension', settings={'pgcache_fence.watch_buckets': 0})
    try:
        site.start()
        site.psql('CREATE TABLE committed (key text PRIMARY KEY)')
        for _ in range(arguments.rounds):
            for name in arguments.names or TESTS:
                try:
                    TESTS[name](site, rng)
                except Exception:
                    report(False, name, *traceback.format_exc().split('\n'))
                    site.proxy.treat('extension')
                    site.wait_open()
    finally:
        site.stop()
    print('1..%d' % number)
    if failures:
        print('# the logs are in %s' % directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
