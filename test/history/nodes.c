/*
 * nodes.c
 *	  One process's connections to Redis, and the choice of the server for a key: the only server; one of several shards, which
 *	  divide the slots evenly; or a member of a cluster, according to MOVED and ASK.
 *
 * Faults often break these connections. A command without a reply ends its connection, and the next use makes a new one, with
 * a backoff. Never: repeats a command by itself, unless it was redirected.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define REDIS_PATIENCE_MS	700
#define REDIRECTIONS_MAX	5

/* -----------------------------------------------------------------------------------------------------------------
 * Servers
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
server_leave(Server *server)
{
	if (server->redis != NULL)
		redisFree(server->redis);
	server->redis = NULL;
}

void
redis_leave(Client *c)
{
	for (int i = 0; i < c->servers_known; i++)
		server_leave(&c->servers[i]);
	server_leave(&c->replica);
}

/* The number of the server with that address; NONE if there are too many servers. */
static int
server_number(Client *c, const char *address)
{
	for (int i = 0; i < c->servers_known; i++)
		if (strcmp(c->servers[i].address, address) == 0)
			return i;
	if (c->servers_known == SERVERS_MAX)
		return NONE;
	memset(&c->servers[c->servers_known], 0, sizeof(Server));
	snprintf(c->servers[c->servers_known].address, sizeof(c->servers[0].address), "%s", address);
	return c->servers_known++;
}

/* Parses the line "redis" of the endpoints: an address, or "shards" or "cluster" and addresses separated by commas. */
void
redis_servers(Client *c)
{
	char		line[sizeof(c->at.redis)];
	char	   *blank;
	char	   *rest;

	redis_leave(c);
	c->servers_known = 0;
	memset(c->server_of_slot, 0, sizeof(c->server_of_slot));
	strcpy(line, c->at.redis);
	blank = strchr(line, ' ');
	c->layout = blank == NULL ? SINGLE : line[0] == 's' ? SHARDS : CLUSTER;
	for (char *address = strtok_r(blank ? blank + 1 : line, ",", &rest); address != NULL; address = strtok_r(NULL, ",", &rest))
		server_number(c, address);
}

static redisContext *
redis_open(const char *address)
{
	struct timeval patience = {.tv_usec = REDIS_PATIENCE_MS * 1000};
	const char *colon = strrchr(address, ':');
	redisContext *redis;
	char		host[256];

	if (address[0] == '/' || colon == NULL)
		redis = redisConnectUnixWithTimeout(address, patience);
	else
	{
		snprintf(host, sizeof(host), "%.*s", (int) (colon - address), address);
		redis = redisConnectWithTimeout(host, atoi(colon + 1), patience);
	}
	if (redis != NULL && (redis->err || redisSetTimeout(redis, patience) != REDIS_OK))
	{
		redisFree(redis);
		redis = NULL;
	}
	return redis;
}

/* Connects if necessary. Returns false if that is not possible now; the caller then goes on without Redis. */
static bool
server_ready(Server *server)
{
	int64_t		now;

	if (server->redis != NULL)
		return true;
	now = now_ns();
	if (now < server->retry_at)
		return false;
	server->redis = redis_open(server->address);
	if (server->redis != NULL)
	{
		server->backoff_ms = 0;
		return true;
	}
	server->backoff_ms = server->backoff_ms == 0 ? BACKOFF_MIN_MS : server->backoff_ms * 2;
	if (server->backoff_ms > BACKOFF_MAX_MS)
		server->backoff_ms = BACKOFF_MAX_MS;
	server->retry_at = now + (int64_t) server->backoff_ms * 1000000;
	return false;
}

/* The reply, which may be an error; NULL if there is none, and then the connection is closed. */
static redisReply *
server_call(Server *server, int n, const char *const *words)
{
	void	   *reply = NULL;

	if (!server_ready(server))
		return NULL;
	if (redisAppendCommandArgv(server->redis, n, (const char **) words, NULL) != REDIS_OK ||
		redisGetReply(server->redis, &reply) != REDIS_OK)
	{
		server_leave(server);
		return NULL;
	}
	return reply;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Slots
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The slot of a key according to the Redis Cluster specification: CRC16 (XMODEM) of the text between the first braces. */
static int
slot_of(const char *name)
{
	const char *open = strchr(name, '{');
	const char *close = open ? strchr(open, '}') : NULL;
	uint16_t	crc = 0;

	if (close == NULL || close == open + 1)
	{
		open = name - 1;
		close = name + strlen(name);
	}
	for (const char *at = open + 1; at < close; at++)
	{
		crc ^= (uint16_t) ((unsigned char) *at << 8);
		for (int i = 0; i < 8; i++)
			crc = (uint16_t) (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
	}
	return crc % SLOTS;
}

static int
server_of(Client *c, int slot)
{
	if (c->layout == SHARDS)
		return slot * c->servers_known / SLOTS;
	if (c->layout == CLUSTER)
		return c->server_of_slot[slot] ? c->server_of_slot[slot] - 1 : (int) draw(c, (uint64_t) c->servers_known);
	return 0;
}

/* That server does not answer, so other servers are asked for its slots. */
static void
forget_server(Client *c, int number)
{
	for (int slot = 0; slot < SLOTS; slot++)
		if (c->server_of_slot[slot] == number + 1)
			c->server_of_slot[slot] = 0;
}

/* The number of the server in "MOVED slot host:port" or "ASK slot host:port"; NONE for another error. */
static int
redirection(Client *c, const char *error, int slot, bool *asking)
{
	const char *address = strrchr(error, ' ');
	int			number;

	*asking = strncmp(error, "ASK ", 4) == 0;
	if (address == NULL || !(*asking || strncmp(error, "MOVED ", 6) == 0))
		return NONE;
	number = server_number(c, address + 1);
	if (!*asking && number != NONE)
		c->server_of_slot[slot] = (uint8_t) (number + 1);
	return number;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Commands
 * -----------------------------------------------------------------------------------------------------------------
 */

void
discard(redisReply *reply)
{
	if (reply != NULL)
		freeReplyObject(reply);
}

static void
discard_all(redisReply **replies, int n)
{
	for (int i = 0; i < n; i++)
		discard(replies[i]);
	memset(replies, 0, sizeof(redisReply *) * (size_t) n);
}

static bool
is_script(const Command *command)
{
	return strncmp(command->words[0], "FCALL", 5) == 0 || strcmp(command->words[0], "EVAL") == 0;
}

/*
 * Sends the commands one after the other on one connection. Now and then the client pauses in between. Returns false without a
 * connection.
 */
static bool
call_in_order(Client *c, Server *server, bool asking, Command *commands, int n, redisReply **replies)
{
	for (int i = 0; i < n; i++)
	{
		if (i > 0 && chance(c, control->reader_stall_ppm))
			sleep_ms((int) draw(c, 2 * (uint64_t) control->reader_stall_ms + 1));
		if (i > 0 && server->redis == NULL)
			return false;
		if (asking)
			discard(server_call(server, 1, (const char *[]) {"ASKING"}));
		if (asking && server->redis == NULL)
			return false;
		commands[i].sent = now_ns();
		replies[i] = server_call(server, commands[i].n, commands[i].words);
		if (replies[i] == NULL)
			return false;
	}
	return true;
}

/* Whether Redis can have said this to MULTI or to a command that it queues; otherwise it answers something else. */
static bool
is_status(const redisReply *reply, const char *word)
{
	return reply->type == REDIS_REPLY_ERROR || (reply->type == REDIS_REPLY_STATUS && strcmp(reply->str, word) == 0);
}

static bool
is_end(const redisReply *reply, int n)
{
	return reply->type == REDIS_REPLY_ERROR || (reply->type == REDIS_REPLY_ARRAY && reply->elements == (size_t) n);
}

/* Sends MULTI, all commands and EXEC in one message. If Redis refuses to queue a command, that error is its reply and the others have none. */
static bool
call_block(Server *server, const Command *commands, int n, redisReply **replies)
{
	static const char *multi[] = {"MULTI"};
	static const char *exec[] = {"EXEC"};
	redisReply *reply;

	if (!server_ready(server))
		return false;
	redisAppendCommandArgv(server->redis, 1, multi, NULL);
	for (int i = 0; i < n; i++)
		redisAppendCommandArgv(server->redis, commands[i].n, (const char **) commands[i].words, NULL);
	redisAppendCommandArgv(server->redis, 1, exec, NULL);
	for (int i = -1; i <= n; i++)
	{
		reply = NULL;
		if (redisGetReply(server->redis, (void **) &reply) != REDIS_OK ||
			!(i == n ? is_end(reply, n) : is_status(reply, i < 0 ? "OK" : "QUEUED")))
		{
			discard(reply);
			server_leave(server);
			return false;
		}
		if (i >= 0 && i < n && reply->type == REDIS_REPLY_ERROR)
			replies[i] = reply;
		else if (i == n && reply->type == REDIS_REPLY_ARRAY)
		{
			for (int k = 0; k < n; k++)
			{
				discard(replies[k]);
				replies[k] = reply->element[k];
				reply->element[k] = NULL;
			}
			freeReplyObject(reply);
		}
		else
			freeReplyObject(reply);
	}
	return true;
}

/* The first error among the replies; NULL if there is none. */
static const char *
first_error(redisReply **replies, int n)
{
	for (int i = 0; i < n; i++)
		if (replies[i] != NULL && replies[i]->type == REDIS_REPLY_ERROR)
			return replies[i]->str;
	return NULL;
}

static bool
all_answered(redisReply **replies, int n)
{
	for (int i = 0; i < n; i++)
		if (replies[i] == NULL)
			return false;
	return true;
}

/*
 * The replies to commands on keys of one slot, all from one process over one connection; block: within MULTI and EXEC. Each
 * command is COMMAND key ..., FCALL name numkeys key ... or EVAL script numkeys key ... . Returns false without replies if one is
 * missing, or if the server returned an error (LOADING, READONLY, OOM, ...). The caller frees the replies.
 */
bool
redis_together(Client *c, bool block, Command *commands, int n, redisReply **replies)
{
	bool		asking = false;
	int			slot;
	int			number;

	follow_endpoints(c);
	slot = c->layout == SINGLE ? 0 : slot_of(commands[0].words[is_script(&commands[0]) ? 3 : 1]);
	number = server_of(c, slot);
	memset(replies, 0, sizeof(redisReply *) * (size_t) n);
	for (int i = 0; i < REDIRECTIONS_MAX && number != NONE; i++)
	{
		const char *error;

		if (!(block ? call_block(&c->servers[number], commands, n, replies) :
			  call_in_order(c, &c->servers[number], asking, commands, n, replies)))
		{
			discard_all(replies, n);
			forget_server(c, number);
			return false;
		}
		error = first_error(replies, n);
		if (error == NULL && all_answered(replies, n))
			return true;
		number = error ? redirection(c, error, slot, &asking) : NONE;
		discard_all(replies, n);
		if (block && asking)		/* ASKING is valid for one command only */
			return false;
	}
	return false;
}

/* The same for one command. Returns its reply, or NULL. */
redisReply *
redis_call(Client *c, int n, const char *const *words)
{
	Command		command = {.n = n, .words = words};
	redisReply *reply;

	return redis_together(c, false, &command, 1, &reply) ? reply : NULL;
}

/* The reply of the server at at.old_redis; NULL without a reply, and for an error. */
redisReply *
replica_call(Client *c, int n, const char *const *words)
{
	redisReply *reply;

	follow_endpoints(c);
	if (strcmp(c->replica.address, c->at.old_redis) != 0)
	{
		server_leave(&c->replica);
		snprintf(c->replica.address, sizeof(c->replica.address), "%s", c->at.old_redis);
	}
	reply = server_call(&c->replica, n, words);
	if (reply == NULL || reply->type != REDIS_REPLY_ERROR)
		return reply;
	discard(reply);
	return NULL;
}

bool
is_word(const redisReply *reply, size_t element, const char *word)
{
	return reply != NULL && reply->type == REDIS_REPLY_ARRAY && reply->elements > element &&
		reply->element[element]->str != NULL && strcmp(reply->element[element]->str, word) == 0;
}
