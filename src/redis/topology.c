/*
 * redis/topology.c
 *	  The Redis processes that pgcache_fence.redis_url names, as the keeper sees them; see topology.h.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "redis/resolve.h"
#include "redis/sentinel.h"
#include "redis/topology.h"
#include "settings.h"

RedisNode	topology_nodes[MAX_NODES];
int			topology_size = 0;

static RedisUrl url;
static char *made_from = NULL;	/* the settings from which the table was made */
static unsigned failures = 0;	/* to connect, since then */
static bool others_reconnect = false;	/* at the next publication, even if no address changed */

void
topology_disconnect(void)
{
	for (int i = 0; i < topology_size; i++)
	{
		redis_close(topology_nodes[i].conn);
		topology_nodes[i].conn = NULL;
	}
}

/* Everything that a connection is made from. */
static char *
current_settings(void)
{
	return psprintf("%s\n%s\n%s\n%s", setting_redis_url, setting_tls_ca_file, setting_tls_cert_file, setting_tls_key_file);
}

static bool
settings_changed(void)
{
	char	   *current = current_settings();
	bool		changed = made_from == NULL || strcmp(made_from, current) != 0;

	pfree(current);
	return changed;
}

bool
topology_is_outdated(void)
{
	return made_from != NULL && settings_changed();
}

/* Begins anew with what the settings say now. */
static bool
read_settings(char *error)
{
	RedisUrl	parsed;
	const char *wrong = redis_url_parse(setting_redis_url, &parsed);

	if (wrong)
	{
		snprintf(error, REASON_LEN, "pgcache_fence.redis_url: %s", wrong);
		return false;
	}
	topology_disconnect();
	sentinel_reset();
	topology_size = 0;
	failures = 0;
	url = parsed;
	if (made_from)
		pfree(made_from);
	made_from = MemoryContextStrdup(TopMemoryContext, current_settings());
	others_reconnect = true;
	return true;
}

/* Where the processes are, as numeric addresses: as the URL says, or as those say whom it names. */
static bool
locate(RedisEndpoint addresses[MAX_NODES], int *n, char *error)
{
	if (url.topology == REDIS_SENTINEL)
	{
		*n = 1;
		return sentinel_find_master(&url, &addresses[0], error);
	}
	*n = url.nendpoints;
	for (int i = 0; i < url.nendpoints; i++)
	{
		addresses[i] = url.endpoints[i];
		if (!resolve_endpoint(&addresses[i], failures, error, REASON_LEN))
			return false;
	}
	return true;
}

/* Makes the table anew if settings changed, or if nothing is connected (a name may mean another host now). */
bool
topology_find(char *error)
{
	static RedisEndpoint addresses[MAX_NODES];
	int			n;

	if (settings_changed() && !read_settings(error))
		return false;
	if (topology_size > 0 && topology_nodes[0].conn != NULL)
		return true;
	if (!locate(addresses, &n, error))
		return false;
	for (int i = 0; i < Max(n, topology_size); i++)
	{
		RedisNode  *node = &topology_nodes[i];

		if (i < Min(n, topology_size) && memcmp(&node->address, &addresses[i], sizeof(RedisEndpoint)) == 0)
			continue;
		redis_close(node->conn);
		memset(node, 0, sizeof(RedisNode));
		if (i < n)
			node->address = addresses[i];
	}
	topology_size = n;
	return true;
}

/* Whether a reply to INFO has that line. */
static bool
info_has(const redisReply *info, const char *line)
{
	return info->type == REDIS_REPLY_STRING && strstr(info->str, line) != NULL;
}

/* Whether two replies to INFO are of one process, reached over two addresses. */
static bool
same_process(const redisReply *one, const redisReply *other)
{
	const char *id = one->type == REDIS_REPLY_STRING ? strstr(one->str, "run_id:") : NULL;
	char		line[64];

	if (id == NULL)
		return false;
	snprintf(line, sizeof(line), "%.*s", (int) Min(strcspn(id, "\r\n"), sizeof(line) - 1), id);
	return info_has(other, line);
}

/* Whether a master other than ours answers there: what sentinels say of the past, or of another name of ours, is not it. */
static bool
is_another_master(const RedisEndpoint *address, int64 patience)
{
	const char *argv[] = {"INFO"};
	LibraryCall here = {.conn = topology_nodes[0].conn, .deadline = fence_clock() + patience};
	LibraryCall there = {.deadline = here.deadline};
	redisReply *ours = NULL;
	redisReply *theirs = NULL;
	bool		another = false;

	there.conn = redis_open(address, &url, there.deadline, there.error, REASON_LEN);
	if (there.conn != NULL && (theirs = library_call(&there, lengthof(argv), argv)) != NULL &&
		info_has(theirs, "\nrole:master\r") && (ours = library_call(&here, lengthof(argv), argv)) != NULL)
		another = !same_process(ours, theirs);
	if (ours)
		freeReplyObject(ours);
	if (theirs)
		freeReplyObject(theirs);
	redis_close(there.conn);
	return another;
}

bool
topology_moved(int64 patience, char *error)
{
	RedisEndpoint master;

	if (url.topology != REDIS_SENTINEL || topology_size == 0 || !sentinel_ask_again(&url, patience, &master))
		return false;
	if (memcmp(&master, &topology_nodes[0].address, sizeof(master)) == 0 || !is_another_master(&master, patience))
		return false;
	snprintf(error, REASON_LEN, "the sentinels name another master: %.100s, port %d", master.host, master.port);
	return true;
}

/* Copies what is known to shared memory, where backends find addresses and views find the rest. */
void
topology_publish(const char *error, bool armed)
{
	bool		moved = false;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	moved = fence_shared->nnodes != topology_size || others_reconnect;
	others_reconnect = false;
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

/* It is not there, or not what it should be: whoever told of it is asked again before the next try. */
static void
forget(RedisNode *node)
{
	redis_close(node->conn);
	node->conn = NULL;
	failures++;
	if (url.topology == REDIS_SENTINEL)
		sentinel_distrust();
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
		{
			forget(node);
			return false;
		}
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
		if (redis_error(node->conn) || url.topology == REDIS_SENTINEL)
			forget(node);
		return false;
	}
	return true;
}
