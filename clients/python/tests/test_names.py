"""Names are those of fence.fence_key, for hostile values too; and what PostgreSQL refuses is refused."""

import random
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import psycopg2
import pytest

from pgcache_fence import Fences, WrongKey

TEXTS = ('plain-._~09AZ', '', ' ', 'a{b}c', '{', '}', ':', ',', '%', '%00', '%2C', 'a,b', 'new\nline', 'end\n', 'tab\tcr\r', '"', "'", "!'()*",
         '\\', '/', '?', '#&=+', 'ü', 'u\u0308', '漢字', '🙂', 'a:f:{x}', 'NULL', '$1 %s', '\x01\x7f', '\u2028', 'trailing  ', '%' * 200)
AWARE = timezone(timedelta(hours=5, minutes=45))

# column type -> values of Python
VALUES = {
    'smallint': [0, -1, 32767, -32768, '7', '-7'],
    'integer': [0, -1, 2147483647, -2147483648, '42', '+42', ' 42', '042', '-0', Decimal('42.0')],
    'bigint': [0, -9223372036854775808, 9223372036854775807, 9007199254740993, '9007199254740993'],
    'text': [*TEXTS, 42, uuid.UUID(int=7)],
    'varchar': [*TEXTS],
    'varchar(5)': ['', 'abcde', 'ab'],
    'char(6)': ['', 'a', 'a     ', ' a', 'ü', 'abcdef'],
    'uuid': [uuid.UUID('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'), 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{a0eebc999c0b4ef8bb6d6bb9bd380a11}'],
    'boolean': [True, False, 'yes', 'off', '1'],
    'bytea': [b'', b'\0', b'\xde\xad', bytearray(b'x'), memoryview(b'\\'), '\\xDEAD', 'abc'],
    'numeric': [0, -5, 10 ** 40, '1.50', '1e2', *map(Decimal, ('1.50', '100', '1E+2', '0.0010', '-0.0', '0E+5', '1E-30', '-12345678901234567890.120',
                                                              'NaN')), 'Infinity', '-Infinity'],
    'numeric(6,2)': [1, Decimal('1.005'), Decimal('1.10')],
    'date': [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), '2024-02-29', 'Feb 29 2024', 'infinity'],
    'time': [time(4, 5, 6, 789000), time(4, 5), time(23, 59, 59, 999999), '04:05 PM'],
    'timestamp': [datetime(2024, 2, 29, 12, 0, 0, 1), datetime(2024, 2, 29), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), 'infinity'],
    'timestamp(0)': [datetime(2024, 2, 29, 12, 0, 0, 500000), datetime(2024, 2, 29)],
    'timestamptz': [datetime(2026, 1, 31, 12, tzinfo=timezone.utc), datetime(2026, 1, 31, 12, 0, 0, 500000, AWARE), datetime(1970, 1, 1, tzinfo=AWARE),
                    '2026-01-31 12:00+02', datetime(1, 1, 1, tzinfo=AWARE)],
    'posint2': [7], 'inet': ['10.0.0.1', '10.0.0.1/32', '::1'], 'money': ['12.34'], 'timetz': ['04:05:06+02'],
    'mood': ['so so', 'ünwell'],
    'posint': [42, '042', -5], 'code': ['a', 'abc ', ''],
}

# What both sides must refuse.
UNFIT = {
    'integer': [2147483648, -2147483649, '1.5', 'x', '', True, 1.5, b'1', Decimal('1.5'), None, (1, 2), ()],
    'bigint': [1 << 63, '9223372036854775808'],
    'text': ['nul\0', True, 1.5, b'x', None, date(2024, 1, 1), '\ud800'],
    'uuid': ['x', 5, '', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1'],
    'boolean': [1, 'maybe'], 'date': [datetime(2024, 1, 1), 'x'], 'time': [datetime(2024, 1, 1), time(1, 2, tzinfo=timezone.utc)],
    'timestamp': [datetime(2024, 1, 1, tzinfo=timezone.utc), date(2024, 1, 1)],
    'timestamptz': [datetime(2024, 1, 1), date(2024, 1, 1)],
    'numeric': [True, 1.5, b'1', 'x'], 'char(6)': ['abcdefg'], 'code': ['abcd'], 'bytea': ['\\x0', 5],
}


@pytest.fixture(scope='module')
def keyed(single):
    """type -> a domain whose key is of that type."""
    single.sql("CREATE TYPE mood AS ENUM ('so so', 'ünwell')")
    single.sql('CREATE DOMAIN posint AS int CHECK (VALUE > 0); CREATE DOMAIN posint2 AS posint; CREATE DOMAIN code AS char(3)')
    domains = {}
    for n, kind in enumerate(VALUES):
        domain = domains[kind] = '%d {%s}:%%,é' % (n, kind)
        single.sql('CREATE TABLE keyed%d (k %s PRIMARY KEY, version bigint NOT NULL DEFAULT 0)' % (n, kind))
        single.sql('SELECT fence.attach(%s::regclass, domain => %s)', ('keyed%d' % n, domain))
    return domains


@pytest.fixture
def fences(single):
    connection = single.connect()
    yield Fences(single.redis(), connection)
    connection.close()


def given(value):
    """A value as PostgreSQL is given it, by the type that it has in Python."""
    return value.tobytes() if isinstance(value, memoryview) else bytes(value) if isinstance(value, bytearray) else \
        str(value) if isinstance(value, uuid.UUID) else value


CASTS = {int: '', bool: '', Decimal: '', float: '::float8', date: '', datetime: '', time: '', bytes: ''}


def told(single, domain, *values):
    casts = ', '.join('%s' + CASTS.get(type(given(value)), '::text') for value in values)
    return single.sql('SELECT fence.fence_key(%%s, %s)' % casts, (domain, *map(given, values)))[0][0]


@pytest.mark.parametrize('kind', VALUES)
def test_names_are_those_of_postgresql(single, keyed, fences, kind):
    for value in VALUES[kind]:
        assert fences.name(keyed[kind], value) == told(single, keyed[kind], value), repr(value)


@pytest.mark.parametrize('kind', UNFIT)
def test_what_is_no_key_is_refused(single, keyed, fences, kind):
    for value in UNFIT[kind]:
        with pytest.raises((WrongKey, psycopg2.Error)):
            raise AssertionError('%r is %s' % (value, fences.name(keyed[kind], value)))
        if not isinstance(value, (tuple, type(None))) and value not in ('nul\0', '\ud800'):
            with pytest.raises(psycopg2.Error):
                raise AssertionError('PostgreSQL takes %r for %s' % (value, told(single, keyed[kind], value)))


def test_random_values(single, keyed, fences):
    chance = random.Random(20)
    for _ in range(50):
        text = ''.join(chr(chance.choice((chance.randrange(1, 128), chance.randrange(160, 0x800), chance.randrange(0x10000, 0x10ffff))))
                       for _ in range(chance.randrange(12)))
        number = Decimal(chance.randrange(-10 ** 12, 10 ** 12)).scaleb(chance.randrange(-20, 20))
        moment = datetime(1, 1, 2, tzinfo=timezone.utc) + timedelta(microseconds=chance.randrange(3 * 10 ** 17))
        for kind, value in (('text', text), ('numeric', number), ('timestamptz', moment), ('timestamp', moment.replace(tzinfo=None)),
                            ('date', moment.date()), ('time', moment.time())):
            assert fences.name(keyed[kind], value) == told(single, keyed[kind], value), repr(value)


def test_tags_and_several_columns(single, fences):
    for text in TEXTS:
        assert fences.name('seat', (text, 7)) == told(single, 'seat', text, 7)
    assert fences.name('free', ('a', 5, uuid.UUID(int=1))) == single.name('free', 'a', 5, uuid.UUID(int=1))
    with pytest.raises(WrongKey, match='2 columns .room, row., not 1'):
        fences.name('seat', 'room 1')


def test_too_long(single, fences):
    assert fences.name('seat', ('x' * 1900, 7)) == told(single, 'seat', 'x' * 1900, 7)
    with pytest.raises(WrongKey, match='too long'):
        fences.name('seat', ('x' * 1999, 7))
    with pytest.raises(psycopg2.Error):
        told(single, 'seat', 'x' * 1999, 7)


def test_common_types_ask_nobody(single, keyed, fences):
    for kind, value in (('bigint', 5), ('text', 'ü'), ('uuid', uuid.UUID(int=5)), ('numeric', Decimal('1.0')), ('mood', 'so so')):
        fences.name(keyed[kind], value)
    fences._postgres = None
    for kind, value in (('bigint', 6), ('text', 'é'), ('uuid', uuid.UUID(int=6)), ('numeric', Decimal('2.0')), ('mood', 'ünwell')):
        fences.name(keyed[kind], value)


def test_others_are_asked_for_once(keyed, fences):
    first = fences.name(keyed['inet'], '10.0.0.1')
    fences._postgres = None
    assert fences.name(keyed['inet'], '10.0.0.1') == first
