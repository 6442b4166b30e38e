/*
 * audit.c
 *	  Comparing a fence with its row, and repairing it; see audit.h.
 *
 * Owns: the audit of committed fences (doc/protocol.md, "Patrol"). The fence is read first, then the row in a snapshot
 * taken afterwards: a trusted fence without reservations may be behind that row only if a commit went by in between.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "audit.h"
#include "coordinator.h"
#include "key.h"
#include "metrics.h"
#include "progress.h"
#include "row.h"
#include "shared.h"
#include "tombstone.h"
#include "utf8.h"

const char *
audit_relation_name(FenceRelation relation)
{
	static const char *const names[] = {"equal", "fence_behind_db", "fence_ahead_db", "pending_ahead_db", "missing"};

	return names[relation];
}

static redisReply *
ask(const char *function, const char *fence, int nargs, const char **args)
{
	const char *argv[8] = {"FCALL", function, "1", fence};
	size_t		argvlen[8];

	for (int i = 0; i < nargs; i++)
		argv[4 + i] = args[i];
	for (int i = 0; i < 4 + nargs; i++)
		argvlen[i] = strlen(argv[i]);
	return coordinator_ask(fence, 4 + nargs, argv, argvlen);
}

static int64
version_or_none(const char *text)
{
	return *text ? strtoll(text, NULL, 10) : NO_VERSION;
}

/* Three elements: stamp, version ('': of the whole domain), age. */
static void
note_reservation(FenceStatus *status, redisReply *const *element)
{
	ListedReservation *r = palloc0(sizeof(ListedReservation));

	r->stamp = pstrdup(element[0]->str);
	r->version = version_or_none(element[1]->str);
	r->domain = r->version == NO_VERSION;
	r->age_ms = strtoll(element[2]->str, NULL, 10);
	status->reservations = lappend(status->reservations, r);
	status->highest_pending = Max(status->highest_pending, r->version);
}

bool
audit_ask(const char *fence, FenceStatus *status)
{
	redisReply *reply;
	bool		ok;

	/* who holds the slot was not armed: as far as anybody may know there is no fence */
	*status = (FenceStatus) {.fence_version = NO_VERSION, .row_version = NO_VERSION, .highest_pending = NO_VERSION};
	if (fence_node_of(fence) == SLOT_NOBODY)
		return true;
	reply = ask("fence_status", fence, 0, NULL);
	if (reply == NULL)
		return false;
	if (coordinator_is_redirection(reply))
	{
		freeReplyObject(reply);
		return true;
	}
	ok = reply->type == REDIS_REPLY_ARRAY && reply->elements >= 5 && (reply->elements - 5) % 3 == 0;
	for (size_t i = 0; ok && i < reply->elements; i++)
		ok = reply->element[i]->type == REDIS_REPLY_STRING;
	if (ok)
	{
		status->asked = true;
		status->armed = strcmp(reply->element[0]->str, "armed") == 0;
		strlcpy(status->token, utf8_to_display(reply->element[1]->str), sizeof(status->token));
		status->fence_version = version_or_none(reply->element[2]->str);
		strlcpy(status->stamp, status->fence_version != NO_VERSION ? utf8_to_display(reply->element[3]->str) : "", sizeof(status->stamp));
		status->ticket = status->fence_version == NO_VERSION && reply->element[3]->len > 0;
		status->pending = atoi(reply->element[4]->str);
		for (size_t i = 5; i < reply->elements; i += 3)
			note_reservation(status, reply->element + i);
	}
	freeReplyObject(reply);
	return ok;
}

/* While anything is pending no reader trusts the fence: then it is no anomaly that it differs from the row. */
static FenceRelation
relation_of(const FenceStatus *status)
{
	if (status->highest_pending > status->row_version)
		return RELATION_PENDING_AHEAD;
	if (status->fence_version == NO_VERSION)
		return RELATION_MISSING;
	if (status->fence_version == status->row_version)
		return RELATION_EQUAL;
	if (status->pending > 0)
		return RELATION_PENDING_AHEAD;
	return status->fence_version < status->row_version ? RELATION_FENCE_BEHIND : RELATION_FENCE_AHEAD;
}

bool
audit_key(const Domain *domain, const char *key, FenceStatus *status)
{
	char	   *fence = key_fence_name(domain, key);
	bool		ok = true;

	for (int look = 0; ok && look < 2; look++)
	{
		ok = audit_ask(fence, status);
		if (!ok)
			break;
		status->row_version = row_current_version(domain, key, &status->is_row);
		status->relation = relation_of(status);
		if (status->relation != RELATION_FENCE_BEHIND && status->relation != RELATION_FENCE_AHEAD)
			break;
	}
	pfree(fence);
	return ok;
}

static uint64
fence_hash(const char *fence)
{
	return hash_bytes_extended((const unsigned char *) fence, strlen(fence), 0);
}

static const char *
try_repair(const Domain *domain, const char *key)
{
	FenceStatus status;
	FenceWord	word = fence_word();
	char		epoch[EPOCH_LEN];
	char		seen[24] = "";
	char		row[24] = "";
	const char *args[] = {epoch, seen, row};
	redisReply *reply;
	const char *result = "unavailable";
	static const char *const results[] = {"repaired", "unchanged", "unarmed"};

	if (WORD_STATE(word) != FENCE_OPEN || !fence_epoch_text(word, epoch))
		return "unarmed";
	if (!audit_key(domain, key, &status))
		return "unavailable";
	if (!domain_has_versions(domain))
		return "unchanged";
	if (status.pending > 0)
		return "pending";
	if (status.relation != RELATION_FENCE_BEHIND && status.relation != RELATION_FENCE_AHEAD)
		return "unchanged";
	pg_lltoa(status.fence_version, seen);
	if (status.row_version != NO_VERSION)
		pg_lltoa(status.row_version, row);
	reply = ask("fence_repair", key_fence_name(domain, key), lengthof(args), args);
	if (reply == NULL)
		return "unavailable";
	for (int i = 0; i < (int) lengthof(results); i++)
		if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 && reply->element[0]->type == REDIS_REPLY_STRING &&
			strcmp(reply->element[0]->str, results[i]) == 0)
			result = results[i];
	freeReplyObject(reply);
	/* repaired: it was so with nothing pending, in the moment of the repair */
	if (status.relation == RELATION_FENCE_BEHIND && strcmp(result, "repaired") == 0 && fence_word() == word)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the fence of key \"%s\" in domain \"%s\" was behind its row with nothing pending: a promise was broken",
						key, domain->name),
				 errdetail("The fence had version " INT64_FORMAT ", the row has " INT64_FORMAT ".",
						   status.fence_version, status.row_version),
				 errhint("Look for writes that bypass the triggers (disabled triggers, a restored table) or a misplaced Redis; then report it.")));
	return result;
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

void
audit_sample(const Domain *domain, double fraction, int most, bool repair, int64 counts[RELATION_COUNT])
{
	List	   *keys;
	ListCell   *cell;

	if (!domain_has_versions(domain))
		return;
	keys = row_sample_keys(domain, fraction, most);
	if (fraction >= 1.0)
		keys = list_concat(keys, tombstone_keys(domain->id));
	progress_phase("comparing fences with rows", list_length(keys));
	foreach(cell, keys)
	{
		const char *key = lfirst(cell);
		FenceStatus status;

		CHECK_FOR_INTERRUPTS();
		if (!audit_key(domain, key, &status))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not ask Redis for a fence: %s", coordinator_problem())));
		counts[status.relation]++;
		metrics_add_named(domain->metrics, FAMILY_COMPARE, audit_relation_name(status.relation), 1);
		if (repair && (status.relation == RELATION_FENCE_BEHIND || status.relation == RELATION_FENCE_AHEAD))
			(void) audit_repair(domain, key);
		progress_done(1);
	}
	list_free_deep(keys);
}
