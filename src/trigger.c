/*
 * trigger.c
 *	  Row triggers of fenced tables: the version goes into the row, the reservation goes to Redis.
 *
 * Owns: steps 1 and 2 of a transaction (doc/protocol.md, "Writing"): which version a change gets, and which keys are
 * reserved: of each row that changes or goes, and of a new one only where somebody can have cached something under it.
 * BEFORE ROW runs last of all BEFORE triggers by its name; whatever still gets in after it is caught by AFTER ROW, which
 * looks at the stored row and decides.
 *
 * Where the application sets the versions (fence.version_by_application), there is no BEFORE ROW for UPDATE: for that, PostgreSQL
 * fetches and locks each row once more. AFTER ROW is then the first to see a changed row.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "coordinator.h"
#include "domain.h"
#include "key.h"
#include "ledger.h"
#include "metrics.h"
#include "renumber.h"
#include "row.h"
#include "settings.h"
#include "shared.h"
#include "tombstone.h"
#include "version.h"

PG_FUNCTION_INFO_V1(fence_before_row);
PG_FUNCTION_INFO_V1(fence_after_row);
PG_FUNCTION_INFO_V1(fence_before_truncate);

/* -----------------------------------------------------------------------------------------------------------------
 * Versions
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Reserves the whole domain, which now counts as changed. */
static void
reserve_domain(const Domain *domain)
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
reservation_of(const Domain *domain, HeapTuple row, TupleDesc desc, bool first)
{
	char	   *key;
	char	   *name;
	Reservation *r;

	if (ledger_is_whole(domain->id) || (first && ledger_rows(domain->id) >= setting_bulk_threshold))
	{
		reserve_domain(domain);
		return NULL;
	}
	key = key_of_tuple(domain, row, desc);
	name = key_fence_name(domain, key);
	r = ledger_reservation(RESERVE_ROW, name, domain);
	pfree(name);
	pfree(key);
	return r;
}

/*
 * The same for a new row. Where nobody can have cached anything under its key, it is not reserved; but the key may have
 * lost its former row in this transaction.
 */
static Reservation *
reservation_of_new(const Domain *domain, HeapTuple row, TupleDesc desc, bool first)
{
	char	   *key;
	char	   *name;
	Reservation *r;

	if (domain->inserts_reserve)
		return reservation_of(domain, row, desc, first);
	ledger_note_written(domain);
	if (ledger_is_empty())
		return NULL;
	key = key_of_tuple(domain, row, desc);
	name = key_fence_name(domain, key);
	r = ledger_find(name);
	pfree(name);
	pfree(key);
	return r;
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

/* What a new row of the key must start above, and what a tombstone proves. */
static TombstoneView
tombstone_of(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	char	   *key = key_of_tuple(domain, row, desc);
	TombstoneView view = tombstone_look_up(domain->id, key);

	pfree(key);
	return view;
}

/* -----------------------------------------------------------------------------------------------------------------
 * BEFORE ROW
 * -----------------------------------------------------------------------------------------------------------------
 */

static HeapTuple
stamp_version(const Domain *domain, HeapTuple row, TupleDesc desc, int64 w)
{
	int			attnum = domain->version_attnum;
	Datum		value = fence_version_datum(domain, w);
	bool		isnull = false;
	Datum		present = heap_getattr(row, attnum, desc, &isnull);

	if (!isnull && present == value)
		return row;				/* int8 is passed by value wherever these servers run */
	isnull = false;
	return heap_modify_tuple_by_cols(row, desc, 1, &attnum, &value, &isnull);
}

/* A new key: the application's own version counts if it is above everything the key ever had and fits, else the next one. */
static int64
reserve_new_row(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	TombstoneView past = tombstone_of(domain, row, desc);
	Reservation *r = reservation_of_new(domain, row, desc, true);
	int64		last = Max(past.tombstone, past.floor);
	int64		w;
	bool		isnull;

	if (r != NULL)
		last = Max(last, r->leaving);
	(void) heap_getattr(row, domain->version_attnum, desc, &isnull);
	w = isnull ? NO_VERSION : fence_version_raw(domain, row, desc);
	if (w < 0 || w <= last || !fence_version_fits(domain, w, last))
		w = fence_version_after(domain, Max(last, 0));
	reserve(r, w);
	return w;
}

/* The row stays under its key: its next version. */
static int64
reserve_changed_row(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	Reservation *r = reservation_of(domain, row, desc, true);
	int64		w = fence_version_after(domain, domain_row_version(domain, row, desc));

	reserve(r, w);
	return w;
}

/* The key loses its row: the version of its tombstone. */
static void
reserve_old_row(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	Reservation *r = reservation_of(domain, row, desc, true);
	int64		w = fence_version_of_absence(domain, row, desc);

	reserve(r, w);
	if (r != NULL)
		r->leaving = w;
}

static Domain *
trigger_domain(FunctionCallInfo fcinfo, TriggerEvent timing, TriggerEvent level)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Domain	   *domain;

	shared_require();
	if (!CALLED_AS_TRIGGER(fcinfo) || (data->tg_event & TRIGGER_EVENT_TIMINGMASK) != timing ||
		(data->tg_event & TRIGGER_EVENT_ROW) != level)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("this function is called by the triggers that fence.attach makes, and by nothing else")));
	domain = domain_by_relation(RelationGetRelid(data->tg_relation));
	if (domain == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has the triggers of a fenced table, but is not attached",
						RelationGetRelationName(data->tg_relation)),
				 errhint("Drop its triggers named zzz_pgcache_fence_*, then use fence.attach.")));
	return domain;
}

Datum
fence_before_row(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Domain	   *domain = trigger_domain(fcinfo, TRIGGER_EVENT_BEFORE, TRIGGER_EVENT_ROW);
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	HeapTuple	old = data->tg_trigtuple;
	HeapTuple	new = data->tg_newtuple;
	int64		w;

	if (renumber_is_running(domain))
		return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? new : old);
	if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
	{
		reserve_old_row(domain, old, desc);
		return PointerGetDatum(old);
	}
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
	{
		new = old;
		w = reserve_new_row(domain, new, desc);
	}
	else if (key_same(domain, old, new, desc))
		w = reserve_changed_row(domain, old, desc);
	else
	{
		/* a changed key is a DELETE of the old one and an INSERT of the new one */
		reserve_old_row(domain, old, desc);
		w = reserve_new_row(domain, new, desc);
	}
	return PointerGetDatum(stamp_version(domain, new, desc, w));
}

/* -----------------------------------------------------------------------------------------------------------------
 * AFTER ROW
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * The stored version cannot be fenced: the application set it, or another trigger after ours. It is not above what
 * the key had, or too far above.
 */
static void
raise_unfit(const Domain *domain, bool by_application, int64 stored, int64 last)
{
	const char *why = stored <= last ? "a version that the key already had" : "a version that is too large";

	if (by_application)
		ereport(ERROR,
				(errcode(ERRCODE_CHECK_VIOLATION),
				 errmsg("column \"%s\" of domain \"%s\" must grow with each UPDATE%s", domain->version_name, domain->name,
						stored <= last ? "" : ", but not as far"),
				 errdetail("The stored version is " INT64_FORMAT ", it must be from " INT64_FORMAT " to " INT64_FORMAT ".",
						   stored, last + 1, fence_version_most(domain, last)),
				 errhint("Set %s = %s + 1 in the UPDATE, or let the triggers do it: fence.version_by_application(..., false).",
						 quote_identifier(domain->version_name), quote_identifier(domain->version_name))));
	ereport(ERROR,
			(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
			 errmsg("another trigger set column \"%s\" of domain \"%s\" to %s", domain->version_name, domain->name, why),
			 errdetail("The stored version is " INT64_FORMAT ", it must be from " INT64_FORMAT " to " INT64_FORMAT ".",
					   stored, last + 1, fence_version_most(domain, last)),
			 errhint("Leave the version column to pgcache_fence, or let the other trigger fire before zzz_pgcache_fence_before.")));
}

/* Whether the stored version is not what BEFORE ROW gave, and beyond what others may bring. */
static bool
brings_too_much(const Domain *domain, const Reservation *r, int64 stored, int64 last)
{
	return !fence_version_fits(domain, stored, last) && (r == NULL || stored > r->wanted);
}

/* The row, NULL if there is none, as COMMIT is to tell Redis with write-through; NULL: not at all. */
static const char *
value_of(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	bool		too_large;
	const char *value;

	if (row == NULL)
		return domain->cache_absent ? PAYLOAD_ABSENT : NULL;
	if (setting_value_limit == 0)
		return NULL;
	value = row_value(domain, row, desc, setting_value_limit, &too_large);
	if (too_large)
		metrics_add_server(SERVER_METRIC_TOO_LARGE, 1);
	return value;
}

/*
 * The stored version differs from what was asked for: ask for what was stored. Either way it now counts, with the row,
 * which is NULL if there is none.
 */
static void
apply_stored(const Domain *domain, Reservation *r, int64 stored, HeapTuple row, TupleDesc desc)
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
	ledger_apply(r, stored, value_of(domain, row, desc));
	MemoryContextSwitchTo(old);
	MemoryContextDelete(scratch);
}

/* first, here and below: no BEFORE ROW has seen the row, its version is the application's. */
static void
after_new_row(const Domain *domain, HeapTuple row, TupleDesc desc, bool first)
{
	TombstoneView past = tombstone_of(domain, row, desc);
	Reservation *r = reservation_of_new(domain, row, desc, first);
	int64		last = Max(past.tombstone, past.floor);
	int64		stored = fence_version_raw(domain, row, desc);

	if (stored < 0 || (stored <= last && (first || (r != NULL && stored != r->wanted))) || brings_too_much(domain, r, stored, last))
		raise_unfit(domain, first, stored, Max(last, -1));
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
	apply_stored(domain, r, stored, row, desc);
}

/* The old row's key is no more: its version lives on in a tombstone. */
static void
after_old_row_gone(const Domain *domain, HeapTuple row, TupleDesc desc, bool first)
{
	Reservation *r = reservation_of(domain, row, desc, first);
	int64		w = fence_version_of_absence(domain, row, desc);
	char	   *key = key_of_tuple(domain, row, desc);

	tombstone_set(domain->id, key, w);
	pfree(key);
	if (r != NULL)
		r->leaving = NO_VERSION;
	apply_stored(domain, r, w, NULL, NULL);
}

static void
after_changed_row(const Domain *domain, HeapTuple old, HeapTuple new, TupleDesc desc, bool first)
{
	Reservation *r = reservation_of(domain, new, desc, first);
	int64		last = domain_row_version(domain, old, desc);
	int64		stored = fence_version_raw(domain, new, desc);

	if (stored <= last || brings_too_much(domain, r, stored, last))
		raise_unfit(domain, first, stored, last);
	apply_stored(domain, r, stored, new, desc);
}

/*
 * A row of a group came, went or changed: the group's version advances, once per transaction, in the group's own durable
 * row, whose lock orders the writers. Rows with a null in the key belong to no group.
 */
static void
group_changed(const Domain *domain, HeapTuple row, TupleDesc desc)
{
	Reservation *r;
	char	   *key;
	int64		w;
	bool		advanced;

	if (!key_is_complete(domain, row, desc))
		return;
	key = key_of_tuple(domain, row, desc);
	w = tombstone_advance(domain->id, key, &advanced);
	pfree(key);
	if (!advanced)
		return;
	r = reservation_of(domain, row, desc, true);
	apply_stored(domain, r, w, NULL, NULL);
}

/* Whether the rows of another statement of this transaction came last. */
static bool
begins_statement(void)
{
	static CommandId last = InvalidCommandId;
	CommandId	now = GetCurrentCommandId(false);
	bool		begins = now != last;

	last = now;
	return begins;
}

Datum
fence_after_row(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Domain	   *domain = trigger_domain(fcinfo, TRIGGER_EVENT_AFTER, TRIGGER_EVENT_ROW);
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	HeapTuple	row = data->tg_trigtuple;
	bool		first = domain->reserved_after && !domain->version_aside && TRIGGER_FIRED_BY_UPDATE(data->tg_event);

	if (renumber_is_running(domain))
		return PointerGetDatum(NULL);
	/* BEFORE ROW has seen all rows of the statement; what is reserved only here comes one after the other */
	if (!first || begins_statement())
		coordinator_send_early(!first && !domain->version_aside);
	if (domain->version_aside)
	{
		group_changed(domain, row, desc);
		if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
			group_changed(domain, data->tg_newtuple, desc);
	}
	else if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
		after_new_row(domain, row, desc, false);
	else if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
		after_old_row_gone(domain, row, desc, false);
	else if (key_same(domain, row, data->tg_newtuple, desc))
		after_changed_row(domain, row, data->tg_newtuple, desc, first);
	else
	{
		after_old_row_gone(domain, row, desc, first);
		after_new_row(domain, data->tg_newtuple, desc, first);
	}
	return PointerGetDatum(NULL);
}

/*
 * TRUNCATE removes rows without row triggers. Their versions are not kept: a row that comes back may count from the
 * beginning, because nothing that was said of the domain under its former gen is trusted again.
 */
Datum
fence_before_truncate(PG_FUNCTION_ARGS)
{
	Domain	   *domain = trigger_domain(fcinfo, TRIGGER_EVENT_BEFORE, 0 /* per statement */);

	reserve_domain(domain);
	return PointerGetDatum(NULL);
}
