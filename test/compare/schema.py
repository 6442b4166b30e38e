"""Makes random tables, attached with random options, as SQL, and describes them for statements.py."""

# Literals of each type that a key may have. They are few, so that statements often change the same rows.
KEYS = {
    'int': ['1', '2', '3', '4', '5', '6'], 'bigint': ['1', '2', '3', '4', '5', '6000000000'], 'smallint': ['1', '2', '3', '4', '5', '-6'],
    'text': ["'a'", "'b'", "'é'", "'x,y'", "''", "'%41'"], 'varchar(10)': ["'a'", "'B'", "'c d'", "'{d}'", "'e:'", "'f'"],
    'uuid': ["'00000000-0000-0000-0000-00000000000%d'::uuid" % n for n in range(1, 7)],
    'date': ["'2020-01-0%d'::date" % n for n in range(1, 7)],
    'timestamptz': ["'2020-01-01 0%d:00+00'::timestamptz" % n for n in range(1, 7)],
    'numeric(8,2)': ['1.5', '2', '3.25', '4.00', '-5', '6.1'], 'boolean': ['true', 'false'], 'char(4)': ["'a'", "'b '", "'cd'", "'efgh'"],
    'color': ["'red'::color", "'green'::color", "'blue'::color"], 'bytea': ["'\\x01'::bytea", "'\\x02'::bytea", "'\\xff'::bytea"]}
NUMBERS = ('int', 'bigint', 'smallint', 'numeric(8,2)')

HEAD = '''
CREATE SCHEMA w; SET search_path = w;
CREATE TYPE color AS ENUM ('red', 'green', 'blue');
CREATE TABLE log (id serial, what text);
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n := coalesce(NEW.n, 0) + 1; RETURN NEW; END';
CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '% % % % % %', TG_NAME, TG_WHEN, TG_OP, TG_TABLE_NAME, CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE FUNCTION log_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO log (what) VALUES (format('%s %s %s %s', TG_OP, TG_TABLE_NAME, CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END));
    RETURN NULL;
END $$;
CREATE FUNCTION log_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO log (what) SELECT TG_OP || ' ' || coalesce(string_agg(to_jsonb(x)::text, ' ' ORDER BY to_jsonb(x)::text), 'nothing') FROM seen x;
    RETURN NULL;
END $$;
'''

# name, WHEN the trigger fires, ON which events, FOR EACH what, condition, function; {v}: the version column, {k}: a key column
TRIGGERS = (
    ('aaa_touch', 'BEFORE INSERT OR UPDATE', 'ROW', '', 'touch'), ('aaa_note', 'BEFORE UPDATE', 'ROW', '', 'note'),
    ('aaa_note_delete', 'BEFORE DELETE', 'ROW', '', 'note'), ('aaa_insert', 'BEFORE INSERT', 'ROW', '', 'touch'),
    ('aaa_suppress', 'BEFORE UPDATE', 'ROW', 'WHEN (OLD.n = 2)', 'suppress'), ('aaa_spare', 'BEFORE DELETE', 'ROW', 'WHEN (OLD.n = 3)', 'suppress'),
    ('zzzz_suppress', 'BEFORE UPDATE', 'ROW', 'WHEN (OLD.n = 4)', 'suppress'), ('zzzz_version', 'BEFORE UPDATE', 'ROW', 'WHEN (NEW.n % 3 = 0)', 'set_{t}'),
    ('mmm_log', 'AFTER INSERT OR UPDATE OR DELETE', 'ROW', '', 'log_row'), ('zzzz_log', 'AFTER UPDATE OR DELETE', 'ROW', '', 'log_row'),
    ('mmm_version', 'AFTER UPDATE', 'ROW', 'WHEN (OLD.{v} IS DISTINCT FROM NEW.{v})', 'log_row'),
    ('mmm_of', 'AFTER UPDATE OF n', 'ROW', 'WHEN (NEW.{v} > 2)', 'log_row'), ('mmm_key', 'AFTER UPDATE', 'ROW', 'WHEN (OLD.{k} IS DISTINCT FROM NEW.{k})', 'log_row'),
    ('mmm_new', 'AFTER INSERT', 'ROW', '', 'log_row'), ('mmm_gone', 'AFTER DELETE', 'ROW', '', 'note'),
    ('sss_old', 'AFTER UPDATE', 'STATEMENT', 'REFERENCING OLD TABLE AS seen', 'log_statement'),
    ('sss_new', 'AFTER UPDATE', 'STATEMENT', 'REFERENCING NEW TABLE AS seen', 'log_statement'),
    ('sss_insert', 'AFTER INSERT', 'STATEMENT', 'REFERENCING NEW TABLE AS seen', 'log_statement'),
    ('sss_delete', 'AFTER DELETE', 'STATEMENT', 'REFERENCING OLD TABLE AS seen', 'log_statement'),
    ('mmm_nested', 'AFTER UPDATE', 'ROW', 'WHEN (pg_trigger_depth() < 1 AND NEW.n = 1)', 'nest_{t}'),
    ('aaa_self', 'BEFORE DELETE', 'ROW', 'WHEN (pg_trigger_depth() < 1 AND OLD.n = 6)', 'self_{t}'))

SET_VERSION = '''CREATE FUNCTION set_{t}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.{v} := {to}; RETURN NEW; END';
CREATE FUNCTION nest_{t}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE {t} SET n = coalesce(n, 0) + 10 WHERE n < 3; RETURN NULL; END';
CREATE FUNCTION self_{t}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE {t} SET v = ''self'' WHERE {k} = OLD.{k}; RETURN OLD; END';'''


class Table:
    """key: names of the key columns. universe: key column -> literals."""

    def __init__(self, rng, name):
        self.rng, self.name = rng, name
        self.key = ['k%d' % n for n in range(rng.choice((1, 1, 1, 2, 2, 3)))]
        self.types = {k: rng.choice([t for t in KEYS if t != 'boolean' or k != 'k0']) for k in self.key}
        self.universe = {k: KEYS[t] if k == 'k0' else KEYS[t][:2] for k, t in self.types.items()}
        self.version = rng.choice(('version', 'version', 'rev'))
        self.version_type = rng.choice(('bigint', 'bigint', 'bigint', 'int', 'smallint'))
        self.scope = rng.choice(('row',) * 6 + ('group',))
        self.aside = self.scope == 'row' and rng.random() < 0.15
        self.attached = rng.random() < 0.9
        self.partitioned = rng.random() < 0.25
        self.generated = rng.random() < 0.4
        self.secured = rng.random() < 0.25
        self.parent = None                  # a table whose key has one column
        self.views = []

    @property
    def domain(self):
        return 'w.' + self.name

    def columns(self):
        """Definitions of columns in random order, some of which are dropped later."""
        rng = self.rng
        found = ['%s %s NOT NULL%s' % (k, t, rng.choice(('', ' DEFAULT ' + KEYS[t][0]))) for k, t in self.types.items()]
        found += ['n int DEFAULT 0', 'v text%s' % rng.choice(('', " DEFAULT 'new'")), 'gr int%s' % rng.choice(('', ' DEFAULT 1'))]
        found.append('%s %s%s' % (self.version, self.version_type, rng.choice(('', ' NOT NULL DEFAULT 0', ' NOT NULL DEFAULT 0', ' DEFAULT 5'))))
        if self.generated:
            found.append("g text GENERATED ALWAYS AS (v || '/' || %s) STORED" % rng.choice((self.version, 'coalesce(n, 0)')))
        if rng.random() < 0.2:
            found.append('s int DEFAULT 7')           # no sequence, because a statement that fails gives no number back
        if rng.random() < 0.2:
            found.append('CHECK (n < 1000)')
        if rng.random() < 0.3:
            found += ['dropped0 text DEFAULT 1', 'dropped1 int']
        if self.parent:
            found.append('up %s REFERENCES %s (%s) ON DELETE %s ON UPDATE %s%s' % (
                self.parent.types['k0'], self.parent.name, self.parent.key[0], *(rng.choice(('CASCADE', 'SET NULL', 'SET DEFAULT', 'NO ACTION')) for _ in 'du'),
                rng.choice(('', ' DEFERRABLE INITIALLY DEFERRED'))))
        rng.shuffle(found)
        return found

    def statements(self):
        """All statements that make the table, in their order."""
        rng = self.rng
        columns = self.columns()
        by = ''
        if self.partitioned:
            # not HASH: an enum's hash is that of its oid, which differs between the databases
            by = ' PARTITION BY ' + ('RANGE (k0)' if self.types['k0'] in NUMBERS else 'LIST (k0)' if self.types['k0'] == 'color' else rng.choice(('HASH (k0)', 'LIST (k0)')))
        yield 'CREATE TABLE %s (%s, PRIMARY KEY (%s))%s%s' % (self.name, ', '.join(columns), ', '.join(self.key), by,
                                                            '' if by else rng.choice(('', ' WITH (fillfactor = 50)')))
        for column in columns:
            if column.startswith('dropped'):
                yield 'ALTER TABLE %s DROP %s' % (self.name, column.split()[0])
        if by:
            yield from self.partitions(by.split()[2])
        if rng.random() < 0.3:
            yield 'CREATE INDEX ON %s (%s)' % (self.name, rng.choice(('n', self.version, 'v', 'gr')))
        yield 'INSERT INTO %s (%s, n, v, gr) VALUES %s ON CONFLICT DO NOTHING' % (self.name, ', '.join(self.key), ', '.join(
            '(%s, %d, %r, %d)' % (', '.join(rng.choice(self.universe[k]) for k in self.key), n, 'old %d' % n, n % 2) for n in range(5)))
        yield SET_VERSION.format(t=self.name, v=self.version, k=self.key[0],
                                 to=rng.choice(('NEW.{v} + 1', 'NEW.{v} + 10', 'OLD.{v}', 'OLD.{v} - 1', '30000', '1')).format(v=self.version))
        for name, when, each, condition, function in rng.sample(TRIGGERS, rng.choice((0, 0, 1, 1, 2, 3))):
            referencing = condition if condition.startswith('REF') else ''
            constraint = 'CONSTRAINT ' if each == 'ROW' and when.startswith('AFTER') and rng.random() < 0.2 and not self.partitioned else ''
            yield 'CREATE %sTRIGGER %s %s ON %s %s %s FOR EACH %s %s EXECUTE FUNCTION %s()' % (
                constraint, name, when, self.name, referencing, 'DEFERRABLE INITIALLY DEFERRED' if constraint else '', each,
                '' if referencing else condition.format(v=self.version, k=self.key[0]), function.format(t=self.name))
        if self.attached:
            yield self.attachment()
            yield from self.more_attachments()
        if self.secured:
            yield 'ALTER TABLE %s ENABLE ROW LEVEL SECURITY' % self.name
            yield 'CREATE POLICY p ON %s USING (n IS NULL OR n <> 7)%s' % (self.name, rng.choice((
                '', ' WITH CHECK (n < 20)', ' WITH CHECK (%s < 8)' % self.version)))
        yield from self.make_views()

    def partitions(self, way):
        rng, name = self.rng, self.name
        if way == 'HASH':
            bounds = ['FOR VALUES WITH (MODULUS 3, REMAINDER %d)' % n for n in range(3)]
        elif way == 'LIST':
            bounds = ['FOR VALUES IN (%s)' % ', '.join(self.universe['k0'][::2]), 'DEFAULT']
        else:
            bounds = ['FOR VALUES FROM (MINVALUE) TO (2)', 'FOR VALUES FROM (2) TO (4)', 'DEFAULT'][:rng.choice((2, 3, 3))]
        for n, bound in enumerate(bounds):
            yield 'CREATE TABLE %s_%d PARTITION OF %s %s%s' % (name, n, name, bound, ' PARTITION BY HASH (k0)' if n == 1 and self.types['k0'] != 'color' and rng.random() < 0.3 else '')
            yield ("DO $$ BEGIN IF (SELECT relkind FROM pg_class WHERE oid = '{t}'::regclass) = 'p' THEN CREATE TABLE {t}_a PARTITION OF {t} "
                   "FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE {t}_b PARTITION OF {t} FOR VALUES WITH (MODULUS 2, REMAINDER 1); END IF; END $$"
                   ).format(t='%s_%d' % (name, n))

    def attachment(self):
        rng = self.rng
        if self.scope == 'group':
            return "SELECT fence.attach('%s', scope => 'group', key => '{%s}')" % (self.name, rng.choice(('gr', self.key[0])))
        options = ["'%s'" % self.name, 'version => %s' % ('NULL' if self.aside else "'%s'" % self.version)]
        if rng.random() < 0.4 and not self.aside:
            options.append("cache => 'row'")
        if rng.random() < 0.3:
            options.append('cache_absent => true')
        if rng.random() < 0.3:
            options.append("reserve => 'commit'")
        if rng.random() < 0.2:
            options.append("publish => '%s'" % rng.choice(('pubsub', 'stream')))
        return 'SELECT fence.attach(%s)' % ', '.join(options)

    def more_attachments(self):
        """Other keys of the same rows, and the same key with other columns that count."""
        rng = self.rng
        if rng.random() < 0.4:
            yield "SELECT fence.attach('%s', scope => 'group', key => '{%s}', domain => 'w.%s_group'%s)" % (
                self.name, rng.choice(('gr', 'gr', '', self.key[-1])), self.name, rng.choice(('', ", columns => '{n}', only_columns => true")))
        if rng.random() < 0.4:
            yield "SELECT fence.attach('%s', version => %s, domain => 'w.%s_more', columns => '{v,n}', only_columns => %s)" % (
                self.name, 'NULL' if self.aside else "'%s'" % self.version, self.name, rng.choice(('true', 'true', 'false')))

    def make_views(self):
        rng = self.rng
        if rng.random() < 0.4:
            self.views.append(self.name + '_view')
            yield 'CREATE VIEW %s_view AS SELECT * FROM %s WHERE n IS NULL OR n < 5 WITH %s CHECK OPTION' % (self.name, self.name, rng.choice(('LOCAL', 'CASCADED')))
        if rng.random() < 0.15:
            yield "CREATE RULE also AS ON DELETE TO {t} DO ALSO INSERT INTO log (what) VALUES ('rule ' || coalesce(OLD.n, 0))".format(t=self.name)


class Schema:
    def __init__(self, rng):
        self.tables = []
        self.ddl = [HEAD]
        for n in range(rng.choice((2, 3, 3))):
            table = Table(rng, 't%d' % n)
            parents = [t for t in self.tables if len(t.key) == 1]
            if parents and rng.random() < 0.6:
                table.parent = rng.choice(parents)
                table.universe['up'] = table.parent.universe['k0'] + ['NULL']
            self.ddl += table.statements()
            self.tables.append(table)
        if rng.random() < 0.2:              # a table that another one inherits from; only the child may be attached
            self.ddl.append('CREATE TABLE heir () INHERITS (%s)' % rng.choice(self.tables).name)
            self.ddl.append('ALTER TABLE heir ADD PRIMARY KEY (%s)' % 'k0')
            self.ddl.append("SELECT fence.attach('heir', version => (SELECT attname FROM pg_attribute WHERE attrelid = 'w.heir'::regclass AND attname IN ('rev', 'version')))")
        self.ddl.append('GRANT USAGE ON SCHEMA w TO cmp_user; GRANT ALL ON ALL TABLES IN SCHEMA w TO cmp_user; '
                        'GRANT ALL ON ALL SEQUENCES IN SCHEMA w TO cmp_user')
