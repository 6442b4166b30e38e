/*
 * attach/follow.c
 *	  ALTER TABLE and DROP INDEX that change what an attachment rests on: the attachment follows.
 *
 * PostgreSQL changes no type of a column that a trigger depends on, and drops no constraint or index that one depends on. So these
 * dependencies are taken away before the statement and recorded again after it, if the table is still fit to be fenced. All of that
 * is in the catalogue, so it is rolled back with the statement. The triggers stay, and so does the row of fence.domain. The
 * object access hook (hooks.c) reserves the whole domain, as for each ALTER TABLE.
 *
 * Versions outside of rows (fence.tombstone) belong to texts of keys. If a key's text may have changed, the attachment gets a new id,
 * as if it were detached and attached again.
 *
 * Owns: which statements are followed, and which changes of a type keep the texts of keys.
 * Locks: AccessExclusiveLock on each fenced table concerned, which the statement takes too.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "attach/attach.h"
#include "attach/follow.h"
#include "base/compat.h"
#include "domain/catalog.h"
#include "domain/shape.h"

/* An attachment as it was before the statement */
typedef struct Followed
{
	Oid			relid;
	int64		id;
	bool		computed;		/* USING or SET EXPRESSION gives a key column values of any kind */
	Oid		   *types;			/* of the key columns */
	int32	   *typmods;
} Followed;

/* -----------------------------------------------------------------------------------------------------------------
 * Texts of keys
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The types of the key columns, those of domains resolved. */
static void
describe_key(const DomainRow *row, Oid **types, int32 **typmods)
{
	int			n = list_length(row->key_columns);

	*types = palloc0(sizeof(Oid) * Max(n, 1));
	*typmods = palloc0(sizeof(int32) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		AttrNumber	attnum = get_attnum(row->relid, list_nth(row->key_columns, i));
		Oid			collation;

		if (attnum == InvalidAttrNumber)
			continue;			/* the check tells */
		get_atttypetypmodcoll(row->relid, attnum, &(*types)[i], &(*typmods)[i], &collation);
		(*types)[i] = getBaseTypeAndTypmod((*types)[i], &(*typmods)[i]);
	}
}

static bool
is_integer(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

/* Whether PostgreSQL's conversion between these types keeps the text of each value that it accepts. */
static bool
keeps_text(Oid from, int32 from_typmod, Oid to, int32 to_typmod)
{
	bool		to_text = to == TEXTOID || to == VARCHAROID;

	if (from == to && from_typmod == to_typmod)
		return true;
	if (is_integer(from))
		return is_integer(to) || (to_text && to_typmod < 0);
	/* a shorter varchar loses blanks, and USING cuts off what is too long */
	if (from == TEXTOID || from == VARCHAROID)
		return to_text && (to_typmod < 0 || (from_typmod >= 0 && from_typmod <= to_typmod));
	return false;
}

/* USING column or column::type, with the type that the column gets: what PostgreSQL does without USING. Mappers write it out. */
static bool
is_plain_cast(const AlterTableCmd *cmd)
{
	const ColumnDef *def = (const ColumnDef *) cmd->def;
	Node	   *value = def->raw_default;
	List	   *names;

	if (IsA(value, TypeCast) && equal(((TypeCast *) value)->typeName, def->typeName))
		value = ((TypeCast *) value)->arg;
	if (!IsA(value, ColumnRef))
		return false;
	names = ((ColumnRef *) value)->fields;
	return list_length(names) == 1 && IsA(linitial(names), String) && strcmp(strVal(linitial(names)), cmd->name) == 0;
}

static bool
is_key_column(const DomainRow *row, const char *name)
{
	ListCell   *lc;

	foreach(lc, row->key_columns)
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	return false;
}

/* Whether the statement computes values of a key column. */
static bool
computes_key(const DomainRow *row, Node *stmt)
{
	ListCell   *lc;

	if (!IsA(stmt, AlterTableStmt))
		return false;
	foreach(lc, ((AlterTableStmt *) stmt)->cmds)
	{
		AlterTableCmd *cmd = lfirst(lc);

		if (cmd->name == NULL || !is_key_column(row, cmd->name))
			continue;
		if (fence_sets_expression(cmd) ||
			(cmd->subtype == AT_AlterColumnType && ((ColumnDef *) cmd->def)->raw_default != NULL && !is_plain_cast(cmd)))
			return true;
	}
	return false;
}

static bool
key_texts_stay(const Followed *followed, const DomainRow *row)
{
	Oid		   *types;
	int32	   *typmods;

	describe_key(row, &types, &typmods);
	for (int i = 0; i < list_length(row->key_columns); i++)
		if (!keeps_text(followed->types[i], followed->typmods[i], types[i], typmods[i]))
			return false;
	return !followed->computed;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Before the statement
 * -----------------------------------------------------------------------------------------------------------------
 */

/* CASCADE is left to PostgreSQL: it ends the attachment. */
static bool
is_followed(const AlterTableStmt *stmt)
{
	ListCell   *lc;

	if (stmt->objtype != OBJECT_TABLE)
		return false;
	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst(lc);

		if (cmd->subtype == AT_AlterColumnType || fence_sets_expression(cmd) || (cmd->subtype == AT_DropConstraint && cmd->behavior == DROP_RESTRICT))
			return true;
	}
	return false;
}

/* Locks the table as ALTER TABLE does, and checks who asks. Its children follow. */
static List *
altered_tables(AlterTableStmt *stmt)
{
	Oid			relid = AlterTableLookupRelation(stmt, AccessExclusiveLock);

	if (!OidIsValid(relid))
		return NIL;
	return stmt->relation->inh ? shape_members(relid) : list_make1_oid(relid);
}

static List *
tables_of_dropped_indexes(DropStmt *stmt)
{
	List	   *tables = NIL;
	ListCell   *lc;

	foreach(lc, stmt->objects)
	{
		Oid			index = RangeVarGetRelid(makeRangeVarFromNameList(lfirst(lc)), NoLock, true);
		Oid			table = OidIsValid(index) ? IndexGetRelation(index, true) : InvalidOid;

		if (OidIsValid(table))
			tables = list_append_unique_oid(tables, table);
	}
	return tables;
}

/* Tables whose attachments the statement may take something from; those that are not fenced included. */
static List *
tables_of(Node *stmt)
{
	if (IsA(stmt, AlterTableStmt) && is_followed((AlterTableStmt *) stmt))
		return altered_tables((AlterTableStmt *) stmt);
	/* CONCURRENTLY must be the first that its transaction does */
	if (IsA(stmt, DropStmt) && ((DropStmt *) stmt)->removeType == OBJECT_INDEX &&
		((DropStmt *) stmt)->behavior == DROP_RESTRICT && !((DropStmt *) stmt)->concurrent)
		return tables_of_dropped_indexes((DropStmt *) stmt);
	return NIL;
}

/* The rows of the table's attachments, with the table locked. */
static List *
lock_domain_rows(Oid relid)
{
	if (domain_rows_by_relation(relid) == NIL || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)) ||
		!object_ownercheck(RelationRelationId, relid, GetUserId()))
		return NIL;				/* PostgreSQL refuses the statement of anybody else */
	LockRelationOid(relid, AccessExclusiveLock);
	return domain_rows_by_relation(relid);
}

static Followed *
describe(const DomainRow *row, Node *stmt)
{
	Followed   *one = palloc0(sizeof(Followed));

	one->relid = row->relid;
	one->id = row->id;
	one->computed = computes_key(row, stmt);
	describe_key(row, &one->types, &one->typmods);
	return one;
}

List *
follow_begin(Node *stmt)
{
	List	   *followed = NIL;
	ListCell   *lc;

	if ((!IsA(stmt, AlterTableStmt) && !IsA(stmt, DropStmt)) || XactReadOnly || !OidIsValid(fence_table_oid("domain")))
		return NIL;
	foreach(lc, tables_of(stmt))
	{
		List	   *rows = lock_domain_rows(lfirst_oid(lc));
		ListCell   *row;

		foreach(row, rows)
			followed = lappend(followed, describe(lfirst(row), stmt));
		if (rows != NIL)
			attach_loosen(lfirst_oid(lc));
	}
	return followed;
}

/* -----------------------------------------------------------------------------------------------------------------
 * After the statement
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
tell_why(void *relid)
{
	errcontext("table \"%s\" is fenced, and must be fit for it after this statement; fence.detach ends the fencing",
			   get_rel_name(*(Oid *) relid));
}

static void
follow(Followed *followed)
{
	DomainRow  *row = domain_row_of(domain_rows_by_relation(followed->relid), followed->id);
	ErrorContextCallback context = {error_context_stack, tell_why, &followed->relid};

	if (row == NULL)
		return;					/* the statement has ended it, or an event trigger has */
	error_context_stack = &context;
	attach_fasten(row);
	error_context_stack = context.previous;
	if (!key_texts_stay(followed, row))
		attach_renew(row);
}

void
follow_end(List *followed)
{
	ListCell   *lc;

	if (followed == NIL)
		return;
	CommandCounterIncrement();
	foreach(lc, followed)
		follow(lfirst(lc));
}
