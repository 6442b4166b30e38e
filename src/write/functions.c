/*
 * write/functions.c
 *	  The SQL-callable functions besides those of readers (reader.c), attach and detach (attach.c) and views (views.c): names
 *	  of keys, audit and repair.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/shared.h"
#include "base/utf8.h"
#include "domain/key.h"
#include "read/audit.h"
#include "read/reader.h"
#include "send/coordinator.h"
#include "send/ledger.h"
#include "write/functions.h"

#define KEEPER_PATIENCE INT64CONST(5000000)	/* microseconds */

PG_FUNCTION_INFO_V1(fence_fence_key);
PG_FUNCTION_INFO_V1(fence_value_key);
PG_FUNCTION_INFO_V1(fence_key_slot);
PG_FUNCTION_INFO_V1(fence_fence_keys);
PG_FUNCTION_INFO_V1(fence_status);
PG_FUNCTION_INFO_V1(fence_audit);
PG_FUNCTION_INFO_V1(fence_repair);
PG_FUNCTION_INFO_V1(fence_repair_domain);
PG_FUNCTION_INFO_V1(fence_initialise);

/* -----------------------------------------------------------------------------------------------------------------
 * Arguments
 * -----------------------------------------------------------------------------------------------------------------
 */

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

Datum
fence_fence_key(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);

	PG_RETURN_TEXT_P(cstring_to_text(key_fence_name(domain, key_argument(fcinfo, 1, domain))));
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

/* Names of several fences: of one dimension, each element is a key; of two, each row. */
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

/* -----------------------------------------------------------------------------------------------------------------
 * Seeing and repairing
 * -----------------------------------------------------------------------------------------------------------------
 */

Datum
fence_status(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 1, domain);
	FenceStatus status;
	Datum		values[5];
	bool		nulls[5] = {false};

	reader_require(domain);
	if (!audit_key(domain, key, &status))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not ask Redis for the fence: %s", coordinator_problem()),
				 errhint("SELECT * FROM fence.state tells how things stand.")));
	values[0] = Int64GetDatum(status.fence_version);
	nulls[0] = status.fence_version == NO_VERSION;
	values[1] = Int64GetDatum(status.row_version);
	nulls[1] = status.row_version == NO_VERSION;
	values[2] = CStringGetTextDatum(audit_relation_name(status.relation));
	/* nothing to compare with */
	nulls[2] = !domain_has_versions(domain);
	values[3] = Int32GetDatum(status.pending);
	values[4] = reader_text(status.armed ? status.token : NULL, &nulls[4]);
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

/* Compares the domain's rows with their fences; as rows (relation, count). */
static Datum
audit(FunctionCallInfo fcinfo, double fraction, bool repair)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int64		counts[RELATION_COUNT] = {0};

	audit_sample(domain, fraction, INT_MAX, repair, counts);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < RELATION_COUNT; i++)
	{
		Datum		values[2] = {CStringGetTextDatum(audit_relation_name(i)), Int64GetDatum(counts[i])};
		bool		nulls[2] = {false};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
fence_audit(PG_FUNCTION_ARGS)
{
	double		fraction = PG_GETARG_FLOAT8(1);

	if (!(fraction > 0 && fraction <= 1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the fraction must be above 0 and at most 1")));
	return audit(fcinfo, fraction, false);
}

/* The same, and repairs what differs. */
Datum
fence_repair_domain(PG_FUNCTION_ARGS)
{
	return audit(fcinfo, 1.0, true);
}

Datum
fence_repair(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);

	PG_RETURN_TEXT_P(cstring_to_text(audit_repair(domain, key_argument(fcinfo, 1, domain))));
}

/*
 * For CREATE EXTENSION: the row of fence.cluster as far as this server knows, so that no later start finds the extension
 * without it and must assume the longest lease possible. The keeper needs a moment after a server start to know.
 */
Datum
fence_initialise(PG_FUNCTION_ARGS)
{
	int64		deadline = fence_clock() + KEEPER_PATIENCE;
	Oid			types[] = {INT8OID, INT4OID};
	Datum		values[2];

	(void) fcinfo;
	shared_require();
	while (!fence_shared->bound_known && fence_clock() < deadline)
		fence_pause(10000, wait_event_worker());
	values[0] = Int64GetDatum(fence_shared->last_epoch);
	values[1] = Int32GetDatum(fence_shared->bound_known ? fence_shared->longest_lease : LEASE_MAX_MS);
	if (SPI_connect() != SPI_OK_CONNECT ||
		SPI_execute_with_args("INSERT INTO fence.cluster (last_epoch, longest_lease)"
							  " VALUES ($1, $2 OPERATOR(pg_catalog.*) interval '1 millisecond')", 2, types, values, NULL, false, 0) != SPI_OK_INSERT ||
		SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not write fence.cluster");
	ledger_catalog_changed();
	PG_RETURN_VOID();
}
