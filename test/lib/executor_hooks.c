/*
 * executor_hooks.c
 *	  A library with its own hooks on the executor, as other extensions have them. It counts the calls of each hook, asks for
 *	  instrumentation, and replaces ExecProcNode of the top node of each plan. It runs executor_hooks.statement during a statement.
 *	  executor_hooks.takes names what it removes from the state of statements that change rows, or makes it kill the worker
 *	  that tries out the executor.
 */
#include "postgres.h"

#include <signal.h>

#include "executor/executor.h"
#include "executor/instrument.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "postmaster/bgworker.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

void		_PG_init(void);
PG_FUNCTION_INFO_V1(executor_hooks_counts);

/* The top node of a plan, and its ExecProcNode function before this library has replaced it */
typedef struct Wrapped
{
	PlanState  *top;
	ExecProcNodeMtd real;
	struct Wrapped *next;
} Wrapped;

static char *statement;
static char *takes;
static Wrapped *wrapped;
static uint64 starts, runs, finishes, ends, asked;

static ExecutorStart_hook_type next_start;
static ExecutorRun_hook_type next_run;
static ExecutorFinish_hook_type next_finish;
static ExecutorEnd_hook_type next_end;

/*
 * Runs the statement that the setting names, unless it is running already, or there is no snapshot, as when the portal of a
 * SELECT ends.
 */
static void
run_statement(void)
{
	static bool running = false;

	if (statement[0] == '\0' || running || !ActiveSnapshotSet())
		return;
	running = true;
	PG_TRY();
	{
		SPI_connect();
		SPI_execute(statement, false, 0);
		SPI_finish();
	}
	PG_FINALLY();
	{
		running = false;
	}
	PG_END_TRY();
}

static TupleTableSlot *
ask(PlanState *top)
{
	Wrapped    *w = wrapped;

	while (w->top != top)
		w = w->next;
	asked++;
	return w->real(top);
}

static void
forget(void *top)
{
	for (Wrapped **w = &wrapped; *w != NULL; w = &(*w)->next)
		if ((*w)->top == top)
		{
			*w = (*w)->next;
			return;
		}
}

/* Removes something that the extension relies on. */
static void
take_from(ModifyTableState *mt)
{
	for (int i = 0; i < mt->mt_nrels; i++)
	{
		ResultRelInfo *relation = &mt->resultRelInfo[i];

		if (strcmp(takes, "projection") == 0)
			relation->ri_projectNewInfoValid = false;
		else if (strcmp(takes, "returning") == 0)
			relation->ri_projectReturning = NULL;
		else if (strcmp(takes, "life") == 0 && MyBgworkerEntry && strcmp(RelationGetRelationName(relation->ri_RelationDesc), "floor") == 0)
			raise(SIGSEGV);
	}
}

/* Puts our function in place of ExecProcNode of the plan's top node. */
static void
wrap(QueryDesc *query)
{
	MemoryContext old = MemoryContextSwitchTo(query->estate->es_query_cxt);
	Wrapped    *w = palloc(sizeof(Wrapped));
	MemoryContextCallback *end = palloc0(sizeof(MemoryContextCallback));

	*w = (Wrapped) {query->planstate, query->planstate->ExecProcNodeReal, wrapped};
	wrapped = w;
	end->func = forget;
	end->arg = query->planstate;
	MemoryContextRegisterResetCallback(query->estate->es_query_cxt, end);
	ExecSetExecProcNode(query->planstate, ask);
	MemoryContextSwitchTo(old);
}

static void
start(QueryDesc *query, int eflags)
{
	query->instrument_options |= INSTRUMENT_ROWS;
	run_statement();
	if (next_start)
		next_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	starts++;
	if (query->planstate == NULL)
		return;
	if (IsA(query->planstate, ModifyTableState))
		take_from((ModifyTableState *) query->planstate);
	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0)
		wrap(query);
}

#if PG_VERSION_NUM >= 180000
#define RUN_ARGUMENTS QueryDesc *query, ScanDirection direction, uint64 count
#define RUN_VALUES query, direction, count
#else
#define RUN_ARGUMENTS QueryDesc *query, ScanDirection direction, uint64 count, bool once
#define RUN_VALUES query, direction, count, once
#endif

static void
run(RUN_ARGUMENTS)
{
	runs++;
	if (next_run)
		next_run(RUN_VALUES);
	else
		standard_ExecutorRun(RUN_VALUES);
}

static void
finish(QueryDesc *query)
{
	finishes++;
	if (next_finish)
		next_finish(query);
	else
		standard_ExecutorFinish(query);
	run_statement();
}

static void
end(QueryDesc *query)
{
	ends++;
	if (next_end)
		next_end(query);
	else
		standard_ExecutorEnd(query);
}

Datum
executor_hooks_counts(PG_FUNCTION_ARGS)
{
	(void) fcinfo;
	PG_RETURN_TEXT_P(cstring_to_text(psprintf("starts %llu, runs %llu, finishes %llu, ends %llu, asked %llu",
											  (unsigned long long) starts, (unsigned long long) runs,
											  (unsigned long long) finishes, (unsigned long long) ends,
											  (unsigned long long) asked)));
}

void
_PG_init(void)
{
	DefineCustomStringVariable("executor_hooks.statement", "What is run as others start and finish.", NULL, &statement, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("executor_hooks.takes", "What is taken away.", NULL, &takes, "", PGC_USERSET, 0, NULL, NULL, NULL);
	next_start = ExecutorStart_hook;
	ExecutorStart_hook = start;
	next_run = ExecutorRun_hook;
	ExecutorRun_hook = run;
	next_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = finish;
	next_end = ExecutorEnd_hook;
	ExecutorEnd_hook = end;
}
