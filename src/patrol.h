/*
 * patrol.h
 *	  A round of the patrol in a database, and how the patrol's parts reach the Redis processes (patrol.c, effect_patrol.c).
 */
#ifndef FENCE_PATROL_H
#define FENCE_PATROL_H

#include "redis/library.h"
#include "shared.h"

/* Every node that was armed in the epoch; what others have reserved is of another epoch, and over. */
typedef struct PatrolNodes
{
	uint32		serial;			/* of the table */
	int			n;
	bool		granted[MAX_NODES];
	RedisEndpoint addresses[MAX_NODES];
} PatrolNodes;

/* Copies the table of nodes. Takes the lock. */
extern void patrol_copy_nodes(PatrolNodes *nodes);

/* Connects, within `timeout`; false: call->error tells why not. */
extern bool patrol_connect(LibraryCall *call, const RedisEndpoint *address);

/* Does the duties of a round, in the database that this worker is connected to. What one of them raises is logged. */
extern void patrol_round(int duties);

#endif
