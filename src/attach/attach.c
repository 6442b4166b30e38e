/*
 * attach/attach.c
 *	  fence.attach, fence.detach, and whatever else begins or ends an attachment.
 *
 * Owns: the triggers of fenced tables, and when rows of fence.domain appear and vanish. There is one way for an
 * attachment to end: one of its triggers is dropped. fence.detach drops them; so do DROP TABLE, DROP SCHEMA, DROP
 * OWNED, DROP EXTENSION ... CASCADE and DROP COLUMN ... CASCADE of a key column. The object access hook (hooks.c) sees each.
 * attach_renew ends one without that, to begin the next at once, with the same triggers.
 *
 * All attachments of a table share its triggers, and end with them. To detach one of several takes away what the others do not need.
 *
 * The extension's own end is seen in the drop of fence.domain, which may go before the triggers.
 *
 * One trigger (the master) depends on the key columns, the version column and the unique indexes, the others on it. How they look
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
#include "catalog/pg_index.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
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
	ARG_ON_REDIS_FAILURE, ARG_PUBLISH, ARG_ADD_VERSION, ARG_CACHE_ABSENT, ARG_RESERVE, ARG_ONLY_COLUMNS
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
	/* a key without columns: all rows have it */
	if (request->key_given && row->key_columns == NIL && OidIsValid(row->relid) && strcmp(row->scope, "row") == 0)
		row->scope = pstrdup("group");
	row->cache = choice_argument(fcinfo, ARG_CACHE, "cache");
	row->columns = names_argument(fcinfo, ARG_COLUMNS, "columns");
	row->ttl = PG_ARGISNULL(ARG_TTL) ? NULL : PG_GETARG_INTERVAL_P(ARG_TTL);
	row->on_redis_failure = text_argument(fcinfo, ARG_ON_REDIS_FAILURE);
	row->publish = choice_argument(fcinfo, ARG_PUBLISH, "publish");
	request->add_version = !PG_ARGISNULL(ARG_ADD_VERSION) && PG_GETARG_BOOL(ARG_ADD_VERSION);
	row->cache_absent = !PG_ARGISNULL(ARG_CACHE_ABSENT) && PG_GETARG_BOOL(ARG_CACHE_ABSENT);
	row->reserve = text_argument(fcinfo, ARG_RESERVE);
	row->only_columns = !PG_ARGISNULL(ARG_ONLY_COLUMNS) && PG_GETARG_BOOL(ARG_ONLY_COLUMNS);
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

/*
 * Records that one object depends on another, unless that is recorded already. This very command may have recorded it for another attachment.
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
	Oid			master = master_trigger(row->relid);
	Relation	rel = relation_open(row->relid, NoLock);

	check_again(&request, row, rel);
	relation_close(rel, NoLock);
	if (OidIsValid(master))
		attach_record_dependencies(&request, master, InvalidOid, InvalidOid);
}

/*
 * The unique index on exactly the key columns, not necessarily valid yet. Unlike domain_key_index it opens none: a
 * parallel restore attaches indexes of partitions meanwhile, and that locks index and table in the other order.
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

/* Records the dependencies of a restored attachment, as far as its triggers exist. */
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
		broken = broken || request.key_attnums[n++] == InvalidAttrNumber;	/* the first write raises the error that says how */
	}
	request.version_attnum = row->version_column ? get_attnum(row->relid, row->version_column) : InvalidAttrNumber;
	if (strcmp(row->scope, "group") != 0)
		request.key_index = restored_key_index(&request, rel);
	relation_close(rel, NoLock);
	if (broken)
		return;
	if (OidIsValid(after))
		attach_record_dependencies(&request, after, truncate,
								   get_trigger_oid(row->relid, shape_of(ROLE_BEFORE)->name, true));
}

/*
 * Creates the triggers that these attachments need and the table lacks. Drops those that it has and they do not need; our hooks let this
 * pass. `first` says that the table had no attachments before. A trigger that has the name of one of ours is then somebody else's. The
 * caller holds ShareRowExclusiveLock.
 */
static void
shape_triggers(Oid relid, List *rows, bool first)
{
	attach_in_progress = true;
	PG_TRY();
	{
		for (TriggerRole role = ROLE_BEFORE; role <= ROLE_AFTER; role++)
		{
			bool		wanted = shape_is_wanted(rows, role, false);
			bool		there = !first && OidIsValid(get_trigger_oid(relid, shape_of(role)->name, true));

			if (wanted && !there)
				(void) create_trigger(relid, role);
			else if (there && !wanted)
				run(psprintf("DROP TRIGGER %s ON %s", shape_of(role)->name, quoted_table(relid)));
		}
	}
	PG_FINALLY();
	{
		attach_in_progress = false;
	}
	PG_END_TRY();
}

/* Records what a new attachment rests on. */
static void
bind_triggers(const AttachRequest *request)
{
	Oid			relid = request->row.relid;

	attach_record_dependencies(request, master_trigger(relid), get_trigger_oid(relid, shape_of(ROLE_BEFORE)->name, true),
							   get_trigger_oid(relid, shape_of(ROLE_TRUNCATE)->name, true));
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

/* Sets the default name, and checks it. Nobody else can take the name until the transaction ends. */
static void
choose_name(DomainRow *row)
{
	if (row->name == NULL)
		row->name = domain_table_name(row->relid);
	if (row->name[0] == '\0' || strlen(row->name) >= NAMEDATALEN || strlen(utf8_of_string(row->name)) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("domain name \"%s\" is %s", row->name, row->name[0] == '\0' ? "empty" : "too long"),
				 errdetail("A name has 1 to %d bytes of UTF-8.", NAMEDATALEN - 1),
				 errhint("Pass another one with domain => '...'.")));
	domain_lock_name(row->name);
}

/* The rows of the domain of that name. If it is a group of other tables, this table may join it. */
static List *
rows_to_join(const DomainRow *row)
{
	List	   *members = domain_rows_by_name(row->name);
	ListCell   *lc;

	foreach(lc, members)
	{
		const DomainRow *member = lfirst(lc);

		if (!OidIsValid(row->relid) || member->relid == row->relid ||
			strcmp(row->scope, "group") != 0 || strcmp(member->scope, "group") != 0)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("fence domain \"%s\" already exists", row->name),
					 errhint("Pass another name with domain => '...'.")));
	}
	return members;
}

/* A caller who names no domain means the table's own domain, which exists already. */
static void
check_own_name_free(Relation rel, const DomainRow *row, List *others)
{
	char	   *own = domain_table_name(RelationGetRelid(rel));
	ListCell   *lc;

	foreach(lc, others)
		if (row->name == NULL && strcmp(((DomainRow *) lfirst(lc))->name, own) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table \"%s\" is already attached, as domain \"%s\"", RelationGetRelationName(rel), own),
					 errhint("Use fence.detach first to change how it is fenced; or pass domain => '...', to fence it by another key as well.")));
}

/* Checks what the attachments of one table must have in common. */
static void
check_beside(Relation rel, const DomainRow *row, List *others)
{
	const char *table = RelationGetRelationName(rel);
	ListCell   *lc;

	if (list_length(others) >= MAX_ATTACHMENTS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("table \"%s\" is attached %d times, which is the limit", table, MAX_ATTACHMENTS)));
	foreach(lc, others)
	{
		DomainRow  *other = lfirst(lc);

		if (strcmp(row->scope, "manual") == 0 || strcmp(other->scope, "manual") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("table \"%s\" is attached already, and scope => 'manual' goes with no other attachment", table),
					 errdetail("The application would give versions, and so would the triggers of the other one."),
					 errhint("Detach domain \"%s\" first, or attach both with scope 'row' or 'group'.", other->name)));
		if (row->version_column != NULL && other->version_column != NULL && strcmp(row->version_column, other->version_column) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("table \"%s\" has its versions in column \"%s\", for domain \"%s\"", table, other->version_column, other->name),
					 errdetail("One version column serves all attachments of a table."),
					 errhint("Pass version => %s.", quote_literal_cstr(other->version_column))));
	}
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
	CheckTableNotInUse(rel, "fence.attach");
	attach_check_table(rel);
	request->others = domain_rows_by_relation(relid);
	check_own_name_free(rel, &request->row, request->others);
	choose_name(&request->row);
	request->members = rows_to_join(&request->row);
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
	check_beside(rel, &request->row, request->others);
	if (request->members != NIL)
		attach_check_join(request, rel);
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
		if (request.others == NIL)
			drop_triggers(request.row.relid);	/* a restore has lost their attachment */
		shape_triggers(request.row.relid, lappend(list_copy(request.others), &request.row), request.others == NIL);
		bind_triggers(&request);
	}
	else
	{
		request.row.version_column = NULL;
		choose_name(&request.row);
		(void) rows_to_join(&request.row);
	}
	if (request.members != NIL)
	{
		/* the cached values were made without this table */
		request.row.id = ((DomainRow *) linitial(request.members))->id;
		ledger_apply_domain(domain_stub(&request.row));
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

/* A domain of several tables goes on with the others, and ends with the last. */
bool
attach_end(const DomainRow *row)
{
	domain_lock_name(row->name);
	if (list_length(domain_rows_by_name(row->name)) > 1)
	{
		ledger_apply_domain(domain_stub(row));
		return domain_row_delete(row);
	}
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
	if (list_length(domain_rows_by_name(row->name)) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the keys of domain \"%s\" would have another text in this table than in its other tables", row->name),
				 errhint("Use fence.detach_domain first, and attach its tables again.")));
	(void) end_now(row);
	row->id = 0;
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

/* Ends one attachment. The others of the table keep their triggers and the objects that they depend on. */
static void
detach_one(const DomainRow *row, List *others)
{
	ListCell   *lc;

	(void) end_now(row);
	shape_triggers(row->relid, others, false);
	attach_loosen(row->relid);
	foreach(lc, others)
		attach_restore_dependencies(lfirst(lc));
}

/* Ends all attachments, with their triggers. Rows of fence.domain that a restore or a superuser has left without triggers end too. */
static void
detach_all(Oid relid)
{
	bool		any = drop_triggers(relid);
	List	   *rows = domain_rows_by_relation(relid);
	ListCell   *lc;

	if (rows == NIL && !any)
		raise_not_attached(relid);
	foreach(lc, rows)
		(void) end_now(lfirst(lc));
}

static char *
names_of(List *rows)
{
	StringInfoData names;
	ListCell   *lc;

	initStringInfo(&names);
	foreach(lc, rows)
		appendStringInfo(&names, "%s\"%s\"", lc == list_head(rows) ? "" : ", ", ((DomainRow *) lfirst(lc))->name);
	return names.data;
}

/* Returns the attachment that the caller means. NULL means all of them, or triggers that exist without an attachment. */
static DomainRow *
choose_attachment(Oid relid, List *rows, const char *name, bool all)
{
	ListCell   *lc;

	if (name == NULL && !all && list_length(rows) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_AMBIGUOUS_PARAMETER),
				 errmsg("table \"%s\" is attached %d times", get_rel_name(relid), list_length(rows)),
				 errdetail("Its domains are %s.", names_of(rows)),
				 errhint("Name one with domain => '...', or pass all_domains => true.")));
	if (name == NULL)
		return NULL;
	foreach(lc, rows)
		if (strcmp(((DomainRow *) lfirst(lc))->name, name) == 0)
			return lfirst(lc);
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("table \"%s\" is not attached as domain \"%s\"", get_rel_name(relid), name),
			 rows ? errdetail("Its domains are %s.", names_of(rows)) : 0,
			 errhint("View fence.domains lists what is fenced in this database.")));
	return NULL;				/* not reached */
}

/* Checks that the caller owns the table, locks it, and checks that no statement of this session uses it. */
static void
lock_for_detach(Oid relid)
{
	Relation	rel;

	attach_check_owner(relid);
	rel = relation_open(relid, AccessExclusiveLock);
	attach_check_owner(relid);
	CheckTableNotInUse(rel, "fence.detach");
	relation_close(rel, NoLock);
}

static void
detach(Oid relid, const char *name, bool all)
{
	List	   *rows;
	DomainRow  *row;
	const char *version = NULL;
	ListCell   *lc;

	lock_for_detach(relid);
	rows = domain_rows_by_relation(relid);
	row = choose_attachment(relid, rows, name, all);
	foreach(lc, row ? list_make1(row) : rows)
		if (((DomainRow *) lfirst(lc))->version_added)
			version = ((DomainRow *) lfirst(lc))->version_column;
	if (row != NULL && list_length(rows) > 1)
	{
		rows = list_delete_ptr(list_copy(rows), row);
		detach_one(row, rows);
	}
	else
		detach_all(relid);
	if (version != NULL)
		ereport(NOTICE,
				(errmsg("column \"%s\" of table \"%s\" stays", version, get_rel_name(relid)),
				 errdetail("fence.attach has added it."),
				 errhint("Use ALTER TABLE ... DROP COLUMN if nothing else reads it.")));
}

/* The function is not granted to PUBLIC. Each role that may call it may end a domain without a table. Other domains need the tables' owner. */
Datum
fence_detach_domain(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	List	   *rows;
	ListCell   *lc;

	shared_require();
	rows = domain_rows_by_name(name);
	if (rows == NIL)
		raise_no_domain(name);
	foreach(lc, rows)
	{
		const DomainRow *row = lfirst(lc);

		if (OidIsValid(row->relid))
			detach(row->relid, name, false);
		else if (!end_now(row))
			raise_no_domain(name);
	}
	PG_RETURN_VOID();
}

Datum
fence_detach(PG_FUNCTION_ARGS)
{
	shared_require();
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the table must not be null"),
				 errhint("fence.detach_domain ends a domain without a table.")));
	detach(PG_GETARG_OID(0), text_argument(fcinfo, 1), !PG_ARGISNULL(2) && PG_GETARG_BOOL(2));
	PG_RETURN_VOID();
}
