/*
 * domain/row.c
 *	  Reads the current row of a key; see row.h.
 *
 * Owns: how a row becomes the value that Redis stores. Changes nothing.
 *
 * Locks: AccessShareLock on the tables it reads and on the partitioned tables above them; released after reading.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/key_text.h"
#include "base/stamp.h"
#include "base/utf8.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/partition.h"
#include "domain/plain_json.h"
#include "domain/row.h"
#include "domain/tombstone.h"

/*
 * Returns copies of the rows of the key with these parts in one table, in this snapshot. There is at most one, except
 * in a group.
 */
static List *
fetch_rows(const Domain *domain, Relation rel, char **parts, Snapshot snapshot)
{
	List	   *rows = NIL;
	ScanKeyData scankeys[INDEX_MAX_KEYS];
	SysScanDesc scan;
	HeapTuple	row;

	for (int i = 0; i < domain->nkeys; i++)
	{
		const KeyColumn *column = &domain->keys[i];

		ScanKeyEntryInitialize(&scankeys[column->place], 0, column->attnum, BTEqualStrategyNumber, InvalidOid,
							   column->collation, get_opcode(column->equality), key_part_datum(column, parts[i]));
	}
	scan = systable_beginscan(rel, domain->key_index, OidIsValid(domain->key_index), snapshot, domain->nkeys, scankeys);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
		rows = lappend(rows, heap_copytuple(row));
	systable_endscan(scan);
	return rows;
}

/*
 * Returns the OIDs of the tables that may have rows of the key, and its parts. Returns NIL if the key cannot be one of
 * the domain, or the domain has no versions.
 */
static List *
tables_of_key(const Domain *domain, const char *key, char ***parts)
{
	int			nparts;

	if (!domain_has_versions(domain) || !key_parts(key, &nparts, parts) || nparts != domain->nkeys)
		return NIL;
	return partitions_of_key(domain, *parts);
}

/*
 * Opens such a table. Returns its Domain, because a partition may have its columns in another order than the root; NULL
 * if it is gone, or is no table of the domain any more.
 */
static const Domain *
open_leaf(const Domain *domain, Oid relid, Relation *rel)
{
	const Domain *leaf = domain;

	*rel = try_relation_open(relid, AccessShareLock);
	if (*rel == NULL)
		return NULL;
	if (domain->partitioned)
		leaf = (*rel)->rd_rel->relkind == RELKIND_RELATION ? domain_of(domains_by_relation(relid), domain->id) : NULL;
	if (leaf == NULL)
		relation_close(*rel, AccessShareLock);
	return leaf;
}

/*
 * Finds the row of the key in the table or its partitions. Returns a copy, with *rel, the open table that has it, and
 * *leaf, its Domain; NULL if there is no such row.
 */
static HeapTuple
find_row(const Domain *domain, const char *key, Snapshot snapshot, const Domain **leaf, Relation *rel)
{
	char	  **parts;
	ListCell   *cell;

	foreach(cell, tables_of_key(domain, key, &parts))
	{
		List	   *rows;

		*leaf = open_leaf(domain, lfirst_oid(cell), rel);
		if (*leaf == NULL)
			continue;
		rows = fetch_rows(*leaf, *rel, parts, snapshot);
		if (rows != NIL)
			return linitial(rows);
		relation_close(*rel, AccessShareLock);
	}
	return NULL;
}

int64
row_current_version(const Domain *domain, const char *key, bool *is_row)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	const Domain *leaf;
	Relation	rel;
	HeapTuple	row = NULL;
	int64		version = NO_VERSION;

	if (domain->version_aside)
		version = tombstone_group_version(domain->id, key, snapshot);
	else if ((row = find_row(domain, key, snapshot, &leaf, &rel)) != NULL)
	{
		version = domain_row_version(leaf, row, RelationGetDescr(rel));
		relation_close(rel, AccessShareLock);
	}
	UnregisterSnapshot(snapshot);
	if (is_row)
		*is_row = version != NO_VERSION;
	/* begin_write gave the last version, and a row of a manual domain may be deleted without a new one */
	if (version != NO_VERSION || domain->scope == SCOPE_MANUAL)
		return version;
	/* this look-up is later: a row deleted in between has its tombstone, and one inserted again has a higher version */
	return tombstone_look_up(domain->id, key).tombstone;
}

static void
require_columns(const Domain *domain)
{
	ListCell   *cell;

	foreach(cell, domain->columns)
		if (get_attnum(domain->relid, lfirst(cell)) <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of domain \"%s\" does not exist", (char *) lfirst(cell), domain->name),
					 errhint("Use fence.detach and fence.attach again.")));
}

void
row_use_standard_settings(void)
{
	static const char *const settings[][2] = {
		{"bytea_output", "hex"},
		{"datestyle", "ISO"},
		{"extra_float_digits", "3"},
		{"intervalstyle", "postgres"},
		{"lc_monetary", "C"},
		{"search_path", "pg_catalog, pg_temp"},
		{"timezone", "UTC"},
	};

	for (int i = 0; i < (int) lengthof(settings); i++)
		(void) set_config_option(settings[i][0], settings[i][1], PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
								 true, 0, false);
}

/*
 * Returns a row as the text of a JSON object. Calls row_to_json only if that runs no function of a user (plain_json.h):
 * the caller may be a superuser, and the table another user's.
 */
static char *
row_as_json(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	int			nest_level = NewGUCNestLevel();
	StringInfoData buf;

	row_use_standard_settings();
	initStringInfo(&buf);
	if (domain->columns == NIL && domain->builtin_types)
		appendStringInfoString(&buf, TextDatumGetCString(DirectFunctionCall1(row_to_json, heap_copy_tuple_as_datum(row, desc))));
	else
	{
		require_columns(domain);
		plain_json_row(&buf, row, desc, domain->columns);
	}
	AtEOXact_GUC(true, nest_level);
	return buf.data;
}

/* Parses JSON text in the database's encoding as jsonb. Returns false if it is not JSON, or jsonb cannot contain it. */
static bool
json_as_jsonb(char *json, size_t len, Datum *jsonb)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;

	PG_TRY();
	{
		if (fence_is_json(json, len))
		{
			*jsonb = DirectFunctionCall1(jsonb_in, CStringGetDatum(json));
			done = true;
		}
	}
	PG_CATCH();
	{
		/* the parser acquires nothing but memory, so we may catch its error without a subtransaction */
		int			category = ERRCODE_TO_CATEGORY(geterrcode());

		if (category != ERRCODE_DATA_EXCEPTION && category != ERRCODE_PROGRAM_LIMIT_EXCEEDED &&
			category != ERRCODE_FEATURE_NOT_SUPPORTED /* \u for a character that the encoding lacks */ )
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return done;
}

bool
row_value_is_absent(const char *value, size_t len)
{
	return len == strlen(PAYLOAD_ABSENT) && memcmp(value, PAYLOAD_ABSENT, len) == 0;
}

bool
row_value_as_jsonb(char *value, size_t len, Datum *jsonb)
{
	char	   *json = utf8_to_text(value, len);

	return json != NULL && json_as_jsonb(json, strlen(json), jsonb);
}

const char *
row_jsonb_as_value(Datum jsonb)
{
	char	   *text = JsonbToCString(NULL, &DatumGetJsonbP(jsonb)->root, VARSIZE(DatumGetJsonbP(jsonb)));
	size_t		len = strlen(text);

	return utf8_of_text(text, &len);
}

/*
 * How many times shorter than its uncompressed value JSON can be. JSON of text is never shorter, but that of an array
 * of numbers can be.
 */
#define SHORTER 4

/* Returns the bytes of the row's cached values of variable length, uncompressed. */
static Size
raw_size(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	Size		size = 0;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		bool		wanted = domain->columns == NIL;
		ListCell   *cell;
		bool		isnull;
		Datum		value;

		if (att->attisdropped || att->attlen != -1)
			continue;
		foreach(cell, domain->columns)
			wanted = wanted || strcmp(lfirst(cell), NameStr(att->attname)) == 0;
		if (!wanted)
			continue;
		value = heap_getattr(row, i + 1, desc, &isnull);
		if (!isnull)
			size += toast_raw_datum_size(value);
	}
	return size;
}

const char *
row_value(const Domain *domain, HeapTuple row, TupleDesc desc, int limit, bool *too_large)
{
	char	   *json;
	const char *value;
	Datum		jsonb;

	/* a row of hundreds of megabytes cannot even be printed, and its write must not fail because of that */
	*too_large = raw_size(domain, row, desc) > (Size) limit * SHORTER;
	if (*too_large)
		return NULL;
	json = row_as_json(domain, row, desc);
	if (!json_as_jsonb(json, strlen(json), &jsonb))
		return NULL;
	value = row_jsonb_as_value(jsonb);
	*too_large = value != NULL && strlen(value) > (Size) limit;
	return *too_large ? NULL : value;
}

static int
compare_texts(const ListCell *a, const ListCell *b)
{
	return strcmp(lfirst(a), lfirst(b));
}

/*
 * Appends the rows that a group has in one table as a JSON array, sorted by their texts, so that the same rows always
 * give the same value.
 */
static void
append_rows(StringInfo buf, const Domain *domain, const char *key, Snapshot snapshot)
{
	List	   *texts = NIL;
	char	  **parts;
	ListCell   *cell;

	foreach(cell, tables_of_key(domain, key, &parts))
	{
		Relation	rel;
		const Domain *leaf = open_leaf(domain, lfirst_oid(cell), &rel);
		ListCell   *row;

		if (leaf == NULL)
			continue;
		foreach(row, fetch_rows(leaf, rel, parts, snapshot))
			texts = lappend(texts, row_as_json(leaf, lfirst(row), RelationGetDescr(rel)));
		relation_close(rel, AccessShareLock);
	}
	list_sort(texts, compare_texts);
	appendStringInfoChar(buf, '[');
	foreach(cell, texts)
		appendStringInfo(buf, "%s%s", cell == list_head(texts) ? "" : ", ", (char *) lfirst(cell));
	appendStringInfoChar(buf, ']');
}

/* The value of a group of several tables is an object with one array for each table. */
static char *
group_as_json(const Domain *domain, const char *key, Snapshot snapshot)
{
	StringInfoData buf;
	List	   *tables = domain_of_each_table(domain);
	ListCell   *cell;

	initStringInfo(&buf);
	if (domain->tables == NIL)
	{
		append_rows(&buf, domain, key, snapshot);
		return buf.data;
	}
	foreach(cell, tables)
	{
		const Domain *of_table = lfirst(cell);

		appendStringInfoString(&buf, cell == list_head(tables) ? "{" : ", ");
		escape_json(&buf, domain_table_name(of_table->relid));
		appendStringInfoString(&buf, ": ");
		append_rows(&buf, of_table, key, snapshot);
	}
	appendStringInfoChar(&buf, '}');
	return buf.data;
}

/* Returns the full transaction id of the row's writer. A row that is not frozen is younger than 2^31 transactions. */
static FullTransactionId
writer_of(HeapTuple row)
{
	TransactionId xid = HeapTupleHeaderGetRawXmin(row->t_data);

	if (HeapTupleHeaderXminFrozen(row->t_data) || !TransactionIdIsNormal(xid))
		return InvalidFullTransactionId;
	return fence_full_xid(xid);
}

bool
row_as_jsonb(const Domain *domain, const char *key, Snapshot snapshot, Datum *jsonb, int64 *version,
			 FullTransactionId *writer)
{
	const Domain *leaf;
	Relation	rel;
	HeapTuple	row;
	char	   *json;

	if (domain->scope == SCOPE_GROUP)
	{
		json = group_as_json(domain, key, snapshot);
		*version = tombstone_group_version(domain->id, key, snapshot);
		if (writer)
			*writer = InvalidFullTransactionId;
	}
	else
	{
		row = find_row(domain, key, snapshot, &leaf, &rel);
		if (row == NULL)
			return false;
		json = row_as_json(leaf, row, RelationGetDescr(rel));
		*version = domain->version_aside ? tombstone_group_version(domain->id, key, snapshot) :
			domain_row_version(leaf, row, RelationGetDescr(rel));
		if (writer)
			*writer = writer_of(row);
		relation_close(rel, AccessShareLock);
	}
	*jsonb = DirectFunctionCall1(jsonb_in, CStringGetDatum(json));
	return true;
}

/* The same for one of the domain's tables. Appends to `keys`. */
static List *
sample_table(const Domain *root, Oid relid, double fraction, int most, List *keys)
{
	Relation	rel;
	const Domain *domain = open_leaf(root, relid, &rel);
	BlockNumber blocks;
	BlockNumber block;
	TableScanDesc scan;
	TupleTableSlot *slot;
	Snapshot	snapshot;
	uint64		wanted;

	if (domain == NULL)
		return keys;
	blocks = RelationGetNumberOfBlocks(rel);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	wanted = fraction >= 1.0 ? blocks : Max(1, (uint64) (fraction * blocks));
	wanted = Min(wanted, (uint64) most);
	/* take whole blocks from a random one on: for finding lost writes, neighbouring rows are as good a sample as any */
	block = blocks ? (BlockNumber) (pg_prng_double(&pg_global_prng_state) * blocks) : 0;
	if (fraction >= 1.0)
		block = 0;
	for (uint64 i = 0; i < wanted && i < blocks && list_length(keys) < most; i++)
	{
		CHECK_FOR_INTERRUPTS();
		scan = table_beginscan_strat(rel, snapshot, 0, NULL, true, false);
		heap_setscanlimits(scan, (block + i) % blocks, 1);
		while (list_length(keys) < most && table_scan_getnextslot(scan, ForwardScanDirection, slot))
			if (key_is_complete(domain, slot))
				keys = lappend(keys, key_of_row(domain, slot));
		table_endscan(scan);
	}
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	relation_close(rel, AccessShareLock);
	return keys;
}

List *
row_sample_keys(const Domain *domain, double fraction, int most)
{
	List	   *tables = domain_has_versions(domain) ? partitions_of_key(domain, NULL) : NIL;
	List	   *keys = NIL;
	ListCell   *cell;

	if (tables == NIL)
		return NIL;
	if (fraction > 0)
	{
		foreach(cell, tables)
			keys = sample_table(domain, lfirst_oid(cell), fraction, most, keys);
		return keys;
	}
	/* a few rows are enough, so take them from any one table */
	return sample_table(domain, list_nth_oid(tables, (int) (pg_prng_double(&pg_global_prng_state) * list_length(tables))),
						fraction, most, NIL);
}
