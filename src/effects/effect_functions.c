/*
 * effects/effect_functions.c
 *	  The SQL-callable functions of effects.
 *
 * Owns: what each kind of effect requests, and what the answers of that kind mean. The life cycle of effects is in
 * effects.c.
 * Locks: none.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "base/settings.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/sql_function.h"
#include "effects/effect_call.h"
#include "effects/effects.h"
#include "send/coordinator.h"

#define MAX_ENTRY		(1024 * 1024)	/* maximum bytes of an entry, a job, a result or a small value */
#define MAX_PUBLISHED	(256 * 1024 * 1024)

PG_FUNCTION_INFO_V1(fence_once);
PG_FUNCTION_INFO_V1(fence_once_result);
PG_FUNCTION_INFO_V1(fence_counter_add);
PG_FUNCTION_INFO_V1(fence_transfer);
PG_FUNCTION_INFO_V1(fence_compare_and_set);
PG_FUNCTION_INFO_V1(fence_take);
PG_FUNCTION_INFO_V1(fence_take_and_extend);
PG_FUNCTION_INFO_V1(fence_take_and_set);
PG_FUNCTION_INFO_V1(fence_hash_set);
PG_FUNCTION_INFO_V1(fence_hash_add);
PG_FUNCTION_INFO_V1(fence_publish);
PG_FUNCTION_INFO_V1(fence_publish_hash);
PG_FUNCTION_INFO_V1(fence_append);
PG_FUNCTION_INFO_V1(fence_append_all);
PG_FUNCTION_INFO_V1(fence_log_stamps);
PG_FUNCTION_INFO_V1(fence_enqueue);
PG_FUNCTION_INFO_V1(fence_commit_marker);
PG_FUNCTION_INFO_V1(fence_is_committed);

/* -----------------------------------------------------------------------------------------------------------------
 * Arguments and answers. From here on, keys and values are in UTF-8; error messages convert them.
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
require_not_null(FunctionCallInfo fcinfo, int n, const char *what)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
}

static const char *
key_argument_of(FunctionCallInfo fcinfo, int n)
{
	const char *key;

	require_not_null(fcinfo, n, "the key of an effect");
	key = utf8_of_string(text_to_cstring(PG_GETARG_TEXT_PP(n)));
	effect_require_key(key);
	return key;
}

static const char *
text_argument(FunctionCallInfo fcinfo, int n, const char *what, int most)
{
	const char *value;

	require_not_null(fcinfo, n, what);
	value = utf8_of_string(text_to_cstring(PG_GETARG_TEXT_PP(n)));
	if (strlen(value) > (size_t) most)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s must not have more than %d bytes", what, most)));
	return value;
}

/* The time to live as an argument for Redis. "" (for NULL): the key keeps its time to live. "0": the key gets none. */
static const char *
ttl_argument(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? "" : psprintf(INT64_FORMAT, ttl_ms_of(PG_GETARG_INTERVAL_P(n)));
}

/* The time to live from argument n, or the point in time from argument at. "" if both are NULL: the key keeps what it has. "0": no expiry. */
static const char *
expiry_argument(FunctionCallInfo fcinfo, int n, int at)
{
	TimestampTz when;

	if (PG_ARGISNULL(at))
		return ttl_argument(fcinfo, n);
	when = PG_GETARG_TIMESTAMPTZ(at);
	if (TIMESTAMP_IS_NOEND(when))
		return "0";
	/* since 1970; a time before that is over as well */
	when = TIMESTAMP_IS_NOBEGIN(when) ? 0 :
		when / 1000 + (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY * INT64CONST(1000);
	return psprintf("@" INT64_FORMAT, Max(when, 1));
}

static void
require_expiry(FunctionCallInfo fcinfo, int n, int at)
{
	if (PG_ARGISNULL(at))
		require_not_null(fcinfo, n, "a time to live");
}

static const char *
number_argument(FunctionCallInfo fcinfo, int n)
{
	int64		value;

	if (PG_ARGISNULL(n))
		return "";
	value = PG_GETARG_INT64(n);
	if (value < -EFFECT_COUNT_MAX || value > EFFECT_COUNT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("amounts and bounds of a counter must be from -" INT64_FORMAT " to " INT64_FORMAT, EFFECT_COUNT_MAX, EFFECT_COUNT_MAX)));
	return psprintf(INT64_FORMAT, value);
}

/* A word of Redis as text in this database's encoding. Raises 22021 if it is not valid text there. */
static char *
text_of(const EffectAnswer *answer, int i)
{
	return utf8_require_text(answer->words[i], answer->lens[i]);
}

static bool
durable_argument(FunctionCallInfo fcinfo, int n)
{
	return !PG_ARGISNULL(n) && PG_GETARG_BOOL(n);
}

/* Raises 22023 if one effect could not change both keys in one step. */
static void
require_same_place(const char *key, const char *other_key)
{
	int			process;

	shared_require();
	if (coordinator_place(key, &process) != coordinator_place(other_key, &process))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("keys \"%s\" and \"%s\" are not in the same hash slot", utf8_to_display(key), utf8_to_display(other_key)),
				 errhint("Give both keys the same hash tag, for example {tag}.")));
}

/*
 * Holds an effect of a kind for which Redis has no answer but "held". False: Redis could not be reached, and the row
 * suffices.
 */
static bool
hold_or_raise(EffectCall *call)
{
	EffectAnswer answer = effect_hold(call);

	if (!effect_says(&answer, "held"))
		effect_raise_refused(call->key, &answer);
	return !answer.unasked;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Idempotency keys
 * -----------------------------------------------------------------------------------------------------------------
 */

Datum
fence_once(PG_FUNCTION_ARGS)
{
	EffectCall	call = {.kind = "once", .nargs = 1, .needs_redis = true};
	EffectAnswer answer;
	Datum		values[2] = {0};
	bool		nulls[2] = {false, true};
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	call.key = key_argument_of(fcinfo, 0);
	require_expiry(fcinfo, 1, 3);
	call.args[0] = expiry_argument(fcinfo, 1, 3);
	call.durable = durable_argument(fcinfo, 2);
	if (strcmp(call.args[0], "0") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("an idempotency key needs a time to live above 0")));
	answer = effect_hold(&call);
	/* busy: another transaction is about to take this key */
	if (!effect_says(&answer, "held") && !effect_says(&answer, "busy") &&
		!effect_says(&answer, "own") && !effect_says(&answer, "done"))
		effect_raise_refused(call.key, &answer);
	values[0] = BoolGetDatum(effect_says(&answer, "held"));
	if ((effect_says(&answer, "own") || effect_says(&answer, "done")) && answer.n > 1)
	{
		values[1] = DirectFunctionCall1(jsonb_in, CStringGetDatum(text_of(&answer, 1)));
		nulls[1] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

Datum
fence_once_result(PG_FUNCTION_ARGS)
{
	EffectCall	call = {.kind = "result", .nargs = 1, .pipelined = true, .needs_redis = true};
	const char *last_kind;
	Jsonb	   *result;

	call.key = key_argument_of(fcinfo, 0);
	require_not_null(fcinfo, 1, "the result");
	result = PG_GETARG_JSONB_P(1);
	if (VARSIZE(result) > MAX_ENTRY)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s must not have more than %d bytes", "the result", MAX_ENTRY)));
	call.args[0] = utf8_of_string(JsonbToCString(NULL, &result->root, VARSIZE(result)));
	call.durable = durable_argument(fcinfo, 2);
	last_kind = effect_last_kind(call.key);
	if (strcmp(last_kind, "once") != 0 && strcmp(last_kind, "result") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this transaction has not taken idempotency key \"%s\"", utf8_to_display(call.key)),
				 errhint("Call fence.once first, and do the work only if it says that this is the first time.")));
	(void) hold_or_raise(&call);
	PG_RETURN_VOID();
}

/* -----------------------------------------------------------------------------------------------------------------
 * Counters
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
raise_bound(const char *key, const EffectAnswer *answer)
{
	long long	value = strtoll(answer->words[1], NULL, 10);

	ereport(ERROR,
			(errcode(ERRCODE_CHECK_VIOLATION),
			 errmsg("counter \"%s\" would pass its bound", utf8_to_display(key)),
			 answer->n > 2 ? errdetail("It is at %lld; transactions in progress hold a part of it.", value) :
			 errdetail("It is at %lld.", value),
			 answer->n > 2 ? errhint("If they are rolled back, what they hold is free again. Try again later.") : 0));
}

/*
 * Holds a counter with the bounds of arguments `bounds` and `bounds` + 1. on_bound says what Redis does if the counter would pass them. Returns
 * the counter's new value; NULL if Redis refuses. The argument with the amount then has the amount that Redis has counted.
 */
static Datum
hold_counter(FunctionCallInfo fcinfo, EffectCall *call, int bounds, int on_bound, const char **amount)
{
	const char *choice = PG_ARGISNULL(on_bound) ? "" : text_argument(fcinfo, on_bound, "on_bound", MAX_ENTRY);
	EffectAnswer answer;

	if (strcmp(choice, "error") != 0 && strcmp(choice, "clamp") != 0 && strcmp(choice, "refuse") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("on_bound must be \"error\", \"clamp\" or \"refuse\"")));
	call->nchecks = 3;
	call->checks[0] = number_argument(fcinfo, bounds);
	call->checks[1] = number_argument(fcinfo, bounds + 1);
	call->checks[2] = "";
	call->needs_redis = true;
	call->decided = amount;
	answer = effect_hold(call);
	/* the holds of transactions that have ended are settled first, so that they do not block this one */
	if (strcmp(choice, "clamp") == 0 && (effect_says(&answer, "bound") || effect_says(&answer, "full")))
	{
		call->checks[2] = choice;
		answer = effect_hold(call);
	}
	if ((effect_says(&answer, "bound") || effect_says(&answer, "full")) && answer.n > 1)
	{
		if (strcmp(choice, "refuse") == 0)
			PG_RETURN_NULL();
		raise_bound(effect_says(&answer, "full") ? call->other_key : call->key, &answer);
	}
	if (!effect_says(&answer, "held") || answer.n < 3)
		effect_raise_refused(call->key, &answer);
	PG_RETURN_INT64(strtoll(answer.words[1], NULL, 10));
}

Datum
fence_counter_add(PG_FUNCTION_ARGS)
{
	EffectCall	call = {.kind = "counter", .nargs = 1};

	call.key = key_argument_of(fcinfo, 0);
	require_not_null(fcinfo, 1, "the amount");
	call.args[0] = number_argument(fcinfo, 1);
	call.durable = durable_argument(fcinfo, 4);
	return hold_counter(fcinfo, &call, 2, 5, &call.args[0]);
}

Datum
fence_transfer(PG_FUNCTION_ARGS)
{
	EffectCall	call = {.kind = "transfer", .nargs = 2};

	call.key = key_argument_of(fcinfo, 0);
	call.other_key = key_argument_of(fcinfo, 1);
	require_not_null(fcinfo, 2, "the amount");
	if (PG_GETARG_INT64(2) <= 0 || strcmp(call.key, call.other_key) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a transfer needs an amount above 0 and two different counters")));
	require_same_place(call.key, call.other_key);
	call.args[0] = call.other_key;
	call.args[1] = number_argument(fcinfo, 2);
	call.durable = durable_argument(fcinfo, 5);
	return hold_counter(fcinfo, &call, 3, 6, &call.args[1]);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Fields of hashes
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Adds the key, the field, and the log from argument `log` if there is one. */
static EffectCall
field_call(FunctionCallInfo fcinfo, const char *kind, int log)
{
	EffectCall	call = {.kind = kind, .nargs = 3};

	call.key = key_argument_of(fcinfo, 0);
	call.args[0] = text_argument(fcinfo, 1, "the field", EFFECT_MAX_KEY);
	call.args[1] = PG_ARGISNULL(log) ? "" : key_argument_of(fcinfo, log);
	if (strcmp(call.args[1], call.key) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the log of a hash must be another key")));
	if (*call.args[1] != '\0')
		require_same_place(call.key, call.args[1]);
	shared_require();
	call.args[2] = fence_stamp();
	return call;
}

Datum
fence_hash_set(PG_FUNCTION_ARGS)
{
	EffectCall	call = field_call(fcinfo, "hash_set", 3);

	call.args[call.nargs++] = PG_ARGISNULL(2) ? "del" : "set";
	call.args[call.nargs++] = PG_ARGISNULL(2) ? "" : text_argument(fcinfo, 2, "the value", MAX_ENTRY);
	call.pipelined = true;
	call.durable = durable_argument(fcinfo, 4);
	(void) hold_or_raise(&call);
	PG_RETURN_VOID();
}

Datum
fence_hash_add(PG_FUNCTION_ARGS)
{
	EffectCall	call = field_call(fcinfo, "hash_add", 5);

	require_not_null(fcinfo, 2, "the amount");
	call.args[call.nargs++] = number_argument(fcinfo, 2);
	call.durable = durable_argument(fcinfo, 6);
	return hold_counter(fcinfo, &call, 3, 7, &call.args[3]);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Values: compare and set, take
 * -----------------------------------------------------------------------------------------------------------------
 */

static EffectAnswer
hold_set(const char *key, const char *how, const char *value, const char *ttl, const char *expects, const char *expected,
		 bool durable)
{
	EffectCall	call = {.kind = "set", .key = key, .nargs = 3, .args = {how, value, ttl}, .nchecks = 2,
		.checks = {expects, expected}, .durable = durable, .needs_redis = true};
	EffectAnswer answer = effect_hold(&call);

	if (!effect_says(&answer, "held") && !effect_says(&answer, "differs") && !effect_says(&answer, "nothing"))
		effect_raise_refused(call.key, &answer);
	if (answer.n < 3)
		elog(ERROR, "Redis gave a malformed answer about an effect");
	return answer;
}

Datum
fence_compare_and_set(PG_FUNCTION_ARGS)
{
	const char *key = key_argument_of(fcinfo, 0);
	const char *expected = PG_ARGISNULL(1) ? "" : text_argument(fcinfo, 1, "the expected value", MAX_ENTRY);
	const char *value = PG_ARGISNULL(2) ? "" : text_argument(fcinfo, 2, "the value", MAX_ENTRY);
	EffectAnswer answer = hold_set(key, PG_ARGISNULL(2) ? "del" : "set", value, expiry_argument(fcinfo, 3, 5),
								   PG_ARGISNULL(1) ? "0" : "=", expected, durable_argument(fcinfo, 4));

	PG_RETURN_BOOL(!effect_says(&answer, "differs"));
}

/* The value that the key had before; NULL if it had none. */
static Datum
take(FunctionCallInfo fcinfo, const char *key, const char *how, const char *value, const char *ttl, bool durable)
{
	EffectAnswer answer = hold_set(key, how, value, ttl, "", "", durable);

	if (strcmp(answer.words[1], "1") != 0)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(text_of(&answer, 2)));
}

Datum
fence_take(PG_FUNCTION_ARGS)
{
	return take(fcinfo, key_argument_of(fcinfo, 0), "del", "", "", durable_argument(fcinfo, 1));
}

Datum
fence_take_and_extend(PG_FUNCTION_ARGS)
{
	require_expiry(fcinfo, 1, 3);
	return take(fcinfo, key_argument_of(fcinfo, 0), "ttl", "", expiry_argument(fcinfo, 1, 3), durable_argument(fcinfo, 2));
}

Datum
fence_take_and_set(PG_FUNCTION_ARGS)
{
	return take(fcinfo, key_argument_of(fcinfo, 0), "set", text_argument(fcinfo, 1, "the value", MAX_ENTRY),
				expiry_argument(fcinfo, 2, 4), durable_argument(fcinfo, 3));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Publishing large values
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Sends a piece of the value to its hold in Redis. Raises an error if that hold is gone. */
static void
send_piece(const char *key, size_t offset, int n, const char **piece)
{
	const char **args = palloc(sizeof(char *) * (n + 4));

	args[0] = setting_namespace;
	args[1] = effect_last_hold();
	args[2] = psprintf("%zu", offset);
	args[3] = "";
	memcpy(args + 4, piece, sizeof(char *) * n);
	(void) effect_ask("fence_effect_piece", key, n + 4, args);
	pfree(args);
}

/*
 * Holds the effect that publishes a value. A small value goes with the request. False: the value is large, so the
 * caller must now send it in pieces, after the hold. It sends one piece at a time, so that neither Redis nor this
 * backend has to keep more.
 */
static bool
hold_publish(EffectCall *call, bool small)
{
	call->pipelined = small;
	return !hold_or_raise(call) || small;
}

Datum
fence_publish(PG_FUNCTION_ARGS)
{
	const char *key = key_argument_of(fcinfo, 0);
	const char *value = text_argument(fcinfo, 1, "the value", MAX_PUBLISHED);
	const char *ttl = expiry_argument(fcinfo, 2, 4);
	const char *row[] = {ttl, "string", value};
	EffectCall	call = {.kind = "publish", .key = key, .nargs = 2, .args = {ttl, "string"},
		.durable = durable_argument(fcinfo, 3), .nrow = lengthof(row), .row = row};
	size_t		size = strlen(value);

	if (hold_publish(&call, size <= EFFECT_PIECE_BYTES))
		PG_RETURN_VOID();
	for (size_t offset = 0; offset < size; offset += EFFECT_PIECE_BYTES)
	{
		char	   *piece = pnstrdup(value + offset, EFFECT_PIECE_BYTES);

		send_piece(key, offset, 1, (const char **) &piece);
		pfree(piece);
	}
	PG_RETURN_VOID();
}

/* The fields of a JSON object as strings: name, value as text, name, value, ... */
static const char **
fields_of(Jsonb *object, int *n)
{
	JsonbIterator *it;
	JsonbValue	v;
	JsonbIteratorToken token;
	const char **fields;

	if (!JB_ROOT_IS_OBJECT(object) || JB_ROOT_COUNT(object) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the fields to publish must be a JSON object with at least one field")));
	fields = palloc(sizeof(char *) * 2 * JB_ROOT_COUNT(object));
	*n = 0;
	it = JsonbIteratorInit(&object->root);
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY || (token == WJB_VALUE && v.type == jbvString))
			fields[(*n)++] = utf8_of_string(pnstrdup(v.val.string.val, v.val.string.len));
		else if (token == WJB_VALUE)
		{
			Jsonb	   *one = JsonbValueToJsonb(&v);

			fields[(*n)++] = utf8_of_string(JsonbToCString(NULL, &one->root, VARSIZE(one)));
		}
	}
	return fields;
}

Datum
fence_publish_hash(PG_FUNCTION_ARGS)
{
	const char *key = key_argument_of(fcinfo, 0);
	const char *ttl = expiry_argument(fcinfo, 2, 4);
	int			n;
	size_t		bytes = 0;
	const char **fields;
	const char **row;
	EffectCall	call = {.kind = "publish", .key = key, .nargs = 2, .args = {ttl, "hash"},
		.durable = durable_argument(fcinfo, 3)};

	require_not_null(fcinfo, 1, "the value");
	fields = fields_of(PG_GETARG_JSONB_P(1), &n);
	row = palloc(sizeof(char *) * (n + 2));
	row[0] = ttl;
	row[1] = "hash";
	memcpy(row + 2, fields, sizeof(char *) * n);
	call.row = row;
	call.nrow = n + 2;
	for (int i = 0; i < n; i++)
		bytes += strlen(fields[i]);
	if (hold_publish(&call, n <= EFFECT_PIECE_STRINGS && bytes <= EFFECT_PIECE_BYTES))
		PG_RETURN_VOID();
	for (int i = 0; i < n; i += EFFECT_PIECE_STRINGS)
		send_piece(key, 0, Min(EFFECT_PIECE_STRINGS, n - i), fields + i);
	PG_RETURN_VOID();
}

/* -----------------------------------------------------------------------------------------------------------------
 * Logs and queues
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
append_to(const char *key, const char *form, const char *entry, const char *most, bool durable)
{
	EffectCall	call = {.kind = "append", .key = key, .nargs = 4, .args = {form, entry, fence_stamp(), most},
		.pipelined = true, .durable = durable};

	(void) hold_or_raise(&call);
}

static const char *
form_argument(FunctionCallInfo fcinfo, int n)
{
	const char *form = text_argument(fcinfo, n, "the kind of a log", MAX_ENTRY);

	if (strcmp(form, "list") != 0 && strcmp(form, "zset") != 0 && strcmp(form, "stream") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the kind of a log must be \"list\", \"zset\" or \"stream\"")));
	return form;
}

static const char *
most_argument(FunctionCallInfo fcinfo, int n)
{
	if (!PG_ARGISNULL(n) && PG_GETARG_INT64(n) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the largest number of entries must be above 0")));
	return number_argument(fcinfo, n);
}

Datum
fence_append(PG_FUNCTION_ARGS)
{
	append_to(key_argument_of(fcinfo, 0), form_argument(fcinfo, 2), text_argument(fcinfo, 1, "the entry", MAX_ENTRY),
			  most_argument(fcinfo, 3), durable_argument(fcinfo, 4));
	PG_RETURN_TEXT_P(cstring_to_text(fence_stamp()));
}

/* Checks all keys before the first effect is held, so that an invalid key leaves no holds behind. */
Datum
fence_append_all(PG_FUNCTION_ARGS)
{
	const char *form;
	const char *entry;
	const char *most;
	const char **names;
	Datum	   *keys;
	bool	   *nulls;
	int			n;

	require_not_null(fcinfo, 0, "the key of an effect");
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT, &keys, &nulls, &n);
	names = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		names[i] = nulls[i] ? "" : utf8_of_string(TextDatumGetCString(keys[i]));
		effect_require_key(names[i]);
	}
	form = form_argument(fcinfo, 2);
	entry = text_argument(fcinfo, 1, "the entry", MAX_ENTRY);
	most = most_argument(fcinfo, 3);
	for (int i = 0; i < n; i++)
		append_to(names[i], form, entry, most, durable_argument(fcinfo, 4));
	PG_RETURN_TEXT_P(cstring_to_text(fence_stamp()));
}

/* The stamps of the newest entries of a log, newest first. */
Datum
fence_log_stamps(PG_FUNCTION_ARGS)
{
	const char *key = key_argument_of(fcinfo, 0);
	int64		left;
	const char *args[] = {"", "0"}; /* how many more to return, and the cursor */
	ArrayBuildState *stamps = initArrayResult(TEXTOID, CurrentMemoryContext, false);

	require_not_null(fcinfo, 1, "the largest number of entries");
	args[0] = most_argument(fcinfo, 1);
	for (left = PG_GETARG_INT64(1); left > 0 && *args[1] != '\0';)
	{
		EffectAnswer answer = effect_ask("fence_log_stamps", key, lengthof(args), args);

		CHECK_FOR_INTERRUPTS();
		for (int i = 1; i < answer.n; i++)
			if (*answer.words[i] != '\0')
				stamps = accumArrayResult(stamps, CStringGetTextDatum(text_of(&answer, i)), false, TEXTOID, CurrentMemoryContext);
		left -= answer.n - 1;
		args[0] = psprintf(INT64_FORMAT, left);
		args[1] = answer.n > 0 ? answer.words[0] : "";
	}
	PG_RETURN_DATUM(makeArrayResult(stamps, CurrentMemoryContext));
}

Datum
fence_enqueue(PG_FUNCTION_ARGS)
{
	const char *key = key_argument_of(fcinfo, 0);
	const char *job = text_argument(fcinfo, 1, "the job", MAX_ENTRY);

	require_not_null(fcinfo, 2, "the lease of a job");
	append_to(key, "queue", job, ttl_argument(fcinfo, 2), durable_argument(fcinfo, 3));
	PG_RETURN_TEXT_P(cstring_to_text(psprintf("%s %d", fence_stamp(), effect_last_number())));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Commit markers
 * -----------------------------------------------------------------------------------------------------------------
 */

static const char *
marker_key(const char *stamp)
{
	return psprintf("%s:m:{%s}", setting_namespace, stamp);
}

Datum
fence_commit_marker(PG_FUNCTION_ARGS)
{
	EffectCall	call = {.kind = "set", .nargs = 3, .args = {"set", "1"}, .nchecks = 2, .checks = {"", ""}, .pipelined = true};

	require_expiry(fcinfo, 0, 2);
	shared_require();
	call.key = marker_key(fence_stamp());
	call.args[2] = expiry_argument(fcinfo, 0, 2);
	call.durable = durable_argument(fcinfo, 1);
	(void) hold_or_raise(&call);
	PG_RETURN_TEXT_P(cstring_to_text(fence_stamp()));
}

/*
 * Whether a transaction has committed. The commit log tells, as far back as it reaches; after that the commit marker
 * in Redis does. NULL: nobody knows.
 */
Datum
fence_is_committed(PG_FUNCTION_ARGS)
{
	const char *stamp = text_to_cstring(PG_GETARG_TEXT_PP(0));
	StampFate	fate;
	EffectAnswer answer;

	shared_require();
	if (strspn(stamp, "0123456789abcdef.") != strlen(stamp) || strlen(stamp) > 48)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not the stamp of a transaction", stamp)));
	fate = fence_stamp_own_fate(stamp);
	if (fate != FATE_UNKNOWN)
		PG_RETURN_BOOL(fate == FATE_COMMITTED);
	answer = effect_ask("fence_effect_read", marker_key(stamp), 0, NULL);
	if (effect_says(&answer, "value"))
		PG_RETURN_BOOL(true);
	PG_RETURN_NULL();
}
