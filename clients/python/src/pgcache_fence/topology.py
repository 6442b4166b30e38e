"""Finds the server that has a name, and checks whether a client of redis-py can be used.

Owns: the checks of clients. A place is a number: the slot in a cluster, otherwise the number of the server.
"""

import inspect
import time
from typing import Any, Callable, List, Sequence

from . import wire
from .errors import WrongUse

CONNECTIONS_KEPT = 16
PAUSE_MIN, PAUSE_MAX = 0.02, 0.5        # seconds for which we do not ask a server that has failed


def single_place(name: str) -> int:
    return 0


def place_of_shard(n: int) -> Callable[[str], int]:
    return lambda name: wire.slot(name) * n // wire.SLOTS


def is_cluster(client: Any) -> bool:
    return hasattr(client, 'nodes_manager')


def clients_of(redis: Any) -> List[Any]:
    """The clients as a list: one, or those of the shards in the order of pgcache_fence.redis_url."""
    clients = list(redis) if isinstance(redis, (list, tuple)) else [redis]
    if not clients or len(clients) > 1 and any(map(is_cluster, clients)):
        raise WrongUse('redis= is one client, or a list of redis.Redis: one for each server of pgcache_fence.redis_url')
    return clients


def place_function(clients: Sequence[Any]) -> Callable[[str], int]:
    return wire.slot if is_cluster(clients[0]) else single_place if len(clients) == 1 else place_of_shard(len(clients))


def require_usable(client: Any, asynchronous: bool) -> None:
    kind = type(client)
    if not hasattr(client, 'connection_pool') and not is_cluster(client):
        raise WrongUse('%s is no client of redis-py: give a redis.Redis or redis.cluster.RedisCluster, or for AsyncFences one of '
                       'redis.asyncio' % kind.__name__)
    if inspect.iscoroutinefunction(getattr(kind, 'execute_command', None)) != asynchronous:
        raise WrongUse('%s.%s is %s client: give it to %s' % (
            kind.__module__, kind.__name__, *(('a blocking', 'Fences') if asynchronous else ('an asyncio', 'AsyncFences'))))
    pool = getattr(client, 'connection_pool', None)
    options = pool.connection_kwargs if pool is not None else settings_of_cluster(client)
    if options.get('db'):
        raise WrongUse('the client has selected database %s: fences are in database 0' % options['db'])
    if not options.get('socket_timeout'):
        raise WrongUse('the client has no socket_timeout, so a read could wait for Redis for ever: '
                       'pass socket_timeout=0.2, socket_connect_timeout=0.2; a read then goes on to PostgreSQL')
    if cached_by_client(client, pool):
        raise WrongUse('the client keeps answers itself (cache_config), which nobody checks: give one without')
    if getattr(pool, 'is_master', True) is False:
        raise WrongUse('the client reads from a replica (slave_for): use Sentinel.master_for')


def settings_of_cluster(client: Any) -> Any:
    manager = client.nodes_manager
    return getattr(manager, 'connection_kwargs', None) or getattr(client, 'connection_kwargs', {})


def cached_by_client(client: Any, pool: Any) -> bool:
    return any(getattr(owner, name, None) is not None for owner in (client, pool, getattr(client, 'nodes_manager', None))
               for name in ('cache', 'cache_config', '_cache', '_cache_factory') if owner is not None)


def connection_arguments(pool: Any) -> Sequence[str]:
    """The arguments for get_connection, which wants the name of a command in older versions of redis-py."""
    parameter = inspect.signature(pool.get_connection).parameters.get('command_name')
    return ('MULTI',) if parameter is not None and parameter.default is parameter.empty else ()


def connections_kept(pool: Any) -> int:
    """How many connections of a pool we may keep: few of a small pool, and none if the pool has to find the master."""
    return 0 if hasattr(pool, 'sentinel_manager') else min(CONNECTIONS_KEPT, getattr(pool, 'max_connections', 0) // 4)


class Patience:
    """Decides whether to ask a server. After a failure it says no for a while, so that not every read waits for the timeout."""

    def __init__(self) -> None:
        self.until = self.pause = 0.0

    def failed(self) -> None:
        self.pause = min(max(self.pause * 2, PAUSE_MIN), PAUSE_MAX)
        self.until = time.monotonic() + self.pause

    def answered(self) -> None:
        self.pause = 0.0

    def over(self) -> bool:
        return self.pause == 0.0 or time.monotonic() >= self.until
