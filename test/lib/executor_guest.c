/*
 * executor_guest.c
 *	  A library with executor hooks of its own, as others have. It does no harm, unless guest.takes names what it takes away from the
 *	  state of statements that change rows.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "fmgr.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static ExecutorStart_hook_type previous_start;
static ExecutorRun_hook_type previous_run;
static ExecutorFinish_hook_type previous_finish;
static ExecutorEnd_hook_type previous_end;
static char *takes;

static void
take(ModifyTableState *mt)
{
	for (int i = 0; i < mt->mt_nrels; i++)
	{
		ResultRelInfo *relation = &mt->resultRelInfo[i];

		if (strcmp(takes, "options") == 0)
			relation->ri_WithCheckOptions = relation->ri_WithCheckOptionExprs = NIL;
		else if (strcmp(takes, "projection") == 0)
			relation->ri_projectNewInfoValid = false;
		else if (strcmp(takes, "returning") == 0)
			relation->ri_projectReturning = NULL;
	}
}

static void
start(QueryDesc *query, int flags)
{
	if (previous_start)
		previous_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
	if (IsA(query->planstate, ModifyTableState))
		take((ModifyTableState *) query->planstate);
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
	if (previous_run)
		previous_run(RUN_VALUES);
	else
		standard_ExecutorRun(RUN_VALUES);
}

static void
finish(QueryDesc *query)
{
	if (previous_finish)
		previous_finish(query);
	else
		standard_ExecutorFinish(query);
}

static void
end(QueryDesc *query)
{
	if (previous_end)
		previous_end(query);
	else
		standard_ExecutorEnd(query);
}

void
_PG_init(void)
{
	DefineCustomStringVariable("guest.takes", "What is taken away.", NULL, &takes, "", PGC_USERSET, 0, NULL, NULL, NULL);
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = start;
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = run;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = finish;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = end;
}
