/*
 * domain/domain.c
 *	  The cache of fenced tables; see domain.h.
 *
 * Owns: the cached Domains of this backend. A row of fence.domain becomes a Domain by resolving its names against the
 * table as it is now; that fails with a clear error if somebody renamed a column since. All attachments of a table are built, found
 * and forgotten together, because whoever changes a row of the table needs them all.
 *
 * An invalidation may arrive whenever a lock is taken, also in the middle of building an entry. So an entry is linked
 * only if nothing arrived meanwhile; else it is handed out once, as good as dead. Dead entries are found by nobody
 * and are freed at the end of the transaction, because callers keep pointers that long.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/key_text.h"
#include "base/shared.h"
#include "domain/catalog.h"
#include "domain/domain.h"
#include "domain/key_index.h"
#include "domain/plain_json.h"
#include "domain/shape.h"

/* One entry of the cache: all attachments of a table or of one of its partitions, or one domain without a table */
typedef struct Entry
{
	Domain	   *domains;		/* chained by next */
	MemoryContext context;		/* holds all of this */
	struct Entry *next_dead;
} Entry;

typedef struct ByRelation
{
	Oid			relid;
	Entry	   *entry;
} ByRelation;

typedef struct ByName
{
	char		name[NAMEDATALEN];
	Domain	   *domain;
	Entry	   *entry;
} ByName;

static HTAB *by_relation = NULL;
static HTAB *by_name = NULL;
static Entry *dead_entries = NULL;

/* What is being built now, and whether it was invalidated meanwhile */
static Oid	building_relid = InvalidOid;
static bool building_invalidated = false;

/* -----------------------------------------------------------------------------------------------------------------
 * Invalidation
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
unlink_entry(Entry *entry)
{
	ByRelation *r = hash_search(by_relation, &entry->domains->relid, HASH_FIND, NULL);

	if (r != NULL && r->entry == entry)
		hash_search(by_relation, &entry->domains->relid, HASH_REMOVE, NULL);
	for (Domain *domain = entry->domains; domain != NULL; domain = domain->next)
	{
		ByName	   *n = hash_search(by_name, domain->name, HASH_FIND, NULL);

		if (n != NULL && n->entry == entry)
			hash_search(by_name, domain->name, HASH_REMOVE, NULL);
	}
}

static void
bury(Entry *entry)
{
	entry->next_dead = dead_entries;
	dead_entries = entry;
}

static void
retire(Entry *entry)
{
	unlink_entry(entry);
	bury(entry);
}

static void
retire_all(void)
{
	HASH_SEQ_STATUS status;
	ByName	   *n;
	ByRelation *r;

	/*
	 * Removing the element just returned is allowed: so first those with a table, of which each has one element here, then the rest. The
	 * names of the first go too, but no scan of them is under way.
	 */
	hash_seq_init(&status, by_relation);
	while ((r = hash_seq_search(&status)) != NULL)
		retire(r->entry);
	hash_seq_init(&status, by_name);
	while ((n = hash_seq_search(&status)) != NULL)
		retire(n->entry);
}

/* Never raises, never allocates: it also runs while a transaction ends. */
static void
relation_invalidated(Datum arg, Oid relid)
{
	bool		all = catalog_invalidated(relid);

	(void) arg;
	if (all || relid == building_relid)
		building_invalidated = true;

	if (all)
		retire_all();
	else
	{
		ByRelation *r = hash_search(by_relation, &relid, HASH_FIND, NULL);

		if (r != NULL)
			retire(r->entry);
	}
}

void
domain_init(void)
{
	HASHCTL		control = {0};

	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(ByRelation);
	by_relation = hash_create("pgcache_fence domains by relation", 64, &control, HASH_ELEM | HASH_BLOBS);
	control.keysize = NAMEDATALEN;
	control.entrysize = sizeof(ByName);
	by_name = hash_create("pgcache_fence domains by name", 64, &control, HASH_ELEM | HASH_STRINGS);
	CacheRegisterRelcacheCallback(relation_invalidated, (Datum) 0);
	catalog_init();
}

void
domain_at_transaction_end(void)
{
	while (dead_entries != NULL)
	{
		Entry	   *entry = dead_entries;

		dead_entries = entry->next_dead;
		MemoryContextDelete(entry->context);
	}
}

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

/* The column's first place in the index. */
static int
place_in_index(const FormData_pg_index *index, AttrNumber attnum)
{
	int			place = 0;

	while (place < index->indnatts && index->indkey.values[place] != attnum)
		place++;
	return place;
}

/* A btree wants the conditions of a scan in the order of its columns; the key may have another one. */
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
					 errmsg("version column \"%s\" of fenced table \"%s\" is no integer any more",
							row->version_column, RelationGetRelationName(rel)),
					 errhint("Use fence.detach and fence.attach again.")));
	}
}

/* If one of the columns cannot be compared any more, every change counts. */
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

/* What a transaction does with its reservations of the domain. */
static void
fill_writing(Domain *domain, const DomainRow *row)
{
	domain->policy = policy_of_text(row->on_redis_failure);
	domain->notify = strcmp(row->publish, "notify") == 0;
	domain->events = strcmp(row->publish, "pubsub") == 0 || strcmp(row->publish, "stream") == 0;
	domain->reserve = row->reserve == NULL ? -1 : strcmp(row->reserve, "commit") == 0 ? RESERVE_AT_COMMIT : RESERVE_EARLY;
}

/* Fills what needs no table. */
static void
fill_domain(Domain *domain, const DomainRow *row)
{
	ListCell   *lc;

	domain->id = row->id;
	domain->name = pstrdup(row->name);
	domain->redis_name = domain_redis_name(row->name);
	domain->metrics = metrics_slot(domain->redis_name);
	domain->fence_prefix = psprintf("%s:f:%s:", setting_namespace, domain->redis_name);
	domain->value_prefix = psprintf("%s:v:%s:", setting_namespace, domain->redis_name);
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
	/* nobody has cached a row that there was not, unless as absent; a group and a row by hand may have a fence before */
	domain->inserts_reserve = domain->cache_absent || domain->write_through || domain->notify || domain->events ||
		domain->version_aside || domain->scope != SCOPE_ROW;
}

/* The keeper is told, too, so that Redis hears of it; the caller's transaction does not live to tell. */
static void
raise_misshapen(const DomainRow *row, const char *fault)
{
	if (fence_shared != NULL && fence_log_due(psprintf("misshapen %s", domain_redis_name(row->name))))
	{
		pg_atomic_fetch_add_u32(&fence_shared->catalog_serial, 1);
		fence_wake_keeper_process();
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" is not fenced any more: nothing of domain \"%s\" is served", get_rel_name(row->relid), row->name),
			 errdetail("%s", fault),
			 errhint("Find out who changed that past ALTER TABLE. Then use fence.detach and fence.attach.")));
}

/* Checks the triggers of a partition, or those of a table and all its partitions. `rows` are the rows of all attachments. */
static void
check_shape(List *rows, Oid relid)
{
	const DomainRow *row = linitial(rows);
	char	   *fault = relid == row->relid ? shape_fault_of_family(rows) : shape_fault_of_table(rows, relid);

	if (fault != NULL)
		raise_misshapen(row, fault);
}

void
domain_require_shape(const DomainRow *row)
{
	if (OidIsValid(row->relid))
		check_shape(domain_rows_by_relation(row->relid), row->relid);
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

static Domain *
build_domains(List *rows, Relation rel)
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

/* Builds the Domains of these rows for that table, in a memory context of their own. Returns NULL if the table is gone. */
static Entry *
build_entry(List *rows, Oid relid)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgcache_fence domains", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Entry	   *entry = palloc0(sizeof(Entry));
	Relation	rel = OidIsValid(relid) ? try_table_open(relid, AccessShareLock) : NULL;

	entry->context = context;
	if (rel != NULL || !OidIsValid(relid))
		entry->domains = build_domains(rows, rel);
	if (rel != NULL)
	{
		check_shape(rows, relid);
		table_close(rel, AccessShareLock);
	}
	MemoryContextSwitchTo(old);
	if (entry->domains != NULL)
		return entry;
	MemoryContextDelete(context);
	return NULL;
}

static void
link_name(Entry *entry, Domain *domain)
{
	ByName	   *n = hash_search(by_name, domain->name, HASH_FIND, NULL);

	if (n != NULL && n->domain->id == domain->id)
		return;					/* another table of the domain was cached first */
	if (n != NULL)
		retire(n->entry);
	n = hash_search(by_name, domain->name, HASH_ENTER, NULL);
	n->domain = domain;
	n->entry = entry;
}

/* `named` is false for a partition, because a domain's name means the root. An older entry of the name should not exist; if it does, it is retired. */
static void
link_entry(Entry *entry, bool named)
{
	Oid			relid = entry->domains->relid;
	ByRelation *r = hash_search(by_relation, &relid, HASH_FIND, NULL);

	if (r != NULL)
		retire(r->entry);
	for (Domain *domain = entry->domains; named && domain != NULL; domain = domain->next)
		link_name(entry, domain);
	if (!OidIsValid(relid))
		return;
	r = hash_search(by_relation, &relid, HASH_ENTER, NULL);
	r->entry = entry;
}

/* The rows of the attachments of that table; if name is not NULL, of the table of that domain, or of the domain itself. */
static List *
rows_to_load(Oid relid, const char *name)
{
	List	   *rows;
	Oid			table;

	if (name == NULL)
		return domain_rows_covering(relid);
	rows = domain_rows_by_name(name);
	table = rows ? ((DomainRow *) linitial(rows))->relid : InvalidOid;
	return OidIsValid(table) ? domain_rows_by_relation(table) : rows;
}

/* Loads the Domains of that table or, if name is not NULL, those of the table of that domain. */
static Domain *
load(Oid relid, const char *name)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "pgcache_fence catalog",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(scratch);
	List	   *rows;
	Entry	   *entry = NULL;

	building_relid = relid;
	building_invalidated = false;
	rows = rows_to_load(relid, name);
	if (rows != NIL)
	{
		Oid			table = ((DomainRow *) linitial(rows))->relid;

		building_relid = name ? table : relid;
		entry = build_entry(rows, building_relid);
		if (entry != NULL)
		{
			MemoryContextSetParent(entry->context, TopMemoryContext);
			if (building_invalidated)
				bury(entry);
			else
				link_entry(entry, building_relid == table);
		}
	}
	building_relid = InvalidOid;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(scratch);
	return entry ? entry->domains : NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Look-ups
 * -----------------------------------------------------------------------------------------------------------------
 */

Domain *
domains_by_relation(Oid relid)
{
	ByRelation *r = hash_search(by_relation, &relid, HASH_FIND, NULL);

	return r ? r->entry->domains : load(relid, NULL);
}

Domain *
domain_of(Domain *domains, int64 id)
{
	while (domains != NULL && domains->id != id)
		domains = domains->next;
	return domains;
}

List *
domain_of_each_table(const Domain *domain)
{
	List	   *list = NIL;
	ListCell   *lc;

	if (domain->tables == NIL)
		return list_make1(unconstify(Domain *, domain));
	foreach(lc, domain->tables)
	{
		Domain	   *of_table = domain_of(domains_by_relation(lfirst_oid(lc)), domain->id);

		if (of_table != NULL)
			list = lappend(list, of_table);
	}
	return list;
}

static Domain *
load_by_name(const char *name)
{
	Domain	   *domain = load(InvalidOid, name);

	while (domain != NULL && strcmp(domain->name, name) != 0)
		domain = domain->next;
	return domain;
}

Domain *
domain_by_name(const char *name, bool missing_ok)
{
	Domain	   *domain = NULL;

	/* no lock on the table brings a reader up to date, as it does a trigger */
	AcceptInvalidationMessages();
	/* the catalogue has no longer ones, and the hash compares no further */
	if (strlen(name) < NAMEDATALEN)
	{
		ByName	   *n = hash_search(by_name, name, HASH_FIND, NULL);

		domain = n ? n->domain : load_by_name(name);
	}
	if (domain == NULL && !missing_ok)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("fence domain \"%s\" does not exist", name),
				 errhint("View fence.domains lists what is fenced in this database; fence.attach adds a table.")));
	return domain;
}

Domain *
domain_by_redis_name(const char *redis_name)
{
	char	   *end;
	unsigned long database = strtoul(redis_name, &end, 10);
	int			nparts;
	char	  **parts;
	Domain	   *domain;

	if (database != MyDatabaseId || *end != '.' || !key_parts(end + 1, &nparts, &parts) || nparts != 1)
		return NULL;
	domain = domain_by_name(parts[0], true);
	return domain != NULL && strcmp(domain->redis_name, redis_name) == 0 ? domain : NULL;
}

Domain *
domain_stub(const DomainRow *row)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	Domain	   *domain = palloc0(sizeof(Domain));

	domain->id = row->id;
	domain->name = pstrdup(row->name);
	domain->redis_name = domain_redis_name(row->name);
	domain->metrics = metrics_slot(domain->redis_name);
	fill_writing(domain, row);
	MemoryContextSwitchTo(old);
	return domain;
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

static bool
has_writer_lock_on_table(const Domain *domain)
{
	bool		found = false;
	ListCell   *lc;

	foreach(lc, domain->partitioned ? find_all_inheritors(domain->relid, NoLock, NULL) : list_make1_oid(domain->relid))
	{
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);

		if (rel == NULL)
			continue;
		found = CheckRelationLockedByMe(rel, RowExclusiveLock, true);
		relation_close(rel, AccessShareLock);
		if (found)
			break;
	}
	return found;
}

bool
domain_has_writer_lock(const Domain *domain)
{
	ListCell   *lc;

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return false;
	foreach(lc, domain_of_each_table(domain))
		if (has_writer_lock_on_table(lfirst(lc)))
			return true;
	return false;
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
