"""The description of a domain from PostgreSQL, and the SQL that reads its rows. Knows no driver: parameters are %s, each used
once. Each column has a name of its own, for connections whose rows are dicts.

Owns: the conditions for a put (doc/clients.md, "Rules"). The snapshot must be of the primary and newer than the permit, its
transaction must have written nothing, and the domain must still have the attachment for which the names were made. VET asks for
all of this together with the rows.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from .errors import WrongUse
from .names import Column, Naming

DESCRIBE = '''
SELECT current_setting('pgcache_fence.namespace') AS space, fence.fence_prefix(d.name) AS place, d.id,
       d.scope, d.version_column::text, d.tag, d.columns::text[], coalesce((extract(epoch FROM d.ttl) * 1000)::bigint, 0) AS ttl_ms,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS relation, d.relation IS NOT NULL AS attached,
       coalesce(row_security_active(c.oid), false) AS secured, coalesce(has_table_privilege(c.oid, 'SELECT'), true) AS readable,
       k.names, k.types, k.modifiers, k.casts
  FROM fence.domain d
  LEFT JOIN pg_class c ON c.oid = d.relation
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL (
        SELECT array_agg(a.attname::text ORDER BY k.n) AS names,
               array_agg(CASE t.typtype WHEN 'e' THEN 'enum' ELSE t.typname::text END ORDER BY k.n) AS types,
               array_agg(CASE WHEN a.atttypid = t.oid THEN a.atttypmod ELSE t.typtypmod END ORDER BY k.n) AS modifiers,
               array_agg(format_type(t.oid, -1) ORDER BY k.n) AS casts
          FROM unnest(d.key_columns) WITH ORDINALITY AS k (name, n)
          JOIN pg_attribute a ON a.attrelid = d.relation AND a.attname = k.name
          CROSS JOIN LATERAL (
               WITH RECURSIVE below AS (
                    SELECT t.*, t.typtypmod AS modifier FROM pg_type t WHERE t.oid = a.atttypid
                    UNION ALL
                    SELECT t.*, below.typtypmod FROM below JOIN pg_type t ON t.oid = below.typbasetype WHERE below.typtype = 'd')
               SELECT oid, typtype, typname, modifier AS typtypmod FROM below WHERE typtype <> 'd') t) k ON true
 WHERE d.name = %s::text
'''

# Is this a standby? May the rows that this statement's snapshot sees be put? Which attachment is it?
VET = '''pg_is_in_recovery() AS standby,
       pg_current_xact_id_if_assigned() IS NULL AND current_setting('transaction_isolation') LIKE 'read%%' AS fresh,
       (SELECT d.id FROM fence.domain d WHERE d.name = %s::text) AS attachment'''

FENCE_KEY = 'SELECT fence.fence_key(%s::text, VARIADIC %s::text[])'
TOGETHER = 'SELECT r.value::text FROM unnest(%s::text[]) WITH ORDINALITY AS k (fence, n) ' \
           'LEFT JOIN fence.read_many(%s::text[]) r USING (fence) ORDER BY k.n'
DERIVED_KEY = 'SELECT value FROM fence.derived_keys(%s::text, VARIADIC %s::text[])'
READ_DERIVED = 'SELECT fence.read_derived(%s::text, VARIADIC %s::text[])::text'


def quoted(name: str) -> str:
    return '"%s"' % name.replace('"', '""').replace('%', '%%')


class Domain(NamedTuple):
    name: str
    id: int                 # of the attachment
    scope: str
    ttl_ms: int
    naming: Naming
    rows: Optional[str]     # SQL that returns number, version and payload of the rows of given keys; None: load= is needed

    def vet_and_load(self, names: Sequence[str]) -> Tuple[str, List[Any]]:
        """The columns of VET and the rows, in one statement and so in one snapshot. It returns at least one line."""
        if self.rows is None:
            raise WrongUse('domain "%s" has no table to read from: pass load=, a function that reads the value and its version'
                           % self.name)
        keys = [self.naming.parts(name) for name in names]
        columns = [list(column) for column in zip(*keys)]
        return 'SELECT v.*, r.* FROM (SELECT %s) v LEFT JOIN (%s) r ON true' % (VET, self.rows), [self.name, *columns]

    def vet(self) -> Tuple[str, List[Any]]:
        return 'SELECT ' + VET, [self.name]


def describe(name: str, rows: Sequence[Any], namespace: Optional[str]) -> Domain:
    """Makes the Domain from what DESCRIBE has returned."""
    if not rows:
        raise WrongUse('there is no domain "%s" in this database: SELECT fence.attach(...) makes one, SELECT domain FROM fence.domains '
                       'lists them' % name)
    (space, place, number, scope, version, tag, columns, ttl_ms, table, attached, secured, readable, names, types, modifiers,
     casts) = rows[0]
    if namespace is not None and namespace != space:
        raise WrongUse('namespace=%r was given, but pgcache_fence.namespace of this server is %r' % (namespace, space))
    if secured or not readable:
        raise WrongUse('this role may not read domain "%s" through the cache: %s. Let it read the table itself' % (
            name, 'row-level security applies to it' if secured else 'it has no SELECT on the table'))
    key = [Column(*each) for each in zip(names, types, modifiers, casts)] if attached else [Column('key', '', -1, 'text')]
    naming = Naming(place, key, tag)
    rows_sql = sql_of_rows(name, scope, table, key, version, columns) if attached else None
    return Domain(name, number, scope, ttl_ms, naming, rows_sql)


def sql_of_rows(name: str, scope: str, table: str, key: Sequence[Column], version: Optional[str],
                columns: Optional[Sequence[str]]) -> Optional[str]:
    """The SQL whose parameters are a list of texts for each key column. None if the type cannot read the text of a key."""
    if any(column.type == 'money' for column in key):
        return None
    row = 'to_jsonb(t.*)' if not columns else '(SELECT to_jsonb(c.*) FROM (SELECT %s) c)' % ', '.join(
        't.' + quoted(column) for column in columns)
    keys = ', '.join('k%d' % n for n in range(len(key)))
    same = ' AND '.join('t.%s = k.k%d::%s' % (quoted(column.name), n, column.cast.replace('%', '%%')) for n, column in enumerate(key))
    wanted = 'unnest(%s) WITH ORDINALITY AS k (%s, n)' % (', '.join(['%s::text[]'] * len(key)), keys)
    aside = "fence.group_version(%s, VARIADIC ARRAY[%s])" % (
        "'%s'" % name.replace("'", "''").replace('%', '%%'), ', '.join('k.k%d' % n for n in range(len(key))))
    table = table.replace('%', '%%')
    if scope == 'group':
        return "SELECT k.n, %s AS version, (SELECT coalesce(jsonb_agg(%s ORDER BY %s), '[]') FROM %s t WHERE %s)::text AS payload FROM %s" % (
            aside, row, row, table, same, wanted)
    return 'SELECT k.n, %s AS version, %s::text AS payload FROM %s JOIN %s t ON %s' % (
        't.%s::bigint' % quoted(version) if version else aside, row, wanted, table, same)
