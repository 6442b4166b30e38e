"""AsyncFences: the library for asyncio, on redis.asyncio and asyncpg, psycopg or a similar driver.

Owns: connections while a step of core.py runs, like sync.py; the checks of kept values, which concurrent reads share.
"""

import asyncio
import contextlib
import copy
import importlib
import inspect
import re
import sys
import time
from typing import Any, AsyncIterator, Callable, Dict, Hashable, Iterable, List, Optional, Sequence, Set, Tuple

from redis.asyncio import ConnectionPool
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from . import topology, wire
from .core import MISSED, Core, Json, Peeked, Steps
from .domains import Domain
from .errors import WrongUse
from .sync import Answers, has_moved, is_idle, joined, note, share
from .wire import Confused, Request, vet

# Before 3.11.3 asyncio.timeout raises CancelledError if a timeout of redis-py came before. redis-py brings the other one along.
within: Any = asyncio.timeout if sys.version_info >= (3, 11, 3) else importlib.import_module('async_timeout').timeout

CHECK_MAX = 1000            # fences of one fence_check


class Server:
    """One Redis process, or its successor. Keeps some of the pool's connections, like Server in sync.py.

    The client's socket_timeout limits a whole request with all its answers. A connection would apply it to each single answer,
    which costs more time than the answers. So a connection has no timeout of its own while this class uses it.
    """

    def __init__(self, pool: Any) -> None:
        self.pool, self.patience = pool, topology.Patience()
        self.arguments, self.most = topology.connection_arguments(pool), topology.connections_kept(pool)
        self.kept: List[Any] = []
        self.timeout = pool.connection_kwargs['socket_timeout']
        self.left: Set['asyncio.Future[Any]'] = set()           # references to what goes on after a task was cancelled

    async def ask(self, requests: Sequence[Request]) -> Optional[List[Answers]]:
        if not self.patience.over():
            return None
        try:
            return await self.talk(requests)
        except Exception as error:
            return await self.ask_again(error, requests)

    async def ask_again(self, error: Exception, requests: Sequence[Request]) -> Optional[List[Answers]]:
        """Repeats them all over a new connection, because the server may have closed the kept ones; not after a timeout, nor after
        an answer to another question."""
        while self.kept:
            with contextlib.suppress(Exception):
                await self.give_up(self.kept.pop())
        note(error)
        if isinstance(error, Confused):
            return None
        if not isinstance(error, (RedisTimeout, TimeoutError, asyncio.TimeoutError)):
            with contextlib.suppress(Exception):
                return await self.talk(requests)
        self.patience.failed()
        return None

    async def talk(self, requests: Sequence[Request]) -> List[Answers]:
        connection = self.kept.pop() if self.kept else await self.borrow()
        done = []
        try:
            connection.socket_timeout = None
            async with within(self.timeout):
                await connection.send_packed_command((joined(requests),))
                for request in requests:
                    answers: Answers = []
                    for _ in range(request.n):
                        try:
                            answers.append(await connection.read_response(disable_decoding=True))
                        except ResponseError as error:
                            answers.append(error)
                    vet(request, answers)
                    done.append(answers)
        except BaseException:                       # also if the task was cancelled, because its answers are still to come
            await self.give_up(connection)
            raise
        if len(self.kept) < self.most:
            self.kept.append(connection)
        else:
            connection.socket_timeout = self.timeout
            await self.pool.release(connection)
        self.patience.answered()
        return done

    async def borrow(self) -> Any:
        """A connection of the pool. If this task is cancelled meanwhile, the pool still ends what it says to Redis on a new
        connection. Otherwise it would lend a connection that owes the answer."""
        getting = asyncio.ensure_future(self.pool.get_connection(*self.arguments))
        try:
            return await asyncio.shield(getting)
        except asyncio.CancelledError:
            self.left.add(getting)
            getting.add_done_callback(self.return_late)
            raise

    def return_late(self, getting: 'asyncio.Future[Any]') -> None:
        self.left.discard(getting)
        if not getting.cancelled() and getting.exception() is None:
            returned = asyncio.ensure_future(self.pool.release(getting.result()))
            self.left.add(returned)
            returned.add_done_callback(self.left.discard)

    async def give_up(self, connection: Any) -> None:
        """Closes the connection, also if this task is cancelled meanwhile. Only then the pool may lend it again."""
        connection.socket_timeout = self.timeout
        closing = asyncio.ensure_future(self.close(connection))
        self.left.add(closing)
        closing.add_done_callback(self.left.discard)
        await asyncio.shield(closing)

    async def close(self, connection: Any) -> None:
        try:
            await connection.disconnect()
        finally:
            await self.pool.release(connection)


class Servers:
    """The servers of a list of clients, or of a cluster client. To a cluster's nodes it makes its own connections, with the same
    settings."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self.cluster: Any = clients[0] if topology.is_cluster(clients[0]) else None
        self.members: Dict[str, Server] = {}
        self.routes: Dict[int, Server] = {} if self.cluster else {
            place: Server(client.connection_pool) for place, client in enumerate(clients)}
        self.begun, self.looked = self.cluster is None, 0.0
        self.looking: Optional['asyncio.Task[Any]'] = None

    def at(self, place: int) -> Server:
        server = self.routes.get(place)
        if server is None:
            node = self.cluster.nodes_manager.get_node_from_slot(place)
            server = self.members.get(node.name)
            if server is None:
                pool = ConnectionPool(connection_class=node.connection_class, **node.connection_kwargs)
                server = self.members[node.name] = Server(pool)
            self.routes[place] = server
        return server

    async def look_again(self) -> None:
        """Asks the cluster where the slots are now. Only one task asks, and not too often; the others wait for it."""
        if self.looking is None and time.monotonic() - self.looked > topology.PAUSE_MIN:
            self.looking = asyncio.ensure_future(self.look())
        if self.looking is not None:
            await asyncio.shield(self.looking)

    async def look(self) -> None:
        try:
            with contextlib.suppress(Exception):
                await (self.cluster.nodes_manager if self.begun else self.cluster).initialize()
                self.begun, self.routes = True, {}
        finally:
            self.looked, self.looking = time.monotonic(), None

    async def exchange(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        if not self.begun:
            await self.look_again()
        answers = await self.ask_all(requests)
        if self.cluster is not None and any(got is None or has_moved(got) for got in answers):
            await self.look_again()
            moved = [i for i, got in enumerate(answers) if got is not None and has_moved(got)]
            for i, got in zip(moved, await self.ask_all([requests[i] for i in moved])):         # repeated as a whole, at the new owner
                answers[i] = got
        return answers

    async def ask_all(self, requests: Sequence[Request]) -> List[Optional[List[Any]]]:
        """Sends the requests of each server in one piece, to all servers at the same time."""
        groups: Dict[Server, List[int]] = {}
        answers: List[Optional[List[Any]]] = [None] * len(requests)
        for i, request in enumerate(requests):
            with contextlib.suppress(Exception):         # no server has the slot
                groups.setdefault(self.at(request.place), []).append(i)

        async def ask(server: Server, numbers: List[int]) -> None:
            share(answers, numbers, await server.ask([requests[i] for i in numbers]))

        if len(groups) == 1:
            [(server, numbers)] = groups.items()
            await ask(server, numbers)
        elif groups:
            await asyncio.gather(*(ask(server, numbers) for server, numbers in groups.items()))
        return answers


class Checks:
    """Shared checks of kept values. Reads that begin while a check is under way share the next check."""

    def __init__(self, core: Core, servers: Servers) -> None:
        self.core, self.servers = core, servers
        self.waiting: List[Tuple[str, bytes, 'asyncio.Future[bool]']] = []
        self.running: Optional['asyncio.Task[None]'] = None

    async def is_current(self, name: str, head: bytes) -> bool:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((name, head, future))
        if self.running is None:
            self.running = asyncio.ensure_future(self.run())
        return bool(await future)

    async def run(self) -> None:
        try:
            while self.waiting:
                batch, self.waiting = self.waiting, []
                try:
                    await self.check(batch)
                finally:
                    for _, _, future in batch:      # without an answer the value is read again
                        if not future.done():
                            future.set_result(False)
        finally:
            self.running = None

    async def check(self, batch: List[Tuple[str, bytes, 'asyncio.Future[bool]']]) -> None:
        places: Dict[int, List[Tuple[str, bytes, 'asyncio.Future[bool]']]] = {}
        for each in batch:
            places.setdefault(self.core.place_of(each[0]), []).append(each)
        groups = [(place, found[n:n + CHECK_MAX]) for place, found in places.items() for n in range(0, len(found), CHECK_MAX)]
        done = await self.servers.exchange([
            wire.pack_check(place, [name for name, _, _ in group], [head for _, head, _ in group]) for place, group in groups])
        for (_, group), got in zip(groups, done):
            for (_, _, future), good in zip(group, wire.read_check(len(group), got and got[0])):
                if not future.done():               # its reader may have been cancelled
                    future.set_result(good)


class AsyncFences:
    """Strong reads of PostgreSQL rows, from Redis if possible. Use an instance in one event loop only.

    redis       a redis.asyncio.Redis, a redis.asyncio.cluster.RedisCluster, or a list of redis.asyncio.Redis, one for each
                shard. It needs a socket_timeout.
    postgres    where to read rows, on the primary: a pool of asyncpg or psycopg_pool, one of their connections (for one
                task at a time), or a function that returns a connection or an asynchronous context manager of one.
    namespace, codec, local
                like those of Fences.
    """

    def __init__(self, redis: Any, postgres: Any = None, *, namespace: Optional[str] = None, codec: Any = None, local: int = 0) -> None:
        clients = topology.clients_of(redis)
        for client in clients:
            topology.require_usable(client, asynchronous=True)
        self._core = Core(topology.place_function(clients), namespace, codec or Json, local)
        self._servers = Servers(clients)
        self._checks = Checks(self._core, self._servers)
        self._postgres = postgres
        self._left: Set['asyncio.Task[Any]'] = set()            # references, because asyncio may drop a task without one
        self.counters = self._core.counters

    async def read(self, domain: str, key: Any, load: Optional[Callable[[Any, Any], Any]] = None, *, connection: Any = None) -> Any:
        """Like Fences.read; load may be a coroutine function."""
        seen = None
        name = self._core.quick_name(domain, key)
        if name is not None:
            kept = self._core.local and self._core.local.get(name)
            if kept and await self._checks.is_current(name, kept[0]):
                self.counters.read(domain, 'local')
                return kept[1]
            seen = name, wire.read_one((await self._servers.exchange((self._core.request(name),)))[0])
            value = self._core.value_of(domain, name, seen[1])
            if value is not MISSED:
                return value
        return await self._run(self._core._again(self._core._read, domain, key, load, connection, seen=seen))

    async def read_many(self, domain: str, keys: Iterable[Hashable], load: Optional[Callable[[Any, Any], Any]] = None, *,
                        connection: Any = None) -> Dict[Any, Any]:
        """Like Fences.read_many."""
        return await self._run(self._core._again(self._core._read_many, domain, list(keys), load, connection))

    async def read_together(self, keys: Iterable[Tuple[str, Any]], *, connection: Any = None) -> List[Any]:
        """Like Fences.read_together."""
        return await self._run(self._core._read_together(list(keys), connection))

    async def derived(self, name: str, *arguments: Any, connection: Any = None) -> Any:
        """Like Fences.derived."""
        return await self._run(self._core._read_derived(name, arguments, connection))

    async def peek(self, domain: str, key: Any, *, connection: Any = None) -> Peeked:
        """Like Fences.peek."""
        return await self._run(self._core._peek(domain, key, connection))

    async def name(self, domain: str, key: Any, *, connection: Any = None) -> str:
        """Like Fences.name."""
        return await self._run(self._core._fence(domain, key, connection))

    async def describe(self, domain: str, *, connection: Any = None) -> Domain:
        """Like Fences.describe."""
        return await self._run(self._core._domain(domain, connection))

    def with_codec(self, codec: Any) -> 'AsyncFences':
        """Like Fences.with_codec."""
        other = copy.copy(self)
        other._core = self._core.with_codec(codec)
        other._checks = Checks(other._core, self._servers)
        return other

    # ------------------------------------------------------------------------------------------------------------------

    async def _run(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._do(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return done.value

    async def _do(self, step: Tuple[Any, ...]) -> Any:
        kind = step[0]
        if kind == 'exchange':
            return await self._servers.exchange(step[1])
        if kind == 'leave':                                     # a cancelled task does not wait
            task = asyncio.ensure_future(self._servers.exchange(step[1]))
            self._left.add(task)
            task.add_done_callback(self._left.discard)
            return None
        if kind == 'sleep':
            return await asyncio.sleep(step[1])
        async with self._opened(step[2]) as connection, borrowed(connection):
            return await run_on(connection, step[1])

    def _opened(self, given: Any) -> Any:
        source = given if given is not None else self._postgres
        if source is None:
            raise WrongUse('PostgreSQL has to be asked: pass postgres= to AsyncFences, or connection= to the call')
        if hasattr(source, 'acquire'):                          # asyncpg.Pool
            return source.acquire()
        if hasattr(source, 'connection') and not is_connection(source):         # psycopg_pool
            return source.connection()
        return nothing_around(source) if is_connection(source) else opened_by(source)


def is_connection(source: Any) -> bool:
    return hasattr(source, 'cursor') or hasattr(source, 'fetch')


@contextlib.asynccontextmanager
async def nothing_around(connection: Any) -> AsyncIterator[Any]:
    yield connection


@contextlib.asynccontextmanager
async def opened_by(function: Callable[[], Any]) -> AsyncIterator[Any]:
    """Opens what the function returns: a connection, an awaitable of one, or a context manager, for instance of a pool."""
    opened = function()
    if inspect.iscoroutine(opened):
        opened = await opened
    if is_connection(opened):
        yield opened
    else:
        async with opened as connection:
            yield connection


@contextlib.asynccontextmanager
async def borrowed(connection: Any) -> AsyncIterator[None]:
    """Ends the transaction that the driver has begun for our query. A transaction that was open before stays open."""
    was_idle = is_idle(connection)
    try:
        yield
    finally:
        if was_idle and not is_idle(connection) and not getattr(connection, 'closed', False):
            await connection.rollback()


async def run_on(connection: Any, steps: Steps) -> Any:
    try:
        step = next(steps)
        while True:
            if step[0] == 'query':
                result = await fetch(connection, step[1], step[2])
            else:
                result = step[1](connection, step[2])
                if inspect.isawaitable(result):
                    result = await result
            step = steps.send(result)
    except StopIteration as done:
        return done.value


def with_numbers(sql: str) -> str:
    """Replaces %s by $1, $2, … for asyncpg."""
    numbers = iter(range(1, 100))
    return re.sub('%[s%]', lambda found: '%' if found.group() == '%%' else '$%d' % next(numbers), sql)


async def fetch(connection: Any, sql: str, parameters: List[Any]) -> List[Any]:
    if hasattr(connection, 'fetch'):
        return list(await connection.fetch(with_numbers(sql), *parameters))
    async with connection.cursor() as cursor:
        await cursor.execute(sql, parameters)
        return [tuple(row.values()) if isinstance(row, dict) else row for row in await cursor.fetchall()]
