"""Processes that stand still for a while (SIGSTOP, SIGCONT): Redis, workers, a backend at a chosen point, a reader."""

import contextlib
import os
import signal
import threading
import time

import psycopg2

from faults.fault import Fault, NotDone, sleep, wait_for
from servers import process_state, send_signal

# Points of a transaction at which a backend of a build with TEST_HOOKS=1 can be stopped; see src/base/test_hooks.h.
POINTS = {
    'before-marker': 'every reservation is granted, the marker is not set',
    'pre-commit-done': 'between PRE_COMMIT and COMMIT',
    'before-commit-message': 'committed, and Redis is not told yet',
    'after-commit-message': 'committed, Redis is told, the marker is still set',
    'abort': 'aborted, and Redis is not told yet',
    'taking': 'it has copied what another one has to say, to take it along',
    'before-bypass': 'fences are CLOSED and the lease has passed; about to commit without them',
}

@contextlib.contextmanager
def stopped(pid):
    """The process stands still inside the block; continued whatever happens."""
    if not send_signal(pid, signal.SIGSTOP):
        raise NotDone('process %d is gone' % pid)
    try:
        wait_for(lambda: process_state(pid) in ('T', 'Z', None), 'process %d to stop' % pid)
        yield
    finally:
        send_signal(pid, signal.SIGCONT)

class Pause(Fault):
    """A process stands still for so many leases."""

    def __init__(self, name, describe, who, leases, epoch='any'):
        self.name, self.describe, self.who, self.leases, self.epoch = name, describe, who, leases, epoch

    def kind(self):
        return 'Pause: ' + self.name.split('_')[0]

    def do(self, site, rng, record):
        pid = self.who(site, rng)
        if not pid:
            raise NotDone('no such process')
        with stopped(pid):
            record['proof']['state'] = process_state(pid)
            begin = time.monotonic()
            sleep(rng, *(leases * site.lease for leases in self.leases))
            record['proof']['stood'] = time.monotonic() - begin
        record['proof']['victim'] = pid

class ClientPause(Fault):
    """Redis's own way of standing still; what was sent meanwhile is done afterwards, all at once."""

    def __init__(self, mode, describe):
        self.mode = mode
        self.name = 'client_pause_' + mode.lower()
        self.describe = describe

    def do(self, site, rng, record):
        begin = time.monotonic()
        client = site.redis.client(timeout=60)
        client.execute_command('CLIENT', 'PAUSE', int(1000 * site.lease * rng.uniform(0.2, 2.5)), self.mode)
        client.execute_command('SET', 'fault:pause', 1)
        client.execute_command('DEL', 'fault:pause')
        client.close()
        record['proof'].update(state='T', stood=time.monotonic() - begin)

def worker(title):
    return lambda site, _: next(iter(site.postgres.children('pgcache_fence ' + title)), None)

the_keeper = worker('keeper')

def a_reader(site, rng):
    return rng.choice(site.reader_pids) if site.reader_pids else None

class BackendPause(Fault):
    """One backend stands still at a point of its transaction. meanwhile: something else happens at that time."""

    def __init__(self, point, meanwhile=None, leases=(0.2, 3), epoch='any'):
        self.point = point
        self.meanwhile = meanwhile
        self.leases = leases
        # without a marker that backend holds up nobody
        self.reopens = meanwhile is redis_restart and point == 'before-marker'
        self.name = 'pause_' + point.replace('-', '_') + ('_' + meanwhile.__name__ if meanwhile else '')
        self.describe = 'a backend stands still: %s%s' % (POINTS[point], '; ' + meanwhile.__doc__ if meanwhile else '')
        self.epoch = 'new' if meanwhile is redis_restart else epoch

    def kind(self):
        return 'BackendPause: ' + (self.meanwhile.__name__ if self.meanwhile else 'alone')

    def do(self, site, rng, record):
        data = site.postgres.data
        wanted = os.path.join(data, 'fence_pause_' + self.point)
        open(wanted, 'w').close()
        helper = self.help(site)
        try:
            taken = wait_for(lambda: [name for name in os.listdir(data) if name.startswith('fence_paused_')],
                             'a backend to come by', 20)[0]
        except Exception:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(wanted)
                raise NotDone('no backend has come by %s (is it a build with TEST_HOOKS=1?)' % self.point) from None
            raise
        finally:
            if helper:
                helper.undo()
        pid = int(taken.rpartition('.')[2])
        os.unlink(os.path.join(data, taken))
        try:
            wait_for(lambda: process_state(pid) in ('T', None), 'the backend to stop')
            record['proof'].update(victim=pid, state=process_state(pid))
            begin = time.monotonic()
            name = site.psql('SELECT application_name FROM pg_stat_activity WHERE pid = %s', (pid,))
            if self.meanwhile:
                self.meanwhile(site, rng)
            if self.reopens:        # so that readers cache, in the new epoch, the row that this backend is to change
                site.wait_open(60, above=record['epoch_before'])
            sleep(rng, *(leases * site.lease for leases in self.leases))
            record['proof'].update(stood=time.monotonic() - begin, state_after=process_state(pid))
        finally:
            send_signal(pid, signal.SIGCONT)
        if name:
            record['stopped'] = (name[0][0], begin, time.monotonic())
        if helper:
            helper.finish()

    def help(self, site):
        """Points that an ordinary workload may not come by."""
        if self.point == 'abort':
            return Helper(site, 'ROLLBACK')
        if self.point == 'before-bypass':
            site.redis.pause()
            return Helper(site, 'COMMIT', site.redis.resume)
        return None

class Helper:
    """A transaction on fault_row that ends like that, in a session and thread of its own."""

    def __init__(self, site, end, undo=None):
        self.undo = undo or (lambda: None)
        self.thread = threading.Thread(target=self.run, args=(site.pg_dsn(), end), daemon=True)
        self.thread.start()

    @staticmethod
    def run(dsn, end):
        with contextlib.suppress(psycopg2.Error), contextlib.closing(psycopg2.connect(dsn)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute('BEGIN')
                cursor.execute('UPDATE fault_row SET n = n + 1 WHERE id = 1')
                cursor.execute(end)

    def finish(self):
        self.thread.join(60)
        if self.thread.is_alive():
            raise RuntimeError('the session of the fault hangs')

def redis_restart(site, rng):
    """Redis is killed and restarted at that time"""
    site.redis.kill9()
    sleep(rng, 0, 0.5)
    site.redis.start()

def keeper_pause(site, rng):
    """the keeper stands still for more than a lease at that time"""
    pid = the_keeper(site, rng)
    if pid:
        with stopped(pid):
            sleep(rng, 1.5 * site.lease, 2.5 * site.lease)

FAULTS = [
    Pause('redis_pause', 'Redis stands still for part of a lease', lambda site, _: site.redis.pid, (0.1, 0.6)),
    Pause('redis_pause_long', 'Redis stands still for two leases or more', lambda site, _: site.redis.pid, (2, 3)),
    Pause('keeper_pause', 'the keeper stands still for part of a lease', the_keeper, (0.1, 0.6)),
    Pause('keeper_pause_long', 'the keeper stands still for two leases or more', the_keeper, (2, 3)),
    Pause('courier_pause', 'the courier stands still for part of a lease', worker('courier'), (0.1, 0.6)),
    Pause('courier_pause_long', 'the courier stands still for two leases or more', worker('courier'), (2, 3)),
    Pause('patrol_pause_long', 'the patrol stands still for two leases or more', worker('patrol'), (2, 3)),
    Pause('reader_pause', 'a reader stands still', a_reader, (0.1, 2), epoch='same'),
    ClientPause('WRITE', 'CLIENT PAUSE WRITE: Redis answers to commands that only read'),
    ClientPause('ALL', 'CLIENT PAUSE ALL: Redis answers to nobody'),
    *(BackendPause(point) for point in POINTS if point != 'taking'),
    BackendPause('taking', leases=(4, 5), epoch='same'),    # longer than messages may lie before fences are closed
    *(BackendPause(point, redis_restart) for point in ('before-marker', 'pre-commit-done', 'before-commit-message')),
    *(BackendPause(point, keeper_pause) for point in ('before-marker', 'pre-commit-done')),
]
