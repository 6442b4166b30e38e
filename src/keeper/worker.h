/*
 * keeper/worker.h
 *	  The background workers, and those that do jobs inside a database (base/jobs.h).
 */
#ifndef FENCE_WORKER_H
#define FENCE_WORKER_H

#define WORKERS_THAT_STAY	5	/* keeper, patrol, courier, two reserves: each has a slot all the time */

/* Registers them; only while shared_preload_libraries is processed. */
extern void worker_install(void);

#endif
