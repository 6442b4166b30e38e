/*
 * read/audit.c
 *	  Compares a fence with its row, and repairs it; see audit.h.
 *
 * Owns: the audit of committed fences (doc/protocol.md, "The patrol"), and the list of the last repairs in shared
 * memory.
 * Locks: fence_shared->lock, for that list; AccessShareLock on the table that it compares, and on fence.tombstone and
 * fence.floor.
 *
 * The audit reads the fence first, and then the row in a snapshot that it takes afterwards. So a current fence
 * without reservations may be older than the row only if a transaction has committed in between. A repair removes a
 * fence that differs, and the next reader puts it again.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/metrics.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/key.h"
#include "domain/row.h"
#include "domain/tombstone.h"
#include "read/audit.h"
#include "send/coordinator.h"

#define ASKED_AT_ONCE	50		/* fences in one round trip; their payloads are in memory together */

const char *
audit_relation_name(FenceRelation relation)
{
	static const char *const names[] = {"equal", "fence_behind_db", "fence_ahead_db", "payload_differs", "pending", "missing"};

	return names[relation];
}

static List *
listed_reservations(const redisReply *reply, int n)
{
	List	   *list = NIL;

	for (int i = 0; i < n; i++)
	{
		ListedReservation *r = palloc0(sizeof(ListedReservation));
		const char *stamp;

		calls_reservation(reply, i, &stamp, &r->domain, &r->age_ms);
		r->stamp = pstrdup(stamp);
		list = lappend(list, r);
	}
	return list;
}

static void
take_fence(FenceStatus *status, const redisReply *fence)
{
	Record		record;

	if (fence->type != REDIS_REPLY_STRING)
		return;
	status->header = pnstrdup(fence->str, strcspn(fence->str, "\n"));
	if (!status->armed || !calls_record(fence->str, fence->len, &record) || !calls_is_current(&record, status->permit))
		return;
	status->fence_version = record.version;
	status->stamp = pnstrdup(record.stamp, record.stamp_len);
	status->payload = record.payload ? utf8_copy(record.payload, record.payload_len) : NULL;
	status->payload_len = record.payload_len;
}

/* Notes why Redis' answer cannot be used, so that coordinator_problem() tells the caller. */
static void
note_refusal(const redisReply *fence, const redisReply *told)
{
	const redisReply *error = fence->type == REDIS_REPLY_ERROR ? fence : told;
	char		why[REASON_LEN] = "Redis gave an answer that is none to this question";

	if (error->type == REDIS_REPLY_ERROR)
		calls_refusal(error, why, sizeof(why));
	link_note(why);
}

/* Takes the two replies about one fence. False: they are no answer. */
static bool
take_replies(FenceStatus *status, const redisReply *fence, const redisReply *state)
{
	StatusReply told;

	status->asked = fence->type == REDIS_REPLY_ARRAY && fence->elements == 1 && calls_status(state, &told);
	if (status->asked)
	{
		status->armed = told.armed;
		status->permit = pstrdup(told.permit);
		status->token = pnstrdup(told.permit, calls_token_len(told.permit));
		status->pending = told.pending;
		status->reservations = listed_reservations(state, told.pending);
		take_fence(status, fence->element[0]);
	}
	else if (!coordinator_is_redirection(fence) && !coordinator_is_redirection(state))
	{
		note_refusal(fence, state);
		return false;
	}
	return true;
}

/* Asks one process about fences that it holds, in one round trip. */
static bool
ask_process(int n, const char **fences, FenceStatus **statuses)
{
	Call	   *calls = palloc(sizeof(Call) * 2 * n);
	redisReply **replies = palloc(sizeof(redisReply *) * 2 * n);
	bool		answered;
	bool		ok;

	for (int i = 0; i < n; i++)
	{
		call_mget(&calls[2 * i], 1, &fences[i]);
		call_status(&calls[2 * i + 1], fences[i]);
	}
	ok = answered = coordinator_ask(fences[0], 2 * n, calls, replies);
	for (int i = 0; ok && i < n; i++)
		ok = take_replies(statuses[i], replies[2 * i], replies[2 * i + 1]);
	for (int i = 0; answered && i < 2 * n; i++)
		freeReplyObject(replies[i]);
	pfree(calls);
	pfree(replies);
	return ok;
}

/*
 * Asks about at most ASKED_AT_ONCE fences, in one round trip for each process that has some of them. False: Redis could
 * not be asked, and coordinator_problem tells why.
 */
static bool
ask(int n, const char **fences, FenceStatus *statuses)
{
	int			nodes[ASKED_AT_ONCE];

	for (int i = 0; i < n; i++)
	{
		statuses[i] = (FenceStatus) {.permit = "", .token = "", .fence_version = NO_VERSION, .row_version = NO_VERSION};
		nodes[i] = fence_node_of(fences[i]);
	}
	for (int first = 0; first < n; first++)
	{
		const char *some[ASKED_AT_ONCE];
		FenceStatus *theirs[ASKED_AT_ONCE];
		int			nsome = 0;
		int			node = nodes[first];

		/*
		 * In a slot of nobody no reader may use a fence, because no armed process has that slot. There is none to
		 * report, then.
		 */
		for (int i = first; node != SLOT_NOBODY && i < n; i++)
		{
			if (nodes[i] != node)
				continue;
			some[nsome] = fences[i];
			theirs[nsome++] = &statuses[i];
			nodes[i] = SLOT_NOBODY;
		}
		if (nsome > 0 && !ask_process(nsome, some, theirs))
			return false;
	}
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Comparing
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether the fence differs from its row in a way that a repair corrects. */
static bool
differs(FenceRelation relation)
{
	return relation == RELATION_BEHIND || relation == RELATION_AHEAD || relation == RELATION_PAYLOAD;
}

/* Whether both are JSON objects with the same names. */
static bool
same_names(JsonbContainer *a, JsonbContainer *b)
{
	JsonbIterator *names;
	JsonbValue	name;
	JsonbIteratorToken token;

	if (!JsonContainerIsObject(a) || !JsonContainerIsObject(b) || JsonContainerSize(a) != JsonContainerSize(b))
		return false;
	names = JsonbIteratorInit(a);
	while ((token = JsonbIteratorNext(&names, &name, true)) != WJB_DONE)
	{
		JsonbValue	value;

		if (token == WJB_KEY && getKeyJsonValueFromContainer(b, name.val.string.val, name.val.string.len, &value) == NULL)
			return false;
	}
	return true;
}

static bool
row_now(const Domain *domain, const char *key, Datum *row, int64 *version)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		found = row_as_jsonb(domain, key, snapshot, row, version, NULL);

	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Whether the payload has the form in which this extension writes the domain's rows, but differs from the row that
 * has the fence's version now. Clients may put payloads of another form; the audit does not judge these.
 */
static bool
payload_differs(const Domain *domain, const char *key, const FenceStatus *status)
{
	Datum		cached;
	Datum		row;
	int64		version;

	return status->is_row && domain->scope != SCOPE_GROUP && status->payload &&
		row_value_as_jsonb(status->payload, status->payload_len, &cached) &&
		row_now(domain, key, &row, &version) && version == status->fence_version &&
		same_names(&DatumGetJsonbP(cached)->root, &DatumGetJsonbP(row)->root) &&
		compareJsonbContainers(&DatumGetJsonbP(cached)->root, &DatumGetJsonbP(row)->root) != 0;
}

/*
 * How fence and row relate. While anything is pending, no reader trusts the fence, so a difference is not an anomaly
 * then.
 */
static FenceRelation
relation_of(const Domain *domain, const char *key, const FenceStatus *status)
{
	Datum		row;
	int64		version;

	if (status->pending > 0)
		return RELATION_PENDING;
	if (status->fence_version == NO_VERSION)
		return RELATION_MISSING;
	/* Do not compare versions here: the tombstone that gave the fence its version may have been pruned. */
	if (domain->cache_absent && status->payload && row_value_is_absent(status->payload, status->payload_len))
		return row_now(domain, key, &row, &version) ? RELATION_BEHIND : RELATION_EQUAL;
	if (status->fence_version == status->row_version)
		return payload_differs(domain, key, status) ? RELATION_PAYLOAD : RELATION_EQUAL;
	return status->fence_version < status->row_version ? RELATION_BEHIND : RELATION_AHEAD;
}

/* Compares what Redis has said with the row, in a snapshot taken now. */
static void
compare(const Domain *domain, const char *key, FenceStatus *status)
{
	status->row_version = row_current_version(domain, key, &status->is_row);
	status->relation = relation_of(domain, key, status);
}

bool
audit_key(const Domain *domain, const char *key, FenceStatus *status)
{
	const char *fence = key_fence_name(domain, key);

	for (int look = 0; look < 2; look++)
	{
		if (!ask(1, &fence, status))
			return false;
		compare(domain, key, status);
		if (!differs(status->relation))
			break;
	}
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Repairing
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Warns of a fence that differed from its row at the moment of the repair, although nothing was pending. */
static void
warn_of_broken_promise(const Domain *domain, const char *key, const FenceStatus *status)
{
	if (status->relation == RELATION_BEHIND)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the fence of key \"%s\" in domain \"%s\" was older than its row, although no reservation was pending",
						key, domain->name),
				 errdetail("The fence had version " INT64_FORMAT ", the row has " INT64_FORMAT ".",
						   status->fence_version, status->row_version),
				 errhint("Look for writes that bypassed the triggers (disabled triggers, a restored table), for a client that puts"
						 " what it has read on another server than this one, or for a Redis that fence.nodes does not show."
						 " Please report it.")));
	else if (status->relation == RELATION_PAYLOAD)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the cached value of key \"%s\" in domain \"%s\" differed from its row, although both had the same version",
						key, domain->name),
				 errdetail("Both have version " INT64_FORMAT ".", status->row_version),
				 errhint("Look for writes that bypassed the triggers, and for clients that put other values than they have read, or that read"
						 " another server than this one.")));
}

static const char *
try_repair(const Domain *domain, const char *key)
{
	FenceStatus status;
	FenceWord	word = fence_word();
	char	   *fence = key_fence_name(domain, key);
	Call		call;
	redisReply *reply;
	bool		removed;

	if (WORD_STATE(word) != FENCE_OPEN)
		return "unarmed";
	if (!audit_key(domain, key, &status))
		return "unavailable";
	if (!domain_has_versions(domain))
		return "unchanged";
	if (status.relation == RELATION_PENDING)
		return "pending";
	if (!differs(status.relation))
		return "unchanged";
	call_remove(&call, WORD_EPOCH(word), fence, status.header);
	if (!coordinator_ask(fence, 1, &call, &reply))
		return "unavailable";
	removed = calls_granted(reply) > 0;
	freeReplyObject(reply);
	if (removed && fence_word() == word)
		warn_of_broken_promise(domain, key, &status);
	return removed ? "repaired" : "unchanged";
}

static uint64
fence_hash(const char *fence)
{
	return hash_bytes_extended((const unsigned char *) fence, strlen(fence), 0);
}

const char *
audit_repair(const Domain *domain, const char *key)
{
	const char *result = try_repair(domain, key);
	char	   *fence = key_fence_name(domain, key);
	FenceRepair *repair;

	metrics_add_named(domain->metrics, FAMILY_REPAIR, result, 1);
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	repair = &fence_shared->repairs[fence_shared->nrepairs++ % MAX_REPAIRS];
	repair->fence = fence_hash(fence);
	repair->at = GetCurrentTimestamp();
	strlcpy(repair->result, result, sizeof(repair->result));
	LWLockRelease(fence_shared->lock);
	pfree(fence);
	return result;
}

bool
audit_last_repair(const char *fence, FenceRepair *repair)
{
	uint64		hash = fence_hash(fence);
	bool		found = false;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	for (uint32 i = 1; i <= Min(fence_shared->nrepairs, MAX_REPAIRS) && !found; i++)
	{
		*repair = fence_shared->repairs[(fence_shared->nrepairs - i) % MAX_REPAIRS];
		found = repair->fence == hash;
	}
	LWLockRelease(fence_shared->lock);
	return found;
}

/*
 * Compares the fences of at most ASKED_AT_ONCE keys, and counts the results. A fence that differs is looked at once more
 * by itself, and repaired if asked to. So is each key if there is no answer about all of them, because large payloads may
 * come in time only one by one.
 */
static void
audit_some(const Domain *domain, int n, char **keys, bool repair, int64 counts[RELATION_COUNT])
{
	const char *fences[ASKED_AT_ONCE];
	FenceStatus statuses[ASKED_AT_ONCE];
	bool		together;

	for (int i = 0; i < n; i++)
		fences[i] = key_fence_name(domain, keys[i]);
	together = ask(n, fences, statuses);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (together)
			compare(domain, keys[i], &statuses[i]);
		if ((!together || differs(statuses[i].relation)) && !audit_key(domain, keys[i], &statuses[i]))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not ask Redis for a fence: %s", coordinator_problem())));
		metrics_add_named(domain->metrics, FAMILY_COMPARE, audit_relation_name(statuses[i].relation), 1);
		if (repair && differs(statuses[i].relation))
			(void) audit_repair(domain, keys[i]);
		counts[statuses[i].relation]++;
	}
}

void
audit_sample(const Domain *domain, double fraction, int most, bool repair, int64 counts[RELATION_COUNT])
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;		/* for the keys of one round trip, because payloads may be large */
	List	   *keys;

	if (!domain_has_versions(domain))
		return;
	keys = row_sample_keys(domain, fraction, most);
	if (fraction >= 1.0)
		keys = list_concat(keys, tombstone_keys(domain->id));
	context = AllocSetContextCreate(caller, "pgcache_fence audit", ALLOCSET_DEFAULT_SIZES);
	for (int next = 0; next < list_length(keys);)
	{
		char	   *some[ASKED_AT_ONCE];
		int			n = 0;

		while (n < ASKED_AT_ONCE && next < list_length(keys))
			some[n++] = list_nth(keys, next++);
		MemoryContextSwitchTo(context);
		audit_some(domain, n, some, repair, counts);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	list_free_deep(keys);
}
