"""The library clients/python for the storm: a request as JSON per line in, an answer as JSON per line out.

drive.py SETTINGS; SETTINGS is JSON: dsn, nodes (a list of [host, port]), cluster. Requests:

    {"do": "read", "id": …}
    {"do": "together", "ids": […]}

An answer has "rows" (payloads or null) and "queries": how many of them PostgreSQL was asked for; or "error".
"""

import json
import os
import sys

import psycopg2
import redis

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'clients', 'python', 'src'))

from pgcache_fence import Fences            # noqa: E402

TIMEOUTS = {'socket_timeout': 0.2, 'socket_connect_timeout': 0.2}


def say(answer):
    print(json.dumps(answer), flush=True)


class Driver:
    def __init__(self, dsn, nodes, cluster):
        (host, port), *_ = nodes
        self.fences = Fences((redis.RedisCluster if cluster else redis.Redis)(host=host, port=port, **TIMEOUTS), psycopg2.connect(dsn))

    def queries(self):
        return self.fences.counters.snapshot()['reads'].get('account', {}).get('database', 0)

    def read(self, id):
        return [self.fences.read('account', id)]

    def together(self, ids):
        return self.fences.read_together([('account', id) for id in ids])


def main():
    driver = Driver(**json.loads(sys.argv[1]))
    say('ready')
    for line in sys.stdin:
        request, before = json.loads(line), driver.queries()
        try:
            rows = getattr(driver, request.pop('do'))(**request)
            say({'rows': [row and json.dumps(row) for row in rows], 'queries': driver.queries() - before})
        except Exception as error:              # the storm will tell
            say({'error': '%s: %s' % (type(error).__name__, error)})


main()
