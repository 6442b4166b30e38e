/*
 * redis/topology.c
 *	  The keeper's table of the Redis processes that pgcache_fence.redis_url names; see topology.h.
 *
 * topology_publish takes the lock of shared memory, to copy the table. The other functions take no locks.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "base/metrics.h"
#include "base/settings.h"
#include "redis/cluster.h"
#include "redis/resolve.h"
#include "redis/sentinel.h"
#include "redis/topology.h"

#define MAP_STABLE	INT64CONST(1000000)	/* microseconds without a change before moved slots are granted again */
#define MAP_LONGEST	INT64CONST(5000000) /* but if the slots keep moving, they are granted again after this time */

/* How each kind of URL finds its Redis processes. A function that a kind does not need is NULL. */
typedef struct Topology
{
	/* finds the numeric addresses of the processes, and their slots */
	bool		(*locate) (ClusterMap *found, char *error);
	/* implements topology_moved; the table is not empty */
	bool		(*moved) (int64 patience, char *error);
	/* for slots_moved: finds the current owners of the slots, and the reason to report if these have changed */
	bool		(*look_around) (ClusterMap *found, int64 patience);
	const char *moved_why;
	/* called when a node is gone or wrong: the next attempt must ask another source */
	void		(*distrust) (void);
	bool		tell_slots;		/* the nodes say which slots they have, and that may change: a cluster */
	bool		equal_parts;	/* the slots are divided evenly in the order of the URL, no matter which nodes are up */
} Topology;

static bool locate_named(ClusterMap *found, char *error);
static bool locate_master(ClusterMap *found, char *error);
static bool locate_cluster(ClusterMap *found, char *error);
static bool master_moved(int64 patience, char *error);
static bool slots_moved(int64 patience, char *error);
static bool look_at_cluster(ClusterMap *found, int64 patience);
static bool look_at_shards(ClusterMap *found, int64 patience);

static const Topology topologies[] = {
	[REDIS_STANDALONE] = {.locate = locate_named},
	[REDIS_SENTINEL] = {.locate = locate_master, .moved = master_moved, .distrust = sentinel_distrust},
	[REDIS_CLUSTER] = {.locate = locate_cluster, .moved = slots_moved, .look_around = look_at_cluster,
	.moved_why = "slots of the cluster have moved", .tell_slots = true},
	[REDIS_SHARDS] = {.locate = locate_named, .moved = slots_moved, .look_around = look_at_shards,
	.moved_why = "a Redis process that was away is back", .equal_parts = true}
};

RedisNode	topology_nodes[MAX_NODES];
int			topology_size = 0;

static unsigned char slots[SLOTS];	/* index of each slot's owner in topology_nodes, by the URL or the cluster; may differ from what is granted */
static RedisUrl url;
static const Topology *topology = &topologies[REDIS_STANDALONE];	/* of the kind of `url` */
static uint64 made_from = 0;	/* settings_of_connections() from which the table was built; 0: none yet */
static bool others_reconnect = false;	/* at the next publication backends must reconnect to all nodes, even if no address has changed */

void
topology_disconnect(void)
{
	for (int i = 0; i < topology_size; i++)
	{
		redis_close(topology_nodes[i].conn);
		topology_nodes[i].conn = NULL;
	}
}

static bool
settings_changed(void)
{
	return made_from != settings_of_connections();
}

bool
topology_is_outdated(void)
{
	return made_from != 0 && settings_changed();
}

/* Starts with an empty table and the current settings. */
static void
read_settings(void)
{
	topology_disconnect();
	sentinel_reset();
	topology_size = 0;
	memset(topology_nodes, 0, sizeof(topology_nodes));
	url = *setting_url;
	topology = &topologies[url.topology];
	made_from = settings_of_connections();
	others_reconnect = true;
}

/* Returns the index of the node with this address, or -1. */
static int
node_at(const RedisEndpoint *address)
{
	for (int i = 0; i < topology_size; i++)
		if (redis_endpoint_same(&topology_nodes[i].address, address))
			return i;
	return -1;
}

static RedisConnection *
working_connection(int node)
{
	RedisConnection *conn = topology_nodes[node].conn;

	return conn != NULL && redis_error(conn) == NULL ? conn : NULL;
}

/*
 * Resolves a name, but without the resolver if a node with this name is still connected. The resolver may block for a
 * long time, so we must not ask it at each heartbeat.
 */
static bool
resolve_unless_connected(RedisEndpoint *endpoint, unsigned try, char *error, size_t size)
{
	for (int i = 0; i < topology_size; i++)
	{
		const RedisEndpoint *known = &topology_nodes[i].address;

		if (endpoint->is_unix || known->port != endpoint->port || strcmp(known->name, endpoint->name) != 0 ||
			working_connection(i) == NULL)
			continue;
		memcpy(endpoint->host, known->host, sizeof(endpoint->host));
		return true;
	}
	return resolve_endpoint(endpoint, try, error, size);
}

/*
 * Asks the process at this address about the cluster. conn: a connection to it, or NULL to open one for this question.
 * On failure *map and *whole stay unchanged.
 */
static bool
ask_cluster_at(const RedisEndpoint *address, RedisConnection *conn, int64 patience, ClusterMap *map, bool *whole, char *error)
{
	LibraryCall call = {.conn = conn, .deadline = fence_clock() + patience};
	static ClusterMap answer;
	bool		sees_whole;
	bool		ok;

	ok = (conn != NULL || library_open(&call, address)) &&
		cluster_ask(&call, address, &answer, &sees_whole, resolve_unless_connected);
	if (ok)
	{
		*map = answer;
		*whole = sees_whole;
	}
	if (conn == NULL)
		redis_close(call.conn);
	if (!ok)
		strlcpy(error, call.error, REASON_LEN);
	return ok;
}

/*
 * Asks processes of the cluster until one considers the cluster as working. Asks first the present nodes of the table,
 * then the URL's hosts, then the other nodes of the table. If no process considers the cluster as working, uses the
 * last answer.
 */
static bool
locate_cluster(ClusterMap *found, char *error)
{
	bool		any = false;
	bool		whole = false;
	int64		patience = setting_timeout_us();

	for (int i = 0; i < topology_size && !whole; i++)
		if (topology_nodes[i].present)
			any = ask_cluster_at(&topology_nodes[i].address, working_connection(i), patience, found, &whole, error) || any;
	for (int i = 0; i < url.nendpoints && !whole; i++)
	{
		RedisEndpoint address = url.endpoints[i];

		if (resolve_endpoint(&address, 0, error, REASON_LEN) && node_at(&address) < 0)
			any = ask_cluster_at(&address, NULL, patience, found, &whole, error) || any;
	}
	for (int i = 0; i < topology_size && !whole; i++)
		if (!topology_nodes[i].present)
			any = ask_cluster_at(&topology_nodes[i].address, working_connection(i), patience, found, &whole, error) || any;
	return any;
}

/* Divides the slots evenly among n nodes. */
static void
divide_slots(ClusterMap *found, int n)
{
	found->n = n;
	for (int i = 0; i < SLOTS; i++)
		found->slots[i] = i * n / SLOTS;
}

static bool
locate_master(ClusterMap *found, char *error)
{
	divide_slots(found, 1);
	return sentinel_find_master(&url, &found->addresses[0], resolve_unless_connected, error);
}

/* Resolves the hosts of the URL: one, or shards in the order of the URL. */
static bool
locate_named(ClusterMap *found, char *error)
{
	divide_slots(found, url.nendpoints);
	for (int i = 0; i < url.nendpoints; i++)
	{
		const RedisNode *node = &topology_nodes[i];

		found->addresses[i] = i < topology_size && node->conn != NULL ? node->address : url.endpoints[i];
		/* one shard that cannot be resolved does not make the other shards unusable */
		if (!resolve_endpoint(&found->addresses[i], node->failures, error, REASON_LEN) && url.nendpoints == 1)
			return false;
	}
	return true;
}

/* Finds the index of each found node in the table. New nodes get indexes behind its end. Returns false if there is no room. */
static bool
find_places(const ClusterMap *found, int place[MAX_NODES])
{
	int			size = topology_size;

	for (int i = 0; i < found->n; i++)
	{
		place[i] = node_at(&found->addresses[i]);
		if (place[i] < 0)
			place[i] = size++;
	}
	return size <= MAX_NODES;
}

/*
 * Makes the table contain the found nodes. There are two cases.
 *
 * Nodes keep their indexes and connections if exactly the same nodes were found, or (in a cluster) while the epoch may
 * continue. In the second case new nodes go behind the others, and nodes that were not found stay.
 *
 * Otherwise the table is built anew in the order of the found nodes. Nodes that were in it keep their connections.
 */
static void
make_table(const ClusterMap *found)
{
	static RedisNode old[MAX_NODES];
	int			old_size = topology_size;
	int			place[MAX_NODES] = {0};
	bool		stay = find_places(found, place);
	bool		same = found->n == topology_size;

	for (int i = 0; i < found->n; i++)
		same = same && place[i] < topology_size;
	stay = same || (stay && topology->tell_slots && fence_shared->epoch_armed);
	for (int s = 0; s < SLOTS; s++)
	{
		slots[s] = found->slots[s];
		if (stay && slots[s] != SLOT_NOBODY)
			slots[s] = place[slots[s]];
	}
	if (stay)
	{
		for (int i = 0; i < found->n; i++)
			topology_nodes[place[i]].address = found->addresses[i];
		for (int i = 0; i < found->n; i++)
			topology_size = Max(topology_size, place[i] + 1);
		return;
	}
	for (int i = 0; i < found->n; i++)
		if (place[i] >= old_size)
			place[i] = -1;
	memcpy(old, topology_nodes, sizeof(old));
	memset(topology_nodes, 0, sizeof(topology_nodes));
	topology_size = found->n;
	for (int i = 0; i < found->n; i++)
	{
		if (place[i] >= 0)
		{
			topology_nodes[i] = old[place[i]];
			old[place[i]].conn = NULL;
		}
		else if (i < old_size)
			topology_nodes[i].failures = old[i].failures;
		topology_nodes[i].address = found->addresses[i];
	}
	for (int i = 0; i < old_size; i++)
		redis_close(old[i].conn);
}

/*
 * Builds the table if a setting has changed or a node is not connected, because a name may mean another host now.
 * Always asks a cluster, because its slots may have moved.
 */
bool
topology_find(char *error)
{
	static ClusterMap found;
	bool		connected;

	if (settings_changed())
		read_settings();
	connected = topology_size > 0;
	for (int i = 0; i < topology_size; i++)
		connected = connected && topology_nodes[i].conn != NULL;
	if (connected && !topology->tell_slots)
		return true;
	if (!topology->locate(&found, error))
		return false;
	make_table(&found);
	return true;
}

/* After a restart of the keeper, builds the table from shared memory, which has the processes that the keeper armed before. */
bool
topology_resume(char *error)
{
	static ClusterMap granted;

	if (topology_size > 0)
		return true;
	read_settings();
	if (fence_shared->nodes_settings != made_from)
	{
		strlcpy(error, "the settings of the connection to Redis were changed", REASON_LEN);
		return false;
	}
	granted.n = fence_shared->nnodes;
	for (int i = 0; i < granted.n; i++)
		granted.addresses[i] = fence_shared->nodes[i].address;
	for (int s = 0; s < SLOTS; s++)
		granted.slots[s] = topology->equal_parts ? s * granted.n / SLOTS : fence_shared->slot_node[s];
	make_table(&granted);
	for (int i = 0; i < topology_size; i++)
		topology_nodes[i].dismissed = fence_shared->nodes[i].dismissed;
	return true;
}

bool
topology_has_slots(int node)
{
	return slot_has_any(slots, node);
}

void
topology_hang_up(RedisNode *node)
{
	redis_close(node->conn);
	node->conn = NULL;
}

void
topology_dismiss(RedisNode *node)
{
	topology_hang_up(node);
	node->present = false;
	node->dismissed = true;
}

void
topology_slots(unsigned char map[SLOTS])
{
	for (int s = 0; s < SLOTS; s++)
		map[s] = slots[s] != SLOT_NOBODY && topology_nodes[slots[s]].present ? slots[s] : SLOT_NOBODY;
}

bool
topology_is_cluster(void)
{
	return topology->tell_slots;
}

const char *
topology_heartbeat_key(const RedisNode *node)
{
	static char key[128];
	char		tag[12];

	if (topology->tell_slots && slot_some_tag(slots, node - topology_nodes, tag))
		snprintf(key, sizeof(key), "%s:heartbeat:{%s}", setting_namespace, tag);
	else
		snprintf(key, sizeof(key), "%s:heartbeat", setting_namespace);
	return key;
}

/* The node is gone, or is not what it should be. Closes its connection. */
static void
forget(RedisNode *node)
{
	topology_hang_up(node);
	node->failures++;
	if (topology->distrust)
		topology->distrust();
}

/*
 * Notices steps of the node's clock. The keeper computes leases from readings of this clock, so a step matters.
 *
 * The node reads its clock between our question and its reply. So its clock is ahead of ours by at least `ahead` and at
 * most `ahead` + `took`. The step is the gap between two such ranges, less the millisecond that is the resolution of
 * the node's time.
 */
static void
watch_clock(RedisNode *node, int64 asked_at)
{
	int64		ahead = node->hello.time_ms * 1000 - node->heard_at;
	int64		took = node->heard_at - asked_at;
	int64		step = node->clock_ahead == 0 ? 0 : ahead > node->clock_ahead ?
		ahead - (node->clock_ahead + node->clock_took) - 1000 : node->clock_ahead - (ahead + took) - 1000;

	if (step > setting_clock_margin * INT64CONST(1000))
		ereport(LOG,
				(errmsg("pgcache_fence: the clock of Redis at %s stepped by " INT64_FORMAT " ms", node->address.host,
						(ahead - node->clock_ahead) / 1000),
				 errhint("Let the clock slew, not step. Leases rely on clocks that never fall back by more than pgcache_fence.clock_margin.")));
	metrics_raise_server(SERVER_METRIC_CLOCK_STEP, Max(step, 0));
	node->clock_ahead = ahead;
	node->clock_took = took;
}

/*
 * Tests whether the node accepts the messages of writers. Tests a new connection first, because a writer's first
 * message uses a new connection. If the node accepts no more connections, tests the keeper's own connection, because
 * writers then use the courier's. A node that answers everything else but no writes must not be armed: no writer could
 * reserve.
 */
static bool
takes_writes(RedisNode *node, LibraryCall *call)
{
	LibraryCall anew = *call;
	bool		passes;

	passes = library_open(&anew, &node->address) && library_probe_writes(&anew);
	redis_close(anew.conn);
	return passes || library_probe_writes(call);
}

/*
 * Connects if necessary, and asks the process for its identity. If `load`, first makes sure that the library is loaded
 * and that writes are accepted.
 */
static bool
greet(RedisNode *node, bool load, int64 patience, char *error)
{
	LibraryCall call = {.deadline = fence_clock() + patience};
	int64		asked_at;
	bool		found = false;

	if (node->conn == NULL || redis_error(node->conn))
	{
		redis_close(node->conn);
		node->conn = NULL;
		if (!library_open(&call, &node->address))
		{
			strlcpy(error, call.error, REASON_LEN);
			forget(node);
			return false;
		}
		node->conn = call.conn;
	}
	call.conn = node->conn;
	asked_at = fence_clock();
	/*
	 * hello needs no writes, but arming does. Without this test, a node that refuses writes would cost a lease at each
	 * attempt.
	 */
	found = (!load || (library_ensure(&call) && library_has_rights(&call) && takes_writes(node, &call) &&
					   library_server_version(&call, node->server, sizeof(node->server)))) &&
		library_hello(&call, &node->hello, &found) && found;
	node->heard_at = fence_clock();
	if (found)
		watch_clock(node, asked_at);
	if (found && strcmp(node->hello.role, "master") != 0)
	{
		snprintf(call.error, REASON_LEN, "this Redis is a replica (role %s): its master is needed", node->hello.role);
		found = false;
	}
	if (!found)
	{
		snprintf(error, REASON_LEN, "%s", call.error[0] ? call.error : "Redis has lost the function library");
		if (redis_error(node->conn) || topology->distrust)
			forget(node);
		return false;
	}
	return true;
}

bool
topology_greet(RedisNode *node, bool load)
{
	node->error[0] = '\0';
	node->dismissed = false;
	node->present = greet(node, load, setting_timeout_us(), node->error);
	return node->present;
}

/* Returns whether a reply to INFO contains this text. */
static bool
info_has(const redisReply *info, const char *line)
{
	return info->type == REDIS_REPLY_STRING && strstr(info->str, line) != NULL;
}

/* Returns whether two replies to INFO come from the same process, reached by two addresses. */
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

/*
 * Returns whether a master other than ours responds at this address. A sentinel's answer may be outdated, or may be
 * another address of our master.
 */
static bool
is_another_master(const RedisEndpoint *address, int64 patience)
{
	const char *argv[] = {"INFO"};
	LibraryCall here = {.conn = topology_nodes[0].conn, .deadline = fence_clock() + patience};
	LibraryCall there = {.deadline = here.deadline};
	redisReply *ours = NULL;
	redisReply *theirs = NULL;
	bool		another = false;

	if (library_open(&there, address) && (theirs = library_call(&there, lengthof(argv), argv)) != NULL &&
		info_has(theirs, "\nrole:master\r") && (ours = library_call(&here, lengthof(argv), argv)) != NULL)
		another = !same_process(ours, theirs);
	freeReplyObject(ours);
	freeReplyObject(theirs);
	redis_close(there.conn);
	return another;
}

/* Shards never change their slots. Only the set of shards that respond changes. */
static bool
look_at_shards(ClusterMap *found, int64 patience)
{
	(void) patience;
	found->n = topology_size;
	for (int i = 0; i < topology_size; i++)
		found->addresses[i] = topology_nodes[i].address;
	memcpy(found->slots, slots, SLOTS);
	return true;
}

/* Asks the next connected node of the cluster for the current slots. */
static bool
look_at_cluster(ClusterMap *found, int64 patience)
{
	static unsigned turn = 0;
	char		error[REASON_LEN];
	bool		whole = false;

	for (int tries = 0; tries < topology_size; tries++)
	{
		int			node = turn++ % topology_size;
		RedisConnection *conn = working_connection(node);

		if (conn != NULL)
			return ask_cluster_at(&topology_nodes[node].address, conn, patience, found, &whole, error) && whole;
	}
	return false;
}

/*
 * Returns 0 if the slots that could be granted now are those that are granted. Otherwise returns a hash that stays the
 * same as long as these slots stay the same. A process that does not respond could not be granted any slots.
 */
static uint64
slots_changed(const ClusterMap *found, int64 patience)
{
	static RedisNode guest;
	char		error[REASON_LEN];
	unsigned char wanted[SLOTS];
	unsigned char node[MAX_NODES] = {0};	/* index of the node that could be granted the slots of each found master */
	uint64		hash = 0;

	for (int i = 0; i < found->n; i++)
	{
		int			at = node_at(&found->addresses[i]);

		memset(&guest, 0, sizeof(guest));
		guest.address = found->addresses[i];
		if (at >= 0 && fence_shared->nodes[at].granted)
			node[i] = at;
		else if (greet(&guest, true, patience, error))
		{
			node[i] = MAX_NODES + 1;
			hash = hash_combine64(hash, hash_bytes_extended((const unsigned char *) found->addresses[i].host,
															strlen(found->addresses[i].host), found->addresses[i].port));
		}
		else
			node[i] = SLOT_NOBODY;
		redis_close(guest.conn);
	}
	for (int s = 0; s < SLOTS; s++)
		wanted[s] = found->slots[s] == SLOT_NOBODY ? SLOT_NOBODY : node[found->slots[s]];
	if (memcmp(wanted, fence_shared->slot_node, SLOTS) == 0)
		return 0;
	return hash_combine64(hash, hash_bytes_extended(wanted, SLOTS, 0)) | 1;
}

/*
 * Returns whether slots have moved and must be granted again. Until then no process serves them. While slots move,
 * processes give different answers. To grant a slot back to a process discards everything that is cached in it. So we
 * wait until nothing has moved for a while.
 */
static bool
slots_moved(int64 patience, char *error)
{
	static ClusterMap found;
	static uint64 last = 0;		/* last result of slots_changed */
	static int64 first_at;		/* when it first was not 0 */
	static int64 last_at;		/* when it last changed */
	int64		now = fence_clock();
	uint64		changed;

	patience = Max(patience, INT64CONST(100000));
	if (!topology->look_around(&found, patience))
		return false;
	changed = slots_changed(&found, patience);
	for (int i = 0; i < topology_size && changed == 0; i++)
		changed = topology_nodes[i].slots_back;
	if (changed != 0 && last == 0)
		first_at = now;
	if (changed != last)
		last_at = now;
	last = changed;
	if (changed == 0 || (now - last_at < MAP_STABLE && now - first_at < MAP_LONGEST))
		return false;
	last = 0;
	strlcpy(error, topology->moved_why, REASON_LEN);
	return true;
}

/* Returns whether the sentinels name another master, and that process is a master. */
static bool
master_moved(int64 patience, char *error)
{
	RedisEndpoint master;

	if (!sentinel_ask_again(&url, patience, &master, resolve_unless_connected, error) ||
		redis_endpoint_same(&master, &topology_nodes[0].address) || !is_another_master(&master, patience))
		return false;
	snprintf(error, REASON_LEN, "the sentinels name another master: %.100s, port %d", master.host, master.port);
	return true;
}

bool
topology_moved(int64 patience, char *error)
{
	return topology_size > 0 && topology->moved && topology->moved(patience, error);
}

/* Copies the table to shared memory. Backends read the addresses there, and views the rest. */
void
topology_publish(bool armed)
{
	bool		moved = false;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < Max(topology_size, fence_shared->nnodes); i++)
	{
		FenceNode  *shared = &fence_shared->nodes[i];
		RedisNode  *node = &topology_nodes[i];
		bool		other = i >= topology_size || i >= fence_shared->nnodes ||
			!redis_endpoint_same(&shared->address, &node->address) || strcmp(shared->address.name, node->address.name) != 0;

		if (other)
		{
			uint32		serial = shared->serial;

			/* the grant at this index belongs to another process, which may still have it */
			if (shared->granted)
				fence_shared->epoch_armed = false;
			memset(shared, 0, sizeof(*shared));
			shared->serial = serial;
			shared->address = node->address;
		}
		shared->address.settings = made_from;
		if (other || others_reconnect || (node->hello.identity[0] != '\0' && strcmp(shared->identity, node->hello.identity) != 0))
		{
			shared->serial++;
			moved = true;
		}
		shared->reachable = node->conn != NULL;
		shared->dismissed = node->dismissed;
		strlcpy(shared->role, node->hello.role, sizeof(shared->role));
		strlcpy(shared->version, node->server, sizeof(shared->version));
		strlcpy(shared->identity, node->hello.identity, IDENTITY_LEN);
		strlcpy(shared->epoch, node->hello.epoch, EPOCH_LEN);
		if (armed && shared->granted)
			shared->lease_until = node->heard_at + setting_lease * INT64CONST(1000);
		strlcpy(shared->error, node->error, REASON_LEN);
	}
	fence_shared->nnodes = topology_size;
	fence_shared->nodes_settings = made_from;
	others_reconnect = false;
	if (moved)
		pg_atomic_fetch_add_u32(&fence_shared->nodes_serial, 1);
	LWLockRelease(fence_shared->lock);
}
