/*
 * domain/version.h
 *	  Versions as the version column of a fenced table contains them: int2, int4 or int8.
 */
#ifndef FENCE_VERSION_H
#define FENCE_VERSION_H

#include "catalog/pg_type.h"
#include "executor/tuptable.h"

#include "domain/domain.h"

/* Returns last + 1. Raises 22003 if the domain's version column cannot contain it. */
extern int64 fence_version_after(const Domain *domain, int64 last);

/*
 * fence_version_max returns the largest version that an application may give to a key whose last version was `last`
 * (NO_VERSION: none): half of the largest value of the column, or the next one after `last` if that is more.
 * fence_version_fits returns whether a version is not above it. The upper half is only for versions that go up one by
 * one. Otherwise a user who may write one row could use up the versions of the whole domain.
 */
extern int64 fence_version_max(const Domain *domain, int64 last);
extern bool fence_version_fits(const Domain *domain, int64 version, int64 last);

/*
 * Returns the version of the tombstone of a key that loses this row: the row's version + 1, even if the column cannot
 * contain it, because no row will have it. A row with the largest bigint may be deleted too, and leaves that number.
 */
extern int64 fence_version_of_absence(const Domain *domain, TupleTableSlot *row);

/* Returns the value of the row's version column; -1 for NULL. */
static inline int64
fence_version_raw(const Domain *domain, TupleTableSlot *row)
{
	bool		isnull;
	Datum		value = slot_getattr(row, domain->version_attnum, &isnull);

	if (isnull)
		return -1;
	return domain->version_type == INT8OID ? DatumGetInt64(value) :
		domain->version_type == INT4OID ? DatumGetInt32(value) : DatumGetInt16(value);
}

/*
 * Returns the version that the row's next version must be above: NULL and negative values count as 0, because such rows
 * are older than the attachment.
 */
static inline int64
fence_version_last(const Domain *domain, TupleTableSlot *row)
{
	return Max(fence_version_raw(domain, row), 0);
}

/* Returns a version as a Datum of the column's type. */
extern Datum fence_version_datum(const Domain *domain, int64 version);

#endif
