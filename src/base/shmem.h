/*
 * base/shmem.h
 *	  Requests shared memory. The file that owns a part describes its contents: shared.h, metrics.h, send_queue.h.
 */
#ifndef FENCE_SHMEM_H
#define FENCE_SHMEM_H

/* Installs the hooks that request and initialise shared memory. Call it only while shared_preload_libraries is processed. */
extern void shmem_install(void);

#endif
