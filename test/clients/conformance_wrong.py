"""Programs that conformance.md warns of. The history checker must catch each of them.

    conformance_wrong.py unchecked | no-key | no-nonce

unchecked  serves what it has kept, without a check
no-key     does not compare the key of a record with the one that it has asked for (rule 14 of doc/clients.md); two plain commands
no-nonce   sends no nonce, so it cannot compare one (rule 15); fence_get

The last two are caught only if replies are confused: --faults replies_repeated or replies_swapped.
"""

import itertools
import sys

import psycopg2
import redis

ROW = 'SELECT fence.row_version(version), to_jsonb(item)::text FROM item WHERE id = %s'
PREFIX = "SELECT rtrim(fence.fence_key('item', '0'), '0}')"


class Program:
    def __init__(self):
        self.connection = self.dsn = self.client = self.prefix = None
        self.numbers = itertools.count(1)

    def postgres(self, dsn, name):
        self.connection, self.dsn = None, '%s application_name=%s connect_timeout=2' % (dsn, name)
        return 'ok'

    def redis(self, _, address):
        host, _, port = address.rpartition(':')
        where = {'unix_socket_path': address} if address.startswith('/') else {'host': host, 'port': int(port)}
        self.client = redis.Redis(single_connection_client=True, socket_timeout=0.2, decode_responses=True, **where)
        return 'ok'

    def query(self, sql, *values):
        if self.connection is None:
            self.connection = psycopg2.connect(self.dsn)
            self.connection.autocommit = True
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchone()

    def read(self, key):
        self.prefix = self.prefix or self.query(PREFIX)[0]
        payload = permit = None
        try:
            payload, permit = self.ask(self.prefix + key + '}', '{' + key + '}')
        except (redis.RedisError, ValueError, IndexError, TypeError, AttributeError):
            self.client.connection.disconnect()
        if payload is not None:
            return 'hit\t' + payload
        row = self.query(ROW, key)
        if row and row[0] and permit:
            try:
                self.client.execute_command('FCALL', 'fence_put', 1, self.prefix + key + '}', permit, *row, 0)
            except redis.RedisError:
                self.client.connection.disconnect()
        return 'read\t' + (row[1] if row else 'null')

    def ask(self, fence, key):
        """The payload, or None; and the permit, or None. Raises an error if the reply cannot be the right one."""
        raise NotImplementedError

    def answer(self, line):
        request, *words = line.rstrip('\n').split('\t')
        try:
            return getattr(self, request)(*words)
        except psycopg2.Error as error:
            self.connection = None
            return 'error\t%s' % type(error).__name__


class Unchecked(Program):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def ask(self, fence, key):
        return self.kept.get(key), None

    def read(self, key):
        answer = super().read(key)
        self.kept['{' + key + '}'] = answer.partition('\t')[2]
        return answer


class NoKey(Program):
    def ask(self, fence, key):
        nonce = '#%d' % next(self.numbers)
        (record,) = self.client.execute_command('MGET', fence)
        permit, own = self.client.execute_command('FCALL_RO', 'fence_token', 1, fence, nonce).rsplit(' ', 1)
        if own != nonce:
            raise ValueError
        header, newline, payload = (record or '').partition('\n')
        hit = permit and newline and header.split(' ')[0] == permit.split(' ')[0]
        return (payload if hit else None), permit


class NoNonce(Program):
    def ask(self, fence, key):
        status, *words = self.client.execute_command('FCALL_RO', 'fence_get', 1, fence)
        if status != 'hit':
            return None, words[0] if status == 'miss' else None
        header, _, payload = words[0].partition('\n')
        if header.split(' ')[-1] != key:
            raise ValueError
        return payload, None


def main():
    program = {'unchecked': Unchecked, 'no-key': NoKey, 'no-nonce': NoNonce}[sys.argv[1]]()
    print('ready\tread', flush=True)
    for line in sys.stdin:
        print(program.answer(line), flush=True)


main()
