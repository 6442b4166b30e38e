/*
 * fence_wrong.c
 *	  Readers that break a rule of doc/clients.md. The checker must catch each of them with a stale read. That shows that the
 *	  rule is needed, and that the checker notices its absence. All other steps are as those of correct readers.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define GAP_MS		1500			/* longer than the restart of a server takes */
#define KEPT_MS		1000

/* The reply of fence_token; "" if there is none. */
static void
ask_token(Client *c, const Names *names, char *permit, size_t size)
{
	redisReply *reply = redis_call(c, 4, (const char *[]) {"FCALL_RO", "fence_token", "1", names->fence});

	snprintf(permit, size, "%s", reply != NULL && reply->type == REDIS_REPLY_STRING ? reply->str : "");
	discard(reply);
}

static void
take_reply(Client *c, const Names *names, redisReply *reply, const char *permit, Cached *found)
{
	if (reply != NULL)
		take_record(c, names->fence, reply->type == REDIS_REPLY_STRING ? reply->str : "", permit, found);
	discard(reply);
}

/*
 * Reads the token before the data, and the data from the server that answers then. A server that restarts in between has fences
 * that lack all changes since it saved them. Now and then the client pauses in between.
 */
void
token_first_get(Client *c, int key, Cached *found)
{
	Names		names;
	char		permit[96];
	redisReply *reply = NULL;
	int64_t		until = now_ns() + (draw(c, 2000) == 0 ? INT64_C(1000000) * (int64_t) draw(c, GAP_MS) : 0);

	follow_endpoints(c);
	names_of(c, key, &names);
	found->kind = READ_ERROR;
	ask_token(c, &names, permit, sizeof(permit));
	if (permit[0] == '\0')
		return;
	while (now_ns() < until && !control->stop)
		sleep_ms(5);
	until = now_ns() + GAP_MS * INT64_C(1000000);
	while ((reply = redis_call(c, 2, (const char *[]) {"GET", names.fence})) == NULL && now_ns() < until && !control->stop)
		sleep_ms(5);
	take_reply(c, &names, reply, permit, found);
}

/* Uses a token from an earlier read, which does not show what has happened to the domain or the lease since then. */
void
token_kept_get(Client *c, int key, Cached *found)
{
	static char permit[96];
	static int64_t until;
	Names		names;

	follow_endpoints(c);
	names_of(c, key, &names);
	found->kind = READ_ERROR;
	if (permit[0] == '\0' || now_ns() > until)
	{
		ask_token(c, &names, permit, sizeof(permit));
		until = now_ns() + KEPT_MS * INT64_C(1000000);
	}
	take_reply(c, &names, redis_call(c, 2, (const char *[]) {"GET", names.fence}), permit, found);
}

/* Reads the data from a replica and the token from the master, so it misses deletes that the replica has not got yet. */
void
token_elsewhere_get(Client *c, int key, Cached *found)
{
	Names		names;
	char		permit[96];
	redisReply *reply;

	follow_endpoints(c);
	names_of(c, key, &names);
	found->kind = READ_ERROR;
	reply = replica_call(c, 2, (const char *[]) {"GET", names.fence});
	ask_token(c, &names, permit, sizeof(permit));
	take_reply(c, &names, reply, permit, found);
}

/* This step is correct; the next one is not. */
void
permit_late_get(Client *c, int key, Cached *found)
{
	Names		names;
	const char *get[] = {"GET", names.fence};
	const char *told[] = {"FCALL_RO", "fence_token", "1", names.fence};
	Command		commands[] = {{.n = 2, .words = get}, {.n = 4, .words = told}};
	redisReply *replies[COMMANDS_MAX];

	follow_endpoints(c);
	names_of(c, key, &names);
	found->kind = READ_ERROR;
	if (!redis_together(c, true, commands, 2, replies))
		return;
	take_reply(c, &names, replies[0], replies[1]->type == REDIS_REPLY_STRING ? replies[1]->str : "", found);
	discard(replies[1]);
}

/* Requests the permit after it has read the row, so the permit proves nothing about the time in between. */
void
permit_late_fill(Client *c, int key, const Cached *found, const Row *row)
{
	Cached		late = *found;
	Names		names;

	names_of(c, key, &names);
	ask_token(c, &names, late.permit, sizeof(late.permit));
	fence_fill(c, key, &late, row);
}

/* Names the epoch of the permit, and not that of the server which it has read. */
void
epoch_of_permit_fill(Client *c, int key, const Cached *found, const Row *row)
{
	Row			other = *row;

	snprintf(other.word, sizeof(other.word), "%.*s.%lld", (int) strcspn(found->permit, "."), found->permit, (long long) row->fenced);
	fence_fill(c, key, found, &other);
}
