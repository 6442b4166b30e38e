/*
 * domain/key_index.c
 *	  The index by which the rows of a key are found, and how its columns are compared; see key_index.h.
 *
 * Never evaluates an index' expressions or predicate. That would run functions of the table's owner with the rights of
 * the caller, who may be a worker with a superuser's rights.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "commands/defrem.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "domain/key_index.h"

KeyEquality
domain_key_equality(Relation rel, Oid index, AttrNumber attnum)
{
	KeyEquality eq = {InvalidOid, InvalidOid, InvalidOid};
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);

	if (OidIsValid(index))
	{
		Relation	irel = index_open(index, AccessShareLock);

		for (int i = 0; i < irel->rd_index->indnkeyatts; i++)
			if (irel->rd_index->indkey.values[i] == attnum)
			{
				eq.opfamily = irel->rd_opfamily[i];
				eq.input_type = irel->rd_opcintype[i];
				eq.collation = irel->rd_indcollation[i];
			}
		index_close(irel, AccessShareLock);
	}
	else
	{
		Oid			opclass = GetDefaultOpClass(att->atttypid, BTREE_AM_OID);

		if (OidIsValid(opclass))
		{
			eq.opfamily = get_opclass_family(opclass);
			eq.input_type = get_opclass_input_type(opclass);
			eq.collation = att->attcollation;
		}
	}
	return eq;
}

/*
 * Returns whether the first n columns of the index are the wanted ones. *expression says that an expression is among
 * them. It may stand for a wanted column that is missing; we do not look at it.
 */
static bool
index_covers(const FormData_pg_index *index, int n, const Bitmapset *wanted, bool *expression)
{
	Bitmapset  *indexed = NULL;

	for (int i = 0; i < Min(n, index->indnkeyatts); i++)
		indexed = bms_add_member(indexed, index->indkey.values[i]);
	*expression = bms_is_member(0, indexed);
	return *expression ? bms_is_subset(bms_del_member(indexed, 0), wanted) : bms_equal(indexed, wanted);
}

/*
 * Returns why this index cannot find the rows or, if it is to be unique, does not guarantee uniqueness at every moment.
 * NULL: it can.
 */
static const char *
index_unfit(Relation irel, bool unique, bool expression)
{
	if (expression)
		return "is on an expression";
	if (!heap_attisnull(irel->rd_indextuple, Anum_pg_index_indpred, NULL))
		return "is partial";
	if (unique && !irel->rd_index->indimmediate)
		return "is deferrable";
	if (!irel->rd_index->indisvalid)
		return "is not valid";
	if (irel->rd_rel->relam != BTREE_AM_OID)
		return "is not a btree";
	return NULL;
}

Oid
domain_key_index(Relation rel, int nkeys, const AttrNumber *attnums, bool unique, char **unfit)
{
	Oid			found = InvalidOid;
	Bitmapset  *wanted = NULL;
	ListCell   *lc;

	*unfit = NULL;
	if (nkeys == 0)
		return InvalidOid;		/* all rows have the same key */
	for (int i = 0; i < nkeys; i++)
		wanted = bms_add_member(wanted, attnums[i]);
	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	irel = index_open(lfirst_oid(lc), AccessShareLock);
		const FormData_pg_index *index = irel->rd_index;
		bool		expression;

		if ((index->indisunique || !unique) && index_covers(index, unique ? index->indnkeyatts : nkeys, wanted, &expression))
		{
			const char *why = index_unfit(irel, unique, expression);

			if (why == NULL)
				found = lfirst_oid(lc);
			else
				*unfit = psprintf("Index \"%s\" %s.", RelationGetRelationName(irel), why);
		}
		index_close(irel, AccessShareLock);
		if (OidIsValid(found))
			break;
	}
	return found;
}
