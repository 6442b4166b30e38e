/*
 * redis/cluster.h
 *	  What a process of a Redis Cluster says of the cluster (redis+cluster://).
 *
 * Only the keeper calls this. What a process says is a hint, never a proof: that another is a master is asked of that one
 * itself, and who may vouch for which slots is decided by leases and epochs. A wrong answer costs cache hits, nothing else.
 */
#ifndef FENCE_REDIS_CLUSTER_H
#define FENCE_REDIS_CLUSTER_H

#include "redis/library.h"
#include "redis/resolve.h"

typedef struct ClusterMap
{
	int			n;
	RedisEndpoint addresses[MAX_NODES]; /* of the masters that have slots; numeric */
	unsigned char slots[SLOTS]; /* index of its master in addresses, SLOT_NOBODY if it has none */
} ClusterMap;

/*
 * Asks the process which masters there are and which slots they have. asked: its address, for a process that does not know
 * its own. whole: whether it sees the cluster as working. Slots of a master whose name means nothing are nobody's. False: no answer
 * that can be understood, or nobody has slots; call->error tells, and map is not to be used.
 */
extern bool cluster_ask(LibraryCall *call, const RedisEndpoint *asked, ClusterMap *map, bool *whole, ResolveEndpoint resolve);

#endif
