/*
 * domain/key_index.h
 *	  The index by which the rows of a key are found, and how its columns are compared.
 */
#ifndef FENCE_KEY_INDEX_H
#define FENCE_KEY_INDEX_H

#include "access/attnum.h"
#include "utils/relcache.h"

/*
 * How the values of a key column are compared: by its operator class in that index or, without an index, by the default
 * one of its type. Takes AccessShareLock on the index, and releases it.
 */
typedef struct KeyEquality
{
	Oid			opfamily;		/* InvalidOid: the type has no btree operator class */
	Oid			input_type;		/* of the operator class */
	Oid			collation;
} KeyEquality;
extern KeyEquality domain_key_equality(Relation rel, Oid index, AttrNumber attnum);

/*
 * Returns a btree index without predicate or expressions by which the rows of a key are found; InvalidOid if there is
 * none, or if nkeys is 0. unique: returns the unique index on exactly these columns, in any order, if it is valid and
 * immediate. Otherwise: returns one that begins with these columns, in any order (for groups). If an index of these
 * columns does not qualify, *unfit says why, as a palloc'd sentence; otherwise NULL. Takes AccessShareLock on the
 * table's indexes, and releases it.
 */
extern Oid	domain_key_index(Relation rel, int nkeys, const AttrNumber *attnums, bool unique, char **unfit);

#endif
