/*
 * read/many.c
 *	  Strong reads, of one key or of several keys that agree: fence.get_many and fence.read_many; see many.h.
 *
 * Owns: the strong read (doc/protocol.md, "Reading").
 * Locks: fence_shared->lock (shared), to see which Redis processes are reachable; those of a SELECT on the table, and on
 * fence.tombstone and fence.floor.
 * Never: puts a row that it has read in a snapshot older than the permit.
 *
 * A read gets the fences with MGET, and then, on the same connection, the permits of their domains. One round trip
 * serves all fences of one place: those for which coordinator_same_place is true. All fences of a round trip are read
 * at one moment. If a read takes several round trips, its hits agree if all fences but those of the last round trip
 * are found unchanged after it. If any key is no hit, all rows are read from PostgreSQL in one snapshot.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/key_text.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/word.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/row.h"
#include "domain/tombstone.h"
#include "read/many.h"
#include "read/reader.h"
#include "send/coordinator.h"

PG_FUNCTION_INFO_V1(fence_get_many);
PG_FUNCTION_INFO_V1(fence_read_many);

#define MAX_KEYS 1000			/* maximum fences of one read, because retries and a snapshot should stay short */
#define MAX_GROUP 100			/* maximum fences of one round trip, because Redis does nothing else meanwhile */
#define MAX_BACKOFF_US 10000000	/* maximum microseconds of one pause */

/* -----------------------------------------------------------------------------------------------------------------
 * Asking Redis
 * -----------------------------------------------------------------------------------------------------------------
 */

const char *
many_status_name(GetStatus status)
{
	static const char *const names[] = {"hit", "miss", "pending", "unarmed", "unavailable"};

	return names[status];
}

/*
 * The status of an answer that is given without asking Redis, while fences are not OPEN. It tells whether Redis is
 * unreachable.
 */
static GetStatus
closed_status(void)
{
	bool		reachable = false;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	for (int i = 0; i < fence_shared->nnodes; i++)
		reachable = reachable || fence_shared->nodes[i].reachable;
	LWLockRelease(fence_shared->lock);
	return reachable ? GET_UNARMED : GET_UNAVAILABLE;
}

/*
 * Whether a read may ask Redis; if not, *closed is its status. On a standby the word is never OPEN, because the primary
 * arms Redis; there a read asks if Redis is reachable.
 */
static bool
may_ask(GetStatus *closed)
{
	*closed = GET_UNAVAILABLE;
	if (!RecoveryInProgress() && WORD_STATE(fence_word_expire()) == FENCE_OPEN)
		return true;
	*closed = closed_status();
	return RecoveryInProgress() && *closed == GET_UNARMED;
}

/* Counts an answer in the metrics, unless it came from fence_get, whose answers Redis counts itself. */
static void
count_answer(const ManyItem *item)
{
	static const DomainMetric metrics[][2] = {
		[GET_HIT] = {METRIC_GET_HIT}, [GET_MISS] = {METRIC_GET_MISS, METRIC_FALLBACK_MISS},
		[GET_PENDING] = {METRIC_GET_PENDING, METRIC_FALLBACK_PENDING}, [GET_UNARMED] = {METRIC_GET_UNARMED, METRIC_FALLBACK_UNARMED},
		[GET_UNAVAILABLE] = {METRIC_GET_UNAVAILABLE, METRIC_FALLBACK_UNAVAILABLE}
	};
	GetStatus	status = item->answer.status;

	metrics_add(item->domain->metrics, metrics[status][0], 1);
	if (status != GET_HIT)
		metrics_add(item->domain->metrics, metrics[status][1], 1);
}

/*
 * Finds the next group of items for one round trip: puts their indexes into group, and marks them in done. Returns
 * their number; 0: all items are done.
 */
static int
next_group(int n, const ManyItem *items, bool *done, int *group)
{
	int			size = 0;

	for (int i = 0; i < n && size < MAX_GROUP; i++)
	{
		if (done[i] || (size > 0 && !coordinator_same_place(items[group[0]].fence, items[i].fence)))
			continue;
		done[i] = true;
		group[size++] = i;
	}
	return size;
}

static GetAnswer
no_answer(const redisReply *reply, GetStatus status)
{
	return (GetAnswer) {.status = reply && coordinator_is_redirection(reply) ? GET_UNARMED : status, .version = NO_VERSION};
}

static void
take_record(GetAnswer *answer, const Record *record)
{
	answer->version = record->version;
	answer->stamp = pnstrdup(record->stamp, record->stamp_len);
	answer->payload = pnstrdup(record->payload, record->payload_len);
	answer->payload_len = record->payload_len;
}

static void
take_permit(GetAnswer *answer, const char *permit)
{
	answer->status = GET_MISS;
	answer->permit = RecoveryInProgress() ? NULL : pstrdup(permit);
	answer->token = pnstrdup(permit, calls_token_len(permit));
}

/*
 * Makes an answer of what the fence holds and of its domain's permit. stale: keeps the record even if it is not
 * current.
 */
static void
take_look(GetAnswer *answer, const redisReply *fence, const char *permit, bool stale)
{
	Record		record;
	bool		found = fence->type == REDIS_REPLY_STRING && calls_record(fence->str, fence->len, &record) && record.payload;

	*answer = (GetAnswer) {.status = GET_UNARMED, .answered = true, .version = NO_VERSION};
	if (found && calls_is_current(&record, permit))
	{
		answer->status = GET_HIT;
		answer->token = pnstrdup(record.token, record.token_len);
	}
	else if (*permit)
		take_permit(answer, permit);
	if (found && (answer->status == GET_HIT || stale))
		take_record(answer, &record);
}

/* Makes one round trip for all items of the group. False: there is no answer. */
static bool
look(ManyItem *items, int size, const int *group, bool stale)
{
	const char **fences = palloc(sizeof(char *) * size);
	const char **asked = palloc(sizeof(char *) * size); /* one of each domain */
	const Domain **domains = palloc(sizeof(Domain *) * size);
	int		   *place = palloc(sizeof(int) * size);
	int			ndomains = 0;
	Call		calls[2];
	redisReply *replies[2];

	for (int i = 0; i < size; i++)
	{
		const ManyItem *item = &items[group[i]];

		fences[i] = item->fence;
		for (place[i] = 0; place[i] < ndomains && domains[place[i]] != item->domain; place[i]++)
			;
		domains[place[i]] = item->domain;
		asked[place[i]] = item->fence;
		ndomains = Max(ndomains, place[i] + 1);
	}
	call_mget(&calls[0], size, fences);
	call_token(&calls[1], ndomains, asked);
	if (!coordinator_ask(fences[0], 2, calls, replies))
		return false;
	for (int i = 0; i < size; i++)
	{
		GetAnswer  *answer = &items[group[i]].answer;

		if (replies[0]->type == REDIS_REPLY_ARRAY && replies[0]->elements == (size_t) size)
			take_look(answer, replies[0]->element[i], calls_permit(replies[1], place[i], ndomains), stale);
		else
			*answer = no_answer(replies[0], GET_UNAVAILABLE);
	}
	freeReplyObject(replies[0]);
	freeReplyObject(replies[1]);
	return true;
}

int
many_get(int n, ManyItem *items, bool why)
{
	GetStatus	closed;
	bool		ask = may_ask(&closed);
	bool	   *done = palloc0(sizeof(bool) * n);
	int		   *group = palloc(sizeof(int) * n);
	int			moment = 0;
	int			size;

	for (int i = 0; i < n; i++)
	{
		/* No armed process has the slot, so no process may answer. */
		done[i] = ask && fence_node_of(items[i].fence) == SLOT_NOBODY;
		items[i].answer = no_answer(NULL, done[i] ? GET_UNARMED : closed);
		items[i].moment = 0;
	}
	while (ask && (size = next_group(n, items, done, group)) > 0)
	{
		moment++;
		for (int i = 0; i < size; i++)
			items[group[i]].moment = moment;
		ask = look(items, size, group, false);	/* if Redis does not answer, do not wait for the other groups */
	}
	why = why && ask;
	for (int i = 0; i < n; i++)
		if (!why || !items[i].answer.answered || items[i].answer.status == GET_HIT)
			count_answer(&items[i]);
	return why ? many_ask_why(n, items, moment) : moment;
}

void
many_peek(ManyItem *item)
{
	GetStatus	closed;
	int			group = 0;

	item->answer = no_answer(NULL, GET_UNAVAILABLE);
	if (may_ask(&closed) || closed == GET_UNARMED)
		(void) look(item, 1, &group, true);
}

/* Makes the call for an item. False: the item needs no call. */
typedef bool (*MakeCall) (const ManyItem *item, Call *call);

/* Takes the reply for an item. NULL: there is no reply. */
typedef void (*TakeReply) (ManyItem *item, const redisReply *reply);

/* Makes one call for each item; the calls for items of one place share a round trip. */
static void
ask_each(int n, ManyItem *items, MakeCall make, TakeReply take)
{
	int			most = Min(n, MAX_GROUP);
	bool	   *done = palloc0(sizeof(bool) * n);
	int		   *group = palloc(sizeof(int) * n);
	Call	   *calls = palloc(sizeof(Call) * most);
	redisReply **replies = palloc(sizeof(redisReply *) * most);
	int			size;

	for (int i = 0; i < n; i++)
		done[i] = !make(&items[i], &calls[0]);
	while ((size = next_group(n, items, done, group)) > 0)
	{
		bool		ok;

		for (int i = 0; i < size; i++)
			(void) make(&items[group[i]], &calls[i]);
		ok = coordinator_ask(items[group[0]].fence, size, calls, replies);
		for (int i = 0; i < size; i++)
		{
			take(&items[group[i]], ok ? replies[i] : NULL);
			if (ok)
				freeReplyObject(replies[i]);
		}
	}
}

static bool
make_get(const ManyItem *item, Call *call)
{
	call_get(call, item->fence);
	return item->answer.answered && item->answer.status != GET_HIT;
}

static void
take_get(ManyItem *item, const redisReply *reply)
{
	GetAnswer  *answer = &item->answer;
	GetReply	get;

	*answer = no_answer(reply, GET_UNAVAILABLE);
	answer->answered = reply != NULL && calls_get(reply, &get);
	if (!answer->answered)
		count_answer(item);
	else if (get.hit)
	{
		answer->status = GET_HIT;
		answer->token = pnstrdup(get.record.token, get.record.token_len);
		take_record(answer, &get.record);
	}
	else if (get.permit)
	{
		take_permit(answer, get.permit);
		answer->busy_ms = get.busy_ms;
		answer->filler = get.busy_ms == 0 && setting_fill_lease > 0;
	}
	else
		answer->status = get.pending ? GET_PENDING : GET_UNARMED;
}

int
many_ask_why(int n, ManyItem *items, int moment)
{
	/* Each of these calls has read its fence at a moment of its own. */
	for (int i = 0; i < n; i++)
		if (items[i].answer.answered && items[i].answer.status != GET_HIT)
			items[i].moment = ++moment;
	ask_each(n, items, make_get, take_get);
	return moment;
}

static bool
make_release(const ManyItem *item, Call *call)
{
	call_release(call, item->fence);
	return item->answer.filler;
}

static void
take_release(ManyItem *item, const redisReply *reply)
{
	(void) reply;
	item->answer.filler = false;
}

void
many_release(int n, ManyItem *items)
{
	ask_each(n, items, make_release, take_release);
}

bool
many_check(int n, ManyItem *items, int moment)
{
	bool	   *done = palloc0(sizeof(bool) * n);
	int		   *group = palloc(sizeof(int) * n);
	const char **fences = palloc(sizeof(char *) * n);
	const char **tokens = palloc(sizeof(char *) * n);
	const char **versions = palloc(sizeof(char *) * n);
	bool		same = true;
	int			size;

	for (int i = 0; i < n; i++)
		done[i] = moment > 0 && items[i].moment == moment;
	while (same && (size = next_group(n, items, done, group)) > 0)
	{
		Call		call;
		redisReply *reply;

		for (int i = 0; i < size; i++)
		{
			fences[i] = items[group[i]].fence;
			tokens[i] = items[group[i]].answer.token;
			versions[i] = psprintf(INT64_FORMAT, items[group[i]].answer.version);
		}
		call_check(&call, size, fences, tokens, versions);
		same = coordinator_ask(fences[0], 1, &call, &reply);
		if (same)
		{
			same = calls_all_same(reply, size);
			freeReplyObject(reply);
		}
	}
	return same;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Rows
 * -----------------------------------------------------------------------------------------------------------------
 */

ManyItem
many_item(Domain *domain, char *key)
{
	return (ManyItem) {.domain = domain, .key = key, .fence = key_fence_name(domain, key), .version = NO_VERSION};
}

bool
many_written(int n, ManyItem *items)
{
	for (int i = 0; i < n; i++)
		if (ledger_has_written(items[i].domain))
			return true;
	return false;
}

bool
many_accept(ManyItem *item)
{
	GetAnswer  *answer = &item->answer;
	bool		absent;

	if (answer->status != GET_HIT)
		return false;
	absent = strcmp(answer->payload, PAYLOAD_ABSENT) == 0;
	/*
	 * In a domain without cache_absent an INSERT does not reserve, so a fence that says "no such row" must not be
	 * believed.
	 */
	if (absent ? item->domain->cache_absent : row_value_as_jsonb(answer->payload, answer->payload_len, &item->row))
	{
		item->found = !absent;
		item->version = answer->version;
		return true;
	}
	/* A client has put a payload that is not a row. Read from PostgreSQL instead, and leave the fence alone. */
	metrics_add(item->domain->metrics, METRIC_FALLBACK_UNREADABLE, 1);
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
		if (!item->found && item->domain->cache_absent)
		{
			/*
			 * The tombstone is read after the snapshot was taken. That is safe, because no row ever has a tombstone's
			 * version.
			 */
			item->version = tombstone_look_up(item->domain->id, item->key).tombstone;
			if (item->version == NO_VERSION)
				item->version = VERSION_ABSENT;
		}
	}
}

/* Puts the row of an item. False: Redis has refused it, or there is nothing to put. */
static bool
put_row(ManyItem *item)
{
	const char *payload = item->found ? row_jsonb_as_value(item->row) : PAYLOAD_ABSENT;
	size_t		len = payload ? strlen(payload) : 0;
	const char *answer;

	if (item->version == NO_VERSION || payload == NULL || len > PAYLOAD_MAX_BYTES)
		return false;
	item->answer.filler = false;
	answer = reader_put(item->fence, item->answer.permit, item->version, payload, len, item->domain->ttl_ms);
	return answer != NULL && strcmp(answer, "stored") == 0;
}

bool
many_put_rows(int n, ManyItem *items)
{
	bool		all = true;

	for (int i = 0; i < n; i++)
		if (items[i].answer.permit)
			all = put_row(&items[i]) && all;
	many_release(n, items);
	return all;
}

void
many_read_database(int n, ManyItem *items, bool fill)
{
	bool		may_put;
	Snapshot	snapshot = many_snapshot(&may_put);

	many_read_rows(n, items, snapshot);
	UnregisterSnapshot(snapshot);
	if (fill && may_put)
		(void) many_put_rows(n, items);
	else
		many_release(n, items);
}

/* -----------------------------------------------------------------------------------------------------------------
 * SQL
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The item for the name of a fence. Accepts only the canonical name, which writers use. */
static ManyItem
item_of_name(const char *fence)
{
	Oid			database;
	char	   *redis_name;
	char	   *key;
	Domain	   *domain = NULL;

	if (key_parse_fence_name(fence, &database, &redis_name, &key))
		domain = domain_by_redis_name(redis_name);
	if (domain == NULL || !key_is_canonical(domain, key) || strcmp(key_fence_name(domain, key), fence) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not the name of a fence in this database", fence),
				 errhint("fence.fence_key and fence.fence_keys return the names.")));
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
	if (*n > MAX_KEYS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many fences at once"),
				 errdetail("There are %d; the limit is %d.", *n, MAX_KEYS)));
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

	(void) many_get(n, items, true);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		GetAnswer  *answer = &items[i].answer;
		Datum		values[6];
		bool		nulls[6];

		values[0] = reader_text(items[i].fence, &nulls[0]);
		values[1] = reader_text(many_status_name(answer->status), &nulls[1]);
		values[2] = reader_text(answer->permit, &nulls[2]);
		values[3] = reader_version(answer->version, &nulls[3]);
		values[4] = reader_payload_text(answer, &nulls[4]);
		values[5] = reader_text(answer->stamp, &nulls[5]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

typedef enum SetState
{
	SET_AGREES,					/* all items are hits, and were current together */
	SET_TORN,					/* all items are hits, but something has changed meanwhile */
	SET_BUSY,					/* a transaction is writing one of them */
	SET_INCOMPLETE				/* some item must be read from PostgreSQL in any case */
} SetState;

/* Tries once to read all items from the cache. */
static SetState
read_cache(int n, ManyItem *items)
{
	int			moment = many_get(n, items, true);
	bool		hits = true;
	bool		busy = false;

	for (int i = 0; i < n; i++)
	{
		hits = many_accept(&items[i]) && hits;
		busy = busy || items[i].answer.status == GET_PENDING;
	}
	if (!hits)
		return busy ? SET_BUSY : SET_INCOMPLETE;
	if (!many_check(n, items, moment))
	{
		metrics_add_server(SERVER_METRIC_TORN, 1);
		return SET_TORN;
	}
	return SET_AGREES;
}

/*
 * Tries to read all items from the cache, again and again while that may help. The pause between two tries doubles
 * each time.
 */
static bool
read_cache_patiently(int n, ManyItem *items, int retries, int64 pause)
{
	SetState	state = read_cache(n, items);

	for (int i = 0; i < retries && (state == SET_TORN || state == SET_BUSY); i++)
	{
		fence_pause(pause, wait_event_redis());
		pause = Min(pause * 2, MAX_BACKOFF_US);
		state = read_cache(n, items);
	}
	return state == SET_AGREES;
}

static int64
backoff_argument(FunctionCallInfo fcinfo, int n)
{
	Interval   *backoff = PG_GETARG_INTERVAL_P(n);

	if (backoff->month != 0 || backoff->day != 0 || backoff->time < 0 || backoff->time > MAX_BACKOFF_US)
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
		many_read_database(n, items, fill);

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
