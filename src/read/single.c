/*
 * read/single.c
 *	  The SQL-callable functions that read and put one key.
 *
 * Owns: the rules for reading one key through SQL and filling the cache (doc/clients.md, "Rules"). A reader reads
 * PostgreSQL after Redis has answered, in a snapshot that it takes after that.
 * Locks: none of its own; many.c, standby.c and tombstone.c take those of a SELECT on the table and on fence.tombstone.
 * Never: puts a row that was read in an older snapshot, though it may return such a row. Never puts in a domain in
 * which its own transaction has written.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/key.h"
#include "domain/sql_function.h"
#include "domain/tombstone.h"
#include "read/many.h"
#include "read/reader.h"
#include "read/standby.h"
#include "send/ledger.h"

PG_FUNCTION_INFO_V1(fence_group_version);
PG_FUNCTION_INFO_V1(fence_get);
PG_FUNCTION_INFO_V1(fence_read);
PG_FUNCTION_INFO_V1(fence_try_read);
PG_FUNCTION_INFO_V1(fence_put);
PG_FUNCTION_INFO_V1(fence_peek);

/* Reads the version in the statement's snapshot, as the statement reads the rows of the group. */
Datum
fence_group_version(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 1, domain);

	reader_require(domain);
	if (!domain->version_aside)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("domain \"%s\" has no group versions", domain->name),
				 errhint("Read the version column of the row.")));
	PG_RETURN_INT64(tombstone_group_version(domain->id, key, GetActiveSnapshot()));
}

Datum
fence_get(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	ManyItem	item = many_item(domain, key_argument(fcinfo, 1, domain));
	Datum		values[4];
	bool		nulls[4];

	reader_require(domain);
	(void) many_get(1, &item, true);
	values[0] = reader_text(many_status_name(item.answer.status), &nulls[0]);
	values[1] = reader_text(item.answer.permit, &nulls[1]);
	values[2] = reader_version(item.answer.version, &nulls[2]);
	values[3] = reader_payload_text(&item.answer, &nulls[3]);
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

#define FILL_PAUSE_US	INT64CONST(1000)	/* first pause between two looks for a value that another reader is about to put */
#define FILLERS_AWAITED 2		/* wait for a second reader too: if the first dies, not all others may read PostgreSQL at once */

/*
 * A strong get that waits for another reader. While that reader has a fill lease, this looks again and again for the
 * value that it is about to put, but not longer than the lease lasts. Without fill leases, a miss needs no second
 * call to Redis. Interruptible. False: a standby must not wait, and read, any longer (reader_pause).
 */
static bool
patient_get(ManyItem *item)
{
	const GetAnswer *answer = &item->answer;

	(void) many_get(1, item, setting_fill_lease > 0);
	for (int filler = 0; filler < FILLERS_AWAITED && answer->busy_ms > 0; filler++)
	{
		int64		deadline = fence_clock() + Min(answer->busy_ms, FILL_LEASE_MAX_MS) * INT64CONST(1000);
		int64		pause = FILL_PAUSE_US;
		int64		left;

		while (answer->busy_ms > 0 && (left = deadline - fence_clock()) > 0)
		{
			if (!reader_pause(Min(pause, left), wait_event_redis()))
				return false;
			pause *= 2;
			(void) many_ask_why(1, item, 0);
		}
	}
	return true;
}

/* The strong read of one row. It sets found, row and version, unless the answer is SOURCE_PRIMARY. */
static ReadSource
read_item(ManyItem *item)
{
	reader_require_source(item->domain);
	reader_require(item->domain);
	item->answer = (GetAnswer) {.status = GET_UNAVAILABLE};
	if (ledger_has_written(item->domain))
		metrics_add(item->domain->metrics, METRIC_FALLBACK_OWN_WRITE, 1);
	else if (!patient_get(item))
	{
		metrics_add(item->domain->metrics, METRIC_STANDBY_PRIMARY, 1);
		return SOURCE_PRIMARY;
	}
	if (many_accept(item))
		return SOURCE_CACHE;
	if (RecoveryInProgress())
		return item->answer.status == GET_MISS && standby_read(1, item) ? SOURCE_DATABASE : SOURCE_PRIMARY;
	many_read_database(1, item, true);
	return SOURCE_DATABASE;
}

Datum
fence_read(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	ManyItem	item = many_item(domain, key_argument(fcinfo, 1, domain));

	if (read_item(&item) == SOURCE_PRIMARY)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this standby cannot tell whether its row of key \"%s\" in domain \"%s\" is current", item.key,
						domain->name),
				 errdetail("The cache answered: %s.", many_status_name(item.answer.status)),
				 errhint("Read from the primary server. fence.try_read returns the source \"primary\" instead of this error.")));
	if (!item.found)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(item.row);
}

/* The same, but it says from where the row is, and raises no error if that must be the primary. */
Datum
fence_try_read(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	ManyItem	item = many_item(domain, key_argument(fcinfo, 1, domain));
	ReadSource	source = read_item(&item);
	Datum		values[3];
	bool		nulls[3] = {false};

	nulls[0] = nulls[1] = source == SOURCE_PRIMARY || !item.found;
	values[0] = Int64GetDatum(item.version);
	values[1] = item.row;
	values[2] = CStringGetTextDatum(reader_source_name(source));
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

Datum
fence_put(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 5, domain);
	char	   *payload;
	const char *answer;

	if (PG_ARGISNULL(1) || PG_ARGISNULL(2) || PG_ARGISNULL(3))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("permit, version and payload must not be null")));
	if (PG_GETARG_INT64(2) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a version must not be negative")));
	if (ledger_has_written(domain))
		PG_RETURN_TEXT_P(cstring_to_text("refused this transaction has written in the domain"));
	if (RecoveryInProgress())
		PG_RETURN_TEXT_P(cstring_to_text("refused this server is a standby"));
	payload = utf8_of_string(text_to_cstring(PG_GETARG_TEXT_PP(3)));
	answer = reader_put(key_fence_name(domain, key), text_to_cstring(PG_GETARG_TEXT_PP(1)), PG_GETARG_INT64(2),
						payload, strlen(payload),
						PG_ARGISNULL(4) ? domain->ttl_ms : value_ttl_ms_of(PG_GETARG_INTERVAL_P(4)));
	PG_RETURN_TEXT_P(cstring_to_text(answer ? answer : "refused unavailable"));
}

/*
 * The eventual read: returns what is stored, current or not. It asks Redis also while fences are not OPEN, unless it
 * knows that Redis is down.
 */
Datum
fence_peek(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	ManyItem	item = many_item(domain, key_argument(fcinfo, 1, domain));
	const GetAnswer *found = &item.answer;
	Datum		values[4];
	bool		nulls[4];

	reader_require(domain);
	many_peek(&item);
	values[0] = reader_text(!found->answered ? "unavailable" : !found->payload ? "none" :
							found->status == GET_HIT ? "fresh" : "unknown", &nulls[0]);
	values[1] = reader_version(found->version, &nulls[1]);
	values[2] = reader_payload_text(found, &nulls[2]);
	values[3] = reader_text(found->stamp, &nulls[3]);
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}
