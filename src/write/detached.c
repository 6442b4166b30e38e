/*
 * write/detached.c
 *	  Detached reservations, for work that spans several transactions: fence.reserve, fence.commit and fence.abort.
 *
 * Owns: the table fence.reservation. A detached reservation stands as long as its row exists. The row decides its fate, as
 * the commit log decides a transaction's.
 * Locks: those of SELECT, INSERT and DELETE on that table; the lock on the key (explicit_lock_key).
 * Never: does more than read and clear a flag in COMMIT or ABORT.
 *
 * Redis holds a detached reservation under the stamp "<stamp of the transaction that made it>.<id of the row>". So the
 * patrol can find the row. The reservation only keeps readers from the cached value. A transaction that writes the key
 * makes its own reservation.
 *
 * One transaction inserts the row, and then asks Redis. Its PRE_COMMIT treats the reservation like one for a row that it
 * has written: Redis must have granted it under the word, and the word must be the same after the commit flag is set. So
 * if slots are granted to another process meanwhile, one of two things happens. Either the worker that looks for rows
 * after the commit flags are gone sees the row and reserves it there, or the transaction reserves again under the new word.
 *
 * fence.commit and fence.abort delete the row in their transaction; the patrol deletes it when its lease is over. Then the
 * patrol ends the reservation in Redis.
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
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/sql_function.h"
#include "domain/version.h"
#include "send/ledger.h"
#include "write/detached.h"
#include "write/explicit.h"

#define MAX_STANDING	100		/* maximum for one key, because Redis walks through all of them when one is made or ends */

/* The stamp in Redis of the reservation whose row is r. */
#define RESERVATION_STAMP "pg_catalog.concat(r.creator, '.', r.id)"

PG_FUNCTION_INFO_V1(fence_reserve);
PG_FUNCTION_INFO_V1(fence_commit);
PG_FUNCTION_INFO_V1(fence_abort);

static bool has_ended = false;	/* this transaction has deleted a row */

/* -----------------------------------------------------------------------------------------------------------------
 * The rows. Callers need no privilege on the table, because the SQL functions run as the owner of the extension (SECURITY
 * DEFINER), and workers are superusers.
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

/* The part of a fence's name that is stored: what follows "<namespace>:f:<database OID><cluster>.". The front may change. */
static const char *
stored_name(const char *fence)
{
	return strchr(fence + strlen(setting_namespace) + strlen(":f:"), '.') + 1;
}

static char *
full_name(const char *stored)
{
	return psprintf("%s:f:%s%s", setting_namespace, key_database_prefix(), stored);
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
				 errdetail("The key has %d, which is the limit.", MAX_STANDING),
				 errhint("End some with fence.commit or fence.abort, or wait until their leases are over.")));
	return result_int64(0, 1, NO_VERSION);
}

/* Returns the id of the row. Sets *token to the token that fence.reserve returns. */
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
	/* if its attachment has ended, readers get no hits of that domain, and a later attachment is not concerned */
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
 * The version above which the reservation must be. It is the highest of what PostgreSQL knows of the key, of the other
 * reservations that stand, and of the version that the caller has read. If the caller passes NULL, we look that up.
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

/* Deletes the row of the token, so this transaction decides how the reservation ends. *domain and *fence are palloc'd. */
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

/* fence.commit(token) → version. If triggers set the versions, deleting the row is all that it does. */
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
	 * If the caller stores the versions, this transaction reserves the key itself, like begin_write: with the version
	 * that was reserved, or with a version above those that others have written meanwhile.
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
