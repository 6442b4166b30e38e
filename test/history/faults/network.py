"""The connections to Redis are ill-treated by the proxy, at the extension's door, the readers', or both."""

import time

from faults.fault import Fault


class Connections(Fault):
    """policy: the proxy's, drawn anew each time. counted: what the proxy counts when it has done it."""

    options = {'proxy': True}

    def __init__(self, name, describe, policy, counted, leases=(1, 2), doors=None):
        self.name, self.describe, self.policy, self.counted = name, describe, policy, counted
        self.leases, self.doors = leases, doors

    def do(self, site, rng, record):
        choice = self.doors or [['extension']]
        if not self.doors and site.with_proxy is True:
            choice = choice + [['readers'], ['extension', 'readers']]
        doors = rng.choice(choice)
        policy = self.policy(site, rng)
        before = site.proxy.counts()
        for door in doors:
            site.proxy.treat(door, rng.getrandbits(30), **policy)
        try:
            time.sleep(rng.uniform(*self.leases) * site.lease)
        finally:
            for door in doors:
                site.proxy.treat(door)
        after = site.proxy.counts()
        record['proof'].update(doors=doors, policy=policy, happened={
            door: after[door][self.counted] - before[door][self.counted] for door in doors})


FAULTS = [
    Connections('connections_cut', 'connections to Redis are cut in the middle of a message, again and again',
                lambda site, rng: {'cut': rng.choice((50, 500, 5000)), 'reset': rng.random() < 0.5}, 'cuts'),
    Connections('connections_delayed', 'every message to and from Redis is held back',
                lambda site, rng: {'delay': rng.choice((0.01, 0.05, 0.9 * site.timeout, 2 * site.timeout))}, 'held'),
    Connections('connections_split', 'messages arrive byte by byte', lambda site, rng: {'split': True}, 'split'),
    Connections('partition', 'PostgreSQL cannot reach Redis, connections stay open; readers can',
                lambda site, rng: {'hole': True}, 'connections', (2, 3), doors=[['extension']]),
    Connections('refused', 'connections of the extension to Redis are closed, and new ones at once',
                lambda site, rng: {'cut': 1, 'refuse': True}, 'cuts', (2, 3), doors=[['extension']]),
]
