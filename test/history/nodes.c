/*
 * nodes.c
 *	  One process's connections to Redis, and of which server a key is asked: the only one; one of several shards, which
 *	  divide the slots evenly; or a member of a cluster, where MOVED and ASK tell.
 *
 * They are lost often: that is what the tests are about. A command whose answer is missing ends its connection; the next
 * use makes a new one, with a backoff. Never: repeats anything by itself, but for what was redirected.
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

/* Its number; NONE if there are too many. */
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

/* What the line "redis" of the endpoints says: an address, or "shards" or "cluster" and some, separated by commas. */
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

/* Connected. False: not now; the caller goes without. */
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

/* The reply, an error too; NULL if there is none to be had, and then the connection is gone. */
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

/* As the specification of the cluster counts it: CRC16 (XMODEM) of what is between the first braces. */
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

/* That server does not answer: others are asked for what it had. */
static void
forget_server(Client *c, int number)
{
	for (int slot = 0; slot < SLOTS; slot++)
		if (c->server_of_slot[slot] == number + 1)
			c->server_of_slot[slot] = 0;
}

/* "MOVED slot host:port", "ASK slot host:port": the server's number; NONE if the error is another. */
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
 * One after the other, on one connection; now and then the client stands still in between. False: the connection was lost,
 * or could not be had.
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

/* MULTI, all, EXEC in one message. What is refused when it is queued is its answer, and the others have none. */
static bool
call_block(Server *server, const Command *commands, int n, redisReply **replies)
{
	static const char *multi[] = {"MULTI"};
	static const char *exec[] = {"EXEC"};
	void	   *reply;

	if (!server_ready(server))
		return false;
	redisAppendCommandArgv(server->redis, 1, multi, NULL);
	for (int i = 0; i < n; i++)
		redisAppendCommandArgv(server->redis, commands[i].n, (const char **) commands[i].words, NULL);
	redisAppendCommandArgv(server->redis, 1, exec, NULL);
	for (int i = -1; i <= n; i++)
	{
		reply = NULL;
		if (redisGetReply(server->redis, &reply) != REDIS_OK)
		{
			server_leave(server);
			return false;
		}
		if (i >= 0 && i < n && ((redisReply *) reply)->type == REDIS_REPLY_ERROR)
			replies[i] = reply;
		else if (i == n && ((redisReply *) reply)->type == REDIS_REPLY_ARRAY && ((redisReply *) reply)->elements == (size_t) n)
		{
			for (int k = 0; k < n; k++)
			{
				discard(replies[k]);
				replies[k] = ((redisReply *) reply)->element[k];
				((redisReply *) reply)->element[k] = NULL;
			}
			freeReplyObject(reply);
		}
		else
			freeReplyObject(reply);
	}
	return true;
}

/* The first that is an error; NULL if there is none. */
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
 * The answers to commands that are about keys of one slot, all of one process, over one connection; block: in MULTI and
 * EXEC. Each is COMMAND key ..., FCALL name numkeys key ... or EVAL script numkeys key ... . False: some were not to be
 * had, or the server told an error (LOADING, READONLY, OOM, ...): then there are none. The caller frees them.
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
		if (block && asking)		/* ASKING is for one command */
			return false;
	}
	return false;
}

/* The same of one command: its answer, or NULL. */
redisReply *
redis_call(Client *c, int n, const char *const *words)
{
	Command		command = {.n = n, .words = words};
	redisReply *reply;

	return redis_together(c, false, &command, 1, &reply) ? reply : NULL;
}

/* The answer of the server at at.old_redis; NULL if there is none, and for an error. */
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
