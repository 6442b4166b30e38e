/*
 * read/many.c
 *	  Strong reads, of one key or of several keys that agree; see many.h.
 *
 * Owns: the strong read (doc/protocol.md, "Reading").
 * Locks: fence_shared->lock (shared), to see which Redis processes are reachable; those of a SELECT on the table, and on
 * fence.tombstone and fence.floor.
 * Never: puts a row that it has read in a snapshot older than the permit.
 *
 * A read gets the fences with MGET, and then, on the same connection, the permits of their domains. One MGET serves
 * fences of one place (coordinator_place), and reads them at one moment. If a read takes several, its hits agree if all
 * fences but those of the last MGET are found unchanged after it. If any key is no hit, all rows are read from PostgreSQL
 * in one snapshot.
 *
 * Nothing is asked one key at a time: calls to one process share round trips.
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
#include "base/utf8.h"
#include "base/word.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/row.h"
#include "domain/tombstone.h"
#include "read/many.h"
#include "read/reader.h"
#include "send/coordinator.h"

#define MAX_TRIP 100			/* maximum items of one round trip, because Redis does nothing else meanwhile, ... */
#define TRIP_BYTES (256 * 1024)	/* ... and bytes from which on nothing is added to it, because it must end within `timeout` */
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

/* Questions about several items, all to one process, that share a round trip */
typedef struct Trip
{
	const Question *question;
	void	   *arg;
	int			nquestions;
	int			nitems;
	int			ncalls;
	Size		bytes;
	ManyItem  **items;			/* of one question after the other */
	int		   *sizes;			/* of each question: how many items, */
	int		   *sent;			/* and how many calls */
	Call	   *calls;
	redisReply **replies;
} Trip;

static Trip
new_trip(int n, const Question *question, void *arg)
{
	int			most = Min(n, MAX_TRIP);

	return (Trip) {
		.question = question, .arg = arg, .items = palloc(sizeof(ManyItem *) * most), .sizes = palloc(sizeof(int) * most),
		.sent = palloc(sizeof(int) * most), .calls = palloc(sizeof(Call) * most * QUESTION_CALLS),
		.replies = palloc(sizeof(redisReply *) * most * QUESTION_CALLS)
	};
}

/* Adds a question about the items that were written behind the last ones. */
static void
add_question(Trip *trip, int size)
{
	Asked		asked = {.n = size, .items = &trip->items[trip->nitems], .arg = trip->arg};
	int			n = trip->question->make(&asked, &trip->calls[trip->ncalls]);

	if (n == 0)
		return;
	for (int i = trip->ncalls; i < trip->ncalls + n; i++)
		for (int k = 0; k < trip->calls[i].argc; k++)
			trip->bytes += trip->calls[i].argvlen[k];
	trip->sizes[trip->nquestions] = size;
	trip->sent[trip->nquestions++] = n;
	trip->nitems += size;
	trip->ncalls += n;
}

/* Makes the round trip if `ask`. Lets the questions take the replies. Returns whether there are any. */
static bool
make_trip(Trip *trip, bool ask)
{
	ManyItem  **items = trip->items;
	redisReply **replies = trip->replies;
	bool		ok = ask && coordinator_ask(items[0]->fence, trip->ncalls, trip->calls, replies);

	for (int q = 0; q < trip->nquestions; q++)
	{
		Asked		asked = {.n = trip->sizes[q], .items = items, .arg = trip->arg, .ncalls = trip->sent[q],
							 .replies = ok ? replies : NULL};

		trip->question->take(&asked);
		items += trip->sizes[q];
		replies += trip->sent[q];
	}
	for (int i = 0; ok && i < trip->ncalls; i++)
		freeReplyObject(trip->replies[i]);
	trip->nquestions = trip->nitems = trip->ncalls = 0;
	trip->bytes = 0;
	return ok;
}

/* Plans of many_ask: where the items are, and which are done */
typedef struct Place
{
	int			place;
	int			process;
	bool		done;
} Place;

/* Fills the trip with questions to the process of item i: about it, and about items behind it. */
static void
plan_trip(Trip *trip, int n, ManyItem *items, Place *places, int i)
{
	for (int k = i; k < n && trip->nitems < MAX_TRIP && trip->bytes < TRIP_BYTES; k++)
	{
		int			most = Min(trip->question->most, MAX_TRIP - trip->nitems);
		int			size = 0;

		if (places[k].done || places[k].process != places[i].process)
			continue;
		for (int j = k; j < n && size < most; j++)
			if (!places[j].done && places[j].place == places[k].place)
			{
				places[j].done = true;
				trip->items[trip->nitems + size++] = &items[j];
			}
		add_question(trip, size);
	}
}

bool
many_ask(int n, ManyItem *items, const Question *question, void *arg)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "pgcache_fence calls", ALLOCSET_DEFAULT_SIZES);	/* of one trip; payloads may be large */
	Place	   *places = palloc(sizeof(Place) * n);
	Trip		trip = new_trip(n, question, arg);
	bool		ok = true;

	for (int i = 0; i < n; i++)
	{
		places[i].done = false;
		places[i].place = coordinator_place(items[i].fence, &places[i].process);
	}
	for (int i = 0; i < n; i++)
	{
		if (places[i].done)
			continue;
		MemoryContextSwitchTo(context);
		plan_trip(&trip, n, items, places, i);
		MemoryContextSwitchTo(caller);
		if (trip.nitems > 0)
			ok = make_trip(&trip, ok);	/* if Redis does not answer, do not wait for it again and again */
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	return ok;
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
	answer->payload = utf8_copy(record->payload, record->payload_len);
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

/* What many_get and many_peek ask */
typedef struct Look
{
	int			moment;			/* number of the last MGET */
	bool		stale;			/* keep records that are not current */
} Look;

/*
 * Numbers the domains of the items from 0 on: place[i] is that of item i. Returns how many there are. A permit is asked
 * for one fence of each.
 */
static int
number_domains(int n, ManyItem **items, int *place)
{
	const Domain **domains = palloc(sizeof(Domain *) * n);
	int			ndomains = 0;

	for (int i = 0; i < n; i++)
	{
		for (place[i] = 0; place[i] < ndomains && domains[place[i]] != items[i]->domain; place[i]++)
			;
		domains[place[i]] = items[i]->domain;
		ndomains = Max(ndomains, place[i] + 1);
	}
	pfree(domains);
	return ndomains;
}

static int
make_look(const Asked *asked, Call *calls)
{
	Look	   *look = asked->arg;
	int			n = asked->n;
	ManyItem  **items = asked->items;
	const char **fences = palloc(sizeof(char *) * n);
	const char **one_of_each = palloc(sizeof(char *) * n);	/* domain */
	int		   *place = palloc(sizeof(int) * n);
	int			ndomains = number_domains(n, items, place);
	int			one;

	if (fence_node_of(items[0]->fence) == SLOT_NOBODY)
	{
		/* no armed process has the slot, so no process may answer */
		for (int i = 0; i < n; i++)
			items[i]->answer.status = GET_UNARMED;
		return 0;
	}
	look->moment++;
	for (int i = 0; i < n; i++)
	{
		items[i]->moment = look->moment;
		fences[i] = one_of_each[place[i]] = items[i]->fence;
	}
	/* Redis sees only these names when it looks for hot keys, so let chance name one */
	one = pg_prng_uint64_range(&pg_global_prng_state, 0, n - 1);
	one_of_each[place[one]] = fences[one];
	call_mget(&calls[0], n, fences);
	call_token(&calls[1], ndomains, one_of_each);
	return 2;
}

static void
take_looks(const Asked *asked)
{
	const Look *look = asked->arg;
	int			n = asked->n;
	ManyItem  **items = asked->items;
	redisReply **replies = asked->replies;
	int		   *place;
	int			ndomains;

	if (replies == NULL)
		return;
	place = palloc(sizeof(int) * n);
	ndomains = number_domains(n, items, place);
	for (int i = 0; i < n; i++)
		if (replies[0]->type != REDIS_REPLY_ARRAY || replies[0]->elements != (size_t) n)
			items[i]->answer = no_answer(replies[0], GET_UNAVAILABLE);
		else if (!take_look(items[i], replies[0]->element[i], calls_permit(replies[1], place[i], ndomains), look->stale))
			coordinator_distrust(items[i]->fence);
	pfree(place);
}

static const Question look_question = {.most = MAX_TRIP, .make = make_look, .take = take_looks};

int
many_get(int n, ManyItem *items, bool why)
{
	GetStatus	closed;
	bool		ask = may_ask(&closed);
	Look		look = {0};

	for (int i = 0; i < n; i++)
	{
		items[i].answer = no_answer(NULL, closed);
		items[i].moment = 0;
	}
	ask = ask && many_ask(n, items, &look_question, &look);
	why = why && ask;
	for (int i = 0; i < n; i++)
		if (!why || !items[i].answer.answered || items[i].answer.status == GET_HIT)
			count_answer(&items[i]);
	return why ? many_ask_why(n, items, look.moment) : look.moment;
}

void
many_peek(ManyItem *item)
{
	GetStatus	closed;
	Look		look = {.stale = true};

	item->answer = no_answer(NULL, GET_UNAVAILABLE);
	if (may_ask(&closed) || closed == GET_UNARMED)
		(void) many_ask(1, item, &look_question, &look);
}

static int
make_get(const Asked *asked, Call *calls)
{
	const ManyItem *item = asked->items[0];

	if (!item->answer.answered || item->answer.status == GET_HIT)
		return 0;
	call_get(calls, item->fence);
	return 1;
}

static void
take_get(const Asked *asked)
{
	ManyItem   *item = asked->items[0];
	const redisReply *reply = asked->replies ? asked->replies[0] : NULL;
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

static const Question get_question = {.most = 1, .make = make_get, .take = take_get};

int
many_ask_why(int n, ManyItem *items, int moment)
{
	/* Each of these calls has read its fence at a moment of its own. */
	for (int i = 0; i < n; i++)
		if (items[i].answer.answered && items[i].answer.status != GET_HIT)
			items[i].moment = ++moment;
	(void) many_ask(n, items, &get_question, NULL);
	return moment;
}

static int
make_release(const Asked *asked, Call *calls)
{
	call_release(calls, asked->items[0]->fence);
	return asked->items[0]->answer.filler ? 1 : 0;
}

static void
take_release(const Asked *asked)
{
	asked->items[0]->answer.filler = false;
}

void
many_release(int n, ManyItem *items)
{
	static const Question question = {.most = 1, .make = make_release, .take = take_release};

	(void) many_ask(n, items, &question, NULL);
}

static int
make_check(const Asked *asked, Call *calls)
{
	int			n = asked->n;
	const char **fences = palloc(sizeof(char *) * n);
	const char **tokens = palloc(sizeof(char *) * n);
	const char **versions = palloc(sizeof(char *) * n);

	for (int i = 0; i < n; i++)
	{
		fences[i] = asked->items[i]->fence;
		tokens[i] = asked->items[i]->answer.token;
		versions[i] = psprintf(INT64_FORMAT, asked->items[i]->answer.version);
	}
	call_check(calls, n, fences, tokens, versions);
	return 1;
}

static void
take_check(const Asked *asked)
{
	bool	   *same = asked->arg;

	*same = *same && asked->replies != NULL && calls_all_same(asked->replies[0], asked->n);
}

bool
many_check(int n, ManyItem *items, int moment)
{
	static const Question question = {.most = MAX_TRIP, .make = make_check, .take = take_check};
	ManyItem   *others = palloc(sizeof(ManyItem) * n);
	int			nothers = 0;
	bool		same = true;

	for (int i = 0; i < n; i++)
		if (moment == 0 || items[i].moment != moment)
			others[nothers++] = items[i];
	return many_ask(nothers, others, &question, &same) && same;
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
	absent = row_value_is_absent(answer->payload, answer->payload_len);
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
 * The domain is looked up again, because the permit may be younger than what the caller has found: readers wait for others,
 * and for replay.
 */
static int
make_put(const Asked *asked, Call *calls)
{
	ManyItem   *item = asked->items[0];
	bool	   *all = asked->arg;
	const char *payload;
	const char *refusal;
	size_t		len;
	int			made = 0;

	if (item->answer.permit == NULL)
		return 0;
	payload = item->found ? row_jsonb_as_value(item->row) : PAYLOAD_ABSENT;
	len = payload ? strlen(payload) : 0;
	if (item->version != NO_VERSION && payload != NULL && domain_is_current(item->domain))
		made = reader_put_calls(calls, item->fence, item->answer.permit, item->version, payload, len, item->domain->ttl_ms, &refusal);
	if (made > 0)
		item->answer.filler = false;
	else
		*all = false;
	return made;
}

static void
take_put(const Asked *asked)
{
	bool	   *all = asked->arg;

	/* a value of two calls is put by the second */
	*all = asked->replies != NULL && strcmp(reader_put_answer(asked->replies[asked->ncalls - 1]), "stored") == 0 && *all;
}

bool
many_put_rows(int n, ManyItem *items)
{
	static const Question question = {.most = 1, .make = make_put, .take = take_put};
	bool		all = true;

	(void) many_ask(n, items, &question, &all);
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
static int
make_want(const Asked *asked, Call *calls)
{
	return asked->items[0]->answer.filler ? 0 : make_get(asked, calls);
}

void
many_open_buckets(int n, ManyItem *items)
{
	static const Question want_question = {.most = 1, .make = make_want, .take = take_get};
	BucketsNow	now;
	uint32		batch;

	if (!is_any_closed(n, items) || IsolationUsesXactSnapshot())
		return;
	buckets_now(&now);
	if (now.waits_since != 0 && fence_clock() - now.waits_since > OPEN_TRIES * OPEN_PAUSE_US)
		return;					/* a commit that waits for a standby holds up all openings */
	(void) many_ask(n, items, &want_question, NULL);
	buckets_hurry();
	for (int i = 0; i < OPEN_TRIES && is_any_closed(n, items); i++)
		fence_pause(OPEN_PAUSE_US, wait_event_redis());
	/* Redis is told a moment after the bits are set */
	batch = buckets_begun();
	for (int i = 0; i < OPEN_TRIES && !buckets_are_open(batch); i++)
		fence_pause(OPEN_PAUSE_US, wait_event_redis());
	(void) many_ask(n, items, &get_question, NULL);
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
