/*
 * inspect/repair.c
 *	  The SQL functions fence.status, fence.audit and fence.repair. read/audit.c compares fences with their rows for
 *	  them.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "domain/sql_function.h"
#include "domain/tombstone.h"
#include "read/audit.h"
#include "read/reader.h"
#include "send/coordinator.h"

PG_FUNCTION_INFO_V1(fence_status);
PG_FUNCTION_INFO_V1(fence_audit);
PG_FUNCTION_INFO_V1(fence_repair);
PG_FUNCTION_INFO_V1(fence_repair_domain);

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
				 errhint("SELECT * FROM fence.state tells what is wrong.")));
	values[0] = Int64GetDatum(status.fence_version);
	nulls[0] = status.fence_version == NO_VERSION;
	values[1] = Int64GetDatum(status.row_version);
	nulls[1] = status.row_version == NO_VERSION;
	values[2] = CStringGetTextDatum(audit_relation_name(status.relation));
	/* Without versions in PostgreSQL there is nothing to compare with. */
	nulls[2] = !domain_has_versions(domain);
	values[3] = Int32GetDatum(status.pending);
	values[4] = reader_text(status.armed ? status.token : NULL, &nulls[4]);
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

/* Compares the domain's rows with their fences. Returns rows of relation and count. */
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

/* Compares the domain's rows with their fences, and repairs the fences that differ. */
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
