"""Encodes the requests to Redis and decodes its answers. Does no input or output; sync.py and aio.py do that.

A request is (bytes, number of answers, read). read(answers) returns what they mean, or None if they are errors; it raises Mixed if
they are answers to another request.

Owns: the rules of a strong read (doc/clients.md). Record and permit come from one block, the record first. A record counts if it
begins with the permit's token and a blank, has a newline, and names the key that was asked for (rule K of doc/protocol.md). An answer
counts if it ends with the nonce of its question (rule N).
"""

import itertools
import os
import random
from binascii import crc_hqx
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

MULTI, EXEC = b'*1\r\n$5\r\nMULTI\r\n', b'*1\r\n$4\r\nEXEC\r\n'
BLOCK_OF_ONE = MULTI + b'*2\r\n$4\r\nMGET\r\n$%d\r\n%b\r\n' \
    b'*5\r\n$8\r\nFCALL_RO\r\n$11\r\nfence_token\r\n$1\r\n1\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n' + EXEC
BLOCK_ANSWERS = 4
SLOTS = 16384
LARGE = 4096                # payloads of so many bytes or more do not go through Lua
SIDE_MS = b'10000'

Message = Tuple[bytes, int, Callable[[List[Any]], Any]]


class Mixed(Exception):
    """An answer belongs to another question, so nothing that comes on this connection can be believed."""


class Hit(NamedTuple):
    head: bytes             # "<token> <version> "
    payload: bytes


class Miss(NamedTuple):
    permit: bytes
    busy_ms: int = 0
    asked: bool = False     # Redis has asked this reader to put the value


class Nothing(NamedTuple):
    """There is no permit, so no value counts as current, and none may be put."""
    why: str


UNARMED, PENDING, UNAVAILABLE, MIXED = Nothing('unarmed'), Nothing('pending'), Nothing('unavailable'), Nothing('mixed')
Answer = Any                # Hit, Miss or Nothing


def renew_nonces() -> None:
    """Begins at a random number, so that no two processes have the same soon."""
    global next_number
    next_number = itertools.count(random.SystemRandom().randrange(10 ** 12, 10 ** 13)).__next__


next_number: Callable[[], int]
renew_nonces()
if hasattr(os, 'register_at_fork'):                 # Windows does not fork
    os.register_at_fork(after_in_child=renew_nonces)


def new_nonce() -> bytes:
    return b'#%d' % next_number()


def command(*words: bytes) -> bytes:
    parts = [b'*%d\r\n' % len(words)]
    for word in words:
        parts += (b'$%d\r\n' % len(word), word, b'\r\n')
    return b''.join(parts)


def slot(name: str) -> int:
    """The hash slot, as Redis Cluster counts it. Every name of ours has text between braces."""
    return crc_hqx(name[name.index('{') + 1:name.index('}')].encode(), 0) % SLOTS


def domain_of(name: str) -> str:
    return name[:name.index(':{')]


def ending_of(name: bytes) -> bytes:
    """How the header of the name's record ends: with a blank and the key."""
    return b' ' + name[name.index(b':{') + 1:]


def not_understood(answers: List[Any]) -> Any:
    """For answers that do not fit the question: None if Redis has reported an error."""
    last = answers[-1]
    if isinstance(last, Exception) or isinstance(last, list) and any(isinstance(part, Exception) for part in last):
        return None
    raise Mixed('an answer of Redis has not the shape or the nonce of the question')


def pack_one(name: str) -> Message:
    """The block of one name. What it means: Hit, Miss or Nothing."""
    return one(name, judge)


def pack_peek(name: str) -> Message:
    """The same block. What it means: that, and the record or None."""
    return one(name, lambda record, permit, ending: (judge(record, permit, ending), record))


def one(name: str, judged: Callable[[Optional[bytes], bytes, bytes], Any]) -> Message:
    encoded, nonce = name.encode(), new_nonce()
    size, told_size = len(encoded), len(nonce)

    def read(answers: List[Any]) -> Any:
        done = answers[-1]
        if type(done) is list and len(done) == 2:
            records, permit = done
            if type(permit) is bytes and permit.endswith(b' ' + nonce) and type(records) is list and len(records) == 1:
                return judged(records[0], permit[:-told_size - 1], ending_of(encoded))
        return not_understood(answers)

    return BLOCK_OF_ONE % (size, encoded, size, encoded, told_size, nonce), BLOCK_ANSWERS, read


def pack_block(names: Sequence[str]) -> Message:
    """MULTI, MGET, fence_token, EXEC, which get BLOCK_ANSWERS answers. What they mean: a list with Hit, Miss or Nothing for each
    name. In a cluster all names must be in one slot."""
    first = first_of_domains(names)
    chosen = random.choice(names)                   # Redis sees only these names when it looks for hot keys
    first[domain_of(chosen)] = chosen
    encoded, nonce = [name.encode() for name in names], new_nonce()
    asked = [name.encode() for name in first.values()]

    def read(answers: List[Any]) -> Optional[List[Answer]]:
        done = answers[-1]
        if type(done) is not list or len(done) != 2 or type(done[0]) is not list or len(done[0]) != len(names):
            return not_understood(answers)
        records, told = done
        permits = read_permits(told, len(asked), nonce)
        if permits is None:
            return not_understood([told])
        of_domain = dict(zip(first, permits))
        return [judge(record, of_domain[domain_of(name)], ending_of(word)) for name, word, record in zip(names, encoded, records)]

    return b''.join((MULTI, command(b'MGET', *encoded),
                     command(b'FCALL_RO', b'fence_token', b'%d' % len(asked), *asked, nonce), EXEC)), BLOCK_ANSWERS, read


def read_permits(told: Any, n: int, nonce: bytes) -> Optional[List[bytes]]:
    """The permits of n domains, from a text if n is 1; None if it is no such answer."""
    if n == 1:
        return [told[:-len(nonce) - 1]] if type(told) is bytes and told.endswith(b' ' + nonce) else None
    if type(told) is list and len(told) == n + 1 and told[-1] == nonce and all(type(permit) is bytes for permit in told[:-1]):
        return told[:-1]
    return None


def first_of_domains(names: Sequence[str]) -> Dict[str, str]:
    first: Dict[str, str] = {}
    for name in names:
        first.setdefault(domain_of(name), name)
    return first


def judge(record: Optional[bytes], permit: bytes, ending: bytes) -> Answer:
    """What record and permit mean. The permit must come after the record, from the same process. ending: of the record's header."""
    if record is not None:
        newline = record.find(b'\n')
        if newline >= 0 and not record.endswith(ending, 0, newline):
            raise Mixed('a record that Redis sent is not of the key%s that was asked for' % ending.decode())
    token = permit[:permit.find(b' ') + 1]
    if not token:
        return UNARMED
    if record is not None and record.startswith(token):
        version_end = record.find(b' ', len(token))
        if 0 < version_end < newline:
            return Hit(record[:version_end + 1], record[newline + 1:])
    return Miss(permit)


def pack_get(name: str) -> Message:
    """The slow path. What it means: why there is no value, and whether another reader is about to put it."""
    encoded, nonce = name.encode(), new_nonce()

    def read(answers: List[Any]) -> Optional[Answer]:
        told = answers[-1]
        if type(told) is not list or len(told) < 2 or told[-1] != nonce:
            return not_understood(answers)
        if told[0] == b'hit' and len(told) == 3:
            found = judge(told[1], told[1], ending_of(encoded))          # the function has looked at its token
            if type(found) is Hit:
                return found
        elif told[0] == b'miss' and len(told) in (3, 5):
            busy = int(told[3]) if len(told) == 5 else 0
            return Miss(told[1], busy, not busy)
        elif told[0] in (b'pending', b'unarmed') and len(told) == 2:
            return PENDING if told[0] == b'pending' else UNARMED
        return not_understood(answers)

    return command(b'FCALL_RO', b'fence_get', b'1', encoded, nonce), 1, read


def pack_check(names: Sequence[str], heads: Sequence[bytes]) -> Message:
    """What it means: for each name whether its fence has this head and is current."""
    told, n = new_nonce(), len(names)
    words = [word for head in heads for word in head.split()]

    def read(answers: List[Any]) -> Optional[List[bool]]:
        flags = answers[-1]
        if type(flags) is not bytes or not flags.endswith(b' ' + told) or len(flags) != n + 1 + len(told):
            return not_understood(answers)
        return [flag == 49 for flag in flags[:n]]

    return command(b'FCALL_RO', b'fence_check', b'%d' % n, *(name.encode() for name in names), *words, told), 1, read


def pack_put(name: str, side: Optional[str], permit: bytes, version: int, payload: bytes, ttl_ms: int) -> Message:
    """What it means: 'stored' or 'refused'. side: for large payloads, a name that nobody else uses."""
    encoded, head, ttl = name.encode(), b'%d' % version, b'%d' % ttl_ms
    if side is None:
        return command(b'FCALL', b'fence_put', b'1', encoded, permit, head, payload, ttl), 1, read_put
    record = b''.join((permit[:permit.index(b' ') + 1], head, ending_of(encoded), b'\n', payload))
    return command(b'SET', side.encode(), record, b'PX', SIDE_MS) + command(
        b'FCALL', b'fence_put_from', b'2', encoded, side.encode(), permit, head, ttl), 2, read_put


def read_put(answers: List[Any]) -> Optional[str]:
    told = answers[-1]
    if type(told) is bytes and told.startswith((b'stored', b'refused')):
        return 'stored' if told == b'stored' else 'refused'
    return not_understood(answers)


def pack_release(name: str) -> Message:
    return command(b'FCALL_RO', b'fence_release', b'1', name.encode()), 1, read_release


def read_release(answers: List[Any]) -> Any:
    return 'released' if answers[-1] == [b'released'] else not_understood(answers)


def pack_derived(value: str) -> Message:
    """What it means: the payload or None, and the names and headers that must be checked in other places before it may be used."""
    nonce = new_nonce()

    def read(answers: List[Any]) -> Optional[Tuple[Optional[bytes], List[Tuple[str, bytes]]]]:
        told = answers[-1]
        if type(told) is list and told and told[-1] == nonce:
            if told[0] == b'miss' and len(told) == 2:
                return None, []
            if told[0] == b'hit' and len(told) == 3:
                return told[1], []
            if told[0] == b'elsewhere' and len(told) == 3:
                lines, _, payload = told[1].partition(b'\n\n')
                found = [line.split(b' ', 1) for line in lines.split(b'\n')]
                return payload, [(name.decode(), head) for name, head in found]
        return not_understood(answers)

    return command(b'FCALL_RO', b'fence_get_derived', b'1', value.encode(), nonce), 1, read
