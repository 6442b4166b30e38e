/*
 * progress.h
 *	  How far a long call has come, for fence.progress. In shared memory; no locks: each process writes its own entry.
 *
 * A call begins, names its phases and counts what it has done; the end of its transaction or savepoint ends it at the latest.
 */
#ifndef FENCE_PROGRESS_H
#define FENCE_PROGRESS_H

#include "postgres.h"

/* Shared memory; progress_initialise is called once, for zeroed memory. */
extern Size progress_size(void);
extern void progress_initialise(void *memory);
extern void progress_use(void *memory);

/* This process begins a call; both names are cut to fit. */
extern void progress_begin(const char *command, const char *domain);

/* Its next phase: total is how much there is to do in it, 0 if that cannot be told. */
extern void progress_phase(const char *phase, uint64 total);

/* So much more is done of the phase. Nothing happens outside of a call that has begun. */
extern void progress_done(uint64 n);

/* The call is over. Neither raises nor allocates; to be called at any time. */
extern void progress_end(void);

#endif
