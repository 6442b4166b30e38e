"""Makes random transactions on the tables of schema.py. A transaction is a list of steps (session, text, data of COPY or None).
No step depends on the answer of an earlier one, so that any part can be left out."""

VALUES = ("'new'", "'x'", "'y'", 'NULL', 'DEFAULT', "repeat(md5('z'), 200)")
VERSIONS = ('{v} + 1', '{v} + 5', '{v}', '{v} - 1', '0', '3', '7', 'NULL', '-4', '32767', '32768', '2147483647', '9223372036854775807', 'DEFAULT')

# A savepoint. If the next statement fails, the transaction rolls back to it and goes on.
GUARD = 'SAVEPOINT guard'


class Statements:
    def __init__(self, rng, schema):
        self.rng, self.tables = rng, schema.tables

    # ------------------------------------------------------------------------------------------------------------------
    # Parts
    # ------------------------------------------------------------------------------------------------------------------

    def table(self):
        return self.rng.choice(self.tables)

    def target(self, t):
        """The name of the table, of a view of it, or of a partition."""
        drawn = self.rng.random()
        if t.views and drawn < 0.3:
            return t.views[0]
        return t.name + '_0' if t.partitioned and drawn > 0.85 else t.name

    def key_values(self, t):
        return [self.rng.choice(t.universe[k]) for k in t.key]

    def where(self, t, alias=''):
        rng, k = self.rng, t.key[0]
        drawn = rng.random()
        if drawn < 0.3:
            return ' AND '.join('%s%s = %s' % (alias, k, v) for k, v in zip(t.key, self.key_values(t)))
        if drawn < 0.7:
            return '%s%s IN (%s)' % (alias, k, ', '.join(rng.sample(t.universe[k], min(3, len(t.universe[k])))))
        if drawn < 0.8:
            return '%sn %% 2 = %d' % (alias, rng.randrange(2))
        if drawn < 0.9:
            return '%s%s >= %s' % (alias, k, rng.choice(t.universe[k]))
        return rng.choice(('true', '%sn < 5' % alias, '%sv IS NOT NULL' % alias, '%s%s > 1' % (alias, t.version)))

    def assignments(self, t, alias=''):
        rng = self.rng
        found = {}
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            drawn = rng.random()
            if drawn < 0.35:
                found['n'] = rng.choice(('{a}n + 1', '{a}n + 1', '%d' % rng.randrange(10), 'NULL', '{a}n', '1000')).format(a=alias)
            elif drawn < 0.50:
                found['v'] = rng.choice(VALUES)
            elif drawn < 0.58:
                found['gr'] = rng.choice(('1', '2', 'NULL', '{a}gr')).format(a=alias)
            elif drawn < 0.68:
                found[t.version] = rng.choice(VERSIONS).format(v=alias + t.version)
            elif t.parent and drawn < 0.76:
                found['up'] = rng.choice(t.universe['up'])
            elif drawn < 0.95:
                k = rng.choice(t.key)
                found[k] = '%s%s + 1' % (alias, k) if t.types[k] in ('int', 'bigint', 'smallint') and rng.random() < 0.3 else rng.choice(t.universe[k])
            else:
                found['n'], found['v'] = None, None
        if found.get('n', 0) is None:
            del found['n'], found['v']
            return ', '.join(['(n, v) = (SELECT 7, %s)' % rng.choice(("'q'", 'max(what) FROM log WHERE id = 1'))] + ['%s = %s' % x for x in found.items()])
        return ', '.join('%s = %s' % x for x in found.items())

    def insert_columns(self, t):
        """The names of columns, and a function that makes the values of a row."""
        rng = self.rng
        columns = list(t.key)
        for column in ('n', 'v', 'gr') + (('up',) if t.parent else ()):
            if rng.random() < 0.5:
                columns.append(column)
        if rng.random() < 0.25:
            columns.append(t.version)
        rng.shuffle(columns)

        def row():
            return ', '.join(rng.choice(t.universe[c]) if c in t.universe else rng.choice(VERSIONS).format(v='2') if c == t.version else
                             str(rng.randrange(9)) if c == 'n' else rng.choice(('1', '2', 'NULL')) if c == 'gr' else rng.choice(VALUES) for c in columns)
        return columns, row

    def returning(self, t, alias='', target=''):
        return self.rng.choice(('', '', ' RETURNING %s*' % alias, ' RETURNING %s%s' % (alias, t.version),
                                ' RETURNING %s%sn, %sv' % ('' if target in t.views else '%stableoid::regclass, ' % alias, alias, alias)))

    # ------------------------------------------------------------------------------------------------------------------
    # Statements
    # ------------------------------------------------------------------------------------------------------------------

    def insert(self, t):
        rng = self.rng
        columns, row = self.insert_columns(t)
        target = self.target(t)
        text = 'INSERT INTO %s (%s) VALUES %s' % (target, ', '.join(columns), ', '.join('(%s)' % row() for _ in range(rng.choice((1, 1, 1, 2, 4)))))
        drawn = rng.random()
        if drawn < 0.35:
            text += ' ON CONFLICT DO NOTHING'
        elif drawn < 0.65:
            condition = rng.choice(('', '', ' WHERE %s.n < 5' % t.name)) if not text.startswith('INSERT INTO %s_' % t.name) else ''
            text += ' ON CONFLICT (%s) DO UPDATE SET v = EXCLUDED.v%s%s' % (', '.join(t.key), rng.choice((
                '', ', n = EXCLUDED.n', ', %s = EXCLUDED.%s' % (t.version, t.version), ', k0 = EXCLUDED.k0')), condition)
        return text + self.returning(t, '', target)

    def insert_select(self, t):
        rng = self.rng
        k = t.key[0]
        if t.types[k] in ('int', 'bigint', 'smallint') and rng.random() < 0.6:
            others = ''.join(', ' + rng.choice(t.universe[c]) for c in t.key[1:])
            return 'INSERT INTO %s (%s, n) SELECT g%s, g FROM generate_series(1, %d) g ON CONFLICT DO NOTHING' % (
                t.name, ', '.join(t.key), others, rng.choice((5, 8, 30)))
        other = ', '.join(rng.choice(t.universe[c]) if rng.random() < 0.7 else c for c in t.key)
        return 'INSERT INTO %s (%s, v) SELECT %s, v FROM %s ORDER BY %s LIMIT 2%s' % (
            t.name, ', '.join(t.key), other, t.name, ', '.join(t.key), rng.choice(('', ' ON CONFLICT DO NOTHING')))

    def update(self, t):
        target = self.target(t)
        return 'UPDATE %s SET %s WHERE %s%s' % (target, self.assignments(t), self.where(t), self.returning(t, '', target))

    def update_from(self, t):
        rng = self.rng
        columns = ', '.join(t.key)
        kind = rng.random()
        joined = ' AND '.join('x.%s = y.%s' % (k, k) for k in t.key)
        if kind < 0.5:
            return 'UPDATE %s x SET %s FROM (SELECT DISTINCT %s FROM %s WHERE %s) y WHERE %s%s' % (
                t.name, self.assignments(t, 'x.'), columns, t.name, self.where(t), joined, self.returning(t, 'x.'))
        if kind < 0.8:
            return 'UPDATE %s x SET %s FROM (SELECT min(n) AS m FROM %s) y WHERE %s AND x.n >= y.m' % (
                t.name, self.assignments(t, 'x.'), self.table().name, self.where(t, 'x.'))
        return 'UPDATE %s x SET n = x.n + 1 FROM generate_series(1, 2) y WHERE %s' % (t.name, self.where(t, 'x.'))

    def delete(self, t):
        if self.rng.random() < 0.2:
            return 'DELETE FROM %s x USING (SELECT 1 AS one) y WHERE %s AND y.one = 1%s' % (t.name, self.where(t, 'x.'), self.returning(t, 'x.'))
        target = self.target(t)
        return 'DELETE FROM %s WHERE %s%s' % (target, self.where(t), self.returning(t, '', target))

    def cte(self, t):
        rng = self.rng
        other = self.table()
        return rng.choice((
            'WITH gone AS (DELETE FROM {t} WHERE {w} RETURNING *) INSERT INTO {t} ({k}, n, v) SELECT {k}, 8, v FROM gone',
            'WITH gone AS (DELETE FROM {t} WHERE {w} RETURNING *) SELECT {k}, n, {v} FROM gone',
            'WITH new AS (UPDATE {t} SET {s} WHERE {w} RETURNING *) UPDATE {o} SET n = n + 1 WHERE {ow} AND (SELECT count(*) FROM new) >= 0',
            'WITH new AS (UPDATE {t} SET n = n + 1 WHERE {w} RETURNING {k}), old AS (DELETE FROM {o} WHERE {ow} RETURNING 1) SELECT (SELECT count(*) FROM new), (SELECT count(*) FROM old)',
            'WITH a AS (UPDATE {t} SET n = 1 WHERE {w}) UPDATE {t} SET n = 2 WHERE {w2}',
            'WITH a AS (UPDATE {t} SET n = 1 WHERE {w} RETURNING *) INSERT INTO log (what) SELECT to_jsonb(a)::text FROM a ORDER BY 1')).format(
                t=t.name, w=self.where(t), w2=self.where(t), k=', '.join(t.key), s=self.assignments(t), v=t.version, o=other.name, ow=self.where(other))

    def merge(self, t):
        rng = self.rng
        k, rest = t.key[0], t.key[1:]
        source = 'VALUES ' + ', '.join('(%s)' % x for x in rng.sample(t.universe[k], min(3, len(t.universe[k]))))
        pinned = {c: rng.choice(t.universe[c]) for c in rest}
        joined = ' AND '.join(['x.%s = y.k' % k] + ['x.%s = %s' % c for c in pinned.items()])
        text = 'MERGE INTO %s x USING (%s) y (k) ON %s' % (t.name, source, joined)
        actions = ['WHEN MATCHED AND x.n > %d THEN DELETE' % rng.randrange(6), 'WHEN MATCHED THEN UPDATE SET ' + self.assignments(t, 'x.'),
                   'WHEN NOT MATCHED THEN INSERT (%s, n) VALUES (%s, 1)' % (', '.join(t.key), ', '.join(['y.k'] + list(pinned.values()))),
                   'WHEN NOT MATCHED THEN DO NOTHING']
        chosen = rng.sample(range(3), rng.choice((1, 2, 3)))
        return ' '.join([text] + [actions[n] for n in sorted(chosen)])

    def block(self, t):
        rng = self.rng
        return rng.choice((
            "DO $$ DECLARE r record; BEGIN FOR r IN SELECT * FROM {t} WHERE {w} ORDER BY {k} LOOP UPDATE {t} SET {s} WHERE {me}; END LOOP; END $$",
            "DO $$ DECLARE c CURSOR FOR SELECT * FROM {t} WHERE {w} FOR UPDATE; BEGIN FOR r IN c LOOP UPDATE {t} SET {s} WHERE CURRENT OF c; END LOOP; END $$",
            "DO $$ BEGIN FOR i IN 1 .. 7 LOOP BEGIN UPDATE {t} SET n = n + i WHERE {w}; IF i % 2 = 0 THEN RAISE division_by_zero; END IF; EXCEPTION WHEN others THEN RAISE NOTICE '%', SQLSTATE; END; END LOOP; END $$",
            "DO $$ BEGIN DELETE FROM {t} WHERE {w}; INSERT INTO {t} ({k}) VALUES ({new}); UPDATE {t} SET {s} WHERE {w}; EXCEPTION WHEN unique_violation THEN RAISE NOTICE 'there'; END $$",
            "DO $$ DECLARE x {t}; BEGIN UPDATE {t} SET {s} WHERE {w} RETURNING * INTO x; RAISE NOTICE '% %', FOUND, x; END $$")).format(
                t=t.name, w=self.where(t), s=self.assignments(t), k=', '.join(t.key), new=', '.join(self.key_values(t)), me=' AND '.join('%s = r.%s' % (k, k) for k in t.key))

    def locks(self, t):
        return 'SELECT 1 FROM %s WHERE %s FOR %s' % (t.name, self.where(t), self.rng.choice(('UPDATE', 'NO KEY UPDATE', 'SHARE', 'KEY SHARE')))

    def reads(self, t):
        if not t.attached:
            return 'SELECT count(*) FROM ' + t.name
        key = ', '.join('(%s)::text' % x for x in self.key_values(t))
        return self.rng.choice(("SELECT fence.read('{d}', VARIADIC ARRAY[{k}])", "SELECT status, version, payload FROM fence.get('{d}', VARIADIC ARRAY[{k}])",
                                "SELECT fence_version, row_version, relation FROM fence.status('{d}', VARIADIC ARRAY[{k}])")).format(d=t.domain, k=key)

    def seed(self, t):
        """A query that caches every row of the domain."""
        return "SELECT fence.read('%s', VARIADIC ARRAY[%s]) FROM %s" % (t.domain, ', '.join(k + '::text' for k in t.key), t.name)

    def definition(self, t):
        return self.rng.choice(('TRUNCATE {t}', 'TRUNCATE {t} CASCADE', 'ALTER TABLE {t} ADD extra int DEFAULT 7', 'ALTER TABLE {t} DROP IF EXISTS extra',
                                'ALTER TABLE {t} DISABLE TRIGGER mmm_log', 'CREATE TRIGGER mmm_more AFTER UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION log_row()',
                                'CREATE TRIGGER aaa_more BEFORE UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION touch()', 'DROP TRIGGER IF EXISTS aaa_more ON {t}',
                                "SELECT fence.detach('{t}')", 'ALTER TABLE {t} RENAME v TO u; UPDATE {t} SET n = n + 1; ALTER TABLE {t} RENAME u TO v', 'ALTER TABLE {t} ALTER n TYPE bigint',
                                "SELECT fence.attach('{t}', version => '{v}')", "UPDATE {t} SET n = 0; TRUNCATE {t}; INSERT INTO {t} ({k}) VALUES ({new})")).format(
                                    t=t.name, v=t.version, k=', '.join(t.key), new=', '.join(self.key_values(t)))

    def copy(self, t):
        """A COPY statement, and its lines of data."""
        rng = self.rng
        lines = []
        for _ in range(rng.choice((1, 2, 4))):
            values = [x.partition('::')[0].strip("'").replace('\\', '\\\\') for x in self.key_values(t)]
            lines.append('\t'.join(values + [str(rng.randrange(9))]))
        return 'COPY %s (%s, n) FROM STDIN' % (t.name, ', '.join(t.key)), '\n'.join(lines) + '\n'

    def prepared(self):
        """PREPARE statements. Each name is prepared once and executed often, so that PostgreSQL makes generic plans."""
        for n, t in enumerate(self.tables):
            key = ' AND '.join('%s = %s' % (k, t.universe[k][0]) for k in t.key[1:])
            condition = '%s = $1%s' % (t.key[0], ' AND ' + key if key else '')
            yield 'PREPARE u%d (%s, int) AS UPDATE %s SET n = $2, v = $2 WHERE %s RETURNING n, %s' % (n, t.types['k0'], t.name, condition, t.version)
            yield 'PREPARE d%d (%s) AS DELETE FROM %s WHERE %s' % (n, t.types['k0'], t.name, condition)
            yield 'PREPARE m%d (int) AS UPDATE %s SET n = n + $1 WHERE n < 4' % (n, t.name)
            yield 'PREPARE k%d (%s, %s) AS UPDATE %s SET k0 = $2 WHERE %s' % (n, t.types['k0'], t.types['k0'], t.name, condition)

    def execute(self):
        n = self.rng.randrange(len(self.tables))
        keys = self.tables[n].universe['k0']
        return self.rng.choice(('EXECUTE u{n} ({k}, {i})', 'EXECUTE u{n} ({k}, {i})', 'EXECUTE d{n} ({k})', 'EXECUTE m{n} ({i})', 'EXECUTE k{n} ({k}, {to})')).format(
            n=n, k=self.rng.choice(keys), to=self.rng.choice(keys), i=self.rng.randrange(6))

    def statement(self):
        """The text and the data of a step."""
        rng = self.rng
        t = self.table()
        drawn = rng.random()
        if drawn < 0.04:
            return self.copy(t)
        for share, make in ((0.20, self.insert), (0.24, self.insert_select), (0.48, self.update), (0.54, self.update_from), (0.65, self.delete), (0.71, self.cte),
                            (0.78, self.merge), (0.85, self.block), (0.87, self.locks), (0.90, self.reads), (0.92, self.definition)):
            if drawn < share:
                return make(t), None
        if drawn < 0.98:
            return self.execute(), None
        return 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) ' + self.update(t), None

    # ------------------------------------------------------------------------------------------------------------------
    # Transactions
    # ------------------------------------------------------------------------------------------------------------------

    def transaction(self):
        rng = self.rng
        steps = [(0, self.seed(t), None) for t in self.tables if t.attached and t.scope == 'row' and rng.random() < 0.5]
        drawn = rng.random()
        if drawn < 0.5:
            return steps + [(0, *self.statement())]
        if drawn < 0.85:
            return steps + self.long(0)
        return steps + self.duel()

    def setting(self):
        return self.rng.choice(('SET LOCAL ROLE cmp_user', 'SET LOCAL pgcache_fence.bulk_threshold = 3', "SET LOCAL pgcache_fence.reserve = 'commit'",
                                'SET LOCAL session_replication_role = replica', 'SET LOCAL plan_cache_mode = force_generic_plan', 'SET LOCAL enable_seqscan = off',
                                'SET CONSTRAINTS ALL IMMEDIATE'))

    def long(self, session):
        rng = self.rng
        steps = [(session, 'BEGIN' + rng.choice(('', '', ' ISOLATION LEVEL REPEATABLE READ', ' ISOLATION LEVEL SERIALIZABLE')), None)]
        depth, guarded = 0, rng.random() < 0.6
        while rng.random() < 0.5:
            steps.append((session, self.setting(), None))
        for _ in range(rng.choice((1, 2, 3, 5))):
            drawn = rng.random()
            if drawn < 0.25:
                steps.append((session, 'SAVEPOINT s%d' % depth, None))
                depth += 1
            elif drawn < 0.35:
                steps += self.cursor(session)
            if guarded:
                steps.append((session, GUARD, None))
            steps.append((session, *self.statement()))
            while depth and rng.random() < 0.35:
                depth -= 1
                steps.append((session, '%s s%d' % (rng.choice(('ROLLBACK TO', 'ROLLBACK TO', 'RELEASE')), depth), None))
        return steps + [(session, rng.choice(('COMMIT', 'COMMIT', 'COMMIT', 'ROLLBACK')), None)]

    def cursor(self, session):
        t = self.table()
        steps = ['DECLARE c%s CURSOR FOR SELECT * FROM %s WHERE %s%s' % (self.rng.choice(('', ' NO SCROLL')), t.name, self.where(t), self.rng.choice((' FOR UPDATE', '')))]
        for _ in range(self.rng.choice((1, 2, 3))):
            steps += ['FETCH c', self.rng.choice(('UPDATE %s SET %s WHERE CURRENT OF c' % (t.name, self.assignments(t)), 'DELETE FROM %s WHERE CURRENT OF c' % t.name))]
        return [(session, text, None) for text in steps + ['CLOSE c']]

    def duel(self):
        """Two sessions that change rows of the same table, so that one may wait for the other. The second one is within its
        transaction when the first one ends."""
        t = self.table()
        first, second = self.long(0), self.long(1)
        for session, steps in ((0, first), (1, second)):
            steps.insert(-1 if session == 0 else 1, (session, self.rng.choice((self.update, self.update, self.delete, self.insert, self.merge, self.update_from))(t), None))
        middle = 1 + self.rng.randrange(len(second) - 1)
        return first[:-1] + second[:middle + 1] + first[-1:] + second[middle + 1:]
