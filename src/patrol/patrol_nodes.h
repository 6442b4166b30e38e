/*
 * patrol/patrol_nodes.h
 *	  How the patrol and its parts reach the Redis processes.
 */
#ifndef FENCE_PATROL_NODES_H
#define FENCE_PATROL_NODES_H

#include "redis/library.h"

/*
 * Copies the table of nodes, and closes connections that have failed or whose node has another address now. Each turn
 * and each duty of a round begins with it. Takes fence_shared->lock.
 */
extern void patrol_look_at_nodes(void);

/*
 * This process's connection to a node. Connects if need be, and sets the deadline of calls to `timeout` from now.
 * NULL: the node was granted no slots in this epoch, cannot be reached, or its connection has failed since
 * patrol_look_at_nodes.
 */
extern LibraryCall *patrol_call_to(int node);

#endif
