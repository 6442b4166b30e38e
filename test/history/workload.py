"""The workload (workload.c) on a site: builds it, makes its tables, starts and stops it, and tells it the addresses of servers."""

import mmap
import os
import struct
import subprocess
import time

from servers import wait_for

HERE = os.path.dirname(os.path.abspath(__file__))

# Strategies that use pgcache_fence. 'fence' uses it correctly; each of the others breaks one rule for readers.
MISREAD = ('token-first', 'token-kept', 'token-elsewhere', 'permit-late', 'epoch-of-permit')
FENCED = ('fence', 'program', *MISREAD)

# The fields of struct Control in history.h, in the same order.
FIELDS = ('stop', 'endpoints', 'reader_stall_ppm', 'reader_stall_ms', 'writer_stall_ppm', 'writer_stall_ms',
          'writer_crash_ppm', 'gap_stall_ppm', 'gap_stall_ms', 'unused')
COUNTS = 4 * len(FIELDS)
WORKERS_MAX = 64
SIZE = COUNTS + 24 * WORKERS_MAX

TABLE = 'CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0, val bigint NOT NULL)'
# A row has another key, which stays when its id moves: as a user's id and e-mail.
TABLE_OF_SEVERAL = '''CREATE TABLE item (id int UNIQUE, version bigint NOT NULL DEFAULT 0, val bigint NOT NULL, own bigserial PRIMARY KEY,
    computed int GENERATED ALWAYS AS (id) STORED UNIQUE)'''
TABLES = '''
CREATE TABLE item_log (seq bigserial, id int, version bigint, val bigint, deleted boolean, txn bigint);
CREATE FUNCTION item_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        INSERT INTO item_log (id, version, val, deleted, txn) VALUES (OLD.id, OLD.version + 1, 0, true,
            CASE TG_OP WHEN 'DELETE' THEN current_setting('history.txn')::bigint ELSE NEW.val / 1000 END);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO item_log (id, version, val, deleted, txn)
            VALUES (NEW.id, NEW.version, NEW.val, false, NEW.val / 1000);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER item_log AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION item_log();
'''

# Triggers that set versions, as an application would, where pgcache_fence does not. Versions go on after a delete, so that all
# strategies work under the same conditions.
VERSIONS = '''
CREATE TABLE item_deleted (id int PRIMARY KEY, version bigint NOT NULL);
CREATE FUNCTION item_version() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE last bigint;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.id = OLD.id THEN
        IF NEW.version = OLD.version THEN NEW.version := OLD.version + 1; END IF;
    ELSIF TG_OP <> 'DELETE' THEN
        SELECT version INTO last FROM item_deleted WHERE id = NEW.id;
        NEW.version := greatest(last + 1, 1);
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE FUNCTION item_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        INSERT INTO item_deleted VALUES (OLD.id, OLD.version + 1)
            ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;
    END IF;
    IF TG_OP <> 'DELETE' AND EXISTS (SELECT FROM item_deleted WHERE id = NEW.id AND version >= NEW.version) THEN
        RAISE serialization_failure USING MESSAGE = 'the row was deleted meanwhile';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER item_version BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION item_version();
CREATE TRIGGER item_deleted AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION item_deleted();
'''

# How readers get the version that a fence has for a row: from the column, or from what the extension keeps aside.
FENCED_VERSION = '''
CREATE FUNCTION fenced_version(key int) RETURNS bigint STABLE LANGUAGE sql AS $$ SELECT %s $$;
CREATE FUNCTION put_version(key int) RETURNS text STABLE LANGUAGE sql AS $$ SELECT %s $$;
'''
OWN_VERSION = 'version FROM item WHERE id = $1'
KEPT_VERSION = "fence.group_version('item', $1::text)"
EITHER_VERSION = ('''CASE current_setting('history.domain') WHEN 'item_of_id' THEN fence.group_version('item_of_id', $1::text)
    ELSE (SELECT version FROM item WHERE id = $1) END''')

SEVERAL = '''
SELECT fence.attach('item', domain => 'item_by_own', only_columns => true, columns => '{own,val}', cache => 'row');
SELECT fence.attach('item', key => '{%s}', scope => 'group', domain => 'item_of_id');
'''

# A derived value of two rows.
DERIVED = '''
CREATE FUNCTION pair(a int, b int) RETURNS jsonb STABLE LANGUAGE sql
BEGIN ATOMIC
    SELECT jsonb_build_object('a', (SELECT to_jsonb(t) FROM item t WHERE t.id = a),
                              'b', (SELECT to_jsonb(t) FROM item t WHERE t.id = b));
END;
SELECT fence.define_derived('pair', '{item($1),item($2)}', 'pair(int, int)');
'''

# For strategy lease-timeout: the application stores the version that the cache gave it, even if it is not higher than the old one.
EXACT = "ALTER TABLE item DISABLE TRIGGER item_version"

NOTIFY = '''
CREATE FUNCTION item_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN PERFORM pg_notify('item', OLD.id::text); END IF;
    IF TG_OP <> 'DELETE' THEN PERFORM pg_notify('item', NEW.id::text); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER item_notify AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION item_notify();
'''


def build(directory):
    """Compiles the workload. Returns the path of the program."""
    command = ['make', '-s', '-C', HERE, 'BUILD=' + directory]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError('the workload does not compile:\n' + done.stdout)
    return os.path.join(directory, 'workload')


def address_text(address):
    return address if isinstance(address, str) else '%s:%d' % address


class Workload:
    """strategy: a name in strategy.c.
    versions: who sets the column `version`. trigger: the extension. application: a trigger of the table, which stands for the
    application. aside, group: as application, but the fence has a version of its own.
    cache, absent, reserve: as in fence.attach.
    capture: the value of pgcache_fence.capture in the sessions; mixed: each session draws it.
    keys, readers, writers, pause_us, defects, lease_ms: see strategy.c and history.h."""

    def __init__(self, site, directory, strategy, seed, keys, readers, writers, pause_us, defects=63, lease_ms=1000,
                 first_version=0, cache='none', versions='trigger', absent=False, reserve='early',
                 capture='auto'):
        self.site, self.directory, self.strategy, self.seed = site, directory, strategy, seed
        self.keys, self.readers, self.writers, self.pause_us = keys, readers, writers, pause_us
        self.defects, self.lease_ms, self.first_version = defects, lease_ms, first_version
        self.cache, self.versions, self.absent, self.reserve, self.capture = cache, versions, absent, reserve, capture
        self.process = None
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, 'control'), 'wb') as file:
            file.truncate(SIZE)
        with open(os.path.join(directory, 'control'), 'r+b') as file:
            self.memory = mmap.mmap(file.fileno(), SIZE)

    # ------------------------------------------------------------------------------------------------------------------

    def make_tables(self):
        fenced = self.strategy in FENCED
        kept = self.versions in ('aside', 'group')
        several = fenced and self.versions == 'attachments'
        self.site.psql(TABLE_OF_SEVERAL if several else TABLE)
        self.site.psql(TABLES)
        self.site.psql(FENCED_VERSION % (EITHER_VERSION if several else KEPT_VERSION if fenced and kept else OWN_VERSION,
                                         'fence.row_version(fenced_version($1))' if fenced else 'NULL::text'))
        if several:
            # triggers report the rows of generated keys in any case, so the executor is tested with plain ones
            key = 'computed' if self.capture == 'triggers' else 'id'
            self.site.psql(SEVERAL % key)
        if fenced:
            self.site.psql("SELECT fence.attach('item', cache => %s, cache_absent => %s, reserve => %s, %s)" % (
                repr(self.cache), self.absent, repr(self.reserve),
                "key => '{id}', scope => 'group'" if self.versions == 'group' else
                "key => '{%s}', domain => 'item'" % key if several else 'version => NULL' if kept else "version => 'version'"))
            self.site.psql(DERIVED)
        if not fenced or self.versions not in ('trigger', 'attachments'):
            self.site.psql(VERSIONS)
        if self.strategy == 'notify':
            self.site.psql(NOTIFY)
        self.site.psql('INSERT INTO item SELECT n, %d, n FROM generate_series(1, %d) n' %
                       (self.first_version, self.keys))
        if self.strategy == 'lease-timeout':
            self.site.psql(EXACT)
            self.site.psql('UPDATE item SET version = %d' % self.first_version)
            self.site.psql('TRUNCATE item_log; INSERT INTO item_log (id, version, val, deleted, txn) '
                           'SELECT id, version, val, false, 0 FROM item')
        self.prefixes = [self.site.value("SELECT fence.%s('item', '1')" % function)[:-2]
                         for function in ('fence_key', 'value_key')] if fenced else ['lease:{', 'cache:{']

    def tell_endpoints(self):
        """Writes the present addresses of the servers. The workers read them again when the number changes."""
        old = self.site.replica_address() if self.strategy == 'token-elsewhere' else self.site.old_redis_address()
        lines = [self.site.pg_dsn(), self.site.old_pg_dsn() or '-', address_text(self.site.redis_address()), address_text(old) if old else '-',
                 *self.prefixes, self.versions, self.capture, 'confused' if self.site.confused else '-']
        path = os.path.join(self.directory, 'endpoints')
        with open(path + '.new', 'w') as file:
            file.write('\n'.join(lines) + '\n')
        os.rename(path + '.new', path)
        self.set('endpoints', self.get('endpoints') + 1)

    def start(self, program):
        self.make_tables()
        self.tell_endpoints()
        self.site.on_change.append(self.tell_endpoints)
        self.log = open(os.path.join(self.directory, 'workload.log'), 'w')
        self.process = subprocess.Popen(
            [program, self.directory, self.strategy, *map(str, (self.seed, self.readers, self.writers, self.keys,
             self.pause_us, self.defects, self.lease_ms))], stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log)
        wait_for(lambda: self.reads() > 0 or self.process.poll() is not None, 'the first read', 60)
        with open(os.path.join(self.directory, 'workers')) as file:
            workers = [line.split() for line in file]
        self.site.reader_pids = [int(pid) for role, pid in workers if role == 'reader']

    def stop(self):
        """Ends all processes, and waits until their last transactions have ended. Raises if one of the processes has failed."""
        if self.process is None:
            return
        self.set('stop', 1)
        try:
            status = self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.log.close()
        self.process = None
        if status != 0:
            with open(os.path.join(self.directory, 'workload.log')) as file:
                raise RuntimeError('the workload failed (%s): %s' % (status, file.read()[-2000:]))
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^history-'"
        wait_for(lambda: self.site.value(sessions) == 0, 'the last sessions to end', 60)
        for gid, in self.site.psql('SELECT gid FROM pg_prepared_xacts'):        # see leave_prepared()
            self.site.psql('ROLLBACK PREPARED %s', (gid,))

    def dump_log(self, name):
        """Writes the present content of item_log to a file of that name."""
        rows = self.site.psql('SELECT seq, id, version, val, deleted, txn FROM item_log')
        with open(os.path.join(self.directory, name), 'w') as file:
            for seq, key, version, val, deleted, txn in rows:
                file.write('%d\t%d\t%d\t%d\t%s\t%d\n' % (seq, key, version, val, 't' if deleted else 'f', txn))

    # ------------------------------------------------------------------------------------------------------------------

    def get(self, field):
        return struct.unpack_from('=I', self.memory, 4 * FIELDS.index(field))[0]

    def set(self, field, value):
        struct.pack_into('=I', self.memory, 4 * FIELDS.index(field), value)

    def counts(self):
        """(reads, hits, commits) so far."""
        flat = struct.unpack_from('=%dQ' % (3 * WORKERS_MAX), self.memory, COUNTS)
        return sum(flat[0::3]), sum(flat[1::3]), sum(flat[2::3])

    def reads(self):
        return self.counts()[0]

    def running(self):
        return self.process is not None and self.process.poll() is None


class ClientFault:
    """A fault of clients, not of servers: some of them are slow, or die, for a while."""

    def __init__(self, name, describe, **fields):
        self.name, self.describe, self.fields = name, describe, fields
        self.options = {}

    def begin(self, workload):
        for field, value in self.fields.items():
            workload.set(field, value)

    def inject(self, workload, rng):
        begin = time.monotonic()
        self.begin(workload)
        time.sleep(rng.uniform(1.5, 2.5))
        for field in self.fields:
            workload.set(field, 0)
        return {'fault': self.name, 'injected': begin, 'healed': time.monotonic(), 'lost_commits_possible': None}


CLIENT_FAULTS = {fault.name: fault for fault in (
    ClientFault('reader_stall', 'a reader stands still between its SELECT and its put', reader_stall_ppm=200000,
                reader_stall_ms=60),
    ClientFault('writer_stall', 'a writer stands still after COMMIT', writer_stall_ppm=50000, writer_stall_ms=60),
    ClientFault('writer_death', 'a writer dies after COMMIT', writer_crash_ppm=50000),
    ClientFault('slow_writer', 'a writer stands still before it reserves or commits', gap_stall_ppm=300000,
                gap_stall_ms=40),
    ClientFault('slow_transaction', 'a transaction takes longer than any timeout', gap_stall_ppm=20000,
                gap_stall_ms=1500))}
