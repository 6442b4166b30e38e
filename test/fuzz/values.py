"""Draws the arguments of fuzzed calls.

SQL arguments are expressions, so that a report stays short: a value of 100 kB is repeat('x', 100000). Arguments for Redis
are bytes. Each argument takes exactly one number from the generator of its session. So a seed always gives the same sequence
of calls, even if the answers of earlier calls differ from run to run.
"""

import random
import re
import string

# Arguments with which a caller asks for pauses. A call with a long pause is not a slow call.
PAUSES = ('retries', 'backoff', 'timeout')

NUMBERS = (0, 1, -1, 2, 7, 100, 999, 1000, 1001, 65535, 65536, 2 ** 31 - 1, 2 ** 31, -2 ** 31, 2 ** 32, 2 ** 53 - 1, 2 ** 53,
           2 ** 53 + 1, 2 ** 63 - 2, 2 ** 63 - 1, -2 ** 63)

TEXTS = ("''", "' '", "'%00'", "'%'", "'%4'", "'%zz'", "'{}'", "'{'", "'}'", "'}{'", "':'", "'{1}:f:'", "','", "'1,2'", "'a/b'",
         "'-'", "'NULL'", "'null'", "'NaN'", "'infinity'", "'-infinity'", "'1e400'", "'0x10'", "'01'", "'+1'", "'1.0'", "' 1'",
         r"E'\x01'", r"E'\n'", r"E'a\tb'", r"E'\x7f'", "'Zoë'", "'日本語'", "'🙂'", "U&'\\0301e'", "'\"'", "''''", "'\\'",
         "'$1'", "'%s%n'", "'; DROP TABLE item'", "'pg_catalog'", "'fence:f:1.item:{1}'", "'list'", "'zset'", "'stream'",
         "'row'", "'group'", "'manual'", "'none'", "'pubsub'", "'notify'", "'bypass'", "'error'", "'committed'", "'hit'",
         "repeat('x', 63)", "repeat('x', 64)", "repeat('é', 40)", "repeat('x', 1024)", "repeat('x', 4097)", "repeat('%', 5000)",
         "repeat('{', 3000)", "repeat('y', 100000)", "repeat('日', 30000)", "E'\\xff'")

INTERVALS = ("'0'", "'1 ms'", "'1 s'", "'1 min'", "'1 day'", "'-1 s'", "'1 us'", "'178000000 years'", "'-178000000 years'",
             "'100000 days'", "'1 mon -30 days'", "'2147483647 days'", "'0.0000001 s'")

JSON = ("'{}'", "'[]'", "'null'", "'1'", "'\"x\"'", "'{\"a\": 1}'", "'{\"a\": {\"b\": [1, null]}, \"é\": \"\\u0001\"}'",
        "'{\"\": \"\"}'", "(repeat('[', 5000) || repeat(']', 5000))", "(repeat('{\"a\":', 500) || '1' || repeat('}', 500))",
        "(SELECT pg_catalog.jsonb_object_agg('f' || g, g)::text FROM pg_catalog.generate_series(1, 1500) g)",
        "('\"' || repeat('z', 100000) || '\"')", "'1e131071'", "'{\"a\": 1, \"a\": 2}'", "'{'")

FLOATS = ("'NaN'", "'infinity'", "'-infinity'", "0", "1", "0.5", "-0.0", "1e-300", "1e300", "1.0000001", "-1")

UUIDS = ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'not a uuid'",
         "'01234567-89ab-cdef-0123-456789abcdef'")

# Nearly valid arguments for functions in Redis.
BYTES = (b'', b' ', b'0', b'1', b'-1', b'2', b'-', b'*', b'+1', b'01', b'1e5', b'nan', b'inf', b'-inf', b'0x10', b'none', b'stream',
         b'pubsub', b'a', b'r', b'g', b'c', b'd', b'v', b'apply', b'undo', b'list', b'zset', b'publish', b'take', b'\x00',
         b'\xff\xfe', b'\n', b'a b', b'a\nb', b'%', b'%s', b'%d%n', b'[', b'[]', b'{}', b'{', b'}', b'{}{', b'{x', b'x}', b':',
         b'::', b'f:', b'fence', b'fence:', b'fence:f:', b'fence:f:1.lied:{', b'fence:f:1.lied:{}', b'fence:f:{1}', 'é'.encode(),
         b'(.-)', b'^%d+$', b'null', b'true', b'86400000 100 1000 0', b'0 0 0 0', b'1 999999999999999 1 1', b'1 1 1',
         b'[' * 2000, b'{"a":' * 900, b'x' * 100, b'x' * 101, b'x' * 1025, b'x' * 4097, b'y' * 100000, b'0-16383', b'5-1',
         b'16384', b'0-99999999999', b'1.1.aa.1', b'9.9.ffff.9', b'999999999999999-ffff', b'1-0', b'99999999999999999999')

WORDS = string.ascii_letters + string.digits + ' %{}:.,-_/\\\'"\n\t\x01é日'


def literal(text):
    """An SQL literal for that text."""
    return "E'" + text.replace('\\', '\\\\').replace("'", "''").replace('\0', '') + "'" if '\\' in text \
        else "'" + text.replace("'", "''").replace('\0', '') + "'"


def mutated(rng, text):
    """The text with one to three small changes; str or bytes."""
    empty = text[:0]
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(text))
        kind = rng.randrange(5)
        if kind == 0:
            text = text[:at] + text[at + 1:]
        elif kind == 1:
            word = rng.choice(WORDS)
            text = text[:at] + (word if isinstance(empty, str) else word.encode()) + text[at:]
        elif kind == 2:
            text = text[:at]
        elif kind == 3:
            text = text[:at] + text[at:] * 2
        else:
            number = rng.choice(NUMBERS)
            pattern = r'\d+' if isinstance(empty, str) else rb'\d+'
            replacement = str(number) if isinstance(empty, str) else str(number).encode()
            text = re.sub(pattern, lambda _, r=replacement: r, text, count=1)
    return text[:200000]


# The types, besides text, in which values of keys are given. Some fit some columns.
KEY_TYPES = ('integer', 'integer', 'bigint', 'smallint', 'numeric', 'oid', 'name', 'varchar', 'uuid', 'timestamptz', 'boolean', 'jsonb')


class SqlValues:
    """Expressions for arguments of SQL functions."""

    def __init__(self, world):
        self.world = world

    def argument(self, number, name, type_name, domain, effect):
        """Draws an argument. number: the only random number that it may use. domain: the domain of the call."""
        rng = random.Random(number)
        if type_name == '"any"':                # the values of a key, as an array
            type_name = rng.choice(KEY_TYPES) + '[]'
        if rng.random() < 0.06:
            return 'NULL::' + type_name
        if rng.random() < 0.02:                 # another type
            type_name = rng.choice(('text', 'bigint', 'integer', 'text[]', 'jsonb', 'interval', 'oid', 'regclass'))
        if type_name.endswith('[]'):
            return self.array(rng, name, type_name, domain, effect)
        return '%s::%s' % (self.scalar(rng, name, type_name, domain), type_name)

    def array(self, rng, name, type_name, domain, effect):
        base = type_name[:-2]
        kind = rng.random()
        if kind < 0.55:
            if name in ('key', 'keys', 'arguments'):
                return 'ARRAY[%s]::%s' % (', '.join(literal(k) for k in self.world.key(rng, domain)), type_name)
            few = [self.scalar(rng, name, base, domain) + '::' + base for _ in range(rng.randint(1, 3))]
            return 'ARRAY[%s]' % ', '.join(few)
        if kind < 0.62:
            return "'{}'::" + type_name
        if kind < 0.72:                         # in some functions an array of two dimensions has several keys
            keys = [self.world.key(rng, domain) for _ in range(rng.randint(1, 4))]
            rows = ['ARRAY[%s]' % ', '.join(literal(k) for k in key[:1] * 2) for key in keys]
            return 'ARRAY[%s]::%s' % (', '.join(rows), type_name)
        if kind < 0.80:
            count = rng.choice((100, 1000, 1001))
            one = self.scalar(rng, name, base, domain)
            if 'repeat' in one:                 # 1000 times 100 kB is another test
                one = "'x'"
            return 'pg_catalog.array_fill(%s::%s, ARRAY[%d])' % (one, base, count)
        if kind < 0.86:
            return 'ARRAY[NULL, %s]::%s' % (literal(self.world.key(rng, domain)[0]), type_name)
        if kind < 0.90:
            count = 1000
            return 'ARRAY(SELECT g::text FROM pg_catalog.generate_series(1, %d) g)::%s' % (count, type_name)
        return 'ARRAY[%s]::%s' % (self.scalar(rng, '', base, domain), type_name)

    def scalar(self, rng, name, type_name, domain):
        if name in PAUSES:
            return rng.choice(('0', '1', '-1', 'NULL') if type_name == 'integer' else ("'0'", "'1 ms'", "'-1 s'", 'NULL'))
        if name in ('version', 'observed') and type_name == 'bigint':
            return '%d' % rng.choice(NUMBERS + (3, 5, 20))
        if type_name in ('bigint', 'integer', 'smallint', 'oid', 'numeric'):
            number = rng.choice(NUMBERS)
            if type_name in ('integer', 'oid') and rng.random() < 0.8:
                number = number % 2 ** 31
            return '(%d)' % number if rng.random() < 0.6 else '%d' % rng.randint(0, 10)
        if type_name == 'interval':
            return rng.choice(INTERVALS[:5] if rng.random() < 0.6 else INTERVALS)
        if type_name in ('jsonb', 'json'):
            return rng.choice(JSON)
        if type_name in ('double precision', 'real'):
            return rng.choice(FLOATS)
        if type_name == 'boolean':
            return rng.choice(('true', 'false'))
        if type_name == 'uuid':
            return self.reply(rng, 'uuid') if rng.random() < 0.7 else rng.choice(UUIDS)
        if type_name == 'regclass':
            return literal(rng.choice(self.world.relations)) if rng.random() < 0.85 else \
                rng.choice(("'0'", "'pg_class'", "'fence.domain'", "'nowhere'", "'2147483648'", "'item_pkey'", "'fence.domains'"))
        if type_name in ('regprocedure', 'regproc', 'regoper', 'regtype'):
            return rng.choice(("'derived(int)'", "'now()'", "'0'", "'derived(text)'", "'lower(text)'", "'2147483648'", "'sum(int)'"))
        return self.text(rng, name, domain)

    def text(self, rng, name, domain):
        valid = rng.random()
        if valid < 0.60:
            found = self.named(rng, name, domain)
            if found is not None:
                return literal(found) if rng.random() < 0.93 else literal(mutated(rng, found))
        if valid < 0.75:
            return self.reply(rng, name)
        if valid < 0.82:
            return literal(rng.choice(self.world.names(rng, domain)))
        if valid < 0.86:
            return literal(''.join(rng.choice(WORDS) for _ in range(rng.randint(1, 30))))
        return rng.choice(TEXTS)

    def named(self, rng, name, domain):
        """A valid value for a parameter of that name; None for an unknown name."""
        if name in ('domain', 'domains'):
            return domain
        if name == 'key' and domain in self.world.domains:
            return self.world.key(rng, domain)[0]
        if name in ('fence', 'fences'):
            return rng.choice(self.world.names(rng, domain))
        if name == 'columns':
            return rng.choice(('id', 'n', 'note', 'version', 'room', 'usr'))
        if name == 'version':
            return 'version'
        if name == 'scope':
            return rng.choice(('row', 'group', 'manual'))
        if name == 'permit':
            return self.world.reply(rng, name)
        if name == 'reserve':
            return rng.choice(('early', 'commit'))
        if name == 'cache':
            return rng.choice(('none', 'row'))
        if name == 'publish':
            return rng.choice(('none', 'pubsub', 'stream', 'notify'))
        if name == 'on_redis_failure':
            return rng.choice(('bypass', 'error'))
        if name == 'tag':
            return rng.choice(('t/{id}', 'room/{room}', 'all'))
        if name == 'name':
            return 'derived'
        if name == 'sources':
            return rng.choice(('item', 'member', 'item($1)', 'member($1,$2)', 'room_group($1)'))
        if name == 'kind':
            return rng.choice(('list', 'zset', 'stream'))
        if name.endswith(('_key', '_keys')) or name in ('key', 'queue', 'request_id'):
            return self.world.effect_key(rng)
        return None

    def reply(self, rng, kind):
        """A value that an earlier call has returned, unchanged or with a small change."""
        found = self.world.reply(rng, kind)
        return literal(found if rng.random() < 0.75 else mutated(rng, found))


class RedisValues:
    """Arguments of functions in Redis."""

    def __init__(self, world):
        self.world = world

    def argument(self, number, now=None):
        """Draws an argument. now: the argument in a call that the extension has made."""
        rng = random.Random(number)
        if now is not None and rng.random() < 0.35:
            return mutated(rng, now)
        kind = rng.random()
        if kind < 0.3:
            return rng.choice(BYTES)
        if kind < 0.5:
            return b'%d' % rng.choice(NUMBERS)
        if kind < 0.75:
            return self.world.reply(rng, 'redis').encode('utf-8', 'surrogateescape')
        if kind < 0.85:
            return self.world.effect_key(rng).encode()
        return bytes(rng.randrange(256) for _ in range(rng.randint(1, 24)))

    def name(self, number, domain, value=False):
        """The name of a key: mostly a fence of the domain, sometimes a similar name."""
        rng = random.Random(number)
        name = rng.choice(self.world.names(rng, domain)).encode()
        if value:
            name = name.replace(b':f:', b':v:', 1) + rng.choice((b':x', b':x', b':x', b':', b'', b':' + b'y' * 4096))
        kind = rng.random()
        if kind < 0.8:
            return name
        if kind < 0.9:
            return mutated(rng, name)
        return rng.choice(BYTES)
