/*
 * redis/sentinel.h
 *	  Asks the sentinels which process is the master (redis+sentinel://).
 *
 * Owns: one connection to one sentinel. Takes no locks. Only the keeper calls this.
 *
 * A sentinel's answer is a hint, never a proof. Whether a process is a master, we ask the process itself. Whether it
 * may vouch for fences, leases and epochs decide. A wrong sentinel costs cache hits and nothing else.
 */
#ifndef FENCE_REDIS_SENTINEL_H
#define FENCE_REDIS_SENTINEL_H

#include "redis/resolve.h"

/*
 * Asks the sentinels in turn until one knows the master. Stores its numeric address in *master. error: REASON_LEN
 * bytes. Waits.
 */
extern bool sentinel_find_master(const RedisUrl *url, RedisEndpoint *master, ResolveEndpoint resolve, char *error);

/*
 * The same between heartbeats, which must not wait for sentinels. Asks one sentinel and waits at most patience
 * microseconds. On failure error says why.
 */
extern bool sentinel_ask_again(const RedisUrl *url, int64 patience, RedisEndpoint *master, ResolveEndpoint resolve, char *error);

/* The last sentinel's answer was useless; ask another one next. */
extern void sentinel_distrust(void);

/* Forgets everything, because the URL was changed. */
extern void sentinel_reset(void);

#endif
