/*
 * effects/effect_call.c
 *	  Judges Redis' answer to the request for an effect, and turns a refusal into an error for users.
 */
#include "postgres.h"

#include "base/utf8.h"
#include "effects/effect_call.h"

bool
effect_says(const EffectAnswer *answer, const char *word)
{
	return answer->n > 0 && strcmp(answer->words[0], word) == 0;
}

void
effect_raise_refused(const char *key_in_redis, const EffectAnswer *answer)
{
	const char *key = utf8_to_display(key_in_redis);

	if (effect_says(answer, "busy"))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another transaction is about to change key \"%s\"", key),
				 errhint("Try again when it has ended.")));
	if (effect_says(answer, "mixed"))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this transaction already has an effect of another kind on key \"%s\"", key)));
	if (effect_says(answer, "inexact"))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("counter \"%s\" does not have an integer that Redis can count exactly", key),
				 errdetail("Counters count from -" INT64_FORMAT " to " INT64_FORMAT ".", EFFECT_COUNT_MAX, EFFECT_COUNT_MAX)));
	if (effect_says(answer, "type") && answer->n > 1)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("key \"%s\" has a value of another type", utf8_to_display(answer->words[1]))));
	if (effect_says(answer, "none"))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("Redis has lost this transaction's hold on idempotency key \"%s\"", key),
				 errhint("Try the transaction again.")));
	elog(ERROR, "Redis gave a malformed answer about an effect");
}
