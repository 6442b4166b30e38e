/*
 * keeper/worker.h
 *	  Registers the background workers that stay, and runs the short-lived ones that do jobs inside a database
 *	  (base/jobs.h).
 */
#ifndef FENCE_WORKER_H
#define FENCE_WORKER_H

#define WORKERS_THAT_STAY	5	/* keeper, patrol, courier and two reserves: each keeps its worker slot as long as the server runs */

/* Registers these five. Works only while shared_preload_libraries is processed. */
extern void worker_install(void);

#endif
