"""PostgreSQL loses commits that it had acknowledged: asynchronous commits, a lagging standby, a restored backup.

Each fault stops the former primary before another server replaces it. Each fault writes a row that must be lost and, if
possible, another one that must not be lost.
"""

import contextlib
import os
import threading
import time

import psycopg2

from faults.fault import Fault, mark, marks, new_mark, sleep, wait_for


class Loses(Fault):
    epoch = 'new'

    def after(self, site, record):
        proof = record['proof']
        there = marks(site)
        proof['lost'] = proof['to_be_lost'] not in there
        proof['kept'] = proof['to_be_kept'] in there


class AsynchronousCommits(Loses):
    name = 'async_commit_crash'
    describe = 'synchronous_commit=off, then kill -9 of all processes of PostgreSQL: the newest commits are lost'

    def do(self, site, rng, record):
        server = site.postgres
        proof = record['proof']
        proof['to_be_kept'] = new_mark(site, 'kept')
        mark(site, proof['to_be_kept'])
        begin = time.monotonic()
        site.set_system(synchronous_commit='off', wal_writer_delay='10s', wal_writer_flush_after='1GB')
        wait_for(lambda: site.value('SHOW synchronous_commit') == 'off', 'the settings')
        sleep(rng, 0.1, 0.8)
        # A PREPARE TRANSACTION of the workload may flush all WAL before it, so a thread commits marks until the crash.
        marker = threading.Thread(target=mark_until_the_end, args=(site.pg_dsn(), proof))
        marker.start()
        wait_for(lambda: 'acknowledged' in proof, 'the first mark')
        server.kill9(everything=True)
        record['lost_commits_possible'] = (begin, time.monotonic())
        marker.join()
        server.start()
        record['down'] = (record['lost_commits_possible'][1], time.monotonic())
        site.set_system(synchronous_commit=None, wal_writer_delay=None, wal_writer_flush_after=None)


def mark_until_the_end(dsn, proof):
    """Commits marks until the server dies. The last one that was acknowledged must be lost."""
    with contextlib.suppress(psycopg2.Error), contextlib.closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for n in range(1000000):
                name = '%s, lost %d' % (proof['to_be_kept'], n)
                cursor.execute('INSERT INTO fault_mark VALUES (%s)', (name,))
                proof['to_be_lost'] = name
                proof['acknowledged'] = n


class Promotion(Loses):
    name = 'standby_promotion'
    describe = 'a streaming standby that lacks the newest commits replaces the primary'

    def do(self, site, rng, record):
        proof = record['proof']
        proof['to_be_kept'], proof['to_be_lost'] = new_mark(site, 'kept'), new_mark(site, 'lost')
        mark(site, proof['to_be_kept'])
        standby = site.ensure_standby()
        proof['timeline_before'] = timeline(site)
        record['injected'] = begin = time.monotonic()
        standby.set_system(primary_conninfo='')
        wait_for(lambda: standby.value('SELECT count(*) FROM pg_stat_wal_receiver') == 0, 'the standby to be cut off')
        mark(site, proof['to_be_lost'])
        sleep(rng, 0.1, 0.8)
        stop_somehow(site.postgres, rng)
        end = time.monotonic()
        record['lost_commits_possible'] = (begin, end)
        standby.query('SELECT pg_promote(true, 60)')
        standby.set_system(primary_conninfo=None)
        site.replace_postgres(standby)
        record['down'] = (end, time.monotonic())

    def after(self, site, record):
        super().after(site, record)
        record['proof']['timeline_after'] = timeline(site)


class Restore(Loses):
    """A base backup replaces the primary, either as it was taken or recovered to a later point."""

    def __init__(self, name, describe, point_in_time):
        self.name, self.describe, self.point_in_time = name, describe, point_in_time

    def do(self, site, rng, record):
        proof = record['proof']
        proof['to_be_kept'], proof['to_be_lost'] = new_mark(site, 'kept'), new_mark(site, 'lost')
        former = site.postgres
        proof['timeline_before'] = timeline(site)
        if not self.point_in_time:
            mark(site, proof['to_be_kept'])
        restored = site.new_postgres()
        begin = time.monotonic()
        restored.copy_of(former)
        settings = {}
        if self.point_in_time:
            sleep(rng, 0.1, 0.5)
            mark(site, proof['to_be_kept'])
            begin = time.monotonic()
            settings = {'recovery_target_lsn': site.value('SELECT pg_current_wal_insert_lsn()'),
                        'recovery_target_action': 'promote',
                        'restore_command': 'cp "%s/pg_wal/%%f" "%%p"' % former.data}
            with contextlib.closing(open(os.path.join(restored.data, 'recovery.signal'), 'w')):
                pass
        record['injected'] = begin
        mark(site, proof['to_be_lost'])
        sleep(rng, 0.1, 0.8)
        stop_somehow(former, rng)
        end = time.monotonic()
        record['lost_commits_possible'] = (begin, end)
        restored.start(**settings)
        wait_for(lambda: not restored.value('SELECT pg_is_in_recovery()'), 'the end of recovery', 60)
        site.replace_postgres(restored)
        record['down'] = (end, time.monotonic())

    def after(self, site, record):
        super().after(site, record)
        record['proof']['timeline_after'] = timeline(site)


def timeline(site):
    return site.value('SELECT ltrim(left(pg_walfile_name(pg_current_wal_lsn()), 8), %s)', ('0',))


def stop_somehow(server, rng):
    """Stops the former primary in one of several ways. It must not come back."""
    how = rng.choice(('fast', 'immediate', 'kill'))
    if how == 'kill':
        server.kill9(everything=True)
    else:
        server.stop(how)


FAULTS = [
    AsynchronousCommits(),
    Promotion(),
    Restore('base_backup_restore', 'a base backup replaces the primary, on the same timeline', False),
    Restore('point_in_time_recovery', 'a base backup, recovered to a point in the past, replaces the primary', True),
]
