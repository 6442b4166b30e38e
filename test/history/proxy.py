"""A TCP proxy before Redis that disturbs connections: it cuts them within a message, delays, sends single bytes, goes silent,
and confuses replies.

It has two doors (listening ports), one for the extension and one for readers, so that a test can disturb each alone. It
runs in a process of its own ("python3 proxy.py TARGET LOG"). It reads commands as lines of JSON from standard input, and
answers each with one line; class Proxy sends these commands. The process ends at the end of its standard input.
"""

import collections
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import time

CHUNK = 65536
MOST_QUEUED = 1 << 20           # the proxy stops reading from a direction in which so many bytes wait
DOORS = ('extension', 'readers')

# What happens to the connections of a door; all of it may be combined.
#   delay       seconds that each chunk is held back
#   split       single bytes, each in a message of its own
#   cut         each connection is closed after 1 to so many more bytes of one direction; 0: never
#   reset       a cut is an RST towards the client instead of an orderly end
#   hole        nothing is taken or passed on; connections stay open, new ones are accepted
#   refuse      new connections are closed at once
#   only        text: delay and lose are for requests that contain it, and for their replies; '': for all
#   lose        'requests' or 'replies' vanish; '': none. Their connection stays open
#   share       fraction of the connections, chosen at random, to which delay and lose apply
#   confuse     what happens to some replies of connections that are made from now on; '': nothing.
#               'swap'    exchanged with a later reply of the same connection or with one of another connection
#               'repeat'  sent twice, the second time at once or when the next request has been answered
#               'drop'    left out
#               'late'    held back, with all that follow on the connection
#   rate        the fraction of the replies to which that happens
#   hold        most seconds that a reply is held back for 'swap' and 'late'
PASS = {'delay': 0, 'split': False, 'cut': 0, 'reset': False, 'hole': False, 'refuse': False, 'only': '', 'lose': '', 'share': 1,
        'confuse': '', 'rate': 0, 'hold': 0}


class Proxy:
    """Starts the process. Attributes extension and readers are the ports of the doors."""

    def __init__(self, target, log):
        with open(log, 'ab') as errors:
            self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), target], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        ports = json.loads(self.process.stdout.readline())
        self.extension, self.readers = (ports[door] for door in DOORS)

    def tell(self, what, **arguments):
        self.process.stdin.write(json.dumps({'do': what, **arguments}) + '\n')
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError('the proxy has ended')
        return json.loads(answer)

    def treat(self, door, seed=0, **policy):
        """Applies this policy to old and new connections of the door from now on. Without a policy they pass undisturbed."""
        return self.tell('treat', door=door, seed=seed, policy={**PASS, **policy})

    def target(self, path, cut=True):
        """Connects new clients to that socket. cut: closes connections that lead to the former one."""
        return self.tell('target', path=path, cut=cut)

    def cut(self, door):
        return self.tell('cut', door=door)

    def counts(self):
        """door -> {connections, bytes, cuts, split, held, lost, confused}: what has happened so far."""
        return self.tell('counts')

    def stop(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process.stdout.close()


# ----------------------------------------------------------------------------------------------------------------------
# The process
# ----------------------------------------------------------------------------------------------------------------------

class Direction:
    """Bytes on their way from one socket to the other."""

    def __init__(self, source, sink):
        self.source, self.sink = source, sink
        self.queue = collections.deque()        # [due, bytes left]
        self.queued = 0
        self.ended = False                      # the source has sent its last byte
        self.cut_after = None                   # bytes until the connection is closed


class Splitter:
    """Divides a stream of RESP into whole replies."""

    def __init__(self):
        self.data = b''
        self.at = 0                             # how far the reply that is not whole yet is understood
        self.missing = 1                        # how many values it lacks

    def feed(self, data):
        self.data += data
        replies = []
        while (end := self.data.find(b'\r\n', self.at)) >= 0:
            kind, after, inner = self.data[self.at:self.at + 1], end + 2, 0
            number = int(self.data[self.at + 1:end]) if kind in b'$=!*~>%' else -1
            if number >= 0 and kind in b'$=!':
                after += number + 2
            elif number > 0:
                inner = 2 * number if kind == b'%' else number
            if after > len(self.data):
                break
            self.at, self.missing = after, self.missing + inner - 1
            if not self.missing:
                replies.append(self.data[:after])
                self.data, self.at, self.missing = self.data[after:], 0, 1
        return replies


class Link:
    """A client's connection and the one to Redis that belongs to it."""

    def __init__(self, door, client, server):
        self.door = door
        self.client, self.server = client, server
        self.directions = (Direction(client, server), Direction(server, client))
        self.chosen = True                      # delay and lose apply to this connection
        self.asked = False                      # delay and lose apply to the last request
        self.splitter = Splitter() if door.policy['confuse'] else None
        self.reads = False                      # the client has begun to read: replies before that are of its library's greeting
        self.again = None                       # a reply to repeat before the next one


class Door:
    def __init__(self, name):
        self.name = name
        self.policy = dict(PASS)
        self.random = random.Random(0)
        self.links = set()
        self.waiting = None                     # (link, chunk, same): a reply that waits for another one, of the same connection or of others, to be exchanged with
        self.counts = dict.fromkeys(('connections', 'bytes', 'cuts', 'split', 'held', 'lost', 'confused'), 0)
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(('127.0.0.1', 0))
        self.listener.listen(256)
        self.listener.setblocking(False)

    def port(self):
        return self.listener.getsockname()[1]

    def holds(self):
        """Whether chunks may be held back."""
        return self.policy['delay'] or self.policy['hold']

    def draw(self, link):
        """Draws whether delay and lose apply to this connection, and in which direction and after how many bytes to cut it."""
        link.chosen = self.random.random() < self.policy['share']
        for direction in link.directions:
            direction.cut_after = None
        if self.policy['cut']:
            self.random.choice(link.directions).cut_after = self.random.randint(1, self.policy['cut'])


class Loop:
    def __init__(self, target):
        self.target = target
        self.selector = selectors.DefaultSelector()
        self.doors = {name: Door(name) for name in DOORS}
        for door in self.doors.values():
            self.selector.register(door.listener, selectors.EVENT_READ, lambda _, door=door: self.accept(door))
        self.commands = b''
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ, lambda _: self.take_commands())

    def answer(self, value):
        sys.stdout.write(json.dumps(value) + '\n')
        sys.stdout.flush()

    def run(self):
        self.answer({name: door.port() for name, door in self.doors.items()})
        while True:
            for key, events in self.selector.select(self.pause()):
                key.data(events)
            now = time.monotonic()
            for door in self.doors.values():
                if door.holds():
                    for link in list(door.links):
                        self.push(link, now)

    def pause(self):
        """Seconds until the next chunk that is held back is due."""
        due = [direction.queue[0][0] for door in self.doors.values() if door.holds()
               for link in door.links for direction in link.directions if direction.queue]
        return max(min(due) - time.monotonic(), 0) if due else None

    # Connections

    def accept(self, door):
        try:
            client, _ = door.listener.accept()
        except BlockingIOError:
            return
        server = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        server.setblocking(False)
        try:
            if door.policy['refuse']:
                raise ConnectionRefusedError
            server.connect(self.target)
        except OSError:                         # also when its queue of connections is full
            client.close()
            server.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(door, client, server)
        door.links.add(link)
        door.counts['connections'] += 1
        door.draw(link)
        for sock in (client, server):
            self.selector.register(sock, selectors.EVENT_READ, lambda events, link=link: self.moved(link))
        self.interest(link)

    def close(self, link, reset=False):
        if link not in link.door.links:
            return
        link.door.links.discard(link)
        if reset:
            link.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
        for sock in (link.client, link.server):
            if sock in self.selector.get_map():
                self.selector.unregister(sock)
            sock.close()

    def interest(self, link):
        """Tells the selector for which events to wait on both sockets."""
        if link not in link.door.links:
            return
        wanted = {link.client: 0, link.server: 0}
        if not link.door.policy['hole']:
            now = time.monotonic()
            for direction in link.directions:
                if not direction.ended and direction.queued < MOST_QUEUED:
                    wanted[direction.source] |= selectors.EVENT_READ
                if direction.queue and direction.queue[0][0] <= now:
                    wanted[direction.sink] |= selectors.EVENT_WRITE
        for sock, events in wanted.items():
            registered = sock in self.selector.get_map()
            if events and registered:
                if self.selector.get_key(sock).events != events:
                    self.selector.modify(sock, events, self.selector.get_key(sock).data)
            elif events:
                self.selector.register(sock, events, lambda _, link=link: self.moved(link))
            elif registered:
                self.selector.unregister(sock)

    # Bytes

    def moved(self, link):
        if link not in link.door.links:
            return
        now = time.monotonic()
        for direction in link.directions:
            if not direction.ended and direction.queued < MOST_QUEUED and not link.door.policy['hole']:
                self.take(link, direction, now)
        self.push(link, now)

    def take(self, link, direction, now):
        try:
            data = direction.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b''
        if not data:
            direction.ended = True
            return
        policy = link.door.policy
        if direction is link.directions[0]:
            link.asked = policy['only'].encode() in data
            link.reads = link.reads or b'fence_' in data
        elif link.splitter:
            for reply in link.splitter.feed(data):
                self.confuse(link, direction, reply, now)
            return
        concerned = link.chosen and link.asked
        if concerned and policy['lose'] == ('requests' if direction is link.directions[0] else 'replies'):
            link.door.counts['lost'] += 1
            return
        held = policy['delay'] if concerned else 0
        if held:
            link.door.counts['held'] += 1
        self.enqueue(direction, now + held, data)

    def enqueue(self, direction, due, data):
        """Returns the chunk."""
        if direction.queue:
            due = max(due, direction.queue[-1][0])      # bytes do not overtake each other
        chunk = [due, data]
        direction.queue.append(chunk)
        direction.queued += len(data)
        return chunk

    # Replies

    def confuse(self, link, direction, reply, now):
        """Passes on a whole reply, or does with it what the policy says."""
        door, policy = link.door, link.door.policy
        how, hold, same = '', 0, False
        if link.again:
            self.enqueue(direction, now, link.again)
            link.again = None
        if policy['confuse'] == 'swap' and link.reads and door.waiting and self.exchange(link, direction, reply, now):
            return
        if link.reads and reply[:1] != b'>' and door.random.random() < policy['rate']:
            how = policy['confuse']
        if how == 'swap':
            same = reply[:1] == b'+' or door.random.random() < 0.5
            how = '' if door.waiting else how
        if how and how != 'swap':
            door.counts['confused'] += 1
        if how == 'drop':
            return
        if how == 'repeat':
            if door.random.random() < 0.5:
                link.again = reply
            else:
                self.enqueue(direction, now, reply)
        if how in ('swap', 'late'):
            hold = door.random.uniform(0, policy['hold'])
        chunk = self.enqueue(direction, now + hold, reply)
        if how == 'swap':
            door.waiting = (link, chunk, same)

    def exchange(self, link, direction, reply, now):
        """Exchanges this reply with the one that waits: the next of the same connection, or one of the same type of another
        connection. Returns whether it did."""
        door = link.door
        other, chunk, same = door.waiting
        if other not in door.links or chunk[0] <= now:
            door.waiting = None
            return False
        if (other is link) != same or (reply == chunk[1] if same else reply[:1] != chunk[1][:1]):
            return False
        door.waiting = None
        door.counts['confused'] += 1
        held, chunk[1] = chunk[1], reply
        other.directions[1].queued += len(reply) - len(held)
        for waiting in other.directions[1].queue:
            waiting[0] = min(waiting[0], now)
        self.enqueue(direction, now, held)
        if other is not link:
            self.push(other, now)
        return True

    def push(self, link, now):
        """Passes on the chunks that are due, and ends the connection if its end is due."""
        for direction in link.directions:
            while direction.queue and direction.queue[0][0] <= now and not link.door.policy['hole']:
                if not self.send(link, direction):
                    break
                if link not in link.door.links:
                    return
                if link.door.policy['split']:
                    break
            if direction.ended and not direction.queue:
                self.close(link)
                return
        self.interest(link)

    def send(self, link, direction):
        """Part of the first chunk; false if the sink takes no more."""
        chunk = direction.queue[0]
        most = 1 if link.door.policy['split'] else len(chunk[1])
        if direction.cut_after is not None:
            most = min(most, direction.cut_after)
        try:
            sent = direction.sink.send(chunk[1][:most])
        except BlockingIOError:
            return False
        except OSError:
            self.close(link)
            return False
        counts = link.door.counts
        counts['bytes'] += sent
        counts['split'] += link.door.policy['split']
        chunk[1] = chunk[1][sent:]
        direction.queued -= sent
        if not chunk[1]:
            direction.queue.popleft()
        if direction.cut_after is not None:
            direction.cut_after -= sent
            if direction.cut_after <= 0:
                counts['cuts'] += 1
                self.close(link, link.door.policy['reset'])
        return True

    # Commands

    def take_commands(self):
        data = os.read(0, CHUNK)
        if not data:
            sys.exit(0)
        *lines, self.commands = (self.commands + data).split(b'\n')
        for line in lines:
            self.answer(self.obey(json.loads(line)))

    def obey(self, command):
        what = command['do']
        if what == 'counts':
            return {name: door.counts for name, door in self.doors.items()}
        if what == 'target':
            self.target = command['path']
            doors = self.doors.values() if command['cut'] else ()
        else:
            doors = (self.doors[command['door']],)
        for door in doors:
            if what == 'treat':
                door.policy = command['policy']
                door.random = random.Random(command['seed'])
                door.waiting = None
            for link in list(door.links):
                if what == 'treat':
                    self.retreat(link)
                else:
                    self.close(link)
        return {}

    def retreat(self, link):
        """Applies a new policy to a connection, and releases the chunks that were held back."""
        link.door.draw(link)
        if link.splitter and not link.door.policy['confuse']:
            for data in filter(None, (link.again, link.splitter.data)):
                self.enqueue(link.directions[1], 0, data)
            link.splitter = None
        for direction in link.directions:
            for chunk in direction.queue:
                chunk[0] = 0
        self.push(link, time.monotonic())


if __name__ == '__main__':
    Loop(sys.argv[1]).run()
