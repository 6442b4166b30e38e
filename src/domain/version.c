/*
 * domain/version.c
 *	  Versions as the version column contains them; see version.h. Owns nothing and takes no locks.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "domain/version.h"

/* Returns the largest version that a row of the domain can have. */
static int64
largest(const Domain *domain)
{
	return OidIsValid(domain->version_type) ? domain->version_max : PG_INT64_MAX;
}

int64
fence_version_max(const Domain *domain, int64 last)
{
	int64		end = largest(domain);

	return Max(end / 2, last < end ? last + 1 : end);
}

bool
fence_version_fits(const Domain *domain, int64 version, int64 last)
{
	return version <= fence_version_max(domain, last);
}

int64
fence_version_after(const Domain *domain, int64 last)
{
	if (last >= largest(domain))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("the version of a row has reached its largest value"),
				 errdetail("The last version is " INT64_FORMAT ".", last),
				 errhint("The owner of the table can restart its versions with fence.renumber('%s').", domain->name)));
	return last + 1;
}

int64
fence_version_of_absence(const Domain *domain, TupleTableSlot *row)
{
	int64		last = fence_version_last(domain, row);

	return last < PG_INT64_MAX ? last + 1 : last;
}

Datum
fence_version_datum(const Domain *domain, int64 version)
{
	return domain->version_type == INT8OID ? Int64GetDatum(version) :
		domain->version_type == INT4OID ? Int32GetDatum((int32) version) : Int16GetDatum((int16) version);
}
