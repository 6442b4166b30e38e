#!/usr/bin/python3
"""Tests each fault by itself, under a small workload: whether it does what its name says, and whether reads stay correct.

    python3 test_faults.py [--seed N] [--rounds N] [--all | NAME...]
    python3 test_faults.py --list

Without names the test draws one fault of each kind, with the seed, which is printed. --all runs all faults.

Prints TAP. The server must find the extension: FENCE_PLACE names a file with the settings for that, PG_CONFIG the program
pg_config, REDIS_SERVER the Redis server. Faults that need a build with TEST_HOOKS=1 are skipped in other builds. The history
checker judges reads under much more load; this test is about the faults themselves.
"""

import argparse
import collections
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback

import psycopg2
import redis

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))

import faults                                                                   # noqa: E402
import strong                                                                   # noqa: E402
from fence_site import Site, unprivileged                                       # noqa: E402
from servers import Timeout, wait_for                                           # noqa: E402

KEYS = 30
WRITERS = 3
AFTER = 0.7                 # seconds that the workload goes on after a fault has healed
BEFORE = 0.4                # seconds that it works before the fault
TRIES = 3                   # whether a fault has its effect (a lost write, a full memory) depends on chance
# Notes the new row in the same transaction, so that in the end the test knows what was committed, and in which version.
WRITE = 'WITH w AS (%s) INSERT INTO written SELECT * FROM w RETURNING key, version'
# SQLSTATEs that a writer may get: the connection or the server fails, reservations fail, an orphaned prepared transaction
# holds a lock, or two writers delete and insert the same row.
EXPECTED = (None, '23505', '57P01', '57P02', '57P03', '08006', '08003', '25006', '40001', '40P01', '55P03')
NOT_THE_FENCE = (None, '57P01', '57P02', '57P03', '08006', '08003', '25006', '55P03')
GOOD = ('hit', 'miss')


# ----------------------------------------------------------------------------------------------------------------------
# The workload: processes that log what they did
# ----------------------------------------------------------------------------------------------------------------------

class Now:
    """The present addresses, from the file <directory>/now of the site. Reads it again when the site has replaced it."""

    def __init__(self, directory):
        self.path = os.path.join(directory, 'now')
        self.seen = None
        self.values = {}

    def changed(self):
        status = os.stat(self.path)
        if (status.st_ino, status.st_mtime_ns) == self.seen:
            return False
        self.seen = (status.st_ino, status.st_mtime_ns)
        with open(self.path) as file:
            self.values = dict(line.rstrip('\n').split(' ', 1) for line in file)
        return True


def connect_redis(address):
    if address.startswith('/'):
        return redis.Redis(unix_socket_path=address, socket_timeout=1, decode_responses=True)
    host, port = address.rsplit(':', 1)
    return redis.Redis(host=host, port=int(port), socket_timeout=1, decode_responses=True)


class Worker:
    name = 'reader'

    def __init__(self, directory, stop, log):
        self.now = Now(directory)
        self.stop = stop
        self.log = log
        self.database = None

    def cursor(self):
        """A cursor on a connection to the present primary. Raises psycopg2.Error."""
        if self.now.changed() and self.database:
            self.database.close()
        if self.database is None or self.database.closed:
            self.database = psycopg2.connect(self.now.values['pg'], connect_timeout=5, application_name=self.name)
            self.database.autocommit = True
        return self.database.cursor()

    def write_log(self, *record):
        self.log.write(json.dumps(record) + '\n')


class Writer(Worker):
    """Logs each write: key, version, content, begin, end (None: the outcome is unknown). After each attempt it also logs
    'wait', its name, the begin of the first attempt, the end. If PostgreSQL failed, or another session held the row, the next
    attempt counts as the first, because that was no wait for the fence."""

    def __init__(self, number, directory, stop, log):
        super().__init__(directory, stop, log)
        self.number = number
        self.name = 'writer%d' % number
        self.random = random.Random(number)
        self.prepared = None            # a prepared transaction whose outcome is unknown

    def run(self):
        count = 0
        first = None
        while not self.stop.is_set():
            count += 1
            content = '%d.%d' % (self.number, count)
            begin = time.monotonic()
            first = first or begin
            written = []
            try:
                cursor = self.cursor()
                self.end_prepared(cursor)
                cursor.execute('BEGIN')
                cursor.execute("SET LOCAL lock_timeout = '200ms'; SET LOCAL pgcache_fence.bulk_threshold = 10")
                cursor.execute(*self.statement(content))
                written = cursor.fetchall()
                committed = self.end(cursor, content)
                end = time.monotonic()
                self.write_log('wait', self.name, first, end)
                first = None
                for key, version in written if committed else ():
                    self.write_log(key, version, content, begin, end)
            except psycopg2.Error as error:
                self.write_log('wait', self.name, first, time.monotonic())
                if not self.database or self.database.closed or error.pgcode in NOT_THE_FENCE:
                    first = None
                for key, version in written:
                    self.write_log(key, version, content, begin, None)
                if error.pgcode not in EXPECTED:
                    self.write_log('error', error.pgcode, str(error), begin, time.monotonic())
                try:
                    self.database.cursor().execute('ROLLBACK')
                except (psycopg2.Error, AttributeError):
                    self.database = None
                time.sleep(0.01)
            time.sleep(0.01)


    def statement(self, content):
        """A statement that changes one row, or sometimes all rows (a bulk change), or deletes a row and inserts it again.
        Mostly each writer changes rows of its own. If many writers waited for the row of a stopped one, its errors would
        not show."""
        key = self.random.randint(1, KEYS)
        if self.random.random() < 0.9:
            key = KEYS - (KEYS - key) // WRITERS * WRITERS - self.number % WRITERS
        how = self.random.random()
        if how < 0.01:
            return WRITE % ('UPDATE item SET content = %s WHERE id IN (SELECT id FROM item FOR UPDATE SKIP LOCKED) '
                            'RETURNING id, version, content'), (content,)
        if how < 0.1:
            insert = WRITE % 'INSERT INTO item SELECT %s, %s RETURNING id, version, content'
            return 'DELETE FROM item WHERE id = %s; ' + insert, (key, key, content)
        return WRITE % 'UPDATE item SET content = %s WHERE id = %s RETURNING id, version, content', (content, key)

    def end_prepared(self, cursor):
        """Ends the transaction that an interruption left prepared. It may be committed already, or may never have been prepared."""
        if self.prepared:
            try:
                cursor.execute('ROLLBACK PREPARED %s', (self.prepared,))
            except psycopg2.errors.UndefinedObject:
                pass
            self.prepared = None

    def end(self, cursor, content):
        """Ends the transaction. Returns whether it has committed."""
        how = self.random.random()
        if how < 0.05:
            cursor.execute('ROLLBACK')
            return False
        if how < 0.1:
            self.prepared = content
            cursor.execute('PREPARE TRANSACTION %s', (content,))
            time.sleep(self.random.uniform(0, 0.05))
            cursor.execute('COMMIT PREPARED %s', (content,))
            self.prepared = None
        else:
            cursor.execute('COMMIT')
        return True


class Reader(Worker):
    """Logs each read: kind, key, version, content, begin, end, and whether the old master answered."""

    prefix = ''                 # the prefix of the keys of fences

    def run(self):
        chosen = random.Random(99)
        connections = {}
        while not self.stop.is_set():
            if self.now.changed():
                connections = {}
                if self.database:
                    self.database.close()
            for which in ('redis', 'old_redis'):
                if which not in self.now.values:
                    continue
                if which not in connections:
                    connections[which] = connect_redis(self.now.values[which])
                self.read(connections[which], chosen.randint(1, KEYS), which == 'old_redis')
            time.sleep(0.001)

    def read(self, connection, key, old):
        begin = time.monotonic()
        fence = '%s{%d}' % (self.prefix, key)
        try:
            answer = strong.read_named(connection, fence)
        except (redis.RedisError, OSError):
            self.write_log('error', key, None, None, begin, time.monotonic(), old)
            time.sleep(0.005)
            return
        end = time.monotonic()
        if answer[0] == 'hit':
            self.write_log('hit', key, answer[2], json.loads(answer[3])['content'], begin, end, old)
            return
        self.write_log(answer[0], key, None, None, begin, end, old)
        if answer[0] != 'miss':
            return
        try:
            cursor = self.cursor()
            # the payload as fence.read stores it
            cursor.execute('SELECT fence.row_version(version), to_jsonb(item) FROM item WHERE id = %s', (key,))
            version, row = cursor.fetchone()
            if version:
                strong.put(connection, fence, answer[1], version, json.dumps(row))
        except (psycopg2.Error, redis.RedisError, OSError):
            time.sleep(0.005)


def work(make, log, arguments):
    with open(log, 'w', buffering=1 << 16) as file:
        make(*arguments, file).run()


class Workload:
    def __init__(self, site, number):
        self.site = site
        self.directory = os.path.join(site.directory, 'work%d' % number)
        os.mkdir(self.directory)
        self.stop = multiprocessing.Event()
        self.processes = []
        self.add('reader', Reader, (site.directory, self.stop))
        site.reader_pids = [self.processes[0].pid]
        for n in range(WRITERS):
            self.add('writer%d' % n, Writer, (number * 10 + n, site.directory, self.stop))

    def add(self, name, make, arguments):
        log = os.path.join(self.directory, name)
        process = multiprocessing.Process(target=work, args=(make, log, arguments), daemon=True)
        process.start()
        self.processes.append(process)

    def finish(self):
        """(reads, writes, waits) from the logs."""
        self.stop.set()
        for process in self.processes:
            process.join(60)
            if process.is_alive():
                process.kill()
                raise Timeout('a process of the workload does not end')
        logs = {name: self.records(name) for name in os.listdir(self.directory)}
        reads = logs.pop('reader')
        shutil.rmtree(self.directory)
        writes = [record for log in logs.values() for record in log]
        self.errors = [record for record in writes if record[0] == 'error']
        for gid, in self.site.psql('SELECT gid FROM pg_prepared_xacts'):       # orphans, or restored from a backup
            self.site.psql('ROLLBACK PREPARED %s', (gid,))
        return reads, [record for record in writes if record[0] not in ('error', 'wait')], \
            [record[1:] for record in writes if record[0] == 'wait']

    def records(self, name):
        with open(os.path.join(self.directory, name)) as file:
            return [json.loads(line) for line in file]


# ----------------------------------------------------------------------------------------------------------------------
# Judging
# ----------------------------------------------------------------------------------------------------------------------

class Judge:
    """truth: (key, version) -> content, of all committed writes."""

    def __init__(self, reads, writes, waits, truth, record):
        self.reads, self.writes, self.waits, self.truth, self.record = reads, writes, waits, truth, record
        self.window = record['lost_commits_possible']
        self.acknowledged = collections.defaultdict(list)       # key -> (time, version), versions rising
        for key, version, content, begin, end in sorted((w for w in writes if w[4] is not None), key=lambda w: w[4]):
            if truth.get((key, version)) == content:
                known = self.acknowledged[key]
                if not known or known[-1][1] < version:
                    known.append((end, version))

    def lost(self):
        """Acknowledged writes that PostgreSQL no longer has, except those that the fault may lose."""
        return [w for w in self.writes if w[4] is not None and self.truth.get((w[0], w[1])) != w[2] and
                not (self.window and w[4] >= self.window[0] and w[3] <= self.window[1])]

    def lost_in_window(self):
        return sum(1 for w in self.writes if w[4] is not None and self.truth.get((w[0], w[1])) != w[2])

    def stale(self):
        """Reads that returned a version that never was, or an older one than a version acknowledged before the read began."""
        started = {(w[0], w[1], w[2]): w[3] for w in self.writes}
        wrong = []
        for kind, key, version, content, begin, end, _ in self.reads:
            if kind != 'hit' or (self.window and end >= self.window[0] and begin <= self.record['lost_served_until']):
                continue
            newest = max((v for at, v in self.acknowledged[key] if at < begin), default=-1)
            if version < newest:
                wrong.append('key %d: version %d read, %d was committed %.1f ms before' % (
                    key, version, newest, 1000 * (begin - min(at for at, v in self.acknowledged[key] if v > version))))
            elif version > 0 and self.truth.get((key, version)) != content:
                wrong.append('key %d: version %d with content %s was never committed' % (key, version, content))
            elif started.get((key, version, content), 0) > end:
                wrong.append('key %d: version %d was read before it was written' % (key, version))
        return wrong

    def bypass(self):
        """The longest time between two useful answers of the present Redis."""
        return longest_gap([r[5] for r in self.reads if r[0] in GOOD and not r[6]])

    def wait(self):
        """The longest time that one write took, with its failed attempts, but without the time for which the fault itself
        stopped the writer's backend."""
        who, since, until = self.record['stopped'] or (None, 0, 0)
        return max((end - first - (max(0, min(end, until) - max(first, since)) if name == who else 0)
                    for name, first, end in self.waits), default=0)

    def old_master(self):
        """What the old master answered to readers: kind -> number."""
        return dict(collections.Counter(r[0] for r in self.reads if r[6]))

    def hits(self, begin=0, end=float('inf')):
        return sum(1 for r in self.reads if r[0] == 'hit' and r[4] >= begin and r[5] <= end)


def longest_gap(times):
    return max((b - a for a, b in zip(times, times[1:])), default=0)


# ----------------------------------------------------------------------------------------------------------------------
# Proofs that each fault has happened: record -> [(what must have happened, whether it has)]
# ----------------------------------------------------------------------------------------------------------------------

def restarted(record):
    return [('the server has started anew', record['proof']['start_before'] != record['proof']['start_after'])]


def commits_lost(record):
    return [('a commit of the time before has survived', record['proof']['kept']),
            ('an acknowledged commit is lost', record['proof']['lost'])]


def promoted(record):
    proof = record['proof']
    return [*commits_lost(record), ('another timeline', proof['timeline_before'] != proof['timeline_after'])]


def same_timeline(record):
    proof = record['proof']
    return [*commits_lost(record), ('the same timeline', proof['timeline_before'] == proof['timeline_after'])]


def redis_restarted(back):
    return lambda record: [('another Redis process', record['proof']['run_before'] != record['proof']['run_after']),
                           ('what was saved is there: %s' % back, record['proof']['came_back'] is back),
                           ('there were keys', record['proof']['keys_before'] > 0)]


def evicted(record):
    return [('keys were evicted', record['proof']['evicted'] > 100),
            ('fences too (%(fences_before)d, then %(fences_least)d)' % record['proof'],
             record['proof']['fences_least'] < record['proof']['fences_before'])]


def writes_lost(record):
    return [('the master had a write', record['proof']['on_master'] == 1),
            ('that the replica has not', record['proof']['on_replica'] == 0)]


def old_alive(record):
    return [*writes_lost(record), ('the old master is alive', record['proof']['old_alive'] is True),
            ('and a master', record['proof']['old_role'] == 'master'),
            ('the second epoch is above the first', record['proof']['second_epoch'] > record['epoch_before'])]


def old_again(record):
    return [*old_alive(record),
            ('the third epoch is above the second', record['proof']['third_epoch'] > record['proof']['second_epoch'])]


def stood(record):
    return [('it stood still for %.2f s' % record['proof'].get('stood', 0),
             record['proof'].get('state') == 'T' and record['proof'].get('state_after', 'T') in 'T')]


def stepped(record):
    offsets = record['proof']['offsets']
    return [('the clock went where it was told', all(abs(told - seen) < 0.1 * record['proof']['most'] + 0.05
                                                     for told, seen in offsets)),
            ('forward and back', max(told for told, _ in offsets) >= record['proof']['most'] > 0.05)]


def ill_treated(record):
    return [('it happened at each door: %s' % record['proof']['happened'], all(record['proof']['happened'].values()))]


PROOFS = {
    **dict.fromkeys(('backend_kill9', 'keeper_kill9', 'patrol_kill9', 'courier_kill9', 'clean_restart',
                     'immediate_restart', 'postmaster_kill9', 'server_kill9'), restarted),
    'terminate_backends': lambda record: [('backends were ended', record['proof']['ended'] > 0)],
    **dict.fromkeys(('keeper_terminate', 'patrol_terminate', 'courier_terminate'), lambda record: [
        ('the server has not restarted', record['proof']['start_before'] == record['proof']['start_after'])]),
    'async_commit_crash': commits_lost,
    'standby_promotion': promoted,
    'base_backup_restore': same_timeline,
    'point_in_time_recovery': promoted,
    'redis_kill9': redis_restarted(False),
    'redis_kill9_rdb': redis_restarted(True),
    'redis_kill9_aof': redis_restarted(True),
    'clients_killed': lambda record: [('connections were closed', record['proof']['killed'] > 0)],
    'flushall': lambda record: [('no key is left each time', not any(record['proof']['keys_after'])),
                                ('the library is', all(record['proof']['libraries_after']))],
    'script_flush': lambda record: [('keys are left', all(record['proof']['keys_after'])),
                                    ('the library is', all(record['proof']['libraries_after']))],
    'function_flush': lambda record: [('no library is left', not any(record['proof']['libraries_after']))],
    'eviction_volatile_lru': evicted,
    'eviction_allkeys_lru': evicted,
    'clock_steps': stepped,
    'old_primary_alive': lambda record: [
        ('the old primary is alive', record['proof']['old_alive'] is True),
        ('another timeline', record['proof']['timeline_before'] != record['proof']['timeline_after'])],
    'failover_lossy': writes_lost,
    'replica_cut_off': writes_lost,
    'old_master_alive': old_alive,
    'old_master_again': old_again,
    'old_master_resynced': lambda record: [*old_again(record), ('the same process', record['proof']['same_process'])],
    **dict.fromkeys(('partition', 'postgres_and_redis', 'redis_storm', 'postgres_storm', 'storm'), lambda record: []),
    **dict.fromkeys(('connections_cut', 'connections_delayed', 'connections_split', 'refused', 'commands_lost', 'commands_delayed',
                     'writes_lost', 'some_writes_lost', 'domains_lost', 'replies_swapped', 'replies_repeated', 'replies_dropped',
                     'replies_delayed', 'readers_distant'), ill_treated),
}


# ----------------------------------------------------------------------------------------------------------------------
# The test
# ----------------------------------------------------------------------------------------------------------------------

class Tap:
    def __init__(self):
        self.number = self.failed = 0

    def ok(self, good, what, details=()):
        self.number += 1
        self.failed += not good
        print('%sok %d - %s' % ('' if good else 'not ', self.number, what), flush=True)
        for line in () if good else details:
            self.note(line)

    def note(self, text):
        for line in str(text).splitlines():
            print('# ' + line, flush=True)

    def skip(self, what, why):
        self.number += 1
        print('ok %d - %s # SKIP %s' % (self.number, what, why), flush=True)


def prepare(site):
    site.psql('CREATE TABLE item (id int PRIMARY KEY, content text NOT NULL, version bigint NOT NULL DEFAULT 0)')
    site.psql("INSERT INTO item SELECT g, 'first' FROM generate_series(1, %s) g", (KEYS,))
    site.psql('CREATE TABLE written (key int, version bigint, content text)')
    site.psql("SELECT fence.attach('item')")
    Reader.prefix = site.value("SELECT fence.fence_key('item', '1')")[:-3]


def differing(site):
    """Fences that do not agree with their rows."""
    return site.psql("SELECT d, relation, count FROM unnest(ARRAY['item', 'fault_row']) d, fence.audit(d, 1.0) "
                     "WHERE relation NOT IN ('equal', 'missing') AND count > 0")


def crashes(site):
    """Lines of the server's log that report a crash which no fault explains."""
    with open(site.postgres.log, errors='replace') as file:
        return [line.rstrip() for line in file if 'PANIC' in line or 'TRAP:' in line or 'signal 11' in line
                or 'signal 6' in line or 'broken promise' in line or 'fence_behind_db' in line]


def run_fault(site, name, seed, number, tap, last):
    """Injects one fault and judges it. Returns false if the fault did not do what its name says, which is a failure only at
    the last try."""
    fault = faults.FAULTS[name]
    workload = Workload(site, number)
    started = time.monotonic()
    time.sleep(BEFORE)
    try:
        record = fault.inject(site, random.Random(seed))
    except faults.NotDone as reason:
        workload.finish()
        tap.skip(name, reason)
        return True
    except Exception:           # the next fault may still work
        workload.finish()
        tap.ok(False, name + ': it happened', [traceback.format_exc(), site.state()])
        return True
    time.sleep(AFTER)
    reads, writes, waits = workload.finish()
    try:
        site.wait_open()
        site.wait_settled()
        left = None
    except Timeout as error:
        left = str(error)
    truth = {(key, version): content for key, version, content in site.psql('SELECT * FROM written')}
    judge = Judge(reads, writes, waits, truth, record)

    good = [what for what, true in PROOFS.get(name, stood)(record) if not true]
    if fault.epoch == 'new' and record['epoch_after'] <= record['epoch_before']:
        good.append('a new epoch')
    if fault.epoch == 'same' and record['epoch_after'] != record['epoch_before']:
        good.append('the same epoch')
    if not good or last:
        tap.ok(not good, name + ': it happened', [*('not true: ' + what for what in good), record])
    else:
        tap.note('%s did not happen (%s), once more' % (name, '; '.join(good)))
    stale = judge.stale()
    tap.ok(not stale, name + ': no stale read', ['%d of %d reads' % (len(stale), len(reads)), *stale[:5], record])
    lost = judge.lost()
    tap.ok(not lost, name + ': no commit lost beyond what may be', ['%d writes' % len(lost), *lost[:5], record])
    tap.ok(left is None, name + ': every reservation ends', [left])
    tap.ok(judge.wait() < site.longest_wait(), name + ': no write waited for more than a lease, the margin and a second',
           ['%.2f s, of %.2f' % (judge.wait(), site.longest_wait()), record])
    bad = differing(site) if left is None else None
    tap.ok(not bad, name + ': fences agree with their rows', [bad])
    wait_for(lambda: hits_again(site), 'hits after ' + name, 20)
    strange = crashes(site) + workload.errors
    tap.ok(not strange, name + ': nothing strange in the log', strange[:10])
    tap.note('%-42s epoch %d -> %d, away %.2f s, reads bypassed the cache %.2f s, a write waited %.2f s; '
             '%d reads, %d hits before, %d during, %d after; %d writes, %d lost%s' % (
                 name, record['epoch_before'], record['epoch_after'], record['healed'] - record['injected'],
                 judge.bypass(), judge.wait(), len(reads), judge.hits(started, record['injected']),
                 judge.hits(record['injected'], record['healed']), judge.hits(record['healed']), len(writes),
                 judge.lost_in_window(), '; old master: %s' % judge.old_master() if judge.old_master() else ''))
    return not good


def hits_again(site):
    return all(site.psql("SELECT fence.read('item', %s), (SELECT status FROM fence.get('item', %s))",
                         (str(key), str(key)))[0][1] in ('hit', 'miss') for key in range(1, KEYS + 1)) and \
        all(site.value("SELECT status FROM fence.get('item', %s)", (str(key),)) == 'hit' for key in range(1, KEYS + 1))


def drawn(options, n, names):
    """The faults of round n, in their order."""
    if not options.random:
        return names
    chosen = random.Random(options.seed + n)
    return [chosen.choice(names) for _ in range(options.random)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seed', type=int, default=random.randrange(1000000))
    parser.add_argument('--rounds', type=int, default=1)
    parser.add_argument('--all', action='store_true', help='each fault')
    parser.add_argument('--random', type=int, metavar='N', help='N faults drawn from those named, or from all')
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--keep', action='store_true', help='leave the directory with the logs')
    parser.add_argument('names', nargs='*')
    options = parser.parse_args()
    if options.list:
        for name, fault in faults.FAULTS.items():
            print('%-44s %s' % (name, fault.describe))
        return 0
    unknown = set(options.names) - set(faults.FAULTS)
    if unknown:
        parser.error('unknown: ' + ' '.join(sorted(unknown)))
    unprivileged()

    names = options.names or (list(faults.FAULTS) if options.all or options.random else
                              faults.one_of_each_kind(random.Random(options.seed)))
    directory = tempfile.mkdtemp(prefix='fault')
    site = Site(directory, options.seed, **{**faults.options_for(names), **({'proxy': True} if len(names) > 5 else {})})
    tap = Tap()
    tap.note('seed %d: %d of %d faults%s' % (options.seed, len(names), len(faults.FAULTS),
                                             '' if options.all or options.names else ', one of each kind'))
    try:
        site.start()
        prepare(site)
        for n in range(options.rounds):
            for name in drawn(options, n, names):
                for left in range(TRIES - 1, -1, -1):
                    site.calm()
                    if run_fault(site, name, options.seed + 1000 * n + tap.number, tap.number, tap, left == 0):
                        break
    finally:
        site.stop()
        if options.keep or tap.failed:
            tap.note('logs: ' + directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print('1..%d' % tap.number)
    return 1 if tap.failed else 0


if __name__ == '__main__':
    sys.exit(main())
