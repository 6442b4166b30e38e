/*
 * read/row_version.c
 *	  The version of a row as a put names it: "<epoch>.<version>" (doc/protocol.md, "Reading", rule V).
 *
 * Owns: the decision whether this server may say that it was read. A primary that a standby has replaced still has the
 * old rows, and its readers get permits from a Redis that the new primary has armed.
 * Locks: none.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "base/shared.h"
#include "base/word.h"
#include "read/row_version.h"

PG_FUNCTION_INFO_V1(fence_row_version);

/* Writes the short name of the epoch in which this server is OPEN. False: it is not. */
static bool
own_epoch(char epoch[EPOCH_LEN])
{
	FenceWord	word = fence_word_expire();

	return !RecoveryInProgress() && WORD_STATE(word) == FENCE_OPEN && fence_epoch_short(word, epoch);
}

bool
row_version_word(char word[ROW_VERSION_LEN], const char *permit, int64 version)
{
	char		epoch[EPOCH_LEN];

	if (RecoveryInProgress())
		snprintf(epoch, EPOCH_LEN, "%.*s", (int) Min(strcspn(permit, "."), EPOCH_LEN - 1), permit);
	else if (!own_epoch(epoch))
		return false;
	snprintf(word, ROW_VERSION_LEN, "%s." INT64_FORMAT, epoch, version);
	return true;
}

bool
row_version_may_store(const char *token)
{
	char		epoch[EPOCH_LEN];
	size_t		len = strcspn(token, ".");

	return own_epoch(epoch) && strlen(epoch) == len && memcmp(epoch, token, len) == 0;
}

Datum
fence_row_version(PG_FUNCTION_ARGS)
{
	char		epoch[EPOCH_LEN];

	/* What the own transaction has written is not committed, and others must not get it. Redis knows no negative versions. */
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()) || PG_GETARG_INT64(0) < 0 || !own_epoch(epoch))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(psprintf("%s." INT64_FORMAT, epoch, PG_GETARG_INT64(0))));
}
