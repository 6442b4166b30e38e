/*
 * base/jobs.c
 *	  Starts jobs inside databases and waits for them; see jobs.h. keeper/worker.c executes them.
 *
 * Owns: the process-local state of the one job that this process has started. Takes the lock of shared memory for
 * copies only, and never waits while it holds the lock.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/bgworker.h"
#include "base/jobs.h"
#include "base/shared.h"

const char *const job_names[JOBS_OF_COUNT] = {"pgcache_fence job", "pgcache_fence patrol round"};

/* State of the process that starts jobs (keeper or patrol) */
static JobsOf jobs_of;
static BackgroundWorkerHandle *job_handle = NULL;	/* worker that was started for this job alone */
static uint32 reserved_serial = 0;	/* serial of the job that we gave to the reserve; 0: none */

static void
latch_exit(int code, Datum arg)
{
	(void) code;
	fence_shared->latches[DatumGetInt32(arg)] = NULL;
}

void
jobs_begin(JobsOf whose)
{
	worker_signals();
	jobs_of = whose;
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	fence_shared->latches[whose] = MyLatch;
	before_shmem_exit(latch_exit, Int32GetDatum(whose));
}

/* Starts a worker for this job alone. Returns false if no worker slot is free. */
static bool
start_dynamic(const FenceJob *job)
{
	BackgroundWorker worker;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	worker_describe(&worker, job_names[jobs_of], "fence_job_main");
	worker.bgw_main_arg = Int32GetDatum(jobs_of);
	memcpy(worker.bgw_extra, &job->serial, sizeof(job->serial));
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &job_handle))
		job_handle = NULL;
	MemoryContextSwitchTo(old);
	return job_handle != NULL;
}

/* Hands the job to the reserve. Returns false if the reserve has never run, or is still busy with a job that we abandoned. */
static bool
give_to_reserve(const FenceJob *job)
{
	FenceReserve *reserve = &fence_shared->reserves[jobs_of];
	bool		free;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	free = reserve->exists && reserve->wanted == 0;
	if (free)
	{
		reserve->wanted = reserved_serial = job->serial;
		if (reserve->latch)
			SetLatch(reserve->latch);
	}
	LWLockRelease(fence_shared->lock);
	return free;
}

bool
job_start(const FenceJob *job)
{
	FenceJob   *next = &fence_shared->jobs[jobs_of];
	FenceJob	started = *job;

	Assert(!job_running());
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	started.serial = next->serial + 1;
	if (started.serial == 0)
		started.serial = 1;
	*next = started;
	LWLockRelease(fence_shared->lock);
	return start_dynamic(&started) || give_to_reserve(&started);
}

bool
job_running(void)
{
	pid_t		pid;

	if (reserved_serial != 0)
	{
		LWLockAcquire(fence_shared->lock, LW_SHARED);
		if (fence_shared->reserves[jobs_of].wanted != reserved_serial)
			reserved_serial = 0;
		LWLockRelease(fence_shared->lock);
	}
	if (job_handle != NULL && GetBackgroundWorkerPid(job_handle, &pid) == BGWH_STOPPED)
	{
		pfree(job_handle);
		job_handle = NULL;
	}
	return job_handle != NULL || reserved_serial != 0;
}

static void
take_from_reserve(void)
{
	FenceReserve *reserve = &fence_shared->reserves[jobs_of];

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	if (reserve->wanted == reserved_serial && !reserve->at_work)
		reserve->wanted = 0;
	else if (reserve->wanted == reserved_serial)
		kill(reserve->pid, SIGTERM);
	LWLockRelease(fence_shared->lock);
	reserved_serial = 0;
}

bool
job_abandon(void)
{
	if (!job_running())
		return false;
	if (reserved_serial != 0)
		take_from_reserve();
	if (job_handle != NULL)
	{
		TerminateBackgroundWorker(job_handle);
		pfree(job_handle);
		job_handle = NULL;
	}
	return true;
}

void
job_result(FenceJob *job)
{
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	*job = fence_shared->jobs[jobs_of];
	LWLockRelease(fence_shared->lock);
}

bool
job_finish(FenceJob *job, int64 deadline, char *error)
{
	while (job_running())
	{
		int64		left = deadline - fence_clock();

		if (left <= 0)
		{
			(void) job_abandon();
			break;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (left / 1000 + 1), wait_event_worker());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	job_result(job);
	if (!job->done)
		snprintf(error, REASON_LEN, "a worker in database %u failed; the server log tells why", job->database);
	return job->done;
}
