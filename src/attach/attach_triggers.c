/*
 * attach/attach_triggers.c
 *	  The triggers of fenced tables, and what they depend on; see attach_triggers.h.
 *
 * Owns: which triggers a fenced table has, and their rows in pg_depend. How each trigger looks is in shape.c.
 *
 * All attachments of a table share its triggers. One trigger, the master, depends on the key columns, the version
 * column and the unique indexes of all attachments. The other triggers depend on the master.
 *
 * Takes no locks on the table itself: the caller has locked it. Never changes rows of fence.domain.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "attach/attach_triggers.h"
#include "base/compat.h"
#include "domain/shape.h"

bool		attach_in_progress = false;

/* -----------------------------------------------------------------------------------------------------------------
 * Statements
 * -----------------------------------------------------------------------------------------------------------------
 */

void
attach_run(const char *sql)
{
	if (SPI_connect() != SPI_OK_CONNECT || SPI_execute(sql, false, 0) != SPI_OK_UTILITY || SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not execute \"%s\"", sql);
}

char *
attach_quoted_table(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Triggers
 * -----------------------------------------------------------------------------------------------------------------
 */

static Oid
create_trigger(Oid relid, TriggerRole role)
{
	const TriggerShape *shape = shape_of(role);
	char	   *table = attach_quoted_table(relid);

	attach_run(psprintf("CREATE TRIGGER %s %s ON %s FOR EACH %s EXECUTE FUNCTION fence.%s",
				 shape->name, shape->timing, table, shape->level, shape->call));
	attach_run(psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", table, shape->name));
	return get_trigger_oid(relid, shape->name, false);
}

/*
 * Records that one object depends on another, unless that is on record already: this very command may have recorded it
 * for another attachment.
 */
static void
depend(const ObjectAddress *object, const ObjectAddress *on, DependencyType type)
{
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	bool		found = false;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(object->classId));
	ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(object->objectId));
	scan = systable_beginscan(catalog, DependDependerIndexId, true, SnapshotSelf, 2, keys);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		found = form->refclassid == on->classId && form->refobjid == on->objectId &&
			form->refobjsubid == on->objectSubId;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	if (!found)
		recordDependencyOn(object, on, type);
}

static void
depend_on_column(const ObjectAddress *trigger, Oid relid, AttrNumber attnum)
{
	ObjectAddress column;

	ObjectAddressSubSet(column, RelationRelationId, relid, attnum);
	depend(trigger, &column, DEPENDENCY_NORMAL);
}

/*
 * Makes the other trigger, if there is one, depend on the master with DEPENDENCY_AUTO. So DROP of the master drops it
 * too, but it can also be dropped alone: pg_restore --clean drops the triggers one after the other, and the first drop
 * ends the attachment.
 */
static void
bind_to_master(const ObjectAddress *master, Oid other)
{
	ObjectAddress address;

	if (!OidIsValid(other))
		return;
	ObjectAddressSet(address, TriggerRelationId, other);
	depend(&address, master, DEPENDENCY_AUTO);
}

/*
 * Makes the master depend on the attachment's columns and index, and the other triggers (or InvalidOid) on the master.
 */
static void
record_dependencies(const AttachRequest *request, Oid master, Oid other, Oid another)
{
	ObjectAddress trigger;
	ObjectAddress address;
	Oid			constraint;

	ObjectAddressSet(trigger, TriggerRelationId, master);
	for (int i = 0; i < list_length(request->row.key_columns); i++)
		depend_on_column(&trigger, request->row.relid, request->key_attnums[i]);
	if (request->version_attnum != InvalidAttrNumber)
		depend_on_column(&trigger, request->row.relid, request->version_attnum);
	if (OidIsValid(request->key_index))
	{
		constraint = get_index_constraint(request->key_index);
		if (OidIsValid(constraint))
			ObjectAddressSet(address, ConstraintRelationId, constraint);
		else
			ObjectAddressSet(address, RelationRelationId, request->key_index);
		depend(&trigger, &address, DEPENDENCY_NORMAL);
	}
	bind_to_master(&trigger, other);
	bind_to_master(&trigger, another);
}

/* Returns the trigger on which the others depend; InvalidOid if it does not exist. */
static Oid
master_trigger(Oid relid)
{
	return get_trigger_oid(relid, shape_of(ROLE_AFTER)->name, true);
}

void
attach_loosen(Oid relid)
{
	Oid			master = master_trigger(relid);

	if (!OidIsValid(master))
		return;
	/* the dependency on the table itself is of type DEPENDENCY_AUTO, and stays */
	(void) deleteDependencyRecordsForClass(TriggerRelationId, master, RelationRelationId, DEPENDENCY_NORMAL);
	(void) deleteDependencyRecordsForClass(TriggerRelationId, master, ConstraintRelationId, DEPENDENCY_NORMAL);
	CommandCounterIncrement();
}

/* Repeats the checks of fence.attach for the key and the version column. The caller has locked the table. */
static void
check_again(AttachRequest *request, const DomainRow *row, Relation rel)
{
	request->row = *row;
	request->key_given = true;
	attach_check_key(request, rel);
	(void) attach_check_version(request, rel);
}

void
attach_fasten(const DomainRow *row)
{
	AttachRequest request = {0};
	Oid			master = master_trigger(row->relid);
	Relation	rel = relation_open(row->relid, NoLock);

	check_again(&request, row, rel);
	relation_close(rel, NoLock);
	if (OidIsValid(master))
		record_dependencies(&request, master, InvalidOid, InvalidOid);
}

/*
 * Returns the unique index on exactly the key columns, even if it is not valid yet; InvalidOid if there is none. Unlike
 * domain_key_index it opens no index: a parallel restore may be attaching indexes of partitions, and that locks index
 * and table in the opposite order.
 */
static Oid
restored_key_index(const AttachRequest *request, Relation rel)
{
	int			nkeys = list_length(request->row.key_columns);
	Bitmapset  *wanted = NULL;
	Oid			found = InvalidOid;
	ListCell   *lc;

	for (int i = 0; i < nkeys; i++)
		wanted = bms_add_member(wanted, request->key_attnums[i]);
	foreach(lc, RelationGetIndexList(rel))
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_index form;
		Bitmapset  *indexed = NULL;

		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_index) GETSTRUCT(tuple);
		for (int i = 0; i < form->indnkeyatts; i++)
			indexed = bms_add_member(indexed, Max(form->indkey.values[i], 0));
		if (form->indisunique && form->indimmediate && form->indnkeyatts == nkeys && bms_equal(wanted, indexed) &&
			heap_attisnull(tuple, Anum_pg_index_indpred, NULL))
			found = lfirst_oid(lc);
		ReleaseSysCache(tuple);
		if (OidIsValid(found))
			break;
	}
	return found;
}

void
attach_restore_dependencies(const DomainRow *row)
{
	Relation	rel = try_relation_open(row->relid, AccessShareLock);
	AttachRequest request = {.row = *row};
	Oid			after = get_trigger_oid(row->relid, shape_of(ROLE_AFTER)->name, true);
	Oid			truncate = get_trigger_oid(row->relid, shape_of(ROLE_TRUNCATE)->name, true);
	bool		broken = false;
	int			n = 0;
	ListCell   *lc;

	if (rel == NULL)
		return;
	request.key_attnums = palloc(sizeof(AttrNumber) * Max(list_length(row->key_columns), 1));
	foreach(lc, row->key_columns)
	{
		request.key_attnums[n] = get_attnum(row->relid, lfirst(lc));
		broken = broken || request.key_attnums[n++] == InvalidAttrNumber;	/* the first write raises the error */
	}
	request.version_attnum = row->version_column ? get_attnum(row->relid, row->version_column) : InvalidAttrNumber;
	if (strcmp(row->scope, "group") != 0)
		request.key_index = restored_key_index(&request, rel);
	relation_close(rel, NoLock);
	if (broken)
		return;
	if (OidIsValid(after))
		record_dependencies(&request, after, truncate,
							get_trigger_oid(row->relid, shape_of(ROLE_BEFORE)->name, true));
}

void
attach_shape_triggers(Oid relid, List *rows, bool first)
{
	attach_in_progress = true;	/* the object access hook then lets these changes pass */
	PG_TRY();
	{
		for (TriggerRole role = ROLE_BEFORE; role <= ROLE_AFTER; role++)
		{
			bool		wanted = shape_is_wanted(rows, role, false);
			bool		there = !first && OidIsValid(get_trigger_oid(relid, shape_of(role)->name, true));

			if (wanted && !there)
				(void) create_trigger(relid, role);
			else if (there && !wanted)
				attach_run(psprintf("DROP TRIGGER %s ON %s", shape_of(role)->name, attach_quoted_table(relid)));
		}
	}
	PG_FINALLY();
	{
		attach_in_progress = false;
	}
	PG_END_TRY();
}

void
attach_bind_triggers(const AttachRequest *request)
{
	Oid			relid = request->row.relid;

	record_dependencies(request, master_trigger(relid), get_trigger_oid(relid, shape_of(ROLE_BEFORE)->name, true),
						get_trigger_oid(relid, shape_of(ROLE_TRUNCATE)->name, true));
}

/* Returns the name of one of our triggers of the table, that of the master if it exists; NULL if the table has none. */
static char *
find_our_trigger(Oid relid)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	TriggerRole best = ROLE_NONE;
	char	   *name = NULL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, TriggerRelidNameIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);
		TriggerRole role = shape_role_of_function(form->tgfoid);

		if (role > best)
		{
			best = role;
			name = pstrdup(NameStr(form->tgname));
		}
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return name;
}

bool
attach_drop_triggers(Oid relid)
{
	bool		any = false;
	char	   *trigger;

	/* to drop the master drops the others too, so look for the next one each time */
	while ((trigger = find_our_trigger(relid)) != NULL)
	{
		attach_run(psprintf("DROP TRIGGER %s ON %s", quote_identifier(trigger), attach_quoted_table(relid)));
		any = true;
	}
	return any;
}
