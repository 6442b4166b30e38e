/*
 * domain/domain_cache.c
 *	  Each backend's cache of fenced tables; see domain_cache.h.
 *
 * Owns: the cached Domains of this backend. All attachments of a table are built, found and forgotten together, because
 * whoever changes a row of the table needs them all.
 *
 * An invalidation may arrive whenever a lock is taken, even while an entry is built. So an entry is linked into the
 * cache only if no invalidation has arrived meanwhile. Otherwise the caller gets the entry, but nobody finds it again.
 * Such dead entries are freed at the end of the transaction, because callers keep pointers until then.
 *
 * Locks: AccessShareLock on a table while its entry is built. Never writes, and never waits for Redis.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/compat.h"
#include "base/key_text.h"
#include "base/shared.h"
#include "domain/catalog.h"
#include "domain/domain_cache.h"
#include "domain/shape.h"
#include "domain/suggestion.h"

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
static Entry *last_found = NULL;	/* by relation; most statements are on the same table as the one before */
static Entry *dead_entries = NULL;

/* The table for which an entry is being built now, and whether an invalidation of it has arrived meanwhile */
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

	if (last_found == entry)
		last_found = NULL;
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
	 * A scan of a hash table may remove the element that it has just returned. So this first retires the entries with a
	 * table, each of which has one element in by_relation. Their names leave by_name too, but no scan of by_name is
	 * active. Then it retires the rest.
	 */
	hash_seq_init(&status, by_relation);
	while ((r = hash_seq_search(&status)) != NULL)
		retire(r->entry);
	hash_seq_init(&status, by_name);
	while ((n = hash_seq_search(&status)) != NULL)
		retire(n->entry);
}

/* Never raises and never allocates, because it also runs while a transaction ends. */
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
 * Loading
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Also wakes the keeper, so that Redis learns that the domain is not served. The caller cannot tell Redis, because the
 * error ends its transaction.
 */
static void
raise_misshapen(const DomainRow *row, const char *fault)
{
	if (fence_shared != NULL && fence_log_due(psprintf("misshapen %s", key_domain_name(row->name))))
	{
		pg_atomic_fetch_add_u32(&fence_shared->catalog_serial, 1);
		fence_wake_keeper_process();
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" is no longer fenced, so nothing of domain \"%s\" is served", get_rel_name(row->relid), row->name),
			 errdetail("%s", fault),
			 errhint("Find out who changed the catalog directly. Then use fence.detach and fence.attach.")));
}

/*
 * Checks the triggers of a partition, or those of a table and all its partitions. `rows` are the rows of all
 * attachments.
 */
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

/*
 * Builds the Domains of these rows for that table, in a memory context of their own. Returns NULL if the table is gone.
 */
static Entry *
build_entry(List *rows, Oid relid)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgcache_fence domains", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Entry	   *entry = palloc0(sizeof(Entry));
	Relation	rel = OidIsValid(relid) ? try_table_open(relid, AccessShareLock) : NULL;

	entry->context = context;
	if (rel != NULL || !OidIsValid(relid))
		entry->domains = domain_build(rows, rel);
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
		return;					/* the name leads to another table of the domain, which was cached first */
	if (n != NULL)
		retire(n->entry);
	n = hash_search(by_name, domain->name, HASH_ENTER, NULL);
	n->domain = domain;
	n->entry = entry;
}

/*
 * `named` is false for a partition, because a domain's name leads to the root. An older entry of the same table or name
 * should not exist. If it does, it is retired.
 */
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

/*
 * Returns the rows of the attachments of that table. If name is not NULL, returns those of the table of that domain or,
 * if it has no table, its own row.
 */
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

/*
 * Loads the Domains of that table or, if name is not NULL, of the table of that domain. Returns NULL if there are none.
 */
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
	ByRelation *r;

	if (last_found != NULL && last_found->domains->relid == relid)
		return last_found->domains;
	r = hash_search(by_relation, &relid, HASH_FIND, NULL);
	if (r == NULL)
		return load(relid, NULL);
	last_found = r->entry;
	return last_found->domains;
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

	/* a reader takes no lock on the table, which would process invalidations as it does for a trigger */
	AcceptInvalidationMessages();
	/* the catalog has no longer names, and the hash table compares no further */
	if (strlen(name) < NAMEDATALEN)
	{
		ByName	   *n = hash_search(by_name, name, HASH_FIND, NULL);

		domain = n ? n->domain : load_by_name(name);
	}
	if (domain == NULL && !missing_ok)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("fence domain \"%s\" does not exist", name),
				 errhint("%s", suggestion("domain", name,
										  "View fence.domains lists what is fenced in this database; fence.attach adds a table."))));
	return domain;
}

bool
domain_is_current(const Domain *domain)
{
	return domain_by_name(domain->name, true) == domain;
}

Domain *
domain_by_redis_name(const char *redis_name)
{
	char	   *name = key_own_domain(redis_name);
	Domain	   *domain = name ? domain_by_name(name, true) : NULL;

	return domain != NULL && strcmp(domain->redis_name, redis_name) == 0 ? domain : NULL;
}

static bool
has_writer_lock_on_table(const Domain *domain)
{
	ListCell   *lc;

	foreach(lc, domain->partitioned ? shape_members(domain->relid) : list_make1_oid(domain->relid))
		if (fence_holds_lock(lfirst_oid(lc), RowExclusiveLock))
			return true;
	return false;
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
