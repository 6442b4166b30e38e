/*
 * patrol/sweep.c
 *	  Removes fences that nobody may have stored; see sweep.h.
 *
 * A writer reserves nothing in a bucket whose bit is clear, because the library stores nothing there (doc/protocol.md, "Buckets"). So it would not
 * end what a user of Redis has written there past the library, and readers would be served that for ever. The sweep goes through all names
 * in Redis, round after round, and looks at the bit of each fence. A fence under a live token in a bucket whose bit is clear is such a lie.
 * Redis decides about the token and looks at its own bucket, in one call with the removal. So a fence that is stored meanwhile stays.
 *
 * Owns: for each process the cursor of SCAN, and the time up to which the rate is used up. Takes no locks.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/bgworker.h"
#include "base/buckets.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "patrol/patrol_nodes.h"
#include "patrol/sweep.h"

#define NAMES_AT_ONCE	100		/* of one SCAN, which then takes Redis some 50 microseconds */
#define MOST_SECONDS	10		/* a turn makes up for so many at most */
#define CURSOR_LEN		24

static char cursors[MAX_NODES][CURSOR_LEN];

/* Removes those of the fences that are lies. False: there is no answer. */
static bool
remove_lies(LibraryCall *call, int n, const char **fences)
{
	Call		question;
	redisReply *reply;
	int64		removed;

	call_sweep(&question, buckets_epoch(), n, fences);
	reply = library_ask(call, &question);
	if (reply == NULL)
		return false;
	removed = calls_string(reply, 0) ? strtoll(calls_string(reply, 0), NULL, 10) : 0;
	if (removed > 0 && calls_string(reply, 1))
	{
		metrics_add_server(SERVER_METRIC_SWEPT, removed);
		if (fence_log_due("fences that nobody may have stored"))
			ereport(WARNING,
					(errmsg("pgcache_fence: removed " INT64_FORMAT " cached value(s) that nobody may have stored, among them \"%s\"",
							removed, calls_string(reply, 1)),
					 errhint("A user of Redis has written fences past the function library, or has prolonged their life.")));
	}
	freeReplyObject(reply);
	return true;
}

/* Looks at the names that SCAN has found. */
static bool
look_at(LibraryCall *call, const redisReply *names)
{
	const char **suspects = palloc(sizeof(char *) * NAMES_AT_ONCE);
	int			n = 0;
	bool		ok = true;

	for (size_t i = 0; ok && i < names->elements; i++)
	{
		const char *name = calls_string(names, i);

		if (name && strlen(name) == names->element[i]->len && !bucket_is_set(bucket_of(name)))
			suspects[n++] = name;
		if (n > 0 && (n == NAMES_AT_ONCE || i == names->elements - 1))
		{
			ok = remove_lies(call, n, suspects);
			n = 0;
		}
	}
	pfree(suspects);
	return ok;
}

/* One step of SCAN. False: there is no answer. */
static bool
step(LibraryCall *call, char *cursor)
{
	char	   *pattern = psprintf("%s:f:*", setting_namespace);
	const char *argv[] = {"SCAN", *cursor ? cursor : "0", "MATCH", pattern, "COUNT", CppAsString2(NAMES_AT_ONCE)};
	redisReply *reply;
	bool		ok;

	call->deadline = fence_clock() + setting_timeout_us();
	reply = library_call(call, lengthof(argv), argv);
	pfree(pattern);
	*cursor = '\0';
	if (reply == NULL)
		return false;
	ok = calls_string(reply, 0) != NULL && reply->elements == 2 && reply->element[1]->type == REDIS_REPLY_ARRAY;
	if (ok)
	{
		strlcpy(cursor, calls_string(reply, 0), CURSOR_LEN);
		ok = look_at(call, reply->element[1]);
	}
	freeReplyObject(reply);
	return ok;
}

void
sweep_nodes(void)
{
	static int64 done_until = 0;	/* fence_clock() time */
	int64		now = fence_clock();
	int64		steps;

	done_until = Max(done_until, now - MOST_SECONDS * INT64CONST(1000000));
	steps = (now - done_until) * setting_sweep_rate / (NAMES_AT_ONCE * INT64CONST(1000000));
	if (setting_watch_buckets == 0 || setting_sweep_rate == 0 || steps == 0)
		return;
	done_until += steps * NAMES_AT_ONCE * INT64CONST(1000000) / setting_sweep_rate;
	for (int i = 0; i < MAX_NODES; i++)
	{
		LibraryCall *call = patrol_call_to(i);

		for (int64 n = 0; call && n < steps; n++)
		{
			CHECK_FOR_INTERRUPTS();
			/* at the end of a round, the next one begins with the next turn */
			if (!step(call, cursors[i]) || strcmp(cursors[i], "0") == 0)
				break;
		}
	}
}
