/*
 * fence.c
 *	  The strategy "fence": what pgcache_fence asks of a reader. Writers need nothing: they write SQL.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

typedef struct Names
{
	char		fence[160];
	char		value[160];
} Names;

static void
names_of(const Client *c, int key, Names *names)
{
	snprintf(names->fence, sizeof(names->fence), "%s%d}", c->at.fence, key);
	snprintf(names->value, sizeof(names->value), "%s%d}", c->at.value, key);
}

static bool
parse_payload(const char *payload, Row *row)
{
	const char *version = strstr(payload, "\"version\":");
	const char *val = strstr(payload, "\"val\":");

	if (version == NULL || val == NULL)
		return false;
	row->version = strtoll(version + 10, NULL, 10);
	row->val = strtoll(val + 6, NULL, 10);
	return true;
}

void
fence_get(Client *c, int key, Cached *found)
{
	Names		names;
	redisReply *reply;

	found->kind = READ_ERROR;
	if (!redis_ready(c))
		return;
	names_of(c, key, &names);
	reply = redis_call(c, 5, (const char *[]) {"FCALL", "fence_get", "2", names.fence, names.value});
	if (is_word(reply, 0, "hit") && reply->elements == 4 && parse_payload(reply->element[3]->str, &found->row))
	{
		/* the version of the header must be that of the payload; else the checker shall see it */
		found->kind = READ_HIT;
		if (found->row.version != strtoll(reply->element[2]->str, NULL, 10))
			found->row.val = NONE;
		snprintf(found->token, sizeof(found->token), "%s", reply->element[1]->str);
	}
	else if (is_word(reply, 0, "miss") && reply->elements >= 3)
	{
		found->kind = READ_MISS;
		snprintf(found->token, sizeof(found->token), "%s", reply->element[1]->str);
		snprintf(found->ticket, sizeof(found->ticket), "%s", reply->element[2]->str);
	}
	else if (is_word(reply, 0, "pending"))
		found->kind = READ_PENDING;
	else if (is_word(reply, 0, "unarmed"))
		found->kind = READ_UNARMED;
	if (reply != NULL)
		freeReplyObject(reply);
}

void
fence_fill(Client *c, int key, const Cached *found, const Row *row)
{
	Names		names;
	char		version[24];
	char		payload[128];
	redisReply *reply;

	if (!redis_ready(c))
		return;
	names_of(c, key, &names);
	snprintf(version, sizeof(version), "%lld", (long long) row->version);
	snprintf(payload, sizeof(payload), "{\"id\":%d,\"version\":%lld,\"val\":%lld}", key, (long long) row->version,
			 (long long) row->val);
	reply = redis_call(c, 10, (const char *[]) {"FCALL", "fence_put", "2", names.fence, names.value, found->token,
					   found->ticket, version, payload, "0"});
	if (reply != NULL)
		freeReplyObject(reply);
}

/* Whether all that was found is still current, each at its own moment: then all was, between the gets and the checks. */
bool
fence_check(Client *c, const int *keys, const Cached *found, int n)
{
	Names		names;
	char		version[24];
	bool		all = true;
	int			sent = 0;

	for (; sent < n; sent++)
	{
		names_of(c, keys[sent], &names);
		snprintf(version, sizeof(version), "%lld", (long long) found[sent].row.version);
		if (!redis_append(c, 6, (const char *[]) {"FCALL", "fence_check", "1", names.fence, found[sent].token, version}))
			break;
	}
	for (int i = 0; i < sent; i++)
	{
		redisReply *reply = redis_reply(c);

		if (reply == NULL || reply->type != REDIS_REPLY_INTEGER || reply->integer != 1)
			all = false;
		if (reply != NULL)
			freeReplyObject(reply);
	}
	return all && sent == n;
}
