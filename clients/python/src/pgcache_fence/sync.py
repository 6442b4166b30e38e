"""Fences: the library for threads and processes, on redis-py and any DB-API connection.

Owns: connections while a step of core.py runs. All bytes of one request go over one connection. It never repeats a part of a
request, and closes a connection after any error on it.
"""

import asyncio
import contextlib
import copy
import logging
import os
import threading
import time
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator, List, Optional, Sequence, Tuple

from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from . import topology, wire
from .core import MISSED, Core, Json, Peeked, Steps
from .domains import Domain
from .errors import WrongUse
from .wire import Confused, Request, vet

LOG = logging.getLogger('pgcache_fence')
# What redis-py raises if Redis is gone. After any other exception of it PostgreSQL is read too, but the log has a line. AttributeError:
# redis-py 4.3 formats its own errors with attributes that connections over Unix sockets lack.
USUAL = (RedisError, RedisClusterException, OSError, AttributeError, asyncio.TimeoutError)
Answers = List[Any]         # to one request


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

    def receive(self, connection: Any, requests: Sequence[Request]) -> List[Answers]:
        """The answers to the requests, in their order."""
        done = []
        read = connection.read_response
        try:
            for request in requests:
                answers: Answers = []
                for _ in range(request.n):
                    try:
                        answers.append(read(disable_decoding=True))
                    except ResponseError as error:
                        answers.append(error)
                vet(request, answers)
                done.append(answers)
        except BaseException:
            self.give_up(connection)
            raise
        if len(self.kept) < self.most:
            self.kept.append(connection)
        else:
            self.pool.release(connection)
        self.patience.answered()
        return done

    def give_up(self, connection: Any) -> None:
        try:
            connection.disconnect()
        finally:
            self.pool.release(connection)

    def ask(self, requests: Sequence[Request]) -> Optional[List[Answers]]:
        """Their answers; None if the server fails, or has failed a moment ago."""
        if not self.patience.over():
            return None
        try:
            return self.receive(self.send(joined(requests)), requests)
        except Exception as error:
            return self.ask_again(error, requests)

    def ask_again(self, error: Exception, requests: Sequence[Request]) -> Optional[List[Answers]]:
        """Repeats them all over a new connection, because the server may have closed the kept ones; not after a timeout, nor after
        an answer to another question."""
        while self.kept:
            with contextlib.suppress(Exception):
                self.give_up(self.kept.pop())
        note(error)
        if isinstance(error, Confused):
            return None
        if not isinstance(error, (RedisTimeout, TimeoutError)):
            with contextlib.suppress(Exception):
                return self.receive(self.send(joined(requests)), requests)
        self.patience.failed()
        return None


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
        except Exception:
            pass
        finally:
            self.looked = time.monotonic()
            self.looking.release()

    def exchange(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        answers = self.ask_all(requests)
        if self.cluster is not None and any(got is None or has_moved(got) for got in answers):
            self.look_again()
            moved = [i for i, got in enumerate(answers) if got is not None and has_moved(got)]
            for i, got in zip(moved, self.ask_all([requests[i] for i in moved])):       # repeated as a whole, at the new owner
                answers[i] = got
        return answers

    def ask_all(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        """Sends the requests of each server in one piece, and sends all of them before it waits for the first answer."""
        groups: Dict[Server, List[int]] = {}
        answers: List[Optional[List[Any]]] = [None] * len(requests)
        for i, request in enumerate(requests):
            with contextlib.suppress(Exception):         # no server has the slot
                groups.setdefault(self.at(request.place), []).append(i)
        if len(groups) == 1:
            [(server, numbers)] = groups.items()
            share(answers, numbers, server.ask([requests[i] for i in numbers]))
            return answers
        sent: List[Tuple[Server, List[int], Any]] = []
        for server, numbers in groups.items():
            asked = [requests[i] for i in numbers]
            if server.patience.over():
                try:
                    sent.append((server, numbers, server.send(joined(asked))))
                except Exception as error:
                    share(answers, numbers, server.ask_again(error, asked))
        while sent:
            server, numbers, connection = sent.pop()
            asked = [requests[i] for i in numbers]
            try:
                got = server.receive(connection, asked)
            except Exception as error:
                got = server.ask_again(error, asked)            # type: ignore[assignment]
            except BaseException:
                for other, _, unread in sent:               # nobody may read these answers as answers to another request
                    other.give_up(unread)
                raise
            share(answers, numbers, got)
        return answers


def note(error: Exception) -> None:
    if isinstance(error, Confused) or not isinstance(error, USUAL):
        LOG.warning('%s: its connection is closed, and PostgreSQL is read', error if isinstance(error, Confused) else repr(error))


def joined(requests: Sequence[Request]) -> bytes:
    return requests[0].packed if len(requests) == 1 else b''.join([request.packed for request in requests])


def share(answers: List[Optional[Answers]], numbers: List[int], got: Optional[List[Answers]]) -> None:
    """Notes what one server has answered to its requests."""
    if got is not None:
        for i, each in zip(numbers, got):
            answers[i] = each


def has_moved(answers: List[Any]) -> bool:
    return any([isinstance(answer, (MovedError, AskError)) for answer in answers])


class Fences:
    """Strong reads of PostgreSQL rows, from Redis if possible.

    redis       a redis.Redis, a redis.cluster.RedisCluster, or a list of redis.Redis, one for each shard. It needs a socket_timeout.
    postgres    where to read rows: a DB-API connection to the primary, a pool with connection(), or a function that returns
                a connection or a context manager of one. Each thread needs its own connection.
    namespace   if given, it must equal pgcache_fence.namespace of the server. The library asks PostgreSQL for it anyway.
    codec       converts values to payloads and back: anything with dumps and loads, such as pgcache_fence.Json (the default, whose
                numbers with a fraction are Decimal), json or pgcache_fence.Raw. The default loader, and tables with
                cache => 'row', make JSON.
    local       how many values this process may keep. The library checks them before each use. Readers share them: do not
                change them.
    """

    def __init__(self, redis: Any, postgres: Any = None, *, namespace: Optional[str] = None, codec: Any = None, local: int = 0) -> None:
        clients = topology.clients_of(redis)
        for client in clients:
            topology.require_usable(client, asynchronous=False)
        self._core = Core(topology.place_function(clients), namespace, codec or Json, local)
        self._servers = Servers(clients)
        self._postgres = postgres
        self.counters = self._core.counters

    def read(self, domain: str, key: Any, load: Optional[Callable[[Any, Any], Any]] = None, *, connection: Any = None) -> Any:
        """The value of one key, or None if there is no row. key: a value, or a tuple with a value for each column of the key.
        load: function(connection, key) that returns (row version, value) or None; without it the value is the row, as a dict. The
        row version is fence.row_version(version), from the statement that reads the row. If it is None, the value is not put.
        connection: use this one instead of postgres=."""
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
        """key -> value or None. Each value was current at some instant of this call, but not all at the same instant.
        load: function(connection, keys) that returns a dict: key -> (row version, value). It gets the keys that Redis does not have."""
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
        [answers] = self._servers.exchange([wire.pack_check(self._core.place_of(name), (name,), (head,))])
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

