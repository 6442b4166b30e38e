/*
 * redis/cluster.h
 *	  Asks a process of a Redis Cluster about the cluster (redis+cluster://).
 *
 * Only the keeper calls this. The answer is a hint, never a proof. Whether another process is a master, we ask that
 * process itself. Which process may vouch for which slots, leases and epochs decide. A wrong answer costs cache hits
 * and nothing else.
 */
#ifndef FENCE_REDIS_CLUSTER_H
#define FENCE_REDIS_CLUSTER_H

#include "redis/library.h"
#include "redis/resolve.h"

typedef struct ClusterMap
{
	int			n;
	RedisEndpoint addresses[MAX_NODES]; /* numeric addresses of the masters that have slots */
	unsigned char slots[SLOTS]; /* index of the slot's master in addresses, or SLOT_NOBODY */
} ClusterMap;

/*
 * Asks the process which masters there are and which slots they have. asked is the address of the process, which may
 * not know its own. Sets *whole to whether the process considers the cluster as working. The slots of a master whose
 * name cannot be resolved belong to nobody. Returns false if there is no usable answer, or if no master has slots. Then
 * call->error says why, and map is undefined.
 */
extern bool cluster_ask(LibraryCall *call, const RedisEndpoint *asked, ClusterMap *map, bool *whole, ResolveEndpoint resolve);

#endif
