/*
 * effects/effect_row.c
 *	  Writes the row of a durable effect to fence.outbox. patrol/effect_outbox.c applies and deletes it.
 *
 * It inserts the row together with the effect, in the same transaction. So other transactions see the row only if
 * that transaction commits.
 *
 * Locks: RowExclusiveLock on the table, as any writer.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "base/utf8.h"
#include "domain/catalog.h"
#include "effects/effect_row.h"

/*
 * A string of the request as a Datum. The string came from text in this database's encoding, so it can be converted
 * back.
 */
static Datum
text_datum(const char *utf8)
{
	return CStringGetTextDatum(utf8_to_text(utf8, strlen(utf8)));
}

static ArrayType *
text_array(int n, const char **strings)
{
	Datum	   *values = palloc(sizeof(Datum) * (n + 1));

	for (int i = 0; i < n; i++)
		values[i] = text_datum(strings[i]);
	return construct_array(values, n, TEXTOID, -1, false, TYPALIGN_INT);
}

void
effect_row_insert(const char *hold, const EffectCall *call)
{
	Oid			types[] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTARRAYOID};
	Datum		values[5];
	char		nulls[] = "     ";
	Relation	table = fence_table_open("outbox", RowExclusiveLock);
	Oid			user;
	int			context;

	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("the tables of extension pgcache_fence do not exist in this database")));
	values[0] = CStringGetTextDatum(hold);
	values[1] = text_datum(call->key);
	values[2] = call->other_key ? text_datum(call->other_key) : (Datum) 0;
	nulls[2] = call->other_key ? ' ' : 'n';
	values[3] = CStringGetTextDatum(call->kind);
	values[4] = PointerGetDatum(call->nrow > 0 ? text_array(call->nrow, call->row) :
								text_array(call->nargs, (const char **) call->args));

	/* The user has no privilege on fence.outbox, so insert as its owner. */
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(table->rd_rel->relowner, context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	if (SPI_execute_with_args("INSERT INTO fence.outbox (hold, key, other_key, kind, arguments) VALUES ($1, $2, $3, $4, $5)",
							  5, types, values, nulls, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not insert into fence.outbox");
	SPI_finish();
	SetUserIdAndSecContext(user, context);
	table_close(table, NoLock);
}
