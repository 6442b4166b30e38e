#!/usr/bin/python3
"""Tests the checker with histories written by hand. It must pass good ones, and must name exactly the wrong read in bad ones.

Prints TAP. Times are small numbers here. A value is the number of its transaction * 1000, plus its key.
"""

import sys

from checker import INFINITY, Checker, History, Story, Txn, effects

tests = []


def test(function):
    tests.append(function)
    return function


class Script:
    """Builds a history. Each write is a transaction of its own unless the test says otherwise."""

    def __init__(self, losses=(), lease=0):
        self.history = History(losses, lease)
        self.log = []
        self.groups = 0
        self.write(1, 1, None, None, txn=0, val=1)

    def write(self, key, version, sent, end, txn=None, outcome='c', logged=True, claimed=True, done=0, val=None,
              deleted=False):
        """Adds a transaction whose COMMIT was sent and acknowledged at these times (end None: outcome unknown). Returns the value."""
        number = len(self.history.txns) if txn is None else txn
        if number not in self.history.txns:
            self.history.txns[number] = Txn(number, 0, outcome if end is not None else '?', sent - 1, sent,
                                            end if end is not None else INFINITY, done or (end or 0))
        val = 0 if deleted else number * 1000 + key if val is None else val
        if logged:
            self.log.append((len(self.log) + 1, key, version, val, deleted, number))
        if claimed and end is not None:
            self.history.claimed.append((number, key, version, val, 'd' if deleted else 'u'))
        return val

    def read(self, key, version, val, start, end, kind='h', group=0, row=0):
        self.history.reads.append((9, kind, key, group, version, val, start, 0 if kind == 'h' else start, end, row))

    def group(self, start, end, *rows):
        self.groups += 1
        self.history.groups[self.groups] = 'h'
        for key, version, val in rows:
            self.read(key, version, val, start, end, group=self.groups)

    def snapshot(self):
        """Saves the present content of item_log, as a run does after a loss."""
        self.history.logs.append(list(self.log))

    def found(self):
        """kind of violation -> number of violations."""
        self.snapshot()
        checker = Checker(self.history).run()
        for violation in checker.violations:
            Story(checker, violation, []).tell()
        return {kind: number for kind, number in checker.counts.items()
                if kind not in ('reads', 'hits', 'groups', 'lasting', 'lost_writes') and number}


def same(got, wanted):
    if got != wanted:
        raise AssertionError('found %s, wanted %s' % (got, wanted))


@test
def hits_of_the_newest_version():
    s = Script()
    s.read(1, 1, 1, 10, 11)
    a = s.write(1, 2, 20, 22)
    s.read(1, 2, a, 30, 31)
    same(s.found(), {})


@test
def old_and_new_may_both_be_read_while_a_commit_is_under_way():
    s = Script()
    a = s.write(1, 2, 20, 30)
    s.read(1, 1, 1, 21, 22)
    s.read(1, 2, a, 23, 24)
    s.read(1, 1, 1, 19, 23)
    same(s.found(), {})


@test
def a_read_that_began_before_the_acknowledgement_may_be_old():
    s = Script()
    s.write(1, 2, 20, 30)
    s.read(1, 1, 1, 30, 40)
    same(s.found(), {})


@test
def stale_after_the_acknowledgement():
    s = Script()
    s.write(1, 2, 20, 30)
    s.read(1, 1, 1, 31, 40)
    same(s.found(), {'stale': 1})


@test
def no_row_may_be_found_while_there_is_none():
    s = Script()
    s.write(1, 2, 20, 30, deleted=True)
    s.write(1, 3, 50, 60)
    for start, end in ((19, 20), (25, 28), (40, 45), (59, 70)):
        s.read(1, -1, -1, start, end)
    s.read(2, -1, -1, 10, 15)
    s.write(2, 1, 18, 22)
    s.read(2, -1, -1, 21, 30)
    same(s.found(), {})


@test
def no_row_was_found_and_there_was_one():
    s = Script()
    s.write(1, 2, 20, 30, deleted=True)
    s.write(1, 3, 50, 60)
    s.write(1, 4, 80, 90)
    for start, end in ((10, 19), (61, 70), (95, 99)):
        s.read(1, -1, -1, start, end)
    s.read(1, -1, -1, 61, 70, kind='s')
    s.read(1, -1, -1, 61, 70, kind='p')
    same(s.found(), {'stale': 4})


@test
def stale_because_another_reader_has_seen_the_new_version():
    s = Script()
    a = s.write(1, 2, 20, 90)
    s.read(1, 2, a, 21, 25)
    s.read(1, 1, 1, 26, 40)
    same(s.found(), {'stale': 1})


@test
def stale_because_postgresql_showed_the_new_version():
    s = Script()
    a = s.write(1, 2, 20, 90)
    s.read(1, 2, a, 21, 25, kind='p')
    s.read(1, 1, 1, 26, 40)
    same(s.found(), {'stale': 1})


@test
def stale_because_a_still_newer_version_is_there():
    s = Script()
    s.write(1, 2, 20, None)
    s.write(1, 3, 22, 30)
    s.read(1, 1, 1, 31, 40)
    same(s.found(), {'stale': 1})


@test
def unknown_outcome_that_nobody_has_seen_yet():
    s = Script()
    s.write(1, 2, 20, None)
    s.read(1, 1, 1, 500, 501)
    same(s.found(), {})


@test
def unknown_outcome_that_was_seen():
    s = Script()
    a = s.write(1, 2, 20, None)
    s.read(1, 2, a, 50, 51)
    s.read(1, 1, 1, 60, 61)
    same(s.found(), {'stale': 1})


@test
def unknown_outcome_that_did_not_take_effect():
    s = Script()
    a = s.write(1, 2, 20, None, logged=False)
    s.read(1, 1, 1, 60, 61)
    same(s.found(), {})
    s.history.logs.clear()
    s.read(1, 2, a, 70, 71)
    same(s.found(), {'phantom': 1})


@test
def a_version_before_its_commit_was_sent():
    s = Script()
    a = s.write(1, 2, 20, 30)
    s.read(1, 2, a, 10, 19)
    same(s.found(), {'early': 1})


@test
def a_version_that_was_rolled_back():
    s = Script()
    a = s.write(1, 2, 20, 30, outcome='a', logged=False, claimed=False)
    s.read(1, 2, a, 40, 41)
    same(s.found(), {'phantom': 1})


@test
def the_first_of_two_changes_in_one_transaction():
    s = Script()
    s.write(1, 2, 20, 30, txn=7, val=7001)
    s.write(1, 3, 20, 30, txn=7, val=7002)
    s.read(1, 3, 7002, 40, 41)
    same(s.found(), {})
    s.history.logs.clear()
    s.read(1, 2, 7001, 29, 41)
    same(s.found(), {'phantom': 1})


@test
def content_of_another_version():
    s = Script()
    a = s.write(1, 2, 20, 30)
    s.read(1, 1, a, 25, 26)
    same(s.found(), {'wrong': 1})


@test
def content_of_another_key():
    s = Script()
    a = s.write(2, 2, 20, 30)
    s.read(1, 2, a, 40, 41)
    same(s.found(), {'wrong': 1})


@test
def a_deleted_row():
    s = Script()
    s.write(1, 2, 20, 30, deleted=True)
    s.read(1, 1, 1, 29, 35)
    s.read(1, -1, -1, 40, 41, kind='m')
    same(s.found(), {})
    s.history.logs.clear()
    s.read(1, 1, 1, 40, 41)
    same(s.found(), {'stale': 1})


@test
def a_row_that_came_back():
    s = Script()
    s.write(1, 2, 20, 30, deleted=True)
    a = s.write(1, 3, 40, 45)
    s.read(1, 3, a, 50, 51)
    same(s.found(), {})
    s.history.logs.clear()
    s.read(1, 1, 1, 50, 51)
    same(s.found(), {'stale': 1})


@test
def versions_that_do_not_rise():
    s = Script()
    s.write(1, 2, 20, 30)
    s.write(1, 2, 40, 50)
    same(s.found(), {'order': 1})


@test
def versions_above_doubles():
    s = Script()
    a = s.write(1, 2 ** 53, 20, 30)
    s.write(1, 2 ** 53 + 1, 40, 50)
    s.read(1, 2 ** 53, a, 60, 61)
    same(s.found(), {'stale': 1})


@test
def one_snapshot():
    s = Script()
    a = s.write(2, 1, 5, 6)
    b = s.write(1, 2, 20, 30)
    s.group(25, 26, (1, 2, b), (2, 1, a))
    s.group(25, 26, (1, 1, 1), (2, 1, a))
    s.group(27, 28, (1, 2, b), (2, 1, a))
    same(s.found(), {})


@test
def no_common_instant():
    s = Script()
    a = s.write(2, 1, 5, 6)
    s.write(2, 2, 20, 25)
    b = s.write(1, 2, 30, 35)
    s.group(22, 40, (1, 2, b), (2, 1, a))       # each read is right by itself, but key 2 had changed before key 1 did
    same(s.found(), {'torn': 1})


@test
def half_a_transaction():
    s = Script()
    a = s.write(2, 1, 5, 6)
    b = s.write(1, 2, 20, 40, txn=5)
    s.write(2, 2, 20, 40, txn=5)
    s.group(21, 30, (1, 2, b), (2, 1, a))
    same(s.found(), {'torn': 1})


@test
def half_a_transaction_that_is_older_than_what_was_read():
    s = Script()
    a = s.write(2, 1, 5, 6)
    s.write(1, 2, 20, 40, txn=5)
    s.write(2, 2, 20, 40, txn=5)
    b = s.write(1, 3, 21, 40)
    s.group(22, 30, (1, 3, b), (2, 1, a))
    same(s.found(), {'torn': 1})


@test
def what_one_write_of_a_transaction_proves_of_the_other():
    s = Script()
    a = s.write(2, 1, 5, 6)
    b = s.write(1, 2, 20, 90, txn=5)
    s.write(2, 2, 20, 90, txn=5)
    s.read(1, 2, b, 21, 25)
    s.read(2, 1, a, 30, 31)
    same(s.found(), {'stale': 1})


@test
def an_acknowledged_write_that_is_gone():
    s = Script()
    s.write(1, 2, 20, 30, logged=False)
    same(s.found(), {'vanished': 1})


@test
def a_write_lost_in_a_crash():
    s = Script(losses=[100], lease=10)
    a = s.write(1, 2, 20, 30, logged=False)
    s.read(1, 2, a, 90, 91)
    s.read(1, 2, a, 105, 106)               # allowed until a lease after the loss
    s.read(1, 1, 1, 150, 151)
    s.snapshot()
    b = s.write(1, 2, 160, 165)
    s.read(1, 2, b, 170, 171)
    same(s.found(), {})


@test
def a_lost_write_after_the_lease():
    s = Script(losses=[100], lease=10)
    a = s.write(1, 2, 20, 30, logged=False)
    s.snapshot()
    s.read(1, 2, a, 111, 112)
    same(s.found(), {'lost': 1})


@test
def stale_before_the_crash_that_lost_the_newer_version():
    s = Script(losses=[100], lease=10)
    s.write(1, 2, 20, 30, logged=False)
    s.snapshot()
    s.read(1, 1, 1, 40, 41)
    same(s.found(), {'stale': 1})


@test
def stale_after_a_crash():
    s = Script(losses=[100], lease=10)
    s.snapshot()
    s.write(1, 2, 120, 130)
    s.read(1, 1, 1, 140, 141)
    same(s.found(), {'stale': 1})


@test
def a_write_that_survived_one_crash_and_not_the_next():
    s = Script(losses=[100, 200], lease=10)
    a = s.write(1, 2, 20, 30)
    s.snapshot()
    s.read(1, 2, a, 150, 151)
    s.log = s.log[:1]
    s.snapshot()
    s.read(1, 1, 1, 220, 221)
    same(s.found(), {})
    s.history.logs.pop()
    s.read(1, 2, a, 230, 231)
    same(s.found(), {'lost': 1})


@test
def a_snapshot_of_what_was_lost_later():
    s = Script(losses=[100], lease=10)
    a = s.write(2, 1, 5, 6)
    b = s.write(1, 2, 20, 21, logged=False)
    s.write(1, 3, 40, 41, txn=7, logged=False)
    s.write(2, 2, 40, 41, txn=7, logged=False)
    s.snapshot()
    s.group(30, 31, (1, 2, b), (2, 1, a))
    same(s.found(), {})
    s.history.logs.pop()
    s.group(50, 51, (1, 3, 7001), (2, 1, a))
    same(s.found(), {'torn': 1, 'stale': 1})


@test
def an_unknown_write_that_a_crash_took():
    s = Script(losses=[100], lease=10)
    a = s.write(1, 2, 20, None, logged=False)
    s.snapshot()
    s.read(1, 2, a, 90, 91)
    same(s.found(), {})
    s.history.logs.pop()
    s.read(1, 2, a, 120, 121)
    same(s.found(), {'phantom': 1})


@test
def the_row_of_another_key():
    s = Script()
    a = s.write(1, 2, 20, 22)
    b = s.write(2, 1, 20, 22)
    s.read(1, 2, a, 30, 31, row=1)
    s.read(2, 1, b, 30, 31, row=2)
    same(s.found(), {})
    s.read(1, 1, b, 30, 31, row=2)
    s.read(1, 2, a, 30, 31, row=2)              # the version and the content would do
    s.read(1, 9, 999999, 30, 31, row=2)         # nobody knows the content
    s.read(1, 1, b, 30, 31, kind='s', row=2)
    same(s.found(), {'wrong': 4})


@test
def a_reader_of_an_old_primary():
    s = Script()
    a = s.write(1, 2, 20, 30)
    s.read(1, 1, 1, 40, 41, kind='o')
    s.read(1, 1, 1, 40, 41, kind='h')
    s.read(1, 2, a, 40, 41, kind='h')
    same(s.found(), {'stale': 1})


@test
def a_wrong_answer_of_postgresql():
    s = Script()
    s.write(1, 2, 20, 30)
    s.read(1, 1, 1, 40, 41, kind='m')
    same(s.found(), {'postgres': 1})


@test
def a_wait_counts_but_for_the_time_that_the_fault_held_the_writer():
    s = Script()
    for worker, end in ((1, 5), (2, 8)):
        number = 10 + worker
        s.history.txns[number] = Txn(number, worker, 'c', 0, 10**9, end * 10**9, 0)
    fault = {'name': 'pause', 'injected': 10**9, 'stopped': ('history-2', 2 * 10**9, 7 * 10**9)}
    same(effects(s.history, [fault], 9 * 10**9)[0]['wait'], 4)
    fault['stopped'] = None
    same(effects(s.history, [fault], 9 * 10**9)[0]['wait'], 7)


def main():
    print('1..%d' % len(tests))
    bad = 0
    for number, function in enumerate(tests, 1):
        name = function.__name__.replace('_', ' ')
        try:
            function()
            print('ok %d - %s' % (number, name))
        except Exception as error:              # an error fails this test only
            bad += 1
            print('not ok %d - %s\n# %s: %s' % (number, name, type(error).__name__, error))
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
