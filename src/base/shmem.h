/*
 * base/shmem.h
 *	  Getting shared memory; what is in it, its owners tell.
 */
#ifndef FENCE_SHMEM_H
#define FENCE_SHMEM_H

/* Requests and initialises shared memory; installs the hooks. Only while shared_preload_libraries is processed. */
extern void shmem_install(void);

#endif
