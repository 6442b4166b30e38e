/*
 * redis/topology.h
 *	  The Redis processes that pgcache_fence.redis_url names: addresses, connections, who is there.
 *
 * Owns: the keeper's table of nodes, and its copy in shared memory, from which backends take addresses and views take
 * the rest. Only the keeper calls this: it is the only process that resolves names, which blocks.
 * A node keeps its place in the table as long as the epoch may go on; others may be added behind it. Which slots are whose is told by
 * the URL (all belong to the one process; shards divide them evenly, in the order in which they are written) or by Redis
 * Cluster.
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
	int64		clock_ahead;	/* microseconds that the node's clock was ahead of fence_clock() then, at least; 0: not known */
	int64		clock_took;		/* and how much more it may have been: the answer was on its way */
	char		server[32];
	bool		dismissed;		/* see topology_dismiss */
	bool		present;		/* it answered as it should when it was greeted last; else */
	char		error[REASON_LEN];	/* why not */
	unsigned	failures;		/* to connect */
	bool		slots_back;		/* it said so when its lease was renewed last; see library_renew */
} RedisNode;

extern RedisNode topology_nodes[MAX_NODES];
extern int	topology_size;

/* Whether the URL, or what else connections are made from, was changed since the table was made. */
extern bool topology_is_outdated(void);

/* Makes the table, for a try to open; false if the URL or a name in it is no good, or nobody tells of the cluster. */
extern bool topology_find(char *error);

/* Makes it as it was when the present epoch was armed, if there is none. False: it cannot, and fences must be closed. */
extern bool topology_resume(char *error);

/*
 * Connects if need be and asks the process who it is: fills hello, heard_at, present and error. load: also makes sure of the
 * function library, and that the node takes writes. False: it is not there, no master, or has no library.
 */
extern bool topology_greet(RedisNode *node, bool load);

/* Whether any slot is the node's, as those say whom the URL names. */
extern bool topology_has_slots(int node);

/* The node has no slots any more: closes its connection. It only keeps its place, until it is greeted again. */
extern void topology_dismiss(RedisNode *node);

/* Which node could be granted each slot: whose it is, if that one is present, else SLOT_NOBODY. */
extern void topology_slots(unsigned char map[SLOTS]);

/* Whether the nodes are masters of a Redis Cluster. */
extern bool topology_is_cluster(void);

/* A key in one of the node's slots, for its heartbeat; static. */
extern const char *topology_heartbeat_key(const RedisNode *node);

/*
 * Beside heartbeats: whether fences must be opened anew, because sentinels tell of another master, or slots of the cluster have
 * moved, or a process that was not there when the epoch began is there now. The latter two have to rest for a while. Waits
 * for no more than a few times patience microseconds; error says what moved.
 */
extern bool topology_moved(int64 patience, char *error);

/* Copies the table to shared memory. armed: those that are granted slots were just granted a lease. */
extern void topology_publish(bool armed);

/* Closes all connections. */
extern void topology_disconnect(void);

#endif
