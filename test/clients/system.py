"""What the client tests run against: PostgreSQL with the extension and one Redis, shards or a Redis Cluster, and drivers.

Owns: the servers and drivers that it starts, below one directory. The environment says where things are: PG_CONFIG,
REDIS_SERVER, FENCE_PLACE (settings with which PostgreSQL finds the extension), CLIENTS_MODULES (node_modules).
"""

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'history'))

from extract import extract                                                     # noqa: E402
from fence_site import postgres_bindir, read_place                              # noqa: E402
from servers import PostgresServer, RedisServer, Timeout, wait_for              # noqa: E402, F401

SETTINGS = '''
listen_addresses = ''
max_connections = 80
fsync = off
shared_preload_libraries = 'pgcache_fence'
pgcache_fence.patrol_interval = '200ms'
pgcache_fence.patrol_grace = '300ms'
'''
ANSWER_SECONDS = 60


class System:
    def __init__(self, directory, cluster=False, shards=1):
        self.directory = directory
        self.cluster = cluster
        config = ['cluster-enabled yes', 'cluster-node-timeout 1000', 'cluster-require-full-coverage no'] if cluster else []
        self.redis = [RedisServer(os.path.join(directory, 'redis%d' % n), config) for n in range(3 if cluster else shards)]
        self.postgres = PostgresServer(os.path.join(directory, 'pg'), postgres_bindir())
        self.drivers = []

    def start(self):
        for server in self.redis:
            server.start()
        nodes = ['127.0.0.1:%d' % server.port for server in self.redis]
        if self.cluster:
            self.form_cluster()
        self.postgres.initdb()
        self.postgres.configure(SETTINGS + read_place() + "pgcache_fence.redis_url = '%s'\n" % (
            'redis+cluster://' + ','.join(nodes) if self.cluster else ', '.join('redis://' + node for node in nodes)))
        self.postgres.start()
        self.sql('CREATE EXTENSION pgcache_fence')
        self.wait_open()

    def form_cluster(self):
        """The slots in three parts; who has lower ones is told of by the first."""
        first, share = self.redis[0], 16384 // len(self.redis) + 1
        for n, server in enumerate(self.redis):
            server.call('CLUSTER', 'ADDSLOTSRANGE', n * share, min(16384, (n + 1) * share) - 1)
            if server is not first:
                first.call('CLUSTER', 'MEET', '127.0.0.1', server.port, server.bus)
        wanted = {'cluster_state:ok', 'cluster_known_nodes:%d' % len(self.redis)}
        for server in self.redis:
            wait_for(lambda s=server: wanted <= set(s.call('CLUSTER', 'INFO').split()), 'the cluster')

    def stop(self):
        for driver in self.drivers:
            driver.end()
        self.postgres.stop('immediate')
        for server in self.redis:
            server.stop()

    def show_logs(self):
        for path in (os.path.join(self.directory, 'drivers.log'), self.postgres.log):
            if os.path.exists(path):
                with open(path, errors='replace') as file:
                    print('# end of %s\n# %s' % (os.path.basename(path), '# '.join(file.readlines()[-30:])))

    def sql(self, sql, parameters=None):
        return self.postgres.query(sql, parameters)

    def wait_open(self):
        wait_for(lambda: self.sql('SELECT state FROM fence.state')[0][0] == 'OPEN', 'the fences to open', 60)

    def client(self, name):
        """Of the process that has this key."""
        if not self.cluster:
            return self.redis[0].client()
        slot = self.redis[0].call('CLUSTER', 'KEYSLOT', name)
        return self.redis[slot // (16384 // len(self.redis) + 1)].client()

    def on_redis(self, name, *command):
        """One command, at the process that has this key."""
        with contextlib.closing(self.client(name)) as client:
            return client.execute_command(*command)

    def flush(self):
        for server in self.redis:
            server.call('FLUSHALL')

    def settings(self, dbname='postgres', **more):
        return json.dumps({'dsn': self.postgres.dsn(dbname), 'nodes': [['127.0.0.1', s.port] for s in self.redis],
                           'cluster': self.cluster, **more})

    def environment(self, dbname='postgres'):
        """By which psql and pg find PostgreSQL, and the shell's snippets Redis."""
        tools = os.path.join(self.directory, 'tools')           # Valkey's program has another name
        if not os.path.exists(tools):
            os.mkdir(tools)
            os.symlink(shutil.which(os.environ.get('REDIS_CLI') or 'redis-cli'), os.path.join(tools, 'redis-cli'))
        return {**os.environ, 'PATH': tools + ':' + os.environ['PATH'], 'PYTHONDONTWRITEBYTECODE': '1',
                'PGHOST': self.postgres.directory, 'PGPORT': str(self.postgres.PORT), 'PGUSER': 'postgres',
                'PGDATABASE': dbname, 'REDIS_PORT': str(self.redis[0].port),
                'REDIS': '-p %d' % self.redis[0].port + (' -c' if self.cluster else '')}

    def snippets(self, name, changes=()):
        """A directory with the document's files, and what Node.js needs beside them."""
        directory = os.path.join(self.directory, name)
        if not os.path.exists(directory):
            extract(directory, changes)
            os.symlink(os.environ['CLIENTS_MODULES'], os.path.join(directory, 'node_modules'))
        return directory

    def driver(self, client, snippets='files', changes=(), dbname='postgres'):
        """client: python, ioredis, node_redis or shell."""
        driver = Driver(self, client, self.snippets(snippets, changes), dbname)
        self.drivers.append(driver)
        return driver


class Driver:
    """A process that reads with a library, or with the shell's code of the document. Every answer comes within a deadline."""

    def __init__(self, system, client, directory, dbname):
        self.client = client
        self.log = open(os.path.join(system.directory, 'drivers.log'), 'ab')
        command = {'python': [sys.executable, os.path.join(HERE, 'drive.py'), system.settings(dbname)],
                   'shell': ['bash', os.path.join(HERE, 'drive.bash')]}.get(client) or \
            ['node', os.path.join(HERE, 'drive.js'), system.settings(dbname, client=client)]
        self.process = subprocess.Popen(command, cwd=directory, env=system.environment(dbname), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.buffer = b''
        if self.line() not in ('ready', '"ready"'):
            raise RuntimeError('%s did not start' % client)

    def line(self, seconds=ANSWER_SECONDS):
        deadline = time.monotonic() + seconds
        while b'\n' not in self.buffer:
            if not self.selector.select(max(0, deadline - time.monotonic())):
                raise Timeout('%s did not answer in %g s' % (self.client, seconds))
            read = os.read(self.process.stdout.fileno(), 65536)
            if not read:
                raise RuntimeError('%s ended' % self.client)
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b'\n')
        return line.decode()

    def send(self, line):
        self.process.stdin.write(line.encode() + b'\n')
        self.process.stdin.flush()

    def begin(self, do, **arguments):
        """Sends a request; finish() has the answer."""
        if self.client != 'shell':
            self.send(json.dumps({'do': do, **arguments}))
        elif do == 'names':
            words = [arguments['domain']] + [text for _, text in arguments['key']]
            self.send('names ' + ' '.join(word.encode().hex() or '-' for word in words))
        else:
            self.send('%s %s' % ('slow' if arguments.get('slow') else do, arguments['id']))

    def finish(self):
        line = self.line()
        if self.client == 'shell':
            first, _, rest = line.partition(' ')
            if first == 'error':
                raise RuntimeError('shell: status ' + rest)
            if not first.isdigit():
                return {'names': line.split(' ')}
            return {'rows': [json.loads(rest) if rest else None], 'queries': int(first)}
        answer = json.loads(line)
        if 'error' in answer:
            raise RuntimeError('%s: %s' % (self.client, answer['error']))
        if 'rows' in answer:
            answer['rows'] = [row and json.loads(row) for row in answer['rows']]
        return answer

    def ask(self, do, **arguments):
        self.begin(do, **arguments)
        return self.finish()

    def read(self, id, **options):
        """(row or None, how many queries PostgreSQL was sent)"""
        answer = self.ask('read', id=id, **options)
        return answer['rows'][0], answer['queries']

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
