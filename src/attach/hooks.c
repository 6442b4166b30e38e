/*
 * attach/hooks.c
 *	  Notices what begins, ends or changes a fenced table without firing its row triggers; see hooks.h.
 *
 * Three sources tell: the object access hook, the trigger of fence.domain (for restores), and the parse tree of a
 * utility statement before it is executed.
 *
 * Owns: which statements reserve the whole domain, which end an attachment, which an attachment follows, and which are
 * refused (doc/operations.md has the table).
 *
 * PostgreSQL calls the hook for such statements in every database, so it must cost next to nothing where nothing is
 * fenced. The hook runs in the middle of commands and must never increment the command counter.
 *
 * Locks: AccessShareLock on catalogs; ShareLock on fence.domain when a trigger is restored. The statement has locked
 * the fenced table.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_cast.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "attach/attach_triggers.h"
#include "attach/detach.h"
#include "attach/ended.h"
#include "attach/hooks.h"
#include "base/compat.h"
#include "base/shared.h"
#include "domain/catalog.h"
#include "domain/domain.h"
#include "domain/shape.h"
#include "send/ledger.h"

PG_FUNCTION_INFO_V1(fence_domain_restored);

static object_access_hook_type previous_hook = NULL;

static void partition_changed(Oid root_trigger);

/*
 * A trigger is about to be dropped. If it is one of ours, all attachments of its table end. If it is a partition's
 * copy, only that partition leaves the table.
 */
static void
trigger_dropped(Oid trigger)
{
	Relation	catalog;
	HeapTuple	tuple;
	Form_pg_trigger form;
	ListCell   *lc;

	if (attach_in_progress)
		return;					/* our own code drops it, because the remaining attachments do not need it */
	catalog = table_open(TriggerRelationId, AccessShareLock);
	tuple = shape_find_trigger(catalog, trigger, NULL);
	form = HeapTupleIsValid(tuple) ? (Form_pg_trigger) GETSTRUCT(tuple) : NULL;
	if (form && shape_is_ours(form))
	{
		if (OidIsValid(form->tgparentid))
			partition_changed(form->tgparentid);
		else
			foreach(lc, domain_rows_by_relation(form->tgrelid))
			{
				ended_dropped(lfirst(lc));
				(void) detach_end(lfirst(lc));
			}
	}
	table_close(catalog, AccessShareLock);
}

/* The extension is about to be dropped. All domains end with it, also those without a table. */
static void
catalog_dropped(void)
{
	ListCell   *lc;

	foreach(lc, domain_rows())
		detach_announce(lfirst(lc));
}

/*
 * Returns the name that this command gives to a column: it is in the row of pg_attribute that the command has just
 * written.
 */
static char *
name_being_written(Oid relid, AttrNumber attnum)
{
	Relation	catalog = table_open(AttributeRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *name = NULL;

	ScanKeyInit(&keys[0], Anum_pg_attribute_attrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	ScanKeyInit(&keys[1], Anum_pg_attribute_attnum, BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(attnum));
	scan = systable_beginscan(catalog, AttributeRelidNumIndexId, true, SnapshotSelf, 2, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		name = pstrdup(NameStr(((Form_pg_attribute) GETSTRUCT(tuple))->attname));
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return name;
}

/* If the attachment names this column, and the command renames it, puts the new name into fence.domain. */
static void
follow_rename(DomainRow *row, AttrNumber attnum)
{
	char	   *old = get_attname(row->relid, attnum, true);
	char	   *new = name_being_written(row->relid, attnum);

	if (old != NULL && new != NULL && strcmp(old, new) != 0 && domain_row_rename_column(row, old, new))
		domain_row_update(row);
}

static void
domain_changed(const DomainRow *row)
{
	ledger_apply_domain(domain_stub(row));
}

/*
 * ALTER TABLE may change what rows contain, or how they are printed, without firing row triggers. So all domains of the
 * table are reserved, and nothing that was cached before the commit is served after it. Most commands would not need
 * this, but they are rare.
 */
static void
table_changed(Oid relid, int sub_id)
{
	ListCell   *lc;

	foreach(lc, domain_rows_covering(relid))
	{
		DomainRow  *row = lfirst(lc);

		if (sub_id > 0 && row->relid == relid)
			follow_rename(row, sub_id);
		domain_changed(row);
	}
}

/*
 * Values of this type may be printed differently from now on. Reserves the domains of all fenced tables that contain
 * such values, directly or within arrays, SQL domains, ranges and composite types. pg_depend has the users of a type.
 */
static void
type_changed(Oid type)
{
	Relation	catalog;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(type) || !OidIsValid(fence_table_oid("domain")))
		return;
	check_stack_depth();
	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(TypeRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(type));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend user = (Form_pg_depend) GETSTRUCT(tuple);

		if (user->classid == TypeRelationId)
			type_changed(user->objid);
		if (user->classid != RelationRelationId || user->objsubid == 0)
			continue;
		table_changed(user->objid, 0);
		type_changed(get_rel_type_id(user->objid));
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/*
 * A cast to json was created or is about to be dropped. Cached rows contain values of its source type as that cast
 * prints them (plain_json.h).
 */
static void
cast_changed(Oid cast, bool created)
{
	Relation	catalog = table_open(CastRelationId, AccessShareLock);
	HeapTuple	tuple = catalog_find_row(catalog, CastOidIndexId, Anum_pg_cast_oid, cast, created ? SnapshotSelf : NULL);

	table_close(catalog, AccessShareLock);
	if (HeapTupleIsValid(tuple) && ((Form_pg_cast) GETSTRUCT(tuple))->casttarget == JSONOID)
		type_changed(((Form_pg_cast) GETSTRUCT(tuple))->castsource);
}

/*
 * A partition joins or leaves its table, with all of its rows. We notice it because PostgreSQL then creates or drops
 * the partition's copy of the root's trigger.
 */
static void
partition_changed(Oid root_trigger)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	Oid			relid = InvalidOid;

	while (OidIsValid(root_trigger))
	{
		HeapTuple	tuple = shape_find_trigger(catalog, root_trigger, NULL);

		if (!HeapTupleIsValid(tuple))
			break;
		relid = ((Form_pg_trigger) GETSTRUCT(tuple))->tgrelid;
		root_trigger = ((Form_pg_trigger) GETSTRUCT(tuple))->tgparentid;
	}
	table_close(catalog, AccessShareLock);
	if (OidIsValid(relid))
		table_changed(relid, 0);
}

/*
 * A dump has the rows of fence.domain and the triggers. It does not have what the triggers depend on, and a restore
 * does not notify the keeper. A parallel restore may bring rows and triggers in any order, even at the same time. The
 * later one sees both, because the lock on fence.domain makes it wait for the other.
 */
static void
trigger_restored(Oid relid)
{
	Oid			table = fence_table_oid("domain");
	List	   *rows;
	ListCell   *lc;

	if (!OidIsValid(table))
		return;
	LockRelationOid(table, ShareLock);
	rows = domain_rows_by_relation(relid);
	if (rows == NIL)
		return;
	ledger_catalog_changed();
	foreach(lc, rows)
		attach_restore_dependencies(lfirst(lc));
}

/* The trigger of fence.domain, for restores. The extension's own code changes that table without firing triggers. */
Datum
fence_domain_restored(PG_FUNCTION_ARGS)
{
	ListCell   *lc;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		RelationGetRelid(((TriggerData *) fcinfo->context)->tg_relation) != fence_table_oid("domain"))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("this function can only be called by the trigger of fence.domain")));
	shared_require();
	CommandCounterIncrement();
	ledger_catalog_changed();
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	foreach(lc, domain_rows())
		if (OidIsValid(((DomainRow *) lfirst(lc))->relid))
			attach_restore_dependencies(lfirst(lc));
	return PointerGetDatum(NULL);
}

static void
refuse_alter(const char *table, const char *what, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s is not possible for table \"%s\" because it is fenced", what, table),
			 errdetail("%s", detail),
			 errhint("%s", hint)));
}

/*
 * A trigger was created, replaced, renamed, enabled or disabled; pg_trigger has it as this command wrote it. Raises
 * 0A000 if it has our name or our function and is on a fenced table, but does not look as fence.attach makes it. A
 * partition's new copy means that the partition has joined the table.
 */
static void
trigger_changed(Oid trigger, bool made)
{
	Relation	catalog;
	HeapTuple	tuple;
	Form_pg_trigger form;
	List	   *rows;
	const char *fault = NULL;

	if (attach_in_progress)
		return;					/* fence.attach checks the triggers itself, once all exist */
	catalog = table_open(TriggerRelationId, AccessShareLock);
	tuple = shape_find_trigger(catalog, trigger, SnapshotSelf);
	form = HeapTupleIsValid(tuple) ? (Form_pg_trigger) GETSTRUCT(tuple) : NULL;
	if (form != NULL && made && OidIsValid(form->tgparentid))
	{
		if (shape_is_ours(form))
			partition_changed(form->tgparentid);	/* a copy looks like the original, so it needs no check */
	}
	else if (form != NULL && (rows = domain_rows_covering(form->tgrelid)) != NIL)
	{
		/*
		 * a restore creates the trigger and enables it with the next command; CREATE OR REPLACE updates the row of an
		 * enabled one
		 */
		bool		is_new = made && (tuple->t_data->t_infomask & HEAP_UPDATED) == 0;

		fault = shape_fault(rows, catalog, tuple, is_new);
	}
	if (fault != NULL)
		refuse_alter(get_rel_name(form->tgrelid), psprintf("this change of trigger \"%s\"", NameStr(form->tgname)),
					 psprintf("With it, the trigger %s, and readers could get values that were replaced.", fault),
					 "Leave the triggers of pgcache_fence as they are, or use fence.detach first.");
	if (form != NULL && !made && !OidIsValid(form->tgparentid) && shape_is_ours(form))
		trigger_restored(form->tgrelid);
	table_close(catalog, AccessShareLock);
}

static bool
is_covered(RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);

	return OidIsValid(relid) && domain_rows_covering(relid) != NIL;
}

static void
check_alter_table(AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst(lc);

		if (cmd->subtype == AT_DetachPartition && ((PartitionCmd *) cmd->def)->concurrent && is_covered(stmt->relation))
			refuse_alter(stmt->relation->relname, "DETACH PARTITION CONCURRENTLY",
						 "Its rows are gone in the first of two transactions, its triggers in the second.",
						 "Use DETACH PARTITION without CONCURRENTLY.");
	}
}

/*
 * Reserves every domain of the database. This is for rare statements after which we do not know which rows look
 * different.
 */
static void
all_domains_changed(void)
{
	ListCell   *lc;

	foreach(lc, domain_rows())
		domain_changed(lfirst(lc));
}

void
hooks_check_utility(Node *stmt)
{
	if (IsA(stmt, AlterTableStmt) && ((AlterTableStmt *) stmt)->objtype != OBJECT_TYPE)
		check_alter_table((AlterTableStmt *) stmt);
	else if (IsA(stmt, AlterEnumStmt) && ((AlterEnumStmt *) stmt)->oldVal != NULL)
		all_domains_changed();
}

/* -----------------------------------------------------------------------------------------------------------------
 * TRUNCATE by a logical replication worker
 * -----------------------------------------------------------------------------------------------------------------
 */

#define REBUILT_MAX 64

/*
 * Relations that this worker's transaction may have given new storage. If there are more than fit, every domain counts
 * as changed.
 */
static Oid	rebuilt[REBUILT_MAX];
static int	nrebuilt = 0;

/*
 * Apply workers truncate relations without calling any hook, and a partition has no statement trigger of its own. But
 * whatever gives a relation new storage also invalidates its cache entry. So we remember the invalidated relations
 * here, and look at their storage before the commit. Never raises, never allocates.
 */
static void
relation_invalidated(Datum arg, Oid relid)
{
	(void) arg;
	if (!IsLogicalWorker() || nrebuilt > REBUILT_MAX)
		return;
	for (int i = 0; i < nrebuilt; i++)
		if (rebuilt[i] == relid)
			return;
	if (nrebuilt < REBUILT_MAX && OidIsValid(relid))
		rebuilt[nrebuilt++] = relid;
	else
		nrebuilt = REBUILT_MAX + 1;
}

static bool
has_new_storage(Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	bool		is_new;

	if (rel == NULL)
		return false;
	is_new = rel->rd_rel->relkind == RELKIND_RELATION && fence_new_storage_in(rel) != InvalidSubTransactionId;
	relation_close(rel, NoLock);
	return is_new;
}

void
hooks_before_commit(void)
{
	Oid			candidates[REBUILT_MAX];
	int			n = nrebuilt;

	if (n == 0 || !OidIsValid(fence_table_oid("domain")))
		return;
	/* to open a relation may invalidate others, which changes the list */
	memcpy(candidates, rebuilt, Min(n, REBUILT_MAX) * sizeof(Oid));
	if (n > REBUILT_MAX)
		all_domains_changed();
	for (int i = 0; n <= REBUILT_MAX && i < n; i++)
		if (has_new_storage(candidates[i]))
			table_changed(candidates[i], 0);
}

void
hooks_at_transaction_end(void)
{
	nrebuilt = 0;
}

static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	bool		internal = access == OAT_POST_ALTER && arg && ((ObjectAccessPostAlter *) arg)->is_internal;

	if (previous_hook)
		previous_hook(access, class_id, object_id, sub_id, arg);
	if (class_id == TriggerRelationId && access == OAT_DROP)
		trigger_dropped(object_id);
	else if (class_id == TriggerRelationId && (access == OAT_POST_ALTER || access == OAT_POST_CREATE))
		trigger_changed(object_id, access == OAT_POST_CREATE);
	else if (class_id == CastRelationId && (access == OAT_POST_CREATE || access == OAT_DROP))
		cast_changed(object_id, access == OAT_POST_CREATE);
	else if (class_id != RelationRelationId)
		return;
	else if (access == OAT_TRUNCATE)
		table_changed(object_id, 0);
	else if (access == OAT_DROP && sub_id == 0 && object_id == fence_table_oid("domain"))
		catalog_dropped();
	else if ((access == OAT_POST_ALTER && !internal) || ((access == OAT_DROP || access == OAT_POST_CREATE) && sub_id != 0))
	{
		table_changed(object_id, sub_id);
		/* other tables may contain its rows as values; for a composite type that is the only use */
		type_changed(get_rel_type_id(object_id));
	}
}

void
hooks_install(void)
{
	previous_hook = object_access_hook;
	object_access_hook = object_access;
	CacheRegisterRelcacheCallback(relation_invalidated, (Datum) 0);
}
