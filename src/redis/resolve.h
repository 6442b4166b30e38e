/*
 * redis/resolve.h
 *	  Host name to numeric address.
 *
 * Blocks in the system's resolver, for as long as that likes: only the keeper does this.
 */
#ifndef FENCE_REDIS_RESOLVE_H
#define FENCE_REDIS_RESOLVE_H

#include <hiredis/hiredis.h>

#include "base/url.h"

/* A host and a port as Redis or a sentinel tells them, perhaps a name. False: they are none. */
extern bool read_endpoint(const redisReply *host, int port, RedisEndpoint *endpoint);

/*
 * Makes host numeric; name stays. A name may have several addresses, of which not all answer (localhost): try counts, and
 * another try gives another one. False: error (of the given size) tells why, for people.
 */
extern bool resolve_endpoint(RedisEndpoint *endpoint, unsigned try, char *error, size_t size);

/* What may be called in its place: by somebody who knows some names already. */
typedef bool (*ResolveEndpoint) (RedisEndpoint *endpoint, unsigned try, char *error, size_t size);

#endif
