/*
 * write/changed_row.c
 *	  What a changed row of a fenced table means; see changed_row.h.
 *
 * Owns: steps 1 and 2 of a transaction (doc/protocol.md, "Writing"): which version a change gets, and which keys are
 * reserved: of each row that changes or goes, and of a new one only where somebody can have cached something under it.
 *
 * A table may have several attachments. Each has its own key; all share one version column. One pass over the row serves them all:
 * - For each attachment the row keeps its key, or it loses the old key and gains the new one. When a user's e-mail changes, the row keeps its
 *   key by id and changes its key by e-mail. A row with a null in a key column has no key in that attachment.
 * - Each attachment needs a version above another one. Where the row keeps its key, this is the old row's version. Where it gains a key, this
 *   is the key's tombstone and floor. The row gets a version above all of them. So a version of a key never comes back with other content,
 *   because the tombstone that the key's former row has left is above all versions that the key ever had.
 * - With only_columns, an UPDATE does not concern an attachment if it changes none of its columns. The row keeps its version if the UPDATE
 *   concerns no attachment that uses the version column. If it concerns one of them, the version rises. That concerns them all, and those that
 *   only cache the version column.
 * - Versions of groups, and of rows whose table has no version column, are in fence.tombstone, for each attachment separately. We reserve their
 *   fences together with the others. Their versions advance after the row is stored.
 *
 * Nothing here is kept after the call: what outlives it is in the ledger and in fence.tombstone.
 */
#include "postgres.h"

#include "utils/datum.h"
#include "utils/memutils.h"

#include "base/metrics.h"
#include "base/settings.h"
#include "domain/key.h"
#include "domain/row.h"
#include "domain/tombstone.h"
#include "domain/version.h"
#include "send/coordinator.h"
#include "send/wire.h"
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
 * Returns the reservation of the row. Returns NULL if the transaction has reserved too many rows. Then the row's bucket is
 * held, if nothing in it can be cached; else the domain is reserved as a whole, and again after a savepoint took that
 * back. Rows that are reserved already stay so. Only the caller that sees the row first (`first`) begins to reserve the
 * whole domain.
 */
static Reservation *
reservation_of(const Domain *domain, TupleTableSlot *row, bool first)
{
	bool		whole = ledger_is_whole(domain->id);
	const char *name = whole ? NULL : key_fence_name_of_row(domain, row);

	if (whole || (first && ledger_rows_needed(domain->id) >= setting_bulk_threshold && ledger_find(name) == NULL))
	{
		changed_row_reserve_domain(domain);
		return NULL;
	}
	if (ledger_rows(domain->id) >= setting_bulk_threshold && ledger_hold(domain, name))
		return NULL;
	return ledger_reservation(RESERVE_ROW, name, domain);
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

static bool drafted = false;		/* the unsent message has reservations of the present row */

/* Sends the reservations of the row in one message. */
static void
send_drafted(void)
{
	if (drafted)
		wire_send(false);
	drafted = false;
}

/* Reserves version w of the key, unless a reservation at or above it was made in this transaction. */
static void
reserve(Reservation *r, int64 w)
{
	if (r == NULL || r->wanted >= w)
		return;
	r->wanted = w;
	coordinator_reserve_early(r);
	drafted = true;
}

/* The version above which a new row of the key must start: its tombstone or the floor. */
static int64
last_of_key(const Domain *domain, TupleTableSlot *row)
{
	char	   *key = key_of_row(domain, row);
	TombstoneView past = tombstone_look_up(domain->id, key);

	pfree(key);
	return Max(past.tombstone, past.floor);
}

static bool
same_value(Datum a, Datum b, Form_pg_attribute att)
{
	/* PostgreSQL keeps the TOAST pointer of a value that the UPDATE does not touch; so we need not fetch the value */
	if (att->attlen == -1 && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(a)) && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(b)) &&
		memcmp(DatumGetPointer(a), DatumGetPointer(b), VARSIZE_EXTERNAL(DatumGetPointer(a))) == 0)
		return true;
	return datum_image_eq(a, b, att->attbyval, att->attlen);
}

/* Whether an UPDATE leaves all columns of only_columns as they are. */
static bool
same_columns(const Domain *domain, TupleTableSlot *old, TupleTableSlot *new)
{
	for (int i = 0; i < domain->nwatched; i++)
	{
		int			attnum = domain->watched[i];
		bool		null_old;
		bool		null_new;
		Datum		value_old = slot_getattr(old, attnum, &null_old);
		Datum		value_new = slot_getattr(new, attnum, &null_new);

		if (null_old != null_new)
			return false;
		if (!null_old && !same_value(value_old, value_new, TupleDescAttr(new->tts_tupleDescriptor, attnum - 1)))
			return false;
	}
	return domain->nwatched > 0;
}

/* The version that the new row's must be above because of this key; NO_VERSION: any will do. */
static int64
last_version(const KeyChange *key, const Domain *domain, const RowChange *change)
{
	return domain->version_aside ? NO_VERSION : key->kept ? fence_version_last(domain, change->old) :
		key->gained ? last_of_key(domain, change->new) : NO_VERSION;
}

/* Compares the row's old and new key. Returns whether the change concerns the attachment. */
static bool
compare_keys(KeyChange *key, const Domain *domain, const RowChange *change)
{
	bool		had = change->old != NULL && key_is_complete(domain, change->old);
	bool		has = change->new != NULL && key_is_complete(domain, change->new);

	key->kept = had && has && key_same(domain, change->old, change->new);
	key->lost = had && !key->kept;
	key->gained = has && !key->kept;
	return key->lost || key->gained || (key->kept && !same_columns(domain, change->old, change->new));
}

static bool
watches_version(const Domain *domain, const RowChange *change)
{
	for (int i = 0; i < domain->nwatched; i++)
		if (domain->watched[i] == change->domains->version_attnum)
			return true;
	return false;
}

/*
 * The same for all attachments. Returns whether the row gets a new version. It also gets one if the application raises the version itself,
 * because the application then says that the row has changed. The attachments with a version column come first, so it is known by then
 * whether the others see the version rise, which is not set yet.
 */
static bool
compare_row(RowChange *change)
{
	bool		counts = change->old == NULL || change->new == NULL;
	KeyChange  *key = change->keys;

	for (const Domain *domain = change->domains; domain != NULL; domain = domain->next, key++)
	{
		bool		concerned = compare_keys(key, domain, change);

		if (!domain->version_aside)
			counts = counts || concerned;
		else if (!concerned && !(counts && watches_version(domain, change)))
			key->kept = false;
	}
	if (counts || change->domains->version_aside ||
		fence_version_raw(change->domains, change->old) != fence_version_raw(change->domains, change->new))
		return true;
	key = change->keys;
	for (const Domain *domain = change->domains; domain != NULL; domain = domain->next, key++)
		if (!domain->version_aside)
			key->kept = false;
	return false;
}

/* Finds or makes the reservations of the row's keys. */
static void
reserve_keys(KeyChange *key, const Domain *domain, const RowChange *change, bool first)
{
	key->of_old = key->lost ? reservation_of(domain, change->old, first) : NULL;
	key->of_new = key->kept ? reservation_of(domain, change->old, first) :
		key->gained ? reservation_of_new(domain, change->new, first) : NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Before the row is stored
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The key loses its row. `w` is the version of the tombstone. */
static void
prepare_lost(KeyChange *key, int64 w)
{
	reserve(key->of_old, w);
	if (key->of_old != NULL)
		key->of_old->leaving = w;
}

/*
 * Returns the version of the tombstone that the key of the new row is about to get, because an earlier row of this
 * statement leaves it; NO_VERSION if there is none. That row may have been reserved before the statement passed
 * bulk_threshold.
 */
static int64
version_that_leaves(const KeyChange *key, const Domain *domain, const RowChange *change)
{
	const Reservation *r = key->of_new;

	if (r == NULL && !ledger_is_empty())
		r = ledger_find(key_fence_name_of_row(domain, change->new));
	return r ? r->leaving : NO_VERSION;
}

static void
prepare_key(KeyChange *key, const Domain *domain, RowChange *change)
{
	/* before the reservation, because it may be the first time that the transaction looks at the key */
	key->last = last_version(key, domain, change);
	reserve_keys(key, domain, change, true);
	if (domain->version_aside)
	{
		reserve(key->of_old, 0);
		reserve(key->of_new, 0);
		return;
	}
	if (key->lost)
		prepare_lost(key, fence_version_of_absence(domain, change->old));
	if (key->gained)
		key->last = Max(key->last, version_that_leaves(key, domain, change));
}

/*
 * A row that keeps a key gets the next version, whatever version the application has set. A row that is new, or keeps none of its keys, keeps the
 * application's version if that is above all versions of its keys, and fits.
 */
static int64
version_of_new(const RowChange *change, int64 last, bool kept)
{
	const Domain *domain = change->domains;
	int64		w = kept ? NO_VERSION : fence_version_raw(domain, change->new);

	if (w < 0 || w <= last || !fence_version_fits(domain, w, last))
		w = fence_version_after(domain, Max(last, 0));
	return w;
}

int64
changed_row_prepare(RowChange *change)
{
	KeyChange  *key = change->keys;
	int64		last = NO_VERSION;
	bool		counts = compare_row(change);
	bool		kept = false;
	int64		w = NO_VERSION;

	change->prepared = true;
	for (const Domain *domain = change->domains; domain != NULL; domain = domain->next, key++)
	{
		prepare_key(key, domain, change);
		last = Max(last, key->last);
		kept = kept || (key->kept && !domain->version_aside);
	}
	if (change->new == NULL)
		w = fence_version_of_absence(change->domains, change->old);
	else if (counts)
		w = version_of_new(change, last, kept);
	key = change->keys;
	for (const Domain *domain = change->domains; domain != NULL; domain = domain->next, key++)
		if (!domain->version_aside)
			reserve(key->of_new, w);
	send_drafted();
	return w;
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
raise_deleted(const Domain *domain, int64 stored, int64 last)
{
	metrics_add_conflict(domain->metrics);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not insert into \"%s\" because the key was deleted by a concurrent transaction",
					domain->name),
			 errdetail("The new row has version " INT64_FORMAT ", the deleted one had " INT64_FORMAT ".", stored, last),
			 errhint("Try the transaction again. If that does not help, another trigger sets column \"%s\": leave that to pgcache_fence.",
					 domain->version_name)));
}

/* The old row's key is no more: its version lives on in a tombstone. */
static void
stored_lost(const KeyChange *key, const Domain *domain, TupleTableSlot *row)
{
	int64		w = fence_version_of_absence(domain, row);
	char	   *text = key_of_row(domain, row);

	tombstone_set(domain->id, text, w);
	pfree(text);
	if (key->of_old != NULL)
	{
		key->of_old->leaving = NO_VERSION;
		key->of_old->lost = true;
	}
	apply_stored(domain, key->of_old, w, NULL);
}

/* `highest` is the highest of the versions above which the attachments need the stored one. */
static void
stored_new(const KeyChange *key, const Domain *domain, TupleTableSlot *row, int64 highest)
{
	Reservation *r = key->of_new;
	int64		stored = fence_version_raw(domain, row);

	if (stored < 0 || brings_too_much(domain, r, stored, highest) ||
		(stored <= key->last && (key->kept || (r != NULL && stored != r->wanted))))
		raise_unfit(domain, stored, Max(key->last, -1));
	if (stored <= key->last)
		raise_deleted(domain, stored, key->last);
	apply_stored(domain, r, stored, row);
}

/*
 * A row of a group came, went or changed: the group's version advances, once per transaction, in the group's own durable
 * row, whose lock orders the writers.
 */
static void
group_changed(const Domain *domain, Reservation *r, TupleTableSlot *row)
{
	char	   *key = key_of_row(domain, row);
	bool		advanced;
	int64		w = tombstone_advance(domain->id, key, &advanced);

	pfree(key);
	if (advanced)
		apply_stored(domain, r, w, NULL);
}

static void
stored_aside(const KeyChange *key, const Domain *domain, const RowChange *change)
{
	if (key->lost)
		group_changed(domain, key->of_old, change->old);
	if (key->kept || key->gained)
		group_changed(domain, key->of_new, change->new);
}

/* Finds for each attachment, now that the row is stored, the version above which the stored one must be. Returns the highest. */
static int64
look_again(RowChange *change)
{
	KeyChange  *key = change->keys;
	int64		highest = NO_VERSION;
	bool		first = change->domains->version_aside;	/* else BEFORE ROW has seen the row */

	if (!change->prepared)
		(void) compare_row(change);
	for (const Domain *domain = change->domains; domain != NULL; domain = domain->next, key++)
	{
		if (!change->prepared)
			reserve_keys(key, domain, change, first);
		/* another transaction may have committed a tombstone of a gained key since then */
		if (!change->prepared || key->gained)
			key->last = last_version(key, domain, change);
		highest = Max(highest, key->last);
	}
	return highest;
}

void
changed_row_stored(RowChange *change)
{
	KeyChange  *key = change->keys;
	int64		highest;

	if (change->domains->scope == SCOPE_MANUAL)
	{
		/* A table with a manual attachment has no other. */
		if (!manual_row_is_reserved(change->domains, change->old, change->new))
			changed_row_reserve_domain(change->domains);
		return;
	}
	highest = look_again(change);
	for (const Domain *domain = change->domains; domain != NULL; domain = domain->next, key++)
	{
		if (domain->version_aside)
			stored_aside(key, domain, change);
		else
		{
			if (key->lost)
				stored_lost(key, domain, change->old);
			if (key->kept || key->gained)
				stored_new(key, domain, change->new, highest);
		}
	}
	send_drafted();
}
