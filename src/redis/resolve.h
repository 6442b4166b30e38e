/*
 * redis/resolve.h
 *	  Resolves host names to numeric addresses.
 *
 * Blocks in the system's resolver for an unlimited time, so only the keeper calls it.
 */
#ifndef FENCE_REDIS_RESOLVE_H
#define FENCE_REDIS_RESOLVE_H

#include <hiredis/hiredis.h>

#include "base/url.h"

/* Reads a host and a port from a reply of Redis or of a sentinel. The host may be a name. Returns false if they are invalid. */
extern bool read_endpoint(const redisReply *host, int port, RedisEndpoint *endpoint);

/*
 * Makes host numeric, and leaves name as it is. A name may have several addresses, and some of them may not respond
 * (localhost). Each value of `try` selects the next address. On failure writes the reason to error (of the given size).
 */
extern bool resolve_endpoint(RedisEndpoint *endpoint, unsigned try, char *error, size_t size);

/* A replacement for resolve_endpoint, for a caller that knows the addresses of some names already. */
typedef bool (*ResolveEndpoint) (RedisEndpoint *endpoint, unsigned try, char *error, size_t size);

#endif
