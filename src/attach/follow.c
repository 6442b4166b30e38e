/*
 * attach/follow.c
 *	  Statements that change what an attachment rests on: the attachment follows, or it ends; see follow.h.
 *
 * PostgreSQL refuses to change the type of a column, or to drop a constraint or index, on which a trigger depends. So
 * we remove these dependencies before the statement. After it we record them again, if the table can still be fenced.
 * The triggers stay, and so does the row of fence.domain. The object access hook (hooks.c) reserves the whole domain,
 * as for each ALTER TABLE. If the table can no longer be fenced that way, the statement succeeds all the same: the
 * attachment ends with it, as fence.detach would end it, and a WARNING tells so. So it does if the table gets a child or
 * a partition that cannot be fenced, or storage that cannot.
 *
 * Versions outside of rows (fence.tombstone) belong to texts of keys. If the text of a key may have changed, the
 * attachment gets a new id, as if the table were detached and attached again.
 *
 * Owns: which statements an attachment follows, which end it, and which changes of a type keep the texts of keys.
 *
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
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "attach/attach_triggers.h"
#include "attach/detach.h"
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

/* Finds the types of the key columns, and the base types of SQL domains. */
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
			continue;			/* attach_fasten tells it */
		get_atttypetypmodcoll(row->relid, attnum, &(*types)[i], &(*typmods)[i], &collation);
		(*types)[i] = getBaseTypeAndTypmod((*types)[i], &(*typmods)[i]);
	}
}

static bool
is_integer(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

/* Returns whether PostgreSQL's conversion between these types keeps the text of each value that it accepts. */
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

/*
 * Returns whether the USING clause is just the column, or the column cast to its new type. PostgreSQL does the same
 * without USING; some object-relational mappers write it out.
 */
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

/* Returns whether the statement computes new values for a key column. */
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

/* Returns whether a command of this ALTER TABLE may change or drop what an attachment rests on. */
static bool
is_followed(const AlterTableStmt *stmt)
{
	ListCell   *lc;

	if (stmt->objtype != OBJECT_TABLE)
		return false;
	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst(lc);

		if (cmd->subtype == AT_AlterColumnType || fence_sets_expression(cmd) || cmd->subtype == AT_DropConstraint || cmd->subtype == AT_DropColumn)
			return true;
	}
	return false;
}

/*
 * Locks the table and checks the caller's rights, as ALTER TABLE does. Returns the table and, without ONLY, its
 * children.
 */
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

/*
 * Returns the tables whose columns, constraints or indexes the statement may change or drop, whether they are fenced or
 * not.
 */
static List *
tables_of(Node *stmt)
{
	if (IsA(stmt, AlterTableStmt) && is_followed((AlterTableStmt *) stmt))
		return altered_tables((AlterTableStmt *) stmt);
	/* DROP INDEX CONCURRENTLY must be the first action of its transaction, so we cannot write anything before it */
	if (IsA(stmt, DropStmt) && ((DropStmt *) stmt)->removeType == OBJECT_INDEX &&
		!((DropStmt *) stmt)->concurrent)
		return tables_of_dropped_indexes((DropStmt *) stmt);
	return NIL;
}

/* Locks the table and returns the rows of its attachments; NIL if there are none. */
static List *
lock_domain_rows(Oid relid)
{
	if (domain_rows_by_relation(relid) == NIL || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)) ||
		!object_ownercheck(RelationRelationId, relid, GetUserId()))
		return NIL;				/* PostgreSQL will refuse this statement, because the caller is not the owner */
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

bool
follow_concerns(Node *stmt)
{
	bool		concerns = IsA(stmt, AlterTableStmt) || IsA(stmt, DropStmt) || IsA(stmt, CreateForeignTableStmt) ||
		(IsA(stmt, CreateStmt) && ((CreateStmt *) stmt)->inhRelations != NIL);

	return concerns && !XactReadOnly && OidIsValid(fence_table_oid("domain"));
}

List *
follow_begin(Node *stmt)
{
	List	   *followed = NIL;
	ListCell   *lc;

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

/* Returns whether fence.attach raises such errors if it does not accept a table. */
static bool
is_refusal(const ErrorData *error)
{
	int			category = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	return category == ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION || category == ERRCODE_FEATURE_NOT_SUPPORTED ||
		category == ERRCODE_DATA_EXCEPTION;
}

/*
 * Records the dependencies of the attachment again, and begins it anew if its keys may have other texts. Returns NULL,
 * or the error with which fence.attach would refuse the table as it is now; then nothing is changed.
 */
static ErrorData *
fasten(Followed *followed, DomainRow *row)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		attach_fasten(row);
		if (!key_texts_stay(followed, row))
			detach_renew(row);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL && !is_refusal(error))
		ReThrowError(error);
	return error;
}

static void
follow(Followed *followed)
{
	DomainRow  *row = domain_row_of(domain_rows_by_relation(followed->relid), followed->id);
	ErrorData  *error;

	if (row == NULL)
		return;					/* the statement or an event trigger has ended the attachment */
	error = fasten(followed, row);
	if (error != NULL)
		detach_unfit(row, psprintf("fence.attach does not accept the table as it is now: %s.%s%s", error->message,
									   error->detail ? " " : "", error->detail ? error->detail : ""));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Children, partitions and storage
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Ends all attachments of a table, or of the table above a partition, if it cannot be fenced with its present children. */
static void
check_family(RangeVar *name)
{
	Oid			relid = RangeVarGetRelid(name, NoLock, true);
	List	   *rows = OidIsValid(relid) ? domain_rows_covering(relid) : NIL;
	char	   *unfit = rows ? shape_unfit_family(((DomainRow *) linitial(rows))->relid) : NULL;
	ListCell   *lc;

	foreach(lc, unfit ? rows : NIL)
		detach_unfit(lfirst(lc), unfit);
}

/*
 * Looks at the tables to which the statement may have given a child or a partition, or another storage. It still has
 * its locks on them, which keep others from attaching these tables meanwhile.
 */
static void
check_families(Node *stmt)
{
	ListCell   *lc;

	if (IsA(stmt, CreateStmt) || IsA(stmt, CreateForeignTableStmt))
		foreach(lc, ((CreateStmt *) stmt)->inhRelations)
			check_family(lfirst(lc));
	if (!IsA(stmt, AlterTableStmt) || ((AlterTableStmt *) stmt)->objtype == OBJECT_TYPE)
		return;
	foreach(lc, ((AlterTableStmt *) stmt)->cmds)
	{
		AlterTableCmd *cmd = lfirst(lc);

		if (cmd->subtype == AT_AddInherit)
			check_family((RangeVar *) cmd->def);
		else if (cmd->subtype == AT_AttachPartition || cmd->subtype == AT_SetUnLogged || cmd->subtype == AT_SetAccessMethod)
			check_family(((AlterTableStmt *) stmt)->relation);
	}
}

void
follow_end(Node *stmt, List *followed)
{
	ListCell   *lc;

	CommandCounterIncrement();
	foreach(lc, followed)
		follow(lfirst(lc));
	check_families(stmt);
}
