/*
 * redis/topology.c
 *	  The Redis processes that pgcache_fence.redis_url names, as the keeper sees them; see topology.h.
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

#define MAP_STABLE	INT64CONST(1000000)	/* microseconds for which changed slots must rest before they are granted anew, */
#define MAP_LONGEST	INT64CONST(5000000) /* unless they do not come to rest for so long */

/* What the ways of having Redis processes do differently; NULL: not there */
typedef struct Topology
{
	/* where the processes are, as numeric addresses, and which slots are whose: as the URL says, or as those say whom it names */
	bool		(*locate) (ClusterMap *found, char *error);
	/* beside heartbeats, see topology_moved; the table is not empty */
	bool		(*moved) (int64 patience, char *error);
	/* for slots_moved: who has which slots now, and what to say if these are others than those that are granted */
	bool		(*look_around) (ClusterMap *found, int64 patience);
	const char *moved_why;
	/* a node is not there, or not what it should be: whoever told of it is asked again before the next try */
	void		(*distrust) (void);
	bool		tell_slots;		/* the nodes themselves say which slots are whose, and that may change: a cluster */
	bool		equal_parts;	/* the nodes divide the slots evenly, in the order of the URL, whoever is there */
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

static unsigned char slots[SLOTS];	/* index of its node, for each slot, as those say whom the URL names */
static RedisUrl url;
static const Topology *topology = &topologies[REDIS_STANDALONE];	/* the url's */
static char *made_from = NULL;	/* the settings from which the table was made */
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

static uint32
settings_hash(void)
{
	return hash_bytes((const unsigned char *) made_from, strlen(made_from));
}

/* Begins anew with what the settings say now. */
static void
read_settings(void)
{
	topology_disconnect();
	sentinel_reset();
	topology_size = 0;
	memset(topology_nodes, 0, sizeof(topology_nodes));
	url = *setting_url;
	topology = &topologies[url.topology];
	if (made_from)
		pfree(made_from);
	made_from = MemoryContextStrdup(TopMemoryContext, current_settings());
	others_reconnect = true;
}

/* Index of the node with that address, or -1. */
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
 * A name that led to a process which still answers means that one: the resolver, which waits for as long as it likes, is not asked
 * beside each heartbeat.
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

/* conn: to that address, NULL for one of its own. map and whole are as they were if it fails. */
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
 * Asks processes of the cluster until one sees it as working: those of the table that were there last, then those that the
 * URL names, then the others of the table. If none does, what the last one said that answered must do.
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

/* The n nodes have equal parts of the slots. */
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

/* Those that the URL names: one, or shards in the order of the URL. */
static bool
locate_named(ClusterMap *found, char *error)
{
	divide_slots(found, url.nendpoints);
	for (int i = 0; i < url.nendpoints; i++)
	{
		const RedisNode *node = &topology_nodes[i];

		found->addresses[i] = i < topology_size && node->conn != NULL ? node->address : url.endpoints[i];
		/* one shard whose name means nothing is no reason to do without the others */
		if (!resolve_endpoint(&found->addresses[i], node->failures, error, REASON_LEN) && url.nendpoints == 1)
			return false;
	}
	return true;
}

/*
 * Where in the table the nodes are, those at its end included that were not in it. False: there is no room.
 */
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
 * The table holds these nodes; those that it had stay where they are, with their connections, if all are the same, or while the
 * epoch may go on: then others come behind them, and those stay that are not among these. The nodes of shards are what their
 * place says.
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
 * Makes the table anew if settings changed, or if something is not connected (a name may mean another host now); of a
 * cluster always, for its slots.
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

/* After a restart of the keeper: the processes that it armed are in shared memory. */
bool
topology_resume(char *error)
{
	static ClusterMap granted;

	if (topology_size > 0)
		return true;
	read_settings();
	if (fence_shared->nodes_settings != settings_hash())
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
topology_dismiss(RedisNode *node)
{
	redis_close(node->conn);
	node->conn = NULL;
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

/* It is not there, or not what it should be. */
static void
forget(RedisNode *node)
{
	redis_close(node->conn);
	node->conn = NULL;
	node->failures++;
	if (topology->distrust)
		topology->distrust();
}

/*
 * Leases are computed from a reading of the node's clock: a step of it is seen by comparing with the last reading. A clock is
 * read between question and answer, so it is ahead by something from `ahead` to `ahead` + what the answer took; a step is
 * what lies between two such ranges, but for the millisecond in which the node tells the time.
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
				 errhint("A lease relies on clocks that fall back by no more than pgcache_fence.clock_margin: let them slew, not step.")));
	metrics_raise_server(SERVER_METRIC_CLOCK_STEP, Max(step, 0));
	node->clock_ahead = ahead;
	node->clock_took = took;
}

/*
 * Whether what writers send passes: on a new connection, as a writer's first message does; else, if the node takes no more connections,
 * on the keeper's own, for then writers have the courier's. A node that answers everything else must not be armed: no writer could reserve.
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

/* Connects if need be, makes sure of the library and that writes pass if `load`, and asks the process who it is. */
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
	/* hello needs no writes, arming does: a node that refuses them must not cost a lease each time */
	found = (!load || (library_ensure(&call) && takes_writes(node, &call) &&
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

	if (library_open(&there, address) && (theirs = library_call(&there, lengthof(argv), argv)) != NULL &&
		info_has(theirs, "\nrole:master\r") && (ours = library_call(&here, lengthof(argv), argv)) != NULL)
		another = !same_process(ours, theirs);
	freeReplyObject(ours);
	freeReplyObject(theirs);
	redis_close(there.conn);
	return another;
}

/* The shards' part of the slots does not change; who is there does. */
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

/* What the cluster says now, asked of one process after the other. */
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
 * Whether the slots, as they could be granted now, are others than those that are: 0 if not, else a number that is the same
 * as long as they stay as they are. A process that is named but not there could not be granted anything.
 */
static uint64
slots_changed(const ClusterMap *found, int64 patience)
{
	static RedisNode guest;
	char		error[REASON_LEN];
	unsigned char wanted[SLOTS];
	unsigned char node[MAX_NODES] = {0};	/* whom a slot of each of those found could be granted to */
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
 * Slots that moved are served by nobody until they are granted anew. Processes tell different things while they move, and a slot
 * that is granted back to a process costs all that is cached there: so it waits until nothing has moved for a while.
 */
static bool
slots_moved(int64 patience, char *error)
{
	static ClusterMap found;
	static uint64 last = 0;		/* of slots_changed */
	static int64 first_at;		/* when it was not 0 for the first time, */
	static int64 last_at;		/* and when it was another one for the last time */
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

/* Whether the sentinels tell of another master, and it is one. */
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

/* Copies what is known to shared memory, where backends find addresses and views find the rest. */
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
			memcmp(&shared->address, &node->address, sizeof(node->address)) != 0;

		if (other)
		{
			uint32		serial = shared->serial;

			/* whatever was granted was granted to somebody else, who may still have it */
			if (shared->granted)
				fence_shared->epoch_armed = false;
			memset(shared, 0, sizeof(*shared));
			shared->serial = serial;
			shared->address = node->address;
		}
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
	fence_shared->nodes_settings = made_from ? settings_hash() : 0;
	others_reconnect = false;
	if (moved)
		pg_atomic_fetch_add_u32(&fence_shared->nodes_serial, 1);
	LWLockRelease(fence_shared->lock);
}
