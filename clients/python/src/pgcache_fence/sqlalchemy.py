"""SQLAlchemy: reads instances by primary key from the cache, if possible.

    cache = IdentityCache(fences, Session)              # Session: a sessionmaker, or a subclass of Session
    cache.add(Account)                                  # opt-in, for each mapped class
    account = cache.get(session, Account, 42)           # like session.get(Account, 42)

An instance is persistent in the session, like one that a query has loaded. Its relationships load as usual. If the session already
has the instance, get returns that one. A session that has written in its transaction asks PostgreSQL, because the cache has only
what is committed. The cache does not notice statements that you execute on session.connection(); call cache.written(session) after
them. AsyncIdentityCache is the same for asyncio.
"""

from decimal import Decimal
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from sqlalchemy import event, inspect, types
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session, make_transient_to_detached
from sqlalchemy.orm.attributes import set_committed_value

from .convert import CONVERTERS, plain
from .core import Json
from .domains import Domain
from .errors import WrongUse

WRITTEN = 'pgcache_fence.written'


class Attribute(NamedTuple):
    key: str
    column: str
    convert: Callable[[Any], Any]


class Mapped(NamedTuple):
    domain: str
    attributes: List[Attribute]
    identity: Dict[str, int]        # key column -> its place in the primary key


class IdentityCache:
    def __init__(self, fences: Any, sessions: Any = Session) -> None:
        self.fences = fences.with_codec(Json)
        self.mapped: Dict[Any, Mapped] = {}
        event.listen(sessions, 'after_flush', lambda session, context: self.written(session))
        event.listen(sessions, 'do_orm_execute', self.executed)
        event.listen(sessions, 'after_transaction_end', forget)

    def add(self, kind: Any, domain: Optional[str] = None) -> None:
        """Caches a mapped class. domain: the name of the fence domain, if it is not that of the table."""
        mapper = inspect(kind)
        if len(mapper.tables) != 1 or mapper.polymorphic_on is not None:
            raise WrongUse('%s is mapped to several tables or is polymorphic: only classes with one table can be cached' % kind.__name__)
        attributes = [Attribute(attribute.key, attribute.columns[0].name, converter(kind, attribute.columns[0]))
                      for attribute in mapper.column_attrs if len(attribute.columns) == 1 and attribute.columns[0].table is mapper.local_table]
        identity = {column.name: n for n, column in enumerate(mapper.primary_key)}
        self.mapped[kind] = Mapped(domain or mapper.local_table.name, attributes, identity)

    def executed(self, state: Any) -> None:
        if not state.is_select:
            self.written(state.session)

    def written(self, session: Any) -> None:
        """Makes the session read from PostgreSQL until the end of its transaction."""
        session.info[WRITTEN] = True

    def get(self, session: Any, kind: Any, identity: Any) -> Any:
        return self.get_many(session, kind, [identity])[0]

    def get_many(self, session: Any, kind: Any, identities: Iterable[Any]) -> List[Any]:
        """The instances in the order of the identities; None for an identity without a row."""
        wanted, mapped = list(identities), self.of(kind)
        missed, found = self.missed(session, kind, wanted), {}
        if missed:
            def connection() -> Any:            # the session's own, so with its privileges and in its transaction
                return session.connection(bind_arguments={'mapper': inspect(kind)}).connection

            keys = self.keys(mapped, self.fences.describe(mapped.domain, connection=connection), missed)
            found = self.attached(session, kind, keys, self.fences.read_many(mapped.domain, list(keys), connection=connection))
        return [found[identity] if found.get(identity, MISFIT) is not MISFIT else session.get(kind, identity) for identity in wanted]

    # ------------------------------------------------------------------------------------------------------------------

    def of(self, kind: Any) -> Mapped:
        if kind not in self.mapped:
            raise WrongUse('%s is not cached: call add(%s) first' % (kind.__name__, kind.__name__))
        return self.mapped[kind]

    def missed(self, session: Any, kind: Any, wanted: Iterable[Any]) -> List[Any]:
        """The identities for which to ask the cache: the session has no instance of them. Empty if it has written."""
        if session.info.get(WRITTEN) or session.new or session.dirty or session.deleted:
            return []
        return [identity for identity in dict.fromkeys(wanted)
                if inspect(kind).identity_key_from_primary_key(as_tuple(identity)) not in session.identity_map]

    def keys(self, mapped: Mapped, domain: Domain, identities: Iterable[Any]) -> Dict[Any, Any]:
        """A dict: key of the domain -> identity."""
        names = [column.name for column in domain.naming.columns]
        if sorted(names) != sorted(mapped.identity):
            raise WrongUse('domain "%s" has the key (%s), but the primary key that is mapped is (%s)' % (
                mapped.domain, ', '.join(names), ', '.join(mapped.identity)))
        return {tuple(as_tuple(identity)[mapped.identity[name]] for name in names): identity for identity in identities}

    def attached(self, session: Any, kind: Any, keys: Dict[Any, Any], rows: Dict[Any, Any]) -> Dict[Any, Any]:
        """A dict: identity -> instance, None if there is no row, or MISFIT."""
        return {keys[key]: None if row is None else self.attach(session, kind, self.of(kind), row) for key, row in rows.items()}

    def attach(self, session: Any, kind: Any, mapped: Mapped, row: Dict[str, Any]) -> Any:
        """Makes the instance of a row and adds it to the session. MISFIT if the row does not fit the class."""
        try:
            values = {attribute.key: None if row[attribute.column] is None else attribute.convert(row[attribute.column])
                      for attribute in mapped.attributes}
        except (KeyError, ValueError, ArithmeticError):         # the domain lacks a column, or Python cannot represent a value
            return MISFIT
        instance = inspect(kind).class_manager.new_instance()
        for name, value in values.items():
            set_committed_value(instance, name, value)
        make_transient_to_detached(instance)
        session.add(instance)
        state = inspect(instance)
        state.manager.dispatch.load(state, None)
        return instance


class AsyncIdentityCache(IdentityCache):
    """IdentityCache for AsyncFences and AsyncSession. get and get_many are coroutines. sessions is the sync_session_class."""

    async def get(self, session: Any, kind: Any, identity: Any) -> Any:
        return (await self.get_many(session, kind, [identity]))[0]

    async def get_many(self, session: Any, kind: Any, identities: Iterable[Any]) -> List[Any]:      # type: ignore[override]
        wanted, mapped = list(identities), self.of(kind)
        missed, found = self.missed(session.sync_session, kind, wanted), {}
        if missed:
            async def connection() -> Any:
                opened = await session.connection(bind_arguments={'mapper': inspect(kind)})
                return (await opened.get_raw_connection()).driver_connection

            keys = self.keys(mapped, await self.fences.describe(mapped.domain, connection=connection), missed)
            rows = await self.fences.read_many(mapped.domain, list(keys), connection=connection)
            found = self.attached(session.sync_session, kind, keys, rows)
        return [found[identity] if found.get(identity, MISFIT) is not MISFIT else await session.get(kind, identity) for identity in wanted]


MISFIT = object()


def forget(session: Any, transaction: Any) -> None:
    if transaction.parent is None:
        session.info.pop(WRITTEN, None)


def as_tuple(identity: Any) -> Tuple[Any, ...]:
    return tuple(identity) if isinstance(identity, (tuple, list)) else (identity,)


def converter(kind: Any, column: Any) -> Callable[[Any], Any]:
    own = isinstance(column.type, types.TypeDecorator) and not type(column.type).__module__.startswith('sqlalchemy.')
    decorated = column.type if own else None
    convert = plain_converter(decorated.impl if decorated is not None else column.type)
    if convert is None:
        raise WrongUse('%s.%s is of type %s, which the adapter cannot make from JSON: do not cache the class, or map the column to '
                       'a type that is built in' % (kind.__name__, column.name, column.type))
    made = convert
    if decorated is None:
        return made
    decorator = decorated
    return lambda value: decorator.process_result_value(made(value), postgresql.dialect())


def plain_converter(kind: Any) -> Optional[Callable[[Any], Any]]:
    if isinstance(kind, types.Enum):
        return lambda text: kind._object_value_for_elem(text)
    if isinstance(kind, types.JSON):
        return plain
    if isinstance(kind, postgresql.UUID) or type(kind).__name__ in ('Uuid', 'UUID'):
        from uuid import UUID
        return UUID if kind.as_uuid else str
    if isinstance(kind, types.Numeric):
        return CONVERTERS[Decimal] if kind.asdecimal else float
    for base in (types.Integer, types.Boolean, types.String, types.LargeBinary, types.Date, types.Time, types.DateTime):
        if isinstance(kind, base):
            return CONVERTERS.get(kind.python_type)
    return None
