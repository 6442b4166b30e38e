"""Several servers fail at about the same time, or one fails again before it has recovered."""

import threading
import time

from faults import lost_commits, network, pauses, postgres, redis_server
from faults.fault import Fault, sleep

BY_NAME = {fault.name: fault for module in (postgres, lost_commits, redis_server, pauses, network)
           for fault in module.FAULTS}

# Any two of these can be injected together, because the faults of Redis send no query to PostgreSQL.
OF_POSTGRES = ('backend_kill9', 'keeper_kill9', 'clean_restart', 'immediate_restart', 'postmaster_kill9',
               'server_kill9', 'async_commit_crash', 'standby_promotion')
OF_REDIS = ('redis_kill9', 'redis_kill9_rdb', 'redis_kill9_aof', 'flushall', 'function_flush', 'redis_pause',
            'redis_pause_long')


class Together(Fault):
    name = 'postgres_and_redis'
    describe = 'PostgreSQL and Redis fail at about the same time, each with a fault drawn at random'

    def do(self, site, rng, record):
        pair = BY_NAME[rng.choice(OF_POSTGRES)], BY_NAME[rng.choice(OF_REDIS)]
        record['proof'] = {'pair': [fault.name for fault in pair]}
        errors = []
        parts = []
        threads = []
        for fault in pair:
            part = {**record, 'proof': {}}
            parts.append((fault, part))
            threads.append(threading.Thread(target=attempt, args=(fault, site, type(rng)(rng.getrandbits(32)), part,
                                                                  rng.uniform(0, site.lease), errors)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        record['proof']['parts'] = [part['proof'] for _, part in parts]
        record['lost_commits_possible'] = parts[0][1]['lost_commits_possible']
        record['down'] = parts[0][1]['down']
        self.parts = parts

    def after(self, site, record):
        fault, part = self.parts[0]
        fault.after(site, part)


def attempt(fault, site, rng, record, delay, errors):
    try:
        time.sleep(delay)
        fault.do(site, rng, record)
    except Exception as error:          # raised again by the main thread
        errors.append(error)


class Storm(Fault):
    """Repeats a fault at intervals from nothing to more than a lease, so that it meets fences in every state."""

    epoch = 'new'

    def __init__(self, name, what, describe):
        self.name, self.what, self.describe = name, what, describe

    def do(self, site, rng, record):
        record['proof']['times'] = []
        began = time.monotonic()
        for _ in range(rng.randint(3, 6)):
            sleep(rng, *rng.choice(((0, 0.1), (0, 0.5), (0.5, 1.5 * (site.lease + site.margin)))))
            record['proof']['times'].append(round(time.monotonic() - began, 3))
            self.what(site, rng)


def redis_again(site, rng):
    site.redis.kill9()
    sleep(rng, *rng.choice(((0, 0), (0, site.lease))))
    site.redis.start()


def postgres_again(site, rng):
    server = site.postgres
    rng.choice((lambda: server.kill9(everything=True), lambda: server.stop('immediate'), lambda: server.stop('fast')))()
    server.start()


def either_again(site, rng):
    rng.choice((redis_again, postgres_again))(site, rng)


FAULTS = [
    Together(),
    Storm('redis_storm', redis_again, 'Redis is killed and restarted several times in a row'),
    Storm('postgres_storm', postgres_again, 'PostgreSQL is stopped and started several times in a row'),
    Storm('storm', either_again, 'PostgreSQL or Redis is stopped and started, several times in a row'),
]
