"""A strong reader of a Redis Cluster, as an application would have it. It follows MOVED and ASK, believes a hit, and otherwise
reads PostgreSQL and puts. It compares each hit with the version that was committed before the read.

    cluster_reader.py CONNINFO PORTS KEYS RESULT

It reads random keys 1..KEYS of the domain item until SIGTERM. Then it writes lines "name value" to RESULT: the number of each
answer, the number of stale hits, and the longest time in seconds for which a key had no hit.
"""
import collections
import random
import re
import signal
import sys
import time

import psycopg2
import redis

import strong

conninfo, ports, keys, result = sys.argv[1], sys.argv[2].split(','), int(sys.argv[3]), sys.argv[4]
counts = collections.Counter()
bypass_since, longest = {}, 0.0
connections = {}
slots = [None] * 16384
ending = False


def end(*_):
    global ending
    ending = True


def connection(port):
    if port not in connections:
        connections[port] = redis.Redis(port=port, socket_timeout=0.5, socket_connect_timeout=0.5)
    return connections[port]


def learn_slots():
    for port in list(connections) + [int(p) for p in ports]:
        try:
            for first, last, master, *_ in connection(port).execute_command('CLUSTER', 'SLOTS'):
                slots[first:last + 1] = [master[1]] * (last + 1 - first)
            return
        except redis.RedisError:
            continue


def call(slot, *words):
    """The reply of a node, or None if the node cannot be reached."""
    return ask(slot, lambda client: client.execute_command(*words))


def ask(slot, question, follows=True):
    """The reply of the node that serves the slot now, or None. follows: the question is a single command, which may follow ASK
    to the node to which the slot is moving."""
    port, asking = slots[slot], False
    for _ in range(5):
        try:
            client = connection(port)
            if not asking:
                return question(client)
            with client.pipeline(transaction=False) as pipe:
                pipe.execute_command('ASKING')
                question(pipe)
                return pipe.execute()[1]
        except redis.ResponseError as error:
            text = str(error)
            if 'MOVED' in text:
                counts['moved'] += 1
                asking, port = False, int(re.search(r'MOVED \d+ [^ ]*:(\d+)', text).group(1))
                slots[slot] = port
            elif 'ASK ' in text and follows:
                counts['ask'] += 1
                asking, port = True, int(re.search(r'ASK \d+ [^ ]*:(\d+)', text).group(1))
            else:
                counts['refused'] += 1
                return None
        except redis.RedisError:
            counts['broken'] += 1
            learn_slots()
            port = slots[slot]
    return None


def read(slot, fence):
    """A result as of strong.read, or ('unavailable',) if no node answered. Three of four reads are blocks of MULTI and EXEC; the
    others use fence_get, which can follow a slot that is moving."""
    if random.random() < 0.75:
        return ask(slot, lambda client: strong.read(client, fence), follows=False) or ('unavailable',)
    reply = call(slot, 'FCALL_RO', 'fence_get', 1, fence)
    words = [strong.text(word) for word in reply] if reply else ['unavailable']
    return strong.judge(words[1], words[1]) if words[0] == 'hit' else tuple(words[:2])


signal.signal(signal.SIGTERM, end)
pg = psycopg2.connect(conninfo)
pg.autocommit = True
cursor = pg.cursor()
cursor.execute("SELECT id, fence.fence_key('item', id::text), fence.key_slot(fence.fence_key('item', id::text)) FROM item WHERE id <= %s", (keys,))
names = cursor.fetchall()
learn_slots()
while not ending:
    key, fence, slot = random.choice(names)
    cursor.execute('SELECT version FROM item WHERE id = %s', (key,))
    before = cursor.fetchone()[0]
    status, *answer = read(slot, fence)
    counts[status] += 1
    now = time.monotonic()
    if status in ('hit', 'miss', 'pending'):
        longest = max(longest, now - bypass_since.pop(key, now))
    else:
        bypass_since.setdefault(key, now)
    if status == 'hit' and answer[1] < before:
        counts['stale'] += 1
    if status == 'miss':
        cursor.execute('SELECT fence.row_version(version), to_jsonb(item)::text FROM item WHERE id = %s', (key,))
        call(slot, 'FCALL', 'fence_put', 1, fence, answer[0], *(word or '' for word in cursor.fetchone()), 0)
with open(result, 'w') as out:
    for name in ('hit', 'miss', 'pending', 'unarmed', 'unavailable', 'moved', 'ask', 'refused', 'broken', 'stale'):
        print(name, counts[name], file=out)
    print('longest', round(longest, 3), file=out)
