/*
 * standby.c
 *	  Strong reads on a hot standby; see standby.h.
 *
 * Owns: the rule of doc/protocol.md, "Reading on a standby". A standby's row may be used if its transaction is the one that
 * the fence's stamp names and its version the fence's. Versions alone do not prove it: they restart when a table is
 * truncated, so an old row of a standby that lags may have a higher one than the fence. Nor does the stamp alone: another
 * history (a standby that got more than the one that was promoted) may use the same number of a transaction again.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "utils/builtins.h"

#include "coordinator.h"
#include "key.h"
#include "redis/library.h"
#include "row.h"
#include "settings.h"
#include "standby.h"

enum
{
	HELLO_OWNER = 4,
	HELLO_TIMELINE,
	HELLO_EPOCH,
	HELLO_ELEMENTS = 8
};

/* Whether the process that holds the fence was armed by this cluster on the timeline that is replayed here; in which epoch. */
static bool
same_history(const char *fence, uint32 *epoch_number)
{
	uint64		nonce;
	char		nonce_text[20];
	const char *argv[] = {"FCALL", "fence_hello", "0", setting_namespace, nonce_text};
	size_t		argvlen[lengthof(argv)];
	redisReply *hello;
	TimeLineID	timeline;
	bool		same;

	if (!pg_strong_random(&nonce, sizeof(nonce)))
		return false;
	snprintf(nonce_text, sizeof(nonce_text), "%016llx", (unsigned long long) nonce);
	for (int i = 0; i < (int) lengthof(argv); i++)
		argvlen[i] = strlen(argv[i]);
	hello = coordinator_ask(fence, lengthof(argv), argv, argvlen);
	if (hello == NULL)
		return false;
	(void) GetXLogReplayRecPtr(&timeline);
	same = hello->type == REDIS_REPLY_ARRAY && hello->elements == HELLO_ELEMENTS;
	for (size_t i = 0; same && i < hello->elements; i++)
		same = hello->element[i]->type == REDIS_REPLY_STRING;
	same = same && strcmp(hello->element[HELLO_OWNER]->str, library_owner()) == 0 &&
		strtoul(hello->element[HELLO_TIMELINE]->str, NULL, 10) == timeline;
	if (same)
		*epoch_number = (uint32) strtoul(hello->element[HELLO_EPOCH]->str, NULL, 10);
	freeReplyObject(hello);
	return same;
}

bool
standby_ask(const Domain *domain, const char *key, FenceStatus *status)
{
	char	   *fence = key_fence_name(domain, key);
	uint32		epoch_number;

	/* a token begins with its epoch's number: had another epoch begun between the two answers, it would be another one */
	return same_history(fence, &epoch_number) && audit_ask(fence, status) &&
		status->armed && status->pending == 0 && strtoul(status->token, NULL, 10) == epoch_number &&
		status->fence_version != NO_VERSION && status->stamp[0] != '\0';
}

bool
standby_row(const Domain *domain, const char *key, const FenceStatus *status, Snapshot snapshot, Datum *jsonb)
{
	int64		version;
	FullTransactionId writer;

	return row_as_jsonb(domain, key, snapshot, jsonb, &version, &writer) &&
		version == status->fence_version &&
		U64FromFullTransactionId(writer) == strtoull(status->stamp, NULL, 10);
}
