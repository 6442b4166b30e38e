/*
 * worker.c
 *	  Registering background workers, and the short-lived ones that do the keeper's work inside a database.
 *
 * Owns: fence.cluster, the durable part of the protocol's state. Workers run as the bootstrap superuser with pg_catalog as
 * search_path and a short lock_timeout: a lock that somebody holds on our tables must not hold the keeper.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "detached.h"
#include "domain.h"
#include "metrics.h"
#include "redis/library.h"
#include "settings.h"
#include "shape.h"
#include "shared.h"
#include "stamp.h"
#include "worker.h"

PGDLLEXPORT void fence_job_main(Datum arg);

static BackgroundWorkerHandle *job_handle = NULL;

/* -----------------------------------------------------------------------------------------------------------------
 * Registering
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
describe(BackgroundWorker *worker, const char *name, const char *function)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "pgcache_fence", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker->bgw_name, name, BGW_MAXLEN);
	strlcpy(worker->bgw_type, name, BGW_MAXLEN);
}

void
worker_install(void)
{
	BackgroundWorker worker;

	describe(&worker, "pgcache_fence keeper", "fence_keeper_main");
	worker.bgw_start_time = BgWorkerStart_ConsistentState;	/* a standby has one too */
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
	describe(&worker, "pgcache_fence patrol", "fence_patrol_main");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
	describe(&worker, "pgcache_fence courier", "fence_courier_main");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

static BackgroundWorkerHandle *
start_dynamic(const char *name, const char *function, Oid database, const void *extra, size_t len)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle = NULL;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	describe(&worker, name, function);
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	memcpy(worker.bgw_extra, extra, len);
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		handle = NULL;
	MemoryContextSwitchTo(old);
	return handle;
}

BackgroundWorkerHandle *
worker_start_patrol(Oid database, char duties)
{
	return start_dynamic("pgcache_fence patrol round", "fence_patrol_round_main", database, &duties, 1);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Jobs, seen by the keeper
 * -----------------------------------------------------------------------------------------------------------------
 */

bool
job_start(const FenceJob *job)
{
	uint32		serial;

	Assert(job_handle == NULL);
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	serial = fence_shared->job.serial + 1;
	fence_shared->job = *job;
	fence_shared->job.serial = serial;
	fence_shared->job.done = false;
	fence_shared->job.extension = false;
	fence_shared->job.has_row = false;
	fence_shared->job.error[0] = '\0';
	LWLockRelease(fence_shared->lock);
	job_handle = start_dynamic("pgcache_fence job", "fence_job_main", job->database, &serial, sizeof(serial));
	return job_handle != NULL;
}

bool
job_running(void)
{
	pid_t		pid;

	if (job_handle == NULL)
		return false;
	if (GetBackgroundWorkerPid(job_handle, &pid) != BGWH_STOPPED)
		return true;
	pfree(job_handle);
	job_handle = NULL;
	return false;
}

bool
job_abandon(void)
{
	if (!job_running())
		return false;
	TerminateBackgroundWorker(job_handle);
	pfree(job_handle);
	job_handle = NULL;
	return true;
}

bool
job_finish(FenceJob *job, int64 deadline)
{
	while (job_running())
	{
		int64		left = deadline - fence_clock();

		if (left <= 0)
		{
			(void) job_abandon();
			break;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (left / 1000 + 1), wait_event_worker());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	*job = fence_shared->job;
	LWLockRelease(fence_shared->lock);
	if (!job->done && job->error[0] == '\0')
		snprintf(job->error, sizeof(job->error), "a worker in database %u failed; the server log tells why", job->database);
	return job->done;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Inside a database
 * -----------------------------------------------------------------------------------------------------------------
 */

void
worker_signals(void)
{
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	/* BackgroundWorkerMain ignores SIGHUP: one that came after the fork and before that is lost, with what it told */
	ConfigReloadPending = true;
}

void
worker_begin(Oid database)
{
	worker_signals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	/* ALTER DATABASE ... SET must not change what we are and may */
	SetConfigOption("role", "none", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "pg_catalog, pg_temp", PGC_SUSET, PGC_S_OVERRIDE);
	/* shorter than deadlock_timeout: if DROP EXTENSION and a worker wait for each other, the worker gives way */
	SetConfigOption("lock_timeout", "300ms", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("statement_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("row_security", "off", PGC_SUSET, PGC_S_OVERRIDE);
}

void
worker_begin_transaction(void)
{
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
worker_end_transaction(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static void
load_cluster(FenceJob *job)
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

/* The row only ever grows: a lease longer than the present setting may still run. */
static void
store_cluster(const FenceJob *job)
{
	Oid			types[] = {INT8OID, INT4OID};
	Datum		values[] = {Int64GetDatum(job->epoch_number), Int32GetDatum(job->longest_lease)};

	if (SPI_execute_with_args("INSERT INTO fence.cluster AS c (last_epoch, longest_lease)"
							  " VALUES ($1, $2 OPERATOR(pg_catalog.*) interval '1 millisecond')"
							  " ON CONFLICT (only_row) DO UPDATE"
							  " SET last_epoch = greatest(c.last_epoch, excluded.last_epoch),"
							  "     longest_lease = greatest(c.longest_lease, excluded.longest_lease)"
							  " WHERE c.last_epoch OPERATOR(pg_catalog.<) excluded.last_epoch"
							  " OR c.longest_lease OPERATOR(pg_catalog.<) excluded.longest_lease",
							  2, types, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not write fence.cluster");
}

/*
 * Transactions that were prepared before a process was granted its slots and hold a fenced table: it knows nothing of them,
 * so each becomes a reservation of the whole domain, before anything of the domain is announced and could be read there [c8].
 * One that ends right now is settled by the patrol.
 */
static bool
reserve_for_prepared(LibraryCall *call, const char *epoch)
{
	if (SPI_execute("SELECT DISTINCT d.name, p.transaction::pg_catalog.text::bigint"
					"  FROM pg_catalog.pg_prepared_xacts p"
	/* whose locks they are: those that share the virtual transaction with the lock of the xid itself */
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

		if (!library_domain_reserve(call, epoch, domain_wire_name(name), fence_stamp_of((TransactionId) xid)))
			return false;
	}
	return true;
}

/*
 * pg_upgrade makes the triggers while fence.domain is still empty (its rows come as files), so nobody could record what
 * they depend on. The trigger of fence.domain does, for all of them, whatever the statement.
 */
static void
complete_upgraded(void)
{
	if (SPI_execute("SELECT FROM fence.domain d JOIN pg_catalog.pg_trigger t ON t.tgrelid OPERATOR(pg_catalog.=) d.relation"
					" WHERE t.tgname OPERATOR(pg_catalog.=) 'zzz_pgcache_fence_after'"
					" AND d.scope OPERATOR(pg_catalog.<>) 'manual' AND NOT EXISTS ("
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
 * A domain whose triggers are not as they should be is not announced, and ends where it was: writes may pass it unfenced. Once they are,
 * it is served again.
 */
static void
withdraw_misshapen(List *domains)
{
	ListCell   *cell;

	foreach(cell, domains)
	{
		DomainRef  *domain = lfirst(cell);
		char	   *fault = shape_fault_of_domain(domain->row, NULL);

		if (fault == NULL)
			continue;
		domain->publish = PUBLISH_WITHDRAWN;
		if (fence_log_due(domain->wire_name))
			ereport(LOG,
					(errmsg("pgcache_fence: nothing of domain \"%s\" is served, because its table is not fenced any more", domain->row->name),
					 errdetail("%s", fault)));
	}
}

/*
 * The attachments of this database, in a snapshot taken after the epoch began, and after fences were opened the last time: what
 * was detached before is not in it. Where slots were granted since the database was announced last, what was prepared or
 * reserved detached before goes first. All of that belongs to one grant: where readers are answered from now on is said with
 * its number, and the nodes to which it gave something are told with it.
 */
static void
announce_domains(FenceJob *job)
{
	List	   *domains = domain_list();
	ListCell   *cell;
	LibraryCall call = {.conn = NULL};
	RedisUrl	url;
	int			nnodes;
	bool		superseded;
	FenceNode  *nodes = palloc(sizeof(FenceNode) * MAX_NODES);

	foreach(cell, domains)
		(void) metrics_slot(((DomainRef *) lfirst(cell))->wire_name);	/* counters are there, at 0, before they are needed */
	withdraw_misshapen(domains);
	if (domains == NIL || redis_url_parse(setting_redis_url, &url) != NULL)
		return;
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	nnodes = fence_shared->nnodes;
	memcpy(nodes, fence_shared->nodes, sizeof(FenceNode) * nnodes);
	superseded = fence_shared->grant != job->grant;
	LWLockRelease(fence_shared->lock);
	if (superseded)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not announce the fenced tables to Redis: fences were opened anew meanwhile")));
	for (int i = 0; i < nnodes; i++)
	{
		int			refused = 0;

		if (!nodes[i].granted)
			continue;
		call.deadline = fence_clock() + setting_timeout * INT64CONST(1000) * 2;
		call.conn = redis_open(&nodes[i].address, &url, call.deadline, call.error, REASON_LEN);
		if (call.conn == NULL ||
			(nodes[i].received > job->carried && !(reserve_for_prepared(&call, job->epoch) &&
												   detached_carry(&call, i, job->epoch))) ||
			!library_announce(&call, job->epoch, job->grant, domains, &refused))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not announce the fenced tables to Redis: %s", call.error)));
		job->refused += refused;
		redis_close(call.conn);
	}
}

void
fence_job_main(Datum arg)
{
	FenceJob	job;
	uint32		serial;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	job = fence_shared->job;
	LWLockRelease(fence_shared->lock);
	memcpy(&serial, MyBgworkerEntry->bgw_extra, sizeof(serial));
	if (job.serial != serial)
		proc_exit(0);			/* given up before it began; the next one has its own worker */

	worker_begin(DatumGetObjectId(arg));
	pgstat_report_activity(STATE_RUNNING, "pgcache_fence job");
	worker_begin_transaction();
	job.extension = OidIsValid(fence_table_oid("cluster"));
	if (job.extension)
	{
		SPI_connect();
		switch ((JobKind) job.kind)
		{
			case JOB_LOAD:
				load_cluster(&job);
				break;
			case JOB_STORE:
				store_cluster(&job);
				break;
			case JOB_ANNOUNCE:
				store_cluster(&job);	/* in each database: whichever is the first one after a restart */
				if (job.carried == 0)
					complete_upgraded();
				announce_domains(&job);
				break;
		}
		SPI_finish();
	}
	worker_end_transaction();
	job.done = true;
	fence_database_note(job.database, job.extension);

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	if (fence_shared->job.serial == job.serial)
		fence_shared->job = job;
	LWLockRelease(fence_shared->lock);
	proc_exit(0);
}

List *
worker_list_databases(bool all)
{
	List	   *databases = NIL;
	MemoryContext caller = CurrentMemoryContext;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	row;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((row = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(row);
		MemoryContext old;

		/* -2: DROP DATABASE was interrupted, nobody can connect */
		if (!database->datallowconn || database->datconnlimit == -2)
			continue;
		/* who makes a database must not find us in template1 */
		if (all ? database->oid == Template1DbOid :
			database->datistemplate || !settings_serves_database(NameStr(database->datname)))
			continue;
		old = MemoryContextSwitchTo(caller);
		databases = lappend_oid(databases, database->oid);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	list_sort(databases, list_oid_cmp);
	return databases;
}

bool
worker_database_exists(Oid database)
{
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key;
	bool		exists;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_database_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(database));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 1, &key);
	exists = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	return exists;
}
