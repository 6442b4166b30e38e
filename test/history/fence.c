/*
 * fence.c
 *	  The strategy "fence": what pgcache_fence asks of a reader. Writers need nothing: they write SQL.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define BY_READER	"\"by\":\"reader\""	/* in what a reader puts; what a commit brings is the row alone */
#define FENCED		"\"fenced\":"			/* the fence's version; in what a commit brings it is the row's own */

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
	const char *fenced = strstr(payload, FENCED);

	if (version == NULL || val == NULL)
		return false;
	row->version = strtoll(version + 10, NULL, 10);
	row->val = strtoll(val + 6, NULL, 10);
	row->fenced = fenced == NULL ? row->version : strtoll(fenced + strlen(FENCED), NULL, 10);
	return true;
}

static bool
is(const redisReply *word, const char *wanted)
{
	return word->str != NULL && strcmp(word->str, wanted) == 0;
}

/*
 * An answer of fence_get, in so many strings; of fence_get_many, whose hits have one more, the stamp. Returns for how many
 * ms another reader is still expected to put the value, 0 if nobody is.
 */
static int
take_answer(redisReply *const *words, size_t n, Cached *found)
{
	found->kind = READ_ERROR;
	if (is(words[0], "hit") && n >= 4 && parse_payload(words[3]->str, &found->row))
	{
		/* the version of the header must be that of the payload; else the checker shall see it */
		found->kind = strstr(words[3]->str, BY_READER) != NULL ? READ_HIT : READ_WRITTEN;
		if (found->row.fenced != strtoll(words[2]->str, NULL, 10))
			found->row.val = NONE;
		snprintf(found->token, sizeof(found->token), "%s", words[1]->str);
	}
	else if (is(words[0], "miss") && n >= 3)
	{
		found->kind = READ_MISS;
		snprintf(found->token, sizeof(found->token), "%s", words[1]->str);
		snprintf(found->ticket, sizeof(found->ticket), "%s", words[2]->str);
		if (n == 5 && is(words[3], "busy"))
			return atoi(words[4]->str);
	}
	else if (is(words[0], "pending"))
		found->kind = READ_PENDING;
	else if (is(words[0], "unarmed"))
		found->kind = READ_UNARMED;
	return 0;
}

static int
get_once(Client *c, const Names *names, Cached *found)
{
	redisReply *reply = redis_call(c, 5, (const char *[]) {"FCALL", "fence_get", "2", names->fence, names->value});
	int			busy_ms = 0;

	found->kind = READ_ERROR;
	if (reply == NULL)
		return 0;
	if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 0)
		busy_ms = take_answer(reply->element, reply->elements, found);
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

/* All in one call, which is one moment: hits need no check afterwards. */
void
fence_get_many(Client *c, const int *keys, Cached *found, int n)
{
	Names		names[GROUP_MAX];
	const char *words[3 + 2 * GROUP_MAX] = {"FCALL", "fence_get_many"};
	char		number[16];
	redisReply *reply;
	size_t		at = 0;

	follow_endpoints(c);
	snprintf(number, sizeof(number), "%d", 2 * n);
	words[2] = number;
	for (int i = 0; i < n; i++)
	{
		names_of(c, keys[i], &names[i]);
		words[3 + 2 * i] = names[i].fence;
		words[4 + 2 * i] = names[i].value;
		found[i].kind = READ_ERROR;
	}
	reply = redis_call(c, 3 + 2 * n, words);
	if (reply == NULL)
		return;
	for (int i = 0; i < n && reply->type == REDIS_REPLY_ARRAY && at < reply->elements; i++)
	{
		size_t		length = strtoul(reply->element[at]->str, NULL, 10);

		if (length == 0 || at + length >= reply->elements)
			break;
		take_answer(reply->element + at + 1, length, &found[i]);
		at += length + 1;
	}
	freeReplyObject(reply);
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
	snprintf(version, sizeof(version), "%lld", (long long) row->fenced);
	snprintf(payload, sizeof(payload), "{\"id\":%d,\"version\":%lld,\"val\":%lld," FENCED "%lld," BY_READER "}", key,
			 (long long) row->version, (long long) row->val, (long long) row->fenced);
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
		snprintf(version, sizeof(version), "%lld", (long long) found[i].row.fenced);
		reply = redis_call(c, 6, (const char *[]) {"FCALL", "fence_check", "1", names.fence, found[i].token, version});
		all = reply != NULL && reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
		if (reply != NULL)
			freeReplyObject(reply);
	}
	return all;
}
