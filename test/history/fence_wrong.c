/*
 * fence_wrong.c
 *	  Readers that do what doc/clients.md forbids. Each must be caught reading something stale: that shows that the rule
 *	  is needed, and that the checker sees who breaks it. They fill as others do, unless that is what they do wrong.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define GAP_MS		1500			/* longer than a server is away that is started again */
#define KEPT_MS		1000

/* The answer of fence_token; "" if there is none. */
static void
ask_token(Client *c, const Names *names, char *permit, size_t size)
{
	redisReply *reply = redis_call(c, 4, (const char *[]) {"FCALL_RO", "fence_token", "1", names->fence});

	snprintf(permit, size, "%s", reply != NULL && reply->type == REDIS_REPLY_STRING ? reply->str : "");
	discard(reply);
}

static void
take_reply(redisReply *reply, const char *permit, Cached *found)
{
	if (reply != NULL)
		take_record(reply->type == REDIS_REPLY_STRING ? reply->str : "", permit, found);
	discard(reply);
}

/*
 * The token before the data, and the data from whoever answers then: a server that was started again in between has fences
 * that have missed everything since they were saved. Now and then the client stands still in between.
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
	take_reply(reply, permit, found);
}

/* A token that was kept from an earlier read: it does not tell of what has become of the domain, or of the lease, since. */
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
	take_reply(redis_call(c, 2, (const char *[]) {"GET", names.fence}), permit, found);
}

/* The data from a replica, the token from the master: what is not yet at the replica is missed. */
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
	take_reply(reply, permit, found);
}

/* Right so far; but see what follows. */
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
	take_reply(replies[0], replies[1]->type == REDIS_REPLY_STRING ? replies[1]->str : "", found);
	discard(replies[1]);
}

/* A permission to put that was asked for after the row was read: it proves nothing of the time in between. */
void
permit_late_fill(Client *c, int key, const Cached *found, const Row *row)
{
	Cached		late = *found;
	Names		names;

	names_of(c, key, &names);
	ask_token(c, &names, late.permit, sizeof(late.permit));
	fence_fill(c, key, &late, row);
}
