/*
 * key_index.c
 *	  By which index the rows of a key are found, and how its columns are compared; declared in domain.h.
 *
 * Must never: evaluate an index' expressions or predicate. That would run functions of the table's owner as whoever
 * asks, which may be a worker with a superuser's rights.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "commands/defrem.h"
#include "nodes/readfuncs.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "domain.h"

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
 * The index' expressions as they are stored. Not RelationGetIndexExpressions: that evaluates what is constant, and so
 * runs functions of the table's owner as whoever asks, which may be a worker with a superuser's rights.
 */
static Node *
raw_expressions(Relation irel)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(RelationGetRelid(irel)));
	bool		isnull = true;
	Node	   *expressions = NULL;
	Datum		stored;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	stored = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indexprs, &isnull);
	if (!isnull)
		expressions = stringToNode(TextDatumGetCString(stored));
	ReleaseSysCache(tuple);
	return expressions;
}

/* Whether the index' columns, those in its expressions included, are the key's and no others. */
static bool
index_covers(Relation irel, int nkeys, const AttrNumber *attnums, bool *expressions)
{
	Bitmapset  *wanted = NULL;
	Bitmapset  *indexed = NULL;
	Node	   *exprs = raw_expressions(irel);
	bool		same;

	for (int i = 0; i < nkeys; i++)
		wanted = bms_add_member(wanted, attnums[i] - FirstLowInvalidHeapAttributeNumber);
	for (int i = 0; i < irel->rd_index->indnkeyatts; i++)
		if (irel->rd_index->indkey.values[i] != 0)
			indexed = bms_add_member(indexed,
									 irel->rd_index->indkey.values[i] - FirstLowInvalidHeapAttributeNumber);
	pull_varattnos(exprs, 1, &indexed);
	*expressions = exprs != NULL;
	same = bms_equal(wanted, indexed);
	bms_free(wanted);
	bms_free(indexed);
	return same;
}

/* Why uniqueness of this index cannot be relied on at every moment, or NULL. */
static const char *
index_unfit(Relation irel, bool expressions)
{
	if (expressions)
		return "is on an expression";
	if (!heap_attisnull(irel->rd_indextuple, Anum_pg_index_indpred, NULL))
		return "is partial";
	if (!irel->rd_index->indimmediate)
		return "is deferrable";
	if (!irel->rd_index->indisvalid)
		return "is not valid";
	if (irel->rd_rel->relam != BTREE_AM_OID)
		return "is no btree";
	return NULL;
}

Oid
domain_key_index(Relation rel, int nkeys, const AttrNumber *attnums, const char **unfit, char **unfit_name)
{
	List	   *indexes = RelationGetIndexList(rel);
	Oid			found = InvalidOid;
	ListCell   *lc;

	if (unfit != NULL)
	{
		*unfit = NULL;
		*unfit_name = NULL;
	}
	foreach(lc, indexes)
	{
		Relation	irel = index_open(lfirst_oid(lc), AccessShareLock);
		bool		expressions;

		if (irel->rd_index->indisunique && index_covers(irel, nkeys, attnums, &expressions))
		{
			const char *why = index_unfit(irel, expressions);

			if (why == NULL)
				found = lfirst_oid(lc);
			else if (unfit != NULL)
			{
				*unfit = why;
				*unfit_name = pstrdup(RelationGetRelationName(irel));
			}
		}
		index_close(irel, AccessShareLock);
		if (OidIsValid(found))
			break;
	}
	list_free(indexes);
	return found;
}

Oid
domain_group_index(Relation rel, int nkeys, const AttrNumber *attnums)
{
	List	   *indexes = RelationGetIndexList(rel);
	Oid			found = InvalidOid;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	irel = index_open(lfirst_oid(lc), AccessShareLock);
		int			matching = 0;

		for (int i = 0; i < nkeys && nkeys <= irel->rd_index->indnkeyatts; i++)
			for (int j = 0; j < nkeys; j++)
				matching += irel->rd_index->indkey.values[i] == attnums[j];
		if (matching == nkeys && irel->rd_index->indisvalid && irel->rd_rel->relam == BTREE_AM_OID &&
			heap_attisnull(irel->rd_indextuple, Anum_pg_index_indpred, NULL))
			found = lfirst_oid(lc);
		index_close(irel, AccessShareLock);
		if (OidIsValid(found))
			break;
	}
	list_free(indexes);
	return found;
}
