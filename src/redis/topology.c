/*
 * redis/topology.c
 *	  The Redis processes that pgcache_fence.redis_url names, as the keeper sees them; see topology.h.
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>

#include "utils/memutils.h"

#include "redis/topology.h"
#include "settings.h"

RedisNode	topology_nodes[MAX_NODES];
int			topology_size = 0;

static RedisUrl url;
static char *url_text = NULL;	/* from which the table was made */

void
topology_disconnect(void)
{
	for (int i = 0; i < topology_size; i++)
	{
		redis_close(topology_nodes[i].conn);
		topology_nodes[i].conn = NULL;
	}
}

/* Name to numeric address. Blocks in the resolver: only the keeper does this. */
static bool
resolve(RedisEndpoint *endpoint, char *error)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	char		numeric[REDIS_HOST_LEN];
	int			rc;

	if (endpoint->is_unix)
		return true;
	rc = getaddrinfo(endpoint->host, NULL, &hints, &found);
	if (rc == 0)
	{
		rc = getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof(numeric), NULL, 0, NI_NUMERICHOST);
		freeaddrinfo(found);
	}
	if (rc != 0)
	{
		snprintf(error, REASON_LEN, "could not resolve \"%.100s\": %s", endpoint->host, gai_strerror(rc));
		return false;
	}
	strlcpy(endpoint->host, numeric, sizeof(endpoint->host));
	return true;
}

bool
topology_is_outdated(void)
{
	return url_text != NULL && strcmp(url_text, setting_redis_url) != 0;
}

/* Makes the table anew if the URL changed, or if nothing is connected (a name may mean another host now). */
bool
topology_find(char *error)
{
	RedisUrl	parsed;
	const char *wrong = redis_url_parse(setting_redis_url, &parsed);
	bool		changed = url_text == NULL || strcmp(url_text, setting_redis_url) != 0;

	if (wrong)
	{
		snprintf(error, REASON_LEN, "pgcache_fence.redis_url: %s", wrong);
		return false;
	}
	if (!changed && topology_size > 0 && topology_nodes[0].conn != NULL)
		return true;
	url = parsed;
	for (int i = 0; i < url.nendpoints; i++)
	{
		RedisEndpoint address = url.endpoints[i];

		if (!resolve(&address, error))
			return false;
		if (i < topology_size && memcmp(&topology_nodes[i].address, &address, sizeof(address)) == 0 && !changed)
			continue;
		redis_close(topology_nodes[i].conn);
		memset(&topology_nodes[i], 0, sizeof(RedisNode));
		topology_nodes[i].address = address;
	}
	topology_size = url.nendpoints;
	if (changed)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		if (url_text)
			pfree(url_text);
		url_text = pstrdup(setting_redis_url);
		MemoryContextSwitchTo(old);
	}
	return true;
}

/* Copies what is known to shared memory, where backends find addresses and views find the rest. */
void
topology_publish(const char *error, bool armed)
{
	bool		moved = false;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	moved = fence_shared->nnodes != topology_size;
	fence_shared->nnodes = topology_size;
	for (int i = 0; i < topology_size; i++)
	{
		FenceNode  *shared = &fence_shared->nodes[i];
		RedisNode  *node = &topology_nodes[i];

		moved = moved || memcmp(&shared->address, &node->address, sizeof(node->address)) != 0 ||
			(node->hello.identity[0] != '\0' && strcmp(shared->identity, node->hello.identity) != 0);
		shared->address = node->address;
		shared->reachable = node->conn != NULL;
		strlcpy(shared->role, node->hello.role, sizeof(shared->role));
		strlcpy(shared->version, node->server, sizeof(shared->version));
		strlcpy(shared->identity, node->hello.identity, IDENTITY_LEN);
		strlcpy(shared->epoch, node->hello.epoch, EPOCH_LEN);
		if (armed)
			shared->lease_until = node->heard_at + setting_lease * INT64CONST(1000);
		strlcpy(shared->error, error ? error : "", REASON_LEN);
	}
	if (moved)
		pg_atomic_fetch_add_u32(&fence_shared->nodes_serial, 1);
	LWLockRelease(fence_shared->lock);
}

/* Connects if need be, makes sure of the library if `load`, and asks the process who it is. */
bool
topology_greet(RedisNode *node, bool load, char *error)
{
	LibraryCall call = {.deadline = fence_clock() + setting_timeout * INT64CONST(1000)};
	bool		found = false;

	if (node->conn == NULL || redis_error(node->conn))
	{
		redis_close(node->conn);
		node->conn = redis_open(&node->address, &url, call.deadline, error, REASON_LEN);
		if (node->conn == NULL)
			return false;
	}
	call.conn = node->conn;
	call.error[0] = '\0';
	/* hello needs no writes, arming does: a node that refuses them must not cost a lease each time */
	found = (!load || (library_ensure(&call) && library_probe_writes(&call) &&
					   library_server_version(&call, node->server, sizeof(node->server)))) &&
		library_hello(&call, &node->hello, &found) && found;
	node->heard_at = fence_clock();
	if (found && strcmp(node->hello.role, "master") != 0)
	{
		snprintf(call.error, REASON_LEN, "this Redis is a replica (role %s): its master is needed", node->hello.role);
		found = false;
	}
	if (!found)
	{
		snprintf(error, REASON_LEN, "%s", call.error[0] ? call.error : "Redis has lost the function library");
		if (redis_error(node->conn))
		{
			redis_close(node->conn);
			node->conn = NULL;
		}
		return false;
	}
	return true;
}
