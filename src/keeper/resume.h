/*
 * keeper/resume.h
 *	  A clean restart: the same epoch goes on (doc/protocol.md, "A clean restart").
 */
#ifndef FENCE_RESUME_H
#define FENCE_RESUME_H

#include "base/shared.h"

/* Installs what reads the file at a server start. Call it after shmem_install, while shared_preload_libraries is processed. */
extern void resume_install(void);

typedef enum ResumeAnswer
{
	RESUME_AGREED,
	RESUME_REFUSED,				/* another server has gone on in the epoch, or the process is another */
	RESUME_UNKNOWN				/* a process has not answered: ask again */
} ResumeAnswer;

/*
 * Asks each process that has slots whether this server may go on in the epoch. The keeper calls it while
 * fence_shared->resume_from is set, after it has greeted the processes. Unless all agree, why (REASON_LEN bytes) tells
 * the reason.
 */
extern ResumeAnswer resume_ask(uint32 epoch, char *why);

#endif
