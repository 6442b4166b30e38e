"""Computes the names of fences like fence.fence_key, for types whose text does not depend on PostgreSQL.

Owns: the canonical text of keys. For each value this file either prints exactly the text that PostgreSQL prints, or refuses the
value (WrongKey), or leaves it to PostgreSQL (Ask). It never guesses. Knows neither Redis nor PostgreSQL.
"""

import re
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import quote, unquote
from uuid import UUID

from .errors import WrongKey

KEY_MAX_LENGTH = 2000
NAME_MAX_LENGTH = 4000
INTEGERS = {'int2': 1 << 15, 'int4': 1 << 31, 'int8': 1 << 63}
INTEGER = re.compile(r'-?(0|[1-9][0-9]*)', re.ASCII)
UUID_TEXT = re.compile(r'[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}')
ZEROS = re.compile(r'(\.\d*?)0+(?=\+|$)')
NUMERIC_DIGITS = 1000       # for more digits, PostgreSQL decides


class Ask(Exception):
    """Only PostgreSQL knows the text of this value."""


class Column(NamedTuple):
    name: str
    type: str               # name in pg_type (int8, text, …), of a domain its base type; "enum" for all enums; "" without a table
    modifier: int           # of char(n): n + 4, or -1
    cast: str               # the type's name in SQL, with its schema
    equal: str              # the operator that compares two of them, with its schema


def encode(text: str) -> str:
    """Percent-encodes the text like RFC 3986. The empty text is %00."""
    try:
        return quote(text, safe='') or '%00'
    except UnicodeEncodeError:
        raise WrongKey('a key must be a text that UTF-8 can encode, not %r' % text) from None


def unfit(value: Any, column: Column) -> WrongKey:
    return WrongKey('a value of type %s cannot be a key of column "%s" (%s); convert it to the type of the column first'
                    % (type(value).__name__, column.name, column.type or 'text'))


def of_text(value: Any, column: Column) -> str:
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise unfit(value, column)
    if '\0' in value:
        raise WrongKey('a text in PostgreSQL has no NUL character: %r' % value)
    if column.type != 'bpchar':
        return value
    value = value.rstrip(' ')
    if len(value) > column.modifier - 4 >= 0:
        raise WrongKey('the text has %d characters, column "%s" has room for %d' % (len(value), column.name, column.modifier - 4))
    return value


def of_integer(value: Any, column: Column) -> str:
    if isinstance(value, str):
        if not INTEGER.fullmatch(value) or value == '-0':
            raise Ask
        value = int(value)
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise unfit(value, column)
    if not -INTEGERS[column.type] <= value < INTEGERS[column.type]:
        raise WrongKey('%d is out of range for column "%s" (%s)' % (value, column.name, column.type))
    return int.__str__(value)


def of_numeric(value: Any, column: Column) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    if isinstance(value, str):
        raise Ask
    if not isinstance(value, Decimal):
        raise unfit(value, column)
    if not value.is_finite():
        raise Ask
    if value and abs(value.adjusted()) + len(value.as_tuple().digits) > NUMERIC_DIGITS:
        raise Ask
    text = format(value, 'f') if value else '0'
    return text.rstrip('0').rstrip('.') if '.' in text else text


def of_uuid(value: Any, column: Column) -> str:
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        raise unfit(value, column)
    if not UUID_TEXT.fullmatch(value):
        raise Ask
    return value.lower()


def of_boolean(value: Any, column: Column) -> str:
    if isinstance(value, str):
        raise Ask
    if not isinstance(value, bool):
        raise unfit(value, column)
    return 't' if value else 'f'


def of_bytes(value: Any, column: Column) -> str:
    if isinstance(value, str):
        raise Ask
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise unfit(value, column)
    return '\\x' + bytes(value).hex()


def of_moment(value: Any, column: Column) -> str:
    """The text of dates and times. A datetime does not count as a date; without a time zone it does not fit timestamptz."""
    kind, zoned = column.type, column.type == 'timestamptz'
    if isinstance(value, str):
        raise Ask
    fits = type(value) is not datetime and isinstance(value, date) if kind == 'date' else isinstance(value, time) if kind == 'time' \
        else isinstance(value, datetime)
    if not fits or kind != 'date' and (value.utcoffset() is not None) != zoned:
        raise unfit(value, column)
    if zoned:
        try:
            value = value.astimezone(timezone.utc)
        except OverflowError:
            raise Ask from None
    return ZEROS.sub(r'\1', value.isoformat())


PRINTERS: Dict[str, Callable[[Any, Column], str]] = {
    '': of_text, 'text': of_text, 'varchar': of_text, 'bpchar': of_text, 'enum': of_text, 'int2': of_integer, 'int4': of_integer,
    'int8': of_integer, 'numeric': of_numeric, 'uuid': of_uuid, 'bool': of_boolean, 'bytea': of_bytes, 'date': of_moment,
    'time': of_moment, 'timestamp': of_moment, 'timestamptz': of_moment}


def text_for_postgresql(value: Any) -> str:
    """The text of any value in a form that PostgreSQL can read, for fence.fence_key(text, text[])."""
    if isinstance(value, bool):
        return 't' if value else 'f'
    if isinstance(value, (bytes, bytearray, memoryview)):
        return '\\x' + bytes(value).hex()
    if isinstance(value, (date, time)):
        return value.isoformat()
    return str(value)


class Naming:
    """The names of one domain. All begin with place, fence.fence_prefix. tag is its template, or None."""

    def __init__(self, place: str, columns: Sequence[Column], tag: Optional[str]) -> None:
        self.place, self.columns = place, list(columns)
        self.tag = re.split(r'\{([^{}]*)\}', tag) if tag else None
        self.single = place + ':{'
        self.integer = INTEGERS.get(self.columns[0].type, 0) if len(self.columns) == 1 and not tag else 0

    def name(self, key: Any) -> str:
        """The name of the key's fence. The key is one value, or a tuple. Raises Ask if only PostgreSQL knows the name."""
        if self.integer and type(key) is int and -self.integer <= key < self.integer:
            return '%s%d}' % (self.single, key)
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.columns) and (self.columns[0].type or not values):
            raise WrongKey('the key has %d columns (%s), not %d' % (
                len(self.columns), ', '.join(column.name for column in self.columns), len(values)))
        columns = self.columns if self.columns[0].type else self.columns * len(values)
        parts = []
        for value, column in zip(values, columns):
            if value is None:
                raise WrongKey('the value of key column "%s" is None; a row with a null in its key has no fence' % column.name)
            printer = PRINTERS.get(column.type)
            if printer is None:
                raise Ask
            parts.append(encode(printer(value, column)))
        return self.join(parts)

    def join(self, parts: List[str]) -> str:
        key = ','.join(parts)
        name = '%s%s}' % (self.single, key)
        if self.tag:
            filled = list(self.tag)
            for n in range(1, len(filled), 2):
                filled[n] = parts[[column.name for column in self.columns].index(filled[n])]
            name = '%s:{%s}:%s' % (self.place, ''.join(filled), key)
        if len(key) > KEY_MAX_LENGTH or len(name) > NAME_MAX_LENGTH:
            raise WrongKey('the key is too long: percent-encoded it has %d bytes, at most are %d' % (len(key), KEY_MAX_LENGTH))
        return name

    def parts(self, name: str) -> Tuple[str, ...]:
        """The canonical texts of the key that the name has."""
        braces, _, key = name[len(self.single):].partition('}')
        return tuple('' if part == '%00' else unquote(part) for part in (key[1:] or braces).split(','))

    def beside(self, name: str, suffix: str) -> str:
        """Another name in the slot of the fence."""
        namespace = self.place[:self.place.rindex(':f:')]
        return namespace + ':v:' + name[len(namespace) + 3:] + ':' + suffix
