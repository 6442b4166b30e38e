/*
 * write/detached.c
 *	  Detached reservations: fence.reserve, commit and abort, for work that spans several transactions.
 *
 * Owns: fence.reservation, the durable side. A detached reservation stands as long as its row is there: that is its fate,
 * as the commit log is a transaction's. Redis holds it under the stamp "<stamp of the transaction that made it>.<id>", so
 * the patrol knows whom to ask. It is a veto on serving and nothing else: what writes the key has reservations of its own.
 *   - The row is inserted first and Redis asked second, both by one transaction, whose PRE_COMMIT treats it like a row that
 *     it wrote: acknowledged under the word, commit flag, the same word. So who is granted slots is told of the row (workers look
 *     after the commit flags are gone), or the transaction reserves again under the new word.
 *   - A row is deleted by commit or abort, in their transaction, or by the patrol once the lease is over. Then the patrol ends
 *     the reservation in Redis.
 * Nothing here runs in COMMIT or ABORT but a flag.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/key_text.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/stamp.h"
#include "domain/catalog.h"
#include "domain/key.h"
#include "domain/sql_function.h"
#include "domain/version.h"
#include "send/ledger.h"
#include "write/detached.h"
#include "write/explicit.h"

#define MAX_STANDING	100		/* for one key: Redis goes through them when one is made or ends */

/* The stamp in Redis of the reservation whose row is r. */
#define RESERVATION_STAMP "pg_catalog.concat(r.creator, '.', r.id)"

PG_FUNCTION_INFO_V1(fence_reserve);
PG_FUNCTION_INFO_V1(fence_commit);
PG_FUNCTION_INFO_V1(fence_abort);

static bool has_ended = false;	/* this transaction has deleted a row */

/* -----------------------------------------------------------------------------------------------------------------
 * The rows. The functions that come here are the extension owner's (SECURITY DEFINER), workers are superusers: callers need no
 * privilege on the table.
 * -----------------------------------------------------------------------------------------------------------------
 */

static int64
result_int64(uint64 row, int column, int64 if_null)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, &isnull);

	return isnull ? if_null : DatumGetInt64(value);
}

static char *
result_text(uint64 row, int column)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

/* What follows "<namespace>:f:<database oid>." in a fence's name: the rest is read at run time, never stored. */
static const char *
stored_name(const char *fence)
{
	return strchr(fence + strlen(setting_namespace) + strlen(":f:"), '.') + 1;
}

static char *
full_name(const char *stored)
{
	return psprintf("%s:f:%u.%s", setting_namespace, MyDatabaseId, stored);
}

/* The highest version for which a reservation of the key stands; NO_VERSION if none does. Raises 54000 if too many do. */
static int64
highest_standing(const Domain *domain, const char *fence)
{
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(domain->id), CStringGetTextDatum(stored_name(fence))};

	execute_now("SELECT pg_catalog.max(version), pg_catalog.count(*) FROM fence.reservation"
			" WHERE domain_id OPERATOR(pg_catalog.=) $1 AND fence OPERATOR(pg_catalog.=) $2",
			SPI_OK_SELECT, lengthof(types), types, values);
	if (result_int64(0, 2, 0) >= MAX_STANDING)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many reservations of one key in domain \"%s\"", domain->name),
				 errdetail("%d stand.", MAX_STANDING),
				 errhint("End some with fence.commit or fence.abort, or wait until their leases are over.")));
	return result_int64(0, 1, NO_VERSION);
}

/* Returns the id; *token is the function's result. */
static int64
insert_row(const Domain *domain, const char *fence, int64 version, Interval *lease, MemoryContext caller, char **token)
{
	Oid			types[] = {INT8OID, TEXTOID, INT8OID, TEXTOID, INTERVALOID};
	Datum		values[] = {Int64GetDatum(domain->id), CStringGetTextDatum(stored_name(fence)), Int64GetDatum(version),
		CStringGetTextDatum(fence_stamp()), IntervalPGetDatum(lease)};

	execute_now("INSERT INTO fence.reservation (domain_id, fence, version, creator, until)"
			" VALUES ($1, $2, $3, $4, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) $5) RETURNING id, token",
			SPI_OK_INSERT_RETURNING, lengthof(types), types, values);
	*token = MemoryContextStrdup(caller, result_text(0, 2));
	return result_int64(0, 1, 0);
}

bool
detached_stands(const char *stamp)
{
	int64		id;
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[2];
	bool		stands;

	if (!fence_stamp_is_detached(stamp, &id))
		return false;
	values[0] = Int64GetDatum(id);
	values[1] = CStringGetTextDatum(stamp);
	if (!OidIsValid(fence_table_oid("reservation")))
		return false;			/* the extension has been dropped */
	SPI_connect();
	/* the attachment that it is of may have ended: then readers are told so, and it says nothing of another one */
	execute_now("SELECT FROM fence.reservation r JOIN fence.domain d ON d.id OPERATOR(pg_catalog.=) r.domain_id"
			" WHERE r.id OPERATOR(pg_catalog.=) $1 AND " RESERVATION_STAMP " OPERATOR(pg_catalog.=) $2",
			SPI_OK_SELECT, lengthof(types), types, values);
	stands = SPI_processed > 0;
	SPI_finish();
	return stands;
}

void
detached_expire(void)
{
	SPI_connect();
	execute_now("DELETE FROM fence.reservation WHERE id OPERATOR(pg_catalog.=) ANY (SELECT r.id FROM fence.reservation r"
			" WHERE r.until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"
			" OR NOT EXISTS (SELECT FROM fence.domain d WHERE d.id OPERATOR(pg_catalog.=) r.domain_id)"
			" FOR UPDATE SKIP LOCKED)", SPI_OK_DELETE, 0, NULL, NULL);
	SPI_finish();
}

bool
detached_carry(LibraryCall *call, int node, uint32 epoch)
{
	bool		ok = true;

	SPI_connect();
	execute_now("SELECT r.fence, " RESERVATION_STAMP
			"  FROM fence.reservation r JOIN fence.domain d ON d.id OPERATOR(pg_catalog.=) r.domain_id",
			SPI_OK_SELECT, 0, NULL, NULL);
	for (uint64 i = 0; ok && i < SPI_processed; i++)
	{
		char	   *fence = full_name(result_text(i, 1));

		CHECK_FOR_INTERRUPTS();
		if (fence_node_of(fence) != node)
			continue;
		call->deadline = fence_clock() + setting_timeout_us();
		ok = library_reserve(call, epoch, result_text(i, 2), fence);
	}
	SPI_finish();
	return ok;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Making one
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * The version that a reservation must be above: what PostgreSQL knows of the key, other reservations that stand, and what the
 * caller says that he has read, unless he leaves that to us.
 */
static int64
last_version(FunctionCallInfo fcinfo, int n, const Domain *domain, const char *key, const char *fence)
{
	int64		known = Max(explicit_known(domain, key), highest_standing(domain, fence));

	if (!PG_ARGISNULL(n))
		return explicit_observed(domain, PG_GETARG_INT64(n), known);
	if (!domain_has_versions(domain))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the observed version must not be null"),
				 errdetail("Domain \"%s\" has no table with versions in which pgcache_fence could look.", domain->name),
				 errhint("Pass 0 for a key that never had a version.")));
	return Max(known, 0);
}

static Interval *
lease_argument(FunctionCallInfo fcinfo, int n)
{
	Interval   *lease = PG_ARGISNULL(n) ? NULL : PG_GETARG_INTERVAL_P(n);
	int64		ms = interval_ms(lease);

	if (ms < 1 || ms > DETACHED_LEASE_MAX_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the lease of a reservation must be between 1 millisecond and 1 day")));
	return lease;
}

/*
 * fence.reserve(domain, observed, lease, VARIADIC key) → (version, token)
 */
Datum
fence_reserve(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 3, domain);
	char	   *fence = key_fence_name(domain, key);
	Interval   *lease = lease_argument(fcinfo, 2);
	int64		version;
	int64		id;
	char	   *token;
	Reservation *r;
	Datum		values[2];
	bool		nulls[2] = {false};

	PreventCommandIfReadOnly("fence.reserve()");
	PreventCommandDuringRecovery("fence.reserve()");
	explicit_lock_key(fence);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	version = fence_version_after(domain, last_version(fcinfo, 1, domain, key, fence));
	id = insert_row(domain, fence, version, lease, caller, &token);
	r = ledger_detached(fence, psprintf("%s." INT64_FORMAT, fence_stamp(), id), domain);
	r->wanted = version;
	ledger_apply(r, version, NULL);
	explicit_reserve(r);
	SPI_finish();

	values[0] = Int64GetDatum(r->applied);
	values[1] = DirectFunctionCall1(uuid_in, CStringGetDatum(token));
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Ending one
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Deletes the row of the token: from here on its end is this transaction's. *domain and *fence are palloc'd. */
static int64
take_row(FunctionCallInfo fcinfo, const char *command, char **domain, char **fence)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			types[] = {UUIDOID};
	Datum		values[] = {PG_GETARG_DATUM(0)};
	int64		version;

	shared_require();
	PreventCommandIfReadOnly(command);
	PreventCommandDuringRecovery(command);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	execute_now("DELETE FROM fence.reservation r USING fence.domain d"
			" WHERE r.token OPERATOR(pg_catalog.=) $1 AND r.until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
			" AND d.id OPERATOR(pg_catalog.=) r.domain_id"
			" RETURNING d.name, r.fence, r.version", SPI_OK_DELETE_RETURNING, lengthof(types), types, values);
	if (SPI_processed == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no reservation has this token"),
				 errdetail("The reservation was ended before, or its lease is over."),
				 errhint("Reserve the key again, and read what others have written meanwhile.")));
	*domain = MemoryContextStrdup(caller, result_text(0, 1));
	*fence = MemoryContextStrdup(caller, result_text(0, 2));
	version = result_int64(0, 3, NO_VERSION);
	SPI_finish();
	has_ended = true;
	return version;
}

/* fence.commit(token) → version. Where triggers write the versions, there is nothing to add. */
Datum
fence_commit(PG_FUNCTION_ARGS)
{
	char	   *name;
	char	   *stored;
	int64		version = take_row(fcinfo, "fence.commit()", &name, &stored);
	Domain	   *domain = domain_by_name(name, false);
	Oid			database;
	char	   *redis_name;
	char	   *key;

	/*
	 * Where the caller stores the versions, this transaction takes the key over with a reservation of its own, as begin_write would:
	 * for the version that was reserved, or one above what others have written meanwhile.
	 */
	if (domain->scope == SCOPE_MANUAL && key_parse_fence_name(full_name(stored), &database, &redis_name, &key))
		version = explicit_write(domain, key, version - 1, false);
	PG_RETURN_INT64(version);
}

/* fence.abort(token) */
Datum
fence_abort(PG_FUNCTION_ARGS)
{
	char	   *name;
	char	   *stored;

	(void) take_row(fcinfo, "fence.abort()", &name, &stored);
	PG_RETURN_VOID();
}

void
detached_after_commit(void)
{
	if (has_ended)
		fence_wake_patrol();
}

void
detached_at_transaction_end(void)
{
	has_ended = false;
}
