/*
 * effect_patrol.c
 *	  The patrol's part in the life of effects; see effect_patrol.h.
 *
 * Owns: the rule by which a hold is settled: its transaction in progress or prepared: left alone; committed: applied;
 * aborted, or not recorded any more: undone. A hold of another cluster is left alone. Nothing here looks at a clock to
 * decide; the age only spares work on holds that their own transactions are about to end.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "effect_patrol.h"
#include "effects.h"
#include "patrol.h"
#include "settings.h"

#define PAGE 1000				/* holds listed at once */

/* A line of what fence_effects lists */
typedef struct Listed
{
	const char *key;
	const char *hold;
	const char *kind;			/* or "done <database>" */
} Listed;

#define DONE "done "

static void
extend_deadline(LibraryCall *call)
{
	call->deadline = fence_clock() + setting_timeout * INT64CONST(1000);
}

/*
 * One page of what a node lists; cursor as for library_pending. Lines are Listed, palloc'd. False: no answer.
 */
static bool
list_page(LibraryCall *call, int min_age_ms, char **cursor, List **lines)
{
	char		age[12];
	const char *argv[] = {"FCALL", "fence_effects", "0", setting_namespace, age, CppAsString2(PAGE), *cursor};
	redisReply *reply;
	bool		ok;

	CHECK_FOR_INTERRUPTS();
	extend_deadline(call);
	pg_ltoa(min_age_ms, age);
	reply = library_call(call, lengthof(argv), argv);
	if (reply == NULL)
		return false;
	ok = reply->type == REDIS_REPLY_ARRAY && reply->elements % 3 == 1;
	for (size_t i = 0; ok && i < reply->elements; i++)
		ok = reply->element[i]->type == REDIS_REPLY_STRING;
	for (size_t i = 1; ok && i < reply->elements; i += 3)
	{
		Listed	   *line = palloc(sizeof(Listed));

		line->key = pstrdup(reply->element[i]->str);
		line->hold = pstrdup(reply->element[i + 1]->str);
		line->kind = pstrdup(reply->element[i + 2]->str);
		*lines = lappend(*lines, line);
	}
	if (ok)
		*cursor = pstrdup(reply->element[0]->str);
	freeReplyObject(reply);
	return ok;
}

static bool
send_end(LibraryCall *call, const Listed *line, StampFate fate)
{
	const char *verb = fate == FATE_COMMITTED ? "apply" : "undo";
	const char *argv[] = {"FCALL", "fence_effects_end", "0", setting_namespace, verb, line->key, line->hold};

	if (fate == FATE_UNKNOWN && fence_log_due("effect of unknown fate"))
		ereport(LOG,
				(errmsg("pgcache_fence: an effect on key \"%s\" is undone: the fate of its transaction is not recorded any more",
						line->key)));
	return library_send(call, lengthof(argv), argv);
}

static void
return_abandoned_jobs(LibraryCall *call)
{
	const char *argv[] = {"FCALL", "fence_queues", "0", setting_namespace};
	redisReply *reply;

	extend_deadline(call);
	reply = library_call(call, lengthof(argv), argv);
	if (reply)
		freeReplyObject(reply);
}

List *
effect_patrol_settle(LibraryCall *call, int min_age_ms, List *databases)
{
	char	   *cursor = pstrdup("");

	do
	{
		List	   *lines = NIL;
		ListCell   *cell;

		if (!list_page(call, min_age_ms, &cursor, &lines))
			return databases;
		foreach(cell, lines)
		{
			Listed	   *line = lfirst(cell);
			StampFate	fate;

			if (!effect_fate(line->hold, &fate))
				continue;
			if (strncmp(line->kind, DONE, strlen(DONE)) == 0)
				databases = list_append_unique_oid(databases, (Oid) strtoul(line->kind + strlen(DONE), NULL, 10));
			else if (fate != FATE_IN_PROGRESS && !send_end(call, line, fate))
				return databases;
		}
		extend_deadline(call);
		if (!library_finish(call) && fence_log_due("effects"))
			ereport(LOG, (errmsg("pgcache_fence: an effect could not be settled: %s", call->error)));
	} while (*cursor && redis_error(call->conn) == NULL);
	if (redis_error(call->conn) == NULL)
		return_abandoned_jobs(call);
	return databases;
}

/* -----------------------------------------------------------------------------------------------------------------
 * For a worker in a database
 * -----------------------------------------------------------------------------------------------------------------
 */

static LibraryCall calls[MAX_NODES];	/* opened on first use */
static PatrolNodes nodes;

/* NULL: that node cannot be reached. */
static LibraryCall *
call_to(int node)
{
	LibraryCall *call;

	if (nodes.n == 0)
		patrol_copy_nodes(&nodes);
	if (node >= nodes.n || !nodes.granted[node])
		return NULL;
	call = &calls[node];
	if (call->conn == NULL && !patrol_connect(call, &nodes.addresses[node]))
		return NULL;
	extend_deadline(call);
	return redis_error(call->conn) == NULL ? call : NULL;
}

void
effect_patrol_close(void)
{
	for (int i = 0; i < nodes.n; i++)
		if (calls[i].conn)
		{
			redis_close(calls[i].conn);
			calls[i].conn = NULL;
		}
	nodes.n = 0;
}

/* Whether the answer was no error. */
static bool
call_with(const char *key, int argc, const char **argv)
{
	LibraryCall *call = call_to(fence_node_of(key));
	redisReply *reply = call ? library_call(call, argc, argv) : NULL;

	if (reply == NULL && call && fence_log_due("effects"))
		ereport(LOG, (errmsg("pgcache_fence: an effect could not be settled: %s", call->error)));
	if (reply)
		freeReplyObject(reply);
	return reply != NULL;
}

bool
effect_patrol_redo(const char *key, const char *other_key, const char *hold, const char *kind, int n, const char **arguments)
{
	const char **argv = palloc(sizeof(char *) * (n + 10));
	char		database[12];
	int			argc = 0;

	snprintf(database, sizeof(database), "%u", MyDatabaseId);
	argv[argc++] = "FCALL";
	argv[argc++] = "fence_effect_redo";
	argv[argc++] = other_key ? "2" : "1";
	argv[argc++] = key;
	if (other_key)
		argv[argc++] = other_key;
	argv[argc++] = setting_namespace;
	argv[argc++] = hold;
	argv[argc++] = database;
	argv[argc++] = kind;
	for (int i = 0; i < n; i++)
		argv[argc++] = arguments[i];
	return call_with(key, argc, argv);
}

void
effect_patrol_forget(const char *key, const char *hold)
{
	const char *argv[] = {"FCALL", "fence_effects_forget", "0", setting_namespace, key, hold};

	(void) call_with(key, lengthof(argv), argv);
}

List *
effect_patrol_marks(Oid database)
{
	List	   *marks = NIL;

	patrol_copy_nodes(&nodes);
	for (int i = 0; i < nodes.n; i++)
	{
		LibraryCall *call = call_to(i);
		char	   *cursor = pstrdup("");
		List	   *lines = NIL;
		ListCell   *cell;

		while (call && list_page(call, 0, &cursor, &lines) && *cursor)
			;
		foreach(cell, lines)
		{
			Listed	   *line = lfirst(cell);
			StampFate	fate;
			EffectMark *mark;

			if (!effect_fate(line->hold, &fate) || strncmp(line->kind, DONE, strlen(DONE)) != 0 ||
				(Oid) strtoul(line->kind + strlen(DONE), NULL, 10) != database)
				continue;
			mark = palloc(sizeof(EffectMark));
			mark->key = pstrdup(line->key);
			mark->hold = pstrdup(line->hold);
			marks = lappend(marks, mark);
		}
	}
	return marks;
}
