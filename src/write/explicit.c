/*
 * write/explicit.c
 *	  Explicit reservations: fence.begin_write, begin_write_strict and abort_write, and what detached reservations share
 *	  with them.
 *
 * Owns: the lock that orders transactions which reserve the same key explicitly.
 * Locks: that lock, until the end of the transaction; those of a SELECT on the table and on fence.tombstone.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"

#include "base/metrics.h"
#include "base/shared.h"
#include "base/stamp.h"
#include "base/word.h"
#include "domain/key.h"
#include "domain/row.h"
#include "domain/sql_function.h"
#include "domain/tombstone.h"
#include "domain/version.h"
#include "send/coordinator.h"
#include "send/ledger.h"
#include "write/explicit.h"

#define MANUAL_LOCK_CLASS 0xFEC	/* advisory locks of SQL have classes 1 and 2 */

PG_FUNCTION_INFO_V1(fence_begin_write);
PG_FUNCTION_INFO_V1(fence_begin_write_strict);
PG_FUNCTION_INFO_V1(fence_abort_write);

static void
require_manual(const Domain *domain)
{
	if (domain->scope != SCOPE_MANUAL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("domain \"%s\" is maintained by the triggers of its table", domain->name),
				 errhint("Write the row; the triggers reserve it. Explicit reservations are for domains attached with scope => 'manual'.")));
}

/*
 * Without this lock two open transactions could get the same version, because no row lock orders transactions that write
 * the key. It is an advisory lock, of a class that SQL cannot name, so it conflicts with no lock of an application.
 */
void
explicit_lock_key(const char *fence)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) fence, strlen(fence), 0);
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, MANUAL_LOCK_CLASS);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

int64
explicit_known(const Domain *domain, const char *key)
{
	int64		known = row_current_version(domain, key, NULL);
	TombstoneView past;

	if (domain->scope != SCOPE_MANUAL)
		return known;
	past = tombstone_look_up(domain->id, key);
	return Max(known, Max(past.tombstone, past.floor));
}

int64
explicit_observed(const Domain *domain, int64 observed, int64 known)
{
	if (observed < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the observed version must not be negative")));
	if (!fence_version_fits(domain, observed, known))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("the observed version is too large"),
				 errdetail("It is " INT64_FORMAT "; it may be " INT64_FORMAT " at most.", observed,
						   fence_version_max(domain, known)),
				 errhint("Pass the version that was stored with what the caller has read.")));
	return Max(observed, known);
}

void
explicit_reserve(Reservation *r)
{
	FenceWord	word = fence_word_expire();

	if (WORD_STATE(word) == FENCE_OPEN)
		(void) coordinator_reserve_one(word, r);
}

/*
 * Raises 40001 if the version that the caller has read is old. If rows have versions, the newest version is the row's,
 * because the caller of an earlier begin_write may never have stored the version that it got. A caller who has seen no row
 * has observed 0. If rows have no versions, the newest version is the one that begin_write returned last. A floor is not a
 * version of the key.
 */
static void
require_newest(const Domain *domain, const char *key, int64 observed)
{
	bool		rows_tell = domain_has_versions(domain);
	int64		newest = rows_tell ? row_current_version(domain, key, NULL) : tombstone_look_up(domain->id, key).tombstone;

	if (rows_tell ? observed != Max(newest, 0) : observed < newest)
	{
		metrics_add_conflict(domain->metrics);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not begin to write key \"%s\" of domain \"%s\" because another transaction has written it",
						key, domain->name),
				 newest == NO_VERSION ? errdetail("The observed version is " INT64_FORMAT ", and the row is gone.", observed) :
				 errdetail("The observed version is " INT64_FORMAT ", the newest is " INT64_FORMAT ".", observed, newest),
				 errhint("Read the value again, and try the transaction again.")));
	}
}

/*
 * Stores the returned version as a tombstone. The next caller may have read an older version, and needs the tombstone if
 * neither a row nor a fence has the newest one. Does not send `observed` to Redis, because the caller may be wrong.
 */
int64
explicit_write(const Domain *domain, const char *key, int64 observed, bool strict)
{
	char	   *fence = key_fence_name(domain, key);
	Reservation *r;

	explicit_lock_key(fence);
	r = ledger_reservation(RESERVE_ROW, fence, domain);
	if (r->applied == NO_VERSION)
	{
		r->used = false;		/* if a savepoint was rolled back, its rows are gone too */
		/* if this transaction holds the key already, nobody else can have got a version since */
		if (strict)
			require_newest(domain, key, observed);
	}
	r->wanted = fence_version_after(domain, explicit_observed(domain, observed, Max(explicit_known(domain, key), r->wanted)));
	(void) fence_stamp();		/* assigns an xid, so that the transaction has a fate even if it writes no row */
	tombstone_set(domain->id, key, r->wanted);
	ledger_apply(r, r->wanted, NULL);
	explicit_reserve(r);
	return r->applied;
}

static Datum
begin_write(FunctionCallInfo fcinfo, const char *command, bool strict)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 2, domain);

	require_manual(domain);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the observed version must not be null"),
				 errhint("Pass 0 for a key that never had a version.")));
	PreventCommandIfReadOnly(command);
	PreventCommandDuringRecovery(command);
	PG_RETURN_INT64(explicit_write(domain, key, PG_GETARG_INT64(1), strict));
}

Datum
fence_begin_write(PG_FUNCTION_ARGS)
{
	return begin_write(fcinfo, "fence.begin_write()", false);
}

/* Like fence.begin_write, but the observed version must be the newest. */
Datum
fence_begin_write_strict(PG_FUNCTION_ARGS)
{
	return begin_write(fcinfo, "fence.begin_write_strict()", true);
}

Datum
fence_abort_write(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 1, domain);
	Reservation *r = ledger_find(key_fence_name(domain, key));

	require_manual(domain);
	if (r == NULL || r->applied == NO_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this transaction has no reservation of key \"%s\" in domain \"%s\"", key, domain->name)));
	/* the commit does not wait for a withdrawn reservation, so a key whose row was written must keep its reservation */
	if (r->used)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a row was written under the reservation of key \"%s\" in domain \"%s\"", key, domain->name),
				 errhint("Leave the reservation as it is: it ends with the transaction.")));
	ledger_withdraw(r);
	PG_RETURN_VOID();
}
