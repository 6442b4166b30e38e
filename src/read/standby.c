/*
 * read/standby.c
 *	  Strong reads on a hot standby; see standby.h.
 *
 * Owns: the rule of doc/protocol.md, "Reading on a standby". A reader may use a standby's row if the transaction that
 * wrote it is the last one that has committed this row, and nothing is pending. Redis remembers that transaction
 * until the row is reserved again.
 * Locks: those of a SELECT on the table.
 *
 * The row's version proves nothing. Versions restart when a table is truncated, so an old row on a standby that lags
 * may have a higher version than the newest row. The stamp alone proves nothing either. On another timeline (of a
 * standby that had received more than the one that was promoted) the same transaction ID may belong to another
 * transaction.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"

#include "domain/row.h"
#include "read/many.h"
#include "read/standby.h"
#include "redis/library.h"
#include "send/coordinator.h"

/*
 * Whether this cluster armed the process that has the fence, on the timeline that this standby replays. Sets the
 * epoch.
 */
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

	/*
	 * A token begins with the number of its epoch. So compare it, in case that another epoch has begun between the
	 * two answers.
	 */
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
