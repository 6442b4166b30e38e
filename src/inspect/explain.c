/*
 * inspect/explain.c
 *	  fence.explain: in words, why a key is a hit, a miss, pending or unarmed right now.
 *
 * Owns: the sentences that it returns.
 * Locks: fence_shared->lock, for copies only; those of a SELECT on the table, and on fence.tombstone and fence.floor.
 * Never: changes anything in Redis. So it does not ask as a reader does, because a reader with a miss makes other
 * readers wait until it has put the value.
 *
 * It does not read everything in one snapshot. If a transaction is writing the key, one line may be newer than the
 * line before.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/buckets.h"
#include "base/shared.h"
#include "base/stamp.h"
#include "base/utf8.h"
#include "base/word.h"
#include "domain/key.h"
#include "domain/sql_function.h"
#include "domain/tombstone.h"
#include "read/audit.h"
#include "read/reader.h"
#include "send/coordinator.h"

PG_FUNCTION_INFO_V1(fence_explain);

/* The key that is explained, and the result set to which lines are added */
typedef struct Explanation
{
	ReturnSetInfo *rsinfo;
	const Domain *domain;
	const char *key;
	char	   *fence;
	FenceStatus status;
} Explanation;

static void
put_line(Explanation *e, const char *topic, const char *finding)
{
	Datum		values[2] = {CStringGetTextDatum(topic), CStringGetTextDatum(finding)};
	bool		nulls[2] = {false};

	tuplestore_putvalues(e->rsinfo->setResult, e->rsinfo->setDesc, values, nulls);
}

#define say(e, topic, ...) put_line(e, topic, psprintf(__VA_ARGS__))

static char *
seconds(int64 ms)
{
	return psprintf("%lld.%01lld s", (long long) ms / 1000, (long long) (ms % 1000) / 100);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The answer that a reader would get
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether there is something to cache: a row, or a group, which always has a version. */
static bool
is_there(const Explanation *e)
{
	return e->status.is_row || (e->domain->version_aside && e->status.row_version != NO_VERSION);
}

static void
explain_answer(Explanation *e)
{
	const FenceStatus *status = &e->status;

	if (!status->armed && status->token[0] == '\0')
		say(e, "answer", "unarmed: Redis does not know the domain yet; a worker announces it a moment after attach or a new epoch");
	else if (!status->armed)
		say(e, "answer", "unarmed: Redis has no lease at the moment, or the attachment is not announced yet");
	else if (status->pending > 0)
		say(e, "answer", "pending: %d reservation(s) are not settled; readers go to PostgreSQL until they are", status->pending);
	else if (status->payload)
		say(e, "answer", "hit: readers get the cached value, version " INT64_FORMAT, status->fence_version);
	else if (status->fence_version != NO_VERSION)
		say(e, "answer", "miss: the fence is current, but vouches only for values beside it");
	else if (domain_has_versions(e->domain) && !is_there(e) && !e->domain->cache_absent)
		say(e, "answer", "miss: there is no such row; readers store nothing");
	else if (bucket_of(e->fence) != ALWAYS_RESERVED && !bucket_is_set(bucket_of(e->fence)))
		say(e, "answer", "miss: nothing current is cached, and the key's bucket is closed; the put of the next reader is refused, and opens it");
	else
		say(e, "answer", "miss: nothing current is cached; the next reader reads the row and puts it");
}

/* -----------------------------------------------------------------------------------------------------------------
 * What it rests on
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
explain_state(Explanation *e)
{
	FenceStateNow now;
	int64		left;

	fence_state_now(&now);
	left = (int64) pg_atomic_read_u64(&fence_shared->lease_bound) - fence_clock();
	if (WORD_STATE(now.word) != FENCE_OPEN)
		say(e, "answer", "unarmed: fences are %s; readers go to PostgreSQL", fence_state_name(now.word));
	say(e, "state", "%s since %s: %s", fence_state_name(now.word), timestamptz_to_str(now.since), now.reason);
	say(e, "epoch", "%s", WORD_EPOCH(now.word) ? now.epoch : "none yet");
	if (left > 0)
		say(e, "lease", "Redis may answer for at most %s more, unless it is renewed", seconds(left / 1000));
	else
		say(e, "lease", "is over");
}

static void
explain_fence(Explanation *e)
{
	const FenceStatus *status = &e->status;

	if (status->header == NULL)
		say(e, "fence", "%s does not exist, as after every write until a reader puts it", e->fence);
	else if (status->fence_version == NO_VERSION)
		say(e, "fence", "%s is not current: it holds \"%s\", and the domain's token is %s", e->fence, utf8_to_display(status->header),
			*status->token ? utf8_to_display(status->token) : "not known");
	else if (*status->stamp)
		say(e, "fence", "%s has version " INT64_FORMAT " under the current token %s, stored by transaction %s", e->fence,
			status->fence_version, utf8_to_display(status->token), utf8_to_display(status->stamp));
	else
		say(e, "fence", "%s has version " INT64_FORMAT " under the current token %s, put by a reader", e->fence,
			status->fence_version, utf8_to_display(status->token));
}

/* Why a put may be refused although nothing is pending, and why a write may ask Redis nothing. */
static void
explain_bucket(Explanation *e)
{
	int			bucket = bucket_of(e->fence);
	BucketsNow	now;

	if (bucket == ALWAYS_RESERVED)
		return;
	buckets_now(&now);
	if (bucket_is_held(bucket))
		say(e, "bucket", "%d of %d is kept closed by a large transaction; nothing in it can be put until that has ended", bucket, now.buckets);
	else if (!bucket_is_set(bucket))
		say(e, "bucket", "%d of %d is closed: Redis has nothing of it, and writers reserve nothing in it", bucket, now.buckets);
	else if (now.waits_since != 0)
		say(e, "bucket", "%d of %d was wanted: writers reserve; an opening of buckets has waited for %s for transactions that commit",
			bucket, now.buckets, seconds((fence_clock() - now.waits_since) / 1000));
	else
		say(e, "bucket", "%d of %d was opened: readers put, and writers reserve", bucket, now.buckets);
}

/* How the row relates to the fence, which has a line of its own */
static const char *const relations[RELATION_COUNT] = {
	[RELATION_EQUAL] = "as the fence says",
	[RELATION_BEHIND] = "the fence is older",
	[RELATION_AHEAD] = "the fence is newer",
	[RELATION_PAYLOAD] = "the fence has the same version, but the cached value differs",
	[RELATION_PENDING] = "not compared while a reservation is pending",
	[RELATION_MISSING] = "there is no current fence to compare with",
};

static void
explain_row(Explanation *e)
{
	const char *relation = relations[e->status.relation];

	if (!domain_has_versions(e->domain))
		say(e, "row", "the domain has no table with versions to compare with");
	else if (e->status.row_version == NO_VERSION)
		say(e, "row", "does not exist and was not deleted within pgcache_fence.tombstone_retention");
	else if (is_there(e))
		say(e, "row", "is there, with version " INT64_FORMAT "; %s", e->status.row_version, relation);
	else
		say(e, "row", "was deleted, at version " INT64_FORMAT "; %s", e->status.row_version, relation);
}

/*
 * Runs a query, with `number` as $1 and with the caller's rights. Returns the text of its first column; NULL: no row.
 */
static char *
look_up(const char *sql, Oid type, Datum number)
{
	char	   *text = NULL;
	MemoryContext caller = CurrentMemoryContext;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute_with_args(sql, 1, &type, &number, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not look up the owner of a reservation");
	if (SPI_processed > 0)
	{
		text = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
		text = text ? MemoryContextStrdup(caller, text) : NULL;
	}
	SPI_finish();
	return text;
}

/*
 * Who holds a reservation, in words. For a running transaction this tells pid and statement, for a prepared one its
 * gid, for any other its fate.
 */
static char *
owner_of(const char *stamp)
{
	int			pid;
	StampFate	fate = fence_stamp_fate(stamp, &pid);
	char	   *text;

	if (fate != FATE_IN_PROGRESS && fence_stamp_is_detached(stamp, NULL))
		return pstrdup("it is detached: fence.commit or fence.abort with its token ends it, or else the end of its lease");
	if (fate != FATE_IN_PROGRESS)
		return psprintf("it is %s: the patrol settles it", fence_fate_name(fate));
	if (pid == 0)
	{
		text = look_up("SELECT gid FROM pg_catalog.pg_prepared_xacts"
					   " WHERE transaction::pg_catalog.text"
					   " OPERATOR(pg_catalog.=) ($1 OPERATOR(pg_catalog.%) 4294967296)::pg_catalog.text", INT8OID,
					   Int64GetDatum(strtoll(stamp, NULL, 10)));
		return text ? psprintf("prepared as '%s': COMMIT PREPARED or ROLLBACK PREPARED ends it", text) :
			pstrdup("prepared, or just ending");
	}
	text = look_up("SELECT pg_catalog.concat_ws(', ', state, query) FROM pg_catalog.pg_stat_activity"
				   " WHERE pid OPERATOR(pg_catalog.=) $1",
				   INT4OID, Int32GetDatum(pid));
	return psprintf("in progress in process %d%s%s", pid, text ? ": " : "", text ? text : "");
}

static void
explain_reservations(Explanation *e)
{
	ListCell   *cell;

	if (e->status.reservations == NIL)
		say(e, "reservation", "none");
	foreach(cell, e->status.reservations)
	{
		ListedReservation *r = lfirst(cell);

		say(e, "reservation", "of %s, for at least %s, by transaction %s, %s", r->domain ? "the whole domain" : "this key",
			seconds(r->age_ms), utf8_to_display(r->stamp), owner_of(r->stamp));
	}
}

static void
explain_repair(Explanation *e)
{
	FenceRepair last;

	if (audit_last_repair(e->fence, &last))
		say(e, "repair", "last at %s: %s", timestamptz_to_str(last.at), last.result);
	else
		say(e, "repair", "none that is remembered");
}

Datum
fence_explain(PG_FUNCTION_ARGS)
{
	Explanation e = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};
	Domain	   *domain = domain_argument(fcinfo, 0);

	e.domain = domain;
	e.key = key_argument(fcinfo, 1, domain);
	e.fence = key_fence_name(domain, e.key);
	reader_require(domain);
	InitMaterializedSRF(fcinfo, 0);
	if (WORD_STATE(fence_word_expire()) != FENCE_OPEN)
	{
		/* Do not ask Redis, because it may hang. */
		explain_state(&e);
		explain_repair(&e);
		return (Datum) 0;
	}
	if (audit_key(domain, e.key, &e.status))
		explain_answer(&e);
	else
		say(&e, "answer", "unavailable: %s", coordinator_problem());
	explain_state(&e);
	if (e.status.asked)
	{
		explain_fence(&e);
		explain_bucket(&e);
		explain_row(&e);
		explain_reservations(&e);
	}
	explain_repair(&e);
	return (Datum) 0;
}
