/*
 * base/shmem.h
 *	  Requests our shared memory. What each part holds is described where it is owned: shared.h, metrics.h, send_queue.h.
 */
#ifndef FENCE_SHMEM_H
#define FENCE_SHMEM_H

/* Requests and initialises shared memory; installs the hooks. Only while shared_preload_libraries is processed. */
extern void shmem_install(void);

#endif
