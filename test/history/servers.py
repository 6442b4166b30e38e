"""The servers in which tests cause faults: one class for a PostgreSQL server, one for a Redis server.

Owns: the servers that it starts, and their directories. It signals only processes that it has started, or their children,
by process id. Every wait has a deadline. It knows nothing of fences.
"""

import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import time

import psycopg2
import redis

START_SECONDS = 60

# A reset connection is a ConnectionError. Debian 12's redis-py names host and port in it, which a Unix socket's lacks.
redis.UnixDomainSocketConnection.host = redis.UnixDomainSocketConnection.port = None


class Timeout(Exception):
    """A condition did not come true in time."""


def wait_for(condition, what, seconds=30, pause=0.01):
    """The condition's value as soon as it is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Timeout('waited %g s for %s' % (seconds, what))
        time.sleep(pause)


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def process_state(pid):
    """The state of a process as a letter from /proc (R, S, T, Z ...); None if there is no such process."""
    try:
        with open('/proc/%d/stat' % pid) as file:
            return file.read().rpartition(')')[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def children_of(pid):
    """pid -> command line, of the children that are no zombies."""
    found = {}
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/stat' % name) as file:
                state, parent = file.read().rpartition(')')[2].split()[:2]
            if int(parent) == pid and state != 'Z':
                with open('/proc/%s/cmdline' % name, 'rb') as file:
                    found[int(name)] = file.read().rstrip(b'\0').replace(b'\0', b' ').decode(errors='replace')
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def send_signal(pid, number):
    """Whether there was such a process."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


class Process:
    """One program in the foreground, with its output in a file."""

    def __init__(self, log):
        self.log = log
        self.process = None

    @property
    def pid(self):
        return self.process.pid if self.process else None

    def spawn(self, command, environment=None):
        with open(self.log, 'ab') as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, **(environment or {})}, start_new_session=True)

    def running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.running():
            self.process.send_signal(number)

    def wait(self, seconds=30):
        """Reaps the process; kills it if it does not end in time. Returns its exit status."""
        if self.process is None:
            return None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Timeout('%s did not end in %g s' % (self.process.args[0], seconds)) from None

    def log_tail(self, lines=30):
        try:
            with open(self.log, errors='replace') as file:
                return ''.join(file.readlines()[-lines:])
        except FileNotFoundError:
            return ''


class PostgresServer(Process):
    """A server on a Unix socket in a directory of its own."""

    PORT = 5432             # only part of the socket's name

    def __init__(self, directory, bindir):
        os.makedirs(directory, mode=0o700)
        super().__init__(os.path.join(directory, 'log'))
        self.directory = directory
        self.data = os.path.join(directory, 'data')
        self.bindir = bindir

    def program(self, name):
        return os.path.join(self.bindir, name)

    def run(self, name, *arguments):
        done = subprocess.run([self.program(name), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors='replace', check=False)
        if done.returncode != 0:
            raise RuntimeError('%s failed:\n%s' % (name, done.stdout))
        return done.stdout

    def initdb(self):
        self.run('initdb', '-D', self.data, '-A', 'trust', '-U', 'postgres', '-N', '-E', 'UTF8', '--no-locale')

    def copy_of(self, source):
        """Fills the data directory from a running server, WAL up to now included."""
        self.run('pg_basebackup', '-D', self.data, '-d', source.dsn(), '-X', 'fetch', '-c', 'fast', '--no-sync')

    def configure(self, lines, name='postgresql.conf'):
        """Appends settings, a string; they count from the next start or reload on. What goes into postgresql.auto.conf
        can be undone by ALTER SYSTEM."""
        with open(os.path.join(self.data, name), 'a') as file:
            file.write(lines + '\n')

    def dsn(self, dbname='postgres'):
        return 'host=%s port=%d user=postgres dbname=%s' % (self.directory, self.PORT, dbname)

    def start(self, **settings):
        """Starts the server, with settings that count for this start only. After a kill -9 of the postmaster, its children
        may still hold shared memory. Then this tries again until they are gone."""
        arguments = [word for item in settings.items() for word in ('-c', '%s=%s' % item)]
        deadline = time.monotonic() + START_SECONDS
        while True:
            self.spawn([self.program('postgres'), '-D', self.data, '-k', self.directory, *arguments])
            if self.wait_ready(deadline):
                return
            if time.monotonic() > deadline:
                raise RuntimeError('PostgreSQL did not start:\n' + self.log_tail())
            time.sleep(0.05)

    def wait_ready(self, deadline):
        """Waits until the server takes connections (true) or has ended (false)."""
        while self.running() and time.monotonic() < deadline:
            try:
                psycopg2.connect(self.dsn(), connect_timeout=5).close()
                return True
            except psycopg2.OperationalError:
                time.sleep(0.02)
        return False

    def stop(self, mode='fast'):
        """smart, fast or immediate; nothing happens if it is down."""
        if self.running():
            self.signal({'smart': signal.SIGTERM, 'fast': signal.SIGINT, 'immediate': signal.SIGQUIT}[mode])
            self.wait(60)

    def kill9(self, everything=False):
        """Sends SIGKILL to the postmaster. May also kill its children, as when the machine is switched off."""
        children = children_of(self.pid)
        if everything:
            self.signal(signal.SIGSTOP)         # so that it starts no child that would escape the kill
            children = children_of(self.pid)
        self.signal(signal.SIGKILL)
        if everything:
            for pid in children:
                send_signal(pid, signal.SIGKILL)
        self.wait()
        return children

    def children(self, title=''):
        """Process ids of the server's children whose command line has that text in it."""
        return [pid for pid, line in sorted(children_of(self.pid).items()) if title in line] if self.running() else []

    def reload(self):
        self.signal(signal.SIGHUP)

    def set_system(self, **settings):
        """ALTER SYSTEM and reload; None resets. A double underscore means a dot."""
        for name, value in settings.items():
            name = name.replace('__', '.')
            self.query('ALTER SYSTEM RESET ' + name if value is None else
                       'ALTER SYSTEM SET %s = %s' % (name, quoted(str(value))))
        self.reload()

    def query(self, sql, parameters=None):
        """Rows of one statement (None if it has none), in a session of its own, in autocommit."""
        connection = psycopg2.connect(self.dsn(), connect_timeout=10)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else None
        finally:
            connection.close()

    def value(self, sql, parameters=None):
        return self.query(sql, parameters)[0][0]

    def remove(self):
        self.stop('immediate')
        shutil.rmtree(self.directory, ignore_errors=True)


class RedisServer(Process):
    """A server on a Unix socket and a loopback port. persistence is what the next start finds: None, rdb or aof."""

    def __init__(self, directory, config=(), program=None, clock=None):
        """clock: the library made from step_clock.c; with it the server's clock can be stepped."""
        os.makedirs(directory, mode=0o700)
        super().__init__(os.path.join(directory, 'log'))
        self.directory = directory
        self.socket = os.path.join(directory, 'sock')
        self.port = None
        self.announced = None       # the port of a proxy, which a member of a cluster tells others instead of its own
        self.bus = None             # a cluster's second port; the usual one, 10,000 higher, is none for a high port
        self.persistence = None
        self.config = list(config)
        self.program = program or os.environ.get('REDIS_SERVER') or 'redis-server'
        self.clock = clock
        self.clock_file = os.path.join(directory, 'clock')

    def known(self):
        """The port by which clients and other members know it."""
        return self.announced or self.port

    def url(self):
        return 'unix://' + self.socket

    def tcp_url(self):
        return 'redis://127.0.0.1:%d' % self.port

    def client(self, timeout=5):
        """No retries: what fails, fails here."""
        return redis.Redis(unix_socket_path=self.socket, socket_timeout=timeout, decode_responses=True)

    def call(self, *command):
        client = self.client()
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    def info(self, section, field):
        return self.call('INFO', section)[field]

    def identity(self):
        """The run ID, which Redis draws at each start; it tells one process from the next."""
        return self.info('server', 'run_id')

    def start(self):
        if self.persistence is None:            # do not load what an earlier process or a replication has left behind
            for name in ('dump.rdb', 'appendonlydir'):
                path = os.path.join(self.directory, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.path.exists(path) and os.unlink(path)
        for attempt in range(5):
            if self.port is None or attempt:
                self.port, self.bus = free_port(), free_port()
            self.spawn(self.command(), self.environment())
            if self.wait_ready():
                return
        raise RuntimeError('Redis did not start:\n' + self.log_tail())

    def command(self):
        lines = ['bind 127.0.0.1', 'port %d' % self.port, 'unixsocket ' + self.socket, 'dir ' + self.directory,
                 'daemonize no', 'save ""', 'appendonly ' + ('yes' if self.persistence == 'aof' else 'no'),
                 'appendfsync everysec', 'repl-diskless-sync yes', 'repl-diskless-sync-delay 0',
                 'repl-diskless-load swapdb', 'enable-debug-command yes', *self.config]
        if 'cluster-enabled yes' in self.config:
            lines.append('cluster-port %d' % self.bus)
            if self.announced:
                lines.append('cluster-announce-port %d' % self.announced)
        return shlex.split(self.program) + [word for line in lines for word in option(line)]

    def environment(self):
        if not self.clock:
            return {}
        if not os.path.exists(self.clock_file):
            self.step_clock(0)
        return {'LD_PRELOAD': self.clock, 'STEP_CLOCK_FILE': self.clock_file}

    def step_clock(self, seconds):
        """Sets the offset of the server's clock from the real one. A restart keeps the offset."""
        with open(self.clock_file, 'r+b' if os.path.exists(self.clock_file) else 'wb') as file:
            file.write(struct.pack('=q', round(seconds * 1e6)))

    def clock_offset(self):
        """Seconds that its clock is ahead of the real one, as it says itself."""
        seconds, microseconds = self.call('TIME')
        return int(seconds) + int(microseconds) / 1e6 - time.time()

    def wait_ready(self):
        """True once it answers and has loaded what it found; false if it has ended (the port was somebody else's)."""
        deadline = time.monotonic() + START_SECONDS
        while self.running() and time.monotonic() < deadline:
            try:
                if self.call('PING'):
                    return True
            except (redis.ConnectionError, redis.TimeoutError):     # BusyLoadingError is a ConnectionError
                time.sleep(0.005)
        return False

    def persist(self, kind):
        """Switches persistence while it runs: None, 'rdb' (a snapshot is saved now) or 'aof' (everysec)."""
        self.call('CONFIG', 'SET', 'appendonly', 'yes' if kind == 'aof' else 'no')
        self.persistence = kind
        if kind == 'rdb':
            self.call('SAVE')
        elif kind == 'aof':
            wait_for(lambda: self.info('persistence', 'aof_rewrite_in_progress') == 0 and
                     self.info('persistence', 'aof_enabled') == 1, 'the first append-only file')

    def kill9(self):
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self):
        if self.running():
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.wait()

    def pause(self):
        self.signal(signal.SIGSTOP)
        wait_for(lambda: process_state(self.pid) == 'T', 'Redis to stop')

    def resume(self):
        self.signal(signal.SIGCONT)

    def remove(self):
        self.signal(signal.SIGKILL)
        self.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def option(line):
    """A line of redis.conf as arguments of the command line."""
    name, _, value = line.partition(' ')
    return ['--' + name, *shlex.split(value)] if value != '""' else ['--' + name, '']
