/*
 * patrol/effect_outbox.c
 *	  Applies durable effects from their committed rows in fence.outbox, and deletes the rows.
 *
 * Owns: the rows of fence.outbox once they are committed. effects/effect_row.c inserts a row together with its
 * effect, so other transactions see it only if its transaction commits. A round of the patrol, in a short-lived
 * worker in that database, then makes sure that the effect was applied, and deletes the row. Until the row is gone,
 * Redis keeps a mark beside the key, in the same slot. The mark makes a second apply do nothing. Redis loses key and
 * mark together or not at all. After that the round lets Redis forget
 * the mark.
 *
 * Locks: RowExclusiveLock on the table, as any writer.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "base/bgworker.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/catalog.h"
#include "patrol/effect_outbox.h"
#include "patrol/effect_patrol.h"

#define ROWS_AT_ONCE 500

static char *
column(int row, int n)
{
	char	   *text = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, n);

	return text ? utf8_of_string(text) : NULL;
}

/*
 * Applies the effect of this row, unless it was applied before. False: it cannot be applied now, so the row must
 * stay.
 */
static bool
redo_row(int row)
{
	bool		isnull;
	Datum		array = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 6, &isnull);
	Datum	   *arguments;
	int			n;
	const char **strings;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT, &arguments, NULL, &n);
	strings = palloc(sizeof(char *) * (n + 1));
	for (int i = 0; i < n; i++)
		strings[i] = utf8_of_string(TextDatumGetCString(arguments[i]));
	return effect_patrol_redo(column(row, 3), column(row, 4), column(row, 2), column(row, 5), n, strings);
}

/* Applies the next committed rows after that id, and deletes them. False: there are no more. */
static bool
redo_rows(int64 *after)
{
	Oid			types[] = {INT8OID};
	Datum		id[] = {Int64GetDatum(*after)};
	SPITupleTable *rows;
	uint64		n;

	worker_begin_transaction();
	/* Once Redis has forgotten the mark, the row would be applied again. So a crash must not bring the row back. */
	ForceSyncCommit();
	SPI_connect();
	/* This transaction sees only committed rows. */
	if (SPI_execute_with_args("SELECT id, hold, key, other_key, kind, arguments FROM fence.outbox"
							  " WHERE id OPERATOR(pg_catalog.>) $1"
							  " ORDER BY id LIMIT " CppAsString2(ROWS_AT_ONCE), 1, types, id, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read fence.outbox");
	rows = SPI_tuptable;
	n = SPI_processed;
	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		SPI_tuptable = rows;
		id[0] = SPI_getbinval(rows->vals[row], rows->tupdesc, 1, &isnull);
		*after = DatumGetInt64(id[0]);
		if (redo_row(row) &&
			SPI_execute_with_args("DELETE FROM fence.outbox WHERE id OPERATOR(pg_catalog.=) $1",
								  1, types, id, NULL, false, 0) != SPI_OK_DELETE)
			elog(ERROR, "could not delete from fence.outbox");
	}
	SPI_finish();
	worker_end_transaction();
	return n == ROWS_AT_ONCE;
}

/*
 * Whether there is a row of that hold, in a snapshot taken now. The caller has a transaction and is connected to SPI.
 */
static bool
has_row(const char *hold)
{
	Oid			types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(utf8_to_display(hold))};

	if (SPI_execute_with_args("SELECT 1 FROM fence.outbox WHERE hold OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read fence.outbox");
	return SPI_processed > 0;
}

bool
effect_outbox_round(int64 until)
{
	int64		after = 0;
	List	   *marks;
	ListCell   *cell;
	bool		exists;

	worker_begin_transaction();
	exists = OidIsValid(fence_table_oid("outbox"));
	worker_end_transaction();
	while (exists && redo_rows(&after))
		if (fence_clock() >= until)
			return false;

	/*
	 * Let Redis forget marks whose rows are gone, also if the whole table is gone. List the marks first and look for
	 * their rows afterwards. In the other order a row that commits in between would lose its mark.
	 */
	marks = effect_patrol_marks(MyDatabaseId);
	worker_begin_transaction();
	exists = OidIsValid(fence_table_oid("outbox"));
	SPI_connect();
	foreach(cell, marks)
	{
		ListedEffect *mark = lfirst(cell);

		if (!exists || !has_row(mark->hold))
			effect_patrol_forget(mark->key, mark->hold);
		if (fence_clock() >= until)
			break;
	}
	SPI_finish();
	worker_end_transaction();
	return cell == NULL;
}
