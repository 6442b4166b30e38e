"""Django: reads model instances by primary key from the cache, if possible.

    # settings.py: for each database with cached models, the client of Redis, a function that returns it, or its dotted path
    PGCACHE_FENCE = {'default': {'redis': 'shop.caching.redis_client', 'local': 0}}

    # models.py: opt-in, for each model
    class Account(models.Model):
        objects = models.Manager()
        fenced = FencedManager()            # FencedManager(domain='…') if fence.attach was given another name

    Account.fenced.get(pk=42)               # the cache
    Account.fenced.in_bulk([1, 2, 3])       # the cache, in one round trip
    Account.fenced.select_related('owner').get(pk=42)       # anything else: PostgreSQL, as always

After a transaction has written, its reads go to PostgreSQL, because the cache has only what is committed. The adapter looks at the
statements, so it does not notice a function that writes if SELECT calls it.
"""

import threading
from typing import Any, Callable, Dict, Iterable, List, Optional

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, models
from django.db.backends.signals import connection_created
from django.utils.module_loading import import_string

from .convert import CONVERTERS, binary, plain
from .sync import Fences

HARMLESS = ('SELECT', 'SAVEPOINT', 'RELEASE', 'ROLLBACK')
FLAG = '_pgcache_fence_written'

CONVERT_FIELD: Dict[str, Callable[[Any], Any]] = {
    **{name: int for name in ('AutoField', 'BigAutoField', 'SmallAutoField', 'IntegerField', 'BigIntegerField', 'SmallIntegerField',
                              'PositiveIntegerField', 'PositiveBigIntegerField', 'PositiveSmallIntegerField')},
    **{name: str for name in ('CharField', 'TextField', 'SlugField', 'FilePathField', 'FileField', 'GenericIPAddressField')},
    'BooleanField': bool, 'NullBooleanField': bool, 'FloatField': float, 'BinaryField': binary, 'JSONField': plain}


def named_type(name: str) -> Optional[Callable[[Any], Any]]:
    """The converter of a field that is named after a Python type, such as DateTimeField or UUIDField; None if there is none."""
    return next((convert for kind, convert in CONVERTERS.items() if kind.__name__.lower() + 'field' == name.lower()), None)


# ----------------------------------------------------------------------------------------------------------------------
# Fences of each database
# ----------------------------------------------------------------------------------------------------------------------

_fences: Dict[str, Fences] = {}
_lock = threading.Lock()


def fences(using: str = 'default') -> Fences:
    """The Fences of a database in the settings. The application can export their counters."""
    with _lock:
        if using not in _fences:
            options = settings.PGCACHE_FENCE[using]
            redis = options['redis']
            if isinstance(redis, str):
                redis = import_string(redis)
            redis = redis() if callable(redis) and not hasattr(redis, 'execute_command') else redis
            _fences[using] = Fences(redis, lambda: connections[using], local=options.get('local', 0))
        return _fences[using]


def note_write(execute: Any, sql: str, parameters: Any, many: bool, context: Dict[str, Any]) -> Any:
    connection = context['connection']
    if not connection.in_atomic_block:
        setattr(connection, FLAG, False)
    elif not sql.lstrip(' \t\r\n(').upper().startswith(HARMLESS):
        setattr(connection, FLAG, True)
    return execute(sql, parameters, many, context)


def watch(connection: Any, **more: Any) -> None:
    setattr(connection, FLAG, False)
    if note_write not in connection.execute_wrappers:
        connection.execute_wrappers.append(note_write)


connection_created.connect(watch, dispatch_uid='pgcache_fence')


def has_written(using: str) -> bool:
    """Whether the transaction of this thread may have written. True for a connection that is older than this module."""
    connection = connections[using]
    if not connection.in_atomic_block:
        return connection.connection is not None and not connection.get_autocommit()
    return bool(getattr(connection, FLAG, True))


# ----------------------------------------------------------------------------------------------------------------------
# Models
# ----------------------------------------------------------------------------------------------------------------------

class Shape:
    """Makes instances of a model from the JSON of rows."""

    def __init__(self, model: Any, domain: Optional[str]) -> None:
        meta = model._meta
        if meta.parents and not meta.proxy:
            raise ImproperlyConfigured('%s is spread over several tables, so it cannot be cached' % meta.label)
        self.model, self.domain = model, domain or meta.db_table
        self.names = [field.attname for field in meta.concrete_fields]
        self.columns = [(field.column, converter(field)) for field in meta.concrete_fields]

    def instance(self, using: str, row: Dict[str, Any]) -> Any:
        values = [None if row[column] is None else convert(row[column]) for column, convert in self.columns]
        return self.model.from_db(using, self.names, values)


def converter(field: Any) -> Callable[[Any], Any]:
    target = field
    while target.remote_field is not None:
        target = target.target_field
    kind = target.get_internal_type()
    convert = CONVERT_FIELD.get(kind) or named_type(kind)
    if convert is None:
        raise ImproperlyConfigured('%s is a %s, which cannot be made from JSON: do not cache the model' % (field, kind))
    own: Any = getattr(field, 'from_db_value', None)
    made = convert
    return made if own is None or kind == 'JSONField' else lambda value: own(made(value), None, connections['default'])


class FencedQuerySet(models.QuerySet):      # type: ignore[misc]
    """A query set whose get and in_bulk ask the cache, if the primary key is the only condition."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        if not args and len(kwargs) == 1 and next(iter(kwargs)) in pk_names(self.model):
            found = self._cached([next(iter(kwargs.values()))])
            if found is not None:
                if found[0] is None:
                    raise self.model.DoesNotExist('%s matching query does not exist.' % self.model._meta.object_name)
                return found[0]
        return super().get(*args, **kwargs)

    def in_bulk(self, id_list: Optional[Iterable[Any]] = None, *, field_name: str = 'pk') -> Dict[Any, Any]:
        if id_list is not None and field_name in pk_names(self.model):
            wanted = list(id_list)
            found = self._cached(wanted)
            if found is not None:
                return {instance.pk: instance for instance in found if instance is not None}
            id_list = wanted
        return super().in_bulk(id_list, field_name=field_name)

    def _cached(self, keys: List[Any]) -> Optional[List[Any]]:
        """A list with the instance or None for each key. None instead of a list: PostgreSQL must answer."""
        using = self.db
        if using not in getattr(settings, 'PGCACHE_FENCE', {}) or not is_plain(self) or has_written(using):
            return None
        manager = self._fenced
        values = [self.model._meta.pk.to_python(key) for key in keys]
        rows = fences(using).read_many(manager.shape.domain, values)
        try:
            return [None if rows[value] is None else manager.shape.instance(using, rows[value]) for value in values]
        except (KeyError, ValueError, ArithmeticError):             # the domain lacks a column, or Python cannot represent a value
            return None

    def _clone(self) -> Any:
        clone = super()._clone()
        clone._fenced = self._fenced
        return clone

    _fenced: Any = None


def pk_names(model: Any) -> List[str]:
    return ['pk', model._meta.pk.name, model._meta.pk.attname]


PLAIN = ('select', 'select_related', 'select_for_update', 'group_by', 'distinct', 'combinator', 'deferred_loading')


def is_plain(rows: Any) -> bool:
    """Whether the query asks only for the rows of the table as they are."""
    query, untouched = rows.query, type(rows.query)(rows.model)
    return all(getattr(query, name) == getattr(untouched, name) for name in PLAIN) and rows._fields is None and not (
        query.is_sliced or query.where.children or query.annotations or query.extra or rows._prefetch_related_lookups)


class FencedManager(models.Manager.from_queryset(FencedQuerySet)):      # type: ignore[misc]
    """domain: the name of the fence domain, if it is not that of the table."""

    def __init__(self, domain: Optional[str] = None) -> None:
        super().__init__()
        self.domain, self._shape = domain, None     # type: Optional[str], Optional[Shape]

    @property
    def shape(self) -> Shape:
        if self._shape is None:
            self._shape = Shape(self.model, self.domain)
        return self._shape

    def get_queryset(self) -> Any:
        found = super().get_queryset()
        found._fenced = self
        return found
