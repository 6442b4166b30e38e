/*
 * domain/catalog.c
 *	  The extension's own tables: where they are, and the rows of fence.domain; see catalog.h.
 *
 * Owns: which column of fence.domain means what, and the cached OIDs of the extension's tables. Reads and writes these
 * tables directly, in a new snapshot and without privileges, because a user who fires a trigger or attaches his own
 * table has none on them. Never runs a function of a user.
 *
 * Locks: AccessShareLock to read, released after the look-up; RowExclusiveLock to write, kept until the end of the
 * transaction. To delete a row, and to use a name, an ExclusiveLock on an object that stands for it, kept until the end
 * of the transaction.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/key_text.h"
#include "domain/catalog.h"

/* Columns of fence.domain, in the order of the install script */
typedef enum DomainColumn
{
	COLUMN_ID = 1,
	COLUMN_NAME,
	COLUMN_RELATION,
	COLUMN_KEY_COLUMNS,
	COLUMN_VERSION_COLUMN,
	COLUMN_TAG,
	COLUMN_SCOPE,
	COLUMN_CACHE,
	COLUMN_COLUMNS,
	COLUMN_TTL,
	COLUMN_ON_REDIS_FAILURE,
	COLUMN_PUBLISH,
	COLUMN_VERSION_ADDED,
	COLUMN_CACHE_ABSENT,
	COLUMN_RESERVE,
	COLUMN_ONLY_COLUMNS,
	NCOLUMNS = COLUMN_ONLY_COLUMNS
} DomainColumn;

/* OIDs of the extension's tables; InvalidOid: not known, look it up */
static struct
{
	const char *name;
	Oid			relid;
}			fence_tables[] = {
	{"domain", InvalidOid}, {"tombstone", InvalidOid}, {"floor", InvalidOid}, {"cluster", InvalidOid},
	{"derived", InvalidOid}
};

#define DOMAIN_TABLE 0

/*
 * Counts invalidations of any table. An OID that was looked up may be kept only if no invalidation has arrived
 * meanwhile, and only if we get invalidations at all.
 */
static uint64 invalidations = 0;
static bool listening = false;

/* -----------------------------------------------------------------------------------------------------------------
 * Tables
 * -----------------------------------------------------------------------------------------------------------------
 */

void
catalog_init(void)
{
	listening = true;
}

bool
catalog_invalidated(Oid relid)
{
	bool		of_domains = !OidIsValid(relid) || relid == fence_tables[DOMAIN_TABLE].relid;

	invalidations++;
	for (int i = 0; i < (int) lengthof(fence_tables); i++)
		if (!OidIsValid(relid) || relid == fence_tables[i].relid)
			fence_tables[i].relid = InvalidOid;
	return of_domains;
}

/*
 * Returns whether the relation is a member of this extension. Where the extension is not installed, anybody may create
 * a schema "fence", and our workers read its tables as superuser. But only a superuser can add members to an extension.
 */
static bool
is_extension_table(Oid relid)
{
	Oid			extension = get_extension_oid("pgcache_fence", true);

	return OidIsValid(relid) && OidIsValid(extension) &&
		getExtensionOfObject(RelationRelationId, relid) == extension;
}

Oid
fence_table_oid(const char *relname)
{
	uint64		before = invalidations;
	Oid			namespace;
	Oid			relid;
	int			i;

	for (i = 0; i < (int) lengthof(fence_tables); i++)
		if (strcmp(fence_tables[i].name, relname) == 0)
			break;
	if (i < (int) lengthof(fence_tables) && OidIsValid(fence_tables[i].relid))
		return fence_tables[i].relid;

	namespace = get_namespace_oid("fence", true);
	if (!OidIsValid(namespace))
		return InvalidOid;
	relid = get_relname_relid(relname, namespace);
	if (!is_extension_table(relid))
		relid = InvalidOid;
	if (i < (int) lengthof(fence_tables) && listening && before == invalidations)
		fence_tables[i].relid = relid;
	return relid;
}

Relation
fence_table_open(const char *relname, LOCKMODE lock)
{
	Oid			relid = fence_table_oid(relname);

	/* the table may have been dropped since the look-up */
	return OidIsValid(relid) ? try_table_open(relid, lock) : NULL;
}

/* Returns the table's index whose first column this is; InvalidOid if there is none. */
static Oid
index_on(Relation table, AttrNumber first_column)
{
	List	   *indexes = RelationGetIndexList(table);
	Oid			found = InvalidOid;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_index form;

		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_index) GETSTRUCT(tuple);
		if (form->indisvalid && form->indkey.values[0] == first_column)
			found = lfirst_oid(lc);
		ReleaseSysCache(tuple);
	}
	list_free(indexes);
	return found;
}

/* Returns a copy of the first row that matches; NULL if none does. */
static HeapTuple
find_row(Relation table, Oid index, ScanKey key, Snapshot snapshot)
{
	SysScanDesc scan = systable_beginscan(table, index, OidIsValid(index), snapshot, 1, key);
	HeapTuple	tuple = systable_getnext(scan);

	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	return tuple;
}

HeapTuple
catalog_find_row(Relation catalog, Oid index, AttrNumber attnum, Oid object, Snapshot snapshot)
{
	ScanKeyData key;

	ScanKeyInit(&key, attnum, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(object));
	return find_row(catalog, index, &key, snapshot);
}

HeapTuple
fence_table_find(Relation table, AttrNumber column, RegProcedure equality, Datum value)
{
	ScanKeyData key;

	ScanKeyEntryInitialize(&key, 0, column, BTEqualStrategyNumber, InvalidOid, DEFAULT_COLLATION_OID, equality, value);
	/* NULL means a new catalog snapshot, which even parallel workers may take */
	return find_row(table, index_on(table, column), &key, NULL);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Reading rows
 * -----------------------------------------------------------------------------------------------------------------
 */

static char *
text_or_null(Datum value, bool isnull)
{
	return isnull ? NULL : TextDatumGetCString(value);
}

static List *
names_of_array(Datum value, bool isnull)
{
	List	   *names = NIL;
	Datum	   *elements;
	int			n;

	if (isnull)
		return NIL;
	deconstruct_array(DatumGetArrayTypeP(value), NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &elements, NULL, &n);
	for (int i = 0; i < n; i++)
		names = lappend(names, pstrdup(NameStr(*DatumGetName(elements[i]))));
	return names;
}

static DomainRow *
row_of_tuple(HeapTuple tuple, TupleDesc desc)
{
	Datum		values[NCOLUMNS + 1];
	bool		nulls[NCOLUMNS + 1];
	DomainRow  *row = palloc0(sizeof(DomainRow));

	for (int i = 1; i <= NCOLUMNS; i++)
		values[i] = heap_getattr(tuple, i, desc, &nulls[i]);

	row->id = DatumGetInt64(values[COLUMN_ID]);
	row->name = TextDatumGetCString(values[COLUMN_NAME]);
	row->relid = nulls[COLUMN_RELATION] ? InvalidOid : DatumGetObjectId(values[COLUMN_RELATION]);
	row->key_columns = names_of_array(values[COLUMN_KEY_COLUMNS], nulls[COLUMN_KEY_COLUMNS]);
	if (!nulls[COLUMN_VERSION_COLUMN])
		row->version_column = pstrdup(NameStr(*DatumGetName(values[COLUMN_VERSION_COLUMN])));
	row->tag = text_or_null(values[COLUMN_TAG], nulls[COLUMN_TAG]);
	row->scope = TextDatumGetCString(values[COLUMN_SCOPE]);
	row->cache = TextDatumGetCString(values[COLUMN_CACHE]);
	row->columns = names_of_array(values[COLUMN_COLUMNS], nulls[COLUMN_COLUMNS]);
	if (!nulls[COLUMN_TTL])
	{
		row->ttl = palloc(sizeof(Interval));
		*row->ttl = *DatumGetIntervalP(values[COLUMN_TTL]);
	}
	row->on_redis_failure = text_or_null(values[COLUMN_ON_REDIS_FAILURE], nulls[COLUMN_ON_REDIS_FAILURE]);
	row->publish = TextDatumGetCString(values[COLUMN_PUBLISH]);
	row->version_added = DatumGetBool(values[COLUMN_VERSION_ADDED]);
	row->cache_absent = DatumGetBool(values[COLUMN_CACHE_ABSENT]);
	row->reserve = text_or_null(values[COLUMN_RESERVE], nulls[COLUMN_RESERVE]);
	row->only_columns = DatumGetBool(values[COLUMN_ONLY_COLUMNS]);
	return row;
}

/* Sorts attachments with a version column first, then by id, then by table. */
static int
compare_rows(const ListCell *a, const ListCell *b)
{
	const DomainRow *x = lfirst(a);
	const DomainRow *y = lfirst(b);

	if ((x->version_column == NULL) != (y->version_column == NULL))
		return x->version_column == NULL ? 1 : -1;
	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->relid < y->relid ? -1 : x->relid > y->relid;
}

static List *
fetch_rows(AttrNumber column, RegProcedure equality, Datum value)
{
	Relation	table = fence_table_open("domain", AccessShareLock);
	List	   *rows = NIL;
	ScanKeyData key;
	Oid			index;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (table == NULL)
		return NIL;
	index = index_on(table, column);
	ScanKeyEntryInitialize(&key, 0, column, BTEqualStrategyNumber, InvalidOid, DEFAULT_COLLATION_OID, equality, value);
	scan = systable_beginscan(table, index, OidIsValid(index), NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		rows = lappend(rows, row_of_tuple(tuple, RelationGetDescr(table)));
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	list_sort(rows, compare_rows);
	return rows;
}

List *
domain_rows_by_relation(Oid relid)
{
	return fetch_rows(COLUMN_RELATION, F_OIDEQ, ObjectIdGetDatum(relid));
}

List *
domain_rows_covering(Oid relid)
{
	List	   *rows = domain_rows_by_relation(relid);

	if (rows == NIL && get_rel_relispartition(relid))
	{
		ListCell   *lc;

		foreach(lc, get_partition_ancestors(relid))
			if ((rows = domain_rows_by_relation(lfirst_oid(lc))) != NIL)
				break;
	}
	return rows;
}

DomainRow *
domain_row_of(List *rows, int64 id)
{
	ListCell   *lc;

	foreach(lc, rows)
		if (((DomainRow *) lfirst(lc))->id == id)
			return lfirst(lc);
	return NULL;
}

List *
domain_rows_by_name(const char *name)
{
	return fetch_rows(COLUMN_NAME, F_TEXTEQ, CStringGetTextDatum(name));
}

void
domain_lock_name(const char *name)
{
	Oid			table = fence_table_oid("domain");

	if (OidIsValid(table))
		LockDatabaseObject(table, (Oid) hash_bytes((const unsigned char *) name, strlen(name)), 1, ExclusiveLock);
}

char *
domain_table_name(Oid relid)
{
	const char *schema = get_namespace_name(get_rel_namespace(relid));
	const char *table = get_rel_name(relid);

	return strcmp(schema, "public") == 0 ? pstrdup(table) : psprintf("%s.%s", schema, table);
}

/* Returns the rows of fence.domain; if `own`, only those that this transaction has written. */
static List *
read_rows(bool own)
{
	Relation	table = fence_table_open("domain", AccessShareLock);
	List	   *rows = NIL;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (table == NULL)
		return NIL;
	scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (!own || TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
			rows = lappend(rows, row_of_tuple(tuple, RelationGetDescr(table)));
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return rows;
}

List *
domain_rows(void)
{
	return read_rows(false);
}

static bool
is_listed(List *refs, int64 id)
{
	ListCell   *lc;

	foreach(lc, refs)
		if (((DomainRef *) lfirst(lc))->id == id)
			return true;
	return false;
}

static List *
refs_of(List *rows)
{
	List	   *list = NIL;
	ListCell   *lc;

	foreach(lc, rows)
	{
		DomainRow  *row = lfirst(lc);
		DomainRef  *ref;

		if (is_listed(list, row->id))
			continue;			/* the domain is in the list already, because of another of its tables */
		ref = palloc0(sizeof(DomainRef));
		ref->row = row;
		ref->redis_name = key_domain_name(row->name);
		ref->id = row->id;
		ref->publish = row->publish;
		list = lappend(list, ref);
	}
	return list;
}

List *
domain_list(void)
{
	return refs_of(domain_rows());
}

List *
domain_list_own(void)
{
	return refs_of(read_rows(true));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Writing rows
 * -----------------------------------------------------------------------------------------------------------------
 */

static Datum
array_of_names(List *names)
{
	Datum	   *elements = palloc(sizeof(Datum) * list_length(names));
	int			n = 0;
	ListCell   *lc;

	foreach(lc, names)
		elements[n++] = DirectFunctionCall1(namein, CStringGetDatum((char *) lfirst(lc)));
	return PointerGetDatum(construct_array(elements, n, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR));
}

static void
set_text(Datum *values, bool *nulls, DomainColumn column, const char *value)
{
	nulls[column - 1] = value == NULL;
	if (value != NULL)
		values[column - 1] = CStringGetTextDatum(value);
}

static HeapTuple
tuple_of_row(const DomainRow *row, TupleDesc desc)
{
	Datum		values[NCOLUMNS] = {0};
	bool		nulls[NCOLUMNS] = {0};

	values[COLUMN_ID - 1] = Int64GetDatum(row->id);
	set_text(values, nulls, COLUMN_NAME, row->name);
	nulls[COLUMN_RELATION - 1] = !OidIsValid(row->relid);
	values[COLUMN_RELATION - 1] = ObjectIdGetDatum(row->relid);
	values[COLUMN_KEY_COLUMNS - 1] = array_of_names(row->key_columns);
	nulls[COLUMN_VERSION_COLUMN - 1] = row->version_column == NULL;
	if (row->version_column != NULL)
		values[COLUMN_VERSION_COLUMN - 1] = DirectFunctionCall1(namein, CStringGetDatum(row->version_column));
	set_text(values, nulls, COLUMN_TAG, row->tag);
	set_text(values, nulls, COLUMN_SCOPE, row->scope);
	set_text(values, nulls, COLUMN_CACHE, row->cache);
	nulls[COLUMN_COLUMNS - 1] = row->columns == NIL;
	if (row->columns != NIL)
		values[COLUMN_COLUMNS - 1] = array_of_names(row->columns);
	nulls[COLUMN_TTL - 1] = row->ttl == NULL;
	values[COLUMN_TTL - 1] = IntervalPGetDatum(row->ttl);
	set_text(values, nulls, COLUMN_ON_REDIS_FAILURE, row->on_redis_failure);
	set_text(values, nulls, COLUMN_PUBLISH, row->publish);
	values[COLUMN_VERSION_ADDED - 1] = BoolGetDatum(row->version_added);
	values[COLUMN_CACHE_ABSENT - 1] = BoolGetDatum(row->cache_absent);
	set_text(values, nulls, COLUMN_RESERVE, row->reserve);
	values[COLUMN_ONLY_COLUMNS - 1] = BoolGetDatum(row->only_columns);
	return heap_form_tuple(desc, values, nulls);
}

void
domain_row_insert(DomainRow *row)
{
	Relation	table = fence_table_open("domain", RowExclusiveLock);
	Oid			sequence = fence_table_oid("domain_id_seq");

	if (table == NULL || !OidIsValid(sequence))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("the tables of extension pgcache_fence do not exist in this database"),
				 errhint("Use CREATE EXTENSION pgcache_fence.")));
	if (row->id == 0)
		row->id = nextval_internal(sequence, false);
	CatalogTupleInsert(table, tuple_of_row(row, RelationGetDescr(table)));
	CacheInvalidateRelcache(table);
	table_close(table, NoLock);
	CommandCounterIncrement();
}

/* Returns a copy of the row of this attachment; NULL if it is gone. */
static HeapTuple
find_attachment(Relation table, const DomainRow *row)
{
	Oid			index = index_on(table, COLUMN_ID);
	HeapTuple	found = NULL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, COLUMN_ID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(row->id));
	scan = systable_beginscan(table, index, OidIsValid(index), NULL, 1, &key);
	while (found == NULL && HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (row_of_tuple(tuple, RelationGetDescr(table))->relid == row->relid)
			found = heap_copytuple(tuple);
	systable_endscan(scan);
	return found;
}

bool
domain_row_delete(const DomainRow *row)
{
	Relation	table = fence_table_open("domain", RowExclusiveLock);
	HeapTuple	tuple;

	if (table == NULL)
		return false;
	/* if the domain has no table, only this lock keeps two sessions from ending it at the same time */
	LockDatabaseObject(RelationGetRelid(table), (Oid) row->id, 0, ExclusiveLock);
	tuple = find_attachment(table, row);
	if (HeapTupleIsValid(tuple))
		CatalogTupleDelete(table, &tuple->t_self);
	CacheInvalidateRelcache(table);
	table_close(table, NoLock);
	return HeapTupleIsValid(tuple);
}

void
domain_row_update(const DomainRow *row)
{
	Relation	table = fence_table_open("domain", RowExclusiveLock);
	HeapTuple	tuple;

	if (table == NULL)
		return;
	tuple = find_attachment(table, row);
	if (HeapTupleIsValid(tuple))
		CatalogTupleUpdate(table, &tuple->t_self, tuple_of_row(row, RelationGetDescr(table)));
	CacheInvalidateRelcache(table);
	table_close(table, NoLock);
}

static bool
rename_in_list(List *names, const char *old, const char *new)
{
	bool		any = false;
	ListCell   *lc;

	foreach(lc, names)
		if (strcmp(lfirst(lc), old) == 0)
		{
			lfirst(lc) = pstrdup(new);
			any = true;
		}
	return any;
}

bool
domain_row_rename_column(DomainRow *row, const char *old, const char *new)
{
	bool		any = rename_in_list(row->key_columns, old, new);

	any = rename_in_list(row->columns, old, new) || any;
	if (row->version_column != NULL && strcmp(row->version_column, old) == 0)
	{
		row->version_column = pstrdup(new);
		any = true;
	}
	if (row->tag != NULL)
		row->tag = text_to_cstring(DatumGetTextPP(DirectFunctionCall3Coll(replace_text, C_COLLATION_OID,
																		  CStringGetTextDatum(row->tag),
																		  CStringGetTextDatum(psprintf("{%s}", old)),
																		  CStringGetTextDatum(psprintf("{%s}", new)))));
	return any;
}
