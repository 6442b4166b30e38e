"""The running system into which tests inject faults: PostgreSQL with the extension, Redis, and if needed a proxy between
them, a standby and a Redis replica.

The file is not called site.py because Python has loaded its own module of that name already.

    site = Site('/tmp/x', seed=1)
    site.start()
    site.pg_dsn()               # conninfo of the present primary; a promotion or a restore changes it
    site.old_pg_dsn()           # conninfo of a former primary that is alive, to which readers may still be connected; or None
    site.redis_address()        # where readers find Redis now: path of a Unix socket, or (host, port)
    site.old_redis_address()    # a former master that is alive, to which readers may still be connected; or None
    site.stop()

The file <directory>/now holds these addresses for programs in other languages. The site replaces the file at each change.
Its lines are "redis ADDRESS", "old_redis ADDRESS" (only if there is one) and "pg CONNINFO"; an ADDRESS is a path or host:port.

Owns: the servers and the proxy. Must run as a user that PostgreSQL accepts: see unprivileged().
"""

import os
import shutil
import subprocess
import sys
import threading

import psycopg2

from servers import PostgresServer, RedisServer, quoted, wait_for

SETTINGS = '''
listen_addresses = ''
max_connections = 80
max_worker_processes = 16
max_prepared_transactions = 20
shared_buffers = 64MB
fsync = off
wal_level = replica
wal_keep_size = 512MB
hot_standby = on
log_line_prefix = '%m [%p] '
restart_after_crash = on
autovacuum_naptime = 5s
shared_preload_libraries = 'pgcache_fence'
'''

# Settings of the extension, in milliseconds. A Site has attributes of the same names.
NOWHERE = 'host=/nonexistent port=1 user=postgres dbname=postgres'      # where no server is

FENCE_SETTINGS = {'lease': 1000, 'clock_margin': 200, 'timeout': 300, 'patrol_interval': 200, 'patrol_grace': 300}

def build_clock(directory):
    """Compiles step_clock.c, the library that can step the clock of a Redis server. Returns its path."""
    library = os.path.join(directory, 'step_clock.so')
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'step_clock.c')
    subprocess.run([os.environ.get('CC') or 'cc', '-O2', '-Wall', '-Wextra', '-Werror', '-shared', '-fPIC',
                    '-o', library, source], check=True)
    return library


class Site:
    """Options:
    place               settings (a string) with which PostgreSQL finds the extension; default: the content of the file
                        that the environment variable FENCE_PLACE names
    proxy               'extension': the extension reaches Redis through a proxy; True: readers too
    clock               Redis runs with a clock that tests can step (needs a C compiler)
    synchronous_commit  on or off
    redis_config        additional lines of redis.conf
    settings            additional settings of PostgreSQL: name -> value
    lease, clock_margin, timeout, patrol_interval, patrol_grace
                        settings of the extension, in milliseconds
    standby, replica    start it with the site, not when a fault first needs it
    """

    def __init__(self, directory, seed, place=None, proxy=False, clock=False, synchronous_commit='on',
                 redis_config=(), settings=None, standby=False, replica=False, **fence_settings):
        unknown = set(fence_settings) - set(FENCE_SETTINGS)
        if unknown:
            raise TypeError('unknown options: ' + ', '.join(sorted(unknown)))
        self.directory = os.path.abspath(directory)
        self.seed = seed
        self.namespace = 'h%d.%d' % (os.getpid(), seed % 1000000)
        self.fence_settings = {**FENCE_SETTINGS, **fence_settings}
        self.lease = self.fence_settings['lease'] / 1000
        self.timeout = self.fence_settings['timeout'] / 1000
        self.margin = self.fence_settings['clock_margin'] / 1000
        self.place = place if place is not None else read_place()
        self.settings = {'synchronous_commit': synchronous_commit, **(settings or {})}
        self.bindir = postgres_bindir()
        self.with_proxy = proxy
        self.with_clock = clock
        self.clock = None
        self.redis_config = list(redis_config)
        self.at_start = {'standby': standby, 'replica': replica}
        self.reader_pids = []           # the program that runs readers sets this; a fault may stop one of them for a while
        self.lock = threading.RLock()   # protects the addresses, which faults change and other threads read
        self.made = 0
        self.postgres = self.standby = self.old_postgres = None
        self.hidden = False             # clients do not find the primary
        self.redis = self.old_redis = self.replica = None
        self.proxy = None
        self.confused = False           # a proxy may give readers the replies to other requests
        self.on_change = []             # called without arguments after each change of an address

    # ------------------------------------------------------------------------------------------------------------------
    # Start and stop
    # ------------------------------------------------------------------------------------------------------------------

    def start(self):
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        if self.with_clock:
            self.clock = build_clock(self.directory)
        self.start_redis()
        self.postgres = self.new_postgres()
        self.postgres.initdb()
        self.postgres.configure(SETTINGS + self.place + self.settings_text())
        self.postgres.start()
        self.psql('CREATE EXTENSION pgcache_fence')
        self.make_tables()
        self.wait_open()
        if self.at_start['standby']:
            self.ensure_standby()
        if self.at_start['replica']:
            self.ensure_replica()
        self.changed()

    def start_redis(self):
        self.redis = self.new_redis()
        self.redis.start()
        if self.with_proxy:
            from proxy import Proxy
            self.proxy = Proxy(self.redis.socket, os.path.join(self.directory, 'proxy.log'))

    def make_tables(self):
        """Makes the tables of the faults. A fault writes a row to fault_mark to see later whether that commit was lost.
        fault_row is attached, for faults that need a fenced row."""
        self.psql('CREATE TABLE fault_mark (name text PRIMARY KEY)')
        self.psql('CREATE TABLE fault_row (id int PRIMARY KEY, n int NOT NULL, version bigint NOT NULL DEFAULT 0)')
        self.psql('INSERT INTO fault_row SELECT g, 0 FROM generate_series(1, 10) g')
        self.psql("SELECT fence.attach('fault_row')")

    def stop(self):
        """Stops all servers. The logs stay below the directory."""
        for server in (self.standby, self.old_postgres, self.postgres):
            if server:
                server.stop('immediate')
        for server in (self.replica, self.old_redis, self.redis):
            if server:
                server.stop()
        if self.proxy:
            self.proxy.stop()

    def name(self, kind):
        self.made += 1
        return os.path.join(self.directory, '%s%d' % (kind, self.made))

    def new_redis(self):
        return RedisServer(self.name('redis'), self.redis_config, clock=self.clock)

    def new_postgres(self):
        return PostgresServer(self.name('pg'), self.bindir)

    def settings_text(self):
        lines = ['%s = %s' % (name, quoted(str(value))) for name, value in self.settings.items()]
        lines += ["pgcache_fence.%s = '%dms'" % item for item in self.fence_settings.items()]
        lines += ['pgcache_fence.namespace = ' + quoted(self.namespace),
                  'pgcache_fence.redis_url = ' + quoted(self.extension_url())]
        return '\n'.join(lines) + '\n'

    # ------------------------------------------------------------------------------------------------------------------
    # Addresses
    # ------------------------------------------------------------------------------------------------------------------

    def pg_dsn(self):
        with self.lock:
            return NOWHERE if self.hidden else self.postgres.dsn()

    def old_pg_dsn(self):
        with self.lock:
            return self.old_postgres.dsn() if self.old_postgres else None

    def redis_address(self):
        with self.lock:
            if self.proxy and self.with_proxy is True:
                return ('127.0.0.1', self.proxy.readers)
            return self.redis.socket

    def redis_url(self):
        """The URL at which readers find Redis."""
        address = self.redis_address()
        return 'unix://' + address if isinstance(address, str) else 'redis://%s:%d' % address

    def old_redis_address(self):
        with self.lock:
            return self.old_redis.socket if self.old_redis else None

    def replica_address(self):
        with self.lock:
            return self.replica.socket if self.replica else None

    def extension_url(self):
        """The value for pgcache_fence.redis_url."""
        return 'redis://127.0.0.1:%d' % self.proxy.extension if self.proxy else self.redis.url()

    def changed(self):
        """Publishes new addresses. Callers call this after they have changed one."""
        with self.lock:
            lines = ['redis ' + address_text(self.redis_address())]
            if self.old_redis:
                lines.append('old_redis ' + address_text(self.old_redis_address()))
            lines.append('pg ' + self.pg_dsn())
            path = os.path.join(self.directory, 'now')
            with open(path + '.new', 'w') as file:
                file.write('\n'.join(lines) + '\n')
            os.rename(path + '.new', path)
        for call in self.on_change:
            call()

    # ------------------------------------------------------------------------------------------------------------------
    # Asking PostgreSQL
    # ------------------------------------------------------------------------------------------------------------------

    def psql(self, sql, parameters=None):
        """Rows of one statement, run on the primary in autocommit."""
        return self.postgres.query(sql, parameters)

    def value(self, sql, parameters=None):
        return self.psql(sql, parameters)[0][0]

    def state(self):
        """(state, epoch number, reason) of the fences; ('DOWN', 0, why) while PostgreSQL does not answer."""
        try:
            state, epoch, reason = self.psql('SELECT state, epoch, reason FROM fence.state')[0]
            return state, int((epoch or '0').split('-')[0]), reason
        except psycopg2.Error as error:
            return 'DOWN', 0, str(error)

    def epoch(self):
        return self.state()[1]

    def longest_wait(self):
        """Seconds within which every write must end, whatever happened to Redis. After a lease and the margin no reader can
        have a hit any more; the rest allows for a slow machine."""
        return self.lease + self.margin + 1

    def wait_open(self, seconds=60, above=-1):
        """Waits until fences are OPEN, in an epoch above the given one."""
        seen = [None]

        def is_open():
            seen[0] = self.state()
            return seen[0][0] == 'OPEN' and seen[0][1] > above
        try:
            wait_for(is_open, 'OPEN', seconds)
        except Exception as error:
            raise type(error)('%s; seen last: %s' % (error, seen[0])) from None
        return seen[0][1]

    def wait_settled(self, seconds=60):
        """Waits until no reservation is left. Raises Timeout with what is left."""
        left = [None]

        def none_left():
            left[0] = self.psql('SELECT * FROM fence.pending')
            return not left[0]
        try:
            wait_for(none_left, 'the last reservation to end', seconds)
        except Exception as error:
            raise type(error)('%s; left: %s' % (error, left[0])) from None

    def calm(self):
        """Restarts the keeper, so that it forgets former failures. After many failures it keeps fences closed for long."""
        former = self.postgres.children('pgcache_fence keeper')
        self.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pgcache_fence keeper'")
        wait_for(lambda: [pid for pid in self.postgres.children('pgcache_fence keeper') if pid not in former],
                 'another keeper')
        self.wait_open()
        wait_for(lambda: self.value("SELECT coalesce(min(lease_left) > %s * interval '0.5 s', false) FROM fence.nodes",
                                    (self.lease,)), 'its first renewal')

    def set_system(self, **settings):
        """ALTER SYSTEM and reload, on the standby too; None resets. pgcache_fence__x means pgcache_fence.x."""
        for server in filter(None, (self.postgres, self.standby)):
            server.set_system(**settings)

    # ------------------------------------------------------------------------------------------------------------------
    # Standbys, replicas, and what takes their place
    # ------------------------------------------------------------------------------------------------------------------

    def ensure_standby(self):
        """A streaming standby that has caught up."""
        if self.standby is None:
            standby = self.new_postgres()
            standby.copy_of(self.postgres)
            open(os.path.join(standby.data, 'standby.signal'), 'w').close()
            standby.configure('primary_conninfo = ' + quoted(self.postgres.dsn()), 'postgresql.auto.conf')
            standby.start()
            self.standby = standby
        wait_for(self.standby_caught_up, 'the standby to catch up', 60)
        return self.standby

    def standby_caught_up(self):
        at = self.value('SELECT pg_current_wal_lsn()')
        return self.standby.value('SELECT coalesce(pg_last_wal_receive_lsn() >= %s, false)', (at,)) and \
            self.standby.value('SELECT count(*) FROM pg_stat_wal_receiver') == 1

    def hide_postgres(self):
        """Tells clients an address where no server is, until replace_postgres()."""
        with self.lock:
            self.hidden = True
        self.changed()

    def replace_postgres(self, server, keep_old=False):
        """Makes `server`, which must run, the primary. Removes the former primary, which must be stopped. keep_old: that one lives, and
        readers may stay with it."""
        with self.lock:
            former, self.postgres, self.hidden = self.postgres, server, False
            if self.standby is server:
                self.standby = None
            if keep_old:
                self.old_postgres = former
        self.changed()
        if not keep_old:
            self.remove_postgres(former)
        if self.standby:                # it followed the former primary
            self.standby.remove()
            self.standby = None

    def remove_postgres(self, former):
        if former.running():
            raise RuntimeError('two primaries')
        shutil.move(former.log, os.path.join(self.directory, os.path.basename(former.directory) + '.log'))
        former.remove()

    def forget_old_postgres(self):
        """Stops the former primary that replace_postgres() has kept."""
        with self.lock:
            old, self.old_postgres = self.old_postgres, None
        self.changed()
        old.stop()
        self.remove_postgres(old)

    def ensure_replica(self):
        """A Redis replica that has caught up."""
        if self.replica is None:
            replica = self.new_redis()
            replica.start()
            self.replica = replica
        self.replica.call('REPLICAOF', '127.0.0.1', self.redis.port)
        wait_for(lambda: self.replica.info('replication', 'master_link_status') == 'up', 'the replica', 30)
        self.redis.call('WAIT', 1, 10000)
        return self.replica

    def redirect(self, server, keep_old):
        """Points the extension and new readers to that Redis. keep_old: old readers may go on with the former one."""
        with self.lock:
            former, self.redis = self.redis, server
            if server is self.replica:
                self.replica = None
            if server is self.old_redis:
                self.old_redis = None
            if keep_old:
                self.old_redis = former
            if self.proxy:
                self.proxy.target(server.socket)
        if not self.proxy:
            self.set_system(pgcache_fence__redis_url=self.extension_url())
        self.changed()
        return former

    def tell_confused(self, confused):
        """Tells readers whether the proxy may give them replies to other requests."""
        with self.lock:
            self.confused = confused
        self.changed()

    def forget_old_redis(self):
        """Stops the former master that redirect() has kept, if there is one."""
        with self.lock:
            old, self.old_redis = self.old_redis, None
        if old:
            self.changed()
            old.remove()


def address_text(address):
    return address if isinstance(address, str) else '%s:%d' % address


def read_place():
    path = os.environ.get('FENCE_PLACE')
    if not path:
        return ''
    with open(path) as file:
        return file.read()


def postgres_bindir():
    config = os.environ.get('PG_CONFIG') or 'pg_config'
    return subprocess.run([config, '--bindir'], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


# The shell is process 1 of a namespace: it reaps the children of a killed postmaster at once, and nothing outlives it.
NAMESPACE = ['unshare', '--mount', '--propagation', 'unchanged', '--pid', '--fork', '--kill-child']
PROCESS_1 = ['sh', '-c', 'mount --make-private /proc && mount -t proc proc /proc || exit 125; "$@"; exit $?', 'sh']


def unprivileged(user='postgres'):
    """If the user is root, runs this program again as the given user, in a process namespace where that works, and exits
    with its status. Otherwise returns. Programs that start a Site must call this first."""
    if os.getuid() != 0:
        return
    command = ['setpriv', '--reuid=' + user, '--regid=' + user, '--init-groups', '--', sys.executable, *sys.argv]
    works = subprocess.run([*NAMESPACE, *PROCESS_1, 'true'], stderr=subprocess.DEVNULL, check=False).returncode == 0
    os.environ.update(HOME='/tmp', LC_ALL='C.UTF-8')
    os.execvp('unshare' if works else 'setpriv', [*NAMESPACE, *PROCESS_1, *command] if works else command)
