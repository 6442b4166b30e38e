#!/usr/bin/python3
"""Whether the checker catches what serves stale values. Prints TAP.

The checker must catch programs that check too little, readers that break a rule, each of the other strategies, and each defect
of lease-timeout by itself. That shows that the checker can fail.
"""

import sys

from ci import FIXED_SEED, Tap, one_run

# strategy, its defects, number of keys, faults, faults of clients, the figure that must not be zero
CAUGHT = (
    ('token-first', '', 64, 'redis_kill9_rdb', '', 'stale'),
    ('token-kept', '', 64, 'none', '', 'stale'),
    ('token-elsewhere', '', 64, 'replica_cut_off', '', 'stale'),
    ('permit-late', '', 64, 'none', 'reader_stall', 'stale'),
    ('epoch-of-permit', '', 64, 'old_primary_alive', '', 'stale'),
    ('delete', '', 64, 'none', 'reader_stall', 'stale'),
    ('delete-twice', '', 64, 'none', 'reader_stall', 'stale'),
    ('write-through', '', 64, 'none', 'writer_stall', 'stale'),
    ('notify', '', 64, 'none', '', 'stale'),
    ('version-check', '', 64, 'none', 'writer_death', 'stale'),
    ('lease-timeout', '1', 64, 'none', 'reader_stall', 'stale'),
    ('lease-timeout', '2', 64, 'none', 'slow_writer', 'stale'),
    ('lease-timeout', '3', 64, 'none', 'slow_transaction', 'stale'),
    ('lease-timeout', '4', 64, 'flushall', 'slow_transaction', 'stale'),
    ('lease-timeout', '5', 64, 'none', '', 'stale'),
    ('lease-timeout', '6', 200, 'none', '', 'complaints'),
    ('lease-timeout', '1,2,3,4,6', 64, 'flushall', 'reader_stall,slow_transaction', 'stale'),
)

# a kind of conformance_wrong.py, what it does, the figure that must not be zero, number of keys, faults
WRONG_PROGRAMS = (
    ('unchecked', 'checks nothing', 'stale', 64, 'none'),
    ('no-key', 'takes a record of any key', 'wrong', 64, 'replies_swapped'),
    ('no-nonce', 'takes the answer to any question', 'stale', 2, 'replies_repeated'),
)


def is_caught(tap, sign, **options):
    """Whether the checker catches this strategy. Its errors depend on chance and a short run may miss them, so up to four
    runs are made, each longer than the last."""
    for retry in range(4):
        result = one_run(tap, seed=FIXED_SEED + retry, seconds=4 + 4 * retry, gap=0.2, examples=1, **options)
        if result is not None and result[sign]:
            return True
    return False


def main():
    tap = Tap()
    for kind, what, sign, keys, fault in WRONG_PROGRAMS:
        tap.result(is_caught(tap, sign, program='/usr/bin/python3 test/clients/conformance_wrong.py ' + kind, keys=keys, faults=fault),
                   'a program that %s: caught' % what)
    for strategy, defects, keys, fault, clients, sign in CAUGHT:
        name = strategy + (' with defect ' + defects if defects else '')
        tap.result(is_caught(tap, sign, strategy=strategy, defects=defects, keys=keys, faults=fault, clients=clients),
                   '%s: caught' % name)
    result = one_run(tap, strategy='lease-timeout', defects='', seconds=4, seed=FIXED_SEED)
    tap.result(result is not None and not result['wrong_hits'],
               'lease-timeout without its defects and without faults: nothing stale')
    print('1..%d' % tap.number)
    return 1 if tap.failed else 0


if __name__ == '__main__':
    sys.exit(main())
