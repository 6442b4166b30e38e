/*
 * domain/row.h
 *	  Reads the current row of a key from PostgreSQL.
 *
 * It reads tables and indexes directly, so neither privileges nor row-level security nor functions of users have an
 * effect. The caller decides who may see the result.
 */
#ifndef FENCE_ROW_H
#define FENCE_ROW_H

#include "access/transam.h"
#include "domain/domain.h"
#include "utils/snapshot.h"

/*
 * Returns the version that the key has now: that of its row or, if there is no row, of its tombstone (not in manual
 * domains), or NO_VERSION. *is_row, if not NULL, says which. In a domain without a table or without versions, returns
 * NO_VERSION.
 */
extern int64 row_current_version(const Domain *domain, const char *key, bool *is_row);

/*
 * Reads the row of the key as jsonb (plain_json.h; only the domain's columns), and its version, in the given snapshot.
 * For a group, it is the array of its rows, which may be empty. Returns false if there is no row. *writer, if not NULL,
 * is the transaction or subtransaction that wrote the row; invalid if that is no longer known, and for a group. Raises
 * 42703 if a cached column is gone.
 */
extern bool row_as_jsonb(const Domain *domain, const char *key, Snapshot snapshot, Datum *jsonb, int64 *version,
						 FullTransactionId *writer);

/*
 * Sets all settings on which the text of a value depends, until the caller's GUC nest level ends. Sessions with other
 * settings will read what this one caches. Also sets search_path to pg_catalog, pg_temp.
 */
extern void row_use_standard_settings(void);

/*
 * The value that says that there is no row, and its version if the key has no tombstone. A token and a version together
 * name one content, so it must be a version that no row of the key can have. A row can have 0.
 */
#define PAYLOAD_ABSENT "null"
#define VERSION_ABSENT PG_INT64_MAX

/* Returns whether a value from Redis says that there is no row. */
extern bool row_value_is_absent(const char *value, size_t len);

/*
 * Returns a row as the value that Redis stores: the text of what row_as_jsonb returns, in UTF-8, palloc'd. So writers
 * and readers store the same bytes for one version. Returns NULL if jsonb or UTF-8 cannot contain the row, or if the
 * text is longer than `limit` bytes; the latter sets *too_large.
 */
extern const char *row_value(const Domain *domain, HeapTuple row, TupleDesc desc, int limit, bool *too_large);

/* Returns the text of a jsonb in UTF-8, palloc'd; NULL if it cannot be converted (utf8.h). */
extern const char *row_jsonb_as_value(Datum jsonb);

/*
 * Parses a value from Redis as jsonb. The byte after it must be NUL. Returns false if it is not JSON in UTF-8, or jsonb
 * cannot contain it in the database's encoding (\u0000, 1e1000000, deep nesting, characters that the encoding lacks).
 * Raises only errors that the value has not caused.
 */
extern bool row_value_as_jsonb(char *value, size_t len, Datum *jsonb);

/*
 * Returns keys of rows for the audit, at most `most`. They come from this fraction of the blocks, from a random block
 * on; with fraction 0, from one block of one table or partition.
 */
extern List *row_sample_keys(const Domain *domain, double fraction, int most);

#endif
