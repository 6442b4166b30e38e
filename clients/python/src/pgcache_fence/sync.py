"""Fences: the library for threads and processes, on redis-py and any DB-API connection.

Owns: connections while a step of core.py runs. What is sent in one go is sent over one connection, and never sent again by itself: a
connection on which anything went wrong is closed.
"""

import contextlib
import copy
import json
import os
import threading
import time
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator, List, Optional, Sequence, Tuple

from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from . import topology, wire
from .core import MISSED, Core, Peeked, Steps
from .domains import Domain
from .errors import WrongUse

# The last: redis-py 4.3 words its own errors with attributes that connections over Unix sockets lack.
UNAVAILABLE = (RedisError, RedisClusterException, OSError, AttributeError)
Request = Tuple[int, bytes, int]


class Server:
    """One Redis process, or who has taken its place. It keeps some of the pool's connections: to borrow one costs as much as to use it."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.patience = pool, topology.Patience()
        self.arguments, self.most = topology.connection_arguments(pool), topology.connections_kept(pool)
        self.kept: List[Any] = []
        self.process = os.getpid()

    def send(self, packed: bytes) -> Any:
        """The connection over which it went."""
        if self.process != os.getpid():             # a child of fork must not read what its parent has asked
            self.process, self.kept = os.getpid(), []
        try:
            connection = self.kept.pop()
        except IndexError:
            connection = self.pool.get_connection(*self.arguments)
        try:
            connection.send_packed_command((packed,))
        except BaseException:
            self.give_up(connection)
            raise
        return connection

    def receive(self, connection: Any, n: int) -> List[Any]:
        answers = []
        read = connection.read_response
        try:
            for _ in range(n):
                try:
                    answers.append(read(disable_decoding=True))
                except ResponseError as error:
                    answers.append(error)
        except BaseException:
            self.give_up(connection)
            raise
        if len(self.kept) < self.most:
            self.kept.append(connection)
        else:
            self.pool.release(connection)
        self.patience.answered()
        return answers

    def give_up(self, connection: Any) -> None:
        try:
            connection.disconnect()
        finally:
            self.pool.release(connection)

    def ask(self, packed: bytes, n: int) -> Optional[List[Any]]:
        """The n answers; None if it cannot be had, or could not just now."""
        if not self.patience.over():
            return None
        try:
            return self.receive(self.send(packed), n)
        except UNAVAILABLE as error:
            return self.ask_again(error, packed, n)

    def ask_again(self, error: Exception, packed: bytes, n: int) -> Optional[List[Any]]:
        """All of it as a whole, over a new connection: the server may have closed those that were kept. But nobody waits twice."""
        while self.kept:
            with contextlib.suppress(IndexError, *UNAVAILABLE):
                self.give_up(self.kept.pop())
        if not isinstance(error, (RedisTimeout, TimeoutError)):
            with contextlib.suppress(*UNAVAILABLE):
                return self.receive(self.send(packed), n)
        self.patience.failed()
        return None


class Servers:
    """Of a list of clients, or of a cluster client."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self.cluster: Any = clients[0] if topology.is_cluster(clients[0]) else None
        self.members: Dict[Any, Server] = {}
        self.routes: Dict[int, Server] = {} if self.cluster else {
            place: Server(client.connection_pool) for place, client in enumerate(clients)}
        self.looked, self.looking = 0.0, threading.Lock()

    def at(self, place: int) -> Server:
        server = self.routes.get(place)
        if server is None:
            node = self.cluster.nodes_manager.get_node_from_slot(place)
            pool = self.cluster.get_redis_connection(node).connection_pool
            server = self.routes[place] = self.members.setdefault(pool, Server(pool))
        return server

    def look_again(self) -> None:
        """Where are the slots now? One thread asks, and not all the time."""
        if self.cluster is None or not self.looking.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self.looked > topology.PAUSE_MIN:
                self.cluster.nodes_manager.initialize()
                self.routes = {}
        except UNAVAILABLE:
            pass
        finally:
            self.looked = time.monotonic()
            self.looking.release()

    def exchange(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        answers = self.ask_all(requests)
        if self.cluster is not None and any(got is None or has_moved(got) for got in answers):
            self.look_again()
            moved = [i for i, got in enumerate(answers) if got is not None and has_moved(got)]
            for i, got in zip(moved, self.ask_all([requests[i] for i in moved])):       # as a whole, at who has the slot now
                answers[i] = got
        return answers

    def ask_all(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        """What is for one server goes in one go. All is sent before the first answer is awaited."""
        groups: Dict[Server, List[int]] = {}
        answers: List[Optional[List[Any]]] = [None] * len(requests)
        for i, (place, _, _) in enumerate(requests):
            with contextlib.suppress(*UNAVAILABLE):         # a slot that nobody has
                groups.setdefault(self.at(place), []).append(i)
        if len(groups) == 1:
            [(server, numbers)] = groups.items()
            share(answers, requests, numbers, server.ask(*joined(requests, numbers)))
            return answers
        sent: List[Tuple[Server, List[int], Any]] = []
        for server, numbers in groups.items():
            if server.patience.over():
                try:
                    sent.append((server, numbers, server.send(joined(requests, numbers)[0])))
                except UNAVAILABLE as error:
                    share(answers, requests, numbers, server.ask_again(error, *joined(requests, numbers)))
        while sent:
            server, numbers, connection = sent.pop()
            packed, n = joined(requests, numbers)
            try:
                got = server.receive(connection, n)
            except UNAVAILABLE as error:
                got = server.ask_again(error, packed, n)        # type: ignore[assignment]
            except BaseException:
                for other, _, unread in sent:               # nobody may take their answers for others
                    other.give_up(unread)
                raise
            share(answers, requests, numbers, got)
        return answers


def joined(requests: Sequence[Request], numbers: List[int]) -> Tuple[bytes, int]:
    if len(numbers) == 1:
        return requests[numbers[0]][1:]
    return b''.join([requests[i][1] for i in numbers]), sum([requests[i][2] for i in numbers])


def share(answers: List[Optional[List[Any]]], requests: Sequence[Request], numbers: List[int], got: Optional[List[Any]]) -> None:
    """What one server has answered to several requests."""
    if got is not None:
        at = 0
        for i in numbers:
            answers[i] = got[at:at + requests[i][2]]
            at += requests[i][2]


def has_moved(answers: List[Any]) -> bool:
    return any([isinstance(answer, (MovedError, AskError)) for answer in answers])


class Fences:
    """Strong reads of PostgreSQL's rows, from Redis where it can be.

    redis       a redis.Redis, a redis.cluster.RedisCluster, or a list of the former: the shards. With a socket_timeout.
    postgres    where rows are read: a DB-API connection to the primary, a pool with connection(), or a function that returns
                a connection or a context manager of one. Each thread needs its own connection.
    namespace   pgcache_fence.namespace, if you want it to be checked; PostgreSQL tells it.
    codec       how values become payloads: anything with dumps and loads, such as json (the default) or pgcache_fence.Raw. The
                default loader, and tables with cache => 'row', have JSON.
    local       how many values this process may keep. They are checked before each use, and shared: change none of them.
    """

    def __init__(self, redis: Any, postgres: Any = None, *, namespace: Optional[str] = None, codec: Any = None, local: int = 0) -> None:
        clients = topology.clients_of(redis)
        for client in clients:
            topology.require_usable(client, asynchronous=False)
        self._core = Core(topology.place_function(clients), namespace, codec or json, local)
        self._servers = Servers(clients)
        self._postgres = postgres
        self.counters = self._core.counters

    def read(self, domain: str, key: Any, load: Optional[Callable[[Any, Any], Any]] = None, *, connection: Any = None) -> Any:
        """The value of one key, None if there is no row. key: a value, or a tuple of the values of a key of several columns.
        load: function(connection, key) that returns (version, value) or None; without it the row is read, as a dict.
        connection: in place of that of postgres=."""
        seen = None
        name = self._core.quick_name(domain, key)
        if name is not None:
            kept = self._core.local and self._core.local.get(name)
            if kept and self._is_current(name, kept[0]):
                self.counters.read(domain, 'local')
                return kept[1]
            seen = name, wire.read_one(self._servers.exchange((self._core.request(name),))[0])
            value = self._core.value_of(domain, name, seen[1])
            if value is not MISSED:
                return value
        return self._run(self._core._again(self._core._read, domain, key, load, connection, seen=seen))

    def read_many(self, domain: str, keys: Iterable[Hashable], load: Optional[Callable[[Any, Any], Any]] = None, *,
                  connection: Any = None) -> Dict[Any, Any]:
        """key -> value or None. Each value was current at an instant of this call, not all of them at the same one.
        load: function(connection, keys) that returns a dict: key -> (version, value); it is given the keys that were missed."""
        return self._run(self._core._again(self._core._read_many, domain, list(keys), load, connection))

    def read_together(self, keys: Iterable[Tuple[str, Any]], *, connection: Any = None) -> List[Any]:
        """The values of (domain, key), …: all were current at one instant."""
        return self._run(self._core._read_together(list(keys), connection))

    def derived(self, name: str, *arguments: Any, connection: Any = None) -> Any:
        """The value that fence.read_derived returns."""
        return self._run(self._core._read_derived(name, arguments, connection))

    def peek(self, domain: str, key: Any, *, connection: Any = None) -> Peeked:
        """What Redis has, which may be old unless its freshness is "fresh". PostgreSQL is not asked for the value."""
        return self._run(self._core._peek(domain, key, connection))

    def name(self, domain: str, key: Any, *, connection: Any = None) -> str:
        """The fence of a key, as fence.fence_key tells it."""
        return self._run(self._core._fence(domain, key, connection))

    def describe(self, domain: str, *, connection: Any = None) -> Domain:
        """How the domain is attached."""
        return self._run(self._core._domain(domain, connection))

    def with_codec(self, codec: Any) -> 'Fences':
        """The same with another codec; clients and counters are shared."""
        other = copy.copy(self)
        other._core = self._core.with_codec(codec)
        return other

    # ------------------------------------------------------------------------------------------------------------------

    def _is_current(self, name: str, head: bytes) -> bool:
        """By a check that begins now."""
        [answers] = self._servers.exchange([(self._core.place_of(name), wire.pack_check((name,), (head,)), 1)])
        return answers is not None and answers[0] == b'1'

    def _run(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    result = self._do(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return done.value

    def _do(self, step: Tuple[Any, ...]) -> Any:
        kind = step[0]
        if kind in ('exchange', 'leave'):
            return self._servers.exchange(step[1])
        if kind == 'sleep':
            return time.sleep(step[1])
        with self._opened(step[2]) as connection, borrowed(connection):
            return run_on(connection, step[1])

    def _opened(self, given: Any) -> Any:
        source = given if given is not None else self._postgres
        if source is None:
            raise WrongUse('PostgreSQL has to be asked: pass postgres= to Fences, or connection= to the call')
        if not hasattr(source, 'cursor'):
            source = source.connection() if hasattr(source, 'connection') else source()
        # what a pool lends is returned at the end; a connection's own __exit__ would close it, or commit
        return contextlib.nullcontext(source) if hasattr(source, 'cursor') else source


@contextlib.contextmanager
def borrowed(connection: Any) -> Iterator[None]:
    """The transaction that the driver begins for us is over afterwards; one that is open stays."""
    was_idle = is_idle(connection)
    try:
        yield
    finally:
        if was_idle and not is_idle(connection) and not getattr(connection, 'closed', False):
            connection.rollback()


def is_idle(connection: Any) -> bool:
    status = getattr(getattr(connection, 'info', None), 'transaction_status', None)
    return status is not None and int(status) == 0


def run_on(connection: Any, steps: Steps) -> Any:
    try:
        step = next(steps)
        while True:
            if step[0] == 'query':
                result = fetch(connection, step[1], step[2])
            else:
                result = step[1](connection, step[2])
            step = steps.send(result)
    except StopIteration as done:
        return done.value


def fetch(connection: Any, sql: str, parameters: List[Any]) -> List[Any]:
    cursor = connection.cursor()
    try:
        cursor.execute(sql, parameters)
        return [tuple(row.values()) if isinstance(row, dict) else row for row in cursor.fetchall()]
    finally:
        cursor.close()

