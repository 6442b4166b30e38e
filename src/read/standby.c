/*
 * read/standby.c
 *	  Strong reads on a hot standby; see standby.h.
 *
 * Owns: the rule of doc/protocol.md, "Reading on a standby". A standby's row may be used if the transaction that wrote it is the
 * one that committed what is newest, and nothing is pending. Redis knows that one as long as nothing else has ended since.
 * Versions prove nothing: they restart when a table is truncated, so an old row of a standby that lags may have a higher one.
 * Nor does the stamp alone: another history (a standby that got more than the one that was promoted) may use the same
 * number of a transaction again.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"

#include "domain/row.h"
#include "read/many.h"
#include "read/standby.h"
#include "redis/library.h"
#include "send/coordinator.h"

/* Whether the process that holds the fence was armed by this cluster on the timeline that is replayed here; in which epoch. */
static bool
same_history(const char *fence, uint32 *epoch)
{
	uint64		nonce;
	char		nonce_text[20];
	Call		call;
	redisReply *reply;
	Hello		hello = {0};
	TimeLineID	replayed;
	bool		same;

	if (!pg_strong_random(&nonce, sizeof(nonce)))
		return false;
	snprintf(nonce_text, sizeof(nonce_text), "%016llx", (unsigned long long) nonce);
	call_hello(&call, nonce_text);
	if (!coordinator_ask(fence, 1, &call, &reply))
		return false;
	(void) GetXLogReplayRecPtr(&replayed);
	same = calls_hello(reply, &hello) && strcmp(hello.owner, library_owner()) == 0 && hello.timeline == replayed;
	*epoch = (uint32) strtoul(hello.epoch, NULL, 10);
	freeReplyObject(reply);
	return same;
}

bool
standby_ask(const char *fence, FenceStatus *status)
{
	uint32		epoch;

	/* a token begins with its epoch's number: had another epoch begun between the two answers, it would be another one */
	return same_history(fence, &epoch) && audit_ask(fence, status) &&
		status->armed && status->pending == 0 && status->recent[0] != '\0' &&
		strtoul(status->permit, NULL, 10) == epoch;
}

bool
standby_row(ManyItem *item, const FenceStatus *status, Snapshot snapshot)
{
	FullTransactionId writer;

	item->found = row_as_jsonb(item->domain, item->key, snapshot, &item->row, &item->version, &writer);
	return item->found && U64FromFullTransactionId(writer) == strtoull(status->recent, NULL, 10);
}
