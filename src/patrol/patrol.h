/*
 * patrol/patrol.h
 *	  A round of the patrol in a database, and how the patrol's parts reach the Redis processes (patrol.c, effect_patrol.c).
 */
#ifndef FENCE_PATROL_H
#define FENCE_PATROL_H

#include "base/shared.h"
#include "redis/library.h"

/* Begins a turn or a round: looks at the table of nodes, and closes connections that have failed or lead elsewhere. Takes the lock. */
extern void patrol_look_at_nodes(void);

/*
 * This process's connection to a node, on which calls have `timeout` from now on; connects if need be. NULL: the node was not armed in
 * the epoch, or cannot be reached, or the connection has failed since the turn began.
 */
extern LibraryCall *patrol_call_to(int node);

/* Does the duties of a round, in the database that this worker is connected to. What one of them raises is logged. */
extern void patrol_round(int duties);

#endif
