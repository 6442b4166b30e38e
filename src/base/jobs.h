/*
 * base/jobs.h
 *	  Jobs inside a database. The keeper and the patrol start them; short-lived workers execute them.
 *
 * A background worker can connect to only one database in its life. So each job gets a worker of its own, which exits
 * after the job, and DROP DATABASE waits only for a moment.
 *
 * Parallel queries may hold all worker slots that max_worker_processes allows. Then the job goes to a reserve. A
 * reserve is a worker that got its slot at server start and keeps it. It exits after each job, and PostgreSQL restarts
 * it a second later. So without a free slot at most one job per second is executed. The keeper and the patrol have one
 * reserve each, because a long round of the patrol must not delay the keeper.
 */
#ifndef FENCE_JOBS_H
#define FENCE_JOBS_H

#include "base/shared.h"

typedef enum JobKind
{
	JOB_LOAD,					/* find out whether the extension is installed; read fence.cluster */
	JOB_STORE,					/* write epoch_number and longest_lease to fence.cluster */
	JOB_ANNOUNCE,				/* tell Redis which domains of this database are attached */
	JOB_ROUND					/* run one round of the patrol */
} JobKind;

/* Names of the workers that execute the jobs of the keeper and of the patrol. */
extern const char *const job_names[JOBS_OF_COUNT];

/*
 * The first step of the keeper and of the patrol. It sets up signals, connects to no database, and notes whose jobs
 * this process starts. PostgreSQL sets the latch of this process when a job ends. Other processes can set it too, until
 * this process exits.
 */
extern void jobs_begin(JobsOf whose);

/*
 * Starts a job; no other job may be running. The caller sets `database` and what the kind needs in `job`, and zeroes
 * the rest. Returns false if no worker slot is free and the reserve is not free either. Once job_running returns false,
 * job_result tells the result.
 */
extern bool job_start(const FenceJob *job);
extern bool job_running(void);
extern void job_result(FenceJob *job);

/*
 * Waits for the job until deadline (fence_clock() microseconds), then terminates it. Returns false if the job failed;
 * error (REASON_LEN bytes) then says why.
 */
extern bool job_finish(FenceJob *job, int64 deadline, char *error);

/* Terminates a job whose result is no longer needed. Returns whether a job was running. */
extern bool job_abandon(void);

#endif
