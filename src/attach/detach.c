/*
 * attach/detach.c
 *	  The SQL functions fence.detach and fence.detach_domain, and whatever else ends an attachment; see detach.h.
 *
 * Owns: when rows of fence.domain vanish. An attachment ends when one of its table's triggers is dropped: by DROP TABLE,
 * DROP SCHEMA, DROP OWNED, DROP EXTENSION ... CASCADE, or DROP TYPE ... CASCADE of a key column's type. The object access
 * hook (hooks.c) sees each of these, tells the caller, and calls detach_end. fence.detach ends the attachments first and
 * then drops the triggers, of which one of several attachments leaves those that the others need. follow.c does the same
 * if a statement has made a table unfit for an attachment. detach_renew keeps the triggers and begins the next attachment
 * at once.
 *
 * DROP EXTENSION may drop fence.domain before the triggers. The hook sees the drop of that table.
 *
 * Locks: fence.detach takes AccessExclusiveLock on the table, as DROP TRIGGER does, until the end of the transaction.
 * The end of each attachment locks the domain's name. Never waits for Redis: COMMIT tells it.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "commands/tablecmds.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "attach/attach_check.h"
#include "attach/attach_triggers.h"
#include "attach/detach.h"
#include "attach/ended.h"
#include "base/shared.h"
#include "domain/catalog.h"
#include "domain/domain.h"
#include "domain/suggestion.h"
#include "domain/tombstone.h"
#include "send/ledger.h"

PG_FUNCTION_INFO_V1(fence_detach);
PG_FUNCTION_INFO_V1(fence_detach_domain);

/* -----------------------------------------------------------------------------------------------------------------
 * The end of an attachment
 * -----------------------------------------------------------------------------------------------------------------
 */

void
detach_announce(const DomainRow *row)
{
	ledger_end_domain(domain_stub(row));
}

/* A domain of several tables goes on without this one, and ends with the last. */
bool
detach_end(const DomainRow *row)
{
	domain_lock_name(row->name);
	if (list_length(domain_rows_by_name(row->name)) > 1)
	{
		ledger_apply_domain(domain_stub(row));
		return domain_row_delete(row);
	}
	detach_announce(row);
	if (!domain_row_delete(row))
		return false;
	tombstone_forget_domain(row->id);
	return true;
}

/*
 * Calls detach_end outside of hooks, where the command counter may be incremented: a second call in the same statement
 * then sees the end.
 */
static bool
end_now(const DomainRow *row)
{
	bool		ended = detach_end(row);

	CommandCounterIncrement();
	return ended;
}

void
detach_renew(DomainRow *row)
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

/* -----------------------------------------------------------------------------------------------------------------
 * fence.detach and fence.detach_domain
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
raise_not_attached(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("table \"%s\" is not attached", get_rel_name(relid)),
			 errhint("View fence.domains lists the attached tables.")));
}

static void
raise_no_domain(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("fence domain \"%s\" does not exist", name),
			 errhint("%s", suggestion("domain", name, "View fence.domains lists what is fenced in this database."))));
}

/* Ends one attachment. The table's other attachments keep the triggers that they need, and their dependencies. */
static void
detach_one(const DomainRow *row, List *others)
{
	ListCell   *lc;

	(void) end_now(row);
	attach_shape_triggers(row->relid, others, false);
	attach_loosen(row->relid);
	foreach(lc, others)
		attach_restore_dependencies(lfirst(lc));
}

/*
 * Ends all attachments of the table, and drops their triggers. Also deletes rows of fence.domain that a restore or a
 * superuser has left without triggers.
 */
static void
detach_all(Oid relid)
{
	List	   *rows = domain_rows_by_relation(relid);
	ListCell   *lc;

	/* the rows go first: the object access hook then finds no attachment that would end unnoticed */
	foreach(lc, rows)
		(void) end_now(lfirst(lc));
	if (!attach_drop_triggers(relid) && rows == NIL)
		raise_not_attached(relid);
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

/*
 * Returns the attachment that the caller means. NULL means all of them, or only triggers that exist without an
 * attachment. Raises 42P08 if the table has several attachments and the caller has not chosen, and 42704 if it has none
 * of this name.
 */
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

void
detach_unfit(const DomainRow *row, const char *reason)
{
	List	   *rows;
	DomainRow  *present;

	lock_for_detach(row->relid);
	rows = domain_rows_by_relation(row->relid);
	present = domain_row_of(rows, row->id);
	if (present == NULL)
		return;
	ended_unfit(present, reason);
	if (list_length(rows) > 1)
		detach_one(present, list_delete_ptr(rows, present));
	else
		detach_all(row->relid);
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

/*
 * The function is not granted to PUBLIC. Whoever may call it may end a domain without a table. To end a domain with
 * tables he must also own the tables.
 */
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
	detach(PG_GETARG_OID(0), PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1)), !PG_ARGISNULL(2) && PG_GETARG_BOOL(2));
	PG_RETURN_VOID();
}
