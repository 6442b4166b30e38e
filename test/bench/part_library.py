"""Instructions that Redis spends in each call of the function library, by callgrind; needs no PostgreSQL.

Alone, with valgrind and redis-server installed (some minutes; --quick: less):  python3 test/bench/part_library.py [--quick]

The program reads callgrind's counters before and after a number of calls, and divides the instructions of the whole server by
that number. The calls come in pipelines of 50. So the result includes reading, replying and now and then Lua's garbage collector.
Each call is measured twice: in a new process, and in the same process once it has a hundred domains and 100,000 fences and has
seen 60,000 reservations. It must be the same process, because Redis draws the seed of its hash tables at each start: two
processes differ by up to a thousand instructions per call, because other names of commands collide.
"""

import contextlib
import glob
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = [f'{HERE}/../../src/redis/{name}.lua' for name in ('fence', 'arming', 'buckets', 'marks', 'fills', 'listings', 'hot', 'effects')]
ROWS = 1000                             # number of fences that are read and written
PAYLOAD = 'x' * 100
LARGE = 'x' * 10_000
EPOCH = '7-00000000000000aa'
HEADER = f'bench {EPOCH}'


class Counted:
    """An armed Redis under callgrind with one domain that has ROWS fences."""

    def __init__(self, directory):
        self.directory = directory
        path = f'{directory}/redis.sock'
        self.process = subprocess.Popen(
            ['valgrind', '--tool=callgrind', '-q', f'--callgrind-out-file={directory}/out', os.environ.get('REDIS_SERVER', 'redis-server'),
             '--port', '0', '--unixsocket', path, '--dir', directory, '--save', '', '--appendonly', 'no', '--hz', '1'],
            stdout=subprocess.DEVNULL)
        self.connection = self.connect(path)
        self.replies = self.connection.makefile('rb')
        self.permit = None
        self.word = EPOCH[:EPOCH.index('-') + 7] + '.1'         # the row version of each row
        self.stamps, self.number = 0, 0

    def connect(self, path):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(path)
                return connection
            except OSError:
                time.sleep(0.05)
        raise SystemExit('library: Redis does not start under callgrind')

    def reply(self):
        line = self.replies.readline()
        kind, text = line[:1], line[1:-2].decode()
        if kind == b'-':
            raise SystemExit(f'library: {text}')
        if kind == b'$':
            return None if text == '-1' else self.replies.read(int(text) + 2)[:-2].decode()
        if kind == b'*':
            return [self.reply() for _ in range(int(text))]
        return text

    def send(self, commands):
        parts = []
        for command in commands:
            words = [str(word) for word in command]
            parts.append(f'*{len(words)}\r\n' + ''.join(f'${len(word)}\r\n{word}\r\n' for word in words))
        self.connection.sendall(''.join(parts).encode())
        return [self.reply() for _ in commands]

    def call(self, *words):
        return self.send([words])[0]

    def pipelined(self, commands_of, count):
        for first in range(0, count, 50):
            self.send([command for i in range(first, min(first + 50, count)) for command in commands_of(i)])

    def arm(self):
        text = ''
        for path in LIBRARY:
            with open(path) as file:
                text += file.read()
        self.call('FUNCTION', 'LOAD', text)
        identity, now = self.call('FCALL', 'fence_hello', 0, 'bench', 'abcdef')[:2]
        till = int(now) + 86_400_000
        self.call('FCALL', 'fence_arm', 1, 'bench:heartbeat', identity, EPOCH, till, '', 'owner', 1, 'run', '86400000 0 1000 0')
        self.announce('16384abcdef.account')
        self.permit = self.call('FCALL_RO', 'fence_token', 1, fence(0))
        self.fill()

    def announce(self, domain):
        self.call('FCALL', 'fence_announce', 0, 'bench', EPOCH, domain, 1, 'none', 0)

    def fill(self):
        """Stores all fences as readers do."""
        token = self.permit.split()[0]
        self.pipelined(lambda i: [('SET', fence(i), f'{token} 1 \n{PAYLOAD}', 'PX', 86_400_000)], ROWS)

    def grow(self):
        token = self.permit.split()[0]
        for i in range(100):
            self.announce(f'16384abcdef.other_{i}')
        self.pipelined(lambda i: [('SET', fence(f'idle{i}'), f'{token} 1 \n{PAYLOAD}', 'PX', 86_400_000)], 100_000)
        for first in range(0, 60_000, 1000):
            self.call('FCALL', 'fence_write', 0, HEADER, f'old.{first}', 1000, *(fence(f'old{first + i}') for i in range(1000)))
            self.call('FCALL', 'fence_write', 0, HEADER, '', 0, f'old.{first}')
        self.permit = self.call('FCALL_RO', 'fence_token', 1, fence(0))

    def counted(self):
        """Instructions since the last call."""
        subprocess.run(['vgdb', f'--pid={self.process.pid}', 'dump'], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        path = max(glob.glob(f'{self.directory}/out.*'), key=os.path.getmtime)
        with open(path) as file:
            count = int(re.search(r'^(?:totals|summary): (\d+)', file.read(), re.M).group(1))
        os.remove(path)
        return count

    def per_call(self, commands_of, count):
        """The median of three tries, because on a busy machine messages arrive in more pieces."""
        self.pipelined(commands_of, 200)
        self.counted()
        tries = []
        for _ in range(3):
            self.pipelined(commands_of, count)
            tries.append(self.counted() / count)
        return sorted(tries)[1]

    def stop(self):
        self.connection.close()
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def counted_server():
    directory = tempfile.mkdtemp(prefix='fence_library_')
    server = Counted(directory)
    try:
        server.arm()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def fence(key):
    return 'bench:f:16384abcdef.account:{%s}' % key


def some(i, count):
    return [fence((i * count + j) % ROWS) for j in range(count)]


def echo(i):
    return f'#{i % 100:02}'


def write(server, count):
    """Reserves a row and ends the previous transaction, as one message of single-row transactions does."""
    server.stamps += 1
    return [('FCALL', 'fence_write', 0, HEADER, f'{server.stamps}.00000000000000ab', f'{count}{echo(server.stamps)}',
             *some(server.stamps, count), f'{server.stamps - 1}.00000000000000ab')]


def store(server, i):
    """Stores a row with its commit, which names the number of its reservation. Each pair of calls draws two numbers."""
    if i % 50 == 0:
        server.number = int(server.call('FCALL', 'fence_write', 0, HEADER, '', 0)) + 1
    stamp, row = f'row{i}.00000000000000ab', fence(i % ROWS)
    return [('FCALL', 'fence_write', 0, HEADER, stamp, f'1{echo(2 * i)}', row),
            ('FCALL', 'fence_store', 0, HEADER, stamp, 1, row, server.number + i % 50 * 2, 1, 0, PAYLOAD, stamp, echo(2 * i + 1))]


def put_large(server, i):
    """Puts a large row, which Lua does not copy."""
    row = fence(i % ROWS)
    side = row.replace(':f:', ':v:') + f':put.{i}'
    key = row[row.index('{'):]
    return [('SET', side, f'{server.permit.split()[0]} 1 {key}\n{LARGE}', 'PX', 10_000),
            ('FCALL', 'fence_put_from', 2, row, side, server.permit, server.word, 0)]


# name -> (keys per call, instructions per key that are allowed, commands of call i)
CASES = {
    'GET': (1, None, lambda s, i: [('GET', fence(i % ROWS))]),
    'GET, token': (1, 22_000, lambda s, i: [('GET', fence(i % ROWS)), ('FCALL_RO', 'fence_token', 1, fence(i % ROWS))]),
    'GET, token with a nonce': (1, None, lambda s, i: [
        ('GET', fence(i % ROWS)), ('FCALL_RO', 'fence_token', 1, fence(i % ROWS), f'#{i}')]),
    '49 GET, one token': (49, None, lambda s, i: [*(('GET', name) for name in some(i, 49)), ('FCALL_RO', 'fence_token', 1, fence(i % ROWS))]),
    'MULTI, MGET, token, EXEC': (1, None, lambda s, i: [
        ('MULTI',), ('MGET', fence(i % ROWS)), ('FCALL_RO', 'fence_token', 1, fence(i % ROWS)), ('EXEC',)]),
    'MGET of 10': (10, None, lambda s, i: [('MGET', *some(i, 10))]),
    'MGET of 10, token': (10, 4500, lambda s, i: [('MGET', *some(i, 10)), ('FCALL_RO', 'fence_token', 1, some(i, 1)[0])]),
    'fence_get, a hit': (1, None, lambda s, i: [('FCALL', 'fence_get', 1, fence(i % ROWS))]),
    'fence_check of 10': (10, None, lambda s, i: [
        ('FCALL_RO', 'fence_check', 10, *some(i, 10), *(s.permit.split()[0], 1) * 10)]),
    'fence_put': (1, 58_000, lambda s, i: [('FCALL', 'fence_put', 1, fence(i % ROWS), s.permit, s.word, PAYLOAD, 0)]),
    'reserve one row, end of another transaction': (1, 32_000, lambda s, i: write(s, 1)),
    'reserve 64 rows, end of another transaction': (64, 11_000, lambda s, i: write(s, 64)),
    'reserve one row, commit with the row': (1, None, store),
    'fence_put of 10 kB': (1, None, lambda s, i: [('FCALL', 'fence_put', 1, fence(i % ROWS), s.permit, s.word, LARGE, 0)]),
    'SET, fence_put_from of 10 kB': (1, None, put_large),
    'SET of 10 kB': (1, None, lambda s, i: [('SET', fence(i % ROWS), f'{s.permit.split()[0]} 1 \n{LARGE}', 'PX', 86_400_000)]),
}


def measure(server, count):
    server.fill()
    result = {}
    for name, (keys, _, commands) in CASES.items():
        result[name] = server.per_call(lambda i: commands(server, i), max(count // keys, 200)) / keys
    return result


def run(bench):
    count = bench.amount(1000, 5000)
    with counted_server() as server:
        new = measure(server, count)
        server.grow()
        grown = measure(server, count)
    return {name: {'new': new[name], 'grown': grown[name]} for name in CASES}


def show(result):
    lines = ['| instructions in Redis, per key | new process | 100,000 fences, 100 domains, 60,000 reservations later | may be |',
             '| --- | ---: | ---: | ---: |']
    for name, r in result.items():
        bound = CASES[name][1]
        lines.append(f"| {name} | {r['new']:,.0f} | {r['grown']:,.0f} | {f'{bound:,}' if bound else ''} |")
    return '\n'.join(lines)


class Alone:
    """A substitute for class Bench, for the command line."""

    def amount(self, quick, full):
        return quick if '--quick' in sys.argv else full


if __name__ == '__main__':
    print(show(run(Alone())))
