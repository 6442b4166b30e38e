/*
 * patrol/patrol.h
 *	  A round of the patrol in a database.
 */
#ifndef FENCE_PATROL_H
#define FENCE_PATROL_H

#include "base/shared.h"

/*
 * Does the duties of a round, in the database to which this worker is connected. If a duty raises an error, logs it
 * and goes on. It stops by itself when the round has lasted long enough, and then job->unfinished tells what is left.
 */
extern void patrol_round(FenceJob *job);

#endif
