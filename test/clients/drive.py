"""Runs the Python files of doc/clients.md for the tests: a request as JSON per line in, an answer as JSON per line out.

drive.py SETTINGS, in the directory of the files; SETTINGS is JSON: dsn, nodes (a list of [host, port]), cluster. Requests:

    {"do": "names", "domain": …, "key": [[type, text], …], "tag": [text, number of the key value] or null}
    {"do": "read", "id": …, "slow": true: PostgreSQL waits for the advisory lock 1 after it has taken its snapshot}
    {"do": "together", "ids": […], "halt": true: after the first fence_get has answered it says "halted" and waits for a line}
    {"do": "sql", "sql": …}     in the session that reads; to begin and end transactions

An answer has what was asked for ("names" or "rows", payloads or null) and "queries", how many PostgreSQL was asked; or
"error".
"""

import json
import sys
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID

import psycopg2
import redis

sys.path.insert(0, '.')

import names as naming          # noqa: E402
import reader                   # noqa: E402
import example                  # noqa: E402

TYPES = {'bigint': int, 'text': str, 'boolean': lambda t: t == 'true', 'bytea': bytes.fromhex, 'uuid': UUID,
         'numeric': Decimal, 'date': date.fromisoformat, 'time': time.fromisoformat,
         'timestamp': datetime.fromisoformat, 'timestamptz': datetime.fromisoformat}

SLOW = example.ROW.replace(' WHERE', ', pg_advisory_xact_lock_shared(1) WHERE')


class CountingCursor(psycopg2.extensions.cursor):
    queries = 0

    def execute(self, *args):
        CountingCursor.queries += 1
        super().execute(*args)


class HaltingPipeline:
    """In place of a pipeline: one call after the other, with a halt after the first."""

    def __init__(self, r):
        self.r = r
        self.calls = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def execute_command(self, *command):
        self.calls.append(command)

    def execute(self):
        answers = [self.r.execute_command(*self.calls[0])]
        halt()
        return answers + [self.r.execute_command(*command) for command in self.calls[1:]]


class Halting:
    """A connection whose first pipeline halts."""

    def __init__(self, r):
        self.r = r
        self.halted = False

    def execute_command(self, *command):
        return self.r.execute_command(*command)

    def pipeline(self, **options):
        if self.halted:
            return self.r.pipeline(**options)
        self.halted = True
        return HaltingPipeline(self.r)


def say(answer):
    print(json.dumps(answer), flush=True)


def halt():
    say('halted')
    sys.stdin.readline()


class Driver:
    def __init__(self, dsn, nodes, cluster):
        (host, port), *_ = nodes
        self.pg, self.r, self.accounts = example.connect(dsn, host, port)
        self.pg.cursor_factory = CountingCursor
        if cluster:
            self.r = redis.RedisCluster(host, port, decode_responses=True, socket_timeout=0.2,
                                        socket_connect_timeout=0.2)

    def names(self, domain, key, tag):
        values = [TYPES[type_name](text) for type_name, text in key]
        if tag:
            tag = tag[0] + naming.encode(naming.canonical(values[tag[1]]))
        return {'names': naming.names(naming.place(self.pg, domain), *values, tag=tag)}

    def read(self, id, slow=False):
        row = reader.read_through(self.r, self.pg, naming.names(self.accounts, id), SLOW, (id,)) if slow else \
            example.account(self.pg, self.r, self.accounts, id)
        return {'rows': [row]}

    def together(self, ids, halt=False):
        r = Halting(self.r) if halt else self.r
        return {'rows': example.several(self.pg, r, self.accounts, ids)}

    def sql(self, sql):
        with self.pg.cursor() as cursor:
            cursor.execute(sql)
        return {}


def main():
    driver = Driver(**json.loads(sys.argv[1]))
    say('ready')
    for line in sys.stdin:
        request = json.loads(line)
        CountingCursor.queries = 0
        try:
            answer = getattr(driver, request.pop('do'))(**request)
        except Exception as error:              # a test will tell
            answer = {'error': '%s: %s' % (type(error).__name__, error)}
        say({**answer, 'queries': CountingCursor.queries})


main()
