/*
 * inspect/views.c
 *	  The functions behind the views fence.state, fence.buckets, fence.nodes, fence.pending, fence.effects, fence.hot_keys and
 *	  fence.hot_slots, and fence.wait_open.
 *
 * Owns: connections to the Redis processes that it lists, for the time of a call.
 * Locks: fence_shared->lock, for copies only.
 * Never: changes anything.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/buckets.h"
#include "base/key_text.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/slot.h"
#include "base/stamp.h"
#include "base/utf8.h"
#include "base/word.h"
#include "domain/sql_function.h"
#include "effects/effects.h"
#include "patrol/effect_patrol.h"
#include "redis/library.h"
#include "send/coordinator.h"
#include "write/capture.h"

PG_FUNCTION_INFO_V1(fence_state_view);
PG_FUNCTION_INFO_V1(fence_wait_open);
PG_FUNCTION_INFO_V1(fence_buckets_view);
PG_FUNCTION_INFO_V1(fence_nodes_view);
PG_FUNCTION_INFO_V1(fence_pending_view);
PG_FUNCTION_INFO_V1(fence_effects_view);
PG_FUNCTION_INFO_V1(fence_hot_view);

#define PENDING_PAGE 1000

/* A word of a Redis process as text, as utf8_to_display writes it */
static Datum
shown(const char *word)
{
	return CStringGetTextDatum(utf8_to_display(word));
}

static Datum
interval_of_us(int64 us)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return IntervalPGetDatum(interval);
}

/* The interval from now until a fence_clock() time; never negative. */
static Datum
time_left(int64 until)
{
	return interval_of_us(Max(until - fence_clock(), 0));
}

Datum
fence_state_view(PG_FUNCTION_ARGS)
{
	Datum		values[8];
	bool		nulls[8] = {false};
	const char *problem;
	FenceStateNow now;
	int64		bound;

	shared_require();
	fence_state_now(&now);
	bound = (int64) pg_atomic_read_u64(&fence_shared->lease_bound);
	problem = capture_problem();

	values[0] = CStringGetTextDatum(fence_state_name(now.word));
	nulls[1] = WORD_EPOCH(now.word) == 0;
	values[1] = nulls[1] ? (Datum) 0 : CStringGetTextDatum(now.epoch);
	values[2] = shown(now.reason);
	values[3] = TimestampTzGetDatum(now.since);
	nulls[4] = bound == 0;
	values[4] = nulls[4] ? (Datum) 0 : time_left(bound);
	values[5] = Int64GetDatum((int64) metrics_value_server(SERVER_METRIC_BYPASSED));
	values[6] = Int64GetDatum((int64) metrics_value_server(SERVER_METRIC_TOO_LARGE));
	values[7] = CStringGetTextDatum(problem ? psprintf("triggers: %s", problem) : setting_capture == CAPTURE_AUTO ? "executor" : "triggers");
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

Datum
fence_buckets_view(PG_FUNCTION_ARGS)
{
	Datum		values[6];
	bool		nulls[6] = {false};
	BucketsNow	now;

	shared_require();
	buckets_now(&now);
	values[0] = Int32GetDatum(now.buckets);
	values[1] = Int32GetDatum(now.set);
	values[2] = Int32GetDatum(now.set_before);
	values[3] = BoolGetDatum(now.known);
	values[4] = Int64GetDatum((int64) now.turn);
	values[5] = Int32GetDatum(now.holders);
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

static char *
address_text(const RedisEndpoint *address)
{
	return address->is_unix ? pstrdup(address->host) :
		psprintf(strchr(address->host, ':') ? "[%s]:%d" : "%s:%d", address->host, address->port);
}

static Datum
text_or_null(const char *s, bool *isnull)
{
	*isnull = s[0] == '\0';
	return *isnull ? (Datum) 0 : shown(s);
}

/*
 * For scripts: waits until fences are OPEN, at most for that time, and returns the state. Raises 22023 if the time is
 * negative.
 */
Datum
fence_wait_open(PG_FUNCTION_ARGS)
{
	int64		deadline;

	shared_require();
	deadline = fence_clock() + ttl_ms_of(PG_GETARG_INTERVAL_P(0)) * INT64CONST(1000);
	while (WORD_STATE(fence_word()) != FENCE_OPEN && fence_clock() < deadline)
		fence_pause(5000, wait_event_worker());
	PG_RETURN_TEXT_P(cstring_to_text(fence_state_name(fence_word())));
}

Datum
fence_nodes_view(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	FenceNode  *nodes = palloc(sizeof(FenceNode) * MAX_NODES);
	int			n;

	shared_require();
	InitMaterializedSRF(fcinfo, 0);
	n = fence_copy_nodes(nodes);
	for (int i = 0; i < n; i++)
	{
		Datum		values[8];
		bool		nulls[8] = {false};
		char	   *ranges;

		if (nodes[i].dismissed)
			continue;
		ranges = palloc(SLOT_RANGES_LEN);
		values[0] = shown(address_text(&nodes[i].address));
		values[1] = text_or_null(nodes[i].role, &nulls[1]);
		values[2] = text_or_null(nodes[i].version, &nulls[2]);
		values[3] = text_or_null(nodes[i].identity, &nulls[3]);
		values[4] = text_or_null(nodes[i].epoch, &nulls[4]);
		nulls[5] = nodes[i].lease_until == 0;
		values[5] = nulls[5] ? (Datum) 0 : time_left(nodes[i].lease_until);
		values[6] = text_or_null(nodes[i].error, &nulls[6]);
		values[7] = Int32GetDatum(nodes[i].granted ? slot_ranges(fence_shared->slot_node, i, ranges) : 0);
		pfree(ranges);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Shows a domain as users know it, by its name in Redis; for another database it shows that name. Parses the name, and
 * does not read the table, which may be broken.
 */
static Datum
shown_domain(const char *redis_name)
{
	char	   *name = key_own_domain(redis_name);

	return name ? CStringGetTextDatum(name) : shown(redis_name);
}

/* Puts one line of fence.pending: the reservations of a transaction for rows, or one for a whole domain. */
static void
put_pending(ReturnSetInfo *rsinfo, const ListedReservation *r)
{
	Datum		values[8];
	bool		nulls[8] = {false};
	Oid			database = InvalidOid;
	char	   *redis_name = r->name;
	char	   *key = NULL;
	int			pid;
	StampFate	fate = fence_stamp_fate(r->stamp, &pid);

	if (!r->domain)
		(void) key_parse_fence_name(r->name, &database, &redis_name, &key);
	values[0] = shown_domain(redis_name);
	nulls[1] = key == NULL;
	values[1] = key ? shown(key) : (Datum) 0;
	nulls[2] = r->domain;
	values[2] = Int32GetDatum(r->fences);
	values[3] = shown(r->stamp);
	values[4] = interval_of_us(r->age_ms * 1000);
	nulls[5] = pid == 0;
	values[5] = Int32GetDatum(pid);
	values[6] = CStringGetTextDatum(fence_fate_name(fate));
	values[7] = CStringGetTextDatum(r->domain ? "domain" : fence_stamp_is_detached(r->stamp, NULL) ? "detached" : "row");
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Puts one line of the hot keys and slots of a process: per second, and the share of all of its calls. */
static void
put_hot(ReturnSetInfo *rsinfo, const char *address, const HotList *hot, const HotCalls *line)
{
	Datum		values[5 + HOT_KINDS];
	bool		nulls[5 + HOT_KINDS] = {false};
	Oid			database = InvalidOid;
	char	   *redis_name = line->name;
	char	   *key = NULL;
	int64		all = 0;
	int64		calls = 0;

	if (line->name)
		(void) key_parse_fence_name(line->name, &database, &redis_name, &key);
	for (int kind = 0; kind < HOT_KINDS; kind++)
	{
		all += hot->all[kind];
		calls += line->calls[kind];
		values[5 + kind] = Float8GetDatum(line->calls[kind] * 1000.0 / Max(hot->ms, 1));
	}
	values[0] = shown(address);
	nulls[1] = line->name == NULL;
	values[1] = line->name ? shown_domain(redis_name) : (Datum) 0;
	nulls[2] = key == NULL;
	values[2] = key ? shown(key) : (Datum) 0;
	values[3] = Int32GetDatum(line->name ? slot_of_key(line->name, strlen(line->name)) : line->slot);
	values[4] = Float8GetDatum((double) calls / Max(all, 1));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Puts one line of fence.effects. The fate of another cluster's transaction is unknown here. */
static void
put_effect(ReturnSetInfo *rsinfo, const ListedEffect *line)
{
	Datum		values[6];
	bool		nulls[6] = {false};
	size_t		len = strlen(library_owner());
	StampFate	fate;
	int			pid = 0;
	bool		own = effect_fate(line->hold, &fate);

	if (own && fate == FATE_IN_PROGRESS && strncmp(line->top, library_owner(), len) == 0 && line->top[len] == '.')
		(void) fence_stamp_fate(line->top + len + 1, &pid);
	values[0] = shown(line->key);
	values[1] = shown(line->kind);
	values[2] = shown(own && strlen(line->top) > len ? line->top + len + 1 : line->top);
	values[3] = interval_of_us(line->age_ms * 1000);
	nulls[4] = pid == 0;
	values[4] = Int32GetDatum(pid);
	values[5] = CStringGetTextDatum(own ? fence_fate_name(fate) : "of another cluster");
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Listing what the processes have
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Puts one page of a process's list. The cursor works as in library_pending. False: no answer, and call->error tells
 * why.
 */
typedef bool (*PutPage) (LibraryCall *call, const char *address, char **cursor, ReturnSetInfo *rsinfo);

static bool
put_pending_page(LibraryCall *call, const char *address, char **cursor, ReturnSetInfo *rsinfo)
{
	char		epoch[EPOCH_LEN];
	List	   *page = NIL;
	ListCell   *cell;

	(void) address;
	if (!library_pending(call, PENDING_PAGE, cursor, epoch, &page))
		return false;
	foreach(cell, page)
		put_pending(rsinfo, lfirst(cell));
	return true;
}

/* A process tells all of its hot keys in one page. */
static bool
put_hot_page(LibraryCall *call, const char *address, char **cursor, ReturnSetInfo *rsinfo)
{
	HotList		hot;
	ListCell   *cell;

	if (!library_hot(call, &hot))
		return false;
	foreach(cell, hot.list)
		put_hot(rsinfo, address, &hot, lfirst(cell));
	*cursor = "";
	return true;
}

static bool
put_effects_page(LibraryCall *call, const char *address, char **cursor, ReturnSetInfo *rsinfo)
{
	List	   *page = NIL;
	ListCell   *cell;

	(void) address;
	if (!effect_patrol_page(call, 0, cursor, &page))
		return false;
	foreach(cell, page)
		if (!OidIsValid(((ListedEffect *) lfirst(cell))->done_in))
			put_effect(rsinfo, lfirst(cell));
	return true;
}

/*
 * Lists one process, on a connection of its own. A list may take many round trips, which must not delay reservations.
 */
static void
list_node(ReturnSetInfo *rsinfo, const RedisEndpoint *address, PutPage put_page, const char *what)
{
	LibraryCall call = {.deadline = fence_clock() + setting_timeout_us()};
	char	   *cursor = pstrdup("");

	if (!library_open(&call, address))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not list %s: %s", what, call.error)));
	PG_TRY();
	{
		do
		{
			call.deadline = fence_clock() + setting_timeout_us();
			if (!put_page(&call, address_text(address), &cursor, rsinfo))
			{
				/* The process does not have the library, so it has no reservations or holds. */
				if (strstr(call.error, "Function not found"))
					break;
				ereport(ERROR,
						(errcode(ERRCODE_CONNECTION_FAILURE),
						 errmsg("could not list %s: %s", what, call.error)));
			}
		} while (*cursor);
	}
	PG_FINALLY();
	{
		redis_close(call.conn);
	}
	PG_END_TRY();
}

static Datum
list_nodes(FunctionCallInfo fcinfo, PutPage put_page, const char *what)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	FenceNode  *nodes = palloc(sizeof(FenceNode) * MAX_NODES);
	int			n;

	shared_require();
	InitMaterializedSRF(fcinfo, 0);
	coordinator_await_messages();	/* the list must show what this backend has sent before */
	n = fence_copy_nodes(nodes);
	/* If there are several processes, skip those that are not armed, because they have nothing of this epoch. */
	for (int i = 0; i < n; i++)
		if (n == 1 || nodes[i].granted)
			list_node(rsinfo, &nodes[i].address, put_page, what);
	return (Datum) 0;
}

Datum
fence_pending_view(PG_FUNCTION_ARGS)
{
	return list_nodes(fcinfo, put_pending_page, "reservations");
}

Datum
fence_effects_view(PG_FUNCTION_ARGS)
{
	return list_nodes(fcinfo, put_effects_page, "effects");
}

Datum
fence_hot_view(PG_FUNCTION_ARGS)
{
	return list_nodes(fcinfo, put_hot_page, "hot keys");
}
