/*
 * redis/sentinel.h
 *	  Which process the sentinels hold for the master (redis+sentinel://).
 *
 * Owns: one connection to one sentinel. Only the keeper calls this.
 *
 * A sentinel's word is a hint, never a proof: that a process is a master is asked of the process itself, and that it may
 * vouch for fences is decided by leases and epochs. A sentinel that is wrong costs cache hits, nothing else.
 */
#ifndef FENCE_REDIS_SENTINEL_H
#define FENCE_REDIS_SENTINEL_H

#include "redis/resolve.h"

/* Asks the sentinels in turn until one tells. master: its address, numeric. error: REASON_LEN bytes. Waits. */
extern bool sentinel_find_master(const RedisUrl *url, RedisEndpoint *master, ResolveEndpoint resolve, char *error);

/*
 * The same beside heartbeats, which must not wait for sentinels: one sentinel, at most patience microseconds. False:
 * nothing was learned, error tells why.
 */
extern bool sentinel_ask_again(const RedisUrl *url, int64 patience, RedisEndpoint *master, ResolveEndpoint resolve, char *error);

/* What the last sentinel said was of no use: the next question goes to another one first. */
extern void sentinel_distrust(void);

/* Forgets everything: the URL was changed. */
extern void sentinel_reset(void);

#endif
