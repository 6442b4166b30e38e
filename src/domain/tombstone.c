/*
 * domain/tombstone.c
 *	  Tombstones and floors in fence.tombstone and fence.floor; see tombstone.h.
 *
 * Owns: both tables, except that the patrol prunes them; and the list of keys that this transaction has deleted and not
 * written yet. Reads and writes the tables directly, because this runs for each row that is inserted or deleted, and
 * the user who changes the row has no privilege on them.
 *
 * Locks: AccessShareLock or RowExclusiveLock on the tables, kept until the end of the transaction. To take such a lock
 * again costs next to nothing, and nobody can drop the extension under a writer.
 *
 * A look-up uses the newest snapshot, taken after the locks, or repeats what it found in the very same snapshot before.
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
#include "common/hashfn.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "domain/catalog.h"
#include "domain/key.h"
#include "domain/tombstone.h"

/* Columns of fence.tombstone and fence.floor, in the order of the install script */
#define TOMBSTONE_DOMAIN	1
#define TOMBSTONE_KEY		2
#define TOMBSTONE_VERSION	3
#define TOMBSTONE_REMOVED	4
#define TOMBSTONE_COLUMNS	4
#define FLOOR_DOMAIN		1
#define FLOOR_VERSION		2
#define FLOOR_COLUMNS		2

/*
 * Keys that this transaction has deleted and that are not in the table yet. To insert a row alone costs several times
 * as much as in a batch. The array is in the order of nesting levels, so the keys of the current level are at its end.
 * A level writes only its own keys, because what it writes is rolled back with it.
 */
typedef struct Deleted
{
	int64		domain_id;
	int64		version;
	char	   *key;
	uint32		hash;			/* of key */
	int			level;			/* nesting level of the transaction that deleted it */
} Deleted;

#define BATCH		256			/* keys of one level; tombstone_look_up compares them one by one */
#define FEW			8			/* fewer keys: a scan for each is cheaper than one that reads whole pages */
#define MAX_STEPS	32			/* tombstones between two keys; after so many, a scan for the one key is cheaper */

static Deleted *deleted = NULL;
static int	ndeleted = 0,
			deleted_size = 0;

/*
 * What tombstone_look_up found last in this transaction, and in which snapshot. Two numbers identify a snapshot: the
 * number of transactions that had ended, and the command. (GetSnapshotData itself returns its last snapshot as long as
 * no transaction ends.) Another snapshot with the same two numbers shows the same rows, whoever writes them and in
 * whatever way.
 */
static struct
{
	int64		domain_id;		/* 0: nothing was looked up */
	uint64		ended;			/* number of transactions that had ended */
	CommandId	command;
	int64		floor;
	int64		tombstone;		/* of key */
	char		key[KEY_MAX_LENGTH + 1];
	bool		none;			/* the domain has no tombstone */
} seen;

static int64 has_tombstones = 0;	/* domain that was found to have some in this transaction; 0: none was */

/* The command in which this file last wrote something. A new snapshot sees only earlier commands. */
static CommandId written_in = InvalidCommandId;

/*
 * Returns the newest snapshot, which sees what this transaction has written here. It is not registered, so the caller
 * must not keep it.
 */
static Snapshot
newest_snapshot(void)
{
	/* a command of an earlier transaction with the same number costs one needless increment */
	if (written_in == GetCurrentCommandId(false))
		CommandCounterIncrement();
	written_in = InvalidCommandId;
	return GetLatestSnapshot();
}

/* The same, registered; the caller unregisters it. */
static Snapshot
snapshot_of_now(void)
{
	return RegisterSnapshot(newest_snapshot());
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

/* Returns the version of the first row that the scan finds, NO_VERSION if there is none. Ends the scan. */
static int64
first_version(Relation table, SysScanDesc scan, AttrNumber column)
{
	HeapTuple	tuple = systable_getnext(scan);
	int64		version = HeapTupleIsValid(tuple) ? version_of(table, tuple, column) : NO_VERSION;

	systable_endscan(scan);
	return version;
}

/*
 * Returns whether the domain has no tombstone: no row version at all, dead and uncommitted ones included, so that the
 * scan can stop at the first. A row that the snapshot shows is still there, because the snapshot is registered.
 */
static bool
has_none(Relation tombstones, int64 domain_id)
{
	SysScanDesc scan = scan_tombstone(tombstones, SnapshotAny, domain_id, NULL);
	bool		none = !HeapTupleIsValid(systable_getnext(scan));

	systable_endscan(scan);
	if (!none)
		has_tombstones = domain_id;
	return none;
}

/*
 * Looks the key up in the tables and stores the result in `seen`. `again` says that `seen` is of this very snapshot and
 * domain.
 */
static void
look(Snapshot snapshot, int64 domain_id, const char *key, bool again)
{
	Relation	tombstones = fence_table_open("tombstone", AccessShareLock);
	Relation	floors = fence_table_open("floor", AccessShareLock);

	if (!again)
		snapshot = newest_snapshot();	/* we may have waited for the locks */
	seen.domain_id = 0;
	seen.ended = snapshot->snapXactCompletionCount;	/* the registered copy does not have this number */
	seen.command = snapshot->curcid;
	/* one snapshot for both, because the patrol raises the floor and prunes in one transaction */
	snapshot = RegisterSnapshot(snapshot);
	if (tombstones != NULL && floors != NULL)
	{
		if (!again)
			seen.floor = first_version(floors, scan_floor(floors, snapshot, domain_id), FLOOR_VERSION);
		/* this is the second key in one snapshot, so there may be many more */
		seen.none = again && has_tombstones != domain_id && has_none(tombstones, domain_id);
		seen.tombstone = seen.none ? NO_VERSION :
			first_version(tombstones, scan_tombstone(tombstones, snapshot, domain_id, key), TOMBSTONE_VERSION);
		strlcpy(seen.key, key, sizeof(seen.key));
		seen.domain_id = domain_id;
	}
	UnregisterSnapshot(snapshot);
	if (floors != NULL)
		table_close(floors, NoLock);
	if (tombstones != NULL)
		table_close(tombstones, NoLock);
}

/* Returns the highest version at which this transaction has deleted the key, of those that are not in the table yet. */
static int64
deleted_version(int64 domain_id, const char *key)
{
	uint32		hash = ndeleted > 0 ? hash_bytes((const unsigned char *) key, strlen(key)) : 0;
	int64		version = NO_VERSION;

	for (int i = 0; i < ndeleted; i++)
		if (deleted[i].hash == hash && deleted[i].domain_id == domain_id && strcmp(deleted[i].key, key) == 0)
			version = Max(version, deleted[i].version);
	return version;
}

TombstoneView
tombstone_look_up(int64 domain_id, const char *key)
{
	TombstoneView view = {.tombstone = NO_VERSION, .floor = NO_VERSION};
	Snapshot	snapshot = newest_snapshot();
	bool		same = seen.domain_id == domain_id && seen.command == snapshot->curcid &&
		seen.ended != 0 && seen.ended == snapshot->snapXactCompletionCount;

	if (!same || (!seen.none && strcmp(seen.key, key) != 0))
		look(snapshot, domain_id, key, same);
	if (seen.domain_id == domain_id)
	{
		view.tombstone = seen.tombstone;
		view.floor = seen.floor;
	}
	view.tombstone = Max(view.tombstone, deleted_version(domain_id, key));
	return view;
}

/*
 * Locks a row that a new snapshot showed, so that the following update cannot fail. Returns false if the patrol has
 * pruned the row in between, or something else has changed it.
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

/* Inserts the row or, if `old` is not NULL, replaces that one. */
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

/* Sorts by domain and key, and for one key the highest version first. */
static int
deleted_compare(const void *a, const void *b)
{
	const Deleted *x = a;
	const Deleted *y = b;
	int			keys = x->domain_id == y->domain_id ? strcmp(x->key, y->key) : x->domain_id < y->domain_id ? -1 : 1;

	return keys != 0 ? keys : x->version == y->version ? 0 : x->version > y->version ? -1 : 1;
}

/* A scan over the tombstones of a domain in the order of their keys */
typedef struct Walk
{
	Relation	table;
	Relation	index;
	Snapshot	snapshot;
	bool		alone;			/* each scan is for one key only, because too many tombstones are between the keys */
	SysScanDesc scan;			/* NULL: not begun yet */
	int64		domain_id;
	HeapTuple	at;				/* the row at which the scan is; NULL: there are no more */
} Walk;

static void
walk_end(Walk *walk)
{
	if (walk->scan != NULL)
		systable_endscan_ordered(walk->scan);
	walk->scan = NULL;
}

static void
walk_begin(Walk *walk, const Deleted *from)
{
	ScanKeyData keys[2];

	walk_end(walk);
	ScanKeyInit(&keys[0], TOMBSTONE_DOMAIN, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(from->domain_id));
	/* the column's collation is "C", as ScanKeyInit assumes */
	ScanKeyInit(&keys[1], TOMBSTONE_KEY, walk->alone ? BTEqualStrategyNumber : BTGreaterEqualStrategyNumber,
				walk->alone ? F_TEXTEQ : F_TEXT_GE, CStringGetTextDatum(from->key));
	walk->scan = systable_beginscan_ordered(walk->table, walk->index, walk->snapshot, 2, keys);
	walk->domain_id = from->domain_id;
	walk->at = systable_getnext_ordered(walk->scan, ForwardScanDirection);
}

/* Compares the key of the row at which the walk is with this key, in the order of collation "C". */
static int
walk_compare(const Walk *walk, const char *key)
{
	bool		isnull;
	text	   *at = DatumGetTextPP(heap_getattr(walk->at, TOMBSTONE_KEY, RelationGetDescr(walk->table), &isnull));
	Size		size = VARSIZE_ANY_EXHDR(at);
	Size		length = strlen(key);
	int			order = memcmp(VARDATA_ANY(at), key, Min(size, length));

	return order != 0 ? order : size < length ? -1 : size > length;
}

/* Walks on to this key. Returns its row; NULL if there is none. */
static HeapTuple
walk_to(Walk *walk, const Deleted *to)
{
	int			steps = 0;

	if (walk->alone || walk->scan == NULL || walk->domain_id != to->domain_id)
		walk_begin(walk, to);
	while (walk->at != NULL && walk_compare(walk, to->key) < 0)
	{
		walk->alone = ++steps > MAX_STEPS;
		if (walk->alone)
			walk_begin(walk, to);
		else
			walk->at = systable_getnext_ordered(walk->scan, ForwardScanDirection);
	}
	return walk->at != NULL && walk_compare(walk, to->key) == 0 ? walk->at : NULL;
}

static void
deleted_values(const Deleted *d, TimestampTz now, Datum *values)
{
	values[TOMBSTONE_DOMAIN - 1] = Int64GetDatum(d->domain_id);
	values[TOMBSTONE_KEY - 1] = CStringGetTextDatum(d->key);
	values[TOMBSTONE_VERSION - 1] = Int64GetDatum(d->version);
	values[TOMBSTONE_REMOVED - 1] = TimestampTzGetDatum(now);
}

/* Inserts the rows in one batch, and frees the slots. */
static void
insert_rows(Relation table, TupleTableSlot **slots, int n)
{
	CatalogIndexState indexes = CatalogOpenIndexes(table);

	CatalogTuplesMultiInsertWithInfo(table, slots, n, indexes);
	CatalogCloseIndexes(indexes);
	written_in = GetCurrentCommandId(true);
	for (int i = 0; i < n; i++)
		ExecDropSingleTupleTableSlot(slots[i]);
}

/*
 * Tries to write the batch, which is sorted. Returns false if somebody changed a row between look-up and lock. The next
 * attempt finds the rows that this one has written.
 */
static bool
try_write(Relation table, const Deleted *batch, int n)
{
	TupleTableSlot *slots[BATCH];
	TupleDesc	desc = CreateTupleDescCopy(RelationGetDescr(table));	/* slots count no references to a copy */
	TimestampTz now = GetCurrentTimestamp();
	Walk		walk = {
		.table = table, .index = index_open(primary_key_index(table), AccessShareLock), .snapshot = snapshot_of_now(), .alone = n < FEW
	};
	bool		done = true;
	int			nnew = 0;

	for (int i = 0; i < n; i++)
	{
		Datum		values[TOMBSTONE_COLUMNS];
		bool		nulls[TOMBSTONE_COLUMNS] = {0};
		HeapTuple	old;

		if (i > 0 && batch[i].domain_id == batch[i - 1].domain_id && strcmp(batch[i].key, batch[i - 1].key) == 0)
			continue;			/* the same key was deleted again; its highest version comes first */
		CHECK_FOR_INTERRUPTS();
		old = walk_to(&walk, &batch[i]);
		deleted_values(&batch[i], now, values);
		if (old == NULL)
		{
			slots[nnew] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
			ExecStoreHeapTuple(heap_form_tuple(desc, values, nulls), slots[nnew++], true);
		}
		else if (version_of(table, old, TOMBSTONE_VERSION) >= batch[i].version)
			continue;
		else if (lock_row(table, old, walk.snapshot))
			write_row(table, old, values);
		else
			done = false;
	}
	walk_end(&walk);
	index_close(walk.index, AccessShareLock);
	if (nnew > 0)
		insert_rows(table, slots, nnew);
	/* only now: whoever inserts must have a snapshot, and in PRE_COMMIT there is no other */
	UnregisterSnapshot(walk.snapshot);
	return done;
}

/* Returns how many keys at the end of the array are of this nesting level or a deeper one. */
static int
deleted_of_level(int level)
{
	int			n = 0;

	while (n < ndeleted && deleted[ndeleted - n - 1].level >= level)
		n++;
	return n;
}

static void
drop_deleted(int n)
{
	while (n-- > 0)
		pfree(deleted[--ndeleted].key);
}

void
tombstone_write_all(void)
{
	int			n = ndeleted > 0 ? deleted_of_level(GetCurrentTransactionNestLevel()) : 0;
	Deleted    *batch = deleted + ndeleted - n;
	Relation	table;

	if (n == 0)
		return;
	table = fence_table_open("tombstone", RowExclusiveLock);
	if (table != NULL)
	{
		qsort(batch, n, sizeof(Deleted), deleted_compare);
		while (!try_write(table, batch, n))
			;
		table_close(table, NoLock);
	}
	drop_deleted(n);
}

void
tombstone_savepoint_rollback(int level)
{
	drop_deleted(deleted_of_level(level));
	seen.domain_id = 0;
}

void
tombstone_at_transaction_end(void)
{
	deleted = NULL;
	ndeleted = deleted_size = 0;
	seen.domain_id = has_tombstones = 0;
}

void
tombstone_set(int64 domain_id, const char *key, int64 version)
{
	int			level = GetCurrentTransactionNestLevel();
	Deleted    *d;

	if (ndeleted >= BATCH && deleted_of_level(level) >= BATCH)
		tombstone_write_all();
	if (deleted == NULL)
		deleted = MemoryContextAlloc(TopTransactionContext, (deleted_size = 16) * sizeof(Deleted));
	else if (ndeleted == deleted_size)
		deleted = repalloc(deleted, (deleted_size *= 2) * sizeof(Deleted));
	d = &deleted[ndeleted];
	*d = (Deleted) {.domain_id = domain_id, .version = version, .level = level};
	d->key = MemoryContextStrdup(TopTransactionContext, key);
	d->hash = hash_bytes((const unsigned char *) key, strlen(key));
	ndeleted++;
}

/*
 * Inserts the row of a group that never changed, with version 0. If another transaction is inserting it, waits in the
 * unique index for the end of that transaction. So no lock but the row's is needed, however many groups there are.
 */
static void
make_group_row(Relation table, int64 domain_id, const char *key)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(domain_id), CStringGetTextDatum(key)};
	Oid			user;
	int			context;

	/* the user who fires the trigger has no privilege on the table */
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

/*
 * Tries once to increment the version in the group's row. Returns 1 if it did, 0 if the row was changed in between and
 * the caller must try again, -1 if there is no row.
 */
static int
try_advance(Relation table, Snapshot snapshot, SysScanDesc scan, Datum *values, bool *advanced)
{
	HeapTuple	old = systable_getnext(scan);
	int64		version;

	if (!HeapTupleIsValid(old))
		return -1;
	version = version_of(table, old, TOMBSTONE_VERSION);
	/* version 0 was only inserted by make_group_row */
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

/* Deletes the rows that the scan finds. Ignores rows that the patrol deletes at the same time. */
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

	tombstone_write_all();
	if (tombstones != NULL && floors != NULL)
	{
		Snapshot	snapshot = snapshot_of_now();

		delete_all(tombstones, snapshot, scan_tombstone(tombstones, snapshot, domain_id, NULL));
		UnregisterSnapshot(snapshot);
		/*
		 * take another snapshot, because a patrol that was pruning the tombstones, and for which we have waited, has
		 * raised the floor
		 */
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
	tombstone_write_all();
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
