/*
 * version.h
 *	  Versions as the version column of a fenced table holds them: int2, int4 or int8.
 */
#ifndef FENCE_VERSION_H
#define FENCE_VERSION_H

#include "domain.h"

/* last + 1; raises 22003 if the domain's version column (NULL: a bigint) cannot hold it. */
extern int64 fence_version_after(const Domain *domain, int64 last);

/* The version column of a row as it stands there; NULL gives -1. */
extern int64 fence_version_raw(const Domain *domain, HeapTuple row, TupleDesc desc);

/* A version as a Datum of the column's type. */
extern Datum fence_version_datum(const Domain *domain, int64 version);

#endif
