/*
 * read/many.c
 *	  Strong reads, of one key or of several keys that agree; see many.h.
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
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/buckets.h"
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

#define MAX_GROUP 100			/* maximum fences of one round trip, because Redis does nothing else meanwhile */
#define OPEN_PAUSE_US	INT64CONST(1000)	/* between two looks whether a bucket was opened */
#define OPEN_TRIES		20

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

bool
many_may_ask(void)
{
	GetStatus	closed;

	return may_ask(&closed);
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
 * Makes the item's answer of what its fence holds and of its domain's permit. stale: keeps the record even if it is not
 * current. Returns false if the record is of another fence.
 */
static bool
take_look(ManyItem *item, const redisReply *fence, const char *permit, bool stale)
{
	GetAnswer  *answer = &item->answer;
	Record		record;
	bool		found = fence->type == REDIS_REPLY_STRING && calls_record(fence->str, fence->len, &record) && record.payload;

	if (found && !calls_is_of(&record, item->fence))
	{
		*answer = no_answer(fence, GET_UNAVAILABLE);
		return false;
	}
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
	return true;
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
	int			one;
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
	/* Redis sees only these names when it looks for hot keys, so let chance name one */
	one = pg_prng_uint64_range(&pg_global_prng_state, 0, size - 1);
	asked[place[one]] = fences[one];
	call_mget(&calls[0], size, fences);
	call_token(&calls[1], ndomains, asked);
	if (!coordinator_ask(fences[0], 2, calls, replies))
		return false;
	for (int i = 0; i < size; i++)
	{
		ManyItem   *item = &items[group[i]];

		if (replies[0]->type != REDIS_REPLY_ARRAY || replies[0]->elements != (size_t) size)
			item->answer = no_answer(replies[0], GET_UNAVAILABLE);
		else if (!take_look(item, replies[0]->element[i], calls_permit(replies[1], place[i], ndomains), stale))
			coordinator_distrust(item->fence);
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

void
many_ask_each(int n, ManyItem *items, MakeCall make, TakeReply take)
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
	if (answer->answered && get.hit && !calls_is_of(&get.record, item->fence))
	{
		coordinator_distrust(item->fence);
		answer->answered = false;
	}
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
	many_ask_each(n, items, make_get, take_get);
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
	many_ask_each(n, items, make_release, take_release);
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

/*
 * Locks the tables of the item's domain, as SELECT does, until the end of the transaction. If a statement such as ALTER
 * TABLE has changed the domain meanwhile, takes the domain as it is now. The permit is older than that: nothing is put.
 */
static void
lock_tables(ManyItem *item)
{
	ListCell   *lc;

	foreach(lc, item->domain->tables ? item->domain->tables : list_make1_oid(item->domain->relid))
		if (OidIsValid(lfirst_oid(lc)))
			LockRelationOid(lfirst_oid(lc), AccessShareLock);
	if (domain_is_current(item->domain))
		return;
	item->domain = domain_by_name(item->domain->name, false);
	item->answer.permit = NULL;
}

Snapshot
many_snapshot(int n, ManyItem *items, bool *may_put)
{
	/* a snapshot from before the wait would see no rows of a table that was rewritten meanwhile */
	for (int i = 0; i < n; i++)
		lock_tables(&items[i]);
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
		item->writer = InvalidFullTransactionId;
		item->found = row_as_jsonb(item->domain, item->key, snapshot, &item->row, &item->version, &item->writer);
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

/*
 * Puts the row of an item. False: Redis has refused it, or there is nothing to put. The domain is looked up again, because
 * the permit may be younger than what the caller has found: readers wait for others, and for replay.
 */
static bool
put_row(ManyItem *item)
{
	const char *payload = item->found ? row_jsonb_as_value(item->row) : PAYLOAD_ABSENT;
	size_t		len = payload ? strlen(payload) : 0;
	const char *answer;

	if (item->version == NO_VERSION || item->answer.permit == NULL || payload == NULL || len > PAYLOAD_MAX_BYTES || !domain_is_current(item->domain))
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

/* Whether nothing can be put for some item that was missed, because its bucket is closed, and can soon be opened. */
static bool
is_any_closed(int n, const ManyItem *items)
{
	for (int i = 0; i < n; i++)
	{
		int			bucket = bucket_of(items[i].fence);

		if (items[i].answer.permit && bucket != ALWAYS_RESERVED && !bucket_is_set(bucket) && !bucket_is_held(bucket))
			return true;
	}
	return false;
}

/* fence_get also tells Redis that the bucket is wanted. Whoever is to fill an item in has asked it already. */
static bool
make_want(const ManyItem *item, Call *call)
{
	return make_get(item, call) && !item->answer.filler;
}

void
many_open_buckets(int n, ManyItem *items)
{
	BucketsNow	now;

	if (!is_any_closed(n, items) || IsolationUsesXactSnapshot())
		return;
	buckets_now(&now);
	if (now.waits_since != 0 && fence_clock() - now.waits_since > OPEN_TRIES * OPEN_PAUSE_US)
		return;					/* a commit that waits for a standby holds up all openings */
	many_ask_each(n, items, make_want, take_get);
	buckets_hurry();
	for (int i = 0; i < OPEN_TRIES && is_any_closed(n, items); i++)
		fence_pause(OPEN_PAUSE_US, wait_event_redis());
	fence_pause(OPEN_PAUSE_US, wait_event_redis());	/* Redis is told a moment after the bits are set */
	many_ask_each(n, items, make_get, take_get);
}

void
many_read_database(int n, ManyItem *items, bool fill)
{
	bool		may_put;
	Snapshot	snapshot;

	if (fill)
		many_open_buckets(n, items);
	snapshot = many_snapshot(n, items, &may_put);
	many_read_rows(n, items, snapshot);
	UnregisterSnapshot(snapshot);
	if (fill && may_put)
		(void) many_put_rows(n, items);
	else
		many_release(n, items);
}
