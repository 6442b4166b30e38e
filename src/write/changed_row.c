/*
 * write/changed_row.c
 *	  What a changed row of a fenced table means; see changed_row.h.
 *
 * Owns: steps 1 and 2 of a transaction (doc/protocol.md, "Writing"): which version a change gets, and which keys are
 * reserved: of each row that changes or goes, and of a new one only where somebody can have cached something under it.
 *
 * Nothing here is kept after the call: what outlives it is in the ledger and in fence.tombstone.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "base/metrics.h"
#include "base/settings.h"
#include "domain/key.h"
#include "domain/row.h"
#include "domain/tombstone.h"
#include "domain/version.h"
#include "send/coordinator.h"
#include "write/changed_row.h"
#include "write/manual.h"

/* -----------------------------------------------------------------------------------------------------------------
 * Reservations
 * -----------------------------------------------------------------------------------------------------------------
 */

void
changed_row_reserve_domain(const Domain *domain)
{
	Reservation *whole = ledger_apply_domain(domain);

	if (!whole->sent)
		coordinator_reserve_early(whole);
}

/*
 * The row's own reservation. NULL if there are too many: then the domain is reserved as a whole instead, again after a
 * savepoint took that back; what the rows before it have stays. Only who sees the row first begins that.
 */
static Reservation *
reservation_of(const Domain *domain, TupleTableSlot *row, bool first)
{
	if (ledger_is_whole(domain->id) || (first && ledger_rows(domain->id) >= setting_bulk_threshold))
	{
		changed_row_reserve_domain(domain);
		return NULL;
	}
	return ledger_reservation(RESERVE_ROW, key_fence_name_of_row(domain, row), domain);
}

/*
 * The same for a new row. Where nobody can have cached anything under its key, it is not reserved; but the key may have
 * lost its former row in this transaction.
 */
static Reservation *
reservation_of_new(const Domain *domain, TupleTableSlot *row, bool first)
{
	if (domain->inserts_reserve)
		return reservation_of(domain, row, first);
	ledger_note_written(domain);
	return ledger_is_empty() ? NULL : ledger_find(key_fence_name_of_row(domain, row));
}

/* Reserves version w of the key, unless a reservation at or above it was made in this transaction. */
static void
reserve(Reservation *r, int64 w)
{
	if (r == NULL || r->wanted >= w)
		return;
	r->wanted = w;
	coordinator_reserve_early(r);
}

/* What the new row of the key must start above, and what a tombstone proves. */
static int64
last_of_key(const Domain *domain, TupleTableSlot *row)
{
	char	   *key = key_of_row(domain, row);
	TombstoneView past = tombstone_look_up(domain->id, key);

	pfree(key);
	return Max(past.tombstone, past.floor);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Before the row is stored
 * -----------------------------------------------------------------------------------------------------------------
 */

/* A new key: the application's own version counts if it is above everything the key ever had and fits, else the next one. */
static int64
prepare_new_row(RowChange *change)
{
	const Domain *domain = change->domain;
	int64		last = last_of_key(domain, change->new);
	int64		w = fence_version_raw(domain, change->new);

	change->of_new = reservation_of_new(domain, change->new, true);
	if (change->of_new != NULL)
		last = Max(last, change->of_new->leaving);
	if (w < 0 || w <= last || !fence_version_fits(domain, w, last))
		w = fence_version_after(domain, Max(last, 0));
	reserve(change->of_new, w);
	return w;
}

/* The row stays under its key: its next version. */
static int64
prepare_changed_row(RowChange *change)
{
	int64		w;

	change->of_new = reservation_of(change->domain, change->old, true);
	w = fence_version_after(change->domain, fence_version_last(change->domain, change->old));
	reserve(change->of_new, w);
	return w;
}

/* The key loses its row: the version of its tombstone. */
static int64
prepare_old_row(RowChange *change)
{
	int64		w = fence_version_of_absence(change->domain, change->old);

	change->of_old = reservation_of(change->domain, change->old, true);
	reserve(change->of_old, w);
	if (change->of_old != NULL)
		change->of_old->leaving = w;
	return w;
}

int64
changed_row_prepare(RowChange *change)
{
	change->prepared = true;
	change->of_old = change->of_new = NULL;
	if (change->new == NULL)
		return prepare_old_row(change);
	if (change->old == NULL)
		return prepare_new_row(change);
	change->same_key = key_same(change->domain, change->old, change->new);
	if (change->same_key)
		return prepare_changed_row(change);
	/* a changed key is a DELETE of the old one and an INSERT of the new one */
	(void) prepare_old_row(change);
	return prepare_new_row(change);
}

/* -----------------------------------------------------------------------------------------------------------------
 * After the row was stored
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * The stored version cannot be fenced: another trigger set it after ours. It is not above what the key had, or too far
 * above.
 */
static void
raise_unfit(const Domain *domain, int64 stored, int64 last)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
			 errmsg("another trigger set column \"%s\" of domain \"%s\" to %s", domain->version_name, domain->name,
					stored <= last ? "a version that the key already had" : "a version that is too large"),
			 errdetail("The stored version is " INT64_FORMAT ", it must be from " INT64_FORMAT " to " INT64_FORMAT ".",
					   stored, last + 1, fence_version_max(domain, last)),
			 errhint("Leave the version column to pgcache_fence, or let the other trigger fire before zzz_pgcache_fence_before.")));
}

/* Whether the stored version is not what was prepared, and beyond what others may bring. */
static bool
brings_too_much(const Domain *domain, const Reservation *r, int64 stored, int64 last)
{
	return !fence_version_fits(domain, stored, last) && (r == NULL || stored > r->wanted);
}

/* The row, NULL if there is none, as COMMIT is to tell Redis with write-through; NULL: not at all. */
static const char *
value_of(const Domain *domain, TupleTableSlot *row)
{
	bool		too_large;
	bool		free_it;
	const char *value;
	HeapTuple	tuple;

	if (row == NULL)
		return domain->cache_absent ? PAYLOAD_ABSENT : NULL;
	if (setting_value_limit == 0)
		return NULL;
	tuple = ExecFetchSlotHeapTuple(row, false, &free_it);	/* a copy goes with the caller's scratch memory */
	value = row_value(domain, tuple, row->tts_tupleDescriptor, setting_value_limit, &too_large);
	if (too_large)
		metrics_add_server(SERVER_METRIC_TOO_LARGE, 1);
	return value;
}

/*
 * The stored version differs from what was asked for: ask for what was stored. Either way it now counts, with the row,
 * which is NULL if there is none.
 */
static void
apply_stored(const Domain *domain, Reservation *r, int64 stored, TupleTableSlot *row)
{
	MemoryContext scratch;
	MemoryContext old;

	if (r == NULL)
		return;					/* the domain is applied as a whole */
	reserve(r, stored);
	if (stored <= r->applied)
		return;					/* another trigger has changed the row again, and that came first */
	if (!domain->write_through)
	{
		ledger_apply(r, stored, NULL);
		return;
	}
	scratch = AllocSetContextCreate(CurrentMemoryContext, "pgcache_fence value", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(scratch);
	ledger_apply(r, stored, value_of(domain, row));
	MemoryContextSwitchTo(old);
	MemoryContextDelete(scratch);
}

/* Who deleted the key's former row may have committed between the two looks. */
static void
stored_new_row(RowChange *change)
{
	const Domain *domain = change->domain;
	int64		last = last_of_key(domain, change->new);
	Reservation *r = change->prepared ? change->of_new : reservation_of_new(domain, change->new, false);
	int64		stored = fence_version_raw(domain, change->new);

	if (stored < 0 || (stored <= last && r != NULL && stored != r->wanted) || brings_too_much(domain, r, stored, last))
		raise_unfit(domain, stored, Max(last, -1));
	if (stored <= last)
	{
		metrics_add(domain->metrics, METRIC_STALE_POSTGRES, 1);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not insert into \"%s\" because the key was deleted by a concurrent transaction",
						domain->name),
				 errdetail("The new row has version " INT64_FORMAT ", the deleted one had " INT64_FORMAT ".", stored, last),
				 errhint("Try the transaction again. If that does not help, another trigger sets column \"%s\": leave that to pgcache_fence.",
						 domain->version_name)));
	}
	apply_stored(domain, r, stored, change->new);
}

/* The old row's key is no more: its version lives on in a tombstone. */
static void
stored_no_row(const RowChange *change)
{
	const Domain *domain = change->domain;
	Reservation *r = change->prepared ? change->of_old : reservation_of(domain, change->old, false);
	int64		w = fence_version_of_absence(domain, change->old);
	char	   *key = key_of_row(domain, change->old);

	tombstone_set(domain->id, key, w);
	pfree(key);
	if (r != NULL)
		r->leaving = NO_VERSION;
	apply_stored(domain, r, w, NULL);
}

static void
stored_changed_row(const RowChange *change)
{
	const Domain *domain = change->domain;
	Reservation *r = change->prepared ? change->of_new : reservation_of(domain, change->new, false);
	int64		last = fence_version_last(domain, change->old);
	int64		stored = fence_version_raw(domain, change->new);

	if (stored <= last || brings_too_much(domain, r, stored, last))
		raise_unfit(domain, stored, last);
	apply_stored(domain, r, stored, change->new);
}

/*
 * A row of a group came, went or changed: the group's version advances, once per transaction, in the group's own durable
 * row, whose lock orders the writers. Rows with a null in the key belong to no group.
 */
static void
group_changed(const Domain *domain, TupleTableSlot *row)
{
	char	   *key;
	int64		w;
	bool		advanced;

	if (row == NULL || !key_is_complete(domain, row))
		return;
	key = key_of_row(domain, row);
	w = tombstone_advance(domain->id, key, &advanced);
	pfree(key);
	if (advanced)
		apply_stored(domain, reservation_of(domain, row, true), w, NULL);
}

void
changed_row_stored(RowChange *change)
{
	if (change->domain->scope == SCOPE_MANUAL)
	{
		if (!manual_row_is_reserved(change->domain, change->old, change->new))
			changed_row_reserve_domain(change->domain);
		return;
	}
	if (change->domain->version_aside)
	{
		group_changed(change->domain, change->old);
		group_changed(change->domain, change->new);
		return;
	}
	if (change->old == NULL)
		stored_new_row(change);
	else if (change->new == NULL)
		stored_no_row(change);
	else if (change->prepared ? change->same_key : key_same(change->domain, change->old, change->new))
		stored_changed_row(change);
	else
	{
		stored_no_row(change);
		stored_new_row(change);
	}
}
