/*
 * base/bgworker.h
 *	  What all background workers do alike.
 */
#ifndef FENCE_BGWORKER_H
#define FENCE_BGWORKER_H

#include "postmaster/bgworker.h"
#include "nodes/pg_list.h"

/* A worker of that name, which runs that function of ours, with shared memory and a database, once recovery is over, and not again. */
extern void worker_describe(BackgroundWorker *worker, const char *name, const char *function);

/* The first step of a worker that starts no jobs: its signals. ConfigReloadPending is set, for a SIGHUP before that may be lost. */
extern void worker_signals(void);

/* Each turn of a worker's loop begins with it: latch, interrupts, settings. Whether these were read again. */
extern bool worker_next_turn(void);

/* Transactions of a worker in a database, with a safe search_path. */
extern void worker_begin_transaction(void);
extern void worker_end_transaction(void);

/* The databases that are served, or all that can be connected to but template1: a List of Oid, ascending. Runs a transaction. */
extern List *worker_list_databases(bool all);

/* Whether there is such a database, whoever may connect to it. Runs a transaction. */
extern bool worker_database_exists(Oid database);

#endif
