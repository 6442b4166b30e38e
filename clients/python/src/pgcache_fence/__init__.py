"""Strong reads of PostgreSQL rows from Redis, with the extension pgcache_fence.

    fences = Fences(redis.Redis(socket_timeout=0.2), psycopg_pool.ConnectionPool(...))
    fences.read('account', 42)
"""

from .aio import AsyncFences
from .core import Json, Peeked, Raw
from .counters import Counters, PrometheusCollector, observe
from .errors import FenceError, WrongKey, WrongUse
from .sync import Fences

__all__ = ['AsyncFences', 'Counters', 'FenceError', 'Fences', 'Json', 'Peeked', 'PrometheusCollector', 'Raw', 'WrongKey', 'WrongUse', 'observe']
