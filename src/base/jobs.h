/*
 * base/jobs.h
 *	  Jobs inside a database: keeper and patrol start them, short-lived workers do them.
 *
 * A worker can be connected to one database in its life, so each job has its own, which ends with it: DROP DATABASE never waits for
 * more than a moment. Where no slot is free for it (parallel queries may hold all that max_worker_processes allows), the job
 * goes to a reserve: a worker that was given its slot at the server start, and keeps it. After each job it ends, and PostgreSQL
 * starts it again a second later; so what finds no other slot is done at one job in a second. Keeper and patrol have a
 * reserve each, for a long round of the patrol must not hold up the keeper.
 */
#ifndef FENCE_JOBS_H
#define FENCE_JOBS_H

#include "base/shared.h"

typedef enum JobKind
{
	JOB_LOAD,					/* is the extension here? the row of fence.cluster */
	JOB_STORE,					/* write epoch_number and longest_lease to fence.cluster */
	JOB_ANNOUNCE,				/* tell Redis the attached domains of this database */
	JOB_ROUND					/* a round of the patrol */
} JobKind;

/* Of the workers that do the jobs of each. */
extern const char *const job_names[JOBS_OF_COUNT];

/*
 * The first step of keeper and patrol: signals, a connection to no database, and whose jobs this process starts. Its latch is set when
 * a job ends, and can be set by others until the process ends.
 */
extern void jobs_begin(JobsOf whose);

/*
 * Starts a job, when none is running; database and what the kind needs are set in `job`, all else is 0. False: no worker slot is free, the
 * reserve's neither. The result is told by job_result once job_running is false.
 */
extern bool job_start(const FenceJob *job);
extern bool job_running(void);
extern void job_result(FenceJob *job);

/* Waits for the job until deadline (fence_clock() microseconds), then ends it. False: it failed; error (REASON_LEN bytes) tells. */
extern bool job_finish(FenceJob *job, int64 deadline, char *error);

/* Ends a job whose result nobody wants any more; whether there was one. */
extern bool job_abandon(void);

#endif
