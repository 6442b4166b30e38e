"""The adapter for SQLAlchemy against the real one: instances from the cache, sessions that write, optimistic locking."""

import enum
import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import postgresql

from conftest import wait_for
from pgcache_fence import Fences, WrongUse
from pgcache_fence.sqlalchemy import IdentityCache

TABLES = '''
CREATE TYPE shade AS ENUM ('light', 'dark');
CREATE TABLE owner (id int PRIMARY KEY, name text);
CREATE TABLE thing (id int PRIMARY KEY, owner_id int REFERENCES owner, name text, price numeric(30, 10), weight float8, made date, at timestamptz,
                    "when" time, code uuid, data bytea, extra jsonb, shade shade, label text, version bigint NOT NULL DEFAULT 1);
CREATE TABLE place (a text, b int, what text, version bigint NOT NULL DEFAULT 0, PRIMARY KEY (b, a));
INSERT INTO owner VALUES (1, 'Ada');
SELECT fence.attach('thing', reserve => 'commit'), fence.attach('place', key => '{a,b}');
'''


class Shade(enum.Enum):
    light, dark = 1, 2


class Upper(sa.TypeDecorator):
    impl = sa.Text
    cache_ok = True

    def process_result_value(self, value, dialect):
        return value and value.upper()


Base = orm.declarative_base()


class Owner(Base):
    __tablename__ = 'owner'
    id = sa.Column(sa.Integer, primary_key=True)
    name = sa.Column(sa.Text)


class Thing(Base):
    __tablename__ = 'thing'
    id = sa.Column(sa.Integer, primary_key=True)
    owner_id = sa.Column(sa.ForeignKey('owner.id'))
    title = sa.Column('name', sa.Text)
    price = sa.Column(sa.Numeric(30, 10))
    weight = sa.Column(sa.Float)
    made = sa.Column(sa.Date)
    at = sa.Column(sa.DateTime(timezone=True))
    when = sa.Column(sa.Time)
    code = sa.Column(postgresql.UUID(as_uuid=True))
    data = sa.Column(sa.LargeBinary)
    extra = sa.Column(postgresql.JSONB)
    shade = sa.Column(sa.Enum(Shade))
    label = sa.Column(Upper)
    version = sa.Column(sa.BigInteger, nullable=False)
    owner = orm.relationship(Owner)
    __mapper_args__ = {'version_id_col': version}


class Place(Base):
    __tablename__ = 'place'
    b = sa.Column(sa.Integer, primary_key=True)
    a = sa.Column(sa.Text, primary_key=True)
    what = sa.Column(sa.Text)
    version = sa.Column(sa.BigInteger, server_default='0')


class Odd(Base):
    __tablename__ = 'odd'
    id = sa.Column(sa.Integer, primary_key=True)
    span = sa.Column(sa.Interval)


VALUES = dict(owner_id=1, title='Ä "thing"', price=Decimal('12345678901234567890.1234567891'), weight=0.1, made=date(2024, 2, 29),
              at=datetime(2024, 2, 29, 12, 0, 0, 500000, timezone.utc), when=time(4, 5, 6, 100), code=uuid.uuid4(), data=b'\0\xff\\x',
              extra={'a': [1, 2.5, None]}, shade=Shade.dark, label='small')


@pytest.fixture(scope='module')
def tables(single):
    single.sql(TABLES)
    return single


@pytest.fixture
def orm_world(tables):
    engine = sa.create_engine('postgresql+psycopg2://', creator=lambda: raw(tables))
    sessions = orm.sessionmaker(engine)
    cache = IdentityCache(Fences(tables.redis(), None), sessions)
    cache.add(Thing)
    cache.add(Place)
    id = next(tables.numbers)
    with sessions.begin() as session:
        session.add(Thing(id=id, **VALUES))
    yield tables, sessions, cache, id
    engine.dispose()


def raw(world):
    connection = world.connect()
    connection.autocommit = False
    return connection


def source(cache, domain='thing'):
    return cache.fences.counters.snapshot()['reads'].get(domain, {})


def hit(sessions, cache, kind, identity, domain='thing'):
    """Reads until it comes from Redis."""
    def is_hit():
        before = source(cache, domain).get('hit', 0)
        with sessions() as session:
            assert cache.get(session, kind, identity) is not None
        return source(cache, domain).get('hit', 0) > before
    wait_for(is_hit, 'a hit')


def test_an_instance_is_that_which_a_query_loads(orm_world):
    world, sessions, cache, id = orm_world
    hit(sessions, cache, Thing, id)
    names = [attribute.key for attribute in sa.inspect(Thing).column_attrs]
    with sessions() as cached, sessions() as loaded:
        one, other = cache.get(cached, Thing, id), loaded.get(Thing, id)
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        assert [type(getattr(one, name)) for name in names] == [type(getattr(other, name)) for name in names]
        assert one.label == 'SMALL' and one.owner.name == 'Ada'
        assert one is cache.get(cached, Thing, id) is cached.get(Thing, id)
        assert cache.get(cached, Thing, -1) is None
        assert sa.inspect(one).persistent and not cached.dirty


def test_several_and_keys_of_several_columns(orm_world):
    world, sessions, cache, id = orm_world
    with sessions.begin() as session:
        session.add_all([Place(a='x', b=id, what='one'), Place(a='y', b=id, what='other')])
    hit(sessions, cache, Place, (id, 'x'), 'place')
    with sessions() as session:
        assert [place and place.what for place in cache.get_many(session, Place, [(id, 'y'), (id, 'z'), (id, 'x')])] == ['other', None, 'one']


def test_a_session_that_has_written_reads_what_it_wrote(orm_world):
    world, sessions, cache, id = orm_world
    hit(sessions, cache, Thing, id)
    with sessions() as session:
        session.execute(sa.text("UPDATE thing SET name = 'mine' WHERE id = :id"), {'id': id})
        assert cache.get(session, Thing, id).title == 'mine'
        session.rollback()
        before = source(cache)['hit']
        assert cache.get(session, Thing, id).title == VALUES['title']
        assert source(cache)['hit'] == before + 1
        cache.get(session, Thing, id).title = 'changed'
        session.flush()
        session.expunge_all()
        assert cache.get(session, Thing, id).title == 'changed'
        with sessions() as other:
            assert cache.get(other, Thing, id).title == VALUES['title']
        session.commit()
    with sessions() as session:
        assert cache.get(session, Thing, id).title == 'changed'


def test_optimistic_locking_with_instances_of_the_cache(orm_world):
    world, sessions, cache, id = orm_world
    hit(sessions, cache, Thing, id)
    with sessions() as one, sessions() as other:
        mine, theirs = cache.get(one, Thing, id), cache.get(other, Thing, id)
        mine.title, theirs.title = 'mine', 'theirs'
        one.commit()
        with pytest.raises(orm.exc.StaleDataError):
            other.commit()
        other.rollback()
        again = cache.get(other, Thing, id)
        assert (again.title, again.version) == ('mine', mine.version)
        again.title = 'theirs'
        other.commit()
    assert world.sql('SELECT name FROM thing WHERE id = %s', (id,)) == [('theirs',)]
    hit(sessions, cache, Thing, id)
    with sessions() as session:
        stale = cache.get(session, Thing, id)
        world.sql("UPDATE thing SET name = 'by hand' WHERE id = %s", (id,))
        session.delete(stale)
        with pytest.raises(orm.exc.StaleDataError):
            session.commit()


def test_values_that_python_has_not_come_from_the_table(orm_world):
    world, sessions, cache, id = orm_world
    world.sql("UPDATE thing SET price = 'NaN', made = '2024-01-01', weight = 'infinity' WHERE id = %s", (id,))
    with sessions() as session:
        assert cache.get(session, Thing, id).weight == float('inf')
    world.sql("UPDATE thing SET at = 'infinity' WHERE id = %s", (id,))
    with sessions() as cached, sessions() as loaded:
        assert cache.get(cached, Thing, id).at == loaded.get(Thing, id).at


def test_wrong_uses_raise(orm_world):
    world, sessions, cache, id = orm_world
    with sessions() as session, pytest.raises(WrongUse, match=r'call add\(Owner\) first'):
        cache.get(session, Owner, 1)
    with pytest.raises(WrongUse, match='Odd.span is of type'):
        cache.add(Odd)
