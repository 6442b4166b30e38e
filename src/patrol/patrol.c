/*
 * patrol/patrol.c
 *	  The patrol: settles what is left pending, audits committed fences, sweeps out what nobody may have stored, prunes
 *	  tombstones.
 *
 * Owns: the rules of doc/protocol.md, "The patrol".
 *
 * The patrol itself is connected to no database. It lists reservations, determines the fate of their transactions,
 * and settles them. It reads no table for this, so neither a lock nor a missing worker can delay it. Work that needs
 * a database (detached reservations, durable effects, tombstones, the audit) runs beside that in rounds. A round is
 * done by a worker in one database, one database after the other. Durable effects, tombstones and the audit stop by
 * themselves if the round has lasted for ROUND_TIME, and go on in a further round behind those of other databases. The audit
 * has a number of rows for the whole server, which the databases share by the number of their domains; and it makes room for
 * detached reservations and durable effects.
 *
 * Locks: fence_shared->lock, for copies only. A round waits at most ROUND_LOCK_WAIT for a lock on a table.
 * Never: ends a transaction's reservation because of a timeout. When the lease of a detached reservation is over, a
 * round deletes its row first, and only that ends the reservation.
 *
 * The order of the checks is part of the protocol. First the fate of the stamp: running and prepared transactions,
 * then the commit log [8]. Then, for a detached reservation, its row.
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "base/bgworker.h"
#include "base/jobs.h"
#include "base/key_text.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/stamp.h"
#include "domain/catalog.h"
#include "domain/domain.h"
#include "domain/domain_cache.h"
#include "patrol/effect_outbox.h"
#include "patrol/effect_patrol.h"
#include "patrol/patrol.h"
#include "patrol/patrol_nodes.h"
#include "patrol/sweep.h"
#include "read/audit.h"
#include "redis/library.h"
#include "write/detached.h"

#define PAGE			1000	/* reservations listed by one call */
#define AUDIT_EVERY		10		/* seconds between the regular duties of a database: its audit, and the pruning of its tombstones */
#define MAX_PRUNED		10000	/* tombstones pruned by one statement */
#define ROUND_TIME		INT64CONST(2000000) /* microseconds after which a round stops by itself (above) */
#define ROUND_LIMIT		INT64CONST(10000000)	/* microseconds after which it is terminated, because it hangs */
#define VISIT_ROWS		10		/* the audit of a domain costs at least as much as the comparison of so many rows */
#define MESSAGES_TAKE	50		/* milliseconds in which the courier delivers what a commit has posted, before the patrol looks */
#define ROUND_LOCK_WAIT	"20ms"	/* lock_timeout of a round; it waits only once for each table that somebody has locked */

/* Duties of a round */
#define DUTY_DETACHED	1		/* settle detached reservations */
#define DUTY_AUDIT		2
#define DUTY_AT_ONCE	4		/* settle without waiting for patrol_grace, because somebody has woken the patrol */
#define DUTY_OUTBOX		8		/* durable effects */
#define DUTY_PRUNE		16		/* old tombstones */

PGDLLEXPORT void fence_patrol_main(Datum arg);

/*
 * Finds database, domain and key of a listed reservation; key is NULL if it reserves a whole domain. False: not a
 * name of ours.
 */
static bool
owner_of(const ListedReservation *r, Oid *database, char **redis_name, char **key)
{
	*key = NULL;
	if (!r->domain)
		return key_parse_fence_name(r->name, database, redis_name, key);
	*redis_name = r->name;
	*database = key_database_of(r->name);
	return OidIsValid(*database);
}

/*
 * Handles a caught error: clears it, calls clean_up to end the failed (sub)transaction, and logs it. Returns its
 * SQLSTATE.
 */
static int
pass_over(const char *what, void (*clean_up) (void))
{
	ErrorData  *error;
	int			code;

	MemoryContextSwitchTo(TopMemoryContext);
	error = CopyErrorData();
	code = error->sqlerrcode;
	FlushErrorState();
	clean_up();
	MemoryContextSwitchTo(TopMemoryContext);
	if (fence_log_due(what))
		ereport(LOG, (errmsg("pgcache_fence: the patrol skips %s: %s", what, error->message)));
	FreeErrorData(error);
	return code;
}

static List *locked_tables = NIL;	/* String, names of tables that this round could not lock */

/*
 * Does work in a subtransaction, so that an error ends only this piece of work. One table whose columns were renamed,
 * or one key that its type no longer accepts, must not stop the work on all others. If somebody has locked a table, a
 * round waits for it once, and then skips that table. False: the work failed, and the log says why.
 */
static bool
guarded(void (*work) (void *arg), void *arg, const char *what, const char *table)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool ok = true;

	if (list_member(locked_tables, makeString(unconstify(char *, table))))
		return false;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		if (pass_over(what, RollbackAndReleaseCurrentSubTransaction) == ERRCODE_LOCK_NOT_AVAILABLE)
			locked_tables = lappend(locked_tables, makeString(pstrdup(table)));
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

/* Sends the end of a reservation to the process that listed it, not to the process that has the slot now. */
static bool
send_end(LibraryCall *call, const ListedReservation *r, uint32 epoch, bool committed)
{
	char		word[END_WORD_LEN];
	Call		question;

	if (r->domain)
		call_domain_end(&question, epoch, r->name, r->stamp, committed);
	else
		call_end(&question, epoch, calls_end_word(word, r->stamp, committed, 0));
	return library_tell(call, &question);
}

static void
count_settled(const ListedReservation *r, StampFate fate)
{
	Oid			database;
	char	   *redis_name;
	char	   *key;

	if (owner_of(r, &database, &redis_name, &key))
		metrics_add(metrics_slot(redis_name), fate == FATE_COMMITTED ? METRIC_SETTLE_COMMITTED :
					fate == FATE_ABORTED ? METRIC_SETTLE_ABORTED : METRIC_SETTLE_UNKNOWN, 1);
}

/*
 * Ends a reservation of a transaction that has visibly ended, whether it committed or aborted. This touches no fence
 * and reads no row, because nobody could put a fence while the reservation stood.
 */
static bool
settle_ended(LibraryCall *call, const ListedReservation *r, uint32 epoch, StampFate fate)
{
	count_settled(r, fate);
	return send_end(call, r, epoch, fate != FATE_ABORTED);
}

typedef bool (*Settler) (LibraryCall *call, const ListedReservation *r, uint32 epoch, void *arg);

/* Calls `settle` for each reservation that a node lists, until it returns false. */
static void
settle_listed(LibraryCall *call, Settler settle, void *arg)
{
	char	   *cursor = pstrdup("");
	char		epoch[EPOCH_LEN];
	MemoryContext context = CurrentMemoryContext;
	MemoryContext page_context = AllocSetContextCreate(context, "pgcache_fence page", ALLOCSET_DEFAULT_SIZES);
	bool		go_on;

	do
	{
		List	   *page = NIL;
		ListCell   *cell;

		CHECK_FOR_INTERRUPTS();
		call->deadline = fence_clock() + setting_timeout_us();
		MemoryContextSwitchTo(page_context);
		go_on = library_pending(call, PAGE, &cursor, epoch, &page);
		foreach(cell, page)
			go_on = go_on && settle(call, lfirst(cell), (uint32) strtoul(epoch, NULL, 10), arg);
		call->deadline = fence_clock() + setting_timeout_us();
		(void) library_finish(call);	/* an error reply concerns one reservation */
		MemoryContextSwitchTo(context);
		cursor = pstrdup(cursor);
		MemoryContextReset(page_context);
	} while (go_on && *cursor && redis_error(call->conn) == NULL);
	MemoryContextDelete(page_context);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Settling detached reservations, in their database
 * -----------------------------------------------------------------------------------------------------------------
 */

typedef struct DetachedQuestion
{
	const ListedReservation *reservation;
	bool		stands;
} DetachedQuestion;

static void
look_whether_stands(void *arg)
{
	DetachedQuestion *question = arg;

	question->stands = detached_stands(question->reservation->stamp);
}

/*
 * Ends a detached reservation whose row is gone. It leaves the reservation alone while the transaction that makes it
 * is in progress, and also if it could not look for the row.
 */
static bool
settle_detached(LibraryCall *call, const ListedReservation *r, uint32 epoch, void *arg)
{
	DetachedQuestion question = {.reservation = r, .stands = false};
	int			grace = *(int *) arg;
	Oid			database;
	char	   *redis_name;
	char	   *key;
	MemoryContext context = CurrentMemoryContext;
	bool		asked;

	if (!fence_stamp_is_detached(r->stamp, NULL) || r->age_ms < grace || !owner_of(r, &database, &redis_name, &key) ||
		database != MyDatabaseId || fence_stamp_fate(r->stamp, NULL) == FATE_IN_PROGRESS)
		return true;
	worker_begin_transaction();
	MemoryContextSwitchTo(context);
	asked = guarded(look_whether_stands, &question, r->name, "fence.reservation");
	worker_end_transaction();
	MemoryContextSwitchTo(context);
	if (!asked || question.stands)
		return true;
	count_settled(r, FATE_UNKNOWN);
	return send_end(call, r, epoch, true);
}

static FenceJob *this_round;	/* the round that this worker does */
static int64 round_until;		/* fence_clock() time at which it stops by itself */

static bool
settle_all_detached(void)
{
	int			grace = (this_round->duties & DUTY_AT_ONCE) ? 0 : setting_patrol_grace;

	for (int i = 0; i < MAX_NODES; i++)
	{
		LibraryCall *call = patrol_call_to(i);

		if (call)
			settle_listed(call, settle_detached, &grace);
	}
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Other duties of a round
 * -----------------------------------------------------------------------------------------------------------------
 */

typedef struct Visit
{
	const char *redis_name;
	int			most;			/* rows to compare */
	int64		counts[RELATION_COUNT];
} Visit;

static void
audit_domain(void *arg)
{
	Visit	   *visit = arg;
	Domain	   *domain = domain_by_redis_name(visit->redis_name);

	if (domain != NULL)
		audit_sample(domain, 0.0, visit->most, true, visit->counts);
}

/* Audits a domain. Returns how many rows that counts for: the visit itself costs something, too. */
static int
visit_domain(const char *redis_name, int most)
{
	Visit		visit = {.redis_name = redis_name, .most = most};
	int64		compared = 0;

	(void) guarded(audit_domain, &visit, redis_name, redis_name);
	for (int i = 0; i < RELATION_COUNT; i++)
		compared += visit.counts[i];
	return Max((int) compared, VISIT_ROWS);
}

static int
compare_ids(const ListCell *a, const ListCell *b)
{
	int64		x = ((DomainRef *) lfirst(a))->id;
	int64		y = ((DomainRef *) lfirst(b))->id;

	return x < y ? -1 : x > y;
}

/* Where in the list of domains, which is not empty, the audit begins. */
static int
first_to_audit(List *domains)
{
	ListCell   *cell;

	if (this_round->audit_after == 0)
		return (int) (pg_prng_double(&pg_global_prng_state) * list_length(domains));
	foreach(cell, domains)
		if (((DomainRef *) lfirst(cell))->id > this_round->audit_after)
			return foreach_current_index(cell);
	return 0;
}

/*
 * Audits the domains of this database in turn, each at most once, until the rows of this round are used up. The next
 * round begins where this one ends, so each domain has its turn. Returns false if it has made room for other rounds before
 * that: then this_round->audit_rows are left for a further one.
 */
static bool
audit_database(void)
{
	List	   *domains;
	int			n;
	int			first;
	int			visited = 0;
	int			left = this_round->audit_rows;
	bool		stopped = false;

	worker_begin_transaction();
	domains = domain_list();
	list_sort(domains, compare_ids);
	n = this_round->ndomains = list_length(domains);
	first = n > 0 ? first_to_audit(domains) : 0;
	while (!stopped && visited < n && left > 0 && WORD_STATE(fence_word()) == FENCE_OPEN)
	{
		DomainRef  *ref = list_nth(domains, (first + visited) % n);

		CHECK_FOR_INTERRUPTS();
		left -= visit_domain(ref->redis_name, Min(Max(this_round->audit_rows / n, VISIT_ROWS), left));
		this_round->audit_after = ref->id;
		visited++;
		stopped = fence_clock() >= round_until || pg_atomic_read_u32(&fence_shared->audit_yields) != 0;
	}
	worker_end_transaction();
	this_round->audit_rows = Max(left, 0);
	return !stopped || visited == n || left <= 0;
}

/*
 * Deletes old tombstones. The same statement raises the domain's floor to the highest version that it deletes, so
 * that no key starts again at a version that it had before [7].
 */
static bool
prune_tombstones(void)
{
	Oid			types[] = {INT4OID, INT4OID};
	Datum		values[] = {Int32GetDatum(setting_tombstone_retention), Int32GetDatum(MAX_PRUNED)};
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
	} while (pruned == MAX_PRUNED && fence_clock() < round_until);
	return pruned < MAX_PRUNED;
}

static bool
expire_detached(void)
{
	worker_begin_transaction();
	detached_expire();
	worker_end_transaction();
	return true;
}

static bool
apply_durable(void)
{
	return effect_outbox_round(round_until);
}

/* A round does its duties in this order. Where the extension was dropped, it skips those that need the extension. */
static const struct
{
	int			duty;			/* 0: belongs to every round */
	bool		needs_extension;
	bool		(*work) (void); /* false: it was not through after ROUND_TIME */
	const char *what;
} duties_of_round[] = {
	{0, true, expire_detached, "detached reservations whose leases are over"},
	{DUTY_DETACHED, true, settle_all_detached, "detached reservations"},
	{DUTY_OUTBOX, false, apply_durable, "durable effects"},
	{DUTY_PRUNE, true, prune_tombstones, "old tombstones"},
	{DUTY_AUDIT, true, audit_database, "the audit"},
};

/* Does one duty. An error, also of a connection, is logged and ends only this duty. False: it must go on in a further round. */
static bool
attempt(bool (*work) (void), const char *what)
{
	volatile bool through = true;

	PG_TRY();
	{
		patrol_look_at_nodes();
		through = work();
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		(void) pass_over(what, AbortOutOfAnyTransaction);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(TopMemoryContext);
	return through;
}

void
patrol_round(FenceJob *job)
{
	bool		extension;

	this_round = job;
	round_until = fence_clock() + ROUND_TIME;
	pgstat_report_activity(STATE_RUNNING, "pgcache_fence patrol round");
	SetConfigOption("lock_timeout", ROUND_LOCK_WAIT, PGC_SUSET, PGC_S_OVERRIDE);
	worker_begin_transaction();
	extension = OidIsValid(fence_table_oid("domain"));
	worker_end_transaction();
	for (int i = 0; i < (int) lengthof(duties_of_round); i++)
		if ((job->duties & duties_of_round[i].duty) == duties_of_round[i].duty &&
			(extension || !duties_of_round[i].needs_extension) &&
			!attempt(duties_of_round[i].work, duties_of_round[i].what))
			job->unfinished |= duties_of_round[i].duty;
}

/* -----------------------------------------------------------------------------------------------------------------
 * The patrol itself
 * -----------------------------------------------------------------------------------------------------------------
 */

typedef struct Settling
{
	int			grace;			/* ms; younger reservations are left alone */
	List	   *served;			/* Oids of the databases that have the extension */
	List	   *detached;		/* those of them in which detached reservations are to be settled */
	MemoryContext context;		/* of the list detached */
	int64		pending[METRIC_MAX_SLOTS];	/* number of reserved fences, by domain */
} Settling;

/*
 * Settles one listed reservation. If it is detached, notes that its database needs a round. If that database does not
 * have the extension any more, ends the detached reservation once even the longest possible lease is over.
 */
static bool
settle_or_note(LibraryCall *call, const ListedReservation *r, uint32 epoch, void *arg)
{
	Settling   *settling = arg;
	Oid			database;
	char	   *redis_name;
	char	   *key;
	StampFate	fate;
	MemoryContext caller;

	if (!owner_of(r, &database, &redis_name, &key))
		return true;
	settling->pending[metrics_slot(redis_name)] += Max(r->fences, 1);
	if (r->age_ms < settling->grace || (fate = fence_stamp_fate(r->stamp, NULL)) == FATE_IN_PROGRESS)
		return true;
	if (!fence_stamp_is_detached(r->stamp, NULL))
		return settle_ended(call, r, epoch, fate);
	if (!list_member_oid(settling->served, database))
		return r->age_ms < DETACHED_LEASE_MAX_MS || settle_ended(call, r, epoch, FATE_UNKNOWN);
	caller = MemoryContextSwitchTo(settling->context);
	settling->detached = list_append_unique_oid(settling->detached, database);
	MemoryContextSwitchTo(caller);
	return true;
}

/*
 * Adds the nodes' counts of readers (a list of DomainCounts) to the metrics, and sets the numbers of reserved fences.
 */
static void
note_counts(List *all, const int64 *pending)
{
	static const DomainMetric metrics[COUNTED] = {
		METRIC_GET_TOLD, METRIC_GET_HIT, METRIC_GET_MISS, METRIC_GET_PENDING, METRIC_GET_UNARMED, METRIC_SEED_STORED,
		METRIC_SEED_REFUSED
	};
	ListCell   *cell;

	foreach(cell, all)
	{
		DomainCounts *counts = lfirst(cell);
		MetricSlot	slot = metrics_slot(counts->redis_name);

		for (int i = 0; i < COUNTED; i++)
			metrics_add(slot, metrics[i], counts->counted[i]);
		metrics_add(slot, METRIC_FALLBACK_MISS, counts->counted[2]);
		metrics_add(slot, METRIC_FALLBACK_PENDING, counts->counted[3]);
		metrics_add(slot, METRIC_FALLBACK_UNARMED, counts->counted[4]);
		metrics_add(slot, METRIC_STALE_REDIS, counts->counted[6]);
	}
	for (MetricSlot slot = 0; slot < metrics_slots(); slot++)
		metrics_set(slot, METRIC_PENDING, pending[slot]);
}

typedef struct Round
{
	Oid			database;
	int			duties;
	bool		urgent;			/* somebody waits for it: it comes before rounds that are not */
	int			audit_rows;		/* the most rows that its audit may compare */
} Round;

/* What the last audit of a database has told */
typedef struct Audited
{
	Oid			database;
	int			ndomains;
	int64		after;			/* id of the domain that it audited last; 0: unknown */
} Audited;

static List *rounds = NIL;		/* queue of Round, at most one for each database */
static List *audited = NIL;		/* of Audited, one for each served database */
static bool under_way = false;	/* a round was started, and what it has told was not looked at yet */
static int64 round_deadline = 0;	/* fence_clock() time at which the patrol gives up the present round */

/* Queues duties in a database, and rows for its audit. */
static Round *
want_round(Oid database, int duties, int audit_rows)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Round	   *round = NULL;
	ListCell   *cell;

	foreach(cell, rounds)
		if (((Round *) lfirst(cell))->database == database)
			round = lfirst(cell);
	if (round == NULL)
	{
		round = palloc0(sizeof(Round));
		round->database = database;
		rounds = lappend(rounds, round);
	}
	round->duties |= duties;
	round->audit_rows = Max(round->audit_rows, audit_rows);
	MemoryContextSwitchTo(old);
	return round;
}

/* Queues duties for which somebody waits. An audit that is under way makes room for them. */
static void
want_urgent_round(Oid database, int duties)
{
	want_round(database, duties, 0)->urgent = true;
	pg_atomic_write_u32(&fence_shared->audit_yields, 1);
}

static bool
urgent_round_waits(void)
{
	ListCell   *cell;

	foreach(cell, rounds)
		if (((Round *) lfirst(cell))->urgent)
			return true;
	return false;
}

/* What is known of the audit in that database. */
static Audited *
audited_in(Oid database)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Audited    *result = NULL;
	ListCell   *cell;

	foreach(cell, audited)
		if (((Audited *) lfirst(cell))->database == database)
			result = lfirst(cell);
	if (result == NULL)
	{
		result = palloc0(sizeof(Audited));
		result->database = database;
		audited = lappend(audited, result);
	}
	MemoryContextSwitchTo(old);
	return result;
}

/*
 * Queues the regular duties in all served databases. They share the rows of the audit by the numbers of their domains. A
 * database without any, or of which nothing is known yet, counts as if it had one.
 */
static void
want_regular_rounds(List *served)
{
	double		rows = setting_audit_rate * AUDIT_EVERY;
	int64		ndomains = 0;
	ListCell   *cell;

	foreach(cell, audited)
	{
		Audited    *of = lfirst(cell);

		if (list_member_oid(served, of->database))
			continue;
		audited = foreach_delete_current(audited, cell);
		pfree(of);
	}
	foreach(cell, served)
		ndomains += Max(audited_in(lfirst_oid(cell))->ndomains, 1);
	foreach(cell, served)
	{
		int			own = Max(audited_in(lfirst_oid(cell))->ndomains, 1);

		(void) want_round(lfirst_oid(cell), DUTY_PRUNE | DUTY_OUTBOX | (rows > 0 ? DUTY_AUDIT : 0), (int) ceil(rows * own / ndomains));
	}
}

/*
 * Takes the next round out of the queue: an urgent one, or the first one after each urgent one, so that neither waits for
 * the other for ever. The caller frees it.
 */
static Round *
take_round(void)
{
	static bool was_urgent = false;
	Round	   *round = linitial(rounds);
	ListCell   *cell;

	foreach(cell, rounds)
		if (!was_urgent && ((Round *) lfirst(cell))->urgent)
		{
			round = lfirst(cell);
			break;
		}
	was_urgent = round->urgent;
	rounds = list_delete_ptr(rounds, round);
	return round;
}

/* Notes what the last round has told, and queues what it has left. */
static void
round_ended(void)
{
	FenceJob	job;
	Audited    *of;

	under_way = false;
	job_result(&job);
	if (!job.done)
		return;
	if (job.unfinished != 0)
		(void) want_round(job.database, job.unfinished, job.audit_rows);
	if (!(job.duties & DUTY_AUDIT))
		return;
	of = audited_in(job.database);
	of->ndomains = job.ndomains;
	of->after = job.audit_after;
}

/* Starts the round. False: no worker slot is free. */
static bool
start_round(const Round *round)
{
	FenceJob	job = {.kind = JOB_ROUND, .database = round->database, .duties = round->duties, .audit_rows = round->audit_rows};
	Audited    *of = audited_in(round->database);

	job.audit_after = of->after;
	of->after = 0;				/* if the round hangs in some domain, the next one begins elsewhere */
	pg_atomic_write_u32(&fence_shared->audit_yields, urgent_round_waits());
	under_way = job_start(&job);
	if (!under_way)
		of->after = job.audit_after;
	round_deadline = fence_clock() + ROUND_LIMIT;
	return under_way;
}

/* Starts the next round, unless one is under way. Gives up a round that hangs. Never waits. */
static void
go_on_with_rounds(void)
{
	Round	   *round;

	if (job_running())
	{
		FenceJob	job;

		if (fence_clock() < round_deadline)
			return;
		job_result(&job);
		if (fence_log_due("round"))
			ereport(LOG,
					(errmsg("pgcache_fence: the patrol gives up its round in database %u, which took longer than %d s",
							job.database, (int) (ROUND_LIMIT / 1000000))));
		(void) job_abandon();
	}
	if (under_way)
		round_ended();
	if (rounds == NIL)
		return;
	round = take_round();
	if (!start_round(round))
	{
		want_round(round->database, round->duties, round->audit_rows)->urgent |= round->urgent;
		if (fence_log_due("no background worker slot"))
			ereport(LOG,
					(errmsg("pgcache_fence: the patrol found no free background worker slot"),
					 errhint("Raise max_worker_processes.")));
	}
	pfree(round);
}

/*
 * Takes dropped databases out of the list. No worker can run in a dropped database and report it, and reservations in
 * it must not wait for a round there.
 */
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
 * Cleans up the marks of databases that are not known to have the extension. If it is possible to connect to such a
 * database, a round must look there, because only there it is visible whether DROP EXTENSION has committed. If the
 * database does not exist, Redis forgets its marks at once. A database that exists and accepts no connections keeps
 * them.
 */
static void
forget_outboxes(List *databases, List *connectable)
{
	ListCell   *cell;

	foreach(cell, databases)
	{
		Oid			database = lfirst_oid(cell);

		if (list_member_oid(connectable, database))
			(void) want_round(database, DUTY_OUTBOX, 0);
		else if (!worker_database_exists(database))
			for (int i = 0; i < MAX_NODES; i++)
				if (patrol_call_to(i))
					effect_patrol_forget_database(patrol_call_to(i), database);
	}
}

/*
 * One turn of the patrol: settles the reservations and holds of all nodes, and queues rounds for databases in which
 * there is work. at_once: somebody has woken the patrol, so it does not wait for patrol_grace. That time only saves
 * work on reservations that their own transactions are about to end. regular: the regular duties are due.
 */
static void
patrol(bool at_once, bool regular)
{
	Settling   *settling = palloc0(sizeof(Settling));
	List	   *existing;
	List	   *counts = NIL;
	bool		outbox = pg_atomic_exchange_u32(&fence_shared->outbox_wanted, 0) != 0;
	List	   *durable = NIL;	/* databases with durable effects */
	uint64		effects_held = 0;
	ListCell   *cell;

	settling->context = CurrentMemoryContext;
	settling->grace = at_once ? 0 : setting_patrol_grace;
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < fence_shared->ndatabases; i++)
		settling->served = lappend_oid(settling->served, fence_shared->databases[i]);
	LWLockRelease(fence_shared->lock);

	existing = worker_list_databases(true);
	settling->served = without_dropped(settling->served, existing);
	patrol_look_at_nodes();
	for (int i = 0; i < MAX_NODES; i++)
	{
		LibraryCall *call = patrol_call_to(i);

		if (call == NULL)
			continue;
		settle_listed(call, settle_or_note, settling);
		if (redis_error(call->conn) == NULL)
			(void) library_take_counts(call, &counts);
		if (redis_error(call->conn) == NULL)
			durable = effect_patrol_settle(call, settling->grace, durable, &effects_held);
	}
	sweep_nodes();
	note_counts(counts, settling->pending);
	metrics_set_server(SERVER_METRIC_EFFECTS_HELD, effects_held);
	if (regular)
		want_regular_rounds(settling->served);
	foreach(cell, settling->served)
	{
		int			duties = (list_member_oid(settling->detached, lfirst_oid(cell)) ? DUTY_DETACHED : 0) |
			(outbox || list_member_oid(durable, lfirst_oid(cell)) ? DUTY_OUTBOX : 0);

		if (duties != 0)
			want_urgent_round(lfirst_oid(cell), duties | (at_once ? DUTY_AT_ONCE : 0));
	}
	forget_outboxes(list_difference_oid(durable, settling->served), existing);
}

void
fence_patrol_main(Datum arg)
{
	MemoryContext loop;
	int64		audit_next = fence_clock() + AUDIT_EVERY * INT64CONST(1000000);
	int64		turn_next = fence_clock() + setting_patrol_interval * INT64CONST(1000);

	(void) arg;
	jobs_begin(JOBS_OF_PATROL);
	loop = AllocSetContextCreate(TopMemoryContext, "pgcache_fence patrol", ALLOCSET_DEFAULT_SIZES);

	for (;;)
	{
		bool		wanted;
		int64		until = job_running() ? Min(turn_next, round_deadline) : turn_next;

		/*
		 * The waits of the last turn have reset the latch. So check for requests and a reload that came during that
		 * turn.
		 */
		if (pg_atomic_read_u32(&fence_shared->patrol_wanted) == 0 && !ConfigReloadPending && until > fence_clock())
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 (long) ((until - fence_clock()) / 1000 + 1), wait_event_worker());
		if (worker_next_turn())
			turn_next = Min(turn_next, fence_clock() + setting_patrol_interval * INT64CONST(1000));
		go_on_with_rounds();
		wanted = pg_atomic_exchange_u32(&fence_shared->patrol_wanted, 0) != 0;
		if (!wanted && fence_clock() < turn_next)
			continue;			/* a round has ended */
		turn_next = fence_clock() + setting_patrol_interval * INT64CONST(1000);
		if (WORD_STATE(fence_word()) != FENCE_OPEN)
		{
			metrics_clear(METRIC_PENDING);	/* no reader waits for a reservation now */
			continue;
		}
		/*
		 * The backend that woke the patrol has just posted the message that ends its own reservations, perhaps with
		 * the new rows. Let that message arrive first, because fences would be missing if the patrol ended the
		 * reservations before it.
		 */
		if (wanted)
			(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, MESSAGES_TAKE, wait_event_worker());
		MemoryContextSwitchTo(loop);
		patrol(wanted, fence_clock() > audit_next);
		if (fence_clock() > audit_next)
			audit_next = fence_clock() + AUDIT_EVERY * INT64CONST(1000000);
		MemoryContextReset(loop);
		turn_next = fence_clock() + setting_patrol_interval * INT64CONST(1000);
		go_on_with_rounds();
		pgstat_report_activity(STATE_IDLE, NULL);
	}
}
