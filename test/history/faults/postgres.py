"""One process of PostgreSQL ends, or all of them. No acknowledged commit is lost."""

import signal
import time

from faults.fault import Fault, NotDone, sleep, wait_for, wait_postgres
from servers import process_state, send_signal

CLIENTS = 'postgres: postgres postgres'         # title of the backends of clients


def server_start(site):
    """A text that differs after each start of the server, also after a crash restart."""
    return site.value("SELECT pg_postmaster_start_time()::text || ' ' || "
                      "(SELECT min(backend_start)::text FROM pg_stat_activity WHERE backend_type = 'checkpointer')")


class CrashRestart(Fault):
    """kill -9 of one of the server's processes. The postmaster then ends all others and recovers."""

    epoch = 'new'

    def __init__(self, name, title, describe):
        self.name, self.title, self.describe = name, title, describe

    def do(self, site, rng, record):
        proof = record['proof']
        proof['start_before'] = server_start(site)
        went = time.monotonic()
        wait_for(lambda: self.kill_one(site, rng, proof) and server_start(site) != proof['start_before'],
                 'a crash restart after kill -9')
        record['down'] = (went, time.monotonic())

    def kill_one(self, site, rng, proof):
        """Kills one such process. False if there is none: the processes of the patrol's rounds, for instance, end by themselves."""
        victims = site.postgres.children(self.title)
        if not victims:
            return False
        proof['killed'] = victim = rng.choice(victims)
        send_signal(victim, signal.SIGKILL)
        wait_for(lambda: process_state(victim) is None, 'the postmaster to notice')
        wait_postgres(site.postgres)
        return True

    def after(self, site, record):
        record['proof']['start_after'] = server_start(site)


class TerminateBackends(Fault):
    name = 'terminate_backends'
    describe = 'pg_terminate_backend on half of the clients (not on application_name "control"), several times'
    epoch = 'same'

    def do(self, site, rng, record):
        ended = 0
        for _ in range(rng.randint(3, 8)):
            ended += site.value("SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                                "backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5 "
                                "AND application_name <> 'control') AS t")
            sleep(rng, 0.02, 0.1)
        record['proof']['ended'] = ended


class TerminateWorker(Fault):
    """Terminates a background worker. The postmaster starts it again a second later, without a crash restart."""

    def __init__(self, name, title, describe):
        self.name, self.title, self.describe = name, title, describe

    def do(self, site, rng, record):
        server = site.postgres
        former = server.children(self.title)
        if not former:
            raise NotDone('no process with the title ' + self.title)
        proof = record['proof']
        proof['start_before'] = server_start(site)
        for pid in former:
            send_signal(pid, signal.SIGTERM)
        wait_for(lambda: set(server.children(self.title)) - set(former), 'another worker')
        proof['start_after'] = server_start(site)


class Restart(Fault):
    """Stops the server in the given way and starts it again."""

    def __init__(self, name, end, describe, epoch='new'):
        self.name, self.end, self.describe, self.epoch = name, end, describe, epoch

    def do(self, site, rng, record):
        server = site.postgres
        record['proof']['start_before'] = server_start(site)
        went = time.monotonic()
        self.end(server)
        sleep(rng, 0, 0.3)
        server.start()
        record['down'] = (went, time.monotonic())

    def after(self, site, record):
        record['proof']['start_after'] = server_start(site)


FAULTS = [
    CrashRestart('backend_kill9', CLIENTS, 'kill -9 of a backend: PostgreSQL crashes and recovers'),
    CrashRestart('keeper_kill9', 'pgcache_fence keeper', 'kill -9 of the keeper'),
    CrashRestart('patrol_kill9', 'pgcache_fence patrol', 'kill -9 of the patrol, or of one of its rounds'),
    CrashRestart('courier_kill9', 'pgcache_fence courier', 'kill -9 of the courier'),
    TerminateBackends(),
    TerminateWorker('keeper_terminate', 'pgcache_fence keeper', 'the keeper is terminated (SIGTERM)'),
    TerminateWorker('patrol_terminate', 'pgcache_fence patrol', 'the patrol is terminated (SIGTERM)'),
    TerminateWorker('courier_terminate', 'pgcache_fence courier', 'the courier is terminated (SIGTERM)'),
    Restart('clean_restart', lambda server: server.stop('fast'), 'fast shutdown and restart: the same epoch goes on', 'same'),
    Restart('immediate_restart', lambda server: server.stop('immediate'), 'immediate shutdown and restart'),
    Restart('postmaster_kill9', lambda server: server.kill9(), 'kill -9 of the postmaster; backends end by themselves'),
    Restart('server_kill9', lambda server: server.kill9(everything=True), 'kill -9 of all processes of PostgreSQL at once'),
]
