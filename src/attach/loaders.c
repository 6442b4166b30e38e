/*
 * attach/loaders.c
 *	  ALTER TABLE ... DISABLE | ENABLE TRIGGER ALL | USER, as programs that load data send it for every table; see
 *	  loaders.h.
 *
 * Test fixtures and pg_restore --disable-triggers disable all triggers, so that foreign keys do not matter while they
 * load rows, and enable all of them afterwards. Our triggers must fire for these rows too, and ENABLE TRIGGER ALL would
 * leave them as ENABLED, which is not ENABLED ALWAYS. So the statement is executed as if it had named the other triggers.
 * In this way ours are never disabled, not even between two commands of the statement.
 *
 * A restore may load a table before fence.domain. Such a table is not attached, and our triggers refuse its rows. So
 * there DISABLE disables ours too, and ENABLE makes them ENABLED ALWAYS again.
 *
 * Owns: which triggers such a statement leaves alone.
 * Locks: the table, as the statement itself will; AccessShareLock on pg_trigger.
 * Never: changes the statement that was passed, which may belong to a cached plan.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "attach/loaders.h"
#include "domain/catalog.h"
#include "domain/shape.h"

static bool
enables_all(const AlterTableCmd *cmd)
{
	return cmd->subtype == AT_EnableTrigAll || cmd->subtype == AT_EnableTrigUser;
}

static bool
disables_all(const AlterTableCmd *cmd)
{
	return cmd->subtype == AT_DisableTrigAll || cmd->subtype == AT_DisableTrigUser;
}

/* Returns whether the statement is one of a table, with such a command. */
static bool
has_such_command(const AlterTableStmt *stmt)
{
	ListCell   *lc;

	if (!IsA(stmt, AlterTableStmt) || stmt->objtype != OBJECT_TABLE)
		return false;
	foreach(lc, stmt->cmds)
		if (enables_all(lfirst(lc)) || disables_all(lfirst(lc)))
			return true;
	return false;
}

/* Tells once in a session: programs that load data send the statement for every table. */
static void
tell(Oid relid)
{
	static bool told = false;

	if (told)
		return;
	told = true;
	ereport(NOTICE,
			(errmsg("the triggers of pgcache_fence stay enabled for table \"%s\"", get_rel_name(relid)),
			 errdetail("They keep readers from getting values that were replaced. The table's other triggers are disabled."),
			 errhint("This notice appears once in a session. fence.detach ends the fencing of a table.")));
}

/*
 * Returns the command that does to one trigger what this command would do to all of them; NULL if that is nothing.
 * `fenced` says that rows of the table are fenced, or that it is the table in which we keep what is fenced.
 */
static AlterTableCmd *
command_for(const AlterTableCmd *all, const FormData_pg_trigger *trigger, bool ours, bool fenced)
{
	AlterTableCmd *one;
	bool		of_user = all->subtype == AT_EnableTrigUser || all->subtype == AT_DisableTrigUser;

	if (of_user && trigger->tgisinternal)
		return NULL;
	if (ours && (enables_all(all) ? trigger->tgenabled == TRIGGER_FIRES_ALWAYS : fenced))
		return NULL;
	one = makeNode(AlterTableCmd);
	one->subtype = disables_all(all) ? AT_DisableTrig : ours ? AT_EnableAlwaysTrig : AT_EnableTrig;
	one->name = pstrdup(NameStr(trigger->tgname));
	one->behavior = all->behavior;
	return one;
}

/*
 * Returns the commands that do the same to each of the table's triggers, except ours. *any_ours is set if one is ours.
 */
static List *
one_by_one(const AlterTableCmd *all, Oid relid, bool *any_ours)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	bool		is_own_table = relid == fence_table_oid("domain");
	bool		fenced = is_own_table || domain_rows_covering(relid) != NIL;
	List	   *commands = NIL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, TriggerRelidNameIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(tuple);
		bool		ours = is_own_table || shape_is_ours(trigger);
		AlterTableCmd *one = command_for(all, trigger, ours, fenced);

		*any_ours = *any_ours || ours;
		if (one != NULL)
			commands = lappend(commands, one);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	if (*any_ours && fenced && disables_all(all))
		tell(relid);
	return commands;
}

PlannedStmt *
loaders_spare_ours(PlannedStmt *statement)
{
	AlterTableStmt *stmt = (AlterTableStmt *) statement->utilityStmt;
	List	   *commands = NIL;
	bool		any_ours = false;
	Oid			relid;
	ListCell   *lc;

	if (!has_such_command(stmt) || XactReadOnly || !OidIsValid(fence_table_oid("domain")))
		return statement;
	relid = AlterTableLookupRelation(stmt, AlterTableGetLockLevel(stmt->cmds));
	if (!OidIsValid(relid))
		return statement;
	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst(lc);

		commands = enables_all(cmd) || disables_all(cmd) ? list_concat(commands, one_by_one(cmd, relid, &any_ours)) :
			lappend(commands, copyObject(cmd));
	}
	if (!any_ours)
		return statement;
	statement = copyObject(statement);
	((AlterTableStmt *) statement->utilityStmt)->cmds = commands;
	return statement;
}
