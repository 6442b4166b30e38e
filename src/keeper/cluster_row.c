/*
 * keeper/cluster_row.c
 *	  The row of fence.cluster, which is the durable part of the protocol's state in each database.
 *
 * Owns: the table fence.cluster.
 * Locks: the row's lock, in the transaction of the worker that stores. fence_shared->lock, for copies only.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "base/settings.h"
#include "base/shared.h"
#include "keeper/cluster_row.h"
#include "send/ledger.h"

PG_FUNCTION_INFO_V1(fence_initialise);

#define KEEPER_PATIENCE INT64CONST(5000000)	/* microseconds for which CREATE EXTENSION waits for the keeper after a server start */

void
cluster_row_load(FenceJob *job)
{
	if (SPI_execute("SELECT last_epoch, (EXTRACT(epoch FROM longest_lease) OPERATOR(pg_catalog.*) 1000)::int FROM fence.cluster",
					true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read fence.cluster");
	job->has_row = SPI_processed > 0;
	if (job->has_row)
	{
		bool		isnull;
		HeapTuple	row = SPI_tuptable->vals[0];

		job->epoch_number = DatumGetInt64(SPI_getbinval(row, SPI_tuptable->tupdesc, 1, &isnull));
		job->longest_lease = DatumGetInt32(SPI_getbinval(row, SPI_tuptable->tupdesc, 2, &isnull));
	}
}

/* Whether the keeper has given this job up and started another one. */
static bool
is_superseded(const FenceJob *job)
{
	bool		superseded;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	superseded = fence_shared->jobs[JOBS_OF_KEEPER].serial != job->serial;
	LWLockRelease(fence_shared->lock);
	return superseded;
}

/*
 * Unless job->lower is set, a lease longer than the present setting may still run, so the values in the row only
 * grow.
 *
 * The keeper may give up a job that lowers the row, and start one that raises it while the first is still running.
 * The lock on the row makes that safe. If the raising job gets the lock first, the lowering job then finds that it
 * was superseded, and rolls back. If the lowering job gets it first, the raising job waits, and raises the row
 * afterwards.
 */
void
cluster_row_store(const FenceJob *job)
{
	Oid			types[] = {INT8OID, INT4OID, BOOLOID};
	Datum		values[] = {Int64GetDatum(job->epoch_number), Int32GetDatum(job->longest_lease), BoolGetDatum(job->lower)};

	if (SPI_execute_with_args("INSERT INTO fence.cluster AS c (last_epoch, longest_lease)"
							  " VALUES ($1, $2 OPERATOR(pg_catalog.*) interval '1 millisecond')"
							  " ON CONFLICT (only_row) DO UPDATE"
							  " SET last_epoch = greatest(c.last_epoch, excluded.last_epoch),"
							  "     longest_lease = CASE WHEN $3 THEN excluded.longest_lease"
							  "      ELSE greatest(c.longest_lease, excluded.longest_lease) END"
							  " WHERE c.last_epoch OPERATOR(pg_catalog.<) excluded.last_epoch"
							  "  OR c.longest_lease OPERATOR(pg_catalog.<) excluded.longest_lease"
							  "  OR ($3 AND c.longest_lease OPERATOR(pg_catalog.>) excluded.longest_lease)",
							  3, types, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not write fence.cluster");
	if (job->lower && is_superseded(job))
		elog(ERROR, "could not lower the longest lease: another job has begun");
}

/*
 * CREATE EXTENSION calls this to write the row of fence.cluster with what this server knows. Without the row, the
 * next start would have to assume the longest possible lease. After a server start the keeper needs a moment to know
 * the values, so this waits for it.
 */
Datum
fence_initialise(PG_FUNCTION_ARGS)
{
	int64		deadline = fence_clock() + KEEPER_PATIENCE;
	Oid			types[] = {INT8OID, INT4OID};
	Datum		values[2];

	(void) fcinfo;
	shared_require();
	while (!fence_shared->bound_known && fence_clock() < deadline)
		fence_pause(10000, wait_event_worker());
	values[0] = Int64GetDatum(fence_shared->last_epoch);
	values[1] = Int32GetDatum(fence_shared->bound_known ? fence_shared->longest_lease : LEASE_MAX_MS);
	if (SPI_connect() != SPI_OK_CONNECT ||
		SPI_execute_with_args("INSERT INTO fence.cluster (last_epoch, longest_lease)"
							  " VALUES ($1, $2 OPERATOR(pg_catalog.*) interval '1 millisecond')", 2, types, values, NULL, false, 0) != SPI_OK_INSERT ||
		SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not write fence.cluster");
	ledger_catalog_changed();
	PG_RETURN_VOID();
}
