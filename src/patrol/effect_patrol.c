/*
 * patrol/effect_patrol.c
 *	  The patrol's part in the life of effects; see effect_patrol.h.
 *
 * Owns: the rule by which the patrol settles a hold. It leaves the hold of a transaction alone that is in progress or
 * prepared. It applies the hold of a committed transaction. It undoes the hold of a transaction that has aborted, or
 * whose fate PostgreSQL does not know any more. It leaves holds of other clusters alone.
 *
 * Never: decides by a clock. The minimum age only saves work on holds that their own transactions are about to end.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "base/metrics.h"
#include "base/settings.h"
#include "effects/effects.h"
#include "patrol/effect_patrol.h"
#include "patrol/patrol_nodes.h"

#define PAGE 1000				/* holds listed at once */
#define LINE 5					/* strings in each line of the reply of fence_effects */
#define DONE "done "			/* the kind of a mark begins with this; the Oid of its database follows */

static void
extend_deadline(LibraryCall *call)
{
	call->deadline = fence_clock() + setting_timeout_us();
}

static ListedEffect *
line_of(redisReply *const *words)
{
	ListedEffect *line = palloc(sizeof(ListedEffect));
	bool		done = strncmp(words[2]->str, DONE, strlen(DONE)) == 0;

	line->key = pstrdup(words[0]->str);
	line->hold = pstrdup(words[1]->str);
	line->kind = pstrdup(words[2]->str);
	line->top = pstrdup(words[3]->str);
	line->age_ms = strtoll(words[4]->str, NULL, 10);
	line->done_in = done ? (Oid) strtoul(words[2]->str + strlen(DONE), NULL, 10) : InvalidOid;
	return line;
}

bool
effect_patrol_page(LibraryCall *call, int min_age_ms, char **cursor, List **list)
{
	char		age[12];
	const char *argv[] = {"FCALL", "fence_effects", "0", setting_namespace, age, CppAsString2(PAGE), *cursor};
	redisReply *reply;

	CHECK_FOR_INTERRUPTS();
	extend_deadline(call);
	pg_ltoa(min_age_ms, age);
	reply = library_call(call, lengthof(argv), argv);
	if (reply == NULL || !library_is_list(call, reply, 1, LINE, "effects"))
		return false;
	for (size_t i = 1; i < reply->elements; i += LINE)
		*list = lappend(*list, line_of(reply->element + i));
	*cursor = pstrdup(reply->element[0]->str);
	freeReplyObject(reply);
	return true;
}

static bool
send_end(LibraryCall *call, const ListedEffect *line, StampFate fate)
{
	const char *verb = fate == FATE_COMMITTED ? "apply" : "undo";
	const char *argv[] = {"FCALL", "fence_effects_end", "0", setting_namespace, verb, line->key, line->hold};

	if (fate == FATE_UNKNOWN && fence_log_due("effect of unknown fate"))
		ereport(LOG,
				(errmsg("pgcache_fence: an effect on key \"%s\" is undone, because PostgreSQL no longer knows whether its transaction committed",
						line->key)));
	return library_send(call, lengthof(argv), argv);
}

/* Reads the replies to the calls of send_end, whose fates are listed in the same order, and counts the results. */
static void
collect_ends(LibraryCall *call, List *fates)
{
	ListCell   *cell;
	bool		ok = true;

	extend_deadline(call);
	foreach(cell, fates)
	{
		bool		ended = redis_error(call->conn) == NULL && library_next(call);

		metrics_add_server(!ended ? SERVER_METRIC_EFFECT_SETTLE_FAILED :
						   lfirst_int(cell) == FATE_COMMITTED ? SERVER_METRIC_EFFECT_SETTLE_APPLIED :
						   SERVER_METRIC_EFFECT_SETTLE_UNDONE, 1);
		ok = ok && ended;
	}
	if (!ok && fence_log_due("effects"))
		ereport(LOG, (errmsg("pgcache_fence: an effect could not be settled: %s", call->error)));
}

/* Returns jobs whose workers have gone to their queues. Each call looks at a few queues only. */
static void
return_abandoned_jobs(LibraryCall *call)
{
	char	   *cursor = pstrdup("");

	do
	{
		const char *argv[] = {"FCALL", "fence_queues", "0", setting_namespace, cursor};
		redisReply *reply;

		CHECK_FOR_INTERRUPTS();
		extend_deadline(call);
		reply = library_call(call, lengthof(argv), argv);
		if (reply == NULL)
			return;
		cursor = pstrdup(calls_string(reply, 1) ? calls_string(reply, 1) : "");
		freeReplyObject(reply);
	} while (*cursor);
}

/* The number of a hold in its transaction. Effects of one transaction on the same key must be applied in this order. */
static unsigned long
number_of(const ListedEffect *line)
{
	const char *n = strrchr(line->hold, '.');

	return n ? strtoul(n + 1, NULL, 10) : 0;
}

static int
compare_numbers(const ListCell *a, const ListCell *b)
{
	unsigned long n = number_of(lfirst(a));
	unsigned long m = number_of(lfirst(b));

	return n < m ? -1 : n > m;
}

/*
 * Ends those holds whose transactions are over, and counts the others in *held. Reads the replies after each PAGE
 * calls, so that they do not pile up. False: the connection is broken.
 */
static bool
end_effects(LibraryCall *call, List *lines, uint64 *held)
{
	List	   *fates = NIL;
	ListCell   *cell;

	foreach(cell, lines)
	{
		ListedEffect *line = lfirst(cell);
		StampFate	fate;

		if (!effect_fate(line->hold, &fate))
			continue;
		if (fate == FATE_IN_PROGRESS)
			++*held;
		else if (send_end(call, line, fate))
			fates = lappend_int(fates, fate);
		else
			break;
		if (list_length(fates) == PAGE)
		{
			collect_ends(call, fates);
			fates = NIL;
		}
	}
	collect_ends(call, fates);
	return redis_error(call->conn) == NULL;
}

List *
effect_patrol_settle(LibraryCall *call, int min_age_ms, List *databases, uint64 *held)
{
	char	   *cursor = pstrdup("");
	List	   *lines = NIL;

	do
	{
		List	   *page = NIL;
		ListCell   *cell;

		if (!effect_patrol_page(call, min_age_ms, &cursor, &page))
			return databases;
		foreach(cell, page)
		{
			ListedEffect *line = lfirst(cell);
			StampFate	fate;

			if (!OidIsValid(line->done_in))
				lines = lappend(lines, line);
			else if (effect_fate(line->hold, &fate))
				databases = list_append_unique_oid(databases, line->done_in);
		}
	} while (*cursor);
	/* Redis lists the holds of a key in no particular order. */
	list_sort(lines, compare_numbers);
	if (end_effects(call, lines, held))
		return_abandoned_jobs(call);
	return databases;
}

/* The marks of that database that one node has. */
static List *
marks_on(LibraryCall *call, Oid database)
{
	char	   *cursor = pstrdup("");
	List	   *lines = NIL;
	List	   *marks = NIL;
	ListCell   *cell;
	StampFate	fate;

	while (effect_patrol_page(call, 0, &cursor, &lines) && *cursor)
		;
	foreach(cell, lines)
	{
		ListedEffect *line = lfirst(cell);

		if (line->done_in == database && effect_fate(line->hold, &fate))
			marks = lappend(marks, line);
	}
	return marks;
}

void
effect_patrol_forget_database(LibraryCall *call, Oid database)
{
	List	   *marks = marks_on(call, database);
	ListCell   *cell;

	foreach(cell, marks)
	{
		ListedEffect *mark = lfirst(cell);
		const char *argv[] = {"FCALL", "fence_effects_forget", "0", setting_namespace, mark->key, mark->hold};

		if (!library_send(call, lengthof(argv), argv))
			break;
	}
	extend_deadline(call);
	(void) library_finish(call);
}

/* -----------------------------------------------------------------------------------------------------------------
 * For a worker in a database
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Makes a call to the process that has the key. Returns the first word of its reply, palloc'd; NULL: no reply, or an
 * error.
 */
static char *
call_with(const char *key, int argc, const char **argv)
{
	LibraryCall *call = patrol_call_to(fence_node_of(key));
	redisReply *reply = call ? library_call(call, argc, argv) : NULL;
	const char *first = reply ? calls_string(reply, 0) : NULL;
	char	   *word = first ? pstrdup(first) : NULL;

	if (reply == NULL && call && fence_log_due("effects"))
		ereport(LOG, (errmsg("pgcache_fence: an effect could not be settled: %s", call->error)));
	freeReplyObject(reply);
	return word;
}

static bool
send_piece(const char *key, const char *hold, const char *form, size_t offset, int n, const char **piece)
{
	const char *head[] = {"FCALL", "fence_effect_piece", "1", key, setting_namespace, hold, psprintf("%zu", offset), form};
	const char **argv = palloc(sizeof(head) + sizeof(char *) * n);
	bool		sent;

	memcpy(argv, head, sizeof(head));
	memcpy(argv + lengthof(head), piece, sizeof(char *) * n);
	sent = call_with(key, n + lengthof(head), argv) != NULL;
	pfree(argv);
	return sent;
}

/* Sends the value of a publish in pieces. In the row's arguments the value follows ttl and form. */
static bool
send_value(const char *key, const char *hold, int n, const char **arguments)
{
	bool		ok = true;

	if (strcmp(arguments[1], "hash") == 0)
	{
		for (int i = 2; ok && i < n; i += EFFECT_PIECE_STRINGS)
			ok = send_piece(key, hold, arguments[1], 0, Min(EFFECT_PIECE_STRINGS, n - i), arguments + i);
		return ok;
	}
	for (size_t offset = 0, size = strlen(arguments[2]); ok && offset < size; offset += EFFECT_PIECE_BYTES)
	{
		char	   *piece = pnstrdup(arguments[2] + offset, EFFECT_PIECE_BYTES);

		ok = send_piece(key, hold, arguments[1], offset, 1, (const char **) &piece);
		pfree(piece);
	}
	return ok;
}

/*
 * Asks Redis to apply a row, with the first n of its arguments. Returns the first word of the reply, NULL if there is
 * none.
 */
static char *
redo(const char *key, const char *other_key, const char *hold, const char *kind, int n, const char **arguments)
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

bool
effect_patrol_redo(const char *key, const char *other_key, const char *hold, const char *kind, int n, const char **arguments)
{
	bool		large = strcmp(kind, "publish") == 0 && n > 2 &&
		(n > 2 + EFFECT_PIECE_STRINGS || strlen(arguments[2]) > EFFECT_PIECE_BYTES);
	int			told = large ? 2 : n;
	char	   *answer = redo(key, other_key, hold, kind, told, arguments);
	bool		done;

	if (answer && strcmp(answer, "value") == 0 && large && send_value(key, hold, n, arguments))
		answer = redo(key, other_key, hold, kind, told, arguments);
	done = answer && strcmp(answer, "done") == 0;
	metrics_add_server(done ? SERVER_METRIC_EFFECT_OUTBOX_DONE : SERVER_METRIC_EFFECT_OUTBOX_FAILED, 1);
	return done;
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

	for (int i = 0; i < MAX_NODES; i++)
	{
		LibraryCall *call = patrol_call_to(i);

		if (call)
			marks = list_concat(marks, marks_on(call, database));
	}
	return marks;
}
