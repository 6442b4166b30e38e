/*
 * write/capture_test.c
 *	  The trial that shows whether this server's executor does what capture.c relies on. It runs after each server start.
 *	  No statement is captured before it has succeeded.
 *
 * Owns: fence_shared->capture until the trial ends; the trial file.
 * Locks: fence_shared->lock, to store the result; RowExclusiveLock on fence.floor, until the subtransaction is rolled back.
 * Never: leaves a changed row.
 *
 * The trial changes rows of fence.floor, because every database with the extension has this table. The rows are of domains
 * that do not exist. It compares what the executor reports with what it should report, and rolls the subtransaction back.
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/shared.h"
#include "domain/catalog.h"
#include "domain/version.h"
#include "write/capture.h"
#include "write/capture_test.h"

#define TRIAL_FILE		PG_STAT_TMP_DIR "/pgcache_fence.trial"

/* Columns of fence.floor */
#define FLOOR_VERSION	2

static StringInfoData told;		/* what the executor has reported for the present statement */

static void
note(const char *what, RowChange *change)
{
	appendStringInfo(&told, "%s", what);
	if (change->old)
		appendStringInfo(&told, " " INT64_FORMAT, fence_version_raw(change->domains, change->old));
	if (change->new)
		appendStringInfo(&told, " to " INT64_FORMAT, fence_version_raw(change->domains, change->new));
	appendStringInfoString(&told, "; ");
}

static int64
prepare(RowChange *change)
{
	note("made", change);
	change->prepared = true;
	return (change->old ? fence_version_raw(change->domains, change->old) : 10) + 1;
}

static void
stored(RowChange *change)
{
	note("stored", change);
}

static const CaptureListener listener = {prepare, stored};

/* The statements of the trial, and for each the result and the reports that are expected */
static const struct
{
	const char *sql;
	int			outcome;
	int64		returned;		/* first column of the row that it returns, else the number of changed rows */
	const char *told;
}			trials[] = {
	{"INSERT INTO fence.floor VALUES (-1, 1), (-2, 2)", SPI_OK_INSERT, 2, "made to 1; stored to 11; made to 2; stored to 11; "},
	{"INSERT INTO fence.floor VALUES (-1, 1) ON CONFLICT DO NOTHING", SPI_OK_INSERT, 0, "made to 1; "},
	{"INSERT INTO fence.floor AS f VALUES (-1, 3), (-3, 3) ON CONFLICT (domain_id) DO UPDATE SET version = 5"
	" WHERE f.domain_id OPERATOR(pg_catalog.=) -2", SPI_OK_INSERT, 1, "made to 3; made to 3; stored to 11; "},
	{"INSERT INTO fence.floor VALUES (-3, 3), (-4, 4) ON CONFLICT (domain_id) DO UPDATE SET version = 5", SPI_OK_INSERT, 2,
	"made to 3; made 11 to 5; stored 11 to 12; made to 4; stored to 11; "},
	{"INSERT INTO fence.floor VALUES (-3, 3) ON CONFLICT (domain_id) DO UPDATE SET version = excluded.version RETURNING version",
	SPI_OK_INSERT_RETURNING, 13, "made to 3; made 12 to 11; stored 12 to 13; "},
	{"UPDATE fence.floor SET version = 5 WHERE domain_id OPERATOR(pg_catalog.=) -1", SPI_OK_UPDATE, 1, "made 11 to 5; stored 11 to 12; "},
	{"UPDATE fence.floor SET version = 5 WHERE domain_id OPERATOR(pg_catalog.=) -1 RETURNING version", SPI_OK_UPDATE_RETURNING, 13,
	"made 12 to 5; stored 12 to 13; "},
	{"WITH w AS (UPDATE fence.floor SET version = 5 WHERE domain_id OPERATOR(pg_catalog.=) -1 RETURNING version) SELECT version FROM w", SPI_OK_SELECT, 14,
	"made 13 to 5; stored 13 to 14; "},
	{"DELETE FROM fence.floor WHERE domain_id OPERATOR(pg_catalog.=) -1 RETURNING version", SPI_OK_DELETE_RETURNING, 14, "made 14; stored 14; "},
	{"DELETE FROM fence.floor WHERE domain_id OPERATOR(pg_catalog.=) -2", SPI_OK_DELETE, 1, "made 11; stored 11; "},
};

/* Executes the statements. Returns a sentence that says what went wrong, or NULL. */
static const char *
run_trials(void)
{
	for (int i = 0; i < (int) lengthof(trials); i++)
	{
		const char *sql = trials[i].sql;
		int			outcome;
		int64		returned;
		bool		isnull;

		resetStringInfo(&told);
		outcome = SPI_execute(sql, false, 0);
		returned = SPI_processed;
		if (SPI_tuptable != NULL && SPI_tuptable->numvals == 1)
			returned = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
		if (outcome != trials[i].outcome || returned != trials[i].returned || strcmp(told.data, trials[i].told) != 0)
			return psprintf("For \"%s\" the executor reported \"%s\" and returned " INT64_FORMAT ".", sql, told.data, returned);
	}
	return NULL;
}

static void
conclude(uint32 result, const char *problem)
{
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	strlcpy(fence_shared->capture_problem, problem ? problem : "", REASON_LEN);
	pg_atomic_write_u32(&fence_shared->capture, result);
	LWLockRelease(fence_shared->lock);
	if (problem != NULL && fence_log_due(problem))
		ereport(WARNING,
				(errmsg("pgcache_fence: row triggers, not the executor, capture changed rows: %s", problem)));
}

/*
 * Creates the file that exists during the trial. A very different executor may crash the server in the trial. The server
 * would restart, run the trial again, and crash again; the file prevents that. Base backups leave out its directory.
 * Returns false if the file exists, which means that the server crashed in the previous trial.
 */
static bool
begin_trial(void)
{
	int			fd = OpenTransientFile(TRIAL_FILE, O_CREAT | O_EXCL | O_WRONLY | PG_BINARY);

	if (fd >= 0)
		CloseTransientFile(fd);
	else if (errno != EEXIST)
		ereport(ERROR, (errcode_for_file_access(), errmsg("could not create file \"%s\": %m", TRIAL_FILE)));
	return fd >= 0;
}

static void
end_trial(int code, Datum arg)
{
	(void) code;
	(void) arg;
	if (unlink(TRIAL_FILE) != 0)
		ereport(LOG, (errcode_for_file_access(), errmsg("could not remove file \"%s\": %m", TRIAL_FILE)));
}

/* Runs the trial. Returns what went wrong (also the message of an error), or NULL. */
static const char *
outcome_of_trial(void)
{
	Domain		domain = {.name = "floor", .relid = fence_table_oid("floor"), .version_attnum = FLOOR_VERSION, .version_type = INT8OID};
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	const char *volatile problem = NULL;
	ErrorData  *error;

	initStringInfo(&told);
	capture_divert(&domain, &listener);
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		problem = run_trials();
		if (problem != NULL)
			problem = MemoryContextStrdup(context, problem);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		problem = error->detail ? error->detail : error->message;
		FlushErrorState();
	}
	PG_END_TRY();
	capture_divert(NULL, NULL);
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return problem;
}

void
capture_test(void)
{
	const char *volatile problem = NULL;

	if (pg_atomic_read_u32(&fence_shared->capture) == CAPTURE_BROKEN)
		return;
	if (!begin_trial())
	{
		end_trial(0, 0);		/* so that the next start of the server tries again */
		conclude(CAPTURE_BROKEN, "The server crashed, or was killed, during the trial of the executor.");
		return;
	}
	PG_ENSURE_ERROR_CLEANUP(end_trial, 0);
	problem = outcome_of_trial();
	PG_END_ENSURE_ERROR_CLEANUP(end_trial, 0);
	end_trial(0, 0);
	conclude(problem ? CAPTURE_FAILED : CAPTURE_WORKS, problem);
}
