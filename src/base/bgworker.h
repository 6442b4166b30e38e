/*
 * base/bgworker.h
 *	  What all background workers have in common.
 */
#ifndef FENCE_BGWORKER_H
#define FENCE_BGWORKER_H

#include "postmaster/bgworker.h"
#include "nodes/pg_list.h"

/*
 * Fills in the registration of a worker with this name that runs this C function of our library. The worker uses shared
 * memory and a database, and starts when recovery is over. It is not restarted unless the caller changes that.
 */
extern void worker_describe(BackgroundWorker *worker, const char *name, const char *function);

/*
 * Sets up the signals of a worker that starts no jobs; this is the worker's first step. Sets ConfigReloadPending,
 * because a SIGHUP before this call may be lost.
 */
extern void worker_signals(void);

/*
 * Each turn of a worker's loop begins with this call. It resets the latch, handles interrupts and reloads changed
 * settings. Returns whether it reloaded them.
 */
extern bool worker_next_turn(void);

/* Begin and end a transaction of a worker that is connected to a database. The caller has set a safe search_path. */
extern void worker_begin_transaction(void);
extern void worker_end_transaction(void);

/*
 * Returns a sorted List of Oid: the databases that pgcache_fence.databases names, or (all) every database that accepts
 * connections except template1. Runs a transaction of its own.
 */
extern List *worker_list_databases(bool all);

/* Returns whether the database exists, even if nobody may connect to it. Runs a transaction of its own. */
extern bool worker_database_exists(Oid database);

#endif
