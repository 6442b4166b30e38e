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

/*
 * The answer to FCALL name numkeys key ..., EVAL script numkeys key ..., or COMMAND key ... . NULL if there is none to be had,
 * and for an error that the server tells (LOADING, READONLY, OOM, ...).
 */
redisReply *
redis_call(Client *c, int n, const char *const *words)
{
	bool		script = strcmp(words[0], "FCALL") == 0 || strcmp(words[0], "EVAL") == 0;
	int			slot = c->layout == SINGLE ? 0 : slot_of(words[script ? 3 : 1]);
	bool		asking = false;
	int			number;

	follow_endpoints(c);
	number = server_of(c, slot);
	for (int i = 0; i < REDIRECTIONS_MAX && number != NONE; i++)
	{
		redisReply *reply;

		if (asking)
		{
			reply = server_call(&c->servers[number], 1, (const char *[]) {"ASKING"});
			if (reply != NULL)
				freeReplyObject(reply);
		}
		reply = server_call(&c->servers[number], n, words);
		if (reply == NULL)
		{
			forget_server(c, number);
			return NULL;
		}
		if (reply->type != REDIS_REPLY_ERROR)
			return reply;
		number = redirection(c, reply->str, slot, &asking);
		freeReplyObject(reply);
	}
	return NULL;
}

bool
is_word(const redisReply *reply, size_t element, const char *word)
{
	return reply != NULL && reply->type == REDIS_REPLY_ARRAY && reply->elements > element &&
		reply->element[element]->str != NULL && strcmp(reply->element[element]->str, word) == 0;
}
