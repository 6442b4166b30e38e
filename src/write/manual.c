/*
 * write/manual.c
 *	  The guard of tables whose domains have scope 'manual'; see manual.h.
 *
 * A transaction that writes such a key must reserve it first, and store the version that it gets. begin_write cannot know
 * what the transaction does afterwards. So the guard checks the rows of the domain's table when they are stored.
 *
 * Owns: that check, and its errors.
 * Locks: none.
 */
#include "postgres.h"

#include "base/settings.h"
#include "domain/key.h"
#include "domain/version.h"
#include "send/ledger.h"
#include "write/manual.h"

#define MIGRATION_HINT "A migration can set pgcache_fence.unreserved_writes to reserve_domain."

static void
raise_unreserved(const Domain *domain, const char *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("key \"%s\" of domain \"%s\" was written without a reservation", key, domain->name),
			 errdetail("Readers could be served the cached value that this write replaces."),
			 errhint("Call fence.begin_write for the key first, in the same transaction. " MIGRATION_HINT)));
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
 * Whether this transaction has reserved the key of a row that was stored or deleted (is_gone), with the stored version.
 * If it has not, raises an error, or returns false if the setting says that the whole domain shall be reserved instead.
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

bool
manual_row_is_reserved(const Domain *domain, TupleTableSlot *old, TupleTableSlot *new)
{
	bool		key_stays = old != NULL && new != NULL && key_same(domain, old, new);

	if (ledger_whole_applied(domain->id))
		return true;			/* because of TRUNCATE or of an earlier row */
	return (new == NULL || is_reserved(domain, new, false)) &&
		(old == NULL || key_stays || is_reserved(domain, old, true));
}
