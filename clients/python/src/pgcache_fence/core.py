"""The steps of a read, without input and output; sync.py and aio.py execute the steps.

A read is a generator. It yields a step, and gets the result of the step:

    ('exchange', [(place, bytes, n), …])    send each request to the server of its place, over one connection: for each a
                                            list of n answers, or None
    ('leave', requests)                     the same, but do not wait for the answers if possible
    ('sleep', seconds)                      wait
    ('postgres', steps, connection)         run the generator `steps` on one connection: what it returns. It yields
        ('query', sql, parameters)          execute the query: its rows
        ('call', function, argument)        call function(connection, argument): what it returns

Owns: the order of the steps. The permit comes first, then the snapshot, then the put.
"""

import copy
import json
import random
import re
import time
from collections import OrderedDict
from decimal import Decimal
from typing import Any, Callable, Dict, Generator, Hashable, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import wire
from .counters import Counters
from .domains import DERIVED_KEY, DESCRIBE, FENCE_KEY, READ_DERIVED, TOGETHER, Domain, describe
from .errors import WrongUse
from .names import Ask, text_for_postgresql

Steps = Generator[Tuple[Any, ...], Any, Any]

BLOCK_MAX = 100             # maximum names in one block, because Redis does nothing else meanwhile
FILLERS_AWAITED = 2         # readers to wait for in turn; if the first dies, not all that wait should read PostgreSQL at once
FIRST_PAUSE = 0.001
ASKED_NAMES_MAX = 10000     # maximum names from PostgreSQL that are kept
INT_DIGITS = 4300           # the most that int() takes, since Python 3.11
DERIVED_SECONDS = 60        # time for which the name of a derived value is kept; a new definition changes the name
ABSENT = b'null'            # the payload that says that there is no such row
ROW_VERSION = re.compile(r'\d+-[0-9a-f]+\.\d+', re.ASCII)
MISSED = object()


class Changed(Exception):
    """The domain was attached again since its names were made, so they may be wrong."""


class Raw:
    """A codec for payloads that are bytes already."""

    @staticmethod
    def dumps(value: bytes) -> bytes:
        return value

    @staticmethod
    def loads(payload: bytes) -> bytes:
        return payload


class Json:
    """JSON whose numbers keep all digits: one with a fraction is a Decimal, others are int."""

    @staticmethod
    def dumps(value: Any) -> str:
        numbers: List[str] = []
        mark = '%032x' % random.getrandbits(128)        # stands for a Decimal, which the json module cannot print

        def print_decimal(other: Any) -> str:
            if not isinstance(other, Decimal):
                raise TypeError('%s cannot be JSON' % type(other).__name__)
            if not other.is_finite():
                return str(other)                       # a text, as PostgreSQL has it
            numbers.append(str(other))
            return mark

        text = json.dumps(value, default=print_decimal)
        first, *rest = text.split('"%s"' % mark)
        return first + ''.join([number + part for number, part in zip(numbers, rest)])

    @staticmethod
    def loads(payload: Union[str, bytes]) -> Any:
        try:
            return json.loads(payload, parse_float=Decimal)
        except json.JSONDecodeError:
            raise
        except ValueError:                              # an integer of so many digits that int() refuses it
            return json.loads(payload, parse_float=Decimal, parse_int=lambda text: int(text) if len(text) <= INT_DIGITS else Decimal(text))


class Peeked(NamedTuple):
    """freshness is fresh (a strong read would have returned the value), unknown, none or unavailable."""
    value: Any
    freshness: str


class Local:
    """Keeps the last `most` values that were hits, each with the head of its record. Readers must check a value before use."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: 'OrderedDict[str, Tuple[bytes, Any]]' = OrderedDict()

    def get(self, name: str) -> Optional[Tuple[bytes, Any]]:
        return self.kept.get(name)

    def keep(self, name: str, head: bytes, value: Any) -> None:
        self.kept[name] = head, value
        self.kept.move_to_end(name)
        while len(self.kept) > self.most:
            try:
                self.kept.popitem(last=False)
            except KeyError:                        # another thread was faster
                break

    def drop(self, name: str) -> None:
        self.kept.pop(name, None)


class Core:
    def __init__(self, place_of: Callable[[str], int], namespace: Optional[str], codec: Any, local: int) -> None:
        self.place_of, self.namespace, self.codec = place_of, namespace, codec
        self.local = Local(local) if local else None
        self.counters = Counters()
        self._domains: Dict[str, Domain] = {}
        self._asked: 'OrderedDict[Any, str]' = OrderedDict()
        self._derived: 'OrderedDict[Any, Tuple[str, float]]' = OrderedDict()

    def with_codec(self, codec: Any) -> 'Core':
        """A copy with another codec. It does not share the values that are kept."""
        other = copy.copy(self)
        other.codec, other.local = codec, self.local and Local(self.local.most)
        return other

    # ------------------------------------------------------------------------------------------------------------------
    # Domains and names
    # ------------------------------------------------------------------------------------------------------------------

    def _domain(self, name: str, connection: Any) -> Steps:
        domain = self._domains.get(name)
        if domain is None:
            rows = yield 'postgres', query(DESCRIBE, [name]), connection
            domain = self._domains[name] = describe(name, rows, self.namespace)
        return domain

    def _name(self, domain: Domain, key: Any, connection: Any) -> Steps:
        try:
            return domain.naming.name(key)
        except Ask:
            pass
        values = texts_of(key)
        asked = (domain.id, *values)
        if asked not in self._asked:
            rows = yield 'postgres', query(FENCE_KEY, [domain.name, values]), connection
            remember(self._asked, asked, rows[0][0])
        return self._asked[asked]

    def _fence(self, domain: str, key: Any, connection: Any) -> Steps:
        described = yield from self._domain(domain, connection)
        return (yield from self._name(described, key, connection))

    # ------------------------------------------------------------------------------------------------------------------
    # One value
    # ------------------------------------------------------------------------------------------------------------------

    # A read begins with these three functions, which take little time. If it is no hit, it continues in _read.

    def quick_name(self, domain: str, key: Any) -> Optional[str]:
        """The name of the fence; None if only PostgreSQL knows it."""
        described = self._domains.get(domain)
        if described is None:
            return None
        try:
            return described.naming.name(key)
        except Ask:
            return self._asked.get((described.id, *texts_of(key)))

    def request(self, name: str) -> wire.Request:
        return wire.pack_block(self.place_of(name), (name,))

    def value_of(self, domain: str, name: str, answer: wire.Answer) -> Any:
        return self._take(domain, name, answer) if type(answer) is wire.Hit else MISSED

    def _again(self, steps: Callable[..., Steps], domain: str, *arguments: Any, seen: Optional[Tuple[str, wire.Answer]] = None) -> Steps:
        """Runs the steps, and repeats them if the domain was attached again meanwhile. seen: what the quick read has found."""
        for _ in range(3):
            try:
                return (yield from steps(domain, *arguments, seen))
            except Changed:
                self._domains.pop(domain, None)
                seen = None
        raise WrongUse('domain "%s" is attached anew again and again' % domain)

    def _read(self, domain: str, key: Any, load: Any, connection: Any, seen: Optional[Tuple[str, wire.Answer]]) -> Steps:
        described = yield from self._domain(domain, connection)
        if seen is None:
            name = yield from self._name(described, key, connection)
            [answers] = yield 'exchange', [self.request(name)]
            seen = name, wire.read_one(answers)
        name, answer = seen
        if type(answer) is wire.Hit:
            return self._take(domain, name, answer)
        found = yield from self._fill(described, {name: key}, {name: answer}, load and one_of(load), connection)
        return found[name]

    def _take(self, domain: str, name: str, hit: wire.Hit) -> Any:
        self.counters.read(domain, 'hit')
        value = self._value(hit.payload)
        if self.local is not None:
            self.local.keep(name, hit.head, value)
        return value

    def _value(self, payload: bytes) -> Any:
        return None if payload == ABSENT else self.codec.loads(payload)

    # ------------------------------------------------------------------------------------------------------------------
    # Several, each by itself
    # ------------------------------------------------------------------------------------------------------------------

    def _read_many(self, domain: str, keys: Iterable[Hashable], load: Any, connection: Any, seen: None) -> Steps:
        described = yield from self._domain(domain, connection)
        name_of: Dict[Any, str] = {}
        for key in keys:
            name_of[key] = yield from self._name(described, key, connection)
        names = {name: key for key, name in name_of.items()}        # equal keys, such as 1 and '1', are one
        found, answers = yield from self._look(domain, list(names))
        missed = {name: names[name] for name in answers}
        if missed:
            found.update((yield from self._fill(described, missed, answers, load, connection)))
        return {key: found[name] for key, name in name_of.items()}

    def _look(self, domain: str, names: List[str]) -> Steps:
        """The values of hits, and the answers for the rest. Takes one round trip, or two if a kept value is old."""
        found: Dict[str, Any] = {}
        kept = {name: self.local.get(name) for name in names} if self.local is not None else {}
        checked = [name for name in names if kept.get(name)]
        groups = self._groups([name for name in names if not kept.get(name)])
        heads = {name: kept[name][0] for name in checked}       # type: ignore[index]
        checks = self._groups(checked)
        requests = [wire.pack_block(place, group) for place, group in groups]
        requests += [wire.pack_check(place, group, [heads[name] for name in group]) for place, group in checks]
        done = (yield 'exchange', requests) if requests else []
        answers: Dict[str, wire.Answer] = {}
        for (_, group), got in zip(groups, done):
            answers.update(zip(group, wire.read_block(group, got)))
        old = []
        for (_, group), got in zip(checks, done[len(groups):]):
            for name, good in zip(group, wire.read_check(len(group), got and got[0])):
                if good:
                    self.counters.read(domain, 'local')
                    found[name] = kept[name][1]                 # type: ignore[index]
                else:
                    self.local.drop(name)                       # type: ignore[union-attr]
                    old.append(name)
        if old:
            more, answers_of_old = yield from self._look(domain, old)
            found.update(more)
            answers.update(answers_of_old)
        for name in [name for name, answer in answers.items() if type(answer) is wire.Hit]:
            found[name] = self._take(domain, name, answers.pop(name))
        return found, answers

    def _groups(self, names: Sequence[str]) -> List[Tuple[int, List[str]]]:
        """Divides the names into blocks. A block has at most BLOCK_MAX names, all of one place."""
        places: Dict[int, List[str]] = {}
        for name in names:
            places.setdefault(self.place_of(name), []).append(name)
        return [(place, group[n:n + BLOCK_MAX]) for place, group in places.items() for n in range(0, len(group), BLOCK_MAX)]

    # ------------------------------------------------------------------------------------------------------------------
    # Misses
    # ------------------------------------------------------------------------------------------------------------------

    def _fill(self, domain: Domain, names: Dict[str, Any], answers: Dict[str, wire.Answer], load: Any, connection: Any) -> Steps:
        """The values of names that were no hit. names: name -> key; answers: what the block found."""
        found: Dict[str, Any] = {}
        yield from self._ask(domain, names, answers)
        waiting = {name: key for name, key in names.items() if getattr(answers[name], 'busy_ms', 0)}
        yield from self._load(domain, {name: key for name, key in names.items() if name not in waiting}, answers, load, connection, found)
        if waiting:
            yield from self._wait(domain, waiting, answers)
            yield from self._load(domain, waiting, answers, load, connection, found)
        return found

    def _ask(self, domain: Domain, names: Iterable[str], answers: Dict[str, wire.Answer]) -> Steps:
        """Asks Redis why the misses have no value, and stores these answers in `answers`."""
        missed = [name for name in names if type(answers[name]) is wire.Miss]
        if missed:
            done = yield 'exchange', [wire.pack_get(self.place_of(name), name) for name in missed]
            for name, got in zip(missed, done):
                answers[name] = wire.read_get(got and got[0])

    def _wait(self, domain: Domain, names: Iterable[str], answers: Dict[str, wire.Answer]) -> Steps:
        """Waits while another reader is about to put the values, but no longer than that reader is allowed to take."""
        self.counters.event(domain.name, 'waited')
        for _ in range(FILLERS_AWAITED):
            busy = [name for name in names if getattr(answers[name], 'busy_ms', 0)]
            deadline = time.monotonic() + max((answers[name].busy_ms for name in busy), default=0) / 1000
            pause = FIRST_PAUSE
            while busy and time.monotonic() < deadline:
                yield 'sleep', min(pause * random.uniform(0.5, 1.5), max(0.0, deadline - time.monotonic()))
                yield from self._ask(domain, busy, answers)
                busy = [name for name in busy if getattr(answers[name], 'busy_ms', 0)]
                pause *= 2

    def _load(self, domain: Domain, names: Dict[str, Any], answers: Dict[str, wire.Answer], load: Any, connection: Any,
              found: Dict[str, Any]) -> Steps:
        """Reads what is still no hit from PostgreSQL, in one query, and puts the rows that it may put."""
        for name in [name for name in names if type(answers[name]) is wire.Hit]:
            found[name] = self._take(domain.name, name, answers[name])
        left = [name for name in names if name not in found]
        if not left:
            return
        for name in left:
            if type(answers[name]) is wire.Nothing:
                self.counters.event(domain.name, answers[name].why)
        try:
            rows = yield 'postgres', self._rows(domain, left, names, load), connection
        except GeneratorExit:                           # the caller has dropped this read
            raise
        except BaseException:                           # also if the task was cancelled
            self._domains.pop(domain.name, None)        # the table may have another name by now
            yield 'leave', [self._release(name) for name in left if getattr(answers[name], 'asked', False)]
            raise
        self.counters.read(domain.name, 'database', len(left))
        for name in left:
            found[name] = self._value(rows[name][1]) if name in rows else None
        yield from self._put(domain, left, answers, rows)

    def _rows(self, domain: Domain, left: List[str], names: Dict[str, Any], load: Any) -> Steps:
        """name -> (row version, payload) of the names that have a row. A row without a row version must not be put."""
        lines = yield ('query', *(domain.vet() if load else domain.vet_and_load(left)))
        standby, fresh, number = lines[0][:3]
        if standby:
            raise WrongUse('postgres= leads to a standby, whose rows may be old. Connect to the primary '
                           '(target_session_attrs=primary)')
        if number != domain.id:
            raise Changed
        if load:
            name_of = {names[name]: name for name in left}
            loaded = yield 'call', load, list(name_of)
            rows = {name_of[key]: (row_version(row[0]), self._payload(row[1])) for key, row in loaded.items() if row is not None}
        else:
            rows = {left[line[3] - 1]: (line[4], line[5].encode()) for line in lines if line[3] is not None}
        return rows if fresh else {name: (None, payload) for name, (_, payload) in rows.items()}

    def _payload(self, value: Any) -> bytes:
        payload = self.codec.dumps(value)
        return payload.encode() if isinstance(payload, str) else payload

    def _put(self, domain: Domain, left: List[str], answers: Dict[str, wire.Answer], rows: Dict[str, Tuple[Optional[str], bytes]]) -> Steps:
        puts, releases = [], []
        for name in left:
            answer = answers[name]
            if type(answer) is not wire.Miss:
                continue
            version, payload = rows.get(name, (None, b''))
            if version is None:
                if name in rows:
                    self.counters.event(domain.name, 'kept_back')
                if answer.asked:
                    releases.append(self._release(name))
                continue
            side = domain.naming.beside(name, 'put-%016x' % random.getrandbits(64)) if len(payload) >= wire.LARGE else None
            puts.append(wire.pack_put(self.place_of(name), name, side, answer.permit, version, payload, domain.ttl_ms))
        if puts or releases:
            done = yield 'exchange', puts + releases
            for got in done[:len(puts)]:
                self.counters.event(domain.name, wire.read_put(got))

    def _release(self, name: str) -> wire.Request:
        """The request that tells Redis that this reader puts no value, so that other readers stop waiting for it."""
        return wire.pack_release(self.place_of(name), name)

    # ------------------------------------------------------------------------------------------------------------------
    # Several values of one instant, derived values, values that may be old
    # ------------------------------------------------------------------------------------------------------------------

    def _read_together(self, keys: Iterable[Tuple[str, Any]], connection: Any) -> Steps:
        pairs = list(keys)
        names = []
        for domain, key in pairs:
            names.append((yield from self._fence(domain, key, connection)))
        wanted = list(dict.fromkeys(names))
        groups = self._groups(wanted)
        done = yield 'exchange', [wire.pack_block(place, group) for place, group in groups]
        answers: Dict[str, wire.Answer] = {}
        for (_, group), got in zip(groups, done):
            answers.update(zip(group, wire.read_block(group, got)))
        if all(type(answer) is wire.Hit for answer in answers.values()) and (
                len(groups) == 1 or (yield from self._check_all(groups, answers))):
            return [self._take(domain, name, answers[name]) for (domain, _), name in zip(pairs, names)]
        lines = yield 'postgres', query(TOGETHER, [wanted, wanted]), connection
        values = {name: None if text is None else self._value(text.encode()) for name, (text, *_) in zip(wanted, lines)}
        for domain, _ in pairs:
            self.counters.read(domain, 'database')
        return [values[name] for name in names]

    def _check_all(self, groups: List[Tuple[int, List[str]]], hits: Dict[str, wire.Hit]) -> Steps:
        """Whether all fences are unchanged. The check must begin after the last of them was read."""
        done = yield 'exchange', [wire.pack_check(place, group, [hits[name].head for name in group]) for place, group in groups]
        return all(all(wire.read_check(len(group), got and got[0])) for (_, group), got in zip(groups, done))

    def _read_derived(self, derived: str, arguments: Sequence[Any], connection: Any) -> Steps:
        texts = [text_for_postgresql(argument) for argument in arguments]
        asked = (derived, *texts)
        value, until = self._derived.get(asked, ('', 0.0))
        if until < time.monotonic():
            rows = yield 'postgres', query(DERIVED_KEY, [derived, texts]), connection
            value = rows[0][0]
            remember(self._derived, asked, (value, time.monotonic() + DERIVED_SECONDS))
        [answers] = yield 'exchange', [wire.pack_derived(self.place_of(value), value)]
        payload, elsewhere = wire.read_derived(answers and answers[0])
        if payload is not None and elsewhere:
            heads = {name: wire.Hit(head, b'') for name, head in elsewhere}
            if not (yield from self._check_all(self._groups(list(heads)), heads)):
                payload = None
        if payload is not None:
            self.counters.read(derived, 'hit')
            return Json.loads(payload)
        rows = yield 'postgres', query(READ_DERIVED, [derived, texts]), connection
        self.counters.read(derived, 'database')
        return None if rows[0][0] is None else Json.loads(rows[0][0])

    def _peek(self, domain: str, key: Any, connection: Any) -> Steps:
        name = yield from self._fence(domain, key, connection)
        [answers] = yield 'exchange', [self.request(name)]
        answer = wire.read_one(answers)
        if type(answer) is wire.Hit:
            return Peeked(self._value(answer.payload), 'fresh')
        done = answers and answers[-1]
        if not isinstance(done, list) or not isinstance(done[0], list):
            return Peeked(None, 'unavailable')
        head, newline, payload = (done[0][0] or b'').partition(b'\n')
        return Peeked(self._value(payload), 'unknown') if newline else Peeked(None, 'none')


def query(sql: str, parameters: List[Any]) -> Steps:
    return (yield 'query', sql, parameters)


def texts_of(key: Any) -> List[str]:
    return [text_for_postgresql(value) for value in (key if isinstance(key, tuple) else (key,))]


def row_version(version: Any) -> Optional[str]:
    """What load= has returned as the row version. Whether the epoch in it is the right one, only Redis knows."""
    if version is None or isinstance(version, str) and ROW_VERSION.fullmatch(version):
        return version
    raise WrongUse('load= returned the version %r, which does not name the server that was read: select fence.row_version(version) in '
                   'the statement that reads the row, and return its result' % (version,))


def one_of(load: Callable[[Any, Any], Any]) -> Callable[[Any, List[Any]], Any]:
    """Wraps a function that loads one value into a function that loads several."""
    def load_one(connection: Any, keys: List[Any]) -> Any:
        row = load(connection, keys[0])
        if hasattr(row, '__await__'):
            return awaited(keys[0], row)
        return {keys[0]: row}

    async def awaited(key: Any, row: Any) -> Dict[Any, Any]:
        return {key: await row}

    return load_one


def remember(kept: 'OrderedDict[Any, Any]', key: Any, value: Any) -> None:
    kept[key] = value
    while len(kept) > ASKED_NAMES_MAX:
        kept.popitem(last=False)
