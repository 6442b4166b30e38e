/*
 * redis/sentinel.c
 *	  Asks the sentinels which process is the master; see sentinel.h.
 */
#include "postgres.h"

#include "base/settings.h"
#include "redis/library.h"
#include "redis/resolve.h"
#include "redis/sentinel.h"

static unsigned turn = 0;		/* index of the sentinel to ask next; keeps counting after the last one */
static RedisConnection *connection = NULL;	/* to that sentinel; NULL: none */

static const RedisEndpoint *
next_sentinel(const RedisUrl *url)
{
	return &url->endpoints[turn % url->nendpoints];
}

static void
disconnect(void)
{
	redis_close(connection);
	connection = NULL;
}

void
sentinel_distrust(void)
{
	disconnect();
	turn++;
}

void
sentinel_reset(void)
{
	disconnect();
	turn = 0;
}

/* with_password: see ask. */
static bool
connect_sentinel(const RedisUrl *url, bool with_password, int64 deadline, char *error)
{
	RedisEndpoint address = *next_sentinel(url);
	static RedisUrl without;

	if (!resolve_endpoint(&address, turn / url->nendpoints, error, REASON_LEN))
		return false;
	without = *url;
	without.user[0] = without.password[0] = '\0';
	connection = redis_open(&address, with_password ? url : &without, deadline, error, REASON_LEN);
	return connection != NULL;
}

/* Reads host and port from the reply. The sentinel may know the host by name. */
static bool
read_master(const redisReply *reply, RedisEndpoint *master)
{
	const char *port = calls_string(reply, 1);

	return port && reply->elements == 2 && read_endpoint(reply->element[0], atoi(port), master);
}

/* Asks the sentinel whose turn it is. */
static bool
ask(const RedisUrl *url, int64 deadline, RedisEndpoint *master, ResolveEndpoint resolve, char *error)
{
	const char *argv[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", url->master};
	LibraryCall call = {.deadline = deadline};
	redisReply *reply;
	bool		known;

	if (connection && redis_error(connection))
		disconnect();
	if (connection == NULL && !connect_sentinel(url, false, deadline, error))
		return false;
	call.conn = connection;
	reply = library_call(&call, lengthof(argv), argv);
	/* The password belongs to the master. Send it to a sentinel only if the sentinel requires one. */
	if (reply == NULL && url->password[0] != '\0' &&
		(strstr(call.error, "NOAUTH") != NULL || strstr(call.error, "NOPERM") != NULL))
	{
		disconnect();
		if (!connect_sentinel(url, true, deadline, error))
			return false;
		call.conn = connection;
		reply = library_call(&call, lengthof(argv), argv);
	}
	if (reply == NULL)
	{
		snprintf(error, REASON_LEN, "sentinel %.100s: %.140s", next_sentinel(url)->host, call.error);
		return false;
	}
	known = read_master(reply, master);
	if (!known)
		snprintf(error, REASON_LEN, "sentinel %.100s %s", next_sentinel(url)->host, reply->type == REDIS_REPLY_NIL ?
				 "knows no master of that name" : "gave a malformed answer");
	freeReplyObject(reply);
	return known && resolve(master, turn / url->nendpoints, error, REASON_LEN);
}

bool
sentinel_ask_again(const RedisUrl *url, int64 patience, RedisEndpoint *master, ResolveEndpoint resolve, char *error)
{
	if (ask(url, fence_clock() + patience, master, resolve, error))
		return true;
	sentinel_distrust();
	return false;
}

bool
sentinel_find_master(const RedisUrl *url, RedisEndpoint *master, ResolveEndpoint resolve, char *error)
{
	for (int i = 0; i < url->nendpoints; i++)
		if (sentinel_ask_again(url, setting_timeout_us(), master, resolve, error))
			return true;
	return false;
}
