"""Runs the Python files of doc/clients.md for the tests: a request as JSON per line in, an answer as JSON per line out.

drive.py SETTINGS, in the directory of the files; SETTINGS is JSON: dsn, nodes (a list of [host, port]), cluster. Requests:

    {"do": "names", "domain": …, "key": [[type, text], …], "tag": [text, number of the key value] or null}
    {"do": "read", "id": …, "slow": true: PostgreSQL waits for the advisory lock 1 after it has taken its snapshot}
    {"do": "together", "ids": […], "halt": true: after the first block has answered it says "halted" and waits for a line}
    {"do": "sql", "sql": …}     in the session that reads; to begin and end transactions

An answer has what was asked for ("names" or "rows", payloads or null) and "queries", how many PostgreSQL was asked; or
"error".
"""

import contextlib
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


def say(answer):
    print(json.dumps(answer), flush=True)


def halt():
    say('halted')
    sys.stdin.readline()


@contextlib.contextmanager
def halting():
    """The first block that is read meanwhile is followed by a halt."""
    real, halted = reader.block, []

    def block(*args):
        answer = real(*args)
        if not halted:
            halted.append(True)
            halt()
        return answer

    reader.block = block
    try:
        yield
    finally:
        reader.block = real


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
        fence = naming.name(naming.place(self.pg, domain), *values, tag=tag)
        return {'names': [fence, naming.beside(fence, 's')]}

    def read(self, id, slow=False):
        row = reader.read_through(self.r, self.pg, naming.name(self.accounts, id), SLOW, (id,)) if slow else \
            example.account(self.pg, self.r, self.accounts, id)
        return {'rows': [row]}

    def together(self, ids, halt=False):
        with halting() if halt else contextlib.nullcontext():
            return {'rows': example.several(self.pg, self.r, self.accounts, ids)}

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
