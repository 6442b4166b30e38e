#!/usr/bin/python3
"""Calls every function of schema fence and of the library in Redis with valid, nearly valid and senseless arguments. Several
sessions do so at once, while they also write and alter fenced tables. Prints TAP.

    fuzz.py [--seconds N] [--seed N] [--directory DIR]

After each round there must be no crash, no internal error, no call of over two seconds, no reservation left and no stale hit;
every session must answer and the fences must be open. At the end nothing may have grown. The program prints its seed. The
same seed makes the same choices, session by session and round by round. But the answers of earlier calls, and how the sessions
disturb each other, differ from run to run, so a report contains the whole call.
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'history'))
sys.path.insert(0, os.path.join(HERE, '..', 'clients'))
sys.path.insert(0, os.path.join(HERE, '..', 'lib'))

from tap import Report                                                          # noqa: E402
import watches                                                                  # noqa: E402
import world                                                                    # noqa: E402
from sessions import RedisSession, SqlSession                                   # noqa: E402

STEPS = 60              # number of steps of a session in a round
ROUND_SECONDS = 90      # a session that needs longer for its steps is stuck

WHAT = {'crash': 'no crash: both servers run, no PANIC, no failed assertion, no worker has failed',
        'internal error': 'no SQLSTATE of class XX, in sessions or workers',
        'error in the library': 'the library in Redis raises no errors but its own',
        'slow call': 'no call takes more than %d s while the machine is not overloaded' % watches.SLOW_SECONDS,
        'growth': 'nothing has grown: memory of workers, sessions, Redis and its functions, keys, workers',
        'session': 'every session answers after each round, and no connection is lost',
        'not settled': 'no reservation and no effect is left, and the fences are open again',
        'stale': 'no hit is stale, during rounds and after them'}


def make_sessions(place, watch):
    return [SqlSession(place, watch, 'superuser', 'postgres', stays=True),
            SqlSession(place, watch, 'owner', 'fz_owner', tables_owner=True),
            SqlSession(place, watch, 'owner 2', 'fz_owner'), SqlSession(place, watch, 'writer', 'fz_writer'),
            SqlSession(place, watch, 'nobody', 'fz_nobody'), RedisSession(place, watch, 'extension', 'pg'),
            RedisSession(place, watch, 'redis reader', 'reader'), RedisSession(place, watch, 'redis looker', 'looker')]


def run_round(number, sessions, watch):
    watch.round_over = threading.Event()
    readers = [threading.Thread(target=watch.reader, args=(10 * number + n,), daemon=True) for n in range(4)]
    threads = [session.begin_round(number, STEPS) for session in sessions]
    for reader in readers:
        reader.start()
    deadline = time.monotonic() + ROUND_SECONDS
    for session, thread in zip(sessions, threads):
        thread.join(max(0.1, deadline - time.monotonic()))
        if thread.is_alive():
            watch.defect('session', 'did not come to its end: ' + session.where())
    watch.round_over.set()
    for reader in readers:
        reader.join(30)
    return not any(thread.is_alive() for thread in threads)


def fuzz(place, watch, seconds):
    """Runs rounds until the time is over. Returns the number of rounds."""
    sessions = watch.sessions = make_sessions(place, watch)
    begun, number, before = time.monotonic(), 0, None
    with place.client(timeout=60) as client:
        while not watch.over():
            number += 1
            print('# round %d, after %d s and %d calls' % (number, time.monotonic() - begun, watch.calls), flush=True)
            if not run_round(number, sessions, watch) or not watch.after_round():
                break
            if before is None and time.monotonic() - begun > seconds / 3:
                before = watch.settled_size(client, sessions[:1])
        else:
            after = watch.settled_size(client, sessions[:1], before)
            watch.workers_come_back()
            for what in sorted(after):
                print('# MB: %s: %.1f, then %.1f' % (what, (before or after).get(what, 0), after[what]))
    watch.ended.set()
    return number


def none(found):
    if found:
        raise AssertionError('%d, the first: %s' % (len(found), found[0]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=float, default=100)
    parser.add_argument('--seed', type=int, default=None)
    parser.add_argument('--directory', default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10 ** 6)
    print('# seed %d' % seed, flush=True)
    # else malloc keeps the memory of one argument of 30 MB for ever, which would count as growth
    os.environ.update(MALLOC_MMAP_THRESHOLD_='131072', MALLOC_TRIM_THRESHOLD_='131072')
    place = world.World(arguments.directory or tempfile.mkdtemp(), seed)
    report = Report()
    try:
        place.start()
        watch = watches.Watch(place, time.monotonic() + arguments.seconds)
        watch.start()
        rounds = fuzz(place, watch, arguments.seconds)
        print('# %d rounds, %d calls; %d fences compared, %d of them hits; %d reads meanwhile, %d of them hits, '
              '%d filled' % (rounds, watch.calls, watch.compared, watch.hits, watch.read, watch.read_hits, watch.filled))
        for kind in watches.KINDS:
            report.check(WHAT[kind], lambda kind=kind: none(watch.found[kind]))
        report.check('it has compared hits', lambda: none([] if watch.hits and watch.read_hits else ['no hit was seen']))
    finally:
        place.stop()
    sys.exit(report.finish())


if __name__ == '__main__':
    main()
