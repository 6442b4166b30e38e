/*
 * domain/shape.c
 *	  How the triggers of a fenced table must look, and whether they do; see shape.h.
 *
 * Owns: the table of shapes. Reads pg_trigger itself and not the triggers in the relation cache, because a superuser
 * who edits the catalog directly invalidates no cache. Raises no errors of its own, changes nothing. Locks only
 * catalogs (AccessShareLock).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/table.h"
#include "catalog/partition.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "domain/catalog.h"
#include "domain/shape.h"

#define ROW_EVENTS	(TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE)

static const TriggerShape shapes[] = {
	{ROLE_BEFORE, "zzz_pgcache_fence_before", "fence_before_row", TRIGGER_TYPE_ROW | TRIGGER_TYPE_BEFORE | ROW_EVENTS,
	"BEFORE INSERT OR UPDATE OR DELETE", "ROW", "before_row()"},
	{ROLE_AFTER, "zzz_pgcache_fence_after", "fence_after_row", TRIGGER_TYPE_ROW | ROW_EVENTS,
	"AFTER INSERT OR UPDATE OR DELETE", "ROW", "after_row()"},
	{ROLE_TRUNCATE, "zzz_pgcache_fence_truncate", "fence_before_truncate", TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_TRUNCATE,
	"BEFORE TRUNCATE", "STATEMENT", "before_truncate()"},
};

const TriggerShape *
shape_of(TriggerRole role)
{
	for (int i = 0; i < (int) lengthof(shapes); i++)
		if (shapes[i].role == role)
			return &shapes[i];
	return NULL;
}

static bool
is_wanted_by(const DomainRow *row, TriggerRole role, bool on_partition)
{
	switch (role)
	{
		case ROLE_BEFORE:		/* sets the version */
			return strcmp(row->scope, "row") == 0 && row->version_column != NULL;
		case ROLE_AFTER:		/* reports the row or, in manual domains, guards it */
			return true;
		case ROLE_TRUNCATE:		/* PostgreSQL copies row triggers only; a hook sees TRUNCATE of a partition */
			return !on_partition;
		default:
			return false;
	}
}

bool
shape_is_wanted(List *rows, TriggerRole role, bool on_partition)
{
	ListCell   *lc;

	foreach(lc, rows)
		if (is_wanted_by(lfirst(lc), role, on_partition))
			return true;
	return false;
}

/* -----------------------------------------------------------------------------------------------------------------
 * One trigger
 * -----------------------------------------------------------------------------------------------------------------
 */

static TriggerRole
role_of_name(const char *name)
{
	for (int i = 0; i < (int) lengthof(shapes); i++)
		if (strcmp(shapes[i].name, name) == 0)
			return shapes[i].role;
	return ROLE_NONE;
}

TriggerRole
shape_role_of_function(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	TriggerRole role = ROLE_NONE;
	bool		isnull;
	Datum		source;

	if (!HeapTupleIsValid(tuple))
		return ROLE_NONE;
	source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	/* only superusers create C functions, so nobody else can imitate ours */
	if (((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId && !isnull)
	{
		char	   *symbol = TextDatumGetCString(source);

		for (int i = 0; i < (int) lengthof(shapes); i++)
			if (strcmp(shapes[i].symbol, symbol) == 0)
				role = shapes[i].role;
		pfree(symbol);
	}
	ReleaseSysCache(tuple);
	return role;
}

bool
shape_is_ours(const FormData_pg_trigger *trigger)
{
	TriggerRole role = shape_role_of_function(trigger->tgfoid);

	return role != ROLE_NONE && role == role_of_name(NameStr(trigger->tgname));
}

HeapTuple
shape_find_trigger(Relation catalog, Oid trigger, Snapshot snapshot)
{
	return catalog_find_row(catalog, TriggerOidIndexId, Anum_pg_trigger_oid, trigger, snapshot);
}

static bool
is_set(Relation catalog, HeapTuple trigger, AttrNumber column)
{
	return !heap_attisnull(trigger, column, RelationGetDescr(catalog));
}

/* Returns whether the trigger has the right parent: on a partition, our trigger of the table above; else none. */
static bool
has_right_parent(Relation catalog, const FormData_pg_trigger *trigger, bool on_partition)
{
	HeapTuple	tuple;
	Form_pg_trigger parent;

	if (!OidIsValid(trigger->tgparentid) || !on_partition)
		return OidIsValid(trigger->tgparentid) == on_partition;
	if (!get_rel_relispartition(trigger->tgrelid))
		return false;
	tuple = shape_find_trigger(catalog, trigger->tgparentid, NULL);
	if (!HeapTupleIsValid(tuple))
		return false;
	parent = (Form_pg_trigger) GETSTRUCT(tuple);
	return strcmp(NameStr(parent->tgname), NameStr(trigger->tgname)) == 0 &&
		parent->tgrelid == get_partition_parent(trigger->tgrelid, true);
}

/* Returns why the trigger does not fire for each event that it should, in every session; NULL if it does. */
static const char *
firing_fault(const TriggerShape *shape, Relation catalog, HeapTuple tuple, bool is_new)
{
	Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);

	if (trigger->tgtype != shape->type)
		return "fires at another time or for other events";
	if (is_set(catalog, tuple, Anum_pg_trigger_tgqual))
		return "has a WHEN condition";
	if (trigger->tgattr.dim1 > 0)
		return "fires for UPDATE of some columns only";
	if (trigger->tgnargs > 0)
		return "has other arguments";
	if (OidIsValid(trigger->tgconstraint) || OidIsValid(trigger->tgconstrrelid) || trigger->tgdeferrable || trigger->tginitdeferred)
		return "is a constraint trigger";
	if (is_set(catalog, tuple, Anum_pg_trigger_tgoldtable) || is_set(catalog, tuple, Anum_pg_trigger_tgnewtable))
		return "has transition tables";
	if (trigger->tgenabled != TRIGGER_FIRES_ALWAYS && !is_new)
		return "is not ENABLED ALWAYS";
	return NULL;
}

const char *
shape_fault(List *rows, Relation catalog, HeapTuple tuple, bool is_new)
{
	Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);
	TriggerRole by_name = role_of_name(NameStr(trigger->tgname));
	TriggerRole by_function = shape_role_of_function(trigger->tgfoid);
	bool		on_partition = trigger->tgrelid != ((DomainRow *) linitial(rows))->relid;

	if (by_name == ROLE_NONE && by_function == ROLE_NONE)
		return NULL;
	if (by_name == ROLE_NONE)
		return "runs a function of pgcache_fence under another name";
	if (by_name != by_function)
		return "runs another function";
	if (!shape_is_wanted(rows, by_name, on_partition))
		return on_partition ? "is not one that partitions have" : "is not one that tables of this scope have";
	if (!has_right_parent(catalog, trigger, on_partition))
		return on_partition ? "is not a copy of the parent table's trigger" : "is a copy of another table's trigger";
	return firing_fault(shape_of(by_name), catalog, tuple, is_new);
}

/* -----------------------------------------------------------------------------------------------------------------
 * All triggers of a table
 * -----------------------------------------------------------------------------------------------------------------
 */

char *
shape_fault_of_table(List *rows, Oid relid)
{
	Oid			table = ((DomainRow *) linitial(rows))->relid;
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	bool		found[ROLE_AFTER + 1] = {false};
	char	   *fault = NULL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, TriggerRelidNameIndexId, true, NULL, 1, &key);
	while (fault == NULL && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);
		TriggerRole role = role_of_name(NameStr(trigger->tgname));
		const char *what = shape_fault(rows, catalog, tuple, false);

		if (what != NULL)
			fault = psprintf("Trigger \"%s\" of table \"%s\" %s.", NameStr(trigger->tgname), get_rel_name(relid), what);
		found[role] = true;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	for (TriggerRole role = ROLE_BEFORE; fault == NULL && role <= ROLE_AFTER; role++)
		if (shape_is_wanted(rows, role, relid != table) && !found[role])
			fault = psprintf("Table \"%s\" lacks the trigger \"%s\".", get_rel_name(relid), shape_of(role)->name);
	return fault;
}

/* Returns why this table, or partition, cannot have fenced rows, as a predicate ("is unlogged"); NULL if it can. */
static const char *
unfit_member(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	const char *unfit = NULL;
	Form_pg_class form;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	form = (Form_pg_class) GETSTRUCT(tuple);
	if (form->relkind == RELKIND_FOREIGN_TABLE)
		unfit = "is a foreign table";
	else if (form->relpersistence != RELPERSISTENCE_PERMANENT)
		unfit = form->relpersistence == RELPERSISTENCE_TEMP ? "is temporary" : "is unlogged";
	else if (form->relkind == RELKIND_RELATION && form->relam != HEAP_TABLE_AM_OID)
		unfit = "is not stored as a heap";
	ReleaseSysCache(tuple);
	return unfit;
}

List *
shape_members(Oid relid)
{
	List	   *members = list_make1_oid(relid);
	Relation	catalog = table_open(InheritsRelationId, AccessShareLock);

	for (int i = 0; i < list_length(members); i++)
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(list_nth_oid(members, i)));
		scan = systable_beginscan(catalog, InheritsParentIndexId, true, NULL, 1, &key);
		CHECK_FOR_INTERRUPTS();
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			Oid			child = ((Form_pg_inherits) GETSTRUCT(tuple))->inhrelid;

			/* a partition has one parent, while other children may have several and would appear twice */
			members = get_rel_relispartition(child) ? lappend_oid(members, child) : list_append_unique_oid(members, child);
		}
		systable_endscan(scan);
	}
	table_close(catalog, AccessShareLock);
	return members;
}

char *
shape_unfit_family(Oid relid)
{
	List	   *members = shape_members(relid);
	ListCell   *lc;

	if (get_rel_relkind(relid) == RELKIND_RELATION && list_length(members) > 1)
		return psprintf("Table \"%s\" has inheritance children.", get_rel_name(relid));
	foreach(lc, members)
	{
		const char *unfit = unfit_member(lfirst_oid(lc));

		if (unfit != NULL)
			return psprintf("Table \"%s\" %s.", get_rel_name(lfirst_oid(lc)), unfit);
	}
	return NULL;
}

char *
shape_fault_of_family(List *rows)
{
	Oid			table = ((DomainRow *) linitial(rows))->relid;
	char	   *fault = shape_unfit_family(table);
	ListCell   *lc;

	foreach(lc, fault == NULL ? shape_members(table) : NIL)
	{
		if (get_rel_relkind(lfirst_oid(lc)) == '\0')
			continue;			/* the table was dropped */
		fault = shape_fault_of_table(rows, lfirst_oid(lc));
		if (fault != NULL)
			break;
	}
	return fault;
}

char *
shape_fault_of_domain(const DomainRow *row)
{
	ListCell   *lc;

	foreach(lc, domain_rows_by_name(row->name))
	{
		const DomainRow *member = lfirst(lc);
		List	   *rows = OidIsValid(member->relid) ? domain_rows_by_relation(member->relid) : NIL;
		char	   *fault = rows ? shape_fault_of_family(rows) : NULL;

		if (fault != NULL)
			return fault;
	}
	return NULL;
}
