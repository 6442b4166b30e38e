/*
 * patrol/patrol.h
 *	  A round of the patrol in a database.
 */
#ifndef FENCE_PATROL_H
#define FENCE_PATROL_H

/* Does the duties of a round, in the database that this worker is connected to. What one of them raises is logged. */
extern void patrol_round(int duties);

#endif
