/*
 * worker.h
 *	  Background workers: the two that always run, and short-lived ones inside a database.
 *
 * Only short-lived workers are connected to a database, so DROP DATABASE never waits for more than a moment.
 */
#ifndef FENCE_WORKER_H
#define FENCE_WORKER_H

#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"
#include "shared.h"

typedef enum JobKind
{
	JOB_LOAD,					/* is the extension here? the row of fence.cluster */
	JOB_STORE,					/* write epoch_number and longest_lease to fence.cluster */
	JOB_ANNOUNCE				/* tell Redis the attached domains of this database */
} JobKind;

/* Registers keeper and patrol; only while shared_preload_libraries is processed. */
extern void worker_install(void);

/*
 * Starts a job for the keeper; database and what the kind needs are set in `job`. False: no worker slot is free.
 * The result is in fence_shared->job once job_running is false.
 */
extern bool job_start(const FenceJob *job);
extern bool job_running(void);

/* Waits for the job until deadline (fence_clock() microseconds), then ends it. False: it failed; job->error tells. */
extern bool job_finish(FenceJob *job, int64 deadline);

/* Ends a job whose result nobody wants any more; whether there was one. */
extern bool job_abandon(void);

/* Starts a patrol round with these duties (patrol.c) in a database; NULL: no worker slot is free. */
extern BackgroundWorkerHandle *worker_start_patrol(Oid database, char duties);

/* The first step of every worker: its signals. ConfigReloadPending is set, for a SIGHUP before that may be lost. */
extern void worker_signals(void);

/* For the main functions of short-lived workers: signals, connection, a transaction with a safe search_path. */
extern void worker_begin(Oid database);
extern void worker_begin_transaction(void);
extern void worker_end_transaction(void);

/* The databases that are served, or all that can be connected to but template1: a List of Oid, ascending. Runs a transaction. */
extern List *worker_list_databases(bool all);

/* Whether there is such a database, whoever may connect to it. Runs a transaction. */
extern bool worker_database_exists(Oid database);

#endif
