/*
 * patrol.c
 *	  The patrol: settles what is left pending, audits committed fences, prunes tombstones.
 *
 * Owns: rules of doc/protocol.md, "Patrol". The patrol itself is connected to no database: it lists reservations, asks
 * for the fate of their transactions, and starts a short-lived round in each database that has something to settle.
 * A timeout alone never ends a transaction's reservation; one that ends a detached reservation is a row deleted first.
 *
 * The order is the protocol: first the fate of the stamp (running and prepared transactions, then the commit log),
 * then the row in a snapshot taken afterwards [8].
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "audit.h"
#include "compat.h"
#include "detached.h"
#include "domain.h"
#include "effect_patrol.h"
#include "key.h"
#include "metrics.h"
#include "patrol.h"
#include "redis/library.h"
#include "row.h"
#include "settings.h"
#include "shared.h"
#include "stamp.h"
#include "tombstone.h"
#include "worker.h"

#define PAGE			1000	/* reservations listed at once */
#define AUDIT_EVERY		10		/* seconds between audits of a database, and prunings of its tombstones */
#define PRUNE_MOST		10000	/* tombstones pruned at once */
#define ROUND_LIMIT		INT64CONST(60000000)	/* microseconds that a round may take */

/* Duties of a round, besides settling */
#define DUTY_AUDIT		'\4'
#define DUTY_OUTBOX		'\20'		/* durable effects */
#define DUTY_AT_ONCE	'\10'		/* settle without waiting for patrol_grace: somebody said that there is something */

PGDLLEXPORT void fence_patrol_main(Datum arg);
PGDLLEXPORT void fence_patrol_round_main(Datum arg);

/* -----------------------------------------------------------------------------------------------------------------
 * Asking the nodes
 * -----------------------------------------------------------------------------------------------------------------
 */

void
patrol_copy_nodes(PatrolNodes *nodes)
{
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	nodes->serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	nodes->n = fence_shared->nnodes;
	for (int i = 0; i < nodes->n; i++)
	{
		nodes->granted[i] = fence_shared->nodes[i].granted;
		nodes->addresses[i] = fence_shared->nodes[i].address;
	}
	LWLockRelease(fence_shared->lock);
}

bool
patrol_connect(LibraryCall *call, const RedisEndpoint *address)
{
	RedisUrl	url;
	const char *wrong = redis_url_parse(setting_redis_url, &url);

	call->deadline = fence_clock() + setting_timeout * INT64CONST(1000);
	call->conn = NULL;
	if (wrong)
		strlcpy(call->error, wrong, REASON_LEN);
	else
		call->conn = redis_open(address, &url, call->deadline, call->error, REASON_LEN);
	return call->conn != NULL;
}

/* Database and domain of a listed reservation; key is NULL for one of a whole domain. False: not ours. */
static bool
owner_of(const ListedReservation *r, Oid *database, char **wire_name, char **key)
{
	*key = NULL;
	if (!r->domain)
		return key_parse_fence_name(r->name, database, wire_name, key);
	*wire_name = r->name;
	*database = (Oid) strtoul(r->name, NULL, 10);
	return OidIsValid(*database);
}

/*
 * Does work in a subtransaction: one table whose columns were renamed away, or one key that its type no longer
 * understands, must not keep all others from being settled. False: it failed, and the log says why.
 */
static bool
guarded(void (*work) (void *arg), void *arg, const char *what)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool ok = true;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (fence_log_due(what))
			ereport(LOG, (errmsg("pgcache_fence: the patrol passes over %s: %s", what, error->message)));
		FreeErrorData(error);
		ok = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return ok;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Settling
 * -----------------------------------------------------------------------------------------------------------------
 */

static bool
send_abort(LibraryCall *call, const ListedReservation *r, const char *epoch)
{
	/* not by key: it goes to whom listed it, wherever the slot is now */
	const char *row[] = {"FCALL", "fence_write", "0", "1", r->name, epoch, "a", r->stamp};
	const char *domain[] = {"FCALL", "fence_domain_abort", "0", setting_namespace, r->name, epoch, r->stamp};

	return r->domain ? library_send(call, lengthof(domain), domain) : library_send(call, lengthof(row), row);
}

static bool
send_settle(LibraryCall *call, const ListedReservation *r, const char *epoch, int64 version)
{
	char		u[24] = "";
	const char *row[] = {"FCALL", "fence_settle", "0", setting_namespace, r->name, epoch, r->stamp, u};
	const char *domain[] = {"FCALL", "fence_domain_commit", "0", setting_namespace, r->name, epoch, r->stamp};

	if (version != NO_VERSION)
		pg_lltoa(version, u);
	return r->domain ? library_send(call, lengthof(domain), domain) : library_send(call, lengthof(row), row);
}

typedef struct VersionQuestion
{
	const ListedReservation *reservation;
	int64		version;
} VersionQuestion;

typedef struct DetachedQuestion
{
	const ListedReservation *reservation;
	bool		stands;
} DetachedQuestion;

static void
look_up_version(void *arg)
{
	VersionQuestion *question = arg;
	Oid			database;
	char	   *wire_name;
	char	   *key;
	Domain	   *domain;

	if (!owner_of(question->reservation, &database, &wire_name, &key))
		return;
	domain = domain_by_wire_name(wire_name);
	if (domain != NULL)
		question->version = row_current_version(domain, key, NULL);
}

/* Version of the row or tombstone; NO_VERSION if there is neither, or if it cannot be told. */
static int64
current_version(const ListedReservation *r)
{
	VersionQuestion question = {.reservation = r, .version = NO_VERSION};

	return guarded(look_up_version, &question, r->name) ? question.version : NO_VERSION;
}

static void
count_settled(const ListedReservation *r, StampFate fate)
{
	Oid			database;
	char	   *wire_name;
	char	   *key;

	if (owner_of(r, &database, &wire_name, &key))
		metrics_add(metrics_slot(wire_name), fate == FATE_COMMITTED ? METRIC_SETTLE_COMMITTED :
					fate == FATE_ABORTED ? METRIC_SETTLE_ABORTED : METRIC_SETTLE_UNKNOWN, 1);
}

static void
look_whether_stands(void *arg)
{
	DetachedQuestion *question = arg;

	question->stands = detached_stands(question->reservation->stamp);
}

/*
 * A detached reservation, which no transaction is just making: its row decides, and then the version of the table's row,
 * which is read later. It is settled with that version in any case: dropped alone, it could leave a fence that is behind what
 * was written under it without triggers. Without one (no such row, no such table) the fence goes. What cannot be asked keeps
 * the reservation: a database that is not served, or not yet, for as long as a lease may last.
 */
static bool
settle_detached(LibraryCall *call, const ListedReservation *r, const char *epoch, bool domain_known)
{
	DetachedQuestion question = {.reservation = r, .stands = false};
	int64		version;

	if (domain_known ? !guarded(look_whether_stands, &question, r->name) : r->age_ms < DETACHED_LEASE_MOST_MS)
		return true;
	version = domain_known ? current_version(r) : NO_VERSION;
	if (question.stands && (version == NO_VERSION || version < r->version))
		return true;
	count_settled(r, FATE_UNKNOWN);
	return send_settle(call, r, epoch, version);
}

/*
 * The table of doc/protocol.md. domain_known: this process is in the reservation's database; else nothing is known of
 * the row, because the database is gone.
 */
static bool
settle_one(LibraryCall *call, const ListedReservation *r, const char *epoch, StampFate fate, bool domain_known)
{
	int64		version = NO_VERSION;

	if (fate == FATE_IN_PROGRESS)
		return true;
	if (fence_stamp_is_detached(r->stamp, NULL))
		return settle_detached(call, r, epoch, domain_known);
	count_settled(r, fate);
	if (fate == FATE_ABORTED)
		return send_abort(call, r, epoch);
	if (!r->domain && domain_known)
		version = current_version(r);
	if (fate == FATE_UNKNOWN && !r->domain && version != NO_VERSION && version < r->version)
		return send_abort(call, r, epoch);
	return send_settle(call, r, epoch, version);
}

/* The fate of a listed reservation; neighbours in the list often have the same stamp. */
static StampFate
fate_of(const ListedReservation *r)
{
	static char stamp[64] = "";
	static StampFate fate;

	if (strcmp(stamp, r->stamp) != 0 || fate == FATE_IN_PROGRESS)
	{
		fate = fence_stamp_fate(r->stamp, NULL);
		strlcpy(stamp, r->stamp, sizeof(stamp));
	}
	return fate;
}

/* Settles what one node lists for this database; returns how many messages it took. */
static int64
settle_node(LibraryCall *call, Oid database, int grace)
{
	char	   *cursor = pstrdup("");
	char		epoch[EPOCH_LEN];
	int64		settled = 0;
	MemoryContext page_context = AllocSetContextCreate(TopMemoryContext, "pgcache_fence page", ALLOCSET_DEFAULT_SIZES);

	do
	{
		List	   *page = NIL;
		ListCell   *cell;

		CHECK_FOR_INTERRUPTS();
		call->deadline = fence_clock() + setting_timeout * INT64CONST(1000);
		MemoryContextSwitchTo(page_context);
		if (!library_pending(call, grace, PAGE, &cursor, epoch, &page))
			return settled;
		worker_begin_transaction();
		MemoryContextSwitchTo(page_context);
		foreach(cell, page)
		{
			ListedReservation *r = lfirst(cell);
			Oid			of;
			char	   *wire_name;
			char	   *key;
			StampFate	fate;

			if (!owner_of(r, &of, &wire_name, &key) || of != database)
				continue;
			fate = fate_of(r);
			settled += fate != FATE_IN_PROGRESS;
			if (!settle_one(call, r, epoch, fate, true))
				break;
		}
		worker_end_transaction();
		call->deadline = fence_clock() + setting_timeout * INT64CONST(1000);
		(void) library_finish(call);	/* an error reply concerns one reservation */
		cursor = MemoryContextStrdup(TopMemoryContext, cursor);
		MemoryContextReset(page_context);
	} while (*cursor && redis_error(call->conn) == NULL);
	return settled;
}

static void
settle(Oid database, int grace)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	static PatrolNodes nodes;

	patrol_copy_nodes(&nodes);
	for (int i = 0; i < nodes.n; i++)
	{
		LibraryCall call = {0};

		if (!nodes.granted[i] || !patrol_connect(&call, &nodes.addresses[i]))
			continue;
		if (settle_node(&call, database, grace) > 0)
			elog(DEBUG1, "pgcache_fence: the patrol settled reservations in database %u", database);
		redis_close(call.conn);
	}
	MemoryContextSwitchTo(old);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Other duties of a round
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
audit_domain(void *wire_name)
{
	Domain	   *domain = domain_by_wire_name(wire_name);
	int64		counts[RELATION_COUNT] = {0};
	int			most = (int) Min(ceil(setting_audit_rate * AUDIT_EVERY), 100000);

	if (domain != NULL && most > 0)
		audit_sample(domain, 0.0, most, true, counts);
}

static void
audit_database(void)
{
	List	   *domains;
	ListCell   *cell;

	worker_begin_transaction();
	domains = domain_list();
	foreach(cell, domains)
	{
		DomainRef  *ref = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		(void) guarded(audit_domain, ref->wire_name, ref->wire_name);
	}
	worker_end_transaction();
}

/*
 * Old tombstones go; before, in the same statement, the domain's floor is raised to the highest one removed, so that no
 * key starts again at a version that it had [7].
 */
static void
prune_tombstones(void)
{
	Oid			types[] = {INT4OID, INT4OID};
	Datum		values[] = {Int32GetDatum(setting_tombstone_retention), Int32GetDatum(PRUNE_MOST)};
	uint64		pruned;

	do
	{
		CHECK_FOR_INTERRUPTS();
		worker_begin_transaction();
		SPI_connect();
		if (SPI_execute_with_args("WITH old AS (SELECT domain_id, key FROM fence.tombstone"
								  "  WHERE removed_at OPERATOR(pg_catalog.<) "
								  "   (pg_catalog.now() OPERATOR(pg_catalog.-) ($1 OPERATOR(pg_catalog.*) interval '1 second'))"
								  "  ORDER BY removed_at LIMIT $2 FOR UPDATE SKIP LOCKED),"
								  " gone AS (DELETE FROM fence.tombstone t USING old"
								  "  WHERE t.domain_id OPERATOR(pg_catalog.=) old.domain_id AND t.key OPERATOR(pg_catalog.=) old.key"
								  "  RETURNING t.domain_id, t.version),"
								  " raised AS (INSERT INTO fence.floor AS f (domain_id, version)"
								  "  SELECT domain_id, pg_catalog.max(version) FROM gone GROUP BY domain_id"
								  "  ON CONFLICT (domain_id) DO UPDATE SET version = greatest(f.version, excluded.version))"
								  " SELECT 1 FROM gone",
								  2, types, values, NULL, false, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not prune fence.tombstone");
		pruned = SPI_processed;
		SPI_finish();
		worker_end_transaction();
	} while (pruned == PRUNE_MOST);
}

void
fence_patrol_round_main(Datum arg)
{
	Oid			database = DatumGetObjectId(arg);
	char		duties = MyBgworkerEntry->bgw_extra[0];
	bool		extension;

	worker_begin(database);
	pgstat_report_activity(STATE_RUNNING, "pgcache_fence patrol round");
	worker_begin_transaction();
	extension = OidIsValid(fence_table_oid("domain"));
	if (extension)
		detached_expire();
	worker_end_transaction();
	settle(database, (duties & DUTY_AT_ONCE) ? 0 : setting_patrol_grace);
	if (duties & DUTY_OUTBOX)
		effect_outbox_round();
	if (extension && (duties & DUTY_AUDIT))
	{
		prune_tombstones();
		audit_database();
	}
	proc_exit(0);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The patrol itself
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Lists what one node has; settles what belongs to no database any more; returns the databases with work. */
static List *
databases_with_work(LibraryCall *call, int grace, List *served, List *found)
{
	char	   *cursor = pstrdup("");
	char		epoch[EPOCH_LEN];

	do
	{
		List	   *page = NIL;
		ListCell   *cell;

		CHECK_FOR_INTERRUPTS();
		call->deadline = fence_clock() + setting_timeout * INT64CONST(1000);
		if (!library_pending(call, grace, PAGE, &cursor, epoch, &page))
			break;
		foreach(cell, page)
		{
			ListedReservation *r = lfirst(cell);
			Oid			database;
			char	   *wire_name;
			char	   *key;

			if (!owner_of(r, &database, &wire_name, &key) || fate_of(r) == FATE_IN_PROGRESS)
				continue;
			if (list_member_oid(served, database))
				found = list_append_unique_oid(found, database);
			else
				(void) settle_one(call, r, epoch, fate_of(r), false);
		}
		(void) library_finish(call);
	} while (*cursor && redis_error(call->conn) == NULL);
	return found;
}

/* What the nodes have counted of readers goes to the metrics; the lists are of DomainCounts. */
static void
note_counts(List *all)
{
	static const DomainMetric metrics[COUNTED] = {
		METRIC_GET_HIT, METRIC_GET_MISS, METRIC_GET_PENDING, METRIC_GET_UNARMED,
		METRIC_PUT_STORED, METRIC_PUT_STALE, METRIC_PUT_REFUSED
	};
	int64	   *reserved = palloc0(sizeof(int64) * METRIC_MAX_SLOTS);
	ListCell   *cell;

	foreach(cell, all)
	{
		DomainCounts *counts = lfirst(cell);
		MetricSlot	slot = metrics_slot(counts->wire_name);

		for (int i = 0; i < COUNTED; i++)
			metrics_add(slot, metrics[i], counts->counted[i]);
		metrics_add(slot, METRIC_FALLBACK_MISS, counts->counted[1]);
		metrics_add(slot, METRIC_FALLBACK_PENDING, counts->counted[2]);
		metrics_add(slot, METRIC_FALLBACK_UNARMED, counts->counted[3]);
		metrics_add(slot, METRIC_STALE_REDIS, counts->counted[5] + counts->counted[6]);
		reserved[slot] += counts->reservations;
	}
	for (MetricSlot slot = 0; slot < metrics_slots(); slot++)
		metrics_set(slot, METRIC_PENDING, reserved[slot]);
}

/* Runs a round in a database and waits for its end. */
static void
run_round(Oid database, char duties)
{
	BackgroundWorkerHandle *handle = worker_start_patrol(database, duties);
	int64		deadline = fence_clock() + ROUND_LIMIT;
	pid_t		pid;

	if (handle == NULL)
	{
		if (fence_log_due("no background worker slot"))
			ereport(LOG,
					(errmsg("pgcache_fence: the patrol found no free background worker slot"),
					 errhint("Raise max_worker_processes.")));
		return;
	}
	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		if (fence_clock() > deadline)
		{
			TerminateBackgroundWorker(handle);
			break;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1000, wait_event_worker());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	pfree(handle);
}

/* A database that was dropped has nobody left to say so: what is pending for it must not wait for a round in it. */
static List *
without_dropped(List *served, List *existing)
{
	List	   *kept = NIL;
	ListCell   *cell;

	foreach(cell, served)
	{
		if (list_member_oid(existing, lfirst_oid(cell)))
			kept = lappend_oid(kept, lfirst_oid(cell));
		else
			fence_database_note(lfirst_oid(cell), false);
	}
	return kept;
}

/*
 * Databases that have marks in Redis and do not serve the extension any more. Where it was dropped there is no outbox, and
 * that is to be seen there: DROP EXTENSION may not have committed. Nor is a database gone that only takes no connections.
 */
static void
forget_outboxes(List *databases, List *connectable, LibraryCall *calls)
{
	ListCell   *cell;

	foreach(cell, databases)
	{
		Oid			database = lfirst_oid(cell);

		if (list_member_oid(connectable, database))
			run_round(database, DUTY_OUTBOX);
		else if (!worker_database_exists(database))
			for (int i = 0; i < MAX_NODES; i++)
				if (calls[i].conn && redis_error(calls[i].conn) == NULL)
					effect_patrol_forget_database(&calls[i], database);
	}
}

/*
 * One round over all nodes and databases. at_once: somebody woke the patrol because something is to be settled; the
 * grace period only spares work on reservations that their own transactions are about to end.
 */
static void
patrol(bool at_once, bool audit)
{
	List	   *served = NIL;
	List	   *existing;
	List	   *work = NIL;
	List	   *counts = NIL;
	static PatrolNodes nodes;
	static LibraryCall calls[MAX_NODES];	/* kept from round to round */
	static uint32 serial = 0;	/* of the addresses when they were opened */
	bool		outbox = pg_atomic_exchange_u32(&fence_shared->outbox_wanted, 0) != 0 || audit;
	List	   *durable = NIL;	/* databases with durable effects */
	uint64		effects_held = 0;
	ListCell   *cell;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < fence_shared->ndatabases; i++)
		served = lappend_oid(served, fence_shared->databases[i]);
	LWLockRelease(fence_shared->lock);

	existing = worker_list_databases(true);
	served = without_dropped(served, existing);
	patrol_copy_nodes(&nodes);
	for (int i = 0; i < MAX_NODES; i++)
	{
		LibraryCall *call = &calls[i];

		if (call->conn && (redis_error(call->conn) || serial != nodes.serial))
		{
			redis_close(call->conn);
			call->conn = NULL;
		}
		if (i >= nodes.n || !nodes.granted[i] || (call->conn == NULL && !patrol_connect(call, &nodes.addresses[i])))
			continue;
		work = databases_with_work(call, at_once ? 0 : setting_patrol_grace, served, work);
		if (redis_error(call->conn) == NULL)
			(void) library_take_counts(call, &counts);
		if (redis_error(call->conn) == NULL)
			durable = effect_patrol_settle(call, at_once ? 0 : setting_patrol_grace, durable, &effects_held);
	}
	serial = nodes.serial;
	note_counts(counts);
	metrics_set_server(SERVER_METRIC_EFFECTS_HELD, effects_held);
	foreach(cell, served)
	{
		bool		settle_here = list_member_oid(work, lfirst_oid(cell));

		bool		outbox_here = outbox || list_member_oid(durable, lfirst_oid(cell));

		if (settle_here || audit || outbox_here)
			run_round(lfirst_oid(cell), (at_once ? DUTY_AT_ONCE : 0) | (audit ? DUTY_AUDIT : 0) | (outbox_here ? DUTY_OUTBOX : 0));
	}
	forget_outboxes(list_difference_oid(durable, served), existing, calls);
}

static void
patrol_exit(int code, Datum arg)
{
	(void) code;
	(void) arg;
	fence_shared->patrol_latch = NULL;
}

void
fence_patrol_main(Datum arg)
{
	MemoryContext loop;
	int64		audit_next = fence_clock() + AUDIT_EVERY * INT64CONST(1000000);

	(void) arg;
	worker_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	fence_shared->patrol_latch = MyLatch;
	before_shmem_exit(patrol_exit, 0);
	loop = AllocSetContextCreate(TopMemoryContext, "pgcache_fence patrol", ALLOCSET_DEFAULT_SIZES);

	for (;;)
	{
		bool		wanted;

		/* what was asked for, or set, while the last round was under way: that round's waits took the latch */
		if (pg_atomic_read_u32(&fence_shared->patrol_wanted) == 0 && !ConfigReloadPending)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 setting_patrol_interval, wait_event_worker());
		ResetLatch(MyLatch);
		wanted = pg_atomic_exchange_u32(&fence_shared->patrol_wanted, 0) != 0;
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (WORD_STATE(fence_word()) != FENCE_OPEN)
		{
			metrics_clear(METRIC_PENDING);	/* no reader waits for a reservation now */
			continue;
		}
		MemoryContextSwitchTo(loop);
		patrol(wanted, fence_clock() > audit_next);
		if (fence_clock() > audit_next)
			audit_next = fence_clock() + AUDIT_EVERY * INT64CONST(1000000);
		MemoryContextReset(loop);
		pgstat_report_activity(STATE_IDLE, NULL);
	}
}
