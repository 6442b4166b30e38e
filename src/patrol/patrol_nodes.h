/*
 * patrol/patrol_nodes.h
 *	  How the patrol and its parts reach the Redis processes.
 */
#ifndef FENCE_PATROL_NODES_H
#define FENCE_PATROL_NODES_H

#include "redis/library.h"

/* Begins a turn or a round: looks at the table of nodes, and closes connections that have failed or lead elsewhere. Takes the lock. */
extern void patrol_look_at_nodes(void);

/*
 * This process's connection to a node, on which calls have `timeout` from now on; connects if need be. NULL: the node was not armed in
 * the epoch, or cannot be reached, or the connection has failed since the turn began.
 */
extern LibraryCall *patrol_call_to(int node);

#endif
