/*
 * write/capture.c
 *	  Changed rows of fenced tables, told by the executor itself; see capture.h.
 *
 * Row triggers are dear even if they do nothing: BEFORE ROW fetches and locks the old row once more, with a WAL record for that, and
 * AFTER ROW queues each row and fetches both again. So, once PostgreSQL has made the state of a statement, this file changes four
 * things in it, for each result relation that is fenced. All belong to this one execution: the plan, the relation cache
 * and other executions never see them.
 *
 * - ri_projectNew makes the new row of an UPDATE or INSERT. It is built early, as the executor would with the first row, and put behind
 *   an expression of ours (make_new_row) that runs it and sets the version. The executor makes every new row through it, also
 *   when EvalPlanQual begins again with a newer old row; everything that looks at the new row comes afterwards: generated columns,
 *   policies, constraints, partition bounds, the table, indexes, RETURNING.
 * - ri_WithCheckOptions gets one more (stored_row), of the kind that views have: the executor asks them after a row was stored in
 *   the table and in all indexes, and before RETURNING. The new row is its argument, the old one is in ri_oldTupleSlot.
 * - ri_projectReturning of a DELETE is put behind an expression of ours (deleted_row): it is evaluated for each deleted row, with that
 *   row. Where the user asked for no RETURNING there is none behind it, and the node's rows are swallowed (delete_silently).
 * - ri_TrigDesc, which is a copy of the relation's: our triggers are disabled in it. They are not removed, because events that
 *   another node of the statement has queued find their trigger here by its OID.
 *
 * Whatever does not go this way fires the triggers, because nothing was changed for it: COPY, logical replication, rows routed to
 * partitions, nodes of other extensions in place of ModifyTable. And where it would not be the same, nothing is changed either: see may_capture().
 *
 * Attach and detach invalidate no plan for this: what a table has is looked up when the statement starts, under its lock.
 *
 * A row that was changed and not told would be served stale. So
 * - nothing is captured before a worker has seen, after the server start, that this executor does all that (capture_test.c);
 * - a stored row that make_new_row has not made makes its statement fail, and so do fewer rows told than the executor has counted
 *   at the end of the statement. Then the server goes on with triggers until it is started again.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "nodes/nodeFuncs.h"
#include "storage/lwlock.h"
#include "utils/rel.h"

#include "attach/renumber.h"
#include "base/compat.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "domain/domain.h"
#include "domain/shape.h"
#include "domain/tombstone.h"
#include "domain/version.h"
#include "send/wire.h"
#include "write/capture.h"
#include "write/changed_row.h"
#include "write/generated_key.h"

static ExecutorStart_hook_type previous_start = NULL;
static ExecutorFinish_hook_type previous_finish = NULL;

static const CaptureListener everyday = {changed_row_prepare, changed_row_stored};
static const CaptureListener *listener = &everyday;
static const Domain *diverted_to = NULL;

/* A result relation that is captured */
typedef struct Captured
{
	RowChange	change;			/* old and new are those of the row at hand */
	const ModifyTableState *node;
	ResultRelInfo *relation;
	ProjectionInfo *real;		/* what ours stands before; NULL: nothing */
	ExecProcNodeMtd proceed;	/* of the node, if delete_silently stands before it */
	ProjectionInfo ours;		/* what is put into the state; here, because each palloc takes as long as all the rest of it */
	WithCheckOption option;
	ExprState	check;
	uint64		rows;			/* that were told */
	struct Captured *next;		/* of the same statement */
} Captured;

/* A statement with such relations. All of this lives as long as its state. */
typedef struct Statement
{
	const EState *state;
	Captured   *captured;
	MemoryContextCallback at_end;
	struct Statement *next;
} Statement;

static Statement *statements = NULL;	/* that are under way */

/* -----------------------------------------------------------------------------------------------------------------
 * Whether it works
 * -----------------------------------------------------------------------------------------------------------------
 */

void
capture_divert(const Domain *domain, const CaptureListener *to)
{
	diverted_to = domain;
	listener = to ? to : &everyday;
}

const char *
capture_problem(void)
{
	char	   *problem = NULL;

	if (fence_shared == NULL || pg_atomic_read_u32(&fence_shared->capture) == CAPTURE_WORKS)
		return NULL;
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	problem = pstrdup(fence_shared->capture_problem[0] ? fence_shared->capture_problem : "the executor was not tried since the server start");
	LWLockRelease(fence_shared->lock);
	return problem;
}

/* A statement was not told as it should be: it fails, and no other is captured. */
static void
raise_broken(const char *what)
{
	if (diverted_to == NULL)	/* else it is a trial, which says so itself */
	{
		LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
		strlcpy(fence_shared->capture_problem, what, REASON_LEN);
		pg_atomic_write_u32(&fence_shared->capture, CAPTURE_BROKEN);
		LWLockRelease(fence_shared->lock);
		ereport(WARNING,
				(errmsg("pgcache_fence: row triggers capture all changed rows until the server is restarted: %s", what)));
	}
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("the executor did not report all changed rows of a fenced table"),
			 errdetail("%s", what),
			 errhint("Try again: row triggers capture changed rows now. Please report this, with the statement.")));
}

static bool rows_told = false;	/* since reservations were sent last */

/* -----------------------------------------------------------------------------------------------------------------
 * What the executor calls for each row
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The rows of an INSERT need no projection of PostgreSQL's: the plan makes them (plan_makes_rows). */
static void
copy_values(TupleTableSlot *from, TupleTableSlot *to)
{
	slot_getallattrs(from);
	memcpy(to->tts_values, from->tts_values, sizeof(Datum) * to->tts_tupleDescriptor->natts);
	memcpy(to->tts_isnull, from->tts_isnull, sizeof(bool) * to->tts_tupleDescriptor->natts);
}

/*
 * Evaluates ri_projectNew. ExecProject has emptied the slot, and will say that it is filled. A projection has no value: from 18 on isnull
 * is NULL, as in deleted_row.
 */
static Datum
make_new_row(ExprState *state, ExprContext *econtext, bool *isnull)
{
	Captured   *captured = state->evalfunc_private;
	const Domain *domain = captured->change.domains;	/* all domains have the same version column */
	TupleTableSlot *row = state->resultslot;
	int			at = domain->version_attnum - 1;
	int64		w;

	if (captured->real)
	{
		(void) captured->real->pi_state.evalfunc(&captured->real->pi_state, econtext, isnull);
		captured->change.old = econtext->ecxt_scantuple;
	}
	else
		copy_values(econtext->ecxt_outertuple, row);
	ExecStoreVirtualTuple(row);
	captured->change.new = row;
	w = listener->prepare(&captured->change);
	if (w != NO_VERSION)
	{
		row->tts_values[at] = fence_version_datum(domain, w);
		row->tts_isnull[at] = false;
	}
	return (Datum) 0;
}

static void
tell(Captured *captured)
{
	if (!captured->change.prepared && domain_sets_version(captured->change.domains))
		raise_broken("The executor stored a row that did not get a version.");
	listener->stored(&captured->change);
	captured->change.prepared = false;
	captured->rows++;
	rows_told = true;
}

/* Evaluates our check option: the row is stored. */
static Datum
stored_row(ExprState *state, ExprContext *econtext, bool *isnull)
{
	Captured   *captured = state->evalfunc_private;

	captured->change.new = econtext->ecxt_scantuple;
	captured->change.old = captured->relation->ri_oldTupleSlot;	/* NULL: an INSERT */
	tell(captured);
	*isnull = false;
	return BoolGetDatum(true);
}

/* Evaluates ri_projectReturning of a DELETE: the row is gone. */
static Datum
deleted_row(ExprState *state, ExprContext *econtext, bool *isnull)
{
	Captured   *captured = state->evalfunc_private;

	captured->change.old = econtext->ecxt_scantuple;
	if (domain_sets_version(captured->change.domains))
		(void) listener->prepare(&captured->change);
	tell(captured);
	if (captured->real == NULL)
		return (Datum) 0;
	captured->real->pi_state.flags = state->flags;	/* from 18 on they tell whether OLD and NEW are there */
	return captured->real->pi_state.evalfunc(&captured->real->pi_state, econtext, isnull);
}

static Statement *
statement_of(const EState *state)
{
	Statement  *statement = statements;

	while (statement != NULL && statement->state != state)
		statement = statement->next;
	return statement;
}

/* Executes a DELETE whose RETURNING is ours alone: whoever asked for no rows gets none. */
static TupleTableSlot *
delete_silently(PlanState *node)
{
	Captured   *captured = statement_of(node->state)->captured;
	TupleTableSlot *row;

	while (&captured->node->ps != node || captured->proceed == NULL)
		captured = captured->next;
	do
		row = captured->proceed(node);
	while (!TupIsNull(row));
	return NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Changing the state
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The state goes, also after an error. */
static void
forget_statement(void *arg)
{
	Statement **link = &statements;

	while (*link != NULL && *link != arg)
		link = &(*link)->next;
	if (*link != NULL)
		*link = (*link)->next;
}

static Captured *
begin(const ModifyTableState *mt, ResultRelInfo *relation, const Domain *domains)
{
	Captured   *captured = palloc0(sizeof(Captured));
	Statement  *statement = statement_of(mt->ps.state);

	if (statement == NULL)
	{
		statement = palloc0(sizeof(Statement));
		statement->state = mt->ps.state;
		statement->at_end.func = forget_statement;
		statement->at_end.arg = statement;
		MemoryContextRegisterResetCallback(CurrentMemoryContext, &statement->at_end);
		statement->next = statements;
		statements = statement;
	}
	captured->change.domains = domains;
	captured->node = mt;
	captured->relation = relation;
	captured->next = statement->captured;
	statement->captured = captured;
	return captured;
}

/* A projection of ours into that slot; what it stands before has been kept in captured->real. */
static ProjectionInfo *
make_projection(ModifyTableState *mt, Captured *captured, ExprStateEvalFunc function, TupleTableSlot *slot)
{
	ProjectionInfo *projection = &captured->ours;

	projection->type = T_ProjectionInfo;
	if (mt->ps.ps_ExprContext == NULL)
		ExecAssignExprContext(mt->ps.state, &mt->ps);
	projection->pi_exprContext = captured->real ? captured->real->pi_exprContext : mt->ps.ps_ExprContext;
	projection->pi_state.type = T_ExprState;
	projection->pi_state.flags = captured->real ? captured->real->pi_state.flags : 0;
	projection->pi_state.resultslot = slot;
	projection->pi_state.evalfunc = function;
	projection->pi_state.evalfunc_private = captured;
	return projection;
}

/* What ExecInitUpdateProjection does with the first row. */
static void
build_update_projection(ModifyTableState *mt, int which)
{
	ResultRelInfo *relation = &mt->resultRelInfo[which];
	EState	   *estate = mt->ps.state;

	relation->ri_oldTupleSlot = table_slot_create(relation->ri_RelationDesc, &estate->es_tupleTable);
	relation->ri_newTupleSlot = table_slot_create(relation->ri_RelationDesc, &estate->es_tupleTable);
	if (mt->ps.ps_ExprContext == NULL)
		ExecAssignExprContext(estate, &mt->ps);
	relation->ri_projectNew = ExecBuildUpdateProjection(outerPlan(mt->ps.plan)->targetlist, false,
														list_nth(fence_update_columns(mt), which),
														RelationGetDescr(relation->ri_RelationDesc),
														mt->ps.ps_ExprContext, relation->ri_newTupleSlot, &mt->ps);
}

static void
set_version(ModifyTableState *mt, int which, Captured *captured)
{
	ResultRelInfo *relation = captured->relation;

	if (mt->operation == CMD_UPDATE)
		build_update_projection(mt, which);
	else
		relation->ri_newTupleSlot = table_slot_create(relation->ri_RelationDesc, &mt->ps.state->es_tupleTable);
	captured->real = relation->ri_projectNew;
	relation->ri_projectNew = make_projection(mt, captured, make_new_row, relation->ri_newTupleSlot);
	relation->ri_projectNewInfoValid = true;
}

static void
watch_stored(Captured *captured)
{
	ResultRelInfo *relation = captured->relation;

	captured->option = (WithCheckOption) {.type = T_WithCheckOption, .kind = WCO_VIEW_CHECK};
	captured->check = (ExprState) {
		.type = T_ExprState, .flags = EEO_FLAG_IS_QUAL, .evalfunc = stored_row, .evalfunc_private = captured
	};
	/* these lists may be the plan's */
	relation->ri_WithCheckOptions = lappend(list_copy(relation->ri_WithCheckOptions), &captured->option);
	relation->ri_WithCheckOptionExprs = lappend(list_copy(relation->ri_WithCheckOptionExprs), &captured->check);
}

static void
watch_deleted(ModifyTableState *mt, Captured *captured)
{
	ResultRelInfo *relation = captured->relation;
	TupleTableSlot *slot;

	captured->real = relation->ri_projectReturning;
	slot = captured->real ? captured->real->pi_state.resultslot :
		ExecInitExtraTupleSlot(mt->ps.state, CreateTemplateTupleDesc(0), &TTSOpsVirtual);
	relation->ri_projectReturning = make_projection(mt, captured, deleted_row, slot);
	if (captured->real == NULL && mt->ps.ExecProcNodeReal != delete_silently)
	{
		captured->proceed = mt->ps.ExecProcNodeReal;
		ExecSetExecProcNode(&mt->ps, delete_silently);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Which relations
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Ours are known by their names: what else has these, no table has that is fenced (shape.h). */
static bool
is_ours(const Trigger *trigger)
{
	return trigger->tgname[0] == 'z' &&
		(strcmp(trigger->tgname, shape_of(ROLE_BEFORE)->name) == 0 || strcmp(trigger->tgname, shape_of(ROLE_AFTER)->name) == 0);
}

/* The row triggers of a kind of statement, as far as they matter here. */
typedef struct RowTriggers
{
	Trigger    *before;			/* ours; NULL: it has none that fires */
	Trigger    *after;
	bool		others_before;	/* somebody else's would fire, perhaps */
	bool		others_after;
} RowTriggers;

static RowTriggers
triggers_of(TriggerDesc *triggers, CmdType operation)
{
	RowTriggers result = {NULL, NULL, false, false};
	int16		event = operation == CMD_INSERT ? TRIGGER_TYPE_INSERT :
		operation == CMD_UPDATE ? TRIGGER_TYPE_UPDATE : TRIGGER_TYPE_DELETE;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];
		bool		before = TRIGGER_FOR_BEFORE(trigger->tgtype);

		if (!TRIGGER_FOR_ROW(trigger->tgtype) || (trigger->tgtype & event) == 0 || trigger->tgenabled == TRIGGER_DISABLED)
			continue;
		if (is_ours(trigger))
			*(before ? &result.before : &result.after) = trigger;
		else
		{
			result.others_before |= before;
			result.others_after |= !before;
		}
	}
	return result;
}

/* Whether the plan of an INSERT makes rows as the table has them now, and nothing besides. If not, the executor shall say so. */
static bool
plan_makes_rows(const ModifyTableState *mt, TupleDesc desc)
{
	const List *list = outerPlan(mt->ps.plan)->targetlist;

	if (list_length(list) != desc->natts)
		return false;
	for (int i = 0; i < desc->natts; i++)
	{
		const TargetEntry *entry = list_nth(list, i);
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (entry->resjunk)
			return false;
		if (att->attisdropped || att->attgenerated ? !IsA(entry->expr, Const) || !castNode(Const, entry->expr)->constisnull :
			exprType((Node *) entry->expr) != att->atttypid)
			return false;
	}
	return true;
}

/*
 * Whether what is described above is all that happens to the rows. Not where
 * - ON CONFLICT DO UPDATE or MERGE change rows by projections of their own,
 * - a row may move to another partition, where its new table's triggers fire: then so must those of the old one (the version is never
 *   part of a partition's bound: a unique index on the key has all columns of that, and the version is no key column),
 * - somebody has made the projection already.
 */
static bool
may_capture(const ModifyTableState *mt, const ResultRelInfo *relation)
{
	const ModifyTable *plan = (ModifyTable *) mt->ps.plan;

	switch (mt->operation)
	{
		case CMD_INSERT:
			return plan->onConflictAction != ONCONFLICT_UPDATE && !relation->ri_projectNewInfoValid &&
				plan_makes_rows(mt, RelationGetDescr(relation->ri_RelationDesc));
		case CMD_UPDATE:
			return !plan->partColsUpdated && !relation->ri_projectNewInfoValid;
		case CMD_DELETE:
			return true;
		default:
			return false;
	}
}

/*
 * The domains of the relation if its triggers would do what is done here. Not where another BEFORE ROW trigger sees or changes the row: ours
 * is the last of them by its name. Not where a key column is generated: trigger.c computes it. NULL: not, or it is not fenced; the
 * triggers, if there are any, know what to do, or to say.
 */
static const Domain *
domains_of(const ResultRelInfo *relation, const RowTriggers *triggers)
{
	Oid			relid = RelationGetRelid(relation->ri_RelationDesc);
	const Domain *domains;

	if (diverted_to != NULL)
		return diverted_to->relid == relid ? diverted_to : NULL;
	/* only if our AFTER ROW would fire, the table is fenced as it should be */
	if (triggers->after == NULL || triggers->after->tgenabled != TRIGGER_FIRES_ALWAYS || triggers->others_before ||
		relation->ri_RelationDesc->rd_rel->relkind != RELKIND_RELATION)
		return NULL;
	domains = domains_by_relation(relid);
	return domains != NULL && !renumber_is_running(domains) && !generated_key_any(domains) ? domains : NULL;
}

static void
disable_triggers(TriggerDesc *triggers, CmdType operation, const RowTriggers *of_kind)
{
	bool		others = of_kind->others_after;

	if (of_kind->before)
		of_kind->before->tgenabled = TRIGGER_DISABLED;
	if (of_kind->after)
		of_kind->after->tgenabled = TRIGGER_DISABLED;
	switch (operation)
	{
		case CMD_INSERT:
			triggers->trig_insert_before_row = false;
			triggers->trig_insert_after_row = others;
			break;
		case CMD_UPDATE:
			triggers->trig_update_before_row = false;
			triggers->trig_update_after_row = others;
			break;
		default:
			triggers->trig_delete_before_row = false;
			triggers->trig_delete_after_row = others;
			break;
	}
}

static void
capture(ModifyTableState *mt)
{
	for (int i = 0; i < mt->mt_nrels; i++)
	{
		ResultRelInfo *relation = &mt->resultRelInfo[i];
		RowTriggers triggers = triggers_of(relation->ri_TrigDesc, mt->operation);
		const Domain *domains = domains_of(relation, &triggers);
		Captured   *captured;

		if (domains == NULL || !may_capture(mt, relation))
			continue;
		captured = begin(mt, relation, domains);
		if (mt->operation == CMD_DELETE)
			watch_deleted(mt, captured);
		else
		{
			if (domain_sets_version(domains))
				set_version(mt, i, captured);
			watch_stored(captured);
		}
		if (relation->ri_TrigDesc)
			disable_triggers(relation->ri_TrigDesc, mt->operation, &triggers);
	}
}

static bool
is_wanted(void)
{
	return diverted_to != NULL ||
		(setting_capture == CAPTURE_AUTO && pg_atomic_read_u32(&fence_shared->capture) == CAPTURE_WORKS);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Hooks
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
executor_start(QueryDesc *query, int flags)
{
	MemoryContext old;
	ListCell   *lc;

	if (previous_start)
		previous_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
	if ((flags & EXEC_FLAG_EXPLAIN_ONLY) != 0 || !is_wanted())
		return;
	old = MemoryContextSwitchTo(query->estate->es_query_cxt);
	if (IsA(query->planstate, ModifyTableState))
		capture((ModifyTableState *) query->planstate);
	foreach(lc, query->estate->es_auxmodifytables)
		if (lfirst(lc) != query->planstate)
			capture(lfirst(lc));
	MemoryContextSwitchTo(old);
}

/* The executor has counted the rows of the statement's own node: if all of its relations are captured, so many were told. */
static void
check_rows(const QueryDesc *query, const Statement *statement)
{
	const ModifyTableState *own = IsA(query->planstate, ModifyTableState) ? (ModifyTableState *) query->planstate : NULL;
	int			relations = 0;
	uint64		rows = 0;

	for (const Captured *captured = statement->captured; captured != NULL; captured = captured->next)
	{
		if (captured->rows > 0 && diverted_to == NULL)
			for (const Domain *domain = captured->change.domains; domain != NULL; domain = domain->next)
				metrics_add(domain->metrics, METRIC_ROWS_EXECUTOR, captured->rows);
		if (captured->node != own)
			continue;
		relations++;
		rows += captured->rows;
	}
	if (own != NULL && own->canSetTag && relations == own->mt_nrels && rows < query->estate->es_processed)
		raise_broken(psprintf("The executor changed " UINT64_FORMAT " rows and reported " UINT64_FORMAT ".",
							  query->estate->es_processed, rows));
}

/* AFTER triggers, which may take long, come in between. */
static void
end_of_rows(void)
{
	tombstone_write_all();
	if (rows_told)
		wire_send(true);
	rows_told = false;
}

static void
executor_finish(QueryDesc *query)
{
	Statement  *statement;

	end_of_rows();
	if (previous_finish)
		previous_finish(query);
	else
		standard_ExecutorFinish(query);
	end_of_rows();
	statement = statement_of(query->estate);
	if (statement != NULL)
		check_rows(query, statement);
}

void
capture_told_by_trigger(void)
{
	rows_told = true;
}

void
capture_install(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = executor_finish;
}
