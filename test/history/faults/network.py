"""The proxy disturbs connections to Redis: those of the extension, those of readers, or both."""

import glob
import os
import re
import time

from faults.fault import Fault


class Connections(Fault):
    """policy: a function that draws a policy for the proxy. counted: the proxy's counter that shows that the fault happened."""

    options = {'proxy': True}

    fresh = False               # the policy is for connections that are made under it, so the former ones are closed

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
            if self.fresh:
                site.proxy.cut(door)
        try:
            time.sleep(rng.uniform(*self.leases) * site.lease)
        finally:
            for door in doors:
                site.proxy.treat(door)
        after = site.proxy.counts()
        record['proof'].update(doors=doors, policy=policy, happened={
            door: after[door][self.counted] - before[door][self.counted] for door in doors})


class Commands(Connections):
    """Disturbs calls of only one function of the library, in one direction, on some of the connections."""

    def __init__(self, name, describe, policy, counted):
        super().__init__(name, describe, policy, counted, (2, 3), doors=[['extension']])

    def do(self, site, rng, record):
        # The extension calls some functions only after another failure. If it does not call this one, the next one is tried.
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


class Replies(Connections):
    """Confuses a few of the replies to readers. A connection on which that has happened may go on with the reply to another request."""

    fresh = True

    def __init__(self, name, how, describe):
        super().__init__(name, describe, lambda site, rng: {
            'confuse': how, 'rate': rng.choice((0.002, 0.01, 0.05)), 'hold': rng.choice((0.1, 0.5, 2)) * site.timeout,
        }, 'confused', (2, 4), doors=[['readers']])

    def do(self, site, rng, record):
        site.tell_confused(True)
        try:
            super().do(site, rng, record)
        finally:
            site.tell_confused(False)


class Distant(Connections):
    """Readers are a round trip away from Redis, and lose their connections once a second, with requests under way."""

    def __init__(self):
        super().__init__('readers_distant', 'Redis is 2 or 10 ms away from readers, whose connections end once a second',
                         lambda site, rng: {'delay': rng.choice((0.001, 0.005))}, 'held', (4, 8), doors=[['readers']])

    def do(self, site, rng, record):
        policy, before = self.policy(site, rng), site.proxy.counts()['readers']
        site.proxy.treat('readers', rng.getrandbits(30), **policy)
        try:
            for _ in range(round(rng.uniform(*self.leases) * site.lease)):
                time.sleep(1)
                site.proxy.cut('readers')
        finally:
            site.proxy.treat('readers')
        after = site.proxy.counts()['readers']
        record['proof'].update(doors=['readers'], policy=policy, happened={
            name: after[name] - before[name] for name in ('held', 'connections')})


def functions():
    """The functions of the library that the extension calls."""
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
    Commands('commands_lost', 'calls of one function of the library vanish, or the replies to them; connections stay open',
             lambda site, rng: {'lose': rng.choice(('requests', 'replies'))}, 'lost'),
    Commands('commands_delayed', 'calls of one function of the library are delayed',
             lambda site, rng: {'delay': rng.choice((0.05, 0.9, 2)) * site.timeout}, 'held'),
    Connections('writes_lost', 'messages that make or end reservations vanish; all others pass, also heartbeats',
                lambda site, rng: {'only': 'fence_write', 'lose': 'requests'}, 'lost', (3, 4), doors=[['extension']]),
    Connections('some_writes_lost', 'the same on half of the connections',
                lambda site, rng: {'only': 'fence_write', 'lose': 'requests', 'share': 0.5}, 'lost', (3, 4), doors=[['extension']]),
    Connections('domains_lost', 'what reserves whole domains vanishes; all else on the same connections passes, and is answered',
                lambda site, rng: {'only': 'fence_domain_reserve', 'lose': 'requests', 'share': rng.choice((0.5, 1))}, 'lost', (3, 4),
                doors=[['extension']]),
    Connections('connections_cut', 'connections to Redis are cut in the middle of a message, again and again',
                lambda site, rng: {'cut': rng.choice((50, 500, 5000)), 'reset': rng.random() < 0.5}, 'cuts'),
    Connections('connections_delayed', 'every message to and from Redis is delayed',
                lambda site, rng: {'delay': rng.choice((0.01, 0.05, 0.9 * site.timeout, 2 * site.timeout))}, 'held'),
    Connections('connections_split', 'messages arrive byte by byte', lambda site, rng: {'split': True}, 'split'),
    Connections('partition', 'PostgreSQL cannot reach Redis but its connections stay open; readers can reach Redis',
                lambda site, rng: {'hole': True}, 'connections', (2, 3), doors=[['extension']]),
    Connections('refused', 'connections of the extension to Redis are closed, and new ones are refused',
                lambda site, rng: {'cut': 1, 'refuse': True}, 'cuts', (2, 3), doors=[['extension']]),
    Distant(),
    Replies('replies_swapped', 'swap', 'replies to readers are exchanged with others, of the same connection or of another reader'),
    Replies('replies_repeated', 'repeat', 'replies to readers are sent twice'),
    Replies('replies_dropped', 'drop', 'replies to readers vanish, and their connections go on'),
    Replies('replies_delayed', 'late', 'replies to readers come late, some of them after the reader has given up'),
]
