#!/usr/bin/python3
"""Judges a history: whether every hit returned the newest version that was committed at some instant of the read.

    checker.py DIRECTORY [--examples N]

The directory holds the files that run.py writes: run.json, the workers' histories (history.h), and a dump of item_log
after each fault that may lose commits, and one from the end. The exit status is 0 if nothing is wrong.

PostgreSQL orders the versions of a key, so the checker need not search for an order. Each key is a register whose values
follow each other in a known chain. A write takes effect at some instant that is not before the client sent its COMMIT
(`earliest`). The instant is also not after `latest`: when this write or a later version was acknowledged, or when a read
that returned one of them ended, whichever came first. A hit [start, end] of version v with the successor n is wrong if

    stale     n.latest < start      the newer version was certainly committed before the read began
    early     v.earliest > end      no transaction had committed v when the read ended
    phantom   v was never committed
    wrong     the answer names another key's row, or key, version and content do not belong together
    lost      PostgreSQL lost v in a crash, a promotion or a restore, and the leases of that time had ended

A hit that says "no row" is also `stale` if the key had a row all the time. The checker judges reads from PostgreSQL in
the same way, but counts their errors as `postgres`: the test setup is wrong then, not the cache.

No other contradiction is possible between writes and reads of one register with ordered values. If the client does not
know whether a transaction committed, item_log tells: a trigger writes it in the same transaction. An acknowledged write
that is not in item_log was lost. That is an error (`vanished`) unless a fault that may lose commits came after it.

If a reader read several keys as one snapshot, all these versions must have been current at one instant. If a transaction
wrote two of the keys, the reader must see both writes or neither. Otherwise the snapshot is `torn`.
"""

import argparse
import collections
import glob
import json
import os
import struct
import sys

RECORD = struct.Struct('<BBBBii4xqqqqqq')
INFINITY = 1 << 62
VAL_PER_TXN = 1000
NO_ROW = -1                 # stands for version and content where a key has no row
ANSWERS = ('h', 's')        # kinds of reads that the cache may have answered; 's': an SQL function that does not say so
READ_KINDS = ('stale', 'early', 'phantom', 'wrong', 'lost')     # violations by a single read
KINDS = READ_KINDS + ('torn', 'vanished', 'order', 'postgres')

Read = collections.namedtuple('Read', 'worker kind key group version val start middle end row')


class Write:
    """One version of one key. deleted: this write removed the row."""
    __slots__ = ('key', 'version', 'val', 'deleted', 'txn', 'seq', 'era', 'lost_at', 'earliest', 'latest')

    def __init__(self, key, version, val, deleted, txn, seq):
        self.key, self.version, self.val, self.deleted, self.txn, self.seq = key, version, val, deleted, txn, seq
        self.era, self.lost_at, self.earliest, self.latest = 0, INFINITY, -INFINITY, INFINITY

    def place(self):
        """The sort key of this write among the writes of its key. A lost write has seq INFINITY, so it sorts last in its era."""
        return self.era, self.seq, self.version


class Txn:
    """outcome is what the writer saw: c (committed), a (failed) or ? (unknown). done is when the writer had finished all work
    that its strategy does after COMMIT; 0: never."""
    __slots__ = ('id', 'worker', 'outcome', 'start', 'sent', 'end', 'done')

    def __init__(self, number, worker, outcome, start, sent, end, done):
        self.id, self.worker, self.outcome = number, worker, outcome
        self.start, self.sent, self.end, self.done = start, sent, end, done


BEFORE_ALL = Txn(0, 0, 'c', -INFINITY, -INFINITY, -INFINITY, -INFINITY)


class Violation:
    def __init__(self, kind, text, read=None, write=None, newer=None, members=()):
        self.kind, self.text, self.read, self.write, self.newer, self.members = kind, text, read, write, newer, members


class History:
    """What happened in a run. losses: times (ns) between the end of a primary and the start of its successor. lease: ns."""

    def __init__(self, losses=(), lease=0):
        self.txns = {0: BEFORE_ALL}
        self.reads = []             # flat, in the order of Read. row: the key that the answer itself names, 0 if it names none
        self.groups = {}            # number -> kind
        self.claimed = []           # (txn, key, version, val, kind) as the writers saw them
        self.written = 0            # hits on a value that the writer's commit put into the cache
        self.absent = 0             # answers that there is no row
        self.ways = collections.Counter()       # (how the reader asked the cache, how the cache answered)
        self.prepared = collections.Counter()   # outcome -> two-phase transactions; outlived: another session committed them
        self.logs = []              # item_log after each loss, and at the end: lists of rows
        self.losses = list(losses)
        self.lease = lease

    def add_file(self, path):
        with open(path, 'rb') as file:
            data = file.read()
        size = len(data) - len(data) % RECORD.size      # a worker that was killed leaves half a record
        reads, claimed = self.reads, self.claimed
        for kind, how, way, worker, key, row, group, version, val, start, middle, end in RECORD.iter_unpack(data[:size]):
            if kind == 82:          # R
                if how == 119:      # w: a hit on a written value; it is judged as any other hit
                    how = 104
                    self.written += 1
                if way:
                    self.ways[chr(way), chr(how)] += 1
                self.absent += version == NO_ROW and how == 104
                reads.append((worker, chr(how), key, group, version, val, start, middle, end, row))
            elif kind == 87:        # W
                claimed.append((group, key, version, val, chr(how)))
            elif kind == 84:        # T
                self.txns[group] = Txn(group, worker, chr(how), start, middle, end, version)
            elif kind == 80:        # P
                self.prepared[chr(how)] += 1
                self.prepared['outlived'] += chr(how) == 'c' and version > 0
            else:
                self.groups[group] = chr(how)

    def era_of(self, time):
        era = 0
        for loss in self.losses:
            era += time > loss
        return era


class Checker:
    def __init__(self, history):
        self.history = history
        self.violations = []
        self.counts = collections.Counter()
        self.by_val = {}
        self.chains = []            # era -> key -> list of Write
        self.of_txn = collections.defaultdict(dict)     # txn -> key -> Write
        self.notes = collections.Counter()

    def blame(self, kind, text, **what):
        self.counts[kind] += 1
        if self.counts[kind] <= 1000:
            self.violations.append(Violation(kind, text, **what))

    # ------------------------------------------------------------------------------------------------------------------
    # Writes
    # ------------------------------------------------------------------------------------------------------------------

    def collect_writes(self):
        """Collects the committed writes: those in the logs, and acknowledged ones that no log contains any more."""
        history, writes = self.history, {}
        for log in history.logs:
            for seq, key, version, val, deleted, txn in log:
                identity = (txn, key, version, val)
                if identity not in writes:
                    writes[identity] = Write(key, version, val, deleted, txn, seq)
        present = [{(row[5], row[1], row[2], row[3]) for row in log} for log in history.logs]
        for txn, key, version, val, kind in history.claimed:
            if history.txns[txn].outcome == 'c' and (txn, key, version, val) not in writes:
                writes[txn, key, version, val] = Write(key, version, val, kind == 'd', txn, INFINITY)
        for identity, write in writes.items():
            self.settle(write, identity, present)
        self.writes = list(writes.values())

    def settle(self, write, identity, present):
        """Sets the bounds of when the write took effect, and when PostgreSQL lost it, if it did."""
        txn = self.history.txns.get(write.txn)
        if txn is None:             # the writer was killed before it wrote its record
            self.notes['committed transactions of which no writer knows'] += 1
            txn = Txn(write.txn, 0, '?', -INFINITY, -INFINITY, INFINITY, 0)
            self.history.txns[write.txn] = txn
        elif txn.outcome == 'a':
            self.notes['transactions that were told to have failed and are committed'] += 1
        write.earliest = txn.sent
        if txn.outcome == 'c':
            write.latest = txn.end
        write.era = self.history.era_of(txn.sent)
        for era in range(write.era, len(self.history.losses)):
            if identity not in present[era]:
                write.lost_at = self.history.losses[era]
                self.counts['lost_writes'] += 1
                return
        if identity not in present[-1]:
            self.blame('vanished', 'an acknowledged write is not in PostgreSQL', write=write)

    def build_chains(self):
        """Collects, for each era, the versions of each key that a reader could see in it, in order."""
        for era in range(len(self.history.losses) + 1):
            gone = self.history.losses[era - 1] if era else -INFINITY
            chains = collections.defaultdict(list)
            for write in self.writes:
                if write.era <= era and write.lost_at > gone:
                    chains[write.key].append(write)
            for chain in chains.values():
                chain.sort(key=Write.place)
            self.chains.append(chains)
        for write in self.writes:
            self.of_txn[write.txn][write.key] = write      # prune() has left one write per transaction and key
            if write.val > 0:
                self.by_val[write.val] = write

    def prune(self):
        """If a transaction changes a key more than once, readers can see only its last version. Moves the others to inner."""
        last = {}
        for write in self.writes:
            at = last.get((write.txn, write.key))
            if at is None or write.place() > at.place():
                last[write.txn, write.key] = write
        self.inner = {write.val: write for write in self.writes if last[write.txn, write.key] is not write}
        self.writes = list(last.values())

    def check_order(self):
        """Checks that the versions of a key rise in the order in which PostgreSQL committed them."""
        for chain in self.chains[-1].values():
            for one, next_one in zip(chain, chain[1:]):
                if next_one.version <= one.version and next_one.era == one.era:
                    self.blame('order', 'a later write has no higher version', write=one, newer=next_one)

    def use_evidence(self):
        """Narrows the bounds: a reader that returned a version proves that it was committed by then."""
        by_val = self.by_val
        for read in self.history.reads:
            write = by_val.get(read[5])
            if write is not None and read[8] < write.latest:
                write.latest = read[8]
        for txn, writes in self.of_txn.items():         # all writes of a transaction take effect at the same instant
            if len(writes) > 1:
                latest = min(w.latest for w in writes.values())
                for write in writes.values():
                    write.latest = latest
        for chains in self.chains:
            for chain in chains.values():
                latest = INFINITY
                for write in reversed(chain):
                    latest = write.latest = min(write.latest, latest)
                earliest = -INFINITY
                for write in chain:
                    earliest = write.earliest = max(write.earliest, earliest)

    # ------------------------------------------------------------------------------------------------------------------
    # Reads
    # ------------------------------------------------------------------------------------------------------------------

    def successors(self):
        """era -> val -> the next write of the same key, or None."""
        result = []
        for chains in self.chains:
            follows = {}
            for chain in chains.values():
                for n, write in enumerate(chain):
                    follows[write.val] = chain[n + 1] if n + 1 < len(chain) else None
                    if write.deleted:
                        follows.pop(write.val, None)
            result.append(follows)
        return result

    def check_reads(self):
        self.follows = self.successors()
        one_era = len(self.chains) == 1
        by_val, follows = self.by_val, self.follows[0]
        # val -> (key, version, earliest, latest of the successor). Without losses almost all reads pass this quick test;
        # judge() gets the rest.
        quick = {}
        if one_era:
            for val, write in by_val.items():
                newer = follows.get(val)
                quick[val] = (write.key, write.version, write.earliest, newer.latest if newer else INFINITY)
        reads = hits = 0
        for read in self.history.reads:
            kind = read[1]
            if kind in 'no':        # nothing was read, or perhaps from an old primary
                continue
            reads += 1
            known = quick.get(read[5])
            if kind == 'h':
                hits += 1
            if known is not None and known[0] == read[2] and known[1] == read[4] and known[2] <= read[8] \
                    and known[3] >= read[6] and read[9] in (0, read[2]):
                continue
            if kind not in ANSWERS and read[4] == NO_ROW:
                continue
            self.judge(Read(*read))
        self.counts['reads'], self.counts['hits'] = reads, hits

    def judge(self, read):
        reasons = None
        for era in {self.history.era_of(read.start), self.history.era_of(read.end)}:
            reason = self.reason(read, era)
            if reason is None:
                return
            reasons = reasons or reason
        kind, text, write, newer = reasons
        if read.kind not in ANSWERS:    # PostgreSQL itself answered, so the error is in the test setup
            kind, text = 'postgres', 'a read of PostgreSQL: ' + text
        elif kind == 'stale':
            done = self.history.txns[newer.txn].done
            self.counts['lasting'] += done == 0 or read.start > done
        self.blame(kind, text, read=read, write=write, newer=newer)

    def reason(self, read, era):
        """(kind, text, write, newer write) if this read is wrong in this era, else None."""
        if read.row not in (0, read.key):
            return 'wrong', 'the answer is the row of key %d' % read.row, self.by_val.get(read.val), None
        if read.version == NO_ROW and read.val == NO_ROW:
            return self.reason_absent(read, era)
        write = self.by_val.get(read.val)
        if write is None:
            return self.reason_unknown(read)
        if (write.key, write.version) != (read.key, read.version):
            return 'wrong', 'key, version and content do not belong together', write, None
        if write.earliest > read.end:
            return 'early', 'nobody had committed this version yet', write, None
        if read.val not in self.follows[era]:
            if write.lost_at < read.start and read.start > write.lost_at + self.history.lease:
                return 'lost', 'PostgreSQL has lost this version and the leases were over', write, None
            return None
        newer = self.follows[era][read.val]
        if newer is not None and newer.latest < read.start:
            return 'stale', 'a newer version was committed before this read began', write, newer
        return None

    def reason_absent(self, read, era):
        """The key has no row before its first version, and from a delete to the next version."""
        chain = self.chains[era].get(read.key, [])
        if not chain or read.start <= chain[0].latest:
            return None
        for n, write in enumerate(chain):
            following = chain[n + 1].latest if n + 1 < len(chain) else INFINITY
            if write.deleted and write.earliest <= read.end and following >= read.start:
                return None
        if any(write.key == read.key and write.deleted and write.lost_at + self.history.lease >= read.start and
               write.lost_at < INFINITY for write in self.writes):
            return None                 # PostgreSQL lost a delete, and the leases of that time had not ended
        last = max((w for w in chain if w.latest < read.start), key=Write.place)
        return 'stale', 'the key had a row all the time', None, last

    def reason_unknown(self, read):
        """Judges a content that is in no log. Perhaps PostgreSQL lost a commit that the client had not seen acknowledged.
        Otherwise it was never committed."""
        if read.val in self.inner:
            return 'phantom', 'its transaction changed the key again before it committed', self.inner[read.val], None
        txn = self.history.txns.get(read.val // VAL_PER_TXN)
        if txn is not None and txn.outcome == '?':
            era = self.history.era_of(txn.sent)
            if txn.sent and era < len(self.history.losses) and \
                    read.start <= self.history.losses[era] + self.history.lease:
                return None
        return 'phantom', 'this version was never committed', None, None

    # ------------------------------------------------------------------------------------------------------------------
    # Groups
    # ------------------------------------------------------------------------------------------------------------------

    def check_groups(self):
        members = collections.defaultdict(list)
        for read in self.history.reads:
            if read[3] and self.history.groups.get(read[3]) == 'h':
                members[read[3]].append(Read(*read))
        self.counts['groups'] = len(members)
        for group in members.values():
            era = self.history.era_of(group[0].start)
            if era == self.history.era_of(group[0].end):
                self.judge_group(group, era)

    def judge_group(self, group, era):
        follows = self.follows[era]
        earliest, latest = group[0].start, group[0].end
        for read in group:
            if read.val not in follows:
                return                  # judge() has judged this read by itself
            earliest = max(earliest, self.by_val[read.val].earliest)
            if follows[read.val]:
                latest = min(latest, follows[read.val].latest)
        if earliest > latest:
            self.blame('torn', 'there is no instant at which all these versions were current', members=group)
            return
        for one in group:
            for other in group:
                if self.half_seen(one, other, follows):
                    self.blame('torn', 'of a transaction that wrote both keys only one write is seen', members=group)
                    return

    def half_seen(self, one, other, follows):
        """Whether a transaction replaced the version in `other`, and wrote the version in `one` or an older one of that key."""
        newer = follows[other.val]
        for _ in range(10):
            if newer is None or newer.earliest > other.end:
                return False
            twin = self.of_txn[newer.txn].get(one.key)
            if twin is not None and twin.era == newer.era and twin.place() <= self.by_val[one.val].place():
                return True
            newer = follows.get(newer.val) if newer.val else None
        return False

    def run(self):
        self.collect_writes()
        self.prune()
        self.build_chains()
        self.check_order()
        self.use_evidence()
        self.check_reads()
        self.check_groups()
        return self


# ----------------------------------------------------------------------------------------------------------------------
# Printing
# ----------------------------------------------------------------------------------------------------------------------

WORDS = {'h': 'hit', 's': 'SQL', 'm': 'miss', 'p': 'pending', 'u': 'unarmed', 'e': 'Redis error', 'o': 'old primary'}


WAYS = {'m': 'block', 'p': 'plain', 'P': 'pipeline', 'g': 'slow', 'v': 'beside', 'q': 'fence.get', 'r': 'fence.read', 'R': 'fence.read_many',
        'd': 'derived', 'B': 'program', 'T': 'together', 'D': 'derived, by a program'}


class Story:
    """The few operations that prove a violation, sorted by time."""

    def __init__(self, checker, violation, faults):
        self.checker, self.violation, self.faults = checker, violation, faults
        self.zero = self.origin()
        self.lines = []

    def origin(self):
        violation = self.violation
        if violation.read:
            return violation.read.start
        if violation.members:
            return violation.members[0].start
        write = violation.newer or violation.write
        return self.checker.history.txns[write.txn].sent

    def at(self, time):
        return '%+.3f ms' % ((time - self.zero) / 1e6) if abs(time) < INFINITY else 'ever' if time < 0 else 'never'

    def add(self, time, text):
        self.lines.append((time, text))

    def add_write(self, write, remark=''):
        txn = self.checker.history.txns[write.txn]
        what = 'deletes key %d (version %d)' % (write.key, write.version) if write.deleted else \
            'writes key %d version %d content %d' % (write.key, write.version, write.val)
        if txn is BEFORE_ALL:
            self.add(-INFINITY, 'at the start: ' + what)
            return
        end = {'c': 'acknowledged ' + self.at(txn.end), 'a': 'failed ' + self.at(txn.end)}.get(
            txn.outcome, 'outcome unknown, but it is in PostgreSQL' if write.seq != INFINITY else 'outcome unknown')
        self.add(txn.sent, 'writer %d, transaction %d: %s; COMMIT sent %s, %s%s' %
                 (txn.worker, txn.id, what, self.at(txn.sent), end, remark))
        if txn.outcome == 'c' and not txn.done:
            self.add(txn.end, 'writer %d dies after COMMIT' % txn.worker)

    def add_read(self, read, remark=''):
        how = WORDS[read.kind] if read.kind in ANSWERS else WORDS[read.kind] + ', from PostgreSQL'
        found = 'no row' if read.version == -1 else 'version %d content %d' % (read.version, read.val)
        self.add(read.start, 'reader %d: key %d -> %s (%s) [%s, %s]%s' %
                 (read.worker, read.key, found, how, self.at(read.start), self.at(read.end), remark))

    def add_proof(self, newer, before):
        """Adds the read or the later write that proves the newer version, unless its own acknowledgement came before the read."""
        txn = self.checker.history.txns[newer.txn]
        if txn.outcome == 'c' and txn.end < before:
            return
        for raw in self.checker.history.reads:
            write = self.checker.by_val.get(raw[5])
            if raw[8] < before and write is not None and write.key == newer.key and write.era >= newer.era \
                    and write.place() >= newer.place():
                self.add_read(Read(*raw), '  <- proves the newer version')
                return
        for write in self.checker.writes:
            other = self.checker.history.txns[write.txn]
            if write.key == newer.key and write.place() > newer.place() and other.outcome == 'c' and other.end < before:
                self.add_write(write, '  <- proves the newer version')
                return

    def add_source(self, read):
        """Adds the last reader that read the old value from PostgreSQL: it may have put the value into the cache."""
        best = None
        for raw in self.checker.history.reads:
            if raw[5] == read.val and raw[1] in 'mo' and raw[6] < read.start and (best is None or raw[6] > best[6]):
                best = raw
        if best:
            self.add_read(Read(*best))

    def add_faults(self):
        for fault in self.faults:
            begin, end = fault['injected'], fault.get('healed') or fault['injected']
            if begin <= self.zero + 1e9 and end >= self.zero - 20e9:
                self.add(begin, 'fault %s [%s, %s]' % (fault['name'], self.at(begin), self.at(end)))

    def tell(self):
        violation = self.violation
        if violation.write:
            self.add_write(violation.write)
        if violation.newer:
            self.add_write(violation.newer)
            if violation.read:
                self.add_proof(violation.newer, violation.read.start)
        if violation.read:
            txn = self.checker.history.txns.get(violation.read.val // VAL_PER_TXN)
            if violation.kind == 'phantom' and txn:
                outcome = {'a': 'rolled back', '?': 'unknown', 'c': 'committed'}[txn.outcome]
                self.add(txn.sent or txn.start, 'writer %d, transaction %d: outcome %s, known %s' % (
                    txn.worker, txn.id, outcome, self.at(txn.end)))
            self.add_source(violation.read)
            self.add_read(violation.read, '  <- WRONG')
        for read in violation.members:
            write = self.checker.by_val[read.val]
            self.add_write(write)
            newer = self.checker.follows[self.checker.history.era_of(read.start)][read.val]
            if newer:
                self.add_write(newer)
            self.add_read(read, '  <- WRONG together')
        self.add_faults()
        lines = ['%s: %s' % (violation.kind.upper(), violation.text)]
        lines += ['    ' + text for _, text in sorted(set(self.lines))]
        return '\n'.join(lines)


def tell_examples(checker, faults, number):
    told = collections.Counter()
    for violation in checker.violations:
        if told[violation.kind] < number:
            told[violation.kind] += 1
            print(Story(checker, violation, faults).tell())


# ----------------------------------------------------------------------------------------------------------------------
# What each fault cost: time without hits, waits of COMMIT
# ----------------------------------------------------------------------------------------------------------------------

def effects(history, faults, end):
    """For each fault: the longest time without any hit, the longest wait of a COMMIT, and the hit rates before and after.
    The wait excludes the time for which the fault itself stopped that writer's backend."""
    hits = sorted(read[8] for read in history.reads if read[1] == 'h')
    reads = sorted(read[8] for read in history.reads if read[1] != 'n')
    commits = [(t.sent, t.end, 'history-%d' % t.worker) for t in history.txns.values()
               if t.outcome == 'c' and t is not BEFORE_ALL]
    result = []
    for n, fault in enumerate(faults):
        begin = fault['injected']
        until = faults[n + 1]['injected'] if n + 1 < len(faults) else end
        who, since, held_until = fault.get('stopped') or (None, 0, 0)
        waits = [b - max(a, begin) - (max(0, min(b, held_until) - max(a, since)) if name == who else 0)
                 for a, b, name in commits if b >= begin and a <= until]
        result.append({'name': fault['name'], 'bypass': longest_gap(hits, begin, until) / 1e9,
                       'wait': max(waits, default=0) / 1e9, 'before': rate(hits, reads, begin - 10**9, begin),
                       'after': rate(hits, reads, until - 10**9, until)})
    return result


def between(times, begin, end):
    from bisect import bisect_left
    return bisect_left(times, begin), bisect_left(times, end)


def longest_gap(times, begin, end):
    a, b = between(times, begin, end)
    points = [begin] + times[a:b] + [end]
    return max(y - x for x, y in zip(points, points[1:]))


def rate(hits, reads, begin, end):
    a, b = between(hits, begin, end)
    c, d = between(reads, begin, end)
    return round((b - a) / (d - c), 4) if d > c else None


# ----------------------------------------------------------------------------------------------------------------------

def read_log(path):
    """Lines of COPY item_log: seq, id, version, val, deleted, txn."""
    rows = []
    with open(path) as file:
        for line in file:
            seq, key, version, val, deleted, txn = line.split('\t')
            rows.append((int(seq), int(key), int(version), int(val), deleted == 't', int(txn)))
    return rows


def load(directory):
    with open(os.path.join(directory, 'run.json')) as file:
        run = json.load(file)
    history = History(run['losses'], run['lost_grace'])
    for path in sorted(glob.glob(os.path.join(directory, 'worker*.history'))):
        history.add_file(path)
    for name in run['logs']:
        history.logs.append(read_log(os.path.join(directory, name)))
    return run, history


def check(directory, examples=2):
    """Prints examples of the violations; returns the figures."""
    run, history = load(directory)
    checker = Checker(history).run()
    end = max((read[8] for read in history.reads), default=0)
    tell_examples(checker, run['faults'], examples)
    result = {kind: checker.counts[kind] for kind in KINDS + ('reads', 'hits', 'groups', 'lasting', 'lost_writes')}
    result['written'], result['absent'] = history.written, history.absent
    result['ways'] = {WAYS[way]: {WORDS[how]: n for (other, how), n in history.ways.items() if other == way and how in WORDS}
                      for way in sorted({way for way, _ in history.ways})}
    result['prepared'] = dict(history.prepared)
    result['wrong_reads'] = sum(checker.counts[kind] for kind in KINDS)
    result['transactions'] = collections.Counter(t.outcome for t in history.txns.values() if t is not BEFORE_ALL)
    result['kinds'] = collections.Counter(read[1] for read in history.reads)
    result['notes'] = dict(checker.notes)
    result['effects'] = effects(history, run['faults'], end)
    return result


def main():
    parser = argparse.ArgumentParser(description='Judges the history of a run.')
    parser.add_argument('directory')
    parser.add_argument('--examples', type=int, default=2, help='how many violations of each kind to print')
    options = parser.parse_args()
    result = check(options.directory, options.examples)
    print(json.dumps(result, indent=1))
    return 1 if result['wrong_reads'] else 0


if __name__ == '__main__':
    sys.exit(main())
