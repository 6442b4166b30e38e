"""The base class of all faults, which describes the record of a fault, and functions that faults share."""

import time

from servers import Timeout, wait_for

OPEN_SECONDS = 90           # each time fences flap, they stay closed longer, up to 30 s


class NotDone(Exception):
    """The fault could not be injected, for instance because there is no reader to stop. Nothing was changed."""


class Fault:
    """A kind of failure. inject() causes it once, heals it, and returns a record:

    fault                   name
    injected, healed        time.monotonic() before the first harm, and when the fault was undone and fences were OPEN again
    down                    (from, to) between which PostgreSQL or Redis is known to have been down; or None
    durable                 whether every acknowledged commit has survived, also those during the fault
    lost_commits_possible   None, or (from, to): commits acknowledged in between may be lost. A lost value may be read until
                            a lease after `to`, and never after `lost_served_until`
    lost_served_until       when the new epoch was OPEN; None if nothing can be lost
    stopped                 None, or (who, from, to): the fault itself stopped the writer with that application_name
    epoch_before, epoch_after
    proof                   observations which show that the fault has happened; test_faults.py checks them
    """

    name = ''
    describe = ''
    options = {}            # the options that the Site must have
    epoch = 'any'           # 'same', 'new' or 'any': what the fault must do to the epoch

    def kind(self):
        """The fault's kind. Faults of one kind differ only in their victim or in a parameter; a short run takes one of each kind."""
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
        """Called when fences are OPEN again: collects proof that the fault has happened."""


def sleep(rng, least, most):
    time.sleep(rng.uniform(least, most))


def wait_postgres(server, seconds=60):
    """Waits until the server accepts connections again without our help (after a crash restart)."""
    if not server.wait_ready(time.monotonic() + seconds):
        raise Timeout('PostgreSQL did not come back:\n' + server.log_tail())


def mark(site, name):
    """Commits a row that later shows whether commits of this time were lost. Does nothing if there is a row of that name."""
    site.psql('INSERT INTO fault_mark VALUES (%s) ON CONFLICT DO NOTHING', (name,))


def marks(site):
    return {name for name, in site.psql('SELECT name FROM fault_mark')}


def new_mark(site, what):
    """A name for a mark that this site has never used."""
    site.made += 1
    return '%s %d' % (what, site.made)


__all__ = ['Fault', 'NotDone', 'OPEN_SECONDS', 'Timeout', 'mark', 'marks', 'new_mark', 'sleep', 'wait_for',
           'wait_postgres']
