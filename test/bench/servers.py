"""
Private PostgreSQL and Redis servers below one directory, and functions that query them.

Each server has a session of its own, as if a service manager had started it. The kernel divides the processors among sessions
first (autogroups), and a process that yields only yields to processes of its session.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time

import psycopg2
import redis

BASE = os.environ['base']
BINDIR = os.environ['bindir']
REDIS_SERVER = os.environ['REDIS_SERVER']
HERE = os.path.dirname(os.path.abspath(__file__))

# Settings as a user would have them (fsync on), but without checkpoints and autovacuum, which would start during a measurement.
# VACUUM runs between the rounds.
POSTGRES_SETTINGS = '''
shared_buffers = 512MB
max_wal_size = 8GB
checkpoint_timeout = 1h
autovacuum = off
max_connections = 320
max_locks_per_transaction = 128
jit = off
'''
NO_BUCKETS = 'pgcache_fence.watch_buckets = 0\n'      # fill() can put all rows at once



def cpu_us(pid):
    """Processor time of a process in microseconds."""
    with open(f'/proc/{pid}/schedstat') as file:
        return int(file.read().split()[0]) / 1000


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f'bench: waited {seconds} s in vain: {what}')
        time.sleep(0.02)


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Redis:
    """A Redis without persistence, on a Unix socket and a loopback port."""

    def __init__(self, name='redis', settings=()):
        self.socket = f'{BASE}/{name}.sock'
        self.port = free_port()
        self.log = f'{BASE}/{name}.log'
        self.process = subprocess.Popen(
            [REDIS_SERVER, '--port', str(self.port), '--bind', '127.0.0.1', '--unixsocket', self.socket, '--dir', BASE,
             '--save', '', '--appendonly', 'no', '--maxclients', '4000', *settings],
            stdout=open(self.log, 'w'), stderr=subprocess.STDOUT, start_new_session=True)
        self.pid = self.process.pid
        self.client = redis.Redis(unix_socket_path=self.socket)
        wait_until(self.answers, 20, f'Redis does not start, see {self.log}')

    def answers(self):
        try:
            return self.client.ping()
        except redis.exceptions.ConnectionError:
            return False

    def address(self, tcp=False):
        return f'127.0.0.1:{self.port}' if tcp else self.socket

    def url(self, tcp=False):
        return f'redis://127.0.0.1:{self.port}' if tcp else f'unix://{self.socket}'

    def load_functions(self, path):
        with open(path) as f:
            self.client.function_load(f.read(), replace=True)

    def command_stats(self):
        """name -> (calls, microseconds)"""
        return {name[len('cmdstat_'):]: (s['calls'], s['usec'])
                for name, s in self.client.info('commandstats').items()}

    def version(self):
        info = self.client.info('server')
        name = 'Valkey' if 'valkey_version' in info else 'Redis'
        return f"{name} {info.get('valkey_version', info['redis_version'])}"

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


class Postgres:
    """A PostgreSQL server. preload=False: it does not load the extension. cached=False: it has the default watch_buckets, and fill()
    does nothing, so every row is one that nobody has cached."""

    def __init__(self, name, redis_server=None, preload=True, settings='', valgrind=None, cached=True):
        self.data = f'{BASE}/{name}'
        self.directory = f'{BASE}/{name}.s'
        self.port = free_port()
        self.log = f'{BASE}/{name}.log'
        self.valgrind = valgrind
        self.cached = cached
        self.process = None
        self.idle = {}
        os.mkdir(self.directory)
        subprocess.run([f'{BINDIR}/initdb', '-D', self.data, '-A', 'trust', '-U', 'postgres', '-N', '-E', 'UTF8', '--no-locale'],
                       check=True, stdout=subprocess.DEVNULL)
        with open(f'{self.data}/postgresql.conf', 'a') as conf:
            conf.write(POSTGRES_SETTINGS + (NO_BUCKETS if cached else '') + settings)
            conf.write(f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = '{self.directory}'\n")
            with open(f'{BASE}/place.conf') as place:
                conf.write(place.read())
            if preload:
                conf.write(f"shared_preload_libraries = 'pgcache_fence'\npgcache_fence.redis_url = '{redis_server.url()}'\n"
                           'pgcache_fence.audit_rate = 0\n')           # fill() writes versions that the rows do not have
        self.start()

    def start(self):
        command = [f'{BINDIR}/postgres', '-D', self.data]
        self.process = subprocess.Popen((self.valgrind or []) + command, stdout=open(self.log, 'a'),
                                        stderr=subprocess.STDOUT, start_new_session=True)
        wait_until(self.answers, 300 if self.valgrind else 20, f'PostgreSQL does not start, see {self.log}')

    def answers(self):
        if self.process.poll() is not None:
            raise SystemExit(f'bench: PostgreSQL does not start:\n{open(self.log).read()[-2000:]}')
        return subprocess.run([f'{BINDIR}/pg_isready', '-q', '-h', self.directory, '-p', str(self.port)]).returncode == 0

    def stop(self, how=signal.SIGINT):
        self.forget()
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait()

    def forget(self):
        for connection in self.idle.values():
            connection.close()
        self.idle = {}

    def conninfo(self, tcp=False, database='postgres', **settings):
        options = ' '.join(f'-c {name}={value}' for name, value in settings.items())
        host = '127.0.0.1' if tcp else self.directory
        return f"host={host} port={self.port} user=postgres dbname={database} options='{options}'"

    def connect(self, **settings):
        connection = psycopg2.connect(self.conninfo(**settings))
        connection.autocommit = True
        return connection

    def sql(self, text, *arguments, database='postgres'):
        """Runs a statement on a permanent connection. Returns its rows, if any."""
        if database not in self.idle:
            self.idle[database] = self.connect(database=database)
        with self.idle[database].cursor() as cursor:
            cursor.execute(text, arguments or None)
            return cursor.fetchall() if cursor.description else None

    def value(self, text, *arguments, **where):
        return self.sql(text, *arguments, **where)[0][0]

    def worker(self, kind):
        """The process of a worker of the extension; 0 if there is none."""
        rows = self.sql('SELECT pid FROM pg_stat_activity WHERE backend_type = %s', f'pgcache_fence {kind}')
        return rows[0][0] if rows else 0

    def version(self):
        return 'PostgreSQL ' + re.match(r'[\d.]+\w*', self.value('SHOW server_version')).group()

    def set(self, **settings):
        for name, value in settings.items():
            self.sql(f'ALTER SYSTEM SET {name.replace("__", ".")} = %s', value)
        self.sql('SELECT pg_reload_conf()')

    def wait_open(self):
        wait_until(lambda: self.value('SELECT state FROM fence.state') == 'OPEN', 300 if self.valgrind else 60, 'fences are not OPEN')


@contextlib.contextmanager
def running(*servers):
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


def fill(pg, redis_server, domain, rows, payload=100, first=1):
    """Caches every row of a domain, as if a reader had put it."""
    if not pg.cached:
        return
    fence = pg.value('SELECT fence.fence_key(%s, %s)', domain, '0').replace('{0}', '{%i}')
    wait_until(lambda: permit(redis_server, fence.replace('%i', '1')), 300 if pg.valgrind else 60, f'domain {domain} is not announced')
    subprocess.run([f'{BASE}/bin/fill', redis_server.socket, fence, str(first), str(rows), str(payload)], check=True)


def permit(redis_server, fence):
    return redis_server.client.execute_command('FCALL_RO', 'fence_token', 1, fence)


def header(pg):
    """The first argument of writers' calls, as a word for a step of the load generator."""
    return pg.value('SHOW pgcache_fence.namespace') + '%_' + pg.value('SELECT epoch FROM fence.state')
