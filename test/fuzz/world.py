"""The world that is fuzzed: the servers with their users, tables, functions and keys, and the answers of earlier calls.

Owns: the two servers and their directory. Sessions and watches call it; it calls none of them.
"""

import collections
import os
import re
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, '..', '..')
sys.path.insert(0, os.path.join(HERE, '..', 'history'))

import psycopg2                                                                 # noqa: E402
import redis                                                                    # noqa: E402

from fence_site import postgres_bindir, read_place                              # noqa: E402
from servers import PostgresServer, RedisServer, wait_for                       # noqa: E402

NAMESPACE = 'fence'

# The fuzzer does not believe callers that have the right to lie. Such calls get only names of domain "lied", whose hits are not
# compared with anything:
#  - fence_put, fence_put_from, fence.put, SET: a user who may put decides what the value is.
#  - begin_write, begin_write_strict, abort_write: a user who may call them decides which version is stored, and PostgreSQL cannot check it.
# Domains with scope => 'manual' are not compared either, because PostgreSQL does not see whether their writers reserve.
LIARS_SQL = {'put', 'begin_write', 'begin_write_strict', 'abort_write'}
LIARS_REDIS = {'fence_put', 'fence_put_from'}
LIED = 'lied'

# The library believes the extension's own user. This user could lie about commits (fence_write, fence_settle ...) and leases
# (fence_arm, fence_renew, fence_disarm, fence_announce), and a reservation with a forged stamp would stay. So the fuzzer calls
# all functions only in namespaces of its own, which it has armed itself. In the extension's namespace it calls only those that
# readers may call. FUNCTION DELETE and FLUSH are left out too: they end leases, which other tests cover.
OWN_NAMESPACES = ['own%d' % n for n in range(8)]

EFFECT_KEYS = ['fz:%d' % n for n in range(6)] + ['fz:{a}:%d' % n for n in range(6)] + ['fz:{b}', 'fz:é', 'fz:a b']

SETTINGS = '''
listen_addresses = ''
fsync = off
max_connections = 60
max_prepared_transactions = 10
max_worker_processes = 16
log_min_messages = warning
log_min_error_statement = error
log_line_prefix = '%t [%p] %b %e '
deadlock_timeout = 200ms
autovacuum_naptime = 5s
shared_preload_libraries = 'pgcache_fence'
pgcache_fence.lease = '1s'
pgcache_fence.clock_margin = '200ms'
pgcache_fence.timeout = '500ms'
pgcache_fence.patrol_interval = '200ms'
pgcache_fence.patrol_grace = '300ms'
pgcache_fence.default_ttl = '1h'
'''

SCHEMA = '''
CREATE EXTENSION pgcache_fence;
CREATE ROLE fz_owner LOGIN; CREATE ROLE fz_writer LOGIN; CREATE ROLE fz_nobody LOGIN; CREATE ROLE fz_reader LOGIN;
GRANT CREATE ON SCHEMA public TO fz_owner; GRANT USAGE ON SCHEMA public TO PUBLIC;
SET ROLE fz_owner;
CREATE TABLE item (id int PRIMARY KEY, n int, note text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE cached (id int PRIMARY KEY, n int, note text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE member (room int, usr int, n int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room, usr));
CREATE TABLE room_group (room int, usr int, n int, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (room, usr));
CREATE TABLE parted (id int PRIMARY KEY, n int, note text, version bigint NOT NULL DEFAULT 0) PARTITION BY HASH (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE word (id text PRIMARY KEY, n int, note text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE by_hand (id int PRIMARY KEY, n int, note text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE lied (id int PRIMARY KEY, n int, note text, version bigint NOT NULL DEFAULT 0);
CREATE TABLE spare (id int PRIMARY KEY, n int, note text, version bigint NOT NULL DEFAULT 0);
CREATE FUNCTION derived(i int) RETURNS jsonb STABLE LANGUAGE sql
    BEGIN ATOMIC SELECT pg_catalog.jsonb_build_object('n', t.n) FROM item t WHERE t.id = i; END;
RESET ROLE;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO fz_writer;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO fz_reader;
'''

# The options with which the tables are attached. heal() restores them before each round.
ATTACHED = {'item': ", cache_absent => true", 'cached': ", cache => 'row', publish => 'stream'", 'member': ", tag => 'room/{room}', publish => 'pubsub'",
            'room_group': ", key => '{room}', scope => 'group', tag => 'room/{room}'", 'parted': ", cache => 'row'",
            'word': ", publish => 'notify', reserve => 'commit'", 'by_hand': ", scope => 'manual'", 'lied': ", cache => 'row'", 'spare': ''}

# A call of each kind. The fuzzer records the calls to Redis that the extension makes for them.
LESSONS = '''
DELETE FROM lied; INSERT INTO lied SELECT g, 0 FROM generate_series(1, 5) g; UPDATE lied SET n = 1; DELETE FROM lied WHERE id = 5
BEGIN; UPDATE lied SET n = 2 WHERE id = 1; ROLLBACK
SET pgcache_fence.bulk_threshold = 10; INSERT INTO lied SELECT g, 0 FROM generate_series(6, 60) g; RESET pgcache_fence.bulk_threshold
DELETE FROM lied WHERE id > 20
TRUNCATE lied
INSERT INTO lied SELECT g, 0 FROM generate_series(1, 9) g
SELECT fence.read('lied', '1'), fence.read('lied', '1')
SELECT fence.get('lied', '2'), fence.peek('lied', '2'), fence.status('lied', '2'), fence.explain('lied', '2')
SELECT * FROM fence.get_many(fence.fence_key('lied', '1'), fence.fence_key('lied', '3'))
SELECT * FROM fence.read_many(ARRAY[fence.fence_key('lied', '4'), fence.fence_key('lied', '5')])
SELECT fence.repair('lied', '2'), fence.audit('lied')
SELECT fence.abort((fence.reserve('lied', 1, '1 min', '3')).token)
SELECT fence.read_many(fence.fence_keys('lied', '{1,2,77}'))
SELECT fence.read_derived('derived', '1'), fence.read_derived('derived', '1')
SELECT fence.once('fz:0'), fence.counter_add('fz:1', 5), fence.compare_and_set('fz:2', NULL, 'x'), fence.append('fz:3', 'e')
SELECT fence.append('fz:4', 'e', 'zset'), fence.append('fz:5', 'e', 'stream'), fence.publish('fz:{a}:0', 'value')
SELECT fence.publish_hash('fz:{a}:1', '{"a": 1}'), fence.take('fz:2'), fence.transfer('fz:1', 'fz:{a}:2', 1)
SELECT fence.hash_set('fz:{b}', 'f', 'x', 'fz:{a}:4'), fence.hash_add('fz:{b}', 'n', 5, max => 3, on_bound => 'clamp')
SELECT fence.enqueue('fz:{a}:3', 'job'), fence.latest_common('{fz:3,fz:4}'), fence.commit_marker(durable => true)
BEGIN; SELECT fence.counter_add('fz:1', 1, durable => true); ROLLBACK
'''


def abbreviated(text, most=1500):
    return text if len(text) <= most else '%s ... (%d characters) ... %s' % (text[:most - 200], len(text), text[-100:])


class World:
    def __init__(self, directory, seed):
        self.directory = directory
        self.seed = seed
        self.redis = RedisServer(os.path.join(directory, 'redis'), ['save ""', 'slowlog-log-slower-than 500000'])
        self.postgres = PostgresServer(os.path.join(directory, 'pg'), postgres_bindir())
        self.domains = {}               # name -> {'relation', 'key', 'version', 'scope', 'columns', 'signature'}
        self.relations = list(ATTACHED)
        self.fences = {}                # domain -> names of fences
        self.replies = collections.deque(maxlen=400)
        self.uuids = collections.deque(maxlen=40)
        self.functions_sql = self.views = self.functions_redis = None
        self.samples = {}               # function in Redis -> calls of it that the extension has made
        self.own_epochs = {}            # own namespace -> the epoch in which it is armed
        self.session = None
        self.acl = documented_acl()
        self.read_by = {rule.partition('|')[2] for rules in self.acl.values() for rule in rules if rule.startswith('+fcall')} - {''}

    def start(self):
        self.redis.start()
        self.make_users()
        self.postgres.initdb()
        self.postgres.configure(SETTINGS + read_place() + "pgcache_fence.redis_url = 'unix://pg:pw@%s'\n" % self.redis.socket)
        monitor = Monitor(self.redis.socket)
        self.postgres.start()
        self.query(SCHEMA)
        self.heal()
        self.query("SELECT fence.define_derived('derived', '{item}', 'derived(int)')")
        self.query('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fence TO fz_owner; REVOKE EXECUTE ON FUNCTION %s FROM fz_owner' %
                   ', '.join(row[0] for row in self.query(
                       "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'fence'::regnamespace AND proname ~ '^_'")))
        self.wait_open()
        self.prefix = self.query("SELECT fence.fence_prefix('')")[0][0].split(':f:')[1].replace('%00', '')
        self.read_catalogue()
        self.learn(monitor)
        self.refresh()

    def stop(self):
        self.postgres.stop('immediate')
        self.redis.stop()

    def make_users(self):
        """Makes the users of the documentation. The extension's user may access every key. Otherwise a durable effect on a key
        that its ACL refuses would wait for ever, as it should, and the fuzzer would report it."""
        with self.client() as client:
            for user, rules in self.acl.items():
                more = ['~*', *self.acl_of_effects()] if user == 'pg' else []
                client.execute_command('ACL', 'SETUSER', user, 'reset', 'on', '>pw', *rules, *more)

    @staticmethod
    def acl_of_effects():
        with open(os.path.join(TOP, 'doc', 'operations.md')) as file:
            text = file.read().partition('Effects ([patterns.md]')[2].partition(' besides')[0]
        return re.findall(r'\+[a-z|]+', text) + ['+publish', '+spublish', '+xadd', '+pexpire', '&*']

    def heal(self):
        """Restores the columns, partitions and attachments of the tables, and adds rows."""
        if not self.query("SELECT 1 FROM pg_inherits WHERE inhrelid = 'parted_1'::regclass"):
            for table in 'parted', 'parted_1':          # the columns of one of them may have changed while they were apart
                self.heal_columns(table)
                self.query(f'ALTER TABLE {table} DROP COLUMN IF EXISTS extra')
                self.query(f'ALTER TABLE {table} ALTER COLUMN n TYPE int')
            self.query('ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1)')
        for table in self.relations:
            columns = self.heal_columns(table)
            self.query('ALTER TABLE %s ALTER COLUMN version SET DEFAULT 0' % table)
            attached = [row[0] for row in self.query('SELECT domain FROM fence.domains WHERE relation = %s::regclass', (table,))]
            if attached and attached != [table]:
                self.query("SELECT fence.detach('%s', all_domains => true)" % table)
            if attached != [table]:
                self.query('UPDATE %s SET version = 0 WHERE version < 0' % table)
                self.query("SELECT fence.attach('%s'%s)" % (table, ATTACHED[table]))
            key = ('room', 'usr') if 'usr' in columns else ('id',)
            if self.query('SELECT count(*) FROM ' + table)[0][0] < 5:
                for values in self.rows_universe(table):
                    self.query('INSERT INTO %s (%s, n) VALUES (%s) ON CONFLICT DO NOTHING' % (
                        table, ', '.join(key), ', '.join(['%s'] * (len(key) + 1))), (*values, 0))

    def heal_columns(self, table):
        """Gives the table its column n again. Returns the names of its columns before."""
        columns = {row[0] for row in self.query(
            'SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0', (table,))}
        if 'm' in columns:
            self.query('ALTER TABLE %s RENAME COLUMN m TO n' % table)
        return columns

    def read_catalogue(self):
        """Reads the names of all functions and views from the catalogue and the library, so that new ones need no entry here."""
        self.functions_sql = [
            dict(zip(('name', 'names', 'types', 'variadic', 'trigger'), row)) for row in self.query('''
            SELECT proname, coalesce(proargnames[1:pronargs], '{}'),
                   ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) WITH ORDINALITY x (t, n) ORDER BY n),
                   provariadic <> 0, prorettype IN ('trigger'::regtype, 'event_trigger'::regtype)
              FROM pg_proc WHERE pronamespace = 'fence'::regnamespace AND prokind = 'f' ORDER BY oid::regprocedure::text''')]
        self.views = [row[0] for row in self.query(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'fence'::regnamespace AND relkind IN ('r', 'v')"
            ' ORDER BY 1')]
        with self.client() as client:
            libraries = client.execute_command('FUNCTION', 'LIST')
        names = [dict(zip(f[::2], f[1::2])) for lib in libraries for f in dict(zip(lib[::2], lib[1::2]))['functions']]
        self.functions_redis = sorted(f['name'] for f in names)

    def learn(self, monitor):
        """Keeps samples of the calls that the extension has made since it started, some of each function."""
        for line in LESSONS.strip().split('\n'):
            self.query(line)
            self.wait_settled()
        self.redis.call('ECHO', 'learnt')
        for command in monitor.commands(b'learnt'):
            if command[0].upper() in (b'FCALL', b'FCALL_RO') and len(command) > 2:
                kept = self.samples.setdefault(command[1].decode(), [])
                if len(kept) < 12:
                    kept.append(command[2:])
        monitor.close()

    def samples_epoch(self):
        return self.samples['fence_arm'][0][3].decode()

    def client(self, user=None, timeout=30):
        options = {'username': user, 'password': 'pw'} if user else {}
        return redis.Redis(unix_socket_path=self.redis.socket, socket_timeout=timeout, decode_responses=user is None,
                           encoding_errors='surrogateescape', **options)

    def connect(self, role='postgres', **settings):
        options = ' '.join('-c %s=%s' % item for item in settings.items())
        connection = psycopg2.connect(host=self.postgres.directory, port=self.postgres.PORT, user=role, dbname='postgres',
                                      connect_timeout=30, options=options)
        connection.autocommit = True
        return connection

    def query(self, sql, parameters=None):
        """
        Rows of a query, in a permanent session of the superuser. Only one thread may call this. The session writes tables of manual
        domains without begin_write.
        """
        if self.session is None or self.session.closed:
            self.session = self.connect(**{'pgcache_fence.unreserved_writes': 'reserve_domain'})
        with self.session.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else None

    def wait_open(self, seconds=60):
        wait_for(lambda: self.query('SELECT state FROM fence.state')[0][0] == 'OPEN', 'the fences to open', seconds)

    def wait_settled(self, seconds=30):
        wait_for(lambda: not self.query('SELECT 1 FROM fence.pending') and not self.query('SELECT 1 FROM fence.effects'),
                 'reservations and effects to end', seconds)

    # ------------------------------------------------------------------------------------------------------------------
    # Parts of valid arguments
    # ------------------------------------------------------------------------------------------------------------------

    def refresh(self):
        """Reads between rounds which domains there are now, and the names of their fences."""
        self.domains = {}
        for name, relation, key, version, scope, columns, tag in self.query(
                'SELECT domain, relation::text, key::text[], version, scope, columns::text[], tag FROM fence.domains ORDER BY 1'):
            self.domains[name] = {'relation': relation, 'key': key, 'version': version, 'scope': scope, 'columns': columns,
                                  'signature': (relation, tuple(key or ()), tag, scope)}
        for name in self.domains:
            try:
                self.fences[name] = [self.query('SELECT fence.fence_key(%s, VARIADIC %s)', (name, list(key)))[0][0]
                                     for key in self.key_universe(name)]
            except psycopg2.Error:              # the key column has another type now
                self.fences.pop(name, None)

    def key_universe(self, domain):
        """The keys that may exist in the domain, or in the table of that name."""
        found = self.domains.get(domain, {})
        relation = found.get('relation', domain)
        if relation == 'room_group' and len(found.get('key') or (1,)) == 1:
            return [(str(r),) for r in range(1, 6)]
        return self.rows_universe(relation)

    @staticmethod
    def rows_universe(table):
        if table == 'word':
            return [(k,) for k in ('a', 'é', '{x}', '%41', 'a:b', 'a,b', ' ', '', 'x' * 200, '日本', "it's", '}{')]
        if table in ('member', 'room_group'):
            return [(str(r), str(u)) for r in range(1, 5) for u in range(1, 4)]
        return [(str(n),) for n in range(1, 15)]

    def domain(self, rng, liar):
        """Draws the domain of a call."""
        if liar:
            return LIED
        found = sorted(d for d in self.domains if d in self.relations)
        return rng.choice(found) if rng.random() < 0.95 else rng.choice(('', 'nowhere', 'x' * 5000, 'é', '{}', 'public.item'))

    def key(self, rng, domain):
        """Draws a key. Half of the time it is one of only two, so that writers and readers meet."""
        keys = self.key_universe(domain)
        return rng.choice(keys[:2] if rng.random() < 0.5 else keys)

    def names(self, rng, domain):
        return self.fences.get(domain) or self.fences[LIED]

    @staticmethod
    def effect_key(rng):
        return rng.choice(EFFECT_KEYS) if rng.random() < 0.95 else rng.choice(('', '{}', 'fz:}', 'fz:{}', 'fence:f:x', 'fz:' + 'k' * 1100))

    def reply(self, rng, kind):
        number = rng.random()
        pool = self.uuids if kind == 'uuid' else self.replies
        try:
            return pool[int(number * len(pool))]
        except IndexError:                      # the pool is empty, or another session has just changed it
            return '0'

    def remember(self, value):
        """Keeps the texts of an answer, for arguments of later calls."""
        for text in texts_of(value):
            if len(text) <= 300:
                if re.fullmatch(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', text):
                    self.uuids.append(text)
                self.replies.append(text)


def texts_of(value, depth=0):
    if isinstance(value, bytes):
        yield value.decode('utf-8', 'surrogateescape')
    elif isinstance(value, str):
        yield value
        if value.startswith('(') and depth < 2:
            yield from value[1:-1].split(',')
    elif isinstance(value, (list, tuple)) and depth < 4:
        for one in value[:20]:
            yield from texts_of(one, depth + 1)
    elif isinstance(value, int):
        yield str(value)


def documented_acl():
    """user -> ACL rules in doc/operations.md."""
    with open(os.path.join(TOP, 'doc', 'operations.md')) as file:
        found = {m.group(1): m.group(2).split() for m in re.finditer(r'^ACL SETUSER (\w+) +on >\S+ (.*)$', file.read(), re.M)}
    if not {'pg', 'reader', 'looker'} <= set(found):
        raise RuntimeError('doc/operations.md does not tell the users of Redis as expected')
    return found


class Monitor:
    """The commands that a Redis server receives, as lists of bytes."""

    ESCAPES = {b'n': b'\n', b'r': b'\r', b't': b'\t', b'a': b'\a', b'b': b'\b'}

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.sendall(b'MONITOR\r\n')

    def close(self):
        self.socket.close()

    def commands(self, last):
        """All commands up to the one with that argument."""
        self.socket.settimeout(30)
        read = b''
        while b'"%s"' % last not in read[-10000:]:
            read += self.socket.recv(1 << 20)
        for line in read.split(b'\r\n'):
            words = re.findall(rb'"((?:[^"\\]|\\.)*)"', line.partition(b']')[2], re.S)
            if words:
                yield [re.sub(rb'\\(x[0-9a-f]{2}|.)', self.unescape, word) for word in words]

    def unescape(self, found):
        text = found.group(1)
        return bytes([int(text[1:], 16)]) if len(text) == 3 else self.ESCAPES.get(text, text)
