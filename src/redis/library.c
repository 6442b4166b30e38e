/*
 * redis/library.c
 *	  The function library inside Redis: loading, and calls that wait for their answer; see library.h.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "domain.h"
#include "redis/fence_lua.h"
#include "redis/library.h"
#include "settings.h"
#include "tombstone.h"

/* How fence.lua tells its version, and how its functions' descriptions begin */
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
library_send(LibraryCall *call, int argc, const char **argv)
{
	size_t	   *argvlen = palloc(sizeof(size_t) * argc);
	bool		ok;

	for (int i = 0; i < argc; i++)
		argvlen[i] = strlen(argv[i]);
	ok = redis_send(call->conn, argc, argv, argvlen);
	pfree(argvlen);
	if (ok)
		return true;
	strlcpy(call->error, redis_error(call->conn), sizeof(call->error));
	return false;
}

/* The next reply; NULL with the error set if none comes or it is an error reply. */
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

bool
library_next(LibraryCall *call)
{
	redisReply *reply = wait_reply(call);

	if (reply)
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

/* Element i of an array of strings, or NULL. */
static const char *
element(const redisReply *reply, size_t i)
{
	if (reply->type != REDIS_REPLY_ARRAY || i >= reply->elements || reply->element[i]->type != REDIS_REPLY_STRING)
		return NULL;
	return reply->element[i]->str;
}

/* Whether the reply begins with that word; if not, what it says goes into the error. Frees the reply. */
static bool
expect(LibraryCall *call, redisReply *reply, const char *word)
{
	const char *first;
	bool		ok;

	if (reply == NULL)
		return false;
	first = element(reply, 0);
	ok = first && strcmp(first, word) == 0;
	if (!ok)
	{
		const char *why = element(reply, 1);

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

/* The version that any description inside the reply of FUNCTION LIST tells; 0 if none does. */
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
	static int	version = 0;

	if (version == 0)
	{
		const char *line = strstr(fence_lua, LIBRARY_VERSION_LINE);

		Assert(line != NULL);
		version = line ? atoi(line + strlen(LIBRARY_VERSION_LINE)) : 0;
	}
	return version;
}

bool
library_hello(LibraryCall *call, Hello *hello, bool *found)
{
	uint64		nonce;
	char		nonce_text[20];
	const char *argv[] = {"FCALL", "fence_hello", "0", setting_namespace, nonce_text};
	redisReply *reply;
	bool		ok;

	*found = true;
	if (!pg_strong_random(&nonce, sizeof(nonce)))
		elog(ERROR, "could not draw a random number");
	snprintf(nonce_text, sizeof(nonce_text), "%016llx", (unsigned long long) nonce);
	reply = library_call(call, lengthof(argv), argv);
	if (reply == NULL)
	{
		/* said of a process that was restarted, and of any that never had the library */
		if (strstr(call->error, "Function not found") == NULL)
			return false;
		*found = false;
		return true;
	}
	ok = reply->type == REDIS_REPLY_ARRAY && reply->elements == 8;
	for (size_t i = 0; ok && i < 8; i++)
		ok = element(reply, i) != NULL;
	if (ok)
	{
		strlcpy(hello->identity, element(reply, 0), IDENTITY_LEN);
		hello->time_ms = strtoll(element(reply, 1), NULL, 10);
		strlcpy(hello->role, element(reply, 2), sizeof(hello->role));
		hello->library = atoi(element(reply, 3));
		strlcpy(hello->owner, element(reply, 4), sizeof(hello->owner));
		strlcpy(hello->epoch, element(reply, 6), EPOCH_LEN);
	}
	else
		strlcpy(call->error, "Redis gave a malformed answer to hello", sizeof(call->error));
	freeReplyObject(reply);
	return ok;
}

bool
library_server_version(LibraryCall *call, char *version, size_t size)
{
	static const struct
	{
		const char *field;
		const char *product;
	}			known[] = {{"valkey_version:", "Valkey"}, {"redis_version:", "Redis"}};
	const char *argv[] = {"INFO", "server"};
	redisReply *reply = library_call(call, lengthof(argv), argv);

	if (reply == NULL)
		return false;
	strlcpy(version, "unknown", size);
	for (size_t i = 0; reply->type == REDIS_REPLY_STRING && i < lengthof(known); i++)
	{
		const char *at = strstr(reply->str, known[i].field);

		if (at)
		{
			at += strlen(known[i].field);
			snprintf(version, size, "%s %.*s", known[i].product, (int) strcspn(at, "\r\n"), at);
			break;
		}
	}
	freeReplyObject(reply);
	return true;
}

bool
library_probe_writes(LibraryCall *call)
{
	char		fence[128];
	const char *argv[] = {"FCALL", "fence_write", "0", "1", fence, "0-0", "a", "probe"};

	snprintf(fence, sizeof(fence), "%s:f:0.probe:{probe}", setting_namespace);
	if (expect(call, library_call(call, lengthof(argv), argv), "unarmed"))
		return true;
	if (strstr(call->error, "READONLY"))
		strlcpy(call->error, REPLICA_MESSAGE, sizeof(call->error));
	return false;
}

/* The beginning of a JSON object with what the functions go by */
static void
append_settings(StringInfo settings, uint32 grant)
{
	appendStringInfo(settings, "{\"idle_ms\": %lld, \"fill_ms\": %d, \"stream_max\": %d, \"grant\": %u",
					 (long long) setting_idle_fence_ttl * 1000, setting_fill_lease, setting_stream_limit, grant);
}

bool
library_arm(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
			const char *slots, uint32 grant, uint32 timeline)
{
	StringInfoData settings;
	char		until_text[24];
	char		timeline_text[12];
	const char *argv[] = {"FCALL", "fence_arm", "1", key, identity, epoch, until_text, slots, library_owner(), timeline_text,
	NULL};

	initStringInfo(&settings);
	append_settings(&settings, grant);
	appendStringInfo(&settings, ", \"server\": \"%016llx\"}", (unsigned long long) fence_shared->nonce);
	argv[10] = settings.data;
	pg_lltoa(until, until_text);
	snprintf(timeline_text, sizeof(timeline_text), "%u", timeline);
	return expect(call, library_call(call, lengthof(argv), argv), "armed");
}

bool
library_renew(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
			  const char *slots, uint32 grant, bool *back, bool *came)
{
	redisReply *reply;
	char		until_text[24];
	StringInfoData settings;
	const char *argv[] = {"FCALL", "fence_renew", "0", key, identity, epoch, until_text, NULL, slots};

	initStringInfo(&settings);
	append_settings(&settings, grant);
	appendStringInfoChar(&settings, '}');
	argv[7] = settings.data;
	pg_lltoa(until, until_text);
	reply = library_call(call, slots ? lengthof(argv) : lengthof(argv) - 1, argv);
	*back = reply && element(reply, 3) && strcmp(element(reply, 3), "1") == 0;
	if (came)
		*came = reply && element(reply, 4) && strcmp(element(reply, 4), "0") != 0;
	return expect(call, reply, "renewed");
}

bool
library_disarm(LibraryCall *call, uint32 timeline)
{
	char		timeline_text[12];
	const char *argv[] = {"FCALL", "fence_disarm", "0", setting_namespace, library_owner(), timeline_text};

	snprintf(timeline_text, sizeof(timeline_text), "%u", timeline);
	return expect(call, library_call(call, lengthof(argv), argv), "disarmed");
}

bool
library_announce(LibraryCall *call, const char *epoch, uint32 grant, List *domains)
{
	ListCell   *cell;
	char		number[12];
	bool		ok = true;

	snprintf(number, sizeof(number), "%u", grant);
	foreach(cell, domains)		/* all in one round trip: there may be many */
	{
		DomainRef  *domain = lfirst(cell);
		char		id[24];
		const char *argv[] = {"FCALL", "fence_announce", "0", setting_namespace, epoch, domain->wire_name, id, domain->publish,
		number};

		pg_lltoa(domain->id, id);
		if (!library_send(call, lengthof(argv), argv))
			return false;
	}
	foreach(cell, domains)
	{
		redisReply *reply = wait_reply(call);

		if (reply && element(reply, 1) && strcmp(element(reply, 1), "0") != 0)
			((DomainRef *) lfirst(cell))->refused = true;
		ok = expect(call, reply, "announced") && ok;
	}
	return ok;
}

bool
library_domain_reserve(LibraryCall *call, const char *epoch, const char *wire_name, const char *stamp)
{
	const char *argv[] = {"FCALL", "fence_domain_reserve", "0", setting_namespace, wire_name, epoch, stamp, ""};

	return expect(call, library_call(call, lengthof(argv), argv), "reserved");
}

bool
library_pending(LibraryCall *call, int min_age_ms, int limit, char **cursor, char epoch[EPOCH_LEN], List **list)
{
	char		age[12];
	char		most[12];
	const char *argv[] = {"FCALL", "fence_pending", "0", setting_namespace, age, most, *cursor};
	redisReply *reply;
	bool		ok;

	pg_ltoa(min_age_ms, age);
	pg_ltoa(limit, most);
	reply = library_call(call, lengthof(argv), argv);
	if (reply == NULL)
		return false;
	ok = reply->type == REDIS_REPLY_ARRAY && reply->elements >= 2 && (reply->elements - 2) % 5 == 0;
	for (size_t i = 0; ok && i < reply->elements; i++)
		ok = element(reply, i) != NULL;
	for (size_t i = 2; ok && i < reply->elements; i += 5)
	{
		ListedReservation *r = palloc(sizeof(ListedReservation));
		const char *version = element(reply, i + 3);

		r->domain = strcmp(element(reply, i), "domain") == 0;
		r->name = pstrdup(element(reply, i + 1));
		r->stamp = pstrdup(element(reply, i + 2));
		r->version = *version ? strtoll(version, NULL, 10) : NO_VERSION;
		r->age_ms = strtoll(element(reply, i + 4), NULL, 10);
		*list = lappend(*list, r);
	}
	if (ok)
	{
		*cursor = pstrdup(element(reply, 0));
		strlcpy(epoch, element(reply, 1), EPOCH_LEN);
	}
	else
		strlcpy(call->error, "Redis gave a malformed list of reservations", sizeof(call->error));
	freeReplyObject(reply);
	return ok;
}

bool
library_take_counts(LibraryCall *call, List **list)
{
	const char *argv[] = {"FCALL", "fence_counts", "0", setting_namespace};
	redisReply *reply = library_call(call, lengthof(argv), argv);
	bool		ok;

	if (reply == NULL)
		return false;
	ok = reply->type == REDIS_REPLY_ARRAY && reply->elements % (2 + COUNTED) == 0;
	for (size_t i = 0; ok && i < reply->elements; i++)
		ok = element(reply, i) != NULL;
	for (size_t i = 0; ok && i < reply->elements; i += 2 + COUNTED)
	{
		DomainCounts *counts = palloc(sizeof(DomainCounts));

		counts->wire_name = pstrdup(element(reply, i));
		counts->reservations = strtoll(element(reply, i + 1), NULL, 10);
		for (int c = 0; c < COUNTED; c++)
			counts->counted[c] = strtoll(element(reply, i + 2 + c), NULL, 10);
		*list = lappend(*list, counts);
	}
	if (!ok)
		strlcpy(call->error, "Redis gave malformed counts", sizeof(call->error));
	freeReplyObject(reply);
	return ok;
}
