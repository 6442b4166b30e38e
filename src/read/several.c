/*
 * read/several.c
 *	  The SQL-callable functions that read several keys that agree: fence.get_many and fence.read_many.
 *
 * Owns: when a read of several keys is tried again, and from where it is read in the end (doc/protocol.md, "Several keys").
 * Locks: none of its own; many.c and standby.c take those of a SELECT on the table, and on fence.tombstone and fence.floor.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/key_text.h"
#include "base/metrics.h"
#include "base/shared.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "read/many.h"
#include "read/reader.h"
#include "read/standby.h"

PG_FUNCTION_INFO_V1(fence_get_many);
PG_FUNCTION_INFO_V1(fence_read_many);

#define MAX_KEYS 1000			/* maximum fences of one read, because retries and a snapshot should stay short */
#define MAX_BACKOFF_US 10000000	/* maximum microseconds of one pause */

/* The item for the name of a fence. Accepts only the canonical name, which writers use. */
static ManyItem
item_of_name(const char *fence)
{
	Oid			database;
	char	   *redis_name;
	char	   *key;
	Domain	   *domain = NULL;

	if (key_parse_fence_name(fence, &database, &redis_name, &key))
		domain = domain_by_redis_name(redis_name);
	if (domain == NULL || !key_is_canonical(domain, key) || strcmp(key_fence_name(domain, key), fence) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not the name of a fence in this database", fence),
				 errhint("fence.fence_key and fence.fence_keys return the names.")));
	reader_require(domain);
	return many_item(domain, key);
}

static ManyItem *
items_argument(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *names;
	bool	   *nulls;
	ManyItem   *items;

	shared_require();
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls, n);
	if (*n > MAX_KEYS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many fences at once"),
				 errdetail("There are %d; the limit is %d.", *n, MAX_KEYS)));
	items = palloc(sizeof(ManyItem) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("the name of a fence must not be null")));
		items[i] = item_of_name(TextDatumGetCString(names[i]));
	}
	return items;
}

Datum
fence_get_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n;
	ManyItem   *items = items_argument(fcinfo, &n);

	(void) many_get(n, items, true);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		GetAnswer  *answer = &items[i].answer;
		Datum		values[6];
		bool		nulls[6];

		values[0] = reader_text(items[i].fence, &nulls[0]);
		values[1] = reader_text(many_status_name(answer->status), &nulls[1]);
		values[2] = reader_text(answer->permit, &nulls[2]);
		values[3] = reader_version(answer->version, &nulls[3]);
		values[4] = reader_payload_text(answer, &nulls[4]);
		values[5] = reader_text(answer->stamp, &nulls[5]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

typedef enum SetState
{
	SET_AGREES,					/* all items are hits, and were current together */
	SET_TORN,					/* all items are hits, but something has changed meanwhile */
	SET_BUSY,					/* a transaction is writing one of them */
	SET_INCOMPLETE				/* some item must be read from PostgreSQL in any case */
} SetState;

/* Tries once to read all items from the cache. */
static SetState
read_cache(int n, ManyItem *items)
{
	int			moment = many_get(n, items, true);
	bool		hits = true;
	bool		busy = false;

	for (int i = 0; i < n; i++)
	{
		hits = many_accept(&items[i]) && hits;
		busy = busy || items[i].answer.status == GET_PENDING;
	}
	if (!hits)
		return busy ? SET_BUSY : SET_INCOMPLETE;
	if (!many_check(n, items, moment))
	{
		metrics_add_server(SERVER_METRIC_TORN, 1);
		return SET_TORN;
	}
	return SET_AGREES;
}

/*
 * Tries to read all items from the cache, again and again while that may help. The pause between two tries doubles
 * each time.
 */
static bool
read_cache_patiently(int n, ManyItem *items, int retries, int64 pause)
{
	SetState	state = read_cache(n, items);

	for (int i = 0; i < retries && (state == SET_TORN || state == SET_BUSY); i++)
	{
		fence_pause(pause, wait_event_redis());
		pause = Min(pause * 2, MAX_BACKOFF_US);
		state = read_cache(n, items);
	}
	return state == SET_AGREES;
}

/* The strong read of all items as of one moment. A standby replaces only what the cache does not have. */
static ReadSource
read_set(int n, ManyItem *items, int retries, int64 pause)
{
	bool		may_fill = !many_written(n, items);

	if (may_fill && read_cache_patiently(n, items, retries, pause))
		return SOURCE_CACHE;
	if (RecoveryInProgress())
		return standby_read(n, items) ? SOURCE_DATABASE : SOURCE_PRIMARY;
	many_read_database(n, items, may_fill);
	return SOURCE_DATABASE;
}

static int64
backoff_argument(FunctionCallInfo fcinfo, int n)
{
	Interval   *backoff = PG_GETARG_INTERVAL_P(n);

	if (backoff->month != 0 || backoff->day != 0 || backoff->time < 0 || backoff->time > MAX_BACKOFF_US)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the backoff must be between 0 and 10 seconds")));
	return backoff->time;
}

Datum
fence_read_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			retries = PG_GETARG_INT32(1);
	int64		backoff = backoff_argument(fcinfo, 2);
	int			n;
	ManyItem   *items = items_argument(fcinfo, &n);
	ReadSource	source;

	if (retries < 0 || retries > 100)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the number of retries must be between 0 and 100")));
	for (int i = 0; i < n; i++)
		reader_require_source(items[i].domain);
	source = read_set(n, items, retries, backoff);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		ManyItem   *item = &items[i];
		Datum		values[5];
		bool		nulls[5] = {false};

		values[0] = CStringGetTextDatum(item->fence);
		nulls[1] = nulls[2] = source == SOURCE_PRIMARY || !item->found;
		values[1] = Int64GetDatum(item->version);
		values[2] = item->row;
		values[3] = reader_text(source == SOURCE_CACHE && item->answer.stamp && *item->answer.stamp ? item->answer.stamp : NULL,
								&nulls[3]);
		values[4] = CStringGetTextDatum(reader_source_name(source));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
