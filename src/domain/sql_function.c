/*
 * domain/sql_function.c
 *	  What SQL-callable functions share, and the SQL functions that only name keys; see sql_function.h.
 *
 * Owns nothing and takes no locks. Never talks to Redis.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/key_text.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/sql_function.h"

PG_FUNCTION_INFO_V1(fence_fence_key);
PG_FUNCTION_INFO_V1(fence_value_key);
PG_FUNCTION_INFO_V1(fence_key_slot);
PG_FUNCTION_INFO_V1(fence_fence_keys);
PG_FUNCTION_INFO_V1(fence_fence_prefix);

Domain *
domain_argument(FunctionCallInfo fcinfo, int n)
{
	shared_require();
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the domain must not be null")));
	return domain_by_name(text_to_cstring(PG_GETARG_TEXT_PP(n)), false);
}

char *
key_argument(FunctionCallInfo fcinfo, int n, const Domain *domain)
{
	Argument   *parts;
	int			nparts = argument_list(fcinfo, n, &parts);

	if (nparts < 0)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the key must not be null")));
	return key_of_arguments(domain, nparts, parts);
}

Datum
function_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

uint64
execute_now(const char *sql, int expected, int nargs, Oid *types, Datum *values)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SPIPlanPtr	plan = SPI_prepare(sql, nargs, types);

	if (plan == NULL || SPI_execute_snapshot(plan, values, NULL, snapshot, InvalidSnapshot, false, true, 0) != expected)
		elog(ERROR, "could not execute \"%s\"", sql);
	UnregisterSnapshot(snapshot);
	return SPI_processed;
}

int64
ttl_ms_of(const Interval *ttl)
{
	int64		ms = interval_ms(ttl);

	if (ms < 0 || ms > TTL_MAX_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a time to live must be between 0 and 10 years")));
	return ms;
}

int64
value_ttl_ms_of(const Interval *ttl)
{
	int64		ms = interval_ms(ttl);

	if (ms < 1 || ms > TTL_MAX_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the time to live of values must be at least a millisecond and at most 10 years"),
				 errhint("Leave ttl out for that of pgcache_fence.default_ttl. A value stops being served in any case when its row changes.")));
	return ms;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Names of keys
 * -----------------------------------------------------------------------------------------------------------------
 */

Datum
fence_fence_key(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);

	PG_RETURN_TEXT_P(cstring_to_text(key_fence_name(domain, key_argument(fcinfo, 1, domain))));
}

/* Looks at no table, so that clients can ask in the same statement in which they read fence.domain. */
Datum
fence_fence_prefix(PG_FUNCTION_ARGS)
{
	char	   *domain = text_to_cstring(PG_GETARG_TEXT_PP(0));

	shared_require();
	PG_RETURN_TEXT_P(cstring_to_text(psprintf("%s:f:%s", setting_namespace, key_domain_name(domain))));
}

Datum
fence_value_key(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);

	PG_RETURN_TEXT_P(cstring_to_text(key_value_name(domain, key_argument(fcinfo, 1, domain))));
}

Datum
fence_key_slot(PG_FUNCTION_ARGS)
{
	char	   *name = utf8_of_string(text_to_cstring(PG_GETARG_TEXT_PP(0)));

	PG_RETURN_INT32(slot_of_key(name, strlen(name)));
}

/*
 * Returns the names of several fences. In an array of one dimension each element is a key, in one of two dimensions
 * each row is.
 */
Datum
fence_fence_keys(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(1);
	int			nparts = ARR_NDIM(array) == 2 ? ARR_DIMS(array)[1] : 1;
	Datum	   *values;
	bool	   *nulls;
	int			n;
	Argument   *parts;

	if (ARR_NDIM(array) > 2)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("keys must be an array of one or two dimensions")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &n);
	parts = palloc(sizeof(Argument) * (n + 1));
	for (int i = 0; i < n; i++)
		parts[i] = (Argument) {.type = TEXTOID, .value = values[i], .isnull = nulls[i]};
	for (int i = 0; i < n / nparts; i++)
		values[i] = CStringGetTextDatum(key_fence_name(domain, key_of_arguments(domain, nparts, parts + i * nparts)));
	PG_RETURN_ARRAYTYPE_P(construct_array(values, n / nparts, TEXTOID, -1, false, TYPALIGN_INT));
}
