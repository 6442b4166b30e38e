/*
 * write/capture.c
 *	  Captures changed rows of fenced tables in the executor; see capture.h.
 *
 * Owns: what it adds to the executor's state of a statement; fence_shared->capture once a statement has shown that capturing
 * does not work.
 * Locks: fence_shared->lock, for capture_problem only.
 * Never: changes a plan or the relation cache.
 *
 * Row triggers are expensive even if they do nothing. BEFORE ROW fetches and locks the old row once more, which writes a
 * WAL record. AFTER ROW queues each row and fetches both rows again. So when PostgreSQL has made the state of a statement,
 * this file changes up to four things in that state, for each fenced result relation. The changes belong to this execution.
 * The plan, the relation cache and other executions never see them.
 *
 * - ri_projectNew makes the new row of an UPDATE or INSERT. We build it early, as the executor would do with the first
 *   row, and put our own expression (make_new_row) in front of it, which runs it and sets the version. The executor makes
 *   every new row through this expression, even if EvalPlanQual starts again with a newer old row. Everything that looks
 *   at the new row comes later: generated columns, policies, constraints, partition bounds, the table, indexes, RETURNING.
 * - ri_projectReturning gets our own expression (changed_row) in front of it. The executor evaluates it when the row is
 *   stored in the table and in all indexes, with the new row; the old row of an UPDATE is in ri_oldTupleSlot. For a DELETE
 *   it evaluates it with the deleted row. If the user wrote no RETURNING, there is nothing behind our expression, and
 *   run_silently drops the rows that the node returns. (A check option, of the kind that views have, would do for new rows
 *   too. It takes 850 instructions more per statement.)
 * - oc_ProjInfo makes the new row of ON CONFLICT DO UPDATE, from the row that is there, which is in oc_Existing until the
 *   executor is done with it. It gets make_new_row in front of it, as ri_projectNew. So the expression for RETURNING knows by
 *   that slot whether the row is new or changed.
 * - ri_TrigDesc is a copy of the relation's. We disable our triggers in it. We do not remove them, because events that
 *   another node of the statement has queued look up their trigger here by its OID.
 *
 * For everything else nothing is changed, so the triggers fire: for MERGE, COPY, logical replication, rows that are routed to
 * partitions, and nodes of other extensions in place of ModifyTable. may_capture() excludes the statements for which our
 * expressions would not do the same as the triggers.
 *
 * MERGE cannot be captured like this. Up to PostgreSQL 16 it has no RETURNING, so the executor evaluates no expression when MERGE
 * has deleted a row, and after an UPDATE only check options. We would hear of a row that it is going to delete, from the
 * condition of its action, but never that it did. From 17 on there is RETURNING, and mt_merge_action says
 * which action was taken, so there it could be captured. That is not done, because it would be a second form of all this, with
 * a projection for each action, for a part of the versions only.
 *
 * Attach and detach need not invalidate plans, because a statement looks up at its start, under its lock, how the table
 * is attached.
 *
 * If a row changed and nobody reported it, readers would get a stale value. So
 * - no statement is captured until a worker has seen after the server start that this executor does all of the above
 *   (capture_test.c);
 * - a statement fails if it stores a row that make_new_row has not made, or if fewer rows were reported than the executor
 *   has counted. From then on row triggers capture all changes, until the server is restarted.
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
#include "domain/domain_cache.h"
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

/* Our projection, which is put in front of one of the executor's */
typedef struct Interposed
{
	ProjectionInfo ours;		/* a member, because a palloc would take as long as all the rest */
	ProjectionInfo *real;		/* the executor's; NULL: there is none */
} Interposed;

/* A result relation that is captured. It lives as long as the executor's state of the statement. */
typedef struct Captured
{
	const ModifyTableState *node;
	ResultRelInfo *relation;
	Interposed	making;			/* of the new row; not for DELETE */
	Interposed	remaking;		/* of the new row of ON CONFLICT DO UPDATE */
	Interposed	returning;
	ExecProcNodeMtd proceed;	/* the node's own function, if run_silently has replaced it */
	bool		remade;			/* the row at hand was made by DO UPDATE */
	uint64		rows;			/* number of rows that were reported */
	MemoryContextCallback at_end;
	struct Captured *next;		/* of this statement, or of those that execute it */
	RowChange	change;			/* old and new are those of the row at hand */
} Captured;

static Captured *captured_relations = NULL; /* of all statements that are being executed */

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

/* Raises the error for a statement that was not captured completely. From now on no statement is captured. */
static void
raise_broken(const char *what)
{
	if (diverted_to == NULL)	/* else this is a trial, which reports the problem itself */
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

static bool rows_told = false;	/* a row was reported since reservations were sent last */

/* -----------------------------------------------------------------------------------------------------------------
 * What the executor calls for each row
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Makes the new row of an INSERT. PostgreSQL has no projection for it, because the plan makes the row (plan_makes_rows). */
static void
copy_values(TupleTableSlot *from, TupleTableSlot *to)
{
	slot_getallattrs(from);
	memcpy(to->tts_values, from->tts_values, sizeof(Datum) * to->tts_tupleDescriptor->natts);
	memcpy(to->tts_isnull, from->tts_isnull, sizeof(bool) * to->tts_tupleDescriptor->natts);
}

/*
 * Evaluates ri_projectNew or oc_ProjInfo. ExecProject has cleared the slot, and marks it as filled afterwards. A projection has no value,
 * so from PostgreSQL 18 on isnull is NULL, here and in changed_row.
 */
static Datum
make_new_row(ExprState *state, ExprContext *econtext, bool *isnull)
{
	Captured   *captured = state->evalfunc_private;
	const Domain *domain = captured->change.domains;	/* all domains have the same version column */
	ProjectionInfo *real;
	TupleTableSlot *row = state->resultslot;
	int			at = domain->version_attnum - 1;
	int64		w;

	captured->remade = state == &captured->remaking.ours.pi_state;
	real = captured->remade ? captured->remaking.real : captured->making.real;
	captured->change.old = real ? econtext->ecxt_scantuple : NULL;
	if (real)
		(void) real->pi_state.evalfunc(&real->pi_state, econtext, isnull);
	else
		copy_values(econtext->ecxt_outertuple, row);
	if (!domain_sets_version(domain))
		return (Datum) 0;
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
	captured->change.prepared = captured->remade = false;
	captured->rows++;
	rows_told = true;
}

/* The row that was there before the one that is stored now; NULL: none was. */
static TupleTableSlot *
former_row(const Captured *captured)
{
	const ResultRelInfo *relation = captured->relation;
	TupleTableSlot *conflicting = captured->remaking.real ? relation->ri_onConflict->oc_Existing : NULL;
	bool		conflicts = conflicting != NULL && !TTS_EMPTY(conflicting);

	if (conflicts && !captured->remade)
		raise_broken("The executor stored a row of ON CONFLICT DO UPDATE that did not get a version.");
	return conflicts ? conflicting : relation->ri_oldTupleSlot;
}

/* Evaluates ri_projectReturning, when the row is stored or deleted. */
static Datum
changed_row(ExprState *state, ExprContext *econtext, bool *isnull)
{
	Captured   *captured = state->evalfunc_private;
	ProjectionInfo *real = captured->returning.real;
	bool		deleted = captured->node->operation == CMD_DELETE;

	captured->change.old = deleted ? econtext->ecxt_scantuple : former_row(captured);
	captured->change.new = deleted ? NULL : econtext->ecxt_scantuple;
	if (deleted && domain_sets_version(captured->change.domains))
		(void) listener->prepare(&captured->change);
	tell(captured);
	if (real == NULL)
		return (Datum) 0;
	real->pi_state.flags = state->flags;	/* from PostgreSQL 18 on: whether OLD and NEW exist */
	return real->pi_state.evalfunc(&real->pi_state, econtext, isnull);
}

/* Executes a node whose only RETURNING is ours. It returns no rows, because the user asked for none. */
static TupleTableSlot *
run_silently(PlanState *node)
{
	Captured   *captured = captured_relations;
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

/* Called when the executor's state of the statement is freed, also after an error. */
static void
forget(void *arg)
{
	Captured  **link = &captured_relations;

	while (*link != NULL && *link != arg)
		link = &(*link)->next;
	if (*link != NULL)
		*link = (*link)->next;
}

static Captured *
begin(const ModifyTableState *mt, ResultRelInfo *relation, const Domain *domains)
{
	/* not palloc0: the array of keys is large, and it needs not be cleared */
	Captured   *captured = memset(palloc(sizeof(Captured)), 0, offsetof(Captured, change.keys));

	captured->change.domains = domains;
	captured->node = mt;
	captured->relation = relation;
	captured->at_end.func = forget;
	captured->at_end.arg = captured;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &captured->at_end);
	captured->next = captured_relations;
	captured_relations = captured;
	return captured;
}

/* Puts our projection in front of *place. If there is none, ours fills that slot. */
static void
interpose(ModifyTableState *mt, Captured *captured, Interposed *interposed, ProjectionInfo **place, ExprStateEvalFunc function,
		  TupleTableSlot *slot)
{
	ProjectionInfo *real = *place;
	ProjectionInfo *ours = &interposed->ours;

	if (mt->ps.ps_ExprContext == NULL)
		ExecAssignExprContext(mt->ps.state, &mt->ps);
	ours->type = T_ProjectionInfo;
	ours->pi_exprContext = real ? real->pi_exprContext : mt->ps.ps_ExprContext;
	ours->pi_state.type = T_ExprState;
	ours->pi_state.flags = real ? real->pi_state.flags : 0;
	ours->pi_state.resultslot = real ? real->pi_state.resultslot : slot;
	ours->pi_state.evalfunc = function;
	ours->pi_state.evalfunc_private = captured;
	interposed->real = real;
	*place = ours;
}

/* Does what ExecInitUpdateProjection would do with the first row. */
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
	interpose(mt, captured, &captured->making, &relation->ri_projectNew, make_new_row, relation->ri_newTupleSlot);
	relation->ri_projectNewInfoValid = true;
}

/* A slot without columns, which all statements use, because it never has anything in it */
static TupleTableSlot *
empty_slot(void)
{
	static TupleTableSlot *slot = NULL;
	MemoryContext old;

	if (slot != NULL)
		return slot;
	old = MemoryContextSwitchTo(TopMemoryContext);
	slot = MakeSingleTupleTableSlot(CreateTemplateTupleDesc(0), &TTSOpsVirtual);
	MemoryContextSwitchTo(old);
	return slot;
}

static void
watch_changed(ModifyTableState *mt, Captured *captured)
{
	interpose(mt, captured, &captured->returning, &captured->relation->ri_projectReturning, changed_row, empty_slot());
	if (captured->returning.real == NULL && mt->ps.ExecProcNodeReal != run_silently)
	{
		captured->proceed = mt->ps.ExecProcNodeReal;
		ExecSetExecProcNode(&mt->ps, run_silently);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Which relations
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Our triggers are known by their names. No fenced table has other triggers of these names (shape.h). */
static bool
is_ours(const Trigger *trigger)
{
	return trigger->tgname[0] == 'z' &&
		(strcmp(trigger->tgname, shape_of(ROLE_BEFORE)->name) == 0 || strcmp(trigger->tgname, shape_of(ROLE_AFTER)->name) == 0);
}

/* The row triggers for one kind of statement, as far as they matter here */
typedef struct RowTriggers
{
	Trigger    *before;			/* our trigger; NULL if there is none that fires */
	Trigger    *after;
	bool		others_before;	/* a trigger that is not ours may fire */
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

/* Whether the plan of an INSERT makes exactly the columns that the table has now. If not, the executor raises the error. */
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
 * Whether all changes of rows go through the expressions described above. They do not
 * - if MERGE changes the rows,
 * - if a row may move to another partition. The triggers of its new partition fire then, so those of the old one must fire
 *   too. (The version is never part of a partition bound, because a unique index on the key has all columns of the bound,
 *   and the version is no key column.)
 * - if somebody has made the projection already.
 */
static bool
may_capture(const ModifyTableState *mt, const ResultRelInfo *relation)
{
	const ModifyTable *plan = (ModifyTable *) mt->ps.plan;

	switch (mt->operation)
	{
		case CMD_INSERT:
			return !relation->ri_projectNewInfoValid && plan_makes_rows(mt, RelationGetDescr(relation->ri_RelationDesc));
		case CMD_UPDATE:
			return !plan->partColsUpdated && !relation->ri_projectNewInfoValid;
		case CMD_DELETE:
			return true;
		default:
			return false;
	}
}

/*
 * The domains of the relation, if capturing does the same as its triggers; otherwise NULL, and the triggers fire if there
 * are any. NULL also if the relation is not fenced, or if another BEFORE ROW trigger must see the row before our trigger,
 * which is the last one by its name, or if a key column is generated, because trigger.c computes that.
 */
static const Domain *
domains_of(const ResultRelInfo *relation, const RowTriggers *triggers)
{
	Oid			relid = RelationGetRelid(relation->ri_RelationDesc);
	const Domain *domains;

	if (diverted_to != NULL)
		return diverted_to->relid == relid ? diverted_to : NULL;
	/* if our AFTER ROW trigger would not fire, the table is not fenced as it should be */
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
capture_relation(ModifyTableState *mt, int which)
{
	ResultRelInfo *relation = &mt->resultRelInfo[which];
	bool		updates_too = ((ModifyTable *) mt->ps.plan)->onConflictAction == ONCONFLICT_UPDATE;
	RowTriggers triggers = triggers_of(relation->ri_TrigDesc, mt->operation);
	RowTriggers of_update = triggers_of(relation->ri_TrigDesc, CMD_UPDATE);
	const Domain *domains = domains_of(relation, &triggers);
	Captured   *captured;

	if (domains == NULL || !may_capture(mt, relation) || (updates_too && domains_of(relation, &of_update) == NULL))
		return;
	captured = begin(mt, relation, domains);
	if (mt->operation != CMD_DELETE && domain_sets_version(domains))
		set_version(mt, which, captured);
	if (updates_too)
		interpose(mt, captured, &captured->remaking, &relation->ri_onConflict->oc_ProjInfo, make_new_row, NULL);
	watch_changed(mt, captured);
	if (relation->ri_TrigDesc)
		disable_triggers(relation->ri_TrigDesc, mt->operation, &triggers);
	if (relation->ri_TrigDesc && updates_too)
		disable_triggers(relation->ri_TrigDesc, CMD_UPDATE, &of_update);
}

static void
capture(ModifyTableState *mt)
{
	for (int i = 0; i < mt->mt_nrels; i++)
		capture_relation(mt, i);
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

/*
 * Compares the number of reported rows with the executor's count of the rows of the statement's own node, if all relations
 * of that node are captured.
 */
static void
check_rows(const QueryDesc *query)
{
	const ModifyTableState *own = IsA(query->planstate, ModifyTableState) ? (ModifyTableState *) query->planstate : NULL;
	int			relations = 0;
	uint64		rows = 0;

	for (const Captured *captured = captured_relations; captured != NULL; captured = captured->next)
	{
		if (captured->node->ps.state != query->estate)
			continue;
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

/* Called twice for each statement, because AFTER triggers, which may take long, run between the two calls. */
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
	end_of_rows();
	if (previous_finish)
		previous_finish(query);
	else
		standard_ExecutorFinish(query);
	end_of_rows();
	if (captured_relations != NULL)
		check_rows(query);
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
