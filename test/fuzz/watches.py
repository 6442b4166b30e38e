"""Watches for crashes, internal errors, slow calls, growth, stuck sessions and stale hits.

All of them report to Watch.defect(). The run goes on after a report, so that one run finds several defects.
"""

import json
import os
import random
import re
import threading
import time

import psycopg2
import redis

import strong
from servers import Timeout, children_of, wait_for
from sessions import said
from world import LIED, NAMESPACE, OWN_NAMESPACES, abbreviated

SLOW_SECONDS = 2
QUICK_PROBE = 0.5               # a call counts as slow only if no probe took this long meanwhile
SETTLE_SECONDS = 30
KINDS = ('crash', 'internal error', 'error in the library', 'slow call', 'growth', 'session', 'not settled', 'stale')

# How much each may grow after the first third of the run, in MB.
GROWTH = {'worker': 6, 'session': 16, 'redis': 6, 'functions in redis': 4}

CRASH = re.compile(r'PANIC|TRAP:|AddressSanitizer|runtime error|was terminated by signal|terminating any other active server|'
                   r'background worker "pgcache_fence[^"]*" \(PID \d+\) exited with exit code [^0]')
WORKER_ERROR = re.compile(r'\] (?!client backend)[^\n]* XX[0-9A-Z]{3} ')


def slow_read(client, fence):
    """fence_get, with the result in the form of strong.read; "pending" is neither a hit nor a permit."""
    answer = client.execute_command('FCALL_RO', 'fence_get', 1, fence)
    if answer[0] == 'hit':
        return strong.judge(answer[1], answer[1])
    return tuple(answer[:2]) if answer[0] == 'miss' else ('unarmed',)


def read_and_fill(client, cursor, read, fence, row, pause):
    """A strong read which, after a miss, pauses and puts the row. row: a function that reads (version, payload, row version) or
    None from PostgreSQL. Returns the answer, and the result of the put."""
    answer = read(client, fence)
    if answer[0] == 'hit':
        return answer, ''
    found = row(cursor)
    time.sleep(pause)
    if answer[0] == 'miss' and found and found[2]:
        return answer, strong.put(client, fence, answer[1], found[2], found[1])
    return answer, ''


class Watch:
    def __init__(self, world, deadline):
        self.world = world
        self.deadline = deadline
        self.lock = threading.Lock()
        self.found = {kind: [] for kind in KINDS}
        self.calls = 0
        self.sessions = []
        self.log_at = 0
        self.probes = []                # (begun, ended, which) of simple calls that show how busy the machine is
        self.waits = {}                 # pid -> [(at, wait_event_type, wait_event)]
        self.ended = threading.Event()
        self.sizes = []                 # (which, MB) after the first third, and at the end
        self.signatures = {}            # domain -> signature; None: the domain has had several
        self.compared = self.hits = self.read = self.read_hits = self.filled = 0

    def start(self):
        self.postmaster = self.world.query('SELECT pg_postmaster_start_time()')[0][0]
        self.run_id = self.world.redis.identity()
        with self.world.client() as client:
            self.arm_own_namespaces(client)
        self.workers = len(self.workers_now())
        threading.Thread(target=self.probe, args=('SELECT', self.probe_postgres()), daemon=True).start()
        threading.Thread(target=self.probe, args=('PING', self.probe_redis()), daemon=True).start()

    def over(self):
        return time.monotonic() > self.deadline

    def defect(self, kind, text):
        if self.ended.is_set():         # the run has stopped the servers while a session was stuck
            return
        with self.lock:
            found = self.found[kind]
            found.append(text)
            if len(found) <= 20:
                print('# %s: %s' % (kind.upper(), text.replace('\n', '\n#   ')), flush=True)

    # ------------------------------------------------------------------------------------------------------------------
    # Slow calls
    # ------------------------------------------------------------------------------------------------------------------

    def probe_postgres(self):
        connection = self.world.connect()

        def select():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pid, wait_event_type, wait_event FROM pg_stat_activity WHERE state = 'active'"
                               " AND query_start < clock_timestamp() - interval '0.5 s' AND pid <> pg_backend_pid()")
                for pid, kind, event in cursor.fetchall():
                    self.waits.setdefault(pid, []).append((time.monotonic(), kind, event))
        return select

    def probe_redis(self):
        client = self.world.client()
        return client.ping

    def probe(self, what, call):
        while not self.ended.wait(0.2):
            begun = time.monotonic()
            try:
                call()
            except (psycopg2.Error, redis.RedisError):
                pass                    # another watch judges this
            self.probes.append((begun, time.monotonic(), what))
            del self.probes[:-2000]

    def took(self, session, call, begun, ended):
        self.calls += 1
        if ended - begun < SLOW_SECONDS:
            return
        # A slow call in Redis delays PING too, so only the probes of the other server show how busy the machine is. A wait
        # for a lock of another session is no defect.
        time.sleep(0.3)
        slowest = max((e - b for b, e, what in list(self.probes) if b < ended and e > begun and what == 'SELECT'), default=0)
        pid = session.connection.info.backend_pid if getattr(session, 'connection', None) and not session.connection.closed else 0
        waits = [(kind, event) for at, kind, event in list(self.waits.get(pid, ())) if begun <= at <= ended]
        if slowest < QUICK_PROBE and not (waits and sum(kind == 'Lock' for kind, _ in waits) * 2 > len(waits)):
            self.defect('slow call', '%.1f s (a plain SELECT meanwhile: %.3f s; it waited for %s): %s: %s' % (
                ended - begun, slowest, sorted(set(waits), key=str), session.where(), said(call)))

    def slow_in_redis(self, client):
        """Reports the calls in the SLOWLOG of Redis. Their times exclude the time that they waited for execution."""
        for entry in client.slowlog_get(50):
            if entry['duration'] > SLOW_SECONDS * 1e6:
                self.defect('slow call', '%.1f s inside Redis: %s' % (
                    entry['duration'] / 1e6, abbreviated(str(entry['command']), 600)))
        client.slowlog_reset()

    def lost(self, session, text, message):
        """A connection broke. The log of the server shows whether a session has terminated it."""
        if self.world.postgres.running() and self.world.redis.running():
            self.defect('session', '%s lost its connection: %s\n%s' % (session.where(), message.strip(), abbreviated(text)))

    # ------------------------------------------------------------------------------------------------------------------
    # After each round
    # ------------------------------------------------------------------------------------------------------------------

    def after_round(self):
        """Checks everything after a round. Returns whether another round makes sense."""
        if not self.alive():
            return False
        with self.world.client(timeout=60) as client:
            self.slow_in_redis(client)
            if not self.settle():
                return False            # each further round would report what is left again
            self.world.refresh()
            self.stale(client)
            self.clean(client)
            self.world.heal()
            self.world.refresh()
        self.waits.clear()
        return True

    def alive(self):
        self.read_log()
        try:
            if self.world.query('SELECT pg_postmaster_start_time()')[0][0] != self.postmaster:
                self.defect('crash', 'PostgreSQL was started again')
            if self.world.redis.identity() != self.run_id:
                self.defect('crash', 'Redis was started again')
            return True
        except (psycopg2.Error, redis.RedisError, KeyError) as error:
            self.defect('crash', 'no answer: %s\n%s' % (error, self.world.redis.log_tail(40)))
            return False

    def read_log(self):
        with open(self.world.postgres.log, errors='replace') as file:
            file.seek(self.log_at)
            lines = file.readlines()
            self.log_at = file.tell()
        for n, line in enumerate(lines):
            if CRASH.search(line):
                self.defect('crash', abbreviated(''.join(lines[n:n + 6])))
            elif WORKER_ERROR.search(line):
                self.defect('internal error', abbreviated(''.join(lines[n:n + 3])))

    def settle(self):
        """Ends what sessions have left open. Then all reservations and effects must end without further help."""
        for (gid,) in self.world.query('SELECT gid FROM pg_prepared_xacts'):
            self.world.query("%s PREPARED '%s'" % ('COMMIT' if sum(map(ord, gid)) % 2 else 'ROLLBACK', gid))
        for (token,) in self.world.query('SELECT token FROM fence.reservation'):
            try:
                self.world.query('SELECT fence.abort(%s)', (token,))
            except psycopg2.Error as error:
                if error.pgcode and error.pgcode.startswith('XX'):
                    self.defect('internal error', 'fence.abort(%s) of what a round left: %s' % (token, error))
        self.await_none('reservation', 'SELECT * FROM fence.pending')
        self.await_none('effect', 'SELECT * FROM fence.effects')
        self.await_none('durable effect', 'SELECT * FROM fence.outbox')
        try:
            self.world.wait_open(SETTLE_SECONDS)
        except Timeout:
            self.defect('not settled', 'fences stay closed: %s' % (self.world.query('SELECT * FROM fence.state'),))
        for session in self.sessions:
            if session.doing:
                self.defect('session', 'still at work after its round: ' + session.where())
        return not self.found['not settled']

    def await_none(self, what, sql):
        left = [None]

        def gone():
            left[0] = self.world.query(sql)
            return not left[0]
        try:
            wait_for(gone, what, SETTLE_SECONDS, pause=0.05)
        except Timeout:
            self.defect('not settled', 'seed %d: %d of kind "%s" after %d s: %s\n%s' % (
                self.world.seed, len(left[0]), what, SETTLE_SECONDS, abbreviated(str(left[0][:3])),
                self.world.postgres.log_tail(8)))

    # ------------------------------------------------------------------------------------------------------------------
    # Stale hits
    # ------------------------------------------------------------------------------------------------------------------

    def domains_compared(self):
        for name, domain in self.world.domains.items():
            if domain['relation'] and domain['scope'] != 'manual' and name != LIED and domain['version']:
                yield name, domain

    def stale(self, client):
        """While no write is under way, compares each hit with the table."""
        for name, domain in self.domains_compared():
            former = self.signatures.setdefault(name, domain['signature'])
            if former != domain['signature']:
                self.signatures[name] = None
            try:
                rows = self.rows_of(name, domain)
            except psycopg2.Error as error:     # a session has changed the type of the key column
                print('# not compared: %s: %s' % (name, error), flush=True)
                continue
            seen = set(rows)
            if domain['scope'] == 'row' and self.signatures[name]:
                seen |= {key for key in client.scan_iter('%s:f:%s%s:*' % (NAMESPACE, self.world.prefix, name), 1000)}
            for fence in sorted(seen):
                self.compare(client, name, domain, fence, rows.get(fence))

    def rows_of(self, name, domain):
        """fence -> (version, payload) of the rows in the table."""
        key = ', '.join('t."%s"::text' % column for column in domain['key'])
        if domain['scope'] == 'row':
            return {fence: (int(version), row) for fence, version, row in self.world.query(
                'SELECT fence.fence_key(%%s, VARIADIC ARRAY[%s]), t."%s", to_jsonb(t) FROM %s t' % (
                    key, domain['version'], domain['relation']), (name,))}
        found = self.world.query(
            'SELECT fence.fence_key(%%s, VARIADIC ARRAY[%s]), jsonb_agg(to_jsonb(t)) FROM %s t GROUP BY %s' % (
                key, domain['relation'], key), (name,))
        return {fence: (None, rows) for fence, rows in found}

    def compare(self, client, name, domain, fence, row):
        answer = strong.read(client, fence)
        self.compared += 1
        if answer[0] != 'hit':
            return
        self.hits += 1
        _, _, version, payload = answer
        if row is None:                 # the absence of a row or a group may be cached
            same = payload in ('null', '[]')
        else:
            same = (row[0] is None or row[0] == version) and same_rows(payload, row[1], domain['columns'])
        if not same:
            self.defect('stale', 'seed %d: %s is served in version %d as %s, the table has %s' % (
                self.world.seed, fence, version, abbreviated(payload, 500), abbreviated(str(row), 500)))

    def reader(self, number):
        """Reads while others write, and fills the cache after misses. A hit must not be older than what was committed before
        the read began."""
        rng = random.Random('%d reader %d' % (self.world.seed, number))
        client, connection = self.world.client(), self.world.connect('fz_reader')
        cursor = connection.cursor()
        while not self.round_over.is_set():
            found = sorted((n, d) for n, d in self.domains_compared() if d['scope'] == 'row')
            if not found:
                return
            name, domain = rng.choice(found)
            key, pause = self.world.key(rng, name), rng.choice((0, 0, 0.01, 0.05))
            read = rng.choice((strong.read, strong.read_plain, slow_read))
            try:
                self.read_one(client, cursor, read, name, domain, key, pause)
            except psycopg2.Error:
                time.sleep(0.01)        # a session alters the table: it is locked, or lacks a column
            except (redis.RedisError, ValueError, IndexError) as error:
                self.defect('session', 'reader of %s %s: %s' % (name, key, error))
        connection.close()
        client.close()

    def read_one(self, client, cursor, read, name, domain, key, pause):
        cursor.execute('SELECT fence.fence_key(%s, VARIADIC %s)', (name, list(key)))
        fence = cursor.fetchone()[0]
        sql = 'SELECT "%s", to_jsonb(t)::text, fence.row_version("%s") FROM %s t WHERE %s' % (
            domain['version'], domain['version'], domain['relation'], ' AND '.join('"%s" = %%s' % column for column in domain['key']))

        def row(cursor):
            cursor.execute(sql, key)
            return cursor.fetchone()
        before = row(cursor)
        answer, put = read_and_fill(client, cursor, read, fence, row, pause)
        self.read += 1
        self.filled += put == 'stored'
        if answer[0] == 'hit':
            self.read_hits += 1
            if before and answer[2] < before[0]:
                after = row(cursor)     # a session may have set the version back while the table was not attached
                if after and after[0] > answer[2]:
                    self.defect('stale', 'seed %d: %s was served in version %d, after %d was committed' % (
                        self.world.seed, fence, answer[2], before[0]))

    # ------------------------------------------------------------------------------------------------------------------
    # Growth
    # ------------------------------------------------------------------------------------------------------------------

    def clean(self, client):
        """Removes what the calls have left on purpose, as eviction or expiry would do: keys of the namespace, keys of the
        application, and the fuzzer's own namespaces in the library. Fences, and keys of effects that have ended, must have a
        time to live."""
        for_ever, keys = [], []
        names = '|'.join(re.escape(name) for name in self.world.domains if name != LIED)
        for key in client.scan_iter('*', 1000):
            keys.append(key)
            if re.match(r'%s:([hs]:|f:%s(%s):)' % (NAMESPACE, re.escape(self.world.prefix), names), key) and client.ttl(key) == -1:
                for_ever.append(key)
        if for_ever:
            self.defect('growth', 'keys of the namespace without a time to live: %s' % abbreviated(str(sorted(for_ever)[:5])))
        for n in range(0, len(keys), 500):
            client.delete(*keys[n:n + 500])
        for number in range(1, 16):     # sessions may have written to these databases
            client.execute_command('SELECT', number)
            client.flushdb()
        client.execute_command('SELECT', 0)
        self.arm_own_namespaces(client)

    def arm_own_namespaces(self, client):
        """Arms each of the fuzzer's own namespaces in a new epoch, as the extension does. A new epoch has no reservations."""
        words = [w.decode('utf-8', 'replace') if isinstance(w, bytes) else w for w in self.world.samples['fence_arm'][0]]
        key, settings = words[1][len(NAMESPACE):], words[8:]
        for space in OWN_NAMESPACES:
            identity, now, _, _, owner, timeline, epoch, _, _ = client.execute_command('FCALL', 'fence_hello', 0, space, 'aa')
            number, _, text = (epoch or self.world.samples_epoch()).partition('-')
            fresh = '%d-%s' % (int(number) + 1, text)
            answer = client.execute_command('FCALL', 'fence_arm', 1, space + key, identity, fresh, int(now) + 120000, words[5],
                                            owner or words[6], timeline or words[7], *settings)
            if answer[0] == 'armed':
                self.world.own_epochs[space] = fresh
            else:
                print('# %s stays as it is: %s' % (space, answer[1]), flush=True)

    def workers_now(self):
        return {pid: title for pid, title in children_of(self.world.postgres.pid).items() if 'pgcache_fence' in title}

    def measure(self, client, steady):
        """The sizes in MB, after garbage collection."""
        sizes = {}
        for pid, title in self.workers_now().items():
            title = re.sub(r'.*(pgcache_fence \w+).*', r'\1', title).strip()
            if re.search('keeper|patrol|courier', title):
                sizes['worker: ' + title] = max(sizes.get('worker: ' + title, 0), rss(pid))
        for session in steady:
            if session.connection and not session.connection.closed:
                sizes['session: ' + session.name] = rss(session.connection.info.backend_pid)
        for _ in range(2000):           # Lua collects garbage when it allocates
            client.execute_command('FCALL', 'fence_hello', 0, NAMESPACE, 'aa')
        memory = client.info('memory')
        sizes['redis: used_memory'] = memory['used_memory'] / 1e6
        sizes['functions in redis'] = memory.get('used_memory_vm_functions', 0) / 1e6
        return sizes

    def settled_size(self, client, steady, before=None):
        """The sizes. before: former sizes; waits some time for the present ones to come back to them."""
        last = [self.measure(client, steady)]
        if before:
            def back():
                last[0] = self.measure(client, steady)
                return not self.grown(before, last[0])
            try:
                wait_for(back, 'memory to come back', SETTLE_SECONDS / 2, pause=1)
            except Timeout:
                for what in self.grown(before, last[0]):
                    self.defect('growth', '%s grew from %.1f MB to %.1f MB' % (what, before[what], last[0][what]))
        return last[0]

    @staticmethod
    def grown(before, after):
        return [what for what in after if what in before and
                after[what] - before[what] > GROWTH[what.split(':')[0]]]

    def workers_come_back(self):
        try:
            wait_for(lambda: len(self.workers_now()) <= self.workers, 'workers to end', SETTLE_SECONDS / 2)
        except Timeout:
            self.defect('growth', '%d workers instead of %d: %s' % (
                len(self.workers_now()), self.workers, self.workers_now()))


def rss(pid):
    """MB of memory that the process does not share."""
    with open(os.path.join('/proc', str(pid), 'status')) as file:
        return int(re.search(r'RssAnon:\s+(\d+)', file.read()).group(1)) / 1000


def same_rows(payload, rows, columns):
    """Whether a payload has this row, or these rows in any order. columns: the columns that are cached; None: all."""
    try:
        found = json.loads(payload)
    except ValueError:
        return False
    if columns and isinstance(rows, dict):
        rows = {column: rows[column] for column in columns if column in rows}
    elif columns:
        rows = [{column: row[column] for column in columns if column in row} for row in rows]
    if isinstance(rows, list) and isinstance(found, list):
        return sorted(map(json.dumps, map(sorted_row, found))) == sorted(map(json.dumps, map(sorted_row, rows)))
    return found == rows


def sorted_row(row):
    return sorted(row.items()) if isinstance(row, dict) else row
