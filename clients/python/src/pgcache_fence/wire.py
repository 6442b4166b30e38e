"""Encodes the requests to Redis and decodes its answers. Does no input or output; sync.py and aio.py do that.

Owns: the rules of a strong read (doc/clients.md). Record and permit come from one block, the record first. A record counts if it
begins with the permit's token and a blank, and has a newline. It must name the key that was asked for, and each answer the nonce
of its question (rules K and N in doc/protocol.md).
"""

import itertools
import os
import random
from binascii import crc_hqx
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

MULTI, EXEC = b'*1\r\n$5\r\nMULTI\r\n', b'*1\r\n$4\r\nEXEC\r\n'
TOKEN_OF_ONE = b'*5\r\n$8\r\nFCALL_RO\r\n$11\r\nfence_token\r\n$1\r\n1\r\n'
MGET_OF_ONE = MULTI + b'*2\r\n$4\r\nMGET\r\n'
BLOCK_ANSWERS = 4
SLOTS = 16384
LARGE = 4096                # payloads of so many bytes or more do not go through Lua
SIDE_MS = b'10000'


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


class Request(NamedTuple):
    place: int
    packed: bytes
    n: int                  # of answers
    nonce: bytes = b''      # which the last of them has; empty: none
    keys: Sequence[bytes] = ()          # which the records in it must name


class Confused(OSError):
    """An answer is not of its request, so whoever has got it must close the connection."""


UNARMED, PENDING, UNAVAILABLE = Nothing('unarmed'), Nothing('pending'), Nothing('unavailable')
Answer = Any                # Hit, Miss or Nothing


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


def renew_numbers() -> None:
    """They begin anywhere, so that no two processes have the same. (An application may give random the same seed again and again.)"""
    global next_number
    next_number = itertools.count(random.SystemRandom().getrandbits(63)).__next__


next_number: Callable[[], int]
renew_numbers()
if hasattr(os, 'register_at_fork'):                 # Windows does not fork
    os.register_at_fork(after_in_child=renew_numbers)


def new_nonce() -> bytes:
    return b'#%x' % next_number()


def key_of(name: str) -> bytes:
    """What a record of this fence, or of this value beside one, names as its key."""
    return name[name.index(':{') + 1:].encode()


def is_of(record: Optional[bytes], key: bytes) -> bool:
    """Whether the record is of this key. There may be none; and a mark names no key."""
    newline = record.find(b'\n') if record is not None else -1
    return newline < 0 or record[:newline].endswith(b' ' + key)        # type: ignore[index]


def strip(answer: Any, nonce: bytes) -> Any:
    """The answer without the nonce, with which it must end."""
    if type(answer) is list and answer and answer[-1] == nonce:
        return answer[:-1]
    if type(answer) is bytes and answer.endswith(b' ' + nonce):
        return answer[:-len(nonce) - 1]
    raise Confused('Redis gave an answer to another question than the one that was asked')


def vet(request: Request, answers: List[Any]) -> None:
    """Takes the nonce away from the answers to the request. Raises Confused unless they are such."""
    last = answers[-1]
    if not request.nonce or isinstance(last, Exception):
        return
    records: Any = ()
    if request.n == BLOCK_ANSWERS:
        if type(last) is not list or len(last) != 2:
            raise Confused('Redis gave another answer than that to a block')
        records = last[0]
        if not isinstance(last[1], Exception):
            last[1] = strip(last[1], request.nonce)
    else:
        answers[-1] = last = strip(last, request.nonce)
        if request.keys and last[0] == b'hit':
            records = last[1:]
    if isinstance(records, Exception):
        return
    if type(records) is list and len(records) != len(request.keys) or not all(map(is_of, records, request.keys)):
        raise Confused('Redis gave the record of another key than the one that was asked for')


def pack_block(place: int, names: Sequence[str]) -> Request:
    """MULTI, MGET, fence_token, EXEC, which get BLOCK_ANSWERS answers. In a cluster all names must be in one slot."""
    nonce = new_nonce()
    if len(names) == 1:
        name = names[0].encode()
        word = b'$%d\r\n%b\r\n' % (len(name), name)
        packed = b''.join((MGET_OF_ONE, word, TOKEN_OF_ONE, word, b'$%d\r\n%b\r\n' % (len(nonce), nonce), EXEC))
        return Request(place, packed, BLOCK_ANSWERS, nonce, (key_of(names[0]),))
    first = first_of_domains(names)
    one = random.choice(names)                      # Redis sees only these names when it looks for hot keys
    first[domain_of(one)] = one
    asked = [name.encode() for name in first.values()]
    packed = b''.join((MULTI, command(b'MGET', *(name.encode() for name in names)),
                       command(b'FCALL_RO', b'fence_token', b'%d' % len(asked), *asked, nonce), EXEC))
    return Request(place, packed, BLOCK_ANSWERS, nonce, [key_of(name) for name in names])


def question(place: int, function: bytes, names: Sequence[str], *words: bytes, keys: Sequence[bytes] = ()) -> Request:
    nonce = new_nonce()
    packed = command(b'FCALL_RO', function, b'%d' % len(names), *(name.encode() for name in names), *words, nonce)
    return Request(place, packed, 1, nonce, keys)


def first_of_domains(names: Sequence[str]) -> Dict[str, str]:
    first: Dict[str, str] = {}
    for name in names:
        first.setdefault(domain_of(name), name)
    return first


def judge(record: Optional[bytes], permit: bytes) -> Answer:
    """What record and permit mean. The permit must come after the record, from the same process."""
    token = permit[:permit.find(b' ') + 1]
    if not token:
        return UNARMED
    if record is not None and record.startswith(token):
        newline = record.find(b'\n')
        version_end = record.find(b' ', len(token))
        if 0 < version_end < newline:
            return Hit(record[:version_end + 1], record[newline + 1:])
    return Miss(permit)


def read_block(names: Sequence[str], answers: Optional[List[Any]]) -> List[Answer]:
    """The answer for each name of the block."""
    done = answers[-1] if answers else None
    if not isinstance(done, list) or len(done) != 2 or not isinstance(done[0], list) or len(done[0]) != len(names):
        return [UNAVAILABLE] * len(names)
    records, permits = done
    if isinstance(permits, bytes):                  # of one domain
        return [judge(record, permits) for record in records]
    if not isinstance(permits, list):
        return [UNAVAILABLE] * len(names)
    of_domain = dict(zip(first_of_domains(names), permits))
    return [judge(record, of_domain.get(domain_of(name), b'')) for name, record in zip(names, records)]


def read_one(answers: Optional[List[Any]]) -> Answer:
    """The answer of a block with one name."""
    done = answers[-1] if answers else None
    if type(done) is list and len(done) == 2 and type(done[1]) is bytes and type(done[0]) is list:
        return judge(done[0][0], done[1])
    return UNAVAILABLE


def pack_get(place: int, name: str) -> Request:
    return question(place, b'fence_get', (name,), keys=(key_of(name),))


def read_get(answer: Any) -> Answer:
    """The answer of the slow path: why there is no value, and whether another reader is about to put it."""
    if not isinstance(answer, list) or not answer:
        return UNAVAILABLE
    if answer[0] == b'hit':
        return judge(answer[1], answer[1])          # the function has looked at its token
    if answer[0] == b'miss':
        busy = int(answer[3]) if len(answer) == 4 else 0
        return Miss(answer[1], busy, not busy)
    return PENDING if answer[0] == b'pending' else UNARMED


def pack_check(place: int, names: Sequence[str], heads: Sequence[bytes]) -> Request:
    return question(place, b'fence_check', names, *[word for head in heads for word in head.split()])


def read_check(n: int, answer: Any) -> List[bool]:
    return [flag == 49 for flag in answer] if isinstance(answer, bytes) and len(answer) == n else [False] * n


def pack_put(place: int, name: str, side: Optional[str], permit: bytes, row_version: str, payload: bytes, ttl_ms: int) -> Request:
    """row_version: "<epoch>.<version>". side: for large payloads, a name that nobody else uses."""
    word, ttl = row_version.encode(), b'%d' % ttl_ms
    if side is None:
        return Request(place, command(b'FCALL', b'fence_put', b'1', name.encode(), permit, word, payload, ttl), 1)
    version = word[word.index(b'.') + 1:]           # the record's token has the epoch
    record = b''.join((permit[:permit.index(b' ') + 1], version, b' ', key_of(name), b'\n', payload))
    return Request(place, command(b'SET', side.encode(), record, b'PX', SIDE_MS) + command(
        b'FCALL', b'fence_put_from', b'2', name.encode(), side.encode(), permit, word, ttl), 2)


def read_put(answers: Optional[List[Any]]) -> str:
    """'stored' or 'refused'."""
    return 'stored' if answers and answers[-1] == b'stored' else 'refused'


def pack_release(place: int, name: str) -> Request:
    return Request(place, command(b'FCALL_RO', b'fence_release', b'1', name.encode()), 1)


def pack_derived(place: int, value: str) -> Request:
    return question(place, b'fence_get_derived', (value,))


def read_derived(answer: Any) -> Tuple[Optional[bytes], List[Tuple[str, bytes]]]:
    """The payload or None, and the names and headers that must be checked in other places before it may be used."""
    if not isinstance(answer, list) or len(answer) != 2:
        return None, []
    if answer[0] == b'hit':
        return answer[1], []
    lines, _, payload = answer[1].partition(b'\n\n')
    found = [line.split(b' ', 1) for line in lines.split(b'\n')]
    return payload, [(name.decode(), head) for name, head in found]
