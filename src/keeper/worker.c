/*
 * keeper/worker.c
 *	  Registers all background workers, and has the code of those that do the jobs of keeper and patrol inside a
 *	  database. base/jobs.h tells how a job reaches its worker.
 *
 * Locks: fence_shared->lock, for copies only; and the locks of the statements that it runs on the extension's tables.
 *
 * These workers run as the bootstrap superuser, with pg_catalog as search_path. Their lock_timeout is short, because
 * the keeper waits for some of them: a session that locks one of the extension's tables must not stop the keeper.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "base/bgworker.h"
#include "base/jobs.h"
#include "base/key_text.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/stamp.h"
#include "domain/catalog.h"
#include "domain/shape.h"
#include "keeper/cluster_row.h"
#include "keeper/worker.h"
#include "patrol/patrol.h"
#include "redis/library.h"
#include "write/capture.h"
#include "write/capture_test.h"
#include "write/detached.h"

PGDLLEXPORT void fence_job_main(Datum arg);
PGDLLEXPORT void fence_reserve_main(Datum arg);

/* -----------------------------------------------------------------------------------------------------------------
 * Registering
 * -----------------------------------------------------------------------------------------------------------------
 */

void
worker_install(void)
{
	BackgroundWorker worker;

	worker_describe(&worker, "pgcache_fence keeper", "fence_keeper_main");
	worker.bgw_start_time = BgWorkerStart_ConsistentState;	/* a standby has one too */
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
	worker_describe(&worker, "pgcache_fence patrol", "fence_patrol_main");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
	worker_describe(&worker, "pgcache_fence courier", "fence_courier_main");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
	for (int whose = 0; whose < JOBS_OF_COUNT; whose++)
	{
		worker_describe(&worker, job_names[whose], "fence_reserve_main");
		worker.bgw_main_arg = Int32GetDatum(whose);
		/* Not 0: when a fork fails, the postmaster would try again and again without a pause. */
		worker.bgw_restart_time = 1;
		RegisterBackgroundWorker(&worker);
	}
}

/*
 * Connects a short-lived worker to a database. Sets a safe search_path, and timeouts with which the worker delays
 * nobody.
 */
static void
begin_in(Oid database)
{
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	/* ALTER DATABASE ... SET must not change the worker's role or behaviour. */
	SetConfigOption("role", "none", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "pg_catalog, pg_temp", PGC_SUSET, PGC_S_OVERRIDE);
	/*
	 * Shorter than deadlock_timeout's default: if DROP EXTENSION and a worker wait for each other, the worker gives
	 * up first.
	 */
	SetConfigOption("lock_timeout", "300ms", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("statement_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	if (GetConfigOption("transaction_timeout", true, false) != NULL)	/* from 17 on */
		SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("row_security", "off", PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * c8: Reserves domains for prepared transactions. A Redis process that receives slots knows nothing of transactions
 * that were prepared before. So for each prepared transaction that holds a write lock on a fenced table, this
 * reserves the whole domain at the process. It does so before the domain is announced there, so before anybody can
 * read there. If such a transaction ends at this moment, the patrol ends the reservation.
 */
static bool
reserve_for_prepared(LibraryCall *call, uint32 epoch)
{
	if (SPI_execute("SELECT DISTINCT d.name, p.transaction::pg_catalog.text::bigint"
					"  FROM pg_catalog.pg_prepared_xacts p"
	/* The locks of a prepared transaction have the same virtual transaction as the lock on its xid. */
					"  JOIN pg_catalog.pg_locks x ON x.locktype OPERATOR(pg_catalog.=) 'transactionid' AND x.pid IS NULL"
					"    AND x.transactionid OPERATOR(pg_catalog.=) p.transaction"
					"  JOIN pg_catalog.pg_locks l ON l.virtualtransaction OPERATOR(pg_catalog.=) x.virtualtransaction AND l.pid IS NULL"
					"  JOIN fence.domain d ON d.relation OPERATOR(pg_catalog.=) l.relation OR d.relation OPERATOR(pg_catalog.=)"
					"    ANY (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(l.relation) a)"
					"  JOIN pg_catalog.pg_database b ON b.oid OPERATOR(pg_catalog.=) l.database"
					" WHERE l.locktype OPERATOR(pg_catalog.=) 'relation' AND p.database OPERATOR(pg_catalog.=) b.datname"
					"   AND b.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"
					"   AND l.mode OPERATOR(pg_catalog.<>) ALL (ARRAY['AccessShareLock', 'RowShareLock'])", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not list prepared transactions");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		HeapTuple	row = SPI_tuptable->vals[i];
		char	   *name = SPI_getvalue(row, SPI_tuptable->tupdesc, 1);
		int64		xid = DatumGetInt64(SPI_getbinval(row, SPI_tuptable->tupdesc, 2, &isnull));

		if (!library_domain_reserve(call, epoch, key_domain_name(name), fence_stamp_of((TransactionId) xid)))
			return false;
	}
	return true;
}

/*
 * Records what triggers depend on after pg_upgrade. pg_upgrade creates the triggers while fence.domain is still
 * empty, because it copies the rows as files, so nothing could record the dependencies then. The statement trigger of
 * fence.domain records them for all domains. Any statement fires it, even one that changes no row.
 */
static void
complete_upgraded(void)
{
	if (SPI_execute("SELECT FROM fence.domain d JOIN pg_catalog.pg_trigger t ON t.tgrelid OPERATOR(pg_catalog.=) d.relation"
					" WHERE t.tgname OPERATOR(pg_catalog.=) 'zzz_pgcache_fence_after'"
					" AND d.key_columns OPERATOR(pg_catalog.<>) '{}' AND NOT EXISTS ("
					"  SELECT FROM pg_catalog.pg_depend p"
					"   WHERE p.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_trigger'::pg_catalog.regclass"
					"   AND p.objid OPERATOR(pg_catalog.=) t.oid"
					"   AND p.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass"
					"   AND p.refobjid OPERATOR(pg_catalog.=) d.relation AND p.refobjsubid OPERATOR(pg_catalog.>) 0)",
					true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read what triggers depend on");
	if (SPI_processed > 0 && SPI_execute("UPDATE fence.domain SET id = id WHERE false", false, 0) != SPI_OK_UPDATE)
		elog(ERROR, "could not record what triggers depend on");
}

/*
 * Announces a domain as withdrawn if its triggers are not as fence.attach made them: a write could then pass without
 * a reservation. So Redis gives its readers no permit. Once the triggers are right again, the next announcement
 * serves the domain again.
 */
static void
withdraw_misshapen(List *domains)
{
	ListCell   *cell;

	foreach(cell, domains)
	{
		DomainRef  *domain = lfirst(cell);
		char	   *fault = shape_fault_of_domain(domain->row);

		if (fault == NULL)
			continue;
		domain->publish = PUBLISH_WITHDRAWN;
		if (fence_log_due(domain->redis_name))
			ereport(LOG,
					(errmsg("pgcache_fence: domain \"%s\" is not served, because its table is no longer fenced", domain->row->name),
					 errdetail("%s", fault)));
	}
}

/*
 * Whether an attachment that Redis refused, because it had ended, exists in fence.domain. Redis hears of the end of
 * an attachment only after the end is committed and visible. This function takes its snapshot after Redis has
 * refused. An attachment that has really ended is not in that snapshot. One that is there has come back from a dump.
 */
static bool
still_there(List *domains)
{
	ListCell   *announced;
	ListCell   *now;
	List	   *present = NIL;

	foreach(announced, domains)
	{
		if (!((DomainRef *) lfirst(announced))->refused)
			continue;
		if (present == NIL)
			present = domain_rows();
		foreach(now, present)
			if (((DomainRow *) lfirst(now))->id == ((DomainRef *) lfirst(announced))->id)
				return true;
	}
	return false;
}

/*
 * Announces the attachments of this database to all Redis processes that have slots.
 *
 * The snapshot that lists them is newer than the epoch and than the last change to OPEN, so no attachment is in it
 * that was detached before. A process may have received slots since this database was announced last. Such a process
 * first gets reservations for prepared transactions and for detached reservations. The announcement carries the
 * number of the grant. If the grant has changed since the keeper started the job, the job fails.
 */
static void
announce_domains(FenceJob *job)
{
	List	   *domains = domain_list();
	ListCell   *cell;
	LibraryCall call;
	int			nnodes;
	uint32		epoch = (uint32) strtoul(job->epoch, NULL, 10);
	bool		superseded;
	FenceNode  *nodes = palloc(sizeof(FenceNode) * MAX_NODES);

	foreach(cell, domains)
		(void) metrics_slot(((DomainRef *) lfirst(cell))->redis_name);	/* the views show the counters, at 0, from now on */
	withdraw_misshapen(domains);
	if (domains == NIL)
		return;
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	nnodes = fence_shared->nnodes;
	memcpy(nodes, fence_shared->nodes, sizeof(FenceNode) * nnodes);
	superseded = fence_shared->grant != job->grant;
	LWLockRelease(fence_shared->lock);
	if (superseded)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not announce the fenced tables to Redis: a new epoch began meanwhile")));
	for (int i = 0; i < nnodes; i++)
	{
		if (!nodes[i].granted)
			continue;
		call.deadline = fence_clock() + setting_timeout_us() * 2;
		if (!library_open(&call, &nodes[i].address) ||
			(nodes[i].received > job->carried && !(reserve_for_prepared(&call, epoch) &&
												   detached_carry(&call, i, epoch))) ||
			!library_announce(&call, epoch, job->grant, domains))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not announce the fenced tables to Redis: %s", call.error)));
		redis_close(call.conn);
	}
	job->restored = still_there(domains);
}

/* Does a job of the keeper in this database. */
static void
do_keepers_job(FenceJob *job)
{
	pgstat_report_activity(STATE_RUNNING, job_names[JOBS_OF_KEEPER]);
	worker_begin_transaction();
	job->extension = OidIsValid(fence_table_oid("cluster"));
	if (job->extension)
	{
		SPI_connect();
		switch ((JobKind) job->kind)
		{
			case JOB_LOAD:
				cluster_row_load(job);
				break;
			case JOB_STORE:
				cluster_row_store(job);
				break;
			case JOB_ANNOUNCE:
				cluster_row_store(job);	/* in each database, because after a restart the keeper may read any of them first */
				if (job->carried == 0)
					complete_upgraded();
				announce_domains(job);
				break;
			case JOB_ROUND:
				break;
		}
		if (!RecoveryInProgress() && capture_problem() != NULL)
			capture_test();
		SPI_finish();
	}
	worker_end_transaction();
	fence_database_note(job->database, job->extension);
}

/* Does the job that has this serial. Does nothing if the keeper or the patrol has given that job up. */
static void
do_job(JobsOf whose, uint32 serial)
{
	FenceJob   *shared = &fence_shared->jobs[whose];
	FenceJob	job;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	job = *shared;
	LWLockRelease(fence_shared->lock);
	if (job.serial != serial)
		return;
	begin_in(job.database);
	if (job.kind == JOB_ROUND)
		patrol_round(&job);
	else
		do_keepers_job(&job);
	job.done = true;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	if (shared->serial == job.serial)
		*shared = job;
	LWLockRelease(fence_shared->lock);
}

/* Main function of a worker that was started for one job. */
void
fence_job_main(Datum arg)
{
	uint32		serial;

	worker_signals();
	memcpy(&serial, MyBgworkerEntry->bgw_extra, sizeof(serial));
	do_job((JobsOf) DatumGetInt32(arg), serial);
	proc_exit(0);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The reserves
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Runs at any exit of a reserve, also by FATAL: the job that it was doing has ended too. */
static void
reserve_exit(int code, Datum arg)
{
	JobsOf		whose = (JobsOf) DatumGetInt32(arg);
	FenceReserve *reserve = &fence_shared->reserves[whose];
	struct Latch *waiting = fence_shared->latches[whose];

	(void) code;
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	if (reserve->at_work)
		reserve->wanted = 0;
	reserve->at_work = false;
	reserve->latch = NULL;
	LWLockRelease(fence_shared->lock);
	if (waiting)
		SetLatch(waiting);
}

/* Takes the job that waits for this reserve, and returns its serial; 0: no job waits. */
static uint32
take_job(FenceReserve *reserve)
{
	uint32		serial;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	serial = reserve->wanted;
	reserve->at_work = serial != 0;
	LWLockRelease(fence_shared->lock);
	return serial;
}

void
fence_reserve_main(Datum arg)
{
	JobsOf		whose = (JobsOf) DatumGetInt32(arg);
	FenceReserve *reserve = &fence_shared->reserves[whose];
	uint32		serial;

	worker_signals();
	before_shmem_exit(reserve_exit, arg);
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	reserve->exists = true;
	reserve->pid = MyProcPid;
	reserve->latch = MyLatch;
	LWLockRelease(fence_shared->lock);
	for (;;)
	{
		(void) worker_next_turn();
		serial = take_job(reserve);
		if (serial != 0)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1, wait_event_worker());
	}
	do_job(whose, serial);
	proc_exit(1);				/* with exit code 0 the postmaster would not start it again, and would free its slot */
}
