"""The connections to Redis are ill-treated by the proxy, at the extension's door, the readers', or both."""

import glob
import os
import re
import time

from faults.fault import Fault


class Connections(Fault):
    """policy: the proxy's, drawn anew each time. counted: what the proxy counts when it has done it."""

    options = {'proxy': True}

    def __init__(self, name, describe, policy, counted, leases=(1, 2), doors=None):
        self.name, self.describe, self.policy, self.counted = name, describe, policy, counted
        self.leases, self.doors = leases, doors

    def kind(self):
        return 'Connections: ' + self.counted

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


class Commands(Connections):
    """Only one of the library's functions suffers, in one direction, on some of the connections."""

    def __init__(self, name, describe, policy, counted):
        super().__init__(name, describe, policy, counted, (2, 3), doors=[['extension']])

    def do(self, site, rng, record):
        # some are called only when something else is wrong: then the next one is tried
        for function in rng.sample(FUNCTIONS, len(FUNCTIONS)):
            policy = {'only': function, 'share': rng.choice((0.3, 1)), **self.policy(site, rng)}
            before = site.proxy.counts()['extension'][self.counted]
            happened = lambda: site.proxy.counts()['extension'][self.counted] - before
            site.proxy.treat('extension', rng.getrandbits(30), **policy)
            try:
                time.sleep(0.5 * site.lease)
                if happened():
                    time.sleep(rng.uniform(*self.leases) * site.lease)
            finally:
                site.proxy.treat('extension')
            record['proof'].update(doors=['extension'], policy=policy, happened={'extension': happened()})
            if happened():
                return


def functions():
    """Of the library, those that the extension calls."""
    sources = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..', 'src')

    def found(pattern, suffix):
        names = set()
        for path in glob.glob(os.path.join(sources, '**', '*' + suffix), recursive=True):
            with open(path) as source:
                names.update(re.findall(pattern, source.read()))
        return names
    return sorted(found(r'"(fence_\w+)"', '.c') & found(r"register(?:_keyed)?\('(fence_\w+)'", '.lua'))


FUNCTIONS = functions()

FAULTS = [
    Commands('commands_lost', 'messages that call one function of the library vanish, or the replies to them; connections stay open',
             lambda site, rng: {'lose': rng.choice(('requests', 'replies'))}, 'lost'),
    Commands('commands_delayed', 'messages that call one function of the library are held back',
             lambda site, rng: {'delay': rng.choice((0.05, 0.9, 2)) * site.timeout}, 'held'),
    Connections('writes_lost', 'what reserves and ends vanishes, all else passes: heartbeats too',
                lambda site, rng: {'only': 'fence_write', 'lose': 'requests'}, 'lost', (3, 4), doors=[['extension']]),
    Connections('some_writes_lost', 'the same on half of the connections',
                lambda site, rng: {'only': 'fence_write', 'lose': 'requests', 'share': 0.5}, 'lost', (3, 4), doors=[['extension']]),
    Connections('domains_lost', 'what reserves whole domains vanishes; all else on the same connections passes, and is answered',
                lambda site, rng: {'only': 'fence_domain_reserve', 'lose': 'requests', 'share': rng.choice((0.5, 1))}, 'lost', (3, 4),
                doors=[['extension']]),
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
