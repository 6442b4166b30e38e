/*
 * redis/topology.h
 *	  The keeper's table of the Redis processes that pgcache_fence.redis_url names: addresses, connections, state.
 *
 * Owns: this table, and its copy in shared memory, where backends read the addresses and views the rest. Only the
 * keeper calls this file. The keeper is the only process that resolves names, because that blocks.
 *
 * A node keeps its index in the table as long as the epoch may continue. New nodes are added behind the others. The
 * kind of URL decides which node has which slots. A single process has all slots. Shards divide them evenly, in the
 * order of the URL. In a cluster, Redis Cluster says.
 *
 * error is a buffer of REASON_LEN bytes for a message for users.
 */
#ifndef FENCE_REDIS_TOPOLOGY_H
#define FENCE_REDIS_TOPOLOGY_H

#include "redis/library.h"

typedef struct RedisNode
{
	RedisEndpoint address;
	RedisConnection *conn;
	Hello		hello;			/* last reply of fence_hello */
	int64		heard_at;		/* fence_clock() time when it arrived; the node read its clock no later */
	int64		clock_ahead;	/* microseconds that the node's clock was at least ahead of fence_clock() then; 0: unknown */
	int64		clock_took;		/* by how much more it may have been ahead: the duration of the call */
	char		server[32];
	bool		dismissed;		/* see topology_dismiss */
	bool		present;		/* it passed the last greeting */
	char		error[REASON_LEN];	/* if it is not present: why */
	unsigned	failures;		/* number of failed attempts */
	bool		slots_back;		/* the last renewal of its lease said so; see library_renew */
} RedisNode;

extern RedisNode topology_nodes[MAX_NODES];
extern int	topology_size;

/* Returns whether a setting that affects connections has changed since the table was built. */
extern bool topology_is_outdated(void);

/*
 * Builds the table before an attempt to open. Returns false if the URL or a name in it is unusable, or if no process
 * describes the cluster.
 */
extern bool topology_find(char *error);

/*
 * If the table is empty, builds it as it was when the current epoch was armed. Returns false if that is impossible;
 * then the fences must be closed.
 */
extern bool topology_resume(char *error);

/*
 * Connects if necessary, and asks the process for its identity. Sets hello, heard_at, present and error. load: also
 * makes sure that the function library is loaded, and that the node accepts writes. Returns false if the node is not
 * reachable, is not a master, or does not have the library.
 */
extern bool topology_greet(RedisNode *node, bool load);

/* Returns whether the node owns any slot, by the URL or the cluster. */
extern bool topology_has_slots(int node);

/* Closes the connection of a node that has no slots any more. The node keeps its index, and can be greeted again. */
extern void topology_dismiss(RedisNode *node);

/* Closes a connection that has failed. The next greeting opens another one. */
extern void topology_hang_up(RedisNode *node);

/* Writes which node could be granted each slot: its owner if that node is present, else SLOT_NOBODY. */
extern void topology_slots(unsigned char map[SLOTS]);

/* Returns whether the nodes are masters of a Redis Cluster. */
extern bool topology_is_cluster(void);

/* Returns the name of the node's heartbeat key, which is in one of its slots (static buffer). */
extern const char *topology_heartbeat_key(const RedisNode *node);

/*
 * Returns whether fences must be opened anew: the sentinels name another master, slots of the cluster have moved, or a
 * process that was missing at the start of the epoch is back. The last two count only once nothing has changed for a
 * while. Called between heartbeats. Waits at most a few times patience microseconds. error says what has moved.
 */
extern bool topology_moved(int64 patience, char *error);

/* Copies the table to shared memory. armed: the nodes with granted slots have just got a lease. */
extern void topology_publish(bool armed);

/* Closes all connections. */
extern void topology_disconnect(void);

#endif
