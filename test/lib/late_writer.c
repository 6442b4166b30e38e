/*
 * late_writer.c
 *	  A library that runs a statement at PRE_COMMIT of a transaction that has written, as some other extensions do.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static char *statement;

static void
write_late(XactEvent event, void *arg)
{
	static bool writing = false;

	(void) arg;
	if (event != XACT_EVENT_PRE_COMMIT || statement[0] == '\0' || writing || !TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	writing = true;
	PG_TRY();
	{
		SPI_connect();
		PushActiveSnapshot(GetTransactionSnapshot());
		SPI_execute(statement, false, 0);
		PopActiveSnapshot();
		SPI_finish();
	}
	PG_FINALLY();
	{
		writing = false;
	}
	PG_END_TRY();
}

void
_PG_init(void)
{
	DefineCustomStringVariable("late_writer.statement", "What is run.", NULL, &statement, "", PGC_USERSET, 0, NULL, NULL, NULL);
	RegisterXactCallback(write_late, NULL);
}
