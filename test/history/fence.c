/*
 * fence.c
 *	  The strategy "fence": what pgcache_fence asks of a reader. Writers need nothing: they write SQL.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define BY_READER	"\"by\":\"reader\""	/* in what a reader puts; what a commit brings is the row alone */

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

/* Returns for how many ms another reader is still expected to put the value, 0 if nobody is. */
static int
get_once(Client *c, const Names *names, Cached *found)
{
	redisReply *reply = redis_call(c, 5, (const char *[]) {"FCALL", "fence_get", "2", names->fence, names->value});
	int			busy_ms = 0;

	found->kind = READ_ERROR;
	if (is_word(reply, 0, "hit") && reply->elements == 4 && parse_payload(reply->element[3]->str, &found->row))
	{
		/* the version of the header must be that of the payload; else the checker shall see it */
		found->kind = strstr(reply->element[3]->str, BY_READER) != NULL ? READ_HIT : READ_WRITTEN;
		if (found->row.version != strtoll(reply->element[2]->str, NULL, 10))
			found->row.val = NONE;
		snprintf(found->token, sizeof(found->token), "%s", reply->element[1]->str);
	}
	else if (is_word(reply, 0, "miss") && reply->elements >= 3)
	{
		found->kind = READ_MISS;
		snprintf(found->token, sizeof(found->token), "%s", reply->element[1]->str);
		snprintf(found->ticket, sizeof(found->ticket), "%s", reply->element[2]->str);
		if (is_word(reply, 3, "busy") && reply->elements == 5)
			busy_ms = atoi(reply->element[4]->str);
	}
	else if (is_word(reply, 0, "pending"))
		found->kind = READ_PENDING;
	else if (is_word(reply, 0, "unarmed"))
		found->kind = READ_UNARMED;
	if (reply != NULL)
		freeReplyObject(reply);
	return busy_ms;
}

/* Half of the readers wait while another fills in what they miss; the others read and put all the same. */
void
fence_get(Client *c, int key, Cached *found)
{
	Names		names;
	int64_t		until = 0;
	int			busy_ms;

	follow_endpoints(c);
	names_of(c, key, &names);
	while ((busy_ms = get_once(c, &names, found)) > 0 && c->worker % 4 < 2)
	{
		if (until == 0)
			until = now_ns() + busy_ms * INT64_C(1000000);
		else if (now_ns() > until)
			break;
		sleep_ms(2);
	}
}

void
fence_fill(Client *c, int key, const Cached *found, const Row *row)
{
	Names		names;
	char		version[24];
	char		payload[128];
	redisReply *reply;

	follow_endpoints(c);
	names_of(c, key, &names);
	snprintf(version, sizeof(version), "%lld", (long long) row->version);
	snprintf(payload, sizeof(payload), "{\"id\":%d,\"version\":%lld,\"val\":%lld," BY_READER "}", key, (long long) row->version,
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

	for (int i = 0; i < n && all; i++)
	{
		redisReply *reply;

		names_of(c, keys[i], &names);
		snprintf(version, sizeof(version), "%lld", (long long) found[i].row.version);
		reply = redis_call(c, 6, (const char *[]) {"FCALL", "fence_check", "1", names.fence, found[i].token, version});
		all = reply != NULL && reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
		if (reply != NULL)
			freeReplyObject(reply);
	}
	return all;
}
