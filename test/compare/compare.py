#!/usr/bin/python3
"""Runs random statements on random tables in two databases that differ only in pgcache_fence.capture. Their answers, the rows
that they leave, and their messages to Redis must be the same. Prints TAP.

    compare.py [--seconds N] [--seed N] [--worlds N] [--first MODE] [--other MODE] [--directory DIR]

A world is a schema with its stream of transactions. Worlds are numbered from the seed upwards; --worlds 1 --seed N runs only
world N. If a world shows a difference, the program repeats it with parts of the stream left out until every part is needed, and
prints that.

After each step the program compares SQLSTATE and message, or the command's tag and the rows; the notices; and whether the
session waits for a lock. After each transaction it compares all rows, tombstones, floors, domains and the cached values. If
nothing failed and nothing was rolled back in the transaction, it also compares which rows were reserved and which were stored
with the commit. Reservations before an error or a rollback to a savepoint may differ, because a trigger fires earlier or later
than the executor captures the row.
"""

import argparse
import os
import random
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'history'))
sys.path.insert(0, os.path.join(HERE, '..', 'clients'))

from schema import Schema                                                       # noqa: E402
from servers import wait_for                                                    # noqa: E402
from sides import Pair, WAYS                                                    # noqa: E402
from statements import GUARD, Statements                                              # noqa: E402
from tap import Report                                                          # noqa: E402

TRANSACTIONS = 40
SHRINK_SECONDS = 120
ENDS = ('COMMIT', 'ROLLBACK')

# Errors before a row is checked, if it has a BEFORE trigger: then the executor looks at its partition first, and locks the row that it
# replaces. waits_may_differ() treats locks for which a transaction waits.
EARLIER = ('0A000: moving row to another partition during a BEFORE FOR EACH ROW trigger is not supported',
           '40001: could not serialize access due to concurrent update')
REFUSED = ('23', '42501')               # SQLSTATE of a row that violates a constraint or a policy

# Statements whose rows tell what is cached. After a transaction that failed in part, that may differ.
FROM_CACHE = ('SELECT status, version, payload FROM fence.get', 'SELECT fence_version, row_version, relation FROM fence.status')


class Abandoned(Exception):
    """The two sides differ in an allowed way, so the rest of the transaction cannot be compared."""


def may_differ(said):
    return any(text in EARLIER for text in said) and all(text in EARLIER or text.startswith(REFUSED) for text in said)


def waits_may_differ(waits, futures):
    """
    Whether the sides may differ in a wait. A row that violates something may be refused at once or after a wait. With triggers the
    wait is for a lock on the row. With capture by the executor it is for the version of the group of an earlier row; with triggers
    that wait would come only at the end of the statement.
    """
    return any(not waited and future.result()[0].startswith(REFUSED) for waited, future in zip(waits, futures))


class Difference(Exception):
    """where: the numbers of the transaction and of its step; None: the difference is not in one step."""

    def __init__(self, what, first, other, where=None):
        super().__init__(what)
        self.what, self.first, self.other, self.where = what, first, other, where

    def text(self, captures):
        if isinstance(self.first, (list, set, dict)):
            first, other = set(map(repr, items(self.first))), set(map(repr, items(self.other)))
            lines = ['  %s: %s' % (captures[0], x) for x in sorted(first - other)] + ['  %s: %s' % (captures[1], x) for x in sorted(other - first)]
            if not lines:
                lines = ['  the same in another order: %r, %r' % (self.first, self.other)]
        else:
            lines = ['  %s: %s' % (captures[0], self.first), '  %s: %s' % (captures[1], self.other)]
        return '\n'.join(['%s differs' % self.what, *lines])


def items(found):
    return found.items() if isinstance(found, dict) else found


class World:
    """ddl: the statements that make the tables. prepared: the PREPARE statements of each session. stream: the transactions."""

    verbose = False

    def __init__(self, number):
        rng = random.Random(number)
        schema = Schema(rng)
        statements = Statements(rng, schema)
        self.number, self.ddl, self.prepared = number, schema.ddl, list(statements.prepared())
        self.stream = [statements.transaction() for _ in range(TRANSACTIONS)]

    # ------------------------------------------------------------------------------------------------------------------
    # Making the world
    # ------------------------------------------------------------------------------------------------------------------

    def make(self, pair):
        for side in pair.sides:
            side.end()
            side.query('DROP SCHEMA IF EXISTS w CASCADE')
            side.begin([])
        pair.settle()
        pair.redis.call('FLUSHALL')         # otherwise fences of the previous world would be compared
        for text in self.ddl:
            answers = [side.run((0, text, None)) for side in pair.sides]
            self.tell(0, text, answers[0])
            self.same('the answer to ' + text, answers)
        for side in pair.sides:
            side.begin(self.prepared)
        self.wait_announced(pair)
        pair.settle()
        pair.asked()

    @staticmethod
    def wait_announced(pair):
        """Waits until a read of one row of each domain is answered: a domain is announced a moment after the COMMIT. Nothing of
        an empty table can be cached."""
        for side in pair.sides:
            for domain, relation, key in side.query('SELECT domain, relation::text, key::text[] FROM fence.domains'):
                asks = "SELECT 1 FROM (SELECT * FROM %s LIMIT 1) x, fence.get('%s', VARIADIC ARRAY[%s]::text[]) g WHERE g.status = 'unarmed'" % (
                    relation, domain, ', '.join('x.%s::text' % k for k in key))
                wait_for(lambda side=side, asks=asks: not side.query(asks), 'announcements')

    @staticmethod
    def same(what, answers, where=None):
        if answers[0] != answers[1]:
            raise Difference(what, answers[0], answers[1], where)

    # ------------------------------------------------------------------------------------------------------------------
    # Running the world
    # ------------------------------------------------------------------------------------------------------------------

    def run(self, pair, counts):
        """Runs all transactions. Raises the first difference."""
        self.make(pair)
        cached = pair.cached()
        self.caches_alike = True
        for number, steps in enumerate(self.stream):
            try:
                calm = self.transaction(pair, number, steps, counts)
            except Abandoned:
                calm = False
                counts['abandoned'] += 1
                self.leave(pair)
            self.same('what is stored', [side.state() for side in pair.sides], (number, None))
            pair.settle()
            asked, former, cached = pair.asked(), cached, pair.cached()
            counts['transactions'] += 1
            counts['reserved'] += len(asked[0][0]) + len(asked[0][1])
            if calm:
                self.compare_asked(asked, number)
                self.compare_cached(former, cached, asked, number)
                counts['calm'] += 1
            self.caches_alike = cached[0].keys() == cached[1].keys()
            both = cached[0].keys() & cached[1].keys()
            counts['cached'] += len(both)
            self.same('what is cached', [{f: side[f] for f in both} for side in cached], (number, None))

    @staticmethod
    def rows_asked(asked):
        """
        The rows that each side has reserved; but those that only the first has reserved are left out. The executor's way may reserve a row
        of which nothing is stored then, because ON CONFLICT DO NOTHING leaves it out, or another part of the statement has changed it.
        """
        whole = {name for _, domains, _ in asked for name in domains}
        first, other = ({r for r in rows if r.split(':')[0] not in whole} for rows, _, _ in asked)
        return first & other, other, first - other

    def compare_asked(self, asked, number):
        first, other, _ = self.rows_asked(asked)
        self.same('which domains are reserved', [domains for _, domains, _ in asked], (number, None))
        self.same('which rows are reserved', [first, other], (number, None))
        self.same('what COMMIT stores', [stored for _, _, stored in asked], (number, None))

    def compare_cached(self, former, cached, asked, number):
        """Compares the fences: if both sides had a fence, or both had none, both must have it now or both must not. Domains that
        are reserved as a whole are left out, because the sides may have reserved different numbers of their rows before that."""
        whole = {name for _, domains, _ in asked for name in domains}
        spare = self.rows_asked(asked)[2]
        comparable = [f for f in set().union(*former, *cached)
                      if (f in former[0]) == (f in former[1]) and f.split(':')[0] not in whole and f not in spare]
        self.same('which fences are there', [{f for f in comparable if f in side} for side in cached], (number, None))

    def transaction(self, pair, number, steps, counts):
        """Runs a transaction. Returns whether nothing failed in it and nothing was rolled back."""
        self.calm, waiting = True, None
        open_sessions, guarded = set(), set()
        for n, step in enumerate(steps):
            session, text, _ = step
            where = (number, n)
            if waiting is not None and session != waiting[0] and text not in ENDS:
                continue                    # another session waits for this one, so it does nothing but end
            if waiting is not None and session == waiting[0]:
                self.finish(pair, 1 - session)
                waiting = self.answer(*waiting)
            if pair.sides[0].failed(session):
                if session in guarded:
                    self.both(pair, (session, 'ROLLBACK TO guard', None))
                elif not text.startswith('ROLLBACK') and text not in ENDS:
                    continue
            guarded.discard(session)
            futures = [pair.threads.submit(side.run, step) for side in pair.sides]
            if open_sessions - {session} and self.blocked(pair, session, text, futures, where):
                waiting = (session, step, futures, where)
                counts['waits'] += 1
                self.calm = False
                continue
            self.answer(session, step, futures, where)
            counts['steps'] += 1
            if text == GUARD:
                guarded.add(session)
            if text.startswith('BEGIN'):
                open_sessions.add(session)
            elif text in ENDS:
                open_sessions.discard(session)
                if waiting is not None:
                    waiting = self.answer(*waiting)
        if waiting is not None:
            self.finish(pair, 1 - waiting[0])
            self.answer(*waiting)
        self.leave(pair)
        return self.calm

    def leave(self, pair):
        for session in (0, 1):
            self.finish(pair, session)

    @staticmethod
    def both(pair, step):
        for side in pair.sides:
            side.run(step)

    def finish(self, pair, session):
        self.both(pair, (session, 'ROLLBACK', None))

    def blocked(self, pair, session, text, futures, where):
        """Whether the step waits for a lock. It must wait on both sides or on none."""
        answers = []
        for side, future in zip(pair.sides, futures):
            wait_for(lambda: future.done() or side.is_blocked(session), 'the answer to %s, or a lock' % text, 60, 0.002)
            answers.append(not future.done())
        if answers[0] != answers[1]:
            self.finish(pair, 1 - session)
            for future in futures:
                future.result(120)
            if waits_may_differ(answers, futures):
                raise Abandoned()
        self.same('whether it waits for a lock', answers, where)
        return answers[0]

    def answer(self, session, step, futures, where):
        answers = [future.result(120) for future in futures]
        text = step[1]
        said = answers[0][0]
        self.tell(session, text, answers[0])
        if text.startswith(('ROLLBACK', 'DO ')) or said[5:7] == ': ' or said == 'ROLLBACK':
            self.calm = False
        for n, what in enumerate(('the answer', 'the rows', 'the notices')):
            found = [answer[n] for answer in answers]
            if not (may_differ(found) if n == 0 else n == 1 and not self.caches_alike and text.startswith(FROM_CACHE)):
                self.same('%s to %s' % (what, text), found, where)

    def tell(self, session, text, answer):
        if self.verbose:
            print('# %d %s\n#    %s' % (session, text, answer), flush=True)

    # ------------------------------------------------------------------------------------------------------------------
    # The shortest stream
    # ------------------------------------------------------------------------------------------------------------------

    def fails(self, pair, stream):
        """The difference that this stream leads to, or None. Also None if the world cannot be made without the parts left out."""
        kept, self.stream = self.stream, stream
        try:
            self.run(pair, dict.fromkeys(COUNTS, 0))
        except Difference as difference:
            return difference
        finally:
            self.stream = kept
        return None

    def shrink(self, pair, difference):
        """Leaves out parts of the stream that are not needed for the difference, transactions first, while there is time.
        Returns the difference of the shortest stream."""
        deadline = time.monotonic() + SHRINK_SECONDS
        if difference.where is None:
            return difference
        self.stream = self.stream[:difference.where[0] + 1]
        size = max(1, len(self.stream) // 2)
        while size and time.monotonic() < deadline:
            for begin in range(len(self.stream) - 1 - size, -1, -size):
                difference = self.try_stream(pair, self.stream[:begin] + self.stream[begin + size:], difference, deadline)
            size //= 2
        for n in range(len(self.stream) - 1, -1, -1):
            for m in range(len(self.stream[n]) - 1, -1, -1):
                if m < len(self.stream[n]):
                    shorter = self.stream[n][:m] + self.stream[n][m + 1:]
                    difference = self.try_stream(pair, self.stream[:n] + ([shorter] if shorter else []) + self.stream[n + 1:], difference, deadline)
                if n >= len(self.stream):
                    break
        return difference

    def try_stream(self, pair, stream, difference, deadline):
        if time.monotonic() > deadline or not stream:
            return difference
        found = self.fails(pair, stream)
        if found is None or found.where is None:
            return difference
        self.stream = stream
        return found

    def script(self):
        lines = [text.strip().rstrip(';') + ';' for text in self.ddl + ['-- each session'] + self.prepared]
        for number, steps in enumerate(self.stream):
            lines.append('-- transaction %d' % number)
            lines += ['/* session %d */ %s;%s' % (s, text, '\n' + data + '\\.' if data else '') for s, text, data in steps]
        return '\n'.join(lines)


COUNTS = ('transactions', 'calm', 'abandoned', 'steps', 'waits', 'reserved', 'cached')


def check_world(pair, number, counts, captures, deadline):
    world = World(number)
    try:
        world.run(pair, counts)
        for side in pair.sides:
            side.count_told()
    except Difference as difference:
        difference = world.shrink(pair, difference)
        raise AssertionError('world %d: %s\nwhere: %s\n%s' % (number, difference.text(captures), difference.where, world.script())) from difference


def check_ways(pair):
    """Checks that each side still captures rows in the way that its setting says. Capture by the executor falls back to triggers
    if the executor does something unexpected."""
    for side, capture in zip(pair.sides, pair.captures):
        told = side.told
        print('# %s: %s' % (capture, ', '.join('%d rows told by %s' % (told[way], way) for way in told)), flush=True)
        if side.way() != WAYS[capture] or not told[WAYS[capture]] or capture == 'triggers' and told['executor']:
            raise AssertionError('%s: %s, %s' % (capture, side.way(), told))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=float, default=60)
    parser.add_argument('--seed', type=int, default=None)
    parser.add_argument('--worlds', type=int, default=0, help='number of worlds; default: until the time is over')
    parser.add_argument('--first', choices=WAYS, default='auto')
    parser.add_argument('--other', choices=WAYS, default='triggers')
    parser.add_argument('--verbose', action='store_true', help='print every step and its answer')
    parser.add_argument('--directory', default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10 ** 6)
    print('# seed %d' % seed, flush=True)
    World.verbose = options.verbose
    captures = (options.first, options.other)
    pair, report, counts = Pair(options.directory or tempfile.mkdtemp(), captures), Report(), dict.fromkeys(COUNTS, 0)
    begun = time.monotonic()
    try:
        pair.start()
        number = seed
        while (options.worlds and number < seed + options.worlds) or (not options.worlds and time.monotonic() < begun + options.seconds):
            report.check('world %d' % number, lambda: check_world(pair, number, counts, captures, begun + options.seconds))
            number += 1
        print('# ' + ', '.join('%s %d' % item for item in counts.items()), flush=True)
        report.check('both ways were gone', lambda: check_ways(pair))
    finally:
        pair.stop()
    sys.exit(report.finish())


if __name__ == '__main__':
    main()
