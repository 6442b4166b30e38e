"""Encodes the requests to Redis and decodes its answers. Does no input or output; sync.py and aio.py do that.

Owns: the rules of a strong read (doc/clients.md). Record and permit come from one block, the record first. A record counts if it
begins with the permit's token and a blank, and has a newline.
"""

import random
from binascii import crc_hqx
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

MULTI, EXEC = b'*1\r\n$5\r\nMULTI\r\n', b'*1\r\n$4\r\nEXEC\r\n'
TOKEN_OF_ONE = b'*4\r\n$8\r\nFCALL_RO\r\n$11\r\nfence_token\r\n$1\r\n1\r\n'
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


def pack_block(names: Sequence[str]) -> bytes:
    """MULTI, MGET, fence_token, EXEC, which get BLOCK_ANSWERS answers. In a cluster all names must be in one slot."""
    if len(names) == 1:
        name = names[0].encode()
        word = b'$%d\r\n%b\r\n' % (len(name), name)
        return b''.join((MGET_OF_ONE, word, TOKEN_OF_ONE, word, EXEC))
    first = first_of_domains(names)
    one = random.choice(names)                      # Redis sees only these names when it looks for hot keys
    first[domain_of(one)] = one
    asked = [name.encode() for name in first.values()]
    return b''.join((MULTI, command(b'MGET', *(name.encode() for name in names)),
                     command(b'FCALL_RO', b'fence_token', b'%d' % len(asked), *asked), EXEC))


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
    return [judge(record, of_domain[domain_of(name)]) for name, record in zip(names, records)]


def read_one(answers: Optional[List[Any]]) -> Answer:
    """The answer of a block with one name."""
    done = answers[-1] if answers else None
    if type(done) is list and len(done) == 2 and type(done[1]) is bytes and type(done[0]) is list:
        return judge(done[0][0], done[1])
    return UNAVAILABLE


def pack_get(name: str) -> bytes:
    return command(b'FCALL_RO', b'fence_get', b'1', name.encode())


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


def pack_check(names: Sequence[str], heads: Sequence[bytes]) -> bytes:
    words = [word for head in heads for word in head.split()]
    return command(b'FCALL_RO', b'fence_check', b'%d' % len(names), *(name.encode() for name in names), *words)


def read_check(n: int, answer: Any) -> List[bool]:
    return [flag == 49 for flag in answer] if isinstance(answer, bytes) and len(answer) == n else [False] * n


def pack_put(name: str, side: Optional[str], permit: bytes, version: int, payload: bytes, ttl_ms: int) -> Tuple[bytes, int]:
    """The bytes, and the number of their answers. side: for large payloads, a name that nobody else uses."""
    head, ttl = b'%d' % version, b'%d' % ttl_ms
    if side is None:
        return command(b'FCALL', b'fence_put', b'1', name.encode(), permit, head, payload, ttl), 1
    record = b''.join((permit[:permit.index(b' ') + 1], head, b' \n', payload))
    return command(b'SET', side.encode(), record, b'PX', SIDE_MS) + command(
        b'FCALL', b'fence_put_from', b'2', name.encode(), side.encode(), permit, head, ttl), 2


def read_put(answers: Optional[List[Any]]) -> str:
    """'stored' or 'refused'."""
    return 'stored' if answers and answers[-1] == b'stored' else 'refused'


def pack_release(name: str) -> bytes:
    return command(b'FCALL_RO', b'fence_release', b'1', name.encode())


def pack_derived(value: str) -> bytes:
    return command(b'FCALL_RO', b'fence_get_derived', b'1', value.encode())


def read_derived(answer: Any) -> Tuple[Optional[bytes], List[Tuple[str, bytes]]]:
    """The payload or None, and the names and headers that must be checked in other places before it may be used."""
    if not isinstance(answer, list) or len(answer) != 2:
        return None, []
    if answer[0] == b'hit':
        return answer[1], []
    lines, _, payload = answer[1].partition(b'\n\n')
    found = [line.split(b' ', 1) for line in lines.split(b'\n')]
    return payload, [(name.decode(), head) for name, head in found]
