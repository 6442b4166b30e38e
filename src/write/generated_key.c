/*
 * write/generated_key.c
 *	  The values of generated key columns of a new row; see generated_key.h.
 *
 * PostgreSQL computes generated columns after all BEFORE triggers. Our BEFORE trigger needs the keys of the new row
 * earlier, so it evaluates the same expressions itself. PostgreSQL evaluates them again a moment later, for the same user,
 * and stores the result. Our AFTER trigger looks at the stored row. So if another trigger changes the row after our BEFORE
 * trigger, this costs one more message, and no key is forgotten.
 *
 * Owns: the evaluation of these expressions.
 * Locks: none.
 * Never: changes a row.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "rewrite/rewriteHandler.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "write/generated_key.h"

struct GeneratedKeys
{
	ExprContext *context;
	TupleTableSlot *row;		/* what generated_key_compute returns */
	ExprState **values;			/* one for each column of the relation; NULL if it is not a generated key column */
};

bool
generated_key_any(const Domain *domains)
{
	while (domains != NULL && !domains->generated_key)
		domains = domains->next;
	return domains != NULL;
}

static ExprState *
prepare_column(Relation rel, AttrNumber attnum, EState *estate)
{
	Node	   *expression = build_column_default(rel, attnum);

	if (expression == NULL)
		elog(ERROR, "generated column %d of table \"%s\" has no expression", attnum, RelationGetRelationName(rel));
	return ExecPrepareExpr((Expr *) expression, estate);
}

GeneratedKeys *
generated_key_prepare(const Domain *domains, Relation rel, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	GeneratedKeys *keys = palloc(sizeof(GeneratedKeys));
	EState	   *estate = CreateExecutorState();
	TupleDesc	desc = RelationGetDescr(rel);

	keys->context = CreateExprContext(estate);
	/* a copy, because a slot pins the relation's own descriptor, and nobody tells us when to drop the slot */
	keys->row = MakeTupleTableSlot(CreateTupleDescCopy(desc), &TTSOpsVirtual);
	keys->context->ecxt_scantuple = keys->row;
	keys->values = palloc0(sizeof(ExprState *) * desc->natts);
	for (const Domain *domain = domains; domain != NULL; domain = domain->next)
		for (int i = 0; i < domain->nkeys; i++)
		{
			AttrNumber	attnum = domain->keys[i].attnum;

			if (TupleDescAttr(desc, attnum - 1)->attgenerated != '\0' && keys->values[attnum - 1] == NULL)
				keys->values[attnum - 1] = prepare_column(rel, attnum, estate);
		}
	MemoryContextSwitchTo(old);
	return keys;
}

TupleTableSlot *
generated_key_compute(GeneratedKeys *keys, TupleTableSlot *row)
{
	TupleTableSlot *result = keys->row;
	int			natts = result->tts_tupleDescriptor->natts;

	slot_getallattrs(row);
	ExecClearTuple(result);
	memcpy(result->tts_values, row->tts_values, sizeof(Datum) * natts);
	memcpy(result->tts_isnull, row->tts_isnull, sizeof(bool) * natts);
	result->tts_tableOid = row->tts_tableOid;
	ExecStoreVirtualTuple(result);
	ResetExprContext(keys->context);
	for (int i = 0; i < natts; i++)
		if (keys->values[i] != NULL)
			result->tts_values[i] = ExecEvalExprSwitchContext(keys->values[i], keys->context, &result->tts_isnull[i]);
	return result;
}
