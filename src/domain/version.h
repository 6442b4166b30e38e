/*
 * domain/version.h
 *	  Versions as the version column of a fenced table holds them: int2, int4 or int8.
 */
#ifndef FENCE_VERSION_H
#define FENCE_VERSION_H

#include "executor/tuptable.h"

#include "domain/domain.h"

/* last + 1; raises 22003 if the domain's version column cannot hold it. */
extern int64 fence_version_after(const Domain *domain, int64 last);

/*
 * The largest version that an application may bring to a key whose last one was `last` (NO_VERSION: none), and whether a version is
 * not above it: half of what the column can hold, or the next one after `last`. The upper half is for versions that go up one by
 * one: whoever may write one row cannot bring the domain's versions to their end with it.
 */
extern int64 fence_version_max(const Domain *domain, int64 last);
extern bool fence_version_fits(const Domain *domain, int64 version, int64 last);

/*
 * The version of a key that loses this row: the next one, whatever the column's type, for no row will hold it. A row with the largest
 * bigint goes all the same, and leaves that number.
 */
extern int64 fence_version_of_absence(const Domain *domain, TupleTableSlot *row);

/* The version column of a row as it stands there; NULL gives -1. */
extern int64 fence_version_raw(const Domain *domain, TupleTableSlot *row);

/* The same as what the row's successor is above: NULL and negative count as 0 (such rows precede the attachment). */
extern int64 fence_version_last(const Domain *domain, TupleTableSlot *row);

/* A version as a Datum of the column's type. */
extern Datum fence_version_datum(const Domain *domain, int64 version);

#endif
