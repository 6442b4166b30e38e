"""A standby is promoted beside its old primary, which lives on. No commit is lost, because the old primary has no writers by then."""

import time

from faults.fault import Fault, sleep, wait_for
from faults.lost_commits import timeline

LOOKS = 3                   # a client that has just read the old address may still connect


class OldPrimaryAlive(Fault):
    name = 'old_primary_alive'
    describe = 'a standby is promoted; the old primary lives, and half of the readers stay connected to it'
    epoch = 'new'

    def do(self, site, rng, record):
        proof = record['proof']
        standby, former = site.ensure_standby(), site.postgres
        proof['timeline_before'] = timeline(site)
        record['injected'] = went = time.monotonic()
        site.hide_postgres()
        for _ in range(LOOKS):
            wait_for(lambda: end_sessions(former) == 0, 'the sessions on the old primary to end', pause=0.1)
            time.sleep(0.1)
        wait_for(site.standby_caught_up, 'the standby to catch up', 60)
        standby.query('SELECT pg_promote(true, 60)')
        standby.set_system(primary_conninfo=None)
        site.replace_postgres(standby, keep_old=True)
        record['down'] = (went, time.monotonic())
        proof['timeline_after'] = timeline(site)
        site.wait_open(90, above=record['epoch_before'])
        sleep(rng, 3 * site.lease, 6 * site.lease)
        proof['old_alive'] = former.value('SELECT NOT pg_is_in_recovery()')
        proof['old_state'] = former.query('SELECT state, reason FROM fence.state')[0]
        site.forget_old_postgres()


def end_sessions(server):
    """Ends the sessions of clients. Returns how many there were."""
    return server.value("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")


FAULTS = [OldPrimaryAlive()]
