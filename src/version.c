/*
 * version.c
 *	  Versions as the version column holds them; see version.h.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "version.h"

int64
fence_version_after(const Domain *domain, int64 last)
{
	bool		wide = domain == NULL || domain->version_type == INT8OID || !OidIsValid(domain->version_type);

	if (last >= (wide ? PG_INT64_MAX : domain->version_max))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("the version of a row has reached its largest value"),
				 errdetail("The last version is " INT64_FORMAT ".", last),
				 wide ? 0 :
				 errhint("Change column \"%s\" of domain \"%s\" to bigint: fence.detach the table, ALTER it, and fence.attach it again.",
						 domain->version_name, domain->name)));
	return last + 1;
}

int64
fence_version_raw(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	bool		isnull;
	Datum		value = heap_getattr(row, domain->version_attnum, desc, &isnull);

	if (isnull)
		return -1;
	return domain->version_type == INT8OID ? DatumGetInt64(value) :
		domain->version_type == INT4OID ? DatumGetInt32(value) : DatumGetInt16(value);
}

Datum
fence_version_datum(const Domain *domain, int64 version)
{
	return domain->version_type == INT8OID ? Int64GetDatum(version) :
		domain->version_type == INT4OID ? Int32GetDatum((int32) version) : Int16GetDatum((int16) version);
}
