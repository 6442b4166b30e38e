/*
 * redis/resolve.c
 *	  Resolves host names to numeric addresses; see resolve.h.
 *
 * Owns no state. Takes no locks.
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>

#include "redis/resolve.h"

bool
read_endpoint(const redisReply *host, int port, RedisEndpoint *endpoint)
{
	if (host->type != REDIS_REPLY_STRING || host->len == 0 || host->len >= REDIS_HOST_LEN || strlen(host->str) != host->len)
		return false;
	memset(endpoint, 0, sizeof(*endpoint));
	strlcpy(endpoint->host, host->str, sizeof(endpoint->host));
	strlcpy(endpoint->name, host->str, sizeof(endpoint->name));
	endpoint->port = port;
	return port >= 1 && port <= 65535;
}

bool
resolve_endpoint(RedisEndpoint *endpoint, unsigned try, char *error, size_t size)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	const struct addrinfo *chosen;
	char		numeric[REDIS_HOST_LEN] = "";
	int			rc;

	if (endpoint->is_unix)
		return true;
	rc = getaddrinfo(endpoint->host, NULL, &hints, &found);
	if (rc == 0)
	{
		chosen = found;
		/* use address number `try`; after the last address, begin again with the first */
		for (try %= 1024; try > 0; try--)
			chosen = chosen->ai_next != NULL ? chosen->ai_next : found;
		rc = getnameinfo(chosen->ai_addr, chosen->ai_addrlen, numeric, sizeof(numeric), NULL, 0, NI_NUMERICHOST);
		freeaddrinfo(found);
	}
	if (rc != 0)
	{
		snprintf(error, size, "could not resolve \"%.100s\": %s", endpoint->host, gai_strerror(rc));
		return false;
	}
	/* clear the whole field, because addresses are compared with memcmp */
	memset(endpoint->host, 0, sizeof(endpoint->host));
	strlcpy(endpoint->host, numeric, sizeof(endpoint->host));
	return true;
}
