"""The description of a domain from PostgreSQL, and the SQL that reads its rows. Knows no driver: parameters are %s, each used
once. Each column has a name of its own, for connections whose rows are dicts.

Owns: the conditions for a put (doc/clients.md, "Rules"). The snapshot must be of the primary and newer than the permit, its
transaction must have written nothing, and the domain must still have the attachment for which the names were made. VET asks for
all of this together with the rows. The row version also names the server that was read, because Redis refuses rows of a primary that
was replaced. It is null if that server says that the row must not be put.

Everything in the SQL has its schema, also operators. Otherwise a role that may create objects in a schema of the search_path could
run its own function as the application (public.to_jsonb(public.account) fits better than pg_catalog.to_jsonb(anyelement)), and put what
it likes into the cache. test/unit/qualified.py watches this.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from .errors import WrongUse
from .names import Column, Naming

DESCRIBE = '''
SELECT pg_catalog.current_setting('pgcache_fence.namespace') AS space, fence.fence_prefix(d.name) AS place, d.id,
       d.scope, d.version_column::pg_catalog.text, d.tag, d.columns::pg_catalog.text[],
       coalesce((extract(epoch FROM d.ttl) OPERATOR(pg_catalog.*) 1000)::bigint, 0) AS ttl_ms,
       CASE WHEN c.oid IS NOT NULL THEN pg_catalog.format('%%I.%%I', n.nspname, c.relname) END AS relation, d.relation IS NOT NULL AS attached,
       coalesce(pg_catalog.row_security_active(c.oid), false) AS secured,
       coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), true) AS readable, k.names, k.types, k.modifiers, k.casts, k.equals
  FROM fence.domain d
  LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.relation
  LEFT JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
  LEFT JOIN LATERAL (
        SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY k.n) AS names,
               pg_catalog.array_agg(CASE WHEN t.typtype OPERATOR(pg_catalog.=) 'e' THEN 'enum' ELSE t.typname::pg_catalog.text END ORDER BY k.n) AS types,
               pg_catalog.array_agg(CASE WHEN a.atttypid OPERATOR(pg_catalog.=) t.oid THEN a.atttypmod ELSE t.typtypmod END ORDER BY k.n) AS modifiers,
               pg_catalog.array_agg(pg_catalog.format('%%I.%%I', s.nspname, t.typname) ORDER BY k.n) AS casts,
               pg_catalog.array_agg(coalesce(e.equal, 'pg_catalog.=') ORDER BY k.n) AS equals
          FROM pg_catalog.unnest(d.key_columns) WITH ORDINALITY AS k (name, n)
          JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) d.relation AND a.attname OPERATOR(pg_catalog.=) k.name
          CROSS JOIN LATERAL (
               WITH RECURSIVE below AS (
                    SELECT t.*, t.typtypmod AS modifier FROM pg_catalog.pg_type t WHERE t.oid OPERATOR(pg_catalog.=) a.atttypid
                    UNION ALL
                    SELECT t.*, below.typtypmod FROM below JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) below.typbasetype
                     WHERE below.typtype OPERATOR(pg_catalog.=) 'd')
               SELECT oid, typtype, typname, typnamespace, modifier AS typtypmod FROM below WHERE typtype OPERATOR(pg_catalog.<>) 'd') t
          JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) t.typnamespace
          LEFT JOIN LATERAL (
               SELECT pg_catalog.format('%%I.%%s', s.nspname, o.oprname) AS equal
                 FROM pg_catalog.pg_opclass c
                 JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) c.opcmethod AND m.amname OPERATOR(pg_catalog.=) 'btree'
                 JOIN pg_catalog.pg_amop p ON p.amopfamily OPERATOR(pg_catalog.=) c.opcfamily AND p.amoplefttype OPERATOR(pg_catalog.=) t.oid
                      AND p.amoprighttype OPERATOR(pg_catalog.=) t.oid AND p.amopstrategy OPERATOR(pg_catalog.=) 3
                 JOIN pg_catalog.pg_operator o ON o.oid OPERATOR(pg_catalog.=) p.amopopr
                 JOIN pg_catalog.pg_namespace s ON s.oid OPERATOR(pg_catalog.=) o.oprnamespace
                WHERE c.opcintype OPERATOR(pg_catalog.=) t.oid AND c.opcdefault) e ON true) k ON true
 WHERE d.name OPERATOR(pg_catalog.=) %s::pg_catalog.text
'''

# Is this a standby? May the rows that this statement's snapshot sees be put? Which attachment is it?
VET = '''pg_catalog.pg_is_in_recovery() AS standby,
       pg_catalog.pg_current_xact_id_if_assigned() IS NULL
           AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.~~) 'read%%' AS fresh,
       (SELECT d.id FROM fence.domain d WHERE d.name OPERATOR(pg_catalog.=) %s::pg_catalog.text) AS attachment'''

# What VET asks, and the rows. Rows are printed as fence.read prints them, whatever the settings of the session are. When the statement
# ends, these have their old values again, because the transaction may be the application's. {rows}: what to select of each row.
SETTINGS = (('bytea_output', 'hex'), ('datestyle', 'ISO'), ('extra_float_digits', '3'), ('intervalstyle', 'postgres'), ('lc_monetary', 'C'),
            ('search_path', 'pg_catalog, pg_temp'), ('timezone', 'UTC'))
VET_AND_ROWS = '''WITH before AS MATERIALIZED (SELECT %s), settings AS MATERIALIZED (SELECT %s FROM before), found AS MATERIALIZED (SELECT k.n, {rows}),
       after AS MATERIALIZED (SELECT %s FROM before, (SELECT pg_catalog.count(*) AS n FROM found) f WHERE f.n OPERATOR(pg_catalog.>=) 0)
       SELECT v.*, found.* FROM after, (SELECT %s) v LEFT JOIN found ON true''' % (
    ', '.join("pg_catalog.current_setting('%s') AS %s" % (name, name) for name, _ in SETTINGS),
    ', '.join("pg_catalog.set_config('%s', '%s', true)" % each for each in SETTINGS),
    ', '.join("pg_catalog.set_config('%s', before.%s, true)" % (name, name) for name, _ in SETTINGS), VET)

FENCE_KEY = 'SELECT fence.fence_key(%s::pg_catalog.text, VARIADIC %s::pg_catalog.text[])'
TOGETHER = 'SELECT r.value::pg_catalog.text FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS k (fence, n) ' \
           'LEFT JOIN fence.read_many(%s::pg_catalog.text[]) r ON r.fence OPERATOR(pg_catalog.=) k.fence ORDER BY k.n'
DERIVED_KEY = 'SELECT value FROM fence.derived_keys(%s::pg_catalog.text, VARIADIC %s::pg_catalog.text[])'
READ_DERIVED = 'SELECT fence.read_derived(%s::pg_catalog.text, VARIADIC %s::pg_catalog.text[])::pg_catalog.text'


def quoted(name: str) -> str:
    return '"%s"' % name.replace('"', '""').replace('%', '%%')


class Domain(NamedTuple):
    name: str
    id: int                 # of the attachment
    scope: str
    ttl_ms: int
    naming: Naming
    rows: Optional[str]     # SQL that returns the columns of VET and number, row version and payload of given keys; None: load= is needed

    def vet_and_load(self, names: Sequence[str]) -> Tuple[str, List[Any]]:
        """The columns of VET and the rows, in one statement and so in one snapshot. It returns at least one line."""
        if self.rows is None:
            raise WrongUse('domain "%s" has no table to read from: pass load=, a function that reads the value and its version'
                           % self.name)
        keys = [self.naming.parts(name) for name in names]
        columns = [list(column) for column in zip(*keys)]
        return self.rows, [*columns, self.name]

    def vet(self) -> Tuple[str, List[Any]]:
        return 'SELECT ' + VET, [self.name]


def describe(name: str, rows: Sequence[Any], namespace: Optional[str]) -> Domain:
    """Makes the Domain from what DESCRIBE has returned."""
    if not rows:
        raise WrongUse('there is no domain "%s" in this database: SELECT fence.attach(...) makes one, SELECT domain FROM fence.domains '
                       'lists them' % name)
    (space, place, number, scope, version, tag, columns, ttl_ms, table, attached, secured, readable, names, types, modifiers,
     casts, equals) = rows[0]
    if namespace is not None and namespace != space:
        raise WrongUse('namespace=%r was given, but pgcache_fence.namespace of this server is %r' % (namespace, space))
    if secured or not readable:
        raise WrongUse('this role may not read domain "%s" through the cache: %s. Let it read the table itself' % (
            name, 'row-level security applies to it' if secured else 'it has no SELECT on the table'))
    key = [Column(*each) for each in zip(names, types, modifiers, casts, equals)] if attached else [Column('key', '', -1, '', '')]
    naming = Naming(place, key, tag)
    rows_sql = sql_of_rows(name, scope, table, key, version, columns) if attached else None
    return Domain(name, number, scope, ttl_ms, naming, rows_sql)


def sql_of_rows(name: str, scope: str, table: str, key: Sequence[Column], version: Optional[str],
                columns: Optional[Sequence[str]]) -> Optional[str]:
    """The SQL whose parameters are a list of texts for each key column. None if the type cannot read the text of a key."""
    if any(column.type == 'money' for column in key):
        return None
    row = 'pg_catalog.to_jsonb(t.*)' if not columns else '(SELECT pg_catalog.to_jsonb(c.*) FROM (SELECT %s) c)' % ', '.join(
        't.' + quoted(column) for column in columns)
    keys = ', '.join('k%d' % n for n in range(len(key)))
    same = ' AND '.join(equality(column, n) for n, column in enumerate(key))
    wanted = 'ROWS FROM (%s) WITH ORDINALITY AS k (%s, n)' % (', '.join(['pg_catalog.unnest(%s::pg_catalog.text[])'] * len(key)), keys)
    aside = "fence.row_version(fence.group_version(%s, VARIADIC ARRAY[%s]))" % (
        "'%s'" % name.replace("'", "''").replace('%', '%%'), ', '.join('k.k%d' % n for n in range(len(key))))
    table = table.replace('%', '%%')
    if scope == 'group':
        return VET_AND_ROWS.format(rows='''%s AS version, (SELECT coalesce(pg_catalog.jsonb_agg(r.j ORDER BY r.j::pg_catalog.text COLLATE pg_catalog."C"), '[]')
                  FROM (SELECT %s AS j FROM %s t WHERE %s) r)::pg_catalog.text AS payload FROM settings, %s''' % (aside, row, table, same, wanted))
    return VET_AND_ROWS.format(rows='%s AS version, %s::pg_catalog.text AS payload FROM settings, %s JOIN %s t ON %s' % (
        'fence.row_version(t.%s::bigint)' % quoted(version) if version else aside, row, wanted, table, same))


def equality(column: Column, n: int) -> str:
    """The row's column is equal to the n-th text. Both sides are cast to the operator's own type, so that no other operator fits better."""
    cast = column.cast.replace('%', '%%')
    return 't.%s::%s OPERATOR(%s) k.k%d::%s' % (quoted(column.name), cast, column.equal.replace('%', '%%'), n, cast)
