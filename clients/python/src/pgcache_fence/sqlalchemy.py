"""SQLAlchemy: instances by primary key, from the cache where they can be.

    cache = IdentityCache(fences, Session)              # Session: a sessionmaker, or a subclass of Session
    cache.add(Account)                                  # opt-in, for each mapped class
    account = cache.get(session, Account, 42)           # as session.get(Account, 42)

An instance is persistent in the session, like one that a query has loaded; its relationships load as they always do. The session's own
instance comes first. A session that has written in its transaction asks PostgreSQL: the cache has what is committed.
What is executed on session.connection() past the session is not seen: call cache.written(session) then.
"""

from decimal import Decimal
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from sqlalchemy import event, inspect, types
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session, make_transient_to_detached
from sqlalchemy.orm.attributes import set_committed_value

from .convert import CONVERTERS, plain
from .core import ExactJson
from .errors import WrongUse
from .sync import Fences

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
    def __init__(self, fences: Fences, sessions: Any = Session) -> None:
        self.fences = fences.with_codec(ExactJson)
        self.mapped: Dict[Any, Mapped] = {}
        event.listen(sessions, 'after_flush', lambda session, context: self.written(session))
        event.listen(sessions, 'do_orm_execute', self.executed)
        event.listen(sessions, 'after_transaction_end', forget)

    def add(self, kind: Any, domain: Optional[str] = None) -> None:
        """domain: that of fence.attach, if it is not the table's name."""
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
        """Until the end of its transaction the session reads from PostgreSQL."""
        session.info[WRITTEN] = True

    def get(self, session: Any, kind: Any, identity: Any) -> Any:
        return self.get_many(session, kind, [identity])[0]

    def get_many(self, session: Any, kind: Any, identities: Iterable[Any]) -> List[Any]:
        """In their order; None where there is no row."""
        wanted = list(identities)
        mapped, mapper = self.of(kind), inspect(kind)
        found: Dict[Any, Any] = {}
        if not session.info.get(WRITTEN) and not (session.new or session.dirty or session.deleted):
            missed = [identity for identity in dict.fromkeys(wanted)
                      if mapper.identity_key_from_primary_key(as_tuple(identity)) not in session.identity_map]
            def connection() -> Any:
                return session.connection(bind_arguments={'mapper': mapper}).connection

            keys = {self.key(mapped, identity, connection): identity for identity in missed}
            rows = self.fences.read_many(mapped.domain, list(keys), connection=connection)     # with the session's rights, in its transaction
            for key, row in rows.items():
                found[keys[key]] = None if row is None else self.attach(session, kind, mapped, row)
        return [found[identity] if identity in found and found[identity] is not MISFIT else session.get(kind, identity)
                for identity in wanted]

    # ------------------------------------------------------------------------------------------------------------------

    def of(self, kind: Any) -> Mapped:
        if kind not in self.mapped:
            raise WrongUse('%s is not cached: call add(%s) first' % (kind.__name__, kind.__name__))
        return self.mapped[kind]

    def key(self, mapped: Mapped, identity: Any, connection: Any) -> Any:
        values = as_tuple(identity)
        names = [column.name for column in self.fences.describe(mapped.domain, connection=connection).naming.columns]
        if sorted(names) != sorted(mapped.identity):
            raise WrongUse('domain "%s" has the key (%s), but the primary key that is mapped is (%s)' % (
                mapped.domain, ', '.join(names), ', '.join(mapped.identity)))
        return tuple(values[mapped.identity[name]] for name in names)

    def attach(self, session: Any, kind: Any, mapped: Mapped, row: Dict[str, Any]) -> Any:
        """The instance of a row, in the session."""
        try:
            values = {attribute.key: None if row[attribute.column] is None else attribute.convert(row[attribute.column])
                      for attribute in mapped.attributes}
        except (KeyError, ValueError, ArithmeticError):         # a column that the domain has not, or a value that Python has not
            return MISFIT
        instance = inspect(kind).class_manager.new_instance()
        for name, value in values.items():
            set_committed_value(instance, name, value)
        make_transient_to_detached(instance)
        session.add(instance)
        state = inspect(instance)
        state.manager.dispatch.load(state, None)
        return instance


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
