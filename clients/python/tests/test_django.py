"""The adapter for Django against the real one: instances from the cache, transactions that write, what is left to PostgreSQL."""

import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal

import django
import pytest
from django.conf import settings

from conftest import wait_for

TABLES = '''
CREATE TABLE shop_owner (id int PRIMARY KEY, name text);
CREATE TABLE shop_thing (id int PRIMARY KEY, owner_id int REFERENCES shop_owner, name text NOT NULL, price numeric(30, 10), weight float8, made date,
                         at timestamptz, "when" time, code uuid, data bytea, extra jsonb, label text, open boolean, version bigint NOT NULL DEFAULT 0);
INSERT INTO shop_owner VALUES (1, 'Ada');
SELECT fence.attach('shop_thing');
'''
VALUES = dict(owner_id=1, name='Ä "thing"', price=Decimal('12345678901234567890.1234567891'), weight=0.1, made=date(2024, 2, 29),
              at=datetime(2024, 2, 29, 12, 0, 0, 500000, timezone.utc), when=time(4, 5, 6, 100), code=uuid.uuid4(), data=b'\0\xff\\x',
              extra={'a': [1, 2.5, None]}, label='small', open=True)


@pytest.fixture(scope='module')
def shop(single):
    """The models, and the world that they are of."""
    settings.configure(USE_TZ=True, INSTALLED_APPS=[], DEFAULT_AUTO_FIELD='django.db.models.AutoField',
                       PGCACHE_FENCE={'default': {'redis': single.redis}},
                       DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'postgres', 'USER': 'postgres',
                                              'HOST': single.system.postgres.directory, 'PORT': str(single.system.postgres.PORT)}})
    django.setup()
    from django.db import connections, models
    from pgcache_fence.django import FencedManager

    class Upper(models.TextField):
        def from_db_value(self, value, expression, connection):
            return value and value.upper()

    class Owner(models.Model):
        name = models.TextField()

        class Meta:
            app_label = 'shop'

    class Thing(models.Model):
        owner = models.ForeignKey(Owner, models.CASCADE, null=True)
        name = models.TextField()
        price = models.DecimalField(max_digits=30, decimal_places=10)
        weight = models.FloatField()
        made = models.DateField()
        at = models.DateTimeField()
        when = models.TimeField()
        code = models.UUIDField()
        data = models.BinaryField()
        extra = models.JSONField()
        label = Upper()
        open = models.BooleanField()
        version = models.BigIntegerField(default=0)
        objects = models.Manager()
        fenced = FencedManager()

        class Meta:
            app_label = 'shop'

    single.sql(TABLES)
    single.Thing, single.Owner = Thing, Owner
    yield single
    connections.close_all()


@pytest.fixture
def id(shop):
    return shop.Thing.objects.create(id=next(shop.numbers), **VALUES).pk


def sources():
    from pgcache_fence.django import fences
    return fences().counters.snapshot()['reads'].get('shop_thing', {})


def asked(read):
    """By which way the read went: hit, database, or neither, where the cache was not asked."""
    before = sources()
    read()
    return [source for source, n in sources().items() if n > before.get(source, 0)]


def hit(shop, id):
    wait_for(lambda: asked(lambda: shop.Thing.fenced.get(pk=id)) == ['hit'], 'a hit')


def test_an_instance_is_that_which_a_query_loads(shop, id):
    hit(shop, id)
    for read in (lambda: shop.Thing.fenced.get(pk=id), lambda: shop.Thing.fenced.get(id=str(id)), lambda: shop.Thing.fenced.all().get(pk=id)):
        assert asked(read) == ['hit']
        cached, loaded = read(), shop.Thing.objects.get(pk=id)
        for field in shop.Thing._meta.concrete_fields:
            one, other = getattr(cached, field.attname), getattr(loaded, field.attname)
            assert bytes(one) == bytes(other) if field.name == 'data' else (one, type(one)) == (other, type(other)), field
        assert cached == loaded and cached.owner.name == 'Ada' and not cached._state.adding and cached.label == 'SMALL'


def test_a_write_is_seen(shop, id):
    hit(shop, id)
    thing = shop.Thing.fenced.get(pk=id)
    thing.name = 'saved'
    thing.save()
    assert shop.Thing.fenced.get(pk=id).name == 'saved'
    shop.Thing.objects.filter(pk=id).update(name='updated')
    assert shop.Thing.fenced.get(pk=id).name == 'updated'
    shop.Thing.objects.filter(pk=id).delete()
    with pytest.raises(shop.Thing.DoesNotExist):
        shop.Thing.fenced.get(pk=id)


def test_several(shop, id):
    hit(shop, id)
    found = shop.Thing.fenced.in_bulk([id, -1])
    assert list(found) == [id] and found[id].name == VALUES['name']
    assert asked(lambda: shop.Thing.fenced.in_bulk([id])) == ['hit']


def test_all_else_is_left_to_postgresql(shop, id):
    hit(shop, id)
    things = shop.Thing.fenced
    for read in (lambda: things.select_related('owner').get(pk=id), lambda: things.filter(open=True).get(pk=id), lambda: things.get(pk=id, open=True),
                 lambda: things.defer('name').get(pk=id), lambda: things.values('id').get(pk=id), lambda: things.get(name=VALUES['name'], id=id),
                 lambda: things.prefetch_related('owner').get(pk=id), lambda: things.get(id__lte=id, id__gte=id), lambda: list(things.filter(pk=id))):
        assert asked(read) == []
    from django.db import transaction
    with transaction.atomic():
        assert asked(lambda: things.select_for_update().get(pk=id)) == []


def test_a_transaction_that_has_written_reads_what_it_wrote(shop, id):
    from django.db import transaction
    hit(shop, id)
    with transaction.atomic():
        assert asked(lambda: shop.Thing.fenced.get(pk=id)) == ['hit']
        with transaction.atomic():
            shop.Thing.objects.filter(pk=id).update(name='mine')
        assert shop.Thing.fenced.get(pk=id).name == 'mine'
        assert asked(lambda: shop.Thing.fenced.in_bulk([id])) == []
        transaction.set_rollback(True)
    assert shop.Thing.fenced.get(pk=id).name == VALUES['name']
    hit(shop, id)


def test_optimistic_locking_with_instances_of_the_cache(shop, id):
    from django.db.models import F
    hit(shop, id)

    def save(thing, name):
        return shop.Thing.objects.filter(pk=thing.pk, version=thing.version).update(name=name, version=F('version') + 1)

    one, other = shop.Thing.fenced.get(pk=id), shop.Thing.fenced.get(pk=id)
    assert save(one, 'one') == 1 and save(other, 'other') == 0
    again = shop.Thing.fenced.get(pk=id)
    assert (again.name, again.version) == ('one', one.version + 1) and save(again, 'other') == 1


def test_what_cannot_be_cached_is_refused(shop):
    from django.core.exceptions import ImproperlyConfigured
    from django.db import models
    from pgcache_fence.django import FencedManager

    class Odd(models.Model):
        span = models.DurationField()
        fenced = FencedManager()

        class Meta:
            app_label = 'shop'
    with pytest.raises(ImproperlyConfigured, match='span is a DurationField'):
        Odd.fenced.get(pk=1)
