/*
 * row.h
 *	  The row of a key, as PostgreSQL has it now: by direct index access, so that neither privileges nor row-level
 *	  security nor a function of a user come into it. Who may see the result is the caller's affair.
 */
#ifndef FENCE_ROW_H
#define FENCE_ROW_H

#include "domain.h"
#include "utils/snapshot.h"

/*
 * Version of the key's row, else of its tombstone, else NO_VERSION; in one snapshot that is taken now. *is_row, if not
 * NULL, tells which. Domains without a table, or without a version column, know none.
 */
extern int64 row_current_version(const Domain *domain, const char *key, bool *is_row);

/*
 * The row (of a group: the array of its rows, perhaps empty) as jsonb (to_jsonb semantics, the domain's columns only)
 * with its version, in the given snapshot; false if there is none.
 */
extern bool row_as_jsonb(const Domain *domain, const char *key, Snapshot snapshot, Datum *jsonb, int64 *version);

/*
 * Keys of rows, at most `most`: of that fraction of the blocks; fraction 0: of one block somewhere. For the audit.
 */
extern List *row_sample_keys(const Domain *domain, double fraction, int most);

#endif
