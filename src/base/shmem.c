/*
 * base/shmem.c
 *	  Requests shared memory at server start and gives each part to the file that owns it.
 *
 * Owns: the layout of the parts. Takes AddinShmemInitLock while it initialises them.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/buckets.h"
#include "base/metrics.h"
#include "base/send_queue.h"
#include "base/shared.h"
#include "base/shmem.h"

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

/* The parts, in the order in which they lie in memory */
static const struct
{
	Size		(*size) (void);
	void		(*initialise) (void *memory);
	void		(*use) (void *memory);
}			parts[] = {
	{shared_size, shared_initialise, shared_use},
	{metrics_size, metrics_initialise, metrics_use},
	{buckets_size, buckets_initialise, buckets_use},
	{send_queue_size, send_queue_initialise, send_queue_use},
};

static Size
size_of_all(void)
{
	Size		size = 0;

	for (int i = 0; i < (int) lengthof(parts); i++)
		size = add_size(size, CACHELINEALIGN(parts[i].size()));
	return size;
}

static void
request(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(size_of_all());
	RequestNamedLWLockTranche("pgcache_fence", 1);
}

static void
startup(void)
{
	bool		found;
	char	   *part;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	part = ShmemInitStruct("pgcache_fence", size_of_all(), &found);
	for (int i = 0; i < (int) lengthof(parts); i++)
	{
		if (!found)
			parts[i].initialise(part);
		parts[i].use(part);
		part += CACHELINEALIGN(parts[i].size());
	}
	LWLockRelease(AddinShmemInitLock);
}

void
shmem_install(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}
