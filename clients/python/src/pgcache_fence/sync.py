"""Fences: the library for threads and processes, on redis-py and any DB-API connection.

Owns: connections while a step of core.py runs. All bytes of one request go over one connection. It never repeats a part of a
request, and closes a connection after any error on it, or if an answer belongs to another question.
"""

import contextlib
import copy
import json
import logging
import os
import threading
import time
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator, List, Optional, Sequence, Tuple

from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from . import topology, wire
from .core import MISSED, Core, Peeked, Request, Steps
from .domains import Domain
from .errors import WrongUse

# AttributeError: redis-py 4.3 formats its own errors with attributes that connections over Unix sockets lack.
UNAVAILABLE = (RedisError, RedisClusterException, OSError, AttributeError)
MOVED = wire.Nothing('unavailable')         # another node of the cluster has the slot
LOG = logging.getLogger('pgcache_fence')


class Server:
    """One Redis process, or its successor. Keeps some of the pool's connections, because to borrow one costs as much as to use it."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.patience = pool, topology.Patience()
        self.arguments, self.most = topology.connection_arguments(pool), topology.connections_kept(pool)
        self.kept: List[Any] = []
        self.process = os.getpid()

    def send(self, packed: bytes) -> Any:
        """Sends the bytes, and returns the connection."""
        if self.process != os.getpid():             # after fork, the child must not read answers to its parent
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

    def receive(self, connection: Any, requests: Sequence[Request]) -> List[Any]:
        """Reads the answers, and returns what they mean, for each request."""
        read, meanings = connection.read_response, []
        try:
            for _, _, n, meaning in requests:
                answers = []
                for _ in range(n):
                    try:
                        answers.append(read(disable_decoding=True))
                    except ResponseError as error:
                        answers.append(error)
                meanings.append(meant(answers, meaning))
        except BaseException:
            self.give_up(connection)
            raise
        if len(self.kept) < self.most:
            self.kept.append(connection)
        else:
            self.pool.release(connection)
        self.patience.answered()
        return meanings

    def give_up(self, connection: Any) -> None:
        try:
            connection.disconnect()
        finally:
            self.pool.release(connection)

    def ask(self, requests: Sequence[Request]) -> List[Any]:
        """What the answers mean; Nothing for each request if the server fails, or has failed a moment ago."""
        if not self.patience.over():
            return [wire.UNAVAILABLE] * len(requests)
        try:
            return self.receive(self.send(joined(requests)), requests)
        except wire.Mixed as error:
            return mixed(error, requests)
        except UNAVAILABLE as error:
            return self.ask_again(error, requests)

    def ask_again(self, error: Exception, requests: Sequence[Request]) -> List[Any]:
        """Repeats all over a new connection, because the server may have closed the kept ones; not after a timeout."""
        while self.kept:
            with contextlib.suppress(IndexError, *UNAVAILABLE):
                self.give_up(self.kept.pop())
        if not isinstance(error, (RedisTimeout, TimeoutError)):
            try:
                return self.receive(self.send(joined(requests)), requests)
            except wire.Mixed as wrong:
                return mixed(wrong, requests)
            except UNAVAILABLE:
                pass
        self.patience.failed()
        return [wire.UNAVAILABLE] * len(requests)


class Servers:
    """The servers of a list of clients, or of a cluster client."""

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
        """Asks the cluster where the slots are now. Only one thread asks, and not too often."""
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

    def exchange(self, requests: Sequence[Request]) -> List[Any]:
        meanings = self.ask_all(requests)
        if self.cluster is not None and any(meaning is MOVED or meaning is wire.UNAVAILABLE for meaning in meanings):
            self.look_again()
            moved = [i for i, meaning in enumerate(meanings) if meaning is MOVED]
            for i, meaning in zip(moved, self.ask_all([requests[i] for i in moved])):   # repeated as a whole, at the new owner
                meanings[i] = meaning
        return meanings

    def ask_all(self, requests: Sequence[Request]) -> List[Any]:
        """Sends the requests of each server in one piece, and sends all of them before it waits for the first answer."""
        groups: Dict[Server, List[int]] = {}
        for i, request in enumerate(requests):
            with contextlib.suppress(*UNAVAILABLE):         # no server has the slot
                groups.setdefault(self.at(request[0]), []).append(i)
        if len(groups) == 1:
            [(server, numbers)] = groups.items()
            if len(numbers) == len(requests):
                return server.ask(requests)
        meanings: List[Any] = [wire.UNAVAILABLE] * len(requests)
        sent: List[Tuple[Server, List[int], Any]] = []
        try:
            for server, numbers in groups.items():
                if server.patience.over():
                    try:
                        sent.append((server, numbers, server.send(joined([requests[i] for i in numbers]))))
                    except UNAVAILABLE as error:
                        share(meanings, numbers, server.ask_again(error, [requests[i] for i in numbers]))
            while sent:
                server, numbers, connection = sent.pop()
                wanted = [requests[i] for i in numbers]
                try:
                    got = server.receive(connection, wanted)
                except wire.Mixed as error:
                    got = mixed(error, wanted)
                except UNAVAILABLE as error:
                    got = server.ask_again(error, wanted)
                share(meanings, numbers, got)
        except BaseException:
            for other, _, unread in sent:                   # nobody may read these answers as answers to another request
                other.give_up(unread)
            raise
        return meanings


def joined(requests: Sequence[Request]) -> bytes:
    return requests[0][1] if len(requests) == 1 else b''.join([request[1] for request in requests])


def meant(answers: List[Any], read: Callable[[List[Any]], Any]) -> Any:
    """What the answers to one request mean; Nothing if they are errors."""
    meaning = read(answers)
    if meaning is None:
        return MOVED if any([isinstance(answer, (MovedError, AskError)) for answer in answers]) else wire.UNAVAILABLE
    return meaning


def mixed(error: wire.Mixed, requests: Sequence[Request]) -> List[Any]:
    """The connection has been closed. Nothing that came on it counts."""
    LOG.warning('%s; its connection is closed, and PostgreSQL is read instead', error)
    return [wire.MIXED] * len(requests)


def share(meanings: List[Any], numbers: List[int], got: List[Any]) -> None:
    """Divides what one server has told among the requests of these numbers."""
    for i, meaning in zip(numbers, got):
        meanings[i] = meaning


class Fences:
    """Strong reads of PostgreSQL rows, from Redis if possible.

    redis       a redis.Redis, a redis.cluster.RedisCluster, or a list of redis.Redis, one for each shard. It needs a socket_timeout.
    postgres    where to read rows: a DB-API connection to the primary, a pool with connection(), or a function that returns
                a connection or a context manager of one. Each thread needs its own connection.
    namespace   if given, it must equal pgcache_fence.namespace of the server. The library asks PostgreSQL for it anyway.
    codec       converts values to payloads and back: anything with dumps and loads, such as json (the default) or
                pgcache_fence.Raw. The default loader, and tables with cache => 'row', make JSON.
    local       how many values this process may keep. The library checks them before each use. Readers share them: do not
                change them.
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
        """The value of one key, or None if there is no row. key: a value, or a tuple with a value for each column of the key.
        load: function(connection, key) that returns (version, value) or None; without it the value is the row, as a dict.
        connection: use this one instead of postgres=."""
        seen = None
        name = self._core.quick_name(domain, key)
        if name is not None:
            kept = self._core.local and self._core.local.get(name)
            if kept and self._is_current(name, kept[0]):
                self.counters.read(domain, 'local')
                return kept[1]
            seen = name, self._servers.exchange((self._core.request(name),))[0]
            value = self._core.value_of(domain, name, seen[1])
            if value is not MISSED:
                return value
        return self._run(self._core._again(self._core._read, domain, key, load, connection, seen=seen))

    def read_many(self, domain: str, keys: Iterable[Hashable], load: Optional[Callable[[Any, Any], Any]] = None, *,
                  connection: Any = None) -> Dict[Any, Any]:
        """key -> value or None. Each value was current at some instant of this call, but not all at the same instant.
        load: function(connection, keys) that returns a dict: key -> (version, value). It gets the keys that Redis does not have."""
        return self._run(self._core._again(self._core._read_many, domain, list(keys), load, connection))

    def read_together(self, keys: Iterable[Tuple[str, Any]], *, connection: Any = None) -> List[Any]:
        """The values of the pairs (domain, key), in their order. All of them were current at one instant."""
        return self._run(self._core._read_together(list(keys), connection))

    def derived(self, name: str, *arguments: Any, connection: Any = None) -> Any:
        """The value that fence.read_derived returns."""
        return self._run(self._core._read_derived(name, arguments, connection))

    def peek(self, domain: str, key: Any, *, connection: Any = None) -> Peeked:
        """What Redis has. The value may be old unless its freshness is "fresh". Does not ask PostgreSQL for the value."""
        return self._run(self._core._peek(domain, key, connection))

    def name(self, domain: str, key: Any, *, connection: Any = None) -> str:
        """The name of the key's fence, as fence.fence_key returns it."""
        return self._run(self._core._fence(domain, key, connection))

    def describe(self, domain: str, *, connection: Any = None) -> Domain:
        """How the domain is attached."""
        return self._run(self._core._domain(domain, connection))

    def with_codec(self, codec: Any) -> 'Fences':
        """A copy with another codec, which shares clients and counters."""
        other = copy.copy(self)
        other._core = self._core.with_codec(codec)
        return other

    # ------------------------------------------------------------------------------------------------------------------

    def _is_current(self, name: str, head: bytes) -> bool:
        """Whether Redis says, in a check that begins now, that the value is current."""
        [flags] = self._servers.exchange(((self._core.place_of(name), *wire.pack_check((name,), (head,))),))
        return flags == [True]

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
        # a pool gets its connection back at the end; the __exit__ of a plain connection would close it, or commit
        return contextlib.nullcontext(source) if hasattr(source, 'cursor') else source


@contextlib.contextmanager
def borrowed(connection: Any) -> Iterator[None]:
    """Ends the transaction that the driver has begun for our query. A transaction that was open before stays open."""
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

