/*
 * domain/key.h
 *	  From a row, or from what a caller spells, to the one canonical text of its key, and to the names in Redis.
 *
 * Equal keys have equal text, whatever the session's settings; different keys have different text. Each key value is
 * printed canonically, in UTF-8 (utf8.h: raises 22P05 if it has none), and percent-encoded (RFC 3986: all but A-Z a-z 0-9
 * - . _ ~; upper-case hex), an empty value is "%00"; values are joined with commas. The key of no values, of a table that is one group
 * as a whole, is "*". So no data can forge a brace, colon,
 * comma, blank or newline, and keys and names are ASCII.
 *
 *   fence name   <namespace>:f:<database oid>.<domain>:{<key>}            without a tag
 *                <namespace>:f:<database oid>.<domain>:{<tag>}:<key>      with one
 *   value name   the same with v for f
 */
#ifndef FENCE_KEY_H
#define FENCE_KEY_H

#include "executor/tuptable.h"

#include "domain/argument.h"
#include "domain/domain.h"

#define NAME_MAX_LENGTH 4000	/* bytes of a name in Redis; fence.lua refuses longer ones than 4096 */
#define KEY_MAX_LENGTH 2000		/* bytes of canonical text; it must fit a btree tuple of fence.tombstone */

/* Whether no key column of the row is null: only then it has a key. */
extern bool key_is_complete(const Domain *domain, TupleTableSlot *row);

/* The key of a row, palloc'd. Raises 54000 if it is longer than KEY_MAX_LENGTH. */
extern char *key_of_row(const Domain *domain, TupleTableSlot *row);

/* Whether two rows have the same key; cheaper than comparing texts. */
extern bool key_same(const Domain *domain, TupleTableSlot *a, TupleTableSlot *b);

/*
 * The key that a caller gives: texts are parsed by their columns' types, of other types are taken those that argument.c lets
 * stand for the column's. Palloc'd. Raises 22023 for a wrong number of parts or a NULL, 42804 for a type that does not fit, 54000 if it
 * is longer than KEY_MAX_LENGTH, and whatever the type's input function raises.
 */
extern char *key_of_arguments(const Domain *domain, int nparts, const Argument *parts);

/* A decoded part of a canonical key as the Datum that the unique index compares. May raise what the type's input raises. */
extern Datum key_part_datum(const KeyColumn *column, const char *part);

/* Whether this is the canonical text of a key of the domain. May raise what the types' input functions raise. */
extern bool key_is_canonical(const Domain *domain, const char *key);

/* The fence name of a row's key, in memory that the next call uses again. Raises 54000 if it is too long. */
extern const char *key_fence_name_of_row(const Domain *domain, TupleTableSlot *row);

/* Names in Redis, palloc'd. */
extern char *key_fence_name(const Domain *domain, const char *key);
extern char *key_value_name(const Domain *domain, const char *key);

/* Checks a tag template against the key columns; raises 22023. */
extern void key_check_tag(const char *tag, int nkeys, const char *const *names);

#endif
