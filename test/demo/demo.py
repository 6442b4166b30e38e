"""Runs pgbench and the readers, shows a line a second, then judges. Exit status 0: all is well."""

import argparse
import multiprocessing
import re
import signal
import subprocess
import sys
import time

import psycopg2
import redis

from history import History
from reader import COUNTERS, TABLES, Reader

READERS = 2
CLIENTS = 4
SETTLE_SECONDS = 20             # in which the last reservations must have gone

PROGRESS = re.compile(r'^progress: ([\d.]+) s, ([\d.]+) tps')


def read(number, socket, counts, stop, pipe):
    """Body of a reader's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader = Reader(socket, counts, seed=number)
    pipe.send('ready')
    pipe.recv()
    pipe.send(reader.run(stop.is_set))


class Readers:
    def __init__(self, socket):
        self.stop = multiprocessing.Event()
        self.counts = []
        self.pipes = []
        for number in range(READERS):
            counts = multiprocessing.RawArray('q', len(TABLES) * len(COUNTERS))
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=read, args=(number, socket, counts, self.stop, theirs), daemon=True)
            process.start()
            theirs.close()
            self.counts.append(counts)
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def start(self):
        for pipe in self.pipes:
            pipe.send('go')

    def finish(self):
        """What each has seen. A reader that died is an EOFError here."""
        self.stop.set()
        return [pipe.recv() for pipe in self.pipes]

    def totals(self, table=None):
        """counter -> number, of one table or of all."""
        tables = range(len(TABLES)) if table is None else (table,)
        return {name: sum(counts[n * len(COUNTERS) + c] for counts in self.counts for n in tables)
                for c, name in enumerate(COUNTERS)}


def bad(totals):
    return totals['stale'] + totals['early'] + totals['wrong']


def reads(totals):
    return totals['hits'] + totals['misses'] + totals['unarmed']


def run_pgbench(program, seconds, readers, half_way):
    """pgbench's own script; a line per second. Returns its report, or None if it failed."""
    command = [program, '-c', str(CLIENTS), '-j', '2', '-T', str(seconds), '-P', '1']
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    print('\n%7s %8s %9s %9s %9s %9s %7s' % ('second', 'tps', 'reads', 'hits', 'misses', 'unarmed', 'stale'))
    readers.start()
    last = readers.totals()
    other = []
    for line in process.stderr:
        progress = PROGRESS.match(line)
        if not progress:
            other.append(line)
            continue
        now = readers.totals()
        new = {name: now[name] - last[name] for name in now}
        print('%7.0f %8.0f %9d %9d %9d %9d %7d' %
              (float(progress[1]), float(progress[2]), reads(new), new['hits'], new['misses'], new['unarmed'], bad(now)), flush=True)
        last = now
        if half_way and float(progress[1]) >= seconds / 2:
            half_way()
            half_way = None
    report = process.stdout.read()
    if process.wait() != 0:
        sys.stdout.write(''.join(other) + report)
        return None
    return report


def reservations_left(cursor):
    """Rows of fence.pending once it is empty, or after SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        cursor.execute('SELECT * FROM fence.pending')
        rows = cursor.fetchall()
        if not rows or time.monotonic() > deadline:
            return rows
        time.sleep(0.1)


def print_results(readers, contradictions):
    print('\n%-18s %10s %10s %10s %9s %9s %7s %7s %7s' %
          ('table', 'reads', 'hits', 'misses', 'unarmed', 'stored', 'stale', 'early', 'wrong'))
    for n, (table, *_) in enumerate(TABLES):
        t = readers.totals(n)
        print('%-18s %10d %10d %10d %9d %9d %7d %7d %7d' %
              (table, reads(t), t['hits'], t['misses'], t['unarmed'], t['stored'], t['stale'], t['early'],
               t['wrong'] + contradictions[n]))


def verdict(readers, contradictions, history, report, left):
    """What is wrong, in words; empty if nothing is."""
    faults = []
    if bad(readers.totals()) or any(contradictions):
        faults.append('values were read that PostgreSQL contradicts')
    for n, (table, *_) in enumerate(TABLES):
        if readers.totals(n)['hits'] == 0:
            faults.append('no read of %s was a hit, so nothing is proven' % table)
    if history.gaps:
        faults.append('%d commits whose version does not follow the one before' % history.gaps)
    if not history.contents:
        faults.append('the history is empty')
    if report is None:
        faults.append('pgbench failed')
    if left:
        faults.append('%d reservations are left' % len(left))
        for row in left[:10]:
            print('left:', *row)
    return faults


def forge_values(client, cursor, table, until):
    """Leaves what proves a cached value current, and changes the value: what a library that did not work would let happen."""
    cursor.execute("SELECT fence.fence_key(%s, '1')", (table,))
    pattern = cursor.fetchone()[0].replace('{1}', '{*}')
    while time.monotonic() < until:
        for key in client.scan_iter(match=pattern, count=1000):
            header, newline, balance = (client.get(key) or b'').partition(b'\n')
            if newline:
                client.set(key, header + newline + b'%d' % (int(balance) + 1), keepttl=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--pgbench', required=True)
    parser.add_argument('--redis', required=True)
    parser.add_argument('--seconds', type=int, required=True)
    parser.add_argument('--sabotage', action='store_true')
    options = parser.parse_args()

    database = psycopg2.connect('')
    database.autocommit = True
    cursor = database.cursor()

    def sabotage():
        print('        values of pgbench_tellers in Redis are forged, for a second', flush=True)
        forge_values(redis.Redis(unix_socket_path=options.redis), cursor, 'pgbench_tellers', time.monotonic() + 1)

    readers = Readers(options.redis)
    history = History(cursor)
    report = run_pgbench(options.pgbench, options.seconds, readers, sabotage if options.sabotage else None)
    seen = readers.finish()
    left = reservations_left(cursor)

    print('\ncomparing what was read with the history of commits ...', flush=True)
    history.collect()
    contradictions = [0] * len(TABLES)
    for values in seen:
        for value, balance in values.items():
            if history.contradicts(value, balance):
                contradictions[value[0]] += 1

    print_results(readers, contradictions)
    cursor.execute('SELECT state, epoch, bypassed_transactions FROM fence.state')
    state = cursor.fetchone()
    print('\nhistory            %d row versions committed, %d out of sequence' % (len(history.contents), history.gaps))
    print('values compared    %d (row, version, content)' % sum(map(len, seen)))
    print('reservations left  %d' % len(left))
    print('state              %s, epoch %s, %d transactions bypassed Redis' % state)
    for line in (report or '').splitlines():
        if re.match(r'number of transactions actually|number of failed|latency average|tps', line):
            print('pgbench            ' + line)

    faults = verdict(readers, contradictions, history, report, left)
    print('\n' + ('FAIL: ' + '; '.join(faults) if faults else 'PASS: nothing stale was read, no reservation is left'))
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
