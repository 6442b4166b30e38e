/*
 * read/warm.c
 *	  The procedure fence.warm: fills in the values of many keys on purpose.
 *
 * Owns: a cursor on the keys, which PostgreSQL holds over the commits between batches.
 * Locks: those of many.c, and of the caller's query, until the end of each batch.
 * Never: puts what a reader with the same rights could not put, by the same proof.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "base/shared.h"
#include "base/word.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/sql_function.h"
#include "read/many.h"
#include "read/reader.h"
#include "send/ledger.h"

PG_FUNCTION_INFO_V1(fence_warm);

#define BATCH_MAX	10000
#define TRIES		5			/* for one batch: Redis may have to open buckets first, or a write was faster */
#define PAUSE_US	INT64CONST(20000)

typedef struct Warming
{
	char	   *name;			/* of the domain */
	bool		atomic;			/* the caller is in a transaction block, which a batch must not commit */
	int			batch;
	int64		keys;
	int64		filled;
} Warming;

/* The domain, as it is in the present transaction. Raises an error if it cannot be filled now. */
static Domain *
domain_to_warm(const Warming *warming)
{
	Domain	   *domain = domain_by_name(warming->name, false);

	reader_require_source(domain);
	reader_require(domain);
	PreventCommandDuringRecovery("fence.warm");
	if (ledger_has_written(domain) || IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this transaction cannot fill in values of domain \"%s\"", domain->name),
				 errdetail("It has written in the domain, or its isolation level is not READ COMMITTED.")));
	if (WORD_STATE(fence_word_expire()) != FENCE_OPEN)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("fences are not OPEN"),
				 errdetail("%lld values were filled in before.", (long long) warming->filled),
				 errhint("SELECT fence.wait_open(), and call fence.warm again: it passes over what is cached.")));
	return domain;
}

/* The query for all keys of the domain's table */
static char *
query_of_all(const Domain *domain)
{
	StringInfoData sql;

	if (domain->tables != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("domain \"%s\" has several tables: pass a query for the keys", domain->name)));
	initStringInfo(&sql);
	appendStringInfoString(&sql, domain->scope == SCOPE_GROUP && domain->nkeys > 0 ? "SELECT DISTINCT" : "SELECT");
	for (int i = 0; i < domain->nkeys; i++)
		appendStringInfo(&sql, "%s %s", i > 0 ? "," : "", quote_identifier(domain->keys[i].name));
	appendStringInfo(&sql, " FROM %s%s",
					 quote_qualified_identifier(get_namespace_name(get_rel_namespace(domain->relid)), get_rel_name(domain->relid)),
					 domain->nkeys > 0 ? "" : " LIMIT 1");
	return sql.data;
}

/* Makes the items for the keys that the cursor has fetched. Returns their number; a key with a null is none. */
static int
items_of_rows(Domain *domain, ManyItem *items)
{
	TupleDesc	desc = SPI_tuptable->tupdesc;
	Argument   *parts = palloc(sizeof(Argument) * (desc->natts + 1));
	int			n = 0;

	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		complete = true;

		for (int a = 0; a < desc->natts; a++)
		{
			parts[a].type = SPI_gettypeid(desc, a + 1);
			parts[a].value = SPI_getbinval(SPI_tuptable->vals[i], desc, a + 1, &parts[a].isnull);
			complete = complete && !parts[a].isnull;
		}
		if (complete)
			items[n++] = many_item(domain, key_of_arguments(domain, desc->natts, parts));
	}
	return n;
}

/* Reads and puts the rows of these items. Returns whether all are stored; *n: those that have something to store. */
static bool
read_and_put(int *n, ManyItem *items)
{
	bool		may_put;
	Snapshot	snapshot = many_snapshot(*n, items, &may_put);
	int			left = 0;

	many_read_rows(*n, items, snapshot);
	UnregisterSnapshot(snapshot);
	for (int i = 0; i < *n; i++)
		if (items[i].version != NO_VERSION)
			items[left++] = items[i];
	*n = left;
	return many_put_rows(left, items);
}

/* Fills in what is missing of a batch. Returns how many values are there now that were not before. */
static int64
fill_batch(int n, ManyItem *items)
{
	int64		filled = 0;

	for (int i = 0; n > 0 && i < TRIES; i++)
	{
		int			missed = 0;

		(void) many_get(n, items, false);
		for (int k = 0; k < n; k++)
		{
			if (items[k].answer.status == GET_MISS)
				items[missed++] = items[k];
			else if (i > 0 && items[k].answer.status == GET_HIT)
				filled++;
		}
		n = missed;
		if (read_and_put(&n, items))
			return filled + n;
		fence_pause(PAUSE_US, wait_event_redis());
	}
	return filled;
}

static void
warm_batch(Warming *warming)
{
	Domain	   *domain = domain_to_warm(warming);
	ManyItem   *items = palloc(sizeof(ManyItem) * SPI_processed);
	int			n = items_of_rows(domain, items);

	warming->keys += n;
	warming->filled += fill_batch(n, items);
	pgstat_report_activity(STATE_RUNNING,
						   psprintf("fence.warm: %lld keys of domain \"%s\" done, %lld values filled in",
									(long long) warming->keys, warming->name, (long long) warming->filled));
}

/* Walks through the keys. Ends the transaction after each batch, so that a long walk holds up no VACUUM. */
static void
warm_keys(Warming *warming, const char *sql)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "fence.warm", ALLOCSET_DEFAULT_SIZES);
	SPIPlanPtr	plan = SPI_prepare(sql, 0, NULL);
	Portal		keys;

	if (plan == NULL)
		elog(ERROR, "could not execute \"%s\"", sql);
	keys = SPI_cursor_open(NULL, plan, NULL, NULL, true);
	PinPortal(keys);			/* so that a commit keeps it */
	for (;;)
	{
		MemoryContext before;

		SPI_cursor_fetch(keys, true, warming->batch);
		if (SPI_processed == 0)
			break;
		before = MemoryContextSwitchTo(context);
		warm_batch(warming);
		MemoryContextSwitchTo(before);
		MemoryContextReset(context);
		SPI_freetuptable(SPI_tuptable);
		if (!warming->atomic)
		{
			SPI_commit();
			EnsurePortalSnapshotExists();
		}
	}
	UnpinPortal(keys);
	SPI_cursor_close(keys);
}

Datum
fence_warm(PG_FUNCTION_ARGS)
{
	CallContext *call = (CallContext *) fcinfo->context;
	Warming		warming = {.atomic = call == NULL || !IsA(call, CallContext) || call->atomic};
	Datum		values[2];
	bool		nulls[2] = {false};

	shared_require();
	if (PG_ARGISNULL(0) || PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("domain and batch must not be null")));
	warming.batch = PG_GETARG_INT32(2);
	if (warming.batch < 1 || warming.batch > BATCH_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the batch must be between 1 and %d", BATCH_MAX)));
	if (SPI_connect_ext(warming.atomic ? 0 : SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	warming.name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	warm_keys(&warming, PG_ARGISNULL(1) ? query_of_all(domain_to_warm(&warming)) : text_to_cstring(PG_GETARG_TEXT_PP(1)));
	SPI_finish();
	values[0] = Int64GetDatum(warming.keys);
	values[1] = Int64GetDatum(warming.filled);
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}
