/*
 * attach/attach.c
 *	  fence.attach, fence.detach, and whatever else begins or ends an attachment.
 *
 * Owns: the triggers of fenced tables, and when rows of fence.domain appear and vanish. There is one way for an
 * attachment to end: one of its triggers is dropped. fence.detach drops them; so do DROP TABLE, DROP SCHEMA, DROP
 * OWNED, DROP EXTENSION ... CASCADE and DROP COLUMN ... CASCADE of a key column. The object access hook (hooks.c) sees each.
 * attach_renew ends one without that, to begin the next at once, with the same triggers.
 *
 * The extension's own end is seen in the drop of fence.domain, which may go before the triggers.
 *
 * One trigger (the master) depends on the key columns, the version column and the unique index, the others on it. How they look
 * is in shape.c.
 *
 * Locks: attach takes ShareRowExclusiveLock on the table, so that no writer is under way when the triggers appear;
 * detach takes what DROP TRIGGER takes. All are kept to the end of the transaction.
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
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "miscadmin.h"
#include "attach/attach.h"
#include "attach/attach_check.h"
#include "base/compat.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/catalog.h"
#include "domain/domain.h"
#include "domain/shape.h"
#include "domain/tombstone.h"
#include "send/ledger.h"

PG_FUNCTION_INFO_V1(fence_attach);
PG_FUNCTION_INFO_V1(fence_detach);
PG_FUNCTION_INFO_V1(fence_detach_domain);

bool		attach_in_progress = false;

/* -----------------------------------------------------------------------------------------------------------------
 * Arguments of fence.attach
 * -----------------------------------------------------------------------------------------------------------------
 */

/* In the order of the install script */
enum
{
	ARG_RELATION, ARG_KEY, ARG_VERSION, ARG_DOMAIN, ARG_TAG, ARG_SCOPE, ARG_CACHE, ARG_COLUMNS, ARG_TTL,
	ARG_ON_REDIS_FAILURE, ARG_PUBLISH, ARG_ADD_VERSION, ARG_CACHE_ABSENT, ARG_RESERVE
};

static char *
text_argument(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

static char *
choice_argument(FunctionCallInfo fcinfo, int i, const char *name)
{
	if (PG_ARGISNULL(i))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
	return text_to_cstring(PG_GETARG_TEXT_PP(i));
}

static List *
names_argument(FunctionCallInfo fcinfo, int i, const char *name)
{
	List	   *names = NIL;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	if (PG_ARGISNULL(i))
		return NIL;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(i), NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &elements, &nulls, &n);
	for (int e = 0; e < n; e++)
	{
		if (nulls[e])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not contain nulls", name)));
		names = lappend(names, pstrdup(NameStr(*DatumGetName(elements[e]))));
	}
	return names;
}

static void
read_arguments(FunctionCallInfo fcinfo, AttachRequest *request)
{
	DomainRow  *row = &request->row;

	row->relid = PG_ARGISNULL(ARG_RELATION) ? InvalidOid : PG_GETARG_OID(ARG_RELATION);
	request->key_given = !PG_ARGISNULL(ARG_KEY);
	row->key_columns = names_argument(fcinfo, ARG_KEY, "key");
	row->version_column = PG_ARGISNULL(ARG_VERSION) ? NULL : pstrdup(NameStr(*PG_GETARG_NAME(ARG_VERSION)));
	row->name = text_argument(fcinfo, ARG_DOMAIN);
	row->tag = text_argument(fcinfo, ARG_TAG);
	row->scope = choice_argument(fcinfo, ARG_SCOPE, "scope");
	row->cache = choice_argument(fcinfo, ARG_CACHE, "cache");
	row->columns = names_argument(fcinfo, ARG_COLUMNS, "columns");
	row->ttl = PG_ARGISNULL(ARG_TTL) ? NULL : PG_GETARG_INTERVAL_P(ARG_TTL);
	row->on_redis_failure = text_argument(fcinfo, ARG_ON_REDIS_FAILURE);
	row->publish = choice_argument(fcinfo, ARG_PUBLISH, "publish");
	request->add_version = !PG_ARGISNULL(ARG_ADD_VERSION) && PG_GETARG_BOOL(ARG_ADD_VERSION);
	row->cache_absent = !PG_ARGISNULL(ARG_CACHE_ABSENT) && PG_GETARG_BOOL(ARG_CACHE_ABSENT);
	row->reserve = text_argument(fcinfo, ARG_RESERVE);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Tables and statements
 * -----------------------------------------------------------------------------------------------------------------
 */

void
attach_check_owner(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (!object_ownercheck(RelationRelationId, relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, name);
}

static void
raise_not_attached(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("table \"%s\" is not attached", get_rel_name(relid)),
			 errhint("View fence.domains lists what is.")));
}

/* Runs one statement with the rights of the caller. */
static void
run(const char *sql)
{
	if (SPI_connect() != SPI_OK_CONNECT || SPI_execute(sql, false, 0) != SPI_OK_UTILITY || SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not execute \"%s\"", sql);
}

static char *
quoted_table(Oid relid)
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
	char	   *table = quoted_table(relid);

	run(psprintf("CREATE TRIGGER %s %s ON %s FOR EACH %s EXECUTE FUNCTION fence.%s",
				 shape->name, shape->timing, table, shape->level, shape->call));
	run(psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", table, shape->name));
	return get_trigger_oid(relid, shape->name, false);
}

/* Records that the one depends on the other, unless that is on record. */
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
	scan = systable_beginscan(catalog, DependDependerIndexId, true, NULL, 2, keys);
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
 * The other trigger, if there is one, goes with the master. Without it too: a restore with --clean drops one after the other, and
 * the first of them ends the attachment.
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

/* Lets the master's end be that of the others, and guards what the attachment rests on. What is on record stays. */
void
attach_record_dependencies(const AttachRequest *request, Oid master, Oid other, Oid another)
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

/* The one whose end is that of the others. */
static Oid
master_trigger(const DomainRow *row)
{
	return get_trigger_oid(row->relid, shape_of(ROLE_AFTER)->name, true);
}

void
attach_loosen(const DomainRow *row)
{
	Oid			master = master_trigger(row);

	if (!OidIsValid(master))
		return;
	/* the trigger goes with its table by a dependency of another type */
	(void) deleteDependencyRecordsForClass(TriggerRelationId, master, RelationRelationId, DEPENDENCY_NORMAL);
	(void) deleteDependencyRecordsForClass(TriggerRelationId, master, ConstraintRelationId, DEPENDENCY_NORMAL);
	CommandCounterIncrement();
}

/* Asks of the table of an attachment once more what fence.attach has asked of its key and its version. The caller has locked it. */
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
	Oid			master = master_trigger(row);
	Relation	rel = relation_open(row->relid, NoLock);

	check_again(&request, row, rel);
	relation_close(rel, NoLock);
	if (OidIsValid(master))
		attach_record_dependencies(&request, master, InvalidOid, InvalidOid);
}

/* Makes all that the domain is to have; the hooks let that pass. The caller holds ShareRowExclusiveLock. */
static void
create_triggers(const AttachRequest *request)
{
	Oid			made[ROLE_AFTER + 1] = {InvalidOid};

	attach_in_progress = true;
	PG_TRY();
	{
		for (TriggerRole role = ROLE_BEFORE; role <= ROLE_AFTER; role++)
			if (shape_is_wanted(&request->row, role, false))
				made[role] = create_trigger(request->row.relid, role);
	}
	PG_FINALLY();
	{
		attach_in_progress = false;
	}
	PG_END_TRY();
	attach_record_dependencies(request, made[ROLE_AFTER], made[ROLE_BEFORE], made[ROLE_TRUNCATE]);
}

/* Name of one of the table's triggers of ours, the master if it is there; NULL if there is none. */
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

/* Drops our triggers; the hook ends the domain. Returns whether there was one. */
static bool
drop_triggers(Oid relid)
{
	bool		any = false;
	char	   *trigger;

	while ((trigger = find_our_trigger(relid)) != NULL)
	{
		run(psprintf("DROP TRIGGER %s ON %s", quote_identifier(trigger), quoted_table(relid)));
		any = true;
	}
	return any;
}

/* -----------------------------------------------------------------------------------------------------------------
 * attach
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Sets the default name, and checks that it is free. */
static void
choose_name(DomainRow *row)
{
	if (row->name == NULL)
	{
		const char *schema = get_namespace_name(get_rel_namespace(row->relid));
		const char *table = get_rel_name(row->relid);

		row->name = strcmp(schema, "public") == 0 ? pstrdup(table) : psprintf("%s.%s", schema, table);
	}
	if (row->name[0] == '\0' || strlen(row->name) >= NAMEDATALEN || strlen(utf8_of_string(row->name)) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("domain name \"%s\" is %s", row->name, row->name[0] == '\0' ? "empty" : "too long"),
				 errdetail("A name has 1 to %d bytes of UTF-8.", NAMEDATALEN - 1),
				 errhint("Pass another one with domain => '...'.")));
	if (domain_row_by_name(row->name) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("fence domain \"%s\" already exists", row->name),
				 errhint("Pass another name with domain => '...'.")));
}

static void
check_not_attached(Relation rel)
{
	DomainRow  *row = domain_row_by_relation(RelationGetRelid(rel));

	if (row != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("table \"%s\" is already attached, as domain \"%s\"", RelationGetRelationName(rel), row->name),
				 errhint("Use fence.detach first to change how it is fenced.")));
}

/* Checks the table and what is asked of it; adds the version column if it is wanted and missing. */
static void
prepare_table(AttachRequest *request)
{
	Oid			relid = request->row.relid;
	Relation	rel;

	attach_check_owner(relid);
	rel = relation_open(relid, ShareRowExclusiveLock);
	attach_check_owner(relid);	/* it may have changed while the lock was waited for */
	attach_check_table(rel);
	check_not_attached(rel);
	choose_name(&request->row);
	attach_check_key(request, rel);
	attach_check_columns(request, rel);
	if (!attach_check_version(request, rel))
	{
		/* ALTER TABLE wants nobody else to have it open; a constant default rewrites nothing */
		relation_close(rel, NoLock);
		run(psprintf("ALTER TABLE %s ADD COLUMN %s pg_catalog.int8 NOT NULL DEFAULT 0",
					 quoted_table(relid), quote_identifier(request->row.version_column)));
		request->row.version_added = true;
		rel = relation_open(relid, NoLock);
		(void) attach_check_version(request, rel);
	}
	relation_close(rel, NoLock);
}

Datum
fence_attach(PG_FUNCTION_ARGS)
{
	AttachRequest request = {0};

	shared_require();
	read_arguments(fcinfo, &request);
	attach_check_request(&request);
	if (OidIsValid(request.row.relid))
	{
		prepare_table(&request);
		drop_triggers(request.row.relid);	/* of an attachment that a restore lost */
		create_triggers(&request);
	}
	else
	{
		request.row.version_column = NULL;
		choose_name(&request.row);
	}
	/* the row comes last: before it, the hook knows of no domain that these triggers could change */
	domain_row_insert(&request.row);
	domain_require_shape(&request.row);
	ledger_catalog_changed();
	PG_RETURN_TEXT_P(cstring_to_text(request.row.name));
}

/* -----------------------------------------------------------------------------------------------------------------
 * The end of an attachment
 * -----------------------------------------------------------------------------------------------------------------
 */

void
attach_announce_end(const DomainRow *row)
{
	ledger_end_domain(domain_stub(row));
}

bool
attach_end(const DomainRow *row)
{
	attach_announce_end(row);
	if (!domain_row_delete(row))
		return false;
	tombstone_forget_domain(row->id);
	return true;
}

/* The same outside of a hook: a second call in the same statement sees it. */
static bool
end_now(const DomainRow *row)
{
	bool		ended = attach_end(row);

	CommandCounterIncrement();
	return ended;
}

void
attach_renew(DomainRow *row)
{
	(void) end_now(row);
	domain_row_insert(row);
}

static void
raise_no_domain(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("fence domain \"%s\" does not exist", name),
			 errhint("View fence.domains lists what is fenced in this database.")));
}

/* Whoever may call it (it is not granted to PUBLIC) may end a domain without a table; one with a table, its owner. */
Datum
fence_detach_domain(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	DomainRow  *row;

	shared_require();
	row = domain_row_by_name(name);
	if (row == NULL)
		raise_no_domain(name);
	if (OidIsValid(row->relid))
		(void) DirectFunctionCall1(fence_detach, ObjectIdGetDatum(row->relid));
	else if (!end_now(row))
		raise_no_domain(name);
	PG_RETURN_VOID();
}

Datum
fence_detach(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	DomainRow  *attached;
	DomainRow  *row;
	bool		any;

	shared_require();
	attach_check_owner(relid);
	LockRelationOid(relid, AccessExclusiveLock);
	attach_check_owner(relid);
	attached = domain_row_by_relation(relid);
	any = drop_triggers(relid);

	/* what a restore or a superuser left without triggers */
	row = domain_row_by_relation(relid);
	if (row != NULL)
		(void) end_now(row);
	else if (!any)
		raise_not_attached(relid);
	if (attached != NULL && attached->version_added)
		ereport(NOTICE,
				(errmsg("column \"%s\" of table \"%s\" stays", attached->version_column, get_rel_name(relid)),
				 errdetail("fence.attach has added it."),
				 errhint("Use ALTER TABLE ... DROP COLUMN if nothing else reads it.")));
	PG_RETURN_VOID();
}
