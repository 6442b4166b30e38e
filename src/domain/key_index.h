/*
 * domain/key_index.h
 *	  By which index the rows of a key are found, and how its columns are compared.
 */
#ifndef FENCE_KEY_INDEX_H
#define FENCE_KEY_INDEX_H

#include "access/attnum.h"
#include "utils/relcache.h"

/* How the values of a key column are compared: its operator class in the unique index, else the type's default. */
typedef struct KeyEquality
{
	Oid			opfamily;		/* InvalidOid: the type has no order, hence no unique index */
	Oid			input_type;		/* of the operator class */
	Oid			collation;
} KeyEquality;
extern KeyEquality domain_key_equality(Relation rel, Oid index, AttrNumber attnum);

/*
 * A plain btree index by which rows of a key are found; InvalidOid if there is none. unique: the one on exactly these columns, in any
 * order, that can be relied on at every moment. Else one whose first columns they are, in any order: for groups. *unfit tells of one
 * that it cannot be, and why, as a sentence; NULL: there is none of these columns.
 */
extern Oid	domain_key_index(Relation rel, int nkeys, const AttrNumber *attnums, bool unique, char **unfit);

#endif
