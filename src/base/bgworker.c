/*
 * base/bgworker.c
 *	  What all background workers have in common: registration, signals, one turn of the main loop, transactions, and
 *	  the list of databases.
 *
 * Owns no state. Takes a lock on pg_database only to read it.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/bgworker.h"
#include "base/settings.h"

void
worker_describe(BackgroundWorker *worker, const char *name, const char *function)
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
worker_signals(void)
{
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	/*
	 * BackgroundWorkerMain ignores SIGHUP. A SIGHUP between the fork and this point is lost, so we read the settings
	 * once more.
	 */
	ConfigReloadPending = true;
}

bool
worker_next_turn(void)
{
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
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

		/* datconnlimit is -2 after an interrupted DROP DATABASE; nobody can connect to such a database */
		if (!database->datallowconn || database->datconnlimit == -2)
			continue;
		/* a worker connected to template1 would make CREATE DATABASE fail */
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
	bool		exists;

	StartTransactionCommand();
	exists = SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database));
	CommitTransactionCommand();
	return exists;
}
