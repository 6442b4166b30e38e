/*
 * redis/library.c
 *	  Loads the function library into Redis, and calls it and waits for the replies; see library.h.
 *
 * Owns no state but the name of this cluster. Takes no locks.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "base/position.h"
#include "base/settings.h"
#include "domain/catalog.h"
#include "redis/calls.h"
#include "redis/fence_lua.h"
#include "redis/library.h"

/* These texts must match fence.lua: the line that defines its version, and the start of its functions' descriptions. */
#define LIBRARY_VERSION_LINE "local LIBRARY_VERSION = '"
#define LIBRARY_DESCRIPTION "pgcache_fence library version "

#define REPLICA_MESSAGE "this Redis is a replica: its master is needed"

const char *
library_owner(void)
{
	static char owner[24] = "";

	if (owner[0] == '\0')
		snprintf(owner, sizeof(owner), UINT64_FORMAT, GetSystemIdentifier());
	return owner;
}

bool
library_open(LibraryCall *call, const RedisEndpoint *address)
{
	if (address->settings != 0 && address->settings != settings_of_connections())
	{
		call->conn = NULL;
		strlcpy(call->error, "the settings of the connection to Redis were changed, and the keeper has not connected with them yet",
				REASON_LEN);
		return false;
	}
	call->conn = redis_open(address, setting_url, call->deadline, call->error, REASON_LEN);
	return call->conn != NULL;
}

bool
library_send(LibraryCall *call, int argc, const char **argv)
{
	Call		what;

	call_wrap(&what, argc, argv, NULL);
	return library_tell(call, &what);
}

bool
library_tell(LibraryCall *call, const Call *what)
{
	if (redis_send(call->conn, what->argc, what->argv, what->argvlen))
		return true;
	strlcpy(call->error, redis_error(call->conn), sizeof(call->error));
	return false;
}

/* Waits for the next reply. Returns NULL and sets the error if none arrives, or if it is an error reply. */
static redisReply *
wait_reply(LibraryCall *call)
{
	redisReply *reply = redis_wait_reply(call->conn, call->deadline, wait_event_redis());

	if (reply == NULL)
		strlcpy(call->error, redis_error(call->conn), sizeof(call->error));
	else if (reply->type == REDIS_REPLY_ERROR)
	{
		snprintf(call->error, sizeof(call->error), "Redis answered: %.*s",
				 (int) Min(reply->len, REASON_LEN - 32), reply->str);
		freeReplyObject(reply);
		reply = NULL;
	}
	return reply;
}

redisReply *
library_call(LibraryCall *call, int argc, const char **argv)
{
	return library_send(call, argc, argv) ? wait_reply(call) : NULL;
}

redisReply *
library_ask(LibraryCall *call, const Call *what)
{
	return library_tell(call, what) ? wait_reply(call) : NULL;
}

bool
library_next(LibraryCall *call)
{
	redisReply *reply = wait_reply(call);

	freeReplyObject(reply);
	return reply != NULL;
}

bool
library_finish(LibraryCall *call)
{
	bool		ok = true;

	while (redis_error(call->conn) == NULL && redis_outstanding(call->conn) > 0)
		ok = library_next(call) && ok;
	return ok && redis_error(call->conn) == NULL;
}

/* Returns whether the reply begins with this word; otherwise writes what it says to the error. Frees the reply. */
static bool
expect(LibraryCall *call, redisReply *reply, const char *word)
{
	const char *first;
	bool		ok;

	if (reply == NULL)
		return false;
	first = calls_string(reply, 0);
	ok = first && strcmp(first, word) == 0;
	if (!ok)
	{
		const char *why = calls_string(reply, 1);

		snprintf(call->error, sizeof(call->error), "Redis %s%s%s", first ? first : "gave a malformed answer",
				 why ? ": " : "", why ? why : "");
	}
	freeReplyObject(reply);
	return ok;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Loading
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Finds the version in any description inside the reply of FUNCTION LIST; 0 if there is none. */
static int
described_version(const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_STRING &&
		strncmp(reply->str, LIBRARY_DESCRIPTION, strlen(LIBRARY_DESCRIPTION)) == 0)
		return atoi(reply->str + strlen(LIBRARY_DESCRIPTION));
	if (reply->type == REDIS_REPLY_ARRAY)
		for (size_t i = 0; i < reply->elements; i++)
		{
			int			version = described_version(reply->element[i]);

			if (version > 0)
				return version;
		}
	return 0;
}

bool
library_ensure(LibraryCall *call)
{
	const char *list[] = {"FUNCTION", "LIST", "LIBRARYNAME", "pgcache_fence"};
	const char *load[] = {"FUNCTION", "LOAD", "REPLACE", fence_lua};
	redisReply *reply = library_call(call, lengthof(list), list);
	int			version;

	if (reply == NULL)
	{
		if (strstr(call->error, "unknown command"))
			strlcpy(call->error, "this Redis has no functions: Redis 7.0 or later, or Valkey, is needed",
					sizeof(call->error));
		return false;
	}
	version = described_version(reply);
	freeReplyObject(reply);
	if (version == library_version())
		return true;
	if (version > library_version())
	{
		snprintf(call->error, sizeof(call->error),
				 "Redis has version %d of the function library, this pgcache_fence has version %d: upgrade pgcache_fence",
				 version, library_version());
		return false;
	}
	reply = library_call(call, lengthof(load), load);
	if (reply == NULL)
	{
		if (strstr(call->error, "READONLY"))
			strlcpy(call->error, REPLICA_MESSAGE, sizeof(call->error));
		return false;
	}
	freeReplyObject(reply);
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * The process
 * -----------------------------------------------------------------------------------------------------------------
 */

int
library_version(void)
{
	const char *line = strstr(fence_lua, LIBRARY_VERSION_LINE);

	Assert(line != NULL);
	return line ? atoi(line + strlen(LIBRARY_VERSION_LINE)) : 0;
}

#define SERVER_LEN 20

/* Names a run of the server, by its nonce. */
static void
name_server(char name[SERVER_LEN], uint64 nonce)
{
	snprintf(name, SERVER_LEN, "%016llx", (unsigned long long) nonce);
}

bool
library_hello(LibraryCall *call, Hello *hello, bool *found)
{
	uint64		nonce;
	char		nonce_text[20];
	char		server[SERVER_LEN];
	Call		question;
	redisReply *reply;
	bool		ok;

	*found = true;
	if (!pg_strong_random(&nonce, sizeof(nonce)))
		elog(ERROR, "could not draw a random number");
	snprintf(nonce_text, sizeof(nonce_text), "%016llx", (unsigned long long) nonce);
	name_server(server, fence_shared->nonce);
	if (RecoveryInProgress())
		call_hello(&question, nonce_text, NULL, 0, NULL);	/* a standby arms nothing */
	else
		call_hello(&question, nonce_text, library_owner(), GetWALInsertionTimeLine(), server);
	reply = library_ask(call, &question);
	if (reply == NULL)
	{
		/* a process that was restarted says so, and also one that never had the library */
		if (strstr(call->error, "Function not found") == NULL)
			return false;
		*found = false;
		return true;
	}
	ok = calls_hello(reply, hello);
	if (!ok)
		strlcpy(call->error, "Redis gave a malformed answer to hello", sizeof(call->error));
	freeReplyObject(reply);
	return ok;
}

bool
library_server_version(LibraryCall *call, char *version, size_t size)
{
	const char *argv[] = {"INFO", "server"};
	redisReply *reply = library_call(call, lengthof(argv), argv);
	const char *info = reply && reply->type == REDIS_REPLY_STRING ? reply->str : "";
	const char *valkey = strstr(info, "valkey_version:");
	const char *line = valkey ? valkey : strstr(info, "redis_version:");
	const char *number = line ? strchr(line, ':') + 1 : NULL;

	if (reply == NULL)
		return false;
	if (number)
		snprintf(version, size, "%s %.*s", valkey ? "Valkey" : "Redis", (int) strcspn(number, "\r\n"), number);
	else
		strlcpy(version, "unknown", size);
	freeReplyObject(reply);
	return true;
}

const char *
library_user(void)
{
	return setting_url->user[0] ? setting_url->user : "default";
}

redisReply *
library_missing_rights(LibraryCall *call, bool events)
{
	Call		question;
	redisReply *reply;

	call_rights(&question, events);
	reply = library_ask(call, &question);
	if (reply == NULL || reply->type == REDIS_REPLY_ARRAY)
		return reply;
	strlcpy(call->error, "Redis gave a malformed answer to the question for rights", sizeof(call->error));
	freeReplyObject(reply);
	return NULL;
}

bool
library_has_rights(LibraryCall *call)
{
	redisReply *missing = library_missing_rights(call, false);
	bool		complete = missing != NULL && missing->elements == 0;

	if (missing != NULL && !complete)
		snprintf(call->error, sizeof(call->error), "user \"%s\" of Redis lacks", library_user());
	for (size_t i = 0; missing != NULL && i < missing->elements; i++)
		snprintf(call->error + strlen(call->error), sizeof(call->error) - strlen(call->error), " %s", calls_string(missing, i));
	freeReplyObject(missing);
	return complete;
}

bool
library_probe_writes(LibraryCall *call)
{
	Call		question;
	redisReply *reply;
	bool		passes;

	call_end(&question, 0, "probe");
	reply = library_ask(call, &question);
	passes = reply != NULL && calls_result(reply) == MESSAGE_UNARMED;
	if (reply != NULL)
	{
		if (!passes)
			strlcpy(call->error, "Redis gave a malformed answer to a write", sizeof(call->error));
		freeReplyObject(reply);
	}
	else if (strstr(call->error, "READONLY"))
		strlcpy(call->error, REPLICA_MESSAGE, sizeof(call->error));
	return passes;
}

bool
library_arm(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
			const char *slots, uint32 grant, uint32 timeline)
{
	char		settings[SETTINGS_LEN];
	char		server[SERVER_LEN];
	Call		question;

	calls_settings(settings, grant);
	name_server(server, fence_shared->nonce);
	call_arm(&question, key, identity, epoch, until, slots, library_owner(), timeline, server, settings);
	return expect(call, library_ask(call, &question), "armed");
}

bool
library_renew(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
			  const char *slots, uint32 grant, bool *back, bool *came)
{
	char		settings[SETTINGS_LEN];
	Call		question;
	redisReply *reply;

	calls_settings(settings, grant);
	call_renew(&question, key, identity, epoch, until, settings, slots);
	reply = library_ask(call, &question);
	*back = reply && calls_string(reply, 3) && strcmp(calls_string(reply, 3), "1") == 0;
	*came = reply && calls_string(reply, 4) && strcmp(calls_string(reply, 4), "0") != 0;
	return expect(call, reply, "renewed");
}

/* Asks for a number, and tells the mark before. Returns -1 if the process did not answer so. */
static int64
ask_mark(LibraryCall *call, uint32 epoch, int64 number, const char *position, int64 running)
{
	Call		question;
	redisReply *reply;

	call_mark(&question, epoch, number, position, running);
	reply = library_ask(call, &question);
	if (reply)
	{
		number = calls_mark(reply);
		freeReplyObject(reply);
	}
	return reply ? number : -1;
}

bool
library_mark(LibraryCall *call, uint32 epoch)
{
	char		position[POSITION_LEN];
	int64		number = ask_mark(call, epoch, 0, "", 0);

	if (number < 0)
		return false;
	position_now(position);		/* not before the number came: what ends up to the number must be before the position */
	return ask_mark(call, epoch, number, position, (int64) position_running()) >= 0;
}

bool
library_resume(LibraryCall *call, uint32 epoch, const char *identity, uint32 timeline, uint64 before, bool *answered)
{
	char		former[SERVER_LEN];
	char		present[SERVER_LEN];
	Call		question;
	redisReply *reply;

	name_server(former, before);
	name_server(present, fence_shared->nonce);
	call_resume(&question, epoch, identity, timeline, former, present);
	reply = library_ask(call, &question);
	*answered = redis_error(call->conn) == NULL;
	return expect(call, reply, "resumed");
}

bool
library_disarm(LibraryCall *call, uint32 timeline)
{
	Call		question;

	call_disarm(&question, library_owner(), timeline);
	return expect(call, library_ask(call, &question), "disarmed");
}

bool
library_announce(LibraryCall *call, uint32 epoch, uint32 grant, List *domains)
{
	ListCell   *cell;
	bool		ok = true;

	foreach(cell, domains)		/* send all before we wait, because there may be many */
	{
		DomainRef  *domain = lfirst(cell);
		Call		question;

		call_announce(&question, epoch, domain->redis_name, domain->id, domain->publish, grant);
		if (!library_tell(call, &question))
			return false;
	}
	foreach(cell, domains)
	{
		redisReply *reply = wait_reply(call);

		if (reply && calls_string(reply, 1) && strcmp(calls_string(reply, 1), "0") != 0)
			((DomainRef *) lfirst(cell))->refused = true;
		ok = expect(call, reply, "announced") && ok;
	}
	return ok;
}

/* Returns whether the reply grants the reservation; otherwise sets the error. Frees the reply. */
static bool
expect_grant(LibraryCall *call, redisReply *reply)
{
	bool		granted = reply != NULL && calls_granted(reply) > 0;

	if (reply != NULL && !granted)
		calls_refusal(reply, call->error, sizeof(call->error));
	freeReplyObject(reply);
	return granted;
}

bool
library_reserve(LibraryCall *call, uint32 epoch, const char *stamp, const char *fence)
{
	Call		question;

	call_reserve(&question, epoch, stamp, fence);
	return expect_grant(call, library_ask(call, &question));
}

bool
library_domain_reserve(LibraryCall *call, uint32 epoch, const char *redis_name, const char *stamp)
{
	Call		question;

	call_domain_reserve(&question, epoch, redis_name, stamp, 0);
	return expect_grant(call, library_ask(call, &question));
}

bool
library_is_list(LibraryCall *call, redisReply *reply, size_t head, size_t group, const char *what)
{
	bool		ok = reply->type == REDIS_REPLY_ARRAY && reply->elements >= head && (reply->elements - head) % group == 0;

	for (size_t i = 0; ok && i < reply->elements; i++)
		ok = calls_string(reply, i) != NULL;
	if (ok)
		return true;
	snprintf(call->error, sizeof(call->error), "Redis gave a malformed list of %s", what);
	freeReplyObject(reply);
	return false;
}

bool
library_pending(LibraryCall *call, int limit, char **cursor, char epoch[EPOCH_LEN], List **list)
{
	Call		question;
	redisReply *reply;

	call_pending(&question, limit, *cursor);
	reply = library_ask(call, &question);
	if (reply == NULL || !library_is_list(call, reply, 2, 5, "reservations"))
		return false;
	for (size_t i = 2; i < reply->elements; i += 5)
	{
		ListedReservation *r = palloc(sizeof(ListedReservation));

		r->domain = strcmp(calls_string(reply, i), "domain") == 0;
		r->name = pstrdup(calls_string(reply, i + 1));
		r->stamp = pstrdup(calls_string(reply, i + 2));
		r->fences = atoi(calls_string(reply, i + 3));
		r->age_ms = strtoll(calls_string(reply, i + 4), NULL, 10);
		*list = lappend(*list, r);
	}
	*cursor = pstrdup(calls_string(reply, 0));
	strlcpy(epoch, calls_string(reply, 1), EPOCH_LEN);
	freeReplyObject(reply);
	return true;
}

bool
library_take_counts(LibraryCall *call, List **list)
{
	Call		question;
	redisReply *reply;

	call_counts(&question);
	reply = library_ask(call, &question);
	if (reply == NULL || !library_is_list(call, reply, 0, 1 + COUNTED, "counts"))
		return false;
	for (size_t i = 0; i < reply->elements; i += 1 + COUNTED)
	{
		DomainCounts *counts = palloc(sizeof(DomainCounts));

		counts->redis_name = pstrdup(calls_string(reply, i));
		for (int c = 0; c < COUNTED; c++)
			counts->counted[c] = strtoll(calls_string(reply, i + 1 + c), NULL, 10);
		*list = lappend(*list, counts);
	}
	freeReplyObject(reply);
	return true;
}

bool
library_hot(LibraryCall *call, HotList *hot)
{
	Call		question;
	redisReply *reply;

	call_hot(&question);
	reply = library_ask(call, &question);
	if (reply == NULL || !library_is_list(call, reply, 1 + HOT_KINDS, 2 + HOT_KINDS, "hot keys"))
		return false;
	*hot = (HotList) {.ms = strtoll(calls_string(reply, 0), NULL, 10)};
	for (int kind = 0; kind < HOT_KINDS; kind++)
		hot->all[kind] = strtoll(calls_string(reply, 1 + kind), NULL, 10);
	for (size_t i = 1 + HOT_KINDS; i < reply->elements; i += 2 + HOT_KINDS)
	{
		HotCalls   *calls = palloc0(sizeof(HotCalls));

		if (strcmp(calls_string(reply, i), "key") == 0)
			calls->name = pstrdup(calls_string(reply, i + 1));
		else
			calls->slot = atoi(calls_string(reply, i + 1));
		for (int kind = 0; kind < HOT_KINDS; kind++)
			calls->calls[kind] = strtoll(calls_string(reply, i + 2 + kind), NULL, 10);
		hot->list = lappend(hot->list, calls);
	}
	freeReplyObject(reply);
	return true;
}
