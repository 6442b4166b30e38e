/*
 * domain/domain.c
 *	  Builds a Domain from a row of fence.domain and from its table as it is now; see domain.h.
 *
 * Owns nothing: domain_cache.c keeps the Domains. Takes no locks, because the caller has opened the table. Never
 * writes. A column that was renamed or dropped past the hooks is an error with a hint.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/key_text.h"
#include "domain/catalog.h"
#include "domain/domain.h"
#include "domain/key_index.h"
#include "domain/plain_json.h"

/* -----------------------------------------------------------------------------------------------------------------
 * Key columns
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
describe_key_column(KeyColumn *column, Relation rel, Oid index, AttrNumber attnum)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	KeyEquality eq = domain_key_equality(rel, index, attnum);
	int32		typmod = att->atttypmod;
	Oid			proc;
	bool		varlena;

	column->name = pstrdup(NameStr(att->attname));
	column->attnum = attnum;
	column->input_type = getBaseTypeAndTypmod(att->atttypid, &typmod);
	column->input_typmod = column->input_type == BPCHAROID ? typmod : -1;
	column->text_type = column->input_type;
	if (OidIsValid(eq.input_type) && !IsPolymorphicType(eq.input_type))
		column->text_type = eq.input_type;
	column->collation = eq.collation;
	column->byval = att->attbyval;
	column->len = att->attlen;
	column->equality = get_opfamily_member(eq.opfamily, eq.input_type, eq.input_type, BTEqualStrategyNumber);

	getTypeOutputInfo(column->text_type, &proc, &varlena);
	fmgr_info_cxt(proc, &column->output, CurrentMemoryContext);
	getTypeInputInfo(column->input_type, &proc, &column->input_ioparam);
	fmgr_info_cxt(proc, &column->input, CurrentMemoryContext);
}

/* Returns at which place the index has this column first, from 0 on. */
static int
place_in_index(const FormData_pg_index *index, AttrNumber attnum)
{
	int			place = 0;

	while (place < index->indnatts && index->indkey.values[place] != attnum)
		place++;
	return place;
}

/* A btree scan takes its conditions in the order of the index' columns. The key may name them in another order. */
static void
place_key_columns(Domain *domain)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(domain->key_index));
	Form_pg_index index = HeapTupleIsValid(tuple) ? (Form_pg_index) GETSTRUCT(tuple) : NULL;

	for (int i = 0; i < domain->nkeys; i++)
	{
		KeyColumn  *column = &domain->keys[i];

		column->place = index ? 0 : i;
		for (int j = 0; index && j < domain->nkeys; j++)
			column->place += place_in_index(index, domain->keys[j].attnum) < place_in_index(index, column->attnum);
	}
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
}

/* -----------------------------------------------------------------------------------------------------------------
 * From a row of fence.domain to a Domain
 * -----------------------------------------------------------------------------------------------------------------
 */

static AttrNumber
resolve_column(const DomainRow *row, Relation rel, const char *name)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), name);

	if (attnum <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of fenced table \"%s\" does not exist", name, RelationGetRelationName(rel)),
				 errdetail("Domain \"%s\" was attached with this column, which has been renamed or dropped since.",
						   row->name),
				 errhint("Use fence.detach and fence.attach again.")));
	return attnum;
}

static void
resolve_key(Domain *domain, const DomainRow *row, Relation rel)
{
	AttrNumber *attnums;
	char	   *unfit;
	Oid			index;

	domain->nkeys = list_length(row->key_columns);
	domain->keys = palloc0(sizeof(KeyColumn) * domain->nkeys);
	attnums = palloc(sizeof(AttrNumber) * domain->nkeys);
	for (int i = 0; i < domain->nkeys; i++)
		attnums[i] = resolve_column(row, rel, list_nth(row->key_columns, i));
	domain->key_index = index = domain_key_index(rel, domain->nkeys, attnums, domain->scope != SCOPE_GROUP, &unfit);
	for (int i = 0; i < domain->nkeys; i++)
		describe_key_column(&domain->keys[i], rel, domain->scope == SCOPE_GROUP ? InvalidOid : index, attnums[i]);
	for (int i = 0; i < domain->nkeys; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), attnums[i] - 1);

		domain->nullable |= !att->attnotnull;
		domain->generated_key |= att->attgenerated != '\0';
	}
	place_key_columns(domain);
	pfree(attnums);
}

static void
resolve_version(Domain *domain, const DomainRow *row, Relation rel)
{
	if (row->version_column == NULL)
		return;
	domain->version_name = pstrdup(row->version_column);
	domain->version_attnum = resolve_column(row, rel, row->version_column);
	domain->version_type = TupleDescAttr(RelationGetDescr(rel), domain->version_attnum - 1)->atttypid;
	switch (domain->version_type)
	{
		case INT2OID:
			domain->version_max = PG_INT16_MAX;
			break;
		case INT4OID:
			domain->version_max = PG_INT32_MAX;
			break;
		case INT8OID:
			domain->version_max = PG_INT64_MAX;
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("version column \"%s\" of fenced table \"%s\" is no longer an integer",
							row->version_column, RelationGetRelationName(rel)),
					 errhint("Use fence.detach and fence.attach again.")));
	}
}

/* If one of the columns can no longer be compared, every UPDATE counts. */
static void
resolve_watched(Domain *domain, const DomainRow *row, Relation rel)
{
	ListCell   *lc;
	int			n = 0;

	if (!row->only_columns)
		return;
	domain->watched = palloc(sizeof(AttrNumber) * list_length(row->columns));
	foreach(lc, row->columns)
	{
		AttrNumber	attnum = get_attnum(RelationGetRelid(rel), lfirst(lc));

		if (attnum <= 0 || TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attgenerated != '\0')
			return;
		domain->watched[n++] = attnum;
	}
	domain->nwatched = n;
}

static int
policy_of_text(const char *text)
{
	if (text == NULL)
		return -1;
	return strcmp(text, "error") == 0 ? POLICY_ERROR : POLICY_BYPASS;
}

int64
interval_ms(const Interval *interval)
{
	if (interval == NULL)
		return 0;
	return ((int64) interval->month * DAYS_PER_MONTH + interval->day) * SECS_PER_DAY * INT64CONST(1000) + interval->time / 1000;
}

/* Fills what a transaction does with its reservations of the domain. */
static void
fill_writing(Domain *domain, const DomainRow *row)
{
	domain->policy = policy_of_text(row->on_redis_failure);
	domain->notify = strcmp(row->publish, "notify") == 0;
	domain->events = strcmp(row->publish, "pubsub") == 0 || strcmp(row->publish, "stream") == 0;
	domain->reserve = row->reserve == NULL ? -1 : strcmp(row->reserve, "commit") == 0 ? RESERVE_AT_COMMIT : RESERVE_EARLY;
}

/* Fills the fields for which no table is needed. */
static void
fill_domain(Domain *domain, const DomainRow *row)
{
	ListCell   *lc;

	domain->id = row->id;
	domain->name = pstrdup(row->name);
	domain->redis_name = key_domain_name(row->name);
	domain->metrics = metrics_slot(domain->redis_name);
	domain->fence_prefix = psprintf("%s:f:%s:{", setting_namespace, domain->redis_name);
	domain->value_prefix = psprintf("%s:v:%s:{", setting_namespace, domain->redis_name);
	domain->relid = row->relid;
	domain->scope = strcmp(row->scope, "row") == 0 ? SCOPE_ROW :
		strcmp(row->scope, "group") == 0 ? SCOPE_GROUP : SCOPE_MANUAL;
	domain->version_aside = domain->scope == SCOPE_GROUP || (domain->scope == SCOPE_ROW && row->version_column == NULL);
	domain->tag = row->tag ? pstrdup(row->tag) : NULL;
	foreach(lc, row->columns)
		domain->columns = lappend(domain->columns, pstrdup(lfirst(lc)));
	domain->ttl_ms = interval_ms(row->ttl);
	domain->write_through = strcmp(row->cache, "row") == 0;
	domain->cache_absent = row->cache_absent;
	fill_writing(domain, row);
	/*
	 * nobody has cached a row that did not exist, unless its absence is cached; a group or a manual key may have a
	 * fence before
	 */
	domain->inserts_reserve = domain->cache_absent || domain->write_through || domain->notify || domain->events ||
		domain->version_aside || domain->scope != SCOPE_ROW;
}

static bool
has_builtin_types(TupleDesc desc)
{
	for (int i = 0; i < desc->natts; i++)
		if (!TupleDescAttr(desc, i)->attisdropped && !plain_json_is_builtin(TupleDescAttr(desc, i)->atttypid))
			return false;
	return true;
}

static List *
tables_of(const DomainRow *row)
{
	List	   *rows = domain_rows_by_name(row->name);
	List	   *tables = NIL;
	ListCell   *lc;

	foreach(lc, rows)
		tables = lappend_oid(tables, ((DomainRow *) lfirst(lc))->relid);
	return list_length(tables) > 1 ? tables : NIL;
}

/* Builds the Domain of a row for the row's table or for a partition of it. `rel` is NULL if the domain has no table. */
static Domain *
build_domain(const DomainRow *row, Relation rel)
{
	Domain	   *domain = palloc0(sizeof(Domain));

	fill_domain(domain, row);
	if (rel == NULL)
		return domain;
	domain->relid = RelationGetRelid(rel);
	domain->partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	domain->tables = tables_of(row);
	resolve_key(domain, row, rel);
	resolve_version(domain, row, rel);
	resolve_watched(domain, row, rel);
	domain->builtin_types = has_builtin_types(RelationGetDescr(rel));
	return domain;
}

Domain *
domain_build(List *rows, Relation rel)
{
	Domain	   *first = NULL;
	Domain	  **link = &first;
	ListCell   *lc;

	foreach(lc, rows)
	{
		*link = build_domain(lfirst(lc), rel);
		link = &(*link)->next;
	}
	return first;
}

Domain *
domain_stub(const DomainRow *row)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	Domain	   *domain = palloc0(sizeof(Domain));

	domain->id = row->id;
	domain->name = pstrdup(row->name);
	domain->redis_name = key_domain_name(row->name);
	domain->metrics = metrics_slot(domain->redis_name);
	fill_writing(domain, row);
	MemoryContextSwitchTo(old);
	return domain;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Questions about a Domain
 * -----------------------------------------------------------------------------------------------------------------
 */

Domain *
domain_of(Domain *domains, int64 id)
{
	while (domains != NULL && domains->id != id)
		domains = domains->next;
	return domains;
}

FailurePolicy
domain_policy(const Domain *domain)
{
	return domain->policy >= 0 ? (FailurePolicy) domain->policy : (FailurePolicy) setting_on_redis_failure;
}

bool
domain_reserves_early(const Domain *domain)
{
	return (domain->reserve >= 0 ? domain->reserve : setting_reserve) == RESERVE_EARLY;
}

bool
domain_has_versions(const Domain *domain)
{
	return OidIsValid(domain->relid) && (domain->version_aside || domain->version_name != NULL);
}

int64
domain_row_version(const Domain *domain, HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;
	Datum		value;
	int64		version;

	if (domain->version_attnum == InvalidAttrNumber)
		return 0;
	value = heap_getattr(tuple, domain->version_attnum, desc, &isnull);
	if (isnull)
		return 0;
	switch (domain->version_type)
	{
		case INT2OID:
			version = DatumGetInt16(value);
			break;
		case INT4OID:
			version = DatumGetInt32(value);
			break;
		default:
			version = DatumGetInt64(value);
			break;
	}
	return Max(version, 0);
}
