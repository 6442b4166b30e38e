/*
 * tombstone.c
 *	  Tombstones and floors in fence.tombstone and fence.floor; see tombstone.h.
 *
 * Owns: both tables, except that the patrol prunes. Read and written directly: this runs for each row inserted or
 * deleted, and whoever fires the trigger has no privilege here.
 *
 * Locks: AccessShareLock or RowExclusiveLock on the tables, kept to the end of the transaction (taking it again then
 * costs next to nothing, and nobody drops the extension under a writer); to raise a floor, an ExclusiveLock on the
 * floor as an object. Every look-up takes a new snapshot after its locks.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "domain.h"
#include "tombstone.h"

/* Columns of fence.tombstone and fence.floor, as the install script makes them */
#define TOMBSTONE_DOMAIN	1
#define TOMBSTONE_KEY		2
#define TOMBSTONE_VERSION	3
#define TOMBSTONE_REMOVED	4
#define TOMBSTONE_COLUMNS	4
#define FLOOR_DOMAIN		1
#define FLOOR_VERSION		2
#define FLOOR_COLUMNS		2

/* Command in which something was last written here; a new snapshot sees only earlier commands. */
static CommandId written_in = InvalidCommandId;

/* A new snapshot that sees what this transaction wrote here. To be unregistered. */
static Snapshot
snapshot_of_now(void)
{
	/* a command of an earlier transaction with the same number costs one needless increment */
	if (written_in == GetCurrentCommandId(false))
		CommandCounterIncrement();
	written_in = InvalidCommandId;
	return RegisterSnapshot(GetLatestSnapshot());
}

static Oid
primary_key_index(Relation table)
{
	if (!table->rd_indexvalid)
		list_free(RelationGetIndexList(table));
	return table->rd_pkindex;
}

static SysScanDesc
scan_tombstone(Relation table, Snapshot snapshot, int64 domain_id, const char *key)
{
	Oid			index = primary_key_index(table);
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], TOMBSTONE_DOMAIN, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(domain_id));
	if (key == NULL)
		return systable_beginscan(table, index, OidIsValid(index), snapshot, 1, keys);
	/* the column's collation is "C", as ScanKeyInit assumes */
	ScanKeyInit(&keys[1], TOMBSTONE_KEY, BTEqualStrategyNumber, F_TEXTEQ, CStringGetTextDatum(key));
	return systable_beginscan(table, index, OidIsValid(index), snapshot, 2, keys);
}

static SysScanDesc
scan_floor(Relation table, Snapshot snapshot, int64 domain_id)
{
	Oid			index = primary_key_index(table);
	ScanKeyData key;

	ScanKeyInit(&key, FLOOR_DOMAIN, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(domain_id));
	return systable_beginscan(table, index, OidIsValid(index), snapshot, 1, &key);
}

static int64
version_of(Relation table, HeapTuple tuple, AttrNumber column)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, column, RelationGetDescr(table), &isnull));
}

/*
 * PostgreSQL counts the transactions that end, before anybody sees what they have written, or gets a lock that they had: so it knows
 * whether a snapshot is as good as a new one.
 */
static uint64
completed_transactions(void)
{
	uint64		count;

	LWLockAcquire(ProcArrayLock, LW_SHARED);
	count = fence_completed_transactions();
	LWLockRelease(ProcArrayLock);
	return count;
}

bool
tombstone_is_current(uint64 completed)
{
	return written_in == InvalidCommandId && completed == completed_transactions();
}

TombstoneView
tombstone_look_up(int64 domain_id, const char *key)
{
	TombstoneView view = {.tombstone = NO_VERSION, .floor = NO_VERSION, .completed = completed_transactions()};
	Relation	tombstones = fence_table_open("tombstone", AccessShareLock);
	Relation	floors = fence_table_open("floor", AccessShareLock);

	if (tombstones != NULL && floors != NULL)
	{
		/* one snapshot: the patrol raises the floor and prunes in one transaction */
		Snapshot	snapshot = snapshot_of_now();
		SysScanDesc scan = scan_tombstone(tombstones, snapshot, domain_id, key);
		HeapTuple	tuple = systable_getnext(scan);

		if (HeapTupleIsValid(tuple))
			view.tombstone = version_of(tombstones, tuple, TOMBSTONE_VERSION);
		systable_endscan(scan);

		scan = scan_floor(floors, snapshot, domain_id);
		tuple = systable_getnext(scan);
		if (HeapTupleIsValid(tuple))
			view.floor = version_of(floors, tuple, FLOOR_VERSION);
		systable_endscan(scan);
		UnregisterSnapshot(snapshot);
	}
	if (floors != NULL)
		table_close(floors, NoLock);
	if (tombstones != NULL)
		table_close(tombstones, NoLock);
	return view;
}

/*
 * Locks a row that a snapshot of now showed, so that the following update cannot fail. False: the patrol pruned it,
 * or something else changed it, in between.
 */
static bool
lock_row(Relation table, HeapTuple tuple, Snapshot snapshot)
{
	TupleTableSlot *slot = table_slot_create(table, NULL);
	TM_FailureData failure;
	TM_Result	result = table_tuple_lock(table, &tuple->t_self, snapshot, slot, GetCurrentCommandId(false),
										  LockTupleNoKeyExclusive, LockWaitBlock, 0, &failure);

	ExecDropSingleTupleTableSlot(slot);
	return result == TM_Ok;
}

/* Inserts the row or, where old is given, lets it follow that one. */
static void
write_row(Relation table, HeapTuple old, Datum *values)
{
	bool		nulls[TOMBSTONE_COLUMNS] = {0};
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);

	if (old == NULL)
		CatalogTupleInsert(table, tuple);
	else
		CatalogTupleUpdate(table, &old->t_self, tuple);
	heap_freetuple(tuple);
	written_in = GetCurrentCommandId(true);
}

/* One attempt; false if the row was changed between look-up and lock. */
static bool
try_set(Relation table, Snapshot snapshot, SysScanDesc scan, AttrNumber version_column, int64 version, Datum *values)
{
	HeapTuple	old = systable_getnext(scan);

	if (!HeapTupleIsValid(old))
		write_row(table, NULL, values);
	else if (version_of(table, old, version_column) < version)
	{
		if (!lock_row(table, old, snapshot))
			return false;
		write_row(table, old, values);
	}
	return true;
}

void
tombstone_set(int64 domain_id, const char *key, int64 version)
{
	Relation	table = fence_table_open("tombstone", RowExclusiveLock);
	Datum		values[TOMBSTONE_COLUMNS];
	bool		done = false;

	if (table == NULL)
		return;
	values[TOMBSTONE_DOMAIN - 1] = Int64GetDatum(domain_id);
	values[TOMBSTONE_KEY - 1] = CStringGetTextDatum(key);
	values[TOMBSTONE_VERSION - 1] = Int64GetDatum(version);
	values[TOMBSTONE_REMOVED - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	while (!done)
	{
		Snapshot	snapshot = snapshot_of_now();
		SysScanDesc scan = scan_tombstone(table, snapshot, domain_id, key);

		CHECK_FOR_INTERRUPTS();
		done = try_set(table, snapshot, scan, TOMBSTONE_VERSION, version, values);
		systable_endscan(scan);
		UnregisterSnapshot(snapshot);
	}
	table_close(table, NoLock);
}

/*
 * Makes the row of a group that never changed, at version 0. If somebody else is making it, waits in the unique index
 * for the end of his transaction: no lock besides the row's, however many groups there are.
 */
static void
make_group_row(Relation table, int64 domain_id, const char *key)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(domain_id), CStringGetTextDatum(key)};
	Oid			user;
	int			context;

	/* whoever fires the trigger has no privilege here */
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(table->rd_rel->relowner, context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	if (plan == NULL)
	{
		plan = SPI_prepare("INSERT INTO fence.tombstone (domain_id, key, version, removed_at)"
						   " VALUES ($1, $2, 0, 'infinity') ON CONFLICT (domain_id, key) DO NOTHING", 2, types);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "could not prepare the insertion into fence.tombstone");
	}
	if (SPI_execute_plan(plan, values, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not insert into fence.tombstone");
	SPI_finish();
	SetUserIdAndSecContext(user, context);
	written_in = GetCurrentCommandId(false);
}

/* One look at the group's row. 1: done, 0: changed in between, look again, -1: there is no row. */
static int
try_advance(Relation table, Snapshot snapshot, SysScanDesc scan, Datum *values, bool *advanced)
{
	HeapTuple	old = systable_getnext(scan);
	int64		version;

	if (!HeapTupleIsValid(old))
		return -1;
	version = version_of(table, old, TOMBSTONE_VERSION);
	/* version 0 was only made, not advanced to */
	*advanced = version == 0 || !TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(old->t_data));
	if (*advanced)
	{
		if (!lock_row(table, old, snapshot))
			return 0;
		version++;
		values[TOMBSTONE_VERSION - 1] = Int64GetDatum(version);
		write_row(table, old, values);
	}
	values[TOMBSTONE_VERSION - 1] = Int64GetDatum(version);
	return 1;
}

int64
tombstone_advance(int64 domain_id, const char *key, bool *advanced)
{
	Relation	table = fence_table_open("tombstone", RowExclusiveLock);
	Datum		values[TOMBSTONE_COLUMNS];
	int			outcome = 0;

	*advanced = false;
	if (table == NULL)
		return NO_VERSION;
	values[TOMBSTONE_DOMAIN - 1] = Int64GetDatum(domain_id);
	values[TOMBSTONE_KEY - 1] = CStringGetTextDatum(key);
	values[TOMBSTONE_REMOVED - 1] = TimestampTzGetDatum(DT_NOEND);
	while (outcome != 1)
	{
		Snapshot	snapshot = snapshot_of_now();
		SysScanDesc scan = scan_tombstone(table, snapshot, domain_id, key);

		CHECK_FOR_INTERRUPTS();
		outcome = try_advance(table, snapshot, scan, values, advanced);
		systable_endscan(scan);
		UnregisterSnapshot(snapshot);
		if (outcome == -1)
			make_group_row(table, domain_id, key);
	}
	table_close(table, NoLock);
	return DatumGetInt64(values[TOMBSTONE_VERSION - 1]);
}

int64
tombstone_group_version(int64 domain_id, const char *key, Snapshot snapshot)
{
	Relation	table = fence_table_open("tombstone", AccessShareLock);
	int64		version = 0;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (table == NULL)
		return 0;
	scan = scan_tombstone(table, snapshot, domain_id, key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		version = version_of(table, tuple, TOMBSTONE_VERSION);
	systable_endscan(scan);
	table_close(table, NoLock);
	return version;
}

/* Deletes what the scan finds; what the patrol deletes at the same time is deleted all the same. */
static void
delete_all(Relation table, Snapshot snapshot, SysScanDesc scan)
{
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TM_FailureData failure;

		CHECK_FOR_INTERRUPTS();
		(void) table_tuple_delete(table, &tuple->t_self, GetCurrentCommandId(true), snapshot, InvalidSnapshot, true,
								  &failure, false);
		written_in = GetCurrentCommandId(false);
	}
	systable_endscan(scan);
}

void
tombstone_forget_domain(int64 domain_id)
{
	Relation	tombstones = fence_table_open("tombstone", RowExclusiveLock);
	Relation	floors = fence_table_open("floor", RowExclusiveLock);

	if (tombstones != NULL && floors != NULL)
	{
		Snapshot	snapshot = snapshot_of_now();

		delete_all(tombstones, snapshot, scan_tombstone(tombstones, snapshot, domain_id, NULL));
		UnregisterSnapshot(snapshot);
		/* another one: a patrol that was pruning tombstones, and has been waited for, has raised the floor */
		snapshot = snapshot_of_now();
		delete_all(floors, snapshot, scan_floor(floors, snapshot, domain_id));
		UnregisterSnapshot(snapshot);
	}
	if (floors != NULL)
		table_close(floors, NoLock);
	if (tombstones != NULL)
		table_close(tombstones, NoLock);
}

List *
tombstone_keys(int64 domain_id)
{
	Relation	table = fence_table_open("tombstone", AccessShareLock);
	List	   *keys = NIL;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (table == NULL)
		return NIL;
	snapshot = snapshot_of_now();
	scan = scan_tombstone(table, snapshot, domain_id, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		key = heap_getattr(tuple, TOMBSTONE_KEY, RelationGetDescr(table), &isnull);

		keys = lappend(keys, TextDatumGetCString(key));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(table, NoLock);
	return keys;
}
