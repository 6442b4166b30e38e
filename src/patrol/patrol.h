/*
 * patrol/patrol.h
 *	  A round of the patrol in a database.
 */
#ifndef FENCE_PATROL_H
#define FENCE_PATROL_H

/*
 * Does the duties of a round, in the database to which this worker is connected. If a duty raises an error, logs it
 * and goes on.
 */
extern void patrol_round(int duties);

#endif
