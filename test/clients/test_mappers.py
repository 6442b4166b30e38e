#!/usr/bin/python3
"""SQLAlchemy and Django on fenced tables, set up as doc/operations.md says ("Object-relational mappers"). Prints TAP.

What a mapper has committed is looked at past it: the row in PostgreSQL, what fence.read returns, whether it is a hit, and the
versions of row and fence.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

import psycopg2

from system import HERE, System, wait_for
from tap import Report, Steps, same

SQLALCHEMY, DJANGO = Steps(), Steps()


class Scenes:
    def __init__(self, system):
        self.system = system
        self.sql = system.sql

    def value(self, sql, *parameters):
        return self.sql(sql, parameters)[0][0]

    def is_cached(self, table, key, version):
        """The row with that id is read as it is, then a hit, and has this version. Returns it."""
        key = str(key)
        row = self.value('SELECT to_jsonb(t) FROM %s t WHERE id = %%s' % table, key)
        same(row is not None, True, 'the row is there')
        same(self.value('SELECT fence.read(%s, %s)', table, key), row, 'read')

        def hit():
            status, value = self.sql('SELECT status, payload::jsonb FROM fence.get(%s, %s)', (table, key))[0]
            if status != 'hit':
                same(self.value('SELECT fence.read(%s, %s)', table, key), row, 'read again')
                return False
            same(value, row, 'hit')
            return True
        wait_for(hit, 'a hit')
        same(self.sql('SELECT row_version, fence_version FROM fence.status(%s, %s)', (table, key))[0], (version, version), 'versions')
        return row

    def is_gone(self, table, key):
        same(self.value('SELECT fence.read(%s, %s)', table, str(key)), None, 'read')
        same(self.value('SELECT status FROM fence.get(%s, %s)', table, str(key)) in ('miss', 'pending'), True, 'no hit')

    def refuses(self, error, function, text=''):
        try:
            function()
        except error as raised:
            same(text in str(raised), True, str(raised))
            return
        raise RuntimeError('it was not refused')


class WithSQLAlchemy(Scenes):
    TABLES = '''
    CREATE TABLE invoice (id serial PRIMARY KEY, state text, version_id int NOT NULL DEFAULT 0);
    CREATE TABLE counted (id serial PRIMARY KEY, state text, version_id int NOT NULL);
    CREATE TABLE raised (id serial PRIMARY KEY, state text, version_id int NOT NULL, best int);
    CREATE TABLE shelf (id serial PRIMARY KEY, best int, version_id int NOT NULL DEFAULT 0);
    CREATE TABLE book (id serial PRIMARY KEY, shelf int NOT NULL REFERENCES shelf, version_id int NOT NULL DEFAULT 0);
    ALTER TABLE shelf ADD FOREIGN KEY (best) REFERENCES book;
    CREATE TABLE plain (id serial PRIMARY KEY, state text);
    SELECT fence.attach(t, version => 'version_id') FROM unnest('{invoice,counted,raised,shelf,book}'::regclass[]) t;
    SELECT fence.attach('plain', version => NULL);
    '''

    def __init__(self, system):
        super().__init__(system)
        import sqlalchemy
        from sqlalchemy import orm
        self.sa, self.orm = sqlalchemy, orm
        self.stale = orm.exc.StaleDataError
        self.sql(self.TABLES)
        self.engine = sqlalchemy.create_engine('postgresql+psycopg2://', creator=lambda: psycopg2.connect(system.postgres.dsn()))
        print('# SQLAlchemy ' + sqlalchemy.__version__)

        base = orm.declarative_base()
        read_back = sqlalchemy.FetchedValue()

        def column(*arguments, **options):
            return sqlalchemy.Column(*arguments, **options)

        def numbered():
            return column(sqlalchemy.Integer, primary_key=True)

        class Invoice(base):
            """The number is read back."""
            __tablename__ = 'invoice'
            id = numbered()
            state = column(sqlalchemy.Text)
            version_id = column(sqlalchemy.Integer, server_default=read_back, server_onupdate=read_back)
            __mapper_args__ = {'version_id_col': version_id, 'version_id_generator': False, 'eager_defaults': True}

        class Counted(base):
            """The mapper computes the number."""
            __tablename__ = 'counted'
            id = numbered()
            state = column(sqlalchemy.Text)
            version_id = column(sqlalchemy.Integer, nullable=False)
            __mapper_args__ = {'version_id_col': version_id}

        class Raised(base):
            """The same, and the triggers leave it to the mapper."""
            __tablename__ = 'raised'
            id = numbered()
            state = column(sqlalchemy.Text)
            best = column(sqlalchemy.Integer, sqlalchemy.ForeignKey('raised.id'))
            version_id = column(sqlalchemy.Integer, nullable=False)
            favourite = orm.relationship('Raised', remote_side=[id], post_update=True)
            __mapper_args__ = {'version_id_col': version_id}

        class Shelf(base):
            __tablename__ = 'shelf'
            id = numbered()
            best = column(sqlalchemy.Integer, sqlalchemy.ForeignKey('book.id', use_alter=True))
            version_id = column(sqlalchemy.Integer, server_default=read_back, server_onupdate=read_back)
            favourite = orm.relationship('Book', foreign_keys=[best], post_update=True)
            books = orm.relationship('Book', foreign_keys='Book.shelf', backref='on')
            __mapper_args__ = {'version_id_col': version_id, 'version_id_generator': False, 'eager_defaults': True}

        class Book(base):
            __tablename__ = 'book'
            id = numbered()
            shelf = column(sqlalchemy.Integer, sqlalchemy.ForeignKey('shelf.id'))
            version_id = column(sqlalchemy.Integer, server_default=read_back, server_onupdate=read_back)
            __mapper_args__ = {'version_id_col': version_id, 'version_id_generator': False, 'eager_defaults': True}

        self.Invoice, self.Counted, self.Raised, self.Shelf, self.Book = Invoice, Counted, Raised, Shelf, Book

    def stop(self):
        self.engine.dispose()

    def session(self):
        return contextlib.closing(self.orm.Session(self.engine))

    def conflicts(self, kind, table, first):
        """A row from its INSERT to its DELETE, with all that can come between. first: its first version."""
        with self.session() as one, self.session() as two:
            mine = kind(state='new')
            one.add(mine)
            one.commit()
            id = mine.id
            self.is_cached(table, id, first)
            same(mine.version_id, first, 'read back')
            theirs = two.get(kind, id)
            same(theirs.version_id, first, 'read by the other')
            mine.state = 'mine'
            one.commit()
            same(mine.version_id, first + 1, 'read back after UPDATE')
            same(self.is_cached(table, id, first + 1)['state'], 'mine')
            # the other has read what was before
            theirs.state = 'theirs'
            self.refuses(self.stale, two.commit)
            two.rollback()
            same(self.is_cached(table, id, first + 1)['state'], 'mine')
            theirs = two.get(kind, id)
            theirs.state = 'theirs'
            two.commit()
            self.is_cached(table, id, first + 2)
            # one flush after the other in one transaction
            theirs.state = 'once'
            two.flush()
            theirs.state = 'twice'
            two.commit()
            same(self.is_cached(table, id, first + 4)['state'], 'twice')
            return id

    @SQLALCHEMY
    def versions_that_are_read_back(self):
        id = self.conflicts(self.Invoice, 'invoice', 0)
        with self.session() as session:
            row = session.get(self.Invoice, id)
            same(row.version_id, 4)
            # what is no mapper's counts too
            self.sql("UPDATE invoice SET state = 'by hand' WHERE id = %s", (id,))
            self.is_cached('invoice', id, 5)
            row.state = 'mapped'
            self.refuses(self.stale, session.commit)
            session.rollback()
            session.delete(session.get(self.Invoice, id))
            session.commit()
        self.is_gone('invoice', id)

    @SQLALCHEMY
    def versions_that_the_mapper_computes(self):
        id = self.conflicts(self.Counted, 'counted', 1)
        with self.session() as one, self.session() as two:
            mine, theirs = one.get(self.Counted, id), two.get(self.Counted, id)
            self.sql("UPDATE counted SET state = 'by hand' WHERE id = %s", (id,))
            mine.state = 'mapped'
            self.refuses(self.stale, one.commit)
            one.rollback()
            two.delete(theirs)
            self.refuses(self.stale, two.commit)
            two.rollback()
            self.is_cached('counted', id, 6)
            one.delete(one.get(self.Counted, id))
            one.commit()
        self.is_gone('counted', id)

    @SQLALCHEMY
    def many_rows_in_one_flush(self):
        with self.session() as session:
            rows = [self.Counted(state='new') for _ in range(20)]
            session.add_all(rows)
            session.commit()
            for row in rows:
                row.state = 'changed'
            session.commit()
            same([row.version_id for row in rows], [2] * 20)
            ids = [row.id for row in rows]
            session.query(self.Counted).filter(self.Counted.id.in_(ids[:10])).update({'state': 'at once'},
                                                                                     synchronize_session=False)
            session.commit()
            same([row.version_id for row in rows], [3] * 10 + [2] * 10)
        for n, id in enumerate(ids):
            self.is_cached('counted', id, 3 if n < 10 else 2)

    @SQLALCHEMY
    def a_foreign_key_that_is_written_after_the_insert(self):
        with self.session() as session:
            shelf = self.Shelf()
            book = self.Book(on=shelf)
            shelf.favourite = book
            session.add(shelf)
            session.commit()
            same(self.is_cached('shelf', shelf.id, 1)['best'], book.id)
            self.is_cached('book', book.id, 0)
            same(shelf.version_id, 1)
            shelf.favourite = None
            session.commit()
            same(self.is_cached('shelf', shelf.id, 2)['best'], None)

    @SQLALCHEMY
    def an_update_that_the_mapper_does_not_count(self):
        with self.session() as session:
            one = self.Raised(state='one')
            one.favourite = one
            session.add(one)
            session.commit()
        id = self.value('SELECT max(id) FROM raised')
        same(self.is_cached('raised', id, 2)['best'], id)

    @SQLALCHEMY
    def reflection_sees_the_columns_of_the_application(self):
        table = self.sa.Table('plain', self.sa.MetaData(), autoload_with=self.engine)
        same([column.name for column in table.columns], ['id', 'state'])

        class Plain(self.orm.declarative_base()):
            __table__ = table

        with self.session() as session:
            row = Plain(state='new')
            session.add(row)
            session.commit()
            same(list(session.execute(self.sa.text('SELECT * FROM plain')).keys()), ['id', 'state'])
            self.is_cached('plain', row.id, 1)
            row.state = 'changed'
            session.commit()
            same(self.is_cached('plain', row.id, 2), {'id': row.id, 'state': 'changed'})
            id = row.id
            session.delete(row)
            session.commit()
        self.is_gone('plain', id)


class WithDjango(Scenes):
    def __init__(self, system):
        super().__init__(system)
        self.directory = os.path.join(system.directory, 'django')
        shutil.copytree(os.path.join(HERE, 'shop'), os.path.join(self.directory, 'shop'), ignore=shutil.ignore_patterns('__pycache__'))
        self.environment = {**system.environment(), 'PYTHONPATH': self.directory, 'DJANGO_SETTINGS_MODULE': 'shop.settings'}
        self.manage('AutoField', 'makemigrations', 'shop', '-n', 'first')
        self.manage('AutoField', 'migrate')
        self.sql("SELECT fence.attach('shop_customer', version => NULL), fence.attach('shop_order')")
        os.environ.update(self.environment, SHOP_AUTO_FIELD='AutoField')
        sys.path.insert(0, self.directory)
        import django
        django.setup()
        from django.db import connections, transaction
        from shop import models
        self.connections, self.transaction, self.models = connections, transaction, models
        self.Order, self.Customer = models.Order.objects, models.Customer.objects
        print('# Django ' + django.get_version())

    def manage(self, auto_field, *arguments):
        """manage.py of a project with that type of primary keys. Returns what it says."""
        done = subprocess.run([sys.executable, '-m', 'django', *arguments], cwd=self.directory, stdin=subprocess.DEVNULL,
                              env={**self.environment, 'SHOP_AUTO_FIELD': auto_field}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        same(done.returncode, 0, done.stdout)
        return done.stdout

    def stop(self):
        self.connections.close_all()

    def new_order(self, **values):
        return self.Order.create(customer=self.Customer.create(name='somebody'), **values)

    @DJANGO
    def create_and_save(self):
        order = self.new_order()
        self.is_cached('shop_order', order.id, 0)
        self.is_cached('shop_customer', order.customer_id, 1)
        order.state = 'paid'
        order.save()
        same(self.is_cached('shop_order', order.id, 1)['state'], 'paid')
        # the version in the object is an old one by now
        same(order.version, 0)
        order.state = 'sent'
        order.save(update_fields=['state'])
        order.total = 7
        order.save()
        same(self.is_cached('shop_order', order.id, 3), {'id': order.id, 'customer_id': order.customer_id, 'state': 'sent',
                                                         'total': 7, 'version': 3})
        order.refresh_from_db()
        same(order.version, 3)
        order.customer.name = 'somebody else'
        order.customer.save()
        same(self.is_cached('shop_customer', order.customer_id, 2), {'id': order.customer_id, 'name': 'somebody else'})

    @DJANGO
    def updates_of_many(self):
        customer = self.Customer.create(name='many')
        orders = self.Order.bulk_create([self.models.Order(customer=customer) for _ in range(10)])
        for order in orders:
            self.is_cached('shop_order', order.id, 0)
            order.state, order.total = 'bulk', order.id
        self.Order.bulk_update(orders, ['state', 'total'])
        for order in orders:
            same(self.is_cached('shop_order', order.id, 1)['total'], order.id)
        from django.db.models import F
        same(self.Order.filter(customer=customer, id__gt=orders[4].id).update(total=F('total') + 1), 5)
        for n, order in enumerate(orders):
            same(self.is_cached('shop_order', order.id, 1 if n < 5 else 2)['total'], order.id + (n >= 5))

    @DJANGO
    def select_for_update(self):
        order = self.new_order()
        self.is_cached('shop_order', order.id, 0)
        with self.transaction.atomic():
            locked = self.Order.select_for_update().get(pk=order.pk)
            same(self.value('SELECT status FROM fence.get(%s, %s)', 'shop_order', str(order.id)), 'hit', 'a lock is no write')
            locked.state = 'locked'
            locked.save()
            same(self.value('SELECT fence.read(%s, %s)', 'shop_order', str(order.id))['state'], 'new', 'before COMMIT')
            same(self.value('SELECT status FROM fence.get(%s, %s)', 'shop_order', str(order.id)), 'pending')
        same(self.is_cached('shop_order', order.id, 1)['state'], 'locked')

    @DJANGO
    def what_is_rolled_back(self):
        order = self.new_order()
        with self.transaction.atomic():
            order.state = 'kept'
            order.save()
            with contextlib.suppress(ZeroDivisionError), self.transaction.atomic():
                self.Order.filter(pk=order.pk).update(state='never')
                raise ZeroDivisionError
        same(self.is_cached('shop_order', order.id, 1)['state'], 'kept')
        with contextlib.suppress(ZeroDivisionError), self.transaction.atomic():
            self.Order.filter(pk=order.pk).update(state='never')
            raise ZeroDivisionError
        same(self.is_cached('shop_order', order.id, 1)['state'], 'kept')

    @DJANGO
    def delete_with_what_refers_to_it(self):
        order = self.new_order()
        self.is_cached('shop_order', order.id, 0)
        self.is_cached('shop_customer', order.customer_id, 1)
        customer = order.customer_id
        order.customer.delete()
        self.is_gone('shop_order', order.id)
        self.is_gone('shop_customer', customer)

    @DJANGO
    def nothing_new_in_a_table_without_a_version_column(self):
        order = self.new_order()
        same(self.Customer.raw('SELECT * FROM shop_customer WHERE id = %s', [order.customer_id])[0].name, 'somebody')
        with self.connections['default'].cursor() as cursor:
            cursor.execute('SELECT * FROM shop_customer')
            same([column.name for column in cursor.description], ['id', 'name'])
        same('version' in self.manage('AutoField', 'inspectdb', 'shop_customer'), False)

    def key_types(self):
        return [row[0] for row in self.sql('''
            SELECT format_type(atttypid, atttypmod) FROM pg_attribute
             WHERE (attrelid, attname) IN (('shop_customer'::regclass, 'id'), ('shop_order'::regclass, 'id'),
                                           ('shop_order'::regclass, 'customer_id'))''')]

    def migrated(self, order, version, types, *arguments):
        """An order that was cached before is read, written and cached after the migration, like its customer."""
        before = self.sql('SELECT * FROM fence.domain ORDER BY id')
        old = [self.is_cached('shop_order', order.id, version), self.is_cached('shop_customer', order.customer_id, version + 1)]
        deleted = self.new_order()
        deleted.delete()
        self.manage(*arguments)
        same(self.key_types(), [types] * 3)
        same(self.sql('SELECT * FROM fence.domain ORDER BY id'), before, 'attachments')
        same([self.is_cached('shop_order', order.id, version), self.is_cached('shop_customer', order.customer_id, version + 1)], old)
        order.state = 'after ' + arguments[-1]
        order.save()
        order.customer.save()
        same(self.is_cached('shop_order', order.id, version + 1)['state'], order.state)
        self.is_cached('shop_customer', order.customer_id, version + 2)
        again = self.Order.create(id=deleted.id, customer=order.customer)
        self.is_cached('shop_order', again.id, 2)           # of what was there before; its DELETE; the new one

    @DJANGO
    def migration_to_larger_keys_and_back(self):
        order = self.new_order()
        self.manage('BigAutoField', 'makemigrations', 'shop', '-n', 'larger')
        same(self.key_types(), ['integer'] * 3)
        self.migrated(order, 0, 'bigint', 'BigAutoField', 'migrate')
        large = self.Order.create(id=3 << 40, customer=order.customer)
        self.is_cached('shop_order', large.id, 0)
        large.delete()
        self.migrated(order, 1, 'integer', 'BigAutoField', 'migrate', 'shop', '0001')
        self.is_cached('shop_order', self.new_order().id, 0)


def main():
    directory = tempfile.mkdtemp(prefix='mappers.')
    system, report = System(directory), Report()
    try:
        system.start()
        for name, mapper, steps in (('SQLAlchemy', WithSQLAlchemy, SQLALCHEMY), ('Django', WithDjango, DJANGO)):
            scenes = mapper(system)
            system.wait_open()
            for step in steps:
                report.check('%s: %s' % (name, step.replace('_', ' ')), getattr(scenes, step))
            scenes.stop()
    finally:
        system.stop()
        if report.bad:
            system.show_logs()
    shutil.rmtree(directory)
    return report.finish()


if __name__ == '__main__':
    sys.exit(main())
