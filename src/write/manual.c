/*
 * write/manual.c
 *	  Domains with scope 'manual': fence.begin_write and abort_write, and the guard of their tables; see manual.h.
 *
 * Who writes such a key reserves it first, and stores the version that he is given. begin_write cannot know what he does afterwards, so the
 * rows of the domain's table are looked at when they are stored.
 *
 * Locks: the explicit lock of a key, until the transaction or the savepoint that took it ends.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"

#include "base/settings.h"
#include "base/shared.h"
#include "base/stamp.h"
#include "domain/key.h"
#include "domain/row.h"
#include "domain/tombstone.h"
#include "domain/version.h"
#include "send/coordinator.h"
#include "write/functions.h"
#include "write/manual.h"

#define MANUAL_LOCK_CLASS 0xFEC	/* advisory locks of SQL have classes 1 and 2 */

PG_FUNCTION_INFO_V1(fence_begin_write);
PG_FUNCTION_INFO_V1(fence_begin_write_strict);
PG_FUNCTION_INFO_V1(fence_abort_write);

/* -----------------------------------------------------------------------------------------------------------------
 * Explicit reservations
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
require_manual(const Domain *domain)
{
	if (domain->scope != SCOPE_MANUAL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("domain \"%s\" is maintained by the triggers of its table", domain->name),
				 errhint("Just write the row. Explicit reservations are for domains attached with scope => 'manual'.")));
}

/*
 * No row's lock orders those who write the key: without this lock two open transactions could be given one version. Of
 * the kind of advisory locks, in a class that SQL cannot name; until the end of the transaction.
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
						   fence_version_most(domain, known)),
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
 * What the caller has read is old. Where rows have versions, the row tells: one that begin_write gave may never have been stored. Whoever
 * has seen no row has observed 0. Elsewhere it is the one that begin_write gave last; a floor is no version of the key.
 */
static void
require_newest(const Domain *domain, const char *key, int64 observed)
{
	bool		rows_tell = domain_has_versions(domain);
	int64		newest = rows_tell ? row_current_version(domain, key, NULL) : tombstone_look_up(domain->id, key).tombstone;

	if (rows_tell ? observed != Max(newest, 0) : observed < newest)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not begin to write key \"%s\" of domain \"%s\" because another transaction has written it",
						key, domain->name),
				 newest == NO_VERSION ? errdetail("The observed version is " INT64_FORMAT ", and the row is gone.", observed) :
				 errdetail("The observed version is " INT64_FORMAT ", the newest is " INT64_FORMAT ".", observed, newest),
				 errhint("Read the value again, and try the transaction again.")));
}

/*
 * The version given is remembered as a tombstone: no row's version and no fence tells the next caller, who may have read an older
 * one. The caller states `observed` without proof: it is not told to Redis.
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
		r->used = false;		/* what a savepoint took back has taken the rows with it */
		/* else nobody but this transaction was given a version since */
		if (strict)
			require_newest(domain, key, observed);
	}
	r->wanted = fence_version_after(domain, explicit_observed(domain, observed, Max(explicit_known(domain, key), r->wanted)));
	(void) fence_stamp();		/* assigns the xid: without a row written, the transaction must still have a fate */
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

/* The same, but the observed version must be the newest. */
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
	/* withdrawn, it would not be waited for before the commit */
	if (r->used)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a row was written under the reservation of key \"%s\" in domain \"%s\"", key, domain->name),
				 errhint("Leave the reservation as it is: it ends with the transaction.")));
	ledger_withdraw(r);
	PG_RETURN_VOID();
}

/* -----------------------------------------------------------------------------------------------------------------
 * The guard
 * -----------------------------------------------------------------------------------------------------------------
 */

#define MIGRATION_HINT "A migration can set pgcache_fence.unreserved_writes to reserve_domain."

static void
raise_unreserved(const Domain *domain, const char *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("key \"%s\" of domain \"%s\" was written without a reservation", key, domain->name),
			 errdetail("Readers could be served the cached value that this write replaces."),
			 errhint("Call fence.begin_write for the key before, in the same transaction. " MIGRATION_HINT)));
}

static void
raise_other_version(const Domain *domain, const char *key, int64 stored, int64 reserved)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("key \"%s\" of domain \"%s\" was stored with a version that was not reserved", key, domain->name),
			 errdetail("The stored version is " INT64_FORMAT ", the reserved one is " INT64_FORMAT ".", stored, reserved),
			 errhint("Store in column \"%s\" what fence.begin_write returns. " MIGRATION_HINT, domain->version_name)));
}

/*
 * Whether the key of a row that is stored, or gone (then is_gone), is reserved for what it has now. If not, and the setting does not
 * say that the domain is to be reserved instead, raises.
 */
static bool
is_reserved(const Domain *domain, TupleTableSlot *row, bool is_gone)
{
	Reservation *r = ledger_find(key_fence_name_of_row(domain, row));
	bool		found = r != NULL && r->applied != NO_VERSION;
	int64		stored = is_gone || domain->version_name == NULL ? NO_VERSION : fence_version_raw(domain, row);

	if (found && (stored == r->applied || is_gone || domain->version_name == NULL))
	{
		r->used = true;
		return true;
	}
	if (setting_unreserved_writes == UNRESERVED_RESERVE_DOMAIN)
		return false;
	if (found)
		raise_other_version(domain, key_of_row(domain, row), stored, r->applied);
	raise_unreserved(domain, key_of_row(domain, row));
	return false;				/* not reached */
}

void
manual_row_stored(const RowChange *change)
{
	const Domain *domain = change->domain;
	bool		key_stays = change->old != NULL && change->new != NULL && key_same(domain, change->old, change->new);

	if (ledger_whole_applied(domain->id))
		return;					/* by TRUNCATE, or by a row before this one */
	if ((change->new == NULL || is_reserved(domain, change->new, false)) &&
		(change->old == NULL || key_stays || is_reserved(domain, change->old, true)))
		return;
	changed_row_reserve_domain(domain);
}
