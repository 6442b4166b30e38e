/*
 * domain/key.h
 *	  The canonical text of a key, from a row or from what a caller gives, and its names in Redis.
 *
 * Equal keys have equal text, whatever the session's settings are; different keys have different text. Each value of
 * the key is printed canonically, in UTF-8 (raises 22P05 if that is impossible, see utf8.h). Then it is percent-encoded
 * (RFC 3986: all but A-Z a-z 0-9 - . _ ~; upper-case hex); an empty value is "%00". Commas join the values. A key
 * without values, which stands for a whole table, is "*". So no data can forge a brace, colon, comma, blank or newline,
 * and all keys and names are ASCII.
 *
 *   fence name   <namespace>:f:<database oid><cluster>.<domain>:{<key>}            without a tag
 *                <namespace>:f:<database oid><cluster>.<domain>:{<tag>}:<key>      with one
 *   value name   the same with v for f
 * <cluster> is a code of the PostgreSQL cluster (base/key_text.h).
 */
#ifndef FENCE_KEY_H
#define FENCE_KEY_H

#include "executor/tuptable.h"

#include "domain/argument.h"
#include "domain/domain.h"

#define NAME_MAX_LENGTH 4000	/* bytes of a name in Redis; fence.lua refuses more than 4096 */
#define KEY_MAX_LENGTH 2000		/* bytes of canonical text; it must fit a btree tuple of fence.tombstone */

/* Returns whether the row has a key: it has none if a key column is null. */
extern bool key_is_complete(const Domain *domain, TupleTableSlot *row);

/*
 * Returns the key of a row, palloc'd. Raises 23502 if a key column is null, and 54000 if the key is longer than
 * KEY_MAX_LENGTH.
 */
extern char *key_of_row(const Domain *domain, TupleTableSlot *row);

/* Returns whether two rows have the same key. Compares bytes first, because that is cheaper than comparing texts. */
extern bool key_same(const Domain *domain, TupleTableSlot *a, TupleTableSlot *b);

/*
 * Returns the key of the values that a caller gives, palloc'd. A text is parsed by the type of its key column. A value
 * of another type is taken if argument_form lets it stand for the column's type. Raises 22023 for a wrong number of
 * values or a null, 42804 for a type that does not fit, 54000 if the key is longer than KEY_MAX_LENGTH, and whatever
 * the type's input function raises.
 */
extern char *key_of_arguments(const Domain *domain, int nparts, const Argument *parts);

/*
 * Returns a decoded part of a canonical key as the Datum that the unique index compares. May raise what the type's
 * input function raises.
 */
extern Datum key_part_datum(const KeyColumn *column, const char *part);

/*
 * Returns whether this is the canonical text of a key of the domain. May raise what the types' input functions raise.
 */
extern bool key_is_canonical(const Domain *domain, const char *key);

/*
 * Returns the fence name of a row's key, in a buffer that the next call overwrites. Raises what key_of_row raises, and
 * 54000 if the name is longer than NAME_MAX_LENGTH.
 */
extern const char *key_fence_name_of_row(const Domain *domain, TupleTableSlot *row);

/*
 * Return the names in Redis of the fence, and of the values beside it, without a suffix; palloc'd. Raise 54000 if the
 * name is longer than NAME_MAX_LENGTH.
 */
extern char *key_fence_name(const Domain *domain, const char *key);
extern char *key_value_name(const Domain *domain, const char *key);

/*
 * Checks a tag template against the names of the key columns. Raises 22023 for a character that is not allowed, a name
 * that is no key column, or if it names no key column.
 */
extern void key_check_tag(const char *tag, int nkeys, const char *const *names);

#endif
