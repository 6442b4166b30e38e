"""All ways of reading, in a database where another role has laid functions, operators and types in the application's search_path
(test/clients/traps.sql). None of them may run, and every value is right."""

import asyncio
import os

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, declarative_base

from conftest import HERE, wait_for
from pgcache_fence import AsyncFences, Fences

CLIENTS = os.path.join(HERE, '..', '..', '..', 'test', 'clients')
PATHS = ['"$user", public, app', 'public, pg_catalog, app']
FAWN = {'name': 'fawn', 'version': 0}
READS = [('prey', 'a', {**FAWN, 'code': 'a', 'mood': 'calm', 'place': {'x': 1, 'y': 2}, 'days': [1, 2]}),
         ('prey_mood', 'calm', {**FAWN, 'mood': 'calm'}), ('prey_shade', 'dark', {**FAWN, 'shade': 'dark'}),
         ('prey_name', 'fawn', {**FAWN, 'note': 'x    '}), ('prey_note', 'x', {**FAWN, 'note': 'x    '}),
         ('prey_pair', ('a', 'wild'), {**FAWN, 'code': 'a', 'mood': 'wild'}), ('prey_id', 1, {**FAWN, 'id': 1}),
         ('prey_bare', 1, {'id': 1, 'name': 'fawn'}),
         ('herd', 'calm', [{'id': 1, 'pen': 'calm', 'name': 'fawn'}, {'id': 2, 'pen': 'calm', 'name': 'kid'}])]
Base = declarative_base()


class Prey(Base):
    __tablename__ = 'prey_id'
    id = sa.Column(sa.Integer, primary_key=True)
    name = sa.Column(sa.Text)


class Place:
    """The database, who may do what in it, and readers whose descriptions of domains are older than the traps."""

    def __init__(self, world):
        self.world = world
        world.sql('CREATE DATABASE prey')
        self.admin = self.connect('postgres')
        self.run(self.admin, 'CREATE EXTENSION pgcache_fence')
        wait_for(lambda: self.run(self.admin, 'SELECT state FROM fence.state') == [('OPEN',)], 'the fences to open', 60)
        self.run(self.admin, self.script('prey.sql'))
        self.old = {path: Fences(world.redis(), self.connect('application', path)) for path in PATHS}
        for fences in self.old.values():
            assert [fences.read(domain, key) for domain, key, _ in READS] == [value for _, _, value in READS]
        self.run(self.connect('trapper'), self.script('traps.sql'))
        self.run(self.admin, 'SET search_path = pg_catalog')

    def connect(self, user, path=PATHS[0]):
        connection = psycopg2.connect(self.dsn(user, path))
        connection.autocommit = True
        return connection

    def dsn(self, user, path=PATHS[0]):
        return "%s options='-c search_path=%s'" % (self.world.system.postgres.dsn('prey').replace('user=postgres', 'user=' + user),
                                                   path.replace(' ', ''))

    @staticmethod
    def script(name):
        with open(os.path.join(CLIENTS, name)) as file:
            return file.read()

    @staticmethod
    def run(connection, sql):
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else None

    def sprung(self):
        """The number of traps that have run; the server's log says which."""
        return self.run(self.admin, 'SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.sprung')[0][0]

    def missed(self):
        """Nothing is cached any more."""
        self.world.system.flush()
        wait_for(lambda: self.run(self.admin, 'SELECT state FROM fence.state') == [('OPEN',)], 'the fences to open', 60)


@pytest.fixture(scope='module')
def place(single):
    made = Place(single)
    yield made
    made.admin.close()
    single.system.wait_open()


@pytest.fixture(autouse=True)
def nothing_springs(place):
    before = place.sprung()
    place.missed()
    yield
    assert place.sprung() == before, place.world.system.postgres.log_tail(20)


@pytest.fixture(params=PATHS)
def path(request):
    return request.param


def test_the_traps_work(place, nothing_springs):
    first, second = (place.connect('application', path) for path in PATHS)
    for connection, sql in ((first, 'SELECT to_jsonb(t.*) FROM prey t'), (first, "SELECT 1 FROM prey WHERE code = 'a'::code"), (first, "SELECT 'dark'::shade"),
                            (first, 'SELECT quote_ident(relname) FROM pg_class LIMIT 1'), (second, "SELECT current_setting('work_mem')"),
                            (second, 'SELECT 1 = 1'), (second, "SELECT 'a'::text"), (second, 'SELECT * FROM pg_class')):
        before = place.sprung()
        place.run(connection, sql)
        assert place.sprung() > before, sql
        place.run(place.admin, "SELECT setval('public.sprung', 1, false)")


def read_all(fences):
    for domain, key, value in READS:
        assert fences.read(domain, key) == value, domain
        assert fences.read_many(domain, [key]) == {key: value}, domain
    assert fences.read_together([(domain, key) for domain, key, _ in READS]) == [value for _, _, value in READS]
    assert fences.derived('count_of', 1) == 4
    for domain, key, value in READS:                            # and what was put is right too
        wait_for(lambda d=domain, k=key: fences.peek(d, k).freshness == 'fresh' or fences.read(d, k) is None, domain)
        assert fences.peek(domain, key).value == fences.read(domain, key) == value, domain


def test_blocking(place, path):
    read_all(Fences(place.world.redis(), place.connect('application', path)))


def test_blocking_with_old_descriptions(place, path):
    read_all(place.old[path])


async def read_all_later(place, postgres):
    client = place.world.async_redis()
    fences = AsyncFences(client, postgres)
    for domain, key, value in READS:
        assert await fences.read(domain, key) == value, domain
        assert await fences.read_many(domain, [key]) == {key: value}, domain
    assert await fences.read_together([(domain, key) for domain, key, _ in READS]) == [value for _, _, value in READS]
    assert await fences.derived('count_of', 1) == 4
    await client.close()


def test_asyncio(place, path):
    async def body():
        async with await psycopg.AsyncConnection.connect(place.dsn('application', path), autocommit=True) as connection:
            await read_all_later(place, connection)
    asyncio.run(body())


def test_asyncpg(place):
    """With the usual search_path. If public comes first, asyncpg's own queries find what is in it."""
    async def body():
        server = place.world.system.postgres
        async with asyncpg.create_pool(host=server.directory, port=server.PORT, user='application', database='prey', min_size=1, max_size=2,
                                       server_settings={'search_path': PATHS[0]}) as pool:
            await read_all_later(place, pool)
    asyncio.run(body())


def test_sqlalchemy(place):
    from pgcache_fence.sqlalchemy import IdentityCache
    engine = sa.create_engine('postgresql+psycopg2://', creator=lambda: place.connect('application'))
    cache = IdentityCache(Fences(place.world.redis()))
    cache.add(Prey)
    for _ in range(2):
        with Session(engine) as session:
            assert cache.get(session, Prey, 1).name == 'fawn'
    engine.dispose()


def test_django(place):
    import django
    from django.conf import settings
    if not settings.configured:
        settings.configure(INSTALLED_APPS=[], DEFAULT_AUTO_FIELD='django.db.models.AutoField', PGCACHE_FENCE={}, DATABASES={})
        django.setup()
    from django.db import connections, models
    from pgcache_fence.django import FencedManager

    class Prey(models.Model):
        name = models.TextField()
        fenced = FencedManager()

        class Meta:
            app_label = 'prey'
            db_table = 'prey_id'

    server = place.world.system.postgres
    settings.PGCACHE_FENCE['prey'] = {'redis': place.world.redis}
    connections.databases['prey'] = {**connections.databases['default'], 'ENGINE': 'django.db.backends.postgresql', 'NAME': 'prey',
                                     'USER': 'application', 'HOST': server.directory, 'PORT': str(server.PORT)}
    for _ in range(2):
        assert Prey.fenced.using('prey').get(pk=1).name == 'fawn'
    assert Prey.fenced.using('prey').in_bulk([1])[1].name == 'fawn'
    connections['prey'].close()
