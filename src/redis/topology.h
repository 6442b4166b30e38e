/*
 * redis/topology.h
 *	  The Redis processes that pgcache_fence.redis_url names: addresses, connections, who is there.
 *
 * Owns: the keeper's table of nodes, and its copy in shared memory, from which backends take addresses and views take
 * the rest. Only the keeper calls this: it is the only process that resolves names, which blocks.
 * error: a buffer of REASON_LEN bytes for what went wrong, in words for people.
 */
#ifndef FENCE_REDIS_TOPOLOGY_H
#define FENCE_REDIS_TOPOLOGY_H

#include "redis/library.h"

typedef struct RedisNode
{
	RedisEndpoint address;
	RedisConnection *conn;
	Hello		hello;			/* last answer, */
	int64		heard_at;		/* and when it was here (fence_clock()): its clock was read no later */
	char		server[32];
} RedisNode;

extern RedisNode topology_nodes[MAX_NODES];
extern int	topology_size;

/* Whether the URL, or what else connections are made from, was changed since the table was made. */
extern bool topology_is_outdated(void);

/* Makes the table; false if the URL or a name in it is no good. */
extern bool topology_find(char *error);

/*
 * Connects if need be and asks the process who it is: fills hello and heard_at. load: also makes sure of the function
 * library, and that the node takes writes. False: it is not there, no master, or has no library.
 */
extern bool topology_greet(RedisNode *node, bool load, char *error);

/*
 * Beside heartbeats: whether those whom the URL names for it (sentinels) tell of other processes than the table has. Waits
 * for no more than a few times patience microseconds; error says what moved.
 */
extern bool topology_moved(int64 patience, char *error);

/* Copies the table to shared memory. error (may be NULL) is shown with each node; armed: each was just granted a lease. */
extern void topology_publish(const char *error, bool armed);

/* Closes all connections. */
extern void topology_disconnect(void);

#endif
