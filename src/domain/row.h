/*
 * domain/row.h
 *	  The row of a key, as PostgreSQL has it now: by direct index access, so that neither privileges nor row-level
 *	  security nor a function of a user come into it. Who may see the result is the caller's affair.
 */
#ifndef FENCE_ROW_H
#define FENCE_ROW_H

#include "access/transam.h"
#include "domain/domain.h"
#include "utils/snapshot.h"

/*
 * Version of the key's row, else of its tombstone (not in manual domains), else NO_VERSION; now. *is_row, if not
 * NULL, tells which. Domains without a table, or without a version column, know none.
 */
extern int64 row_current_version(const Domain *domain, const char *key, bool *is_row);

/*
 * The row (of a group: the array of its rows, perhaps empty) as jsonb (plain_json.h, the domain's columns only) with
 * its version, in the given snapshot; false if there is none. *writer, if not NULL, is the transaction or subtransaction
 * that wrote it, 0 if that is not known any more, or for a group.
 */
extern bool row_as_jsonb(const Domain *domain, const char *key, Snapshot snapshot, Datum *jsonb, int64 *version,
						 FullTransactionId *writer);

/*
 * One text per value, whoever reads first: what is cached is served to sessions with other settings. Until the caller's
 * GUC nest level ends; search_path is pg_catalog, pg_temp.
 */
extern void row_use_standard_settings(void);

/*
 * The value that says that there is no row, and its version if the key has no tombstone. A token and a version name one content, so it
 * must be none that a row of the key can have: 0 is one.
 */
#define PAYLOAD_ABSENT "null"
#define VERSION_ABSENT PG_INT64_MAX

/*
 * A row as the value that Redis holds of it: the text of what row_as_jsonb returns for a row, in UTF-8, so that what a
 * writer and what a reader stores of one version is the same to the byte. Palloc'd. NULL: jsonb or UTF-8 cannot hold it, or
 * it is longer than `limit` bytes; then *too_large.
 */
extern const char *row_value(const Domain *domain, HeapTuple row, TupleDesc desc, int limit, bool *too_large);

/* The text of a jsonb as a value, in UTF-8; palloc'd. NULL: it has none (utf8.h). */
extern const char *row_jsonb_as_value(Datum jsonb);

/*
 * A value as jsonb. False: it is no JSON in UTF-8, or jsonb does not hold it in the database's encoding (\u0000, 1e1000000,
 * deep nesting, characters that the encoding lacks). Raises only what is no fault of the value, which a NUL must follow.
 */
extern bool row_value_as_jsonb(char *value, size_t len, Datum *jsonb);

/*
 * Keys of rows, at most `most`: of that fraction of the blocks; fraction 0: of one block somewhere. For the audit.
 */
extern List *row_sample_keys(const Domain *domain, double fraction, int most);

#endif
