/*
 * many.c
 *	  Several keys that agree: fence.get_many and fence.read_many; see many.h.
 *
 * Owns: the rule for several keys (doc/protocol.md, "Several keys"): get all, then check all; all unchanged is one
 * snapshot; if any is no hit, all are read from PostgreSQL in one snapshot. Within one call of one process nothing can
 * change, so there the check is left out.
 * Must never: put what was read in a snapshot that is older than the answers.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "coordinator.h"
#include "key.h"
#include "many.h"
#include "row.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(fence_get_many);
PG_FUNCTION_INFO_V1(fence_read_many);

#define MANY_MOST 1000			/* fences of one read: retries and a snapshot should stay short */
#define CALL_MOST 100			/* fences of one call: Redis does nothing else meanwhile */
#define BACKOFF_MOST 10000000	/* microseconds of one pause */

/* -----------------------------------------------------------------------------------------------------------------
 * Calls
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * The next group of items that one call may be about: sets their indexes in group, marks them in done. Returns how many,
 * 0 when all are done.
 */
static int
next_group(int n, ManyItem *items, bool *done, int *group)
{
	int			size = 0;

	for (int i = 0; i < n && size < CALL_MOST; i++)
	{
		if (done[i] || (size > 0 && !coordinator_same_place(items[group[0]].fence, items[i].fence)))
			continue;
		done[i] = true;
		group[size++] = i;
	}
	return size;
}

/* Calls a function with keys and arguments; NULL: the answer is none or no array. */
static redisReply *
call(const char *function, int nkeys, int nstrings, const char **strings)
{
	const char **argv = palloc(sizeof(char *) * (3 + nstrings));
	size_t	   *argvlen = palloc(sizeof(size_t) * (3 + nstrings));
	char		count[12];
	redisReply *reply;

	pg_ltoa(nkeys, count);
	argv[0] = "FCALL";
	argv[1] = function;
	argv[2] = count;
	memcpy(argv + 3, strings, sizeof(char *) * nstrings);
	for (int i = 0; i < 3 + nstrings; i++)
		argvlen[i] = strlen(argv[i]);
	reply = coordinator_ask(strings[0], 3 + nstrings, argv, argvlen);
	if (reply && reply->type != REDIS_REPLY_ARRAY)
	{
		freeReplyObject(reply);
		reply = NULL;
	}
	return reply;
}

/* Takes the answers of fence_get_many apart: each is preceded by the number of its strings. */
static void
take_answers(redisReply *reply, int size, const int *group, ManyItem *items)
{
	size_t		at = 0;

	for (int i = 0; i < size && at < reply->elements; i++)
	{
		const redisReply *count = reply->element[at++];
		int			n = count->type == REDIS_REPLY_STRING ? atoi(count->str) : 0;

		if (n < 1 || n > (int) (reply->elements - at))
			return;
		items[group[i]].answer = reader_answer(reply->element + at, n);
		at += n;
	}
}

int
many_get(int n, ManyItem *items)
{
	bool		open = WORD_STATE(fence_word_expire()) == FENCE_OPEN;
	const char *closed = open ? "unavailable" : reader_closed_status();
	bool	   *done = palloc0(sizeof(bool) * n);
	int		   *group = palloc(sizeof(int) * n);
	const char **names = palloc(sizeof(char *) * 2 * CALL_MOST);
	int			calls = 0;
	int			size;

	for (int i = 0; i < n; i++)
		items[i].answer = (GetAnswer) {.status = closed};
	for (int i = 0; !open && i < n; i++)
		reader_count_unanswered(items[i].domain, closed);
	while (open && (size = next_group(n, items, done, group)) > 0)
	{
		redisReply *reply;

		for (int i = 0; i < size; i++)
		{
			names[2 * i] = items[group[i]].fence;
			names[2 * i + 1] = items[group[i]].value;
		}
		calls++;
		reply = call("fence_get_many", 2 * size, 2 * size, names);
		if (reply == NULL)
			break;				/* one that is no hit decides: the others need not be waited for */
		take_answers(reply, size, group, items);
		freeReplyObject(reply);
	}
	return calls;
}

bool
many_check(int n, ManyItem *items)
{
	bool	   *done = palloc0(sizeof(bool) * n);
	int		   *group = palloc(sizeof(int) * n);
	const char **strings = palloc(sizeof(char *) * 3 * CALL_MOST);
	bool		all = true;
	int			size;

	while (all && (size = next_group(n, items, done, group)) > 0)
	{
		redisReply *reply;

		for (int i = 0; i < size; i++)
		{
			strings[i] = items[group[i]].fence;
			strings[size + 2 * i] = items[group[i]].answer.token;
			strings[size + 2 * i + 1] = items[group[i]].answer.version;
		}
		reply = call("fence_check_many", size, 3 * size, strings);
		all = reply != NULL && reply->elements == (size_t) size;
		for (int i = 0; all && i < size; i++)
			all = reply->element[i]->type == REDIS_REPLY_INTEGER && reply->element[i]->integer == 1;
		if (reply != NULL)
			freeReplyObject(reply);
	}
	return all;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Rows
 * -----------------------------------------------------------------------------------------------------------------
 */

ManyItem
many_item(Domain *domain, char *key)
{
	return (ManyItem) {.domain = domain, .key = key, .fence = key_fence_name(domain, key),
		.value = key_value_name(domain, key), .version = NO_VERSION};
}

bool
many_written(int n, ManyItem *items)
{
	for (int i = 0; i < n; i++)
		if (ledger_has_written(items[i].domain))
			return true;
	return false;
}

Snapshot
many_snapshot(bool *may_put)
{
	*may_put = !IsolationUsesXactSnapshot();
	return RegisterSnapshot(*may_put ? GetLatestSnapshot() : GetTransactionSnapshot());
}

void
many_read_rows(int n, ManyItem *items, Snapshot snapshot)
{
	for (int i = 0; i < n; i++)
	{
		ManyItem   *item = &items[i];

		CHECK_FOR_INTERRUPTS();
		item->version = NO_VERSION;
		item->found = row_as_jsonb(item->domain, item->key, snapshot, &item->row, &item->version, NULL);
	}
}

void
many_put_rows(int n, ManyItem *items)
{
	for (int i = 0; i < n; i++)
	{
		ManyItem   *item = &items[i];
		const char *payload;

		if (!item->found || !item->answer.token || !item->answer.ticket)
			continue;
		payload = row_jsonb_as_value(item->row);
		if (payload == NULL)
			continue;
		(void) reader_put(item->fence, item->value, item->answer.token, item->answer.ticket, item->version,
						  payload, strlen(payload), item->domain->ttl_ms);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * SQL
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The item that a fence's name means; only the one name that writers use. */
static ManyItem
item_of_name(const char *fence)
{
	Oid			database;
	char	   *wire_name;
	char	   *key;
	Domain	   *domain = NULL;

	if (key_parse_fence_name(fence, &database, &wire_name, &key))
		domain = domain_by_wire_name(wire_name);
	if (domain == NULL || !key_is_canonical(domain, key) || strcmp(key_fence_name(domain, key), fence) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is the name of no fence in this database", fence),
				 errhint("fence.fence_key and fence.fence_keys tell the names.")));
	reader_require(domain);
	return many_item(domain, key);
}

static ManyItem *
items_argument(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *names;
	bool	   *nulls;
	ManyItem   *items;

	shared_require();
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls, n);
	if (*n > MANY_MOST)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many fences at once"),
				 errdetail("There are %d; the limit is %d.", *n, MANY_MOST)));
	items = palloc(sizeof(ManyItem) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("the name of a fence must not be null")));
		items[i] = item_of_name(TextDatumGetCString(names[i]));
	}
	return items;
}

Datum
fence_get_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n;
	ManyItem   *items = items_argument(fcinfo, &n);

	(void) many_get(n, items);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		GetAnswer  *answer = &items[i].answer;
		Datum		values[7];
		bool		nulls[7];

		values[0] = reader_text(items[i].fence, &nulls[0]);
		values[1] = reader_text(answer->status, &nulls[1]);
		values[2] = reader_text(answer->token, &nulls[2]);
		values[3] = reader_version(answer->version, &nulls[3]);
		values[4] = reader_text(answer->ticket, &nulls[4]);
		values[5] = reader_payload_text(answer, &nulls[5]);
		values[6] = reader_text(answer->stamp, &nulls[6]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

typedef enum SetState
{
	SET_AGREES,					/* all hits, one snapshot */
	SET_TORN,					/* all hits, but something changed meanwhile */
	SET_BUSY,					/* a write is on its way */
	SET_INCOMPLETE				/* PostgreSQL has to be asked in any case */
} SetState;

/* Whether the item is a hit with a value that can be returned, which is set then. */
static bool
accept_hit(ManyItem *item)
{
	GetAnswer  *answer = &item->answer;

	if (!answer->payload || !answer->token || !answer->version)
		return false;
	if (reader_payload(answer, &item->row))
	{
		item->found = true;
		item->version = strtoll(answer->version, NULL, 10);
		return true;
	}
	metrics_add(item->domain->metrics, METRIC_FALLBACK_UNREADABLE, 1);
	answer->token = NULL;		/* somebody else's value under this name: read past it, leave it alone */
	return false;
}

/* One try to have them all from the cache. */
static SetState
read_cache(int n, ManyItem *items)
{
	int			calls = many_get(n, items);
	bool		hits = true;
	bool		busy = false;

	for (int i = 0; i < n; i++)
	{
		hits = accept_hit(&items[i]) && hits;
		busy = busy || strcmp(items[i].answer.status, "pending") == 0;
	}
	if (!hits)
		return busy ? SET_BUSY : SET_INCOMPLETE;
	if (calls > 1 && !many_check(n, items))
	{
		metrics_add_server(SERVER_METRIC_TORN, 1);
		return SET_TORN;
	}
	return SET_AGREES;
}

static void
pause_for(int64 microseconds)
{
	int64		until = fence_clock() + microseconds;
	int64		left;

	while ((left = until - fence_clock()) > 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, Max(left / 1000, 1), wait_event_redis());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Tries again after a pause that doubles each time, as long as that may help. */
static bool
read_cache_patiently(int n, ManyItem *items, int retries, int64 pause)
{
	SetState	state = read_cache(n, items);

	for (int i = 0; i < retries && (state == SET_TORN || state == SET_BUSY); i++)
	{
		pause_for(pause);
		pause = Min(pause * 2, BACKOFF_MOST);
		state = read_cache(n, items);
	}
	return state == SET_AGREES;
}

/* The source of truth, all in one snapshot; what was missing in the cache is put. */
static void
read_database(int n, ManyItem *items, bool fill)
{
	bool		may_put;
	Snapshot	snapshot = many_snapshot(&may_put);

	many_read_rows(n, items, snapshot);
	UnregisterSnapshot(snapshot);
	if (fill && may_put)
		many_put_rows(n, items);
}

static int64
backoff_argument(FunctionCallInfo fcinfo, int n)
{
	Interval   *backoff = PG_GETARG_INTERVAL_P(n);

	if (backoff->month != 0 || backoff->day != 0 || backoff->time < 0 || backoff->time > BACKOFF_MOST)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the backoff must be between 0 and 10 seconds")));
	return backoff->time;
}

Datum
fence_read_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			retries = PG_GETARG_INT32(1);
	int64		backoff = backoff_argument(fcinfo, 2);
	int			n;
	ManyItem   *items = items_argument(fcinfo, &n);
	bool		fill;
	bool		cached = false;

	if (retries < 0 || retries > 100)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the number of retries must be between 0 and 100")));
	reader_require_primary();
	for (int i = 0; i < n; i++)
		reader_require_source(items[i].domain);
	fill = !many_written(n, items);
	if (fill)
		cached = read_cache_patiently(n, items, retries, backoff);
	if (!cached)
		read_database(n, items, fill);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		ManyItem   *item = &items[i];
		Datum		values[5];
		bool		nulls[5] = {false};

		values[0] = CStringGetTextDatum(item->fence);
		nulls[1] = nulls[2] = !item->found;
		values[1] = Int64GetDatum(item->version);
		values[2] = item->row;
		values[3] = reader_text(cached && item->answer.stamp && *item->answer.stamp ? item->answer.stamp : NULL, &nulls[3]);
		values[4] = CStringGetTextDatum(cached ? "cache" : "database");
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
