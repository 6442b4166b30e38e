"""What all faults have in common: what a record tells, and how the end of a fault is waited for."""

import time

from servers import Timeout, wait_for

OPEN_SECONDS = 90           # fences stay closed longer each time they flap, up to 30 s


class NotDone(Exception):
    """The fault could not be brought about here (no writer came by, no reader to stop); nothing was changed."""


class Fault:
    """One way in which things go wrong. inject() does it once, heals it, and returns a record:

    fault                   name
    injected, healed        time.monotonic() before the first harm, and when fences were OPEN again and all is as before
    down                    (from, to): PostgreSQL or Redis was away in between, as far as is known; or None
    durable                 every commit that was acknowledged has survived, also those while the fault lasted
    lost_commits_possible   None, or (from, to): what was acknowledged as committed in between may be lost. A value that
                            is lost may be read until a lease after `to` and never after `lost_served_until`
    lost_served_until       when the new epoch was OPEN; None if nothing can be lost
    stopped                 None, or (who, from, to): the fault held the writer of that application_name itself in between
    epoch_before, epoch_after
    proof                   what was seen to have happened; test_faults.py checks it
    """

    name = ''
    describe = ''
    options = {}            # what the Site must be built with
    epoch = 'any'           # 'same', 'new' or 'any': what the fault must do to the epoch

    def kind(self):
        """Faults of one kind differ in their victim or their measure only: a short run takes one of each."""
        return type(self).__name__

    def inject(self, site, rng):
        before = site.epoch()
        record = {'fault': self.name, 'injected': time.monotonic(), 'healed': None, 'down': None, 'durable': True,
                  'lost_commits_possible': None, 'lost_served_until': None, 'stopped': None, 'epoch_before': before,
                  'epoch_after': None, 'proof': {}}
        self.do(site, rng, record)
        record['epoch_after'] = site.wait_open(OPEN_SECONDS, above=before if self.epoch == 'new' else -1)
        record['healed'] = time.monotonic()
        if record['lost_commits_possible']:
            record['durable'] = False
            record['lost_served_until'] = record['healed']
        self.after(site, record)
        return record

    def do(self, site, rng, record):
        raise NotImplementedError

    def after(self, site, record):
        """Looks, once fences are OPEN again, for what proves that it has happened."""


def sleep(rng, least, most):
    time.sleep(rng.uniform(least, most))


def wait_postgres(server, seconds=60):
    """Waits until it takes connections again by itself (after a crash restart)."""
    if not server.wait_ready(time.monotonic() + seconds):
        raise Timeout('PostgreSQL did not come back:\n' + server.log_tail())


def mark(site, name):
    """A row whose presence or absence later tells what was lost. Replaces one of the same name."""
    site.psql('INSERT INTO fault_mark VALUES (%s) ON CONFLICT DO NOTHING', (name,))


def marks(site):
    return {name for name, in site.psql('SELECT name FROM fault_mark')}


def new_mark(site, what):
    """A name that was never used in this site."""
    site.made += 1
    return '%s %d' % (what, site.made)


__all__ = ['Fault', 'NotDone', 'OPEN_SECONDS', 'Timeout', 'mark', 'marks', 'new_mark', 'sleep', 'wait_for',
           'wait_postgres']
