/*
 * redis/cluster.c
 *	  Asks a process of a Redis Cluster about the cluster; see cluster.h.
 *
 * Owns no state. Takes no locks.
 */
#include "postgres.h"

#include "redis/cluster.h"

static bool
is_number(const redisReply *reply, long long least, long long most)
{
	return reply->type == REDIS_REPLY_INTEGER && reply->integer >= least && reply->integer <= most;
}

/*
 * Reads [host, port, ...]. A missing or empty host means the address that we asked. Returns false if the reply is
 * malformed, or if the cluster does not know the address.
 */
static bool
read_address(const redisReply *node, const RedisEndpoint *asked, RedisEndpoint *address)
{
	const redisReply *host;

	if (node->type != REDIS_REPLY_ARRAY || node->elements < 2 || !is_number(node->element[1], 1, 65535))
		return false;
	host = node->element[0];
	if (host->type == REDIS_REPLY_NIL || (host->type == REDIS_REPLY_STRING && host->len == 0))
	{
		*address = *asked;
		address->port = (int) node->element[1]->integer;
		return true;
	}
	return read_endpoint(host, (int) node->element[1]->integer, address) && strcmp(address->host, "?") != 0;
}

/* Returns the index of the master in the map; adds it if necessary. Returns -1 if there is no room. */
static int
place_of(ClusterMap *map, const RedisEndpoint *address, char *error)
{
	for (int i = 0; i < map->n; i++)
		if (redis_endpoint_same(&map->addresses[i], address))
			return i;
	if (map->n == MAX_NODES)
	{
		snprintf(error, REASON_LEN, "the cluster has more than %d masters", MAX_NODES);
		return -1;
	}
	map->addresses[map->n] = *address;
	return map->n++;
}

/* Reads one range: [first, last, master, replica, ...]. */
static bool
read_range(const redisReply *range, const RedisEndpoint *asked, ClusterMap *map, ResolveEndpoint resolve, char *error)
{
	RedisEndpoint address;
	int			place;

	if (range->type != REDIS_REPLY_ARRAY || range->elements < 3 || !is_number(range->element[0], 0, SLOTS - 1) ||
		!is_number(range->element[1], range->element[0]->integer, SLOTS - 1))
	{
		strlcpy(error, "Redis gave a malformed answer to CLUSTER SLOTS", REASON_LEN);
		return false;
	}
	/* A master with an unknown address keeps its slots. We leave them to nobody, because no process can ask this master. */
	if (!read_address(range->element[2], asked, &address) || !resolve(&address, 0, error, REASON_LEN))
		return true;
	place = place_of(map, &address, error);
	if (place < 0)
		return false;
	memset(map->slots + range->element[0]->integer, place, range->element[1]->integer - range->element[0]->integer + 1);
	return true;
}

bool
cluster_ask(LibraryCall *call, const RedisEndpoint *asked, ClusterMap *map, bool *whole, ResolveEndpoint resolve)
{
	const char *info[] = {"CLUSTER", "INFO"};
	const char *slots[] = {"CLUSTER", "SLOTS"};
	redisReply *reply = library_call(call, lengthof(info), info);
	bool		ok;

	if (reply == NULL)
		return false;
	*whole = reply->type == REDIS_REPLY_STRING && strstr(reply->str, "cluster_state:ok") != NULL;
	freeReplyObject(reply);
	reply = library_call(call, lengthof(slots), slots);
	if (reply == NULL)
		return false;
	map->n = 0;
	memset(map->slots, SLOT_NOBODY, SLOTS);
	ok = reply->type == REDIS_REPLY_ARRAY;
	strlcpy(call->error, ok ? "the cluster has no master with slots" : "Redis gave a malformed answer to CLUSTER SLOTS", REASON_LEN);
	for (size_t i = 0; ok && i < reply->elements; i++)
		ok = read_range(reply->element[i], asked, map, resolve, call->error);
	freeReplyObject(reply);
	return ok && map->n > 0;
}
