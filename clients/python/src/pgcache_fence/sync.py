"""Fences: the library for threads and processes, on redis-py and any DB-API connection.

Owns: connections while a step of core.py runs. What is sent in one go is sent over one connection, and never sent again by itself: a
connection on which anything went wrong is closed.
"""

import contextlib
import copy
import json
import threading
import time
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator, List, Optional, Sequence, Tuple

from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError, ResponseError

from . import topology, wire
from .core import Core, Peeked, Steps
from .domains import Domain
from .errors import WrongUse

# The last: redis-py 4.3 words its own errors with attributes that connections over Unix sockets lack.
UNAVAILABLE = (RedisError, RedisClusterException, OSError, AttributeError)
Request = Tuple[int, bytes, int]


class Server:
    """One Redis process, or who has taken its place."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.patience = pool, topology.Patience()
        self.arguments = topology.connection_arguments(pool)

    def send(self, packed: bytes) -> Any:
        """The connection over which it went."""
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
        self.pool.release(connection)
        return answers

    def give_up(self, connection: Any) -> None:
        try:
            connection.disconnect()
        finally:
            self.pool.release(connection)


class Servers:
    """Of a list of clients, or of a cluster client."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self.cluster = clients[0] if topology.is_cluster(clients[0]) else None
        self.fixed = [] if self.cluster else [Server(client.connection_pool) for client in clients]
        self.members: Dict[str, Server] = {}
        self.looked, self.looking = 0.0, threading.Lock()

    def at(self, place: int) -> Server:
        if not self.cluster:
            return self.fixed[place]
        node = self.cluster.nodes_manager.get_node_from_slot(place)         # the master
        pool = self.cluster.get_redis_connection(node).connection_pool
        member = self.members.get(node.name)
        if member is None or member.pool is not pool:
            member = self.members[node.name] = Server(pool)
        return member

    def look_again(self) -> None:
        """Where are the slots now? One thread asks, and not all the time."""
        if not self.cluster or not self.looking.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self.looked > topology.PAUSE_MIN:
                self.cluster.nodes_manager.initialize()
        except UNAVAILABLE:
            pass
        finally:
            self.looked = time.monotonic()
            self.looking.release()

    def exchange(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        if len(requests) == 1 and not self.cluster:
            place, packed, n = requests[0]
            return [self.ask(self.fixed[place], packed, n)]
        answers = self.ask_all(requests)
        moved = [i for i, got in enumerate(answers) if has_moved(got)]
        if self.cluster and (moved or None in answers):
            self.look_again()
        if moved:                                       # sent again as a whole, to who has the slot now
            for i, got in zip(moved, self.ask_all([requests[i] for i in moved])):
                answers[i] = got
        return answers

    def ask(self, server: Server, packed: bytes, n: int) -> Optional[List[Any]]:
        if not server.patience.over():
            return None
        try:
            answers = server.receive(server.send(packed), n)
        except UNAVAILABLE:
            server.patience.failed()
            return None
        server.patience.pause = 0.0
        return answers

    def ask_all(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        """All are sent before the first answer is awaited; those to one server in one go."""
        groups: Dict[Any, List[int]] = {}
        answers: List[Optional[List[Any]]] = [None] * len(requests)
        for i, (place, _, _) in enumerate(requests):
            with contextlib.suppress(*UNAVAILABLE):
                groups.setdefault(self.at(place), []).append(i)
        sent = []
        for server, numbers in groups.items():
            if not server.patience.over():
                continue
            try:
                sent.append((server, numbers, server.send(b''.join(requests[i][1] for i in numbers))))
            except UNAVAILABLE:
                server.patience.failed()
        while sent:
            server, numbers, connection = sent.pop()
            try:
                got = server.receive(connection, sum(requests[i][2] for i in numbers))
            except UNAVAILABLE:
                server.patience.failed()
                continue
            except BaseException:
                for other, _, unread in sent:           # nobody may take their answers for others
                    other.give_up(unread)
                raise
            server.patience.answered()
            for i in numbers:
                answers[i], got = got[:requests[i][2]], got[requests[i][2]:]
        return answers


def has_moved(answers: Optional[List[Any]]) -> bool:
    return answers is not None and any(isinstance(answer, (MovedError, AskError)) for answer in answers)


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
        return self._run(self._core._again(self._core._read, domain, key, load, connection))

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
        return self._run(self._core._domain(domain, connection))          # type: ignore[no-any-return]

    def with_codec(self, codec: Any) -> 'Fences':
        """The same with another codec; clients and counters are shared."""
        other = copy.copy(self)
        other._core = self._core.with_codec(codec)
        return other

    # ------------------------------------------------------------------------------------------------------------------

    def _run(self, steps: Steps) -> Any:
        result = None
        try:
            step = next(steps)
            while True:
                try:
                    result = self._do(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return done.value

    def _do(self, step: Tuple[Any, ...]) -> Any:
        kind = step[0]
        if kind == 'exchange':
            return self._servers.exchange(step[1])
        if kind == 'check':
            _, name, head = step
            [answers] = self._servers.exchange([(self._core.place_of(name), wire.pack_check([name], [head]), 1)])
            return wire.read_check(1, answers and answers[0])[0]
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

