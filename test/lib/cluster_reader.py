"""A strong reader of a Redis Cluster, as an application would have it: it follows MOVED and ASK, takes a hit for current, and
else reads PostgreSQL and puts. Each hit is compared with what was committed before it was asked for.

    cluster_reader.py CONNINFO PORTS KEYS RESULT

Reads random keys 1..KEYS of the domain item until it is told to end (SIGTERM), then writes to RESULT, as "name value" lines:
how often each answer came, stale hits, and the longest time in seconds for which a key was not answered from the cache.
"""
import collections
import random
import signal
import sys
import time

import psycopg2
import redis

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
    """The reply, or None if there is none to be had."""
    port, asking = slots[slot], False
    for _ in range(5):
        try:
            client = connection(port)
            if not asking:
                return client.execute_command('FCALL', *words)
            with client.pipeline(transaction=False) as pipe:
                pipe.execute_command('ASKING')
                pipe.execute_command('FCALL', *words)
                return pipe.execute()[1]
        except redis.ResponseError as error:
            text = str(error)
            if 'MOVED' in text:
                counts['moved'] += 1
                asking, port = False, int(text.rsplit(':', 1)[1].split()[0])
                slots[slot] = port
            elif 'ASK ' in text:
                counts['ask'] += 1
                asking, port = True, int(text.rsplit(':', 1)[1].split()[0])
            else:
                counts['refused'] += 1
                return None
        except redis.RedisError:
            counts['broken'] += 1
            learn_slots()
            port = slots[slot]
    return None


signal.signal(signal.SIGTERM, end)
pg = psycopg2.connect(conninfo)
pg.autocommit = True
cursor = pg.cursor()
cursor.execute("SELECT id, fence.fence_key('item', id::text), fence.value_key('item', id::text), "
               "fence.key_slot(fence.fence_key('item', id::text)) FROM item WHERE id <= %s", (keys,))
names = cursor.fetchall()
learn_slots()
while not ending:
    key, fence, value, slot = random.choice(names)
    cursor.execute('SELECT version FROM item WHERE id = %s', (key,))
    before = cursor.fetchone()[0]
    reply = call(slot, 'fence_get', 2, fence, value)
    status = reply[0].decode() if reply else 'unavailable'
    counts[status] += 1
    now = time.monotonic()
    if status in ('hit', 'miss', 'pending'):
        longest = max(longest, now - bypass_since.pop(key, now))
    else:
        bypass_since.setdefault(key, now)
    if status == 'hit' and int(reply[2]) < before:
        counts['stale'] += 1
    if status == 'miss':
        cursor.execute('SELECT version, to_jsonb(item)::text FROM item WHERE id = %s', (key,))
        call(slot, 'fence_put', 2, fence, value, reply[1], reply[2], *cursor.fetchone(), 0)
with open(result, 'w') as out:
    for name in ('hit', 'miss', 'pending', 'unarmed', 'unavailable', 'moved', 'ask', 'refused', 'broken', 'stale'):
        print(name, counts[name], file=out)
    print('longest', round(longest, 3), file=out)
