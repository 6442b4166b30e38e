/*
 * keeper/databases.c
 *	  What the keeper has done inside databases; see databases.h.
 *
 * Owns: the list of databases that have the extension, and what of them was announced in this epoch; the rule that after a start the
 * longest lease of before counts [c6].
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "base/bgworker.h"
#include "base/jobs.h"
#include "base/settings.h"
#include "base/word.h"
#include "keeper/databases.h"

#define LOOK_EVERY	INT64CONST(60000000)	/* microseconds between looks at all databases without a reason, */
#define LOOK_AGAIN	INT64CONST(10000000)	/* and after one that failed */
#define JOB_LIMIT	INT64CONST(5000000)		/* microseconds that a job may take: other databases wait for theirs */

typedef struct Announced
{
	Oid			database;
	uint32		grant;			/* for which that was last */
} Announced;

static List *databases = NIL;	/* Oids of databases that have the extension: the first one that can be written has the row */
static bool known = false;		/* databases can be relied on */
static uint32 catalog_seen = 0; /* when databases was made */
static int64 next_look = 0;		/* fence_clock() */
static bool job_slots_exhausted = false;

static List *announce_queue = NIL;	/* Oids whose domains are to be announced in the current epoch */
static List *announced = NIL;	/* Announced, of each database whose domains were announced in the current epoch */
static bool announce_again = true;	/* whatever was announced before */
static bool lower_everywhere = false;	/* the next time also those that are not served are told the longest lease, */
static List *lower_queue = NIL; /* after all others */
static uint32 announce_seen = 0;	/* value of catalog_serial at the last announcement */
static bool announcing = false; /* the job is, or was last, an announcement whose end was not looked at yet */
static int64 announcing_until = 0;	/* fence_clock() time at which that is given up */

static bool
run_job(FenceJob *job, char *error)
{
	int64		deadline = fence_clock() + Max(setting_lease * INT64CONST(1000), JOB_LIMIT);

	if (job_abandon() || announcing)
		announce_again = true;
	announcing = false;
	job_slots_exhausted = !job_start(job);
	if (job_slots_exhausted)
	{
		strlcpy(error, "no background worker slot is free: raise max_worker_processes", REASON_LEN);
		return false;
	}
	return job_finish(job, deadline, error);
}

static void
remember(List **list, Oid database)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	*list = list_append_unique_oid(*list, database);
	MemoryContextSwitchTo(old);
}

static Oid
take_first(List **list)
{
	Oid			first = linitial_oid(*list);

	*list = list_delete_first(*list);
	return first;
}

/*
 * c6: at the first look after a server start, leases that were granted before it may run. Where a database cannot be
 * read, or has the extension but not the row, the longest lease possible counts. Else, without any row, none was ever
 * granted. The row may come from a backup that is older than a raise of the setting.
 */
static void
set_first_bound(int longest, bool unknown)
{
	int64		ms = unknown ? LEASE_MAX_MS : longest > 0 ? Max(longest, setting_lease) : 0;

	pg_atomic_write_u64(&fence_shared->lease_bound,
						(uint64) fence_clock() + (ms ? (ms + setting_clock_margin) * 1000 : 0));
	fence_shared->longer_until = (int64) pg_atomic_read_u64(&fence_shared->lease_bound);
	fence_shared->bound_known = true;
}

bool
databases_load(char *error)
{
	List	   *served;
	List	   *all;
	bool		unknown = false;
	ListCell   *cell;

	if (known)
		return true;
	catalog_seen = pg_atomic_read_u32(&fence_shared->catalog_serial);
	next_look = fence_clock() + LOOK_EVERY;
	served = worker_list_databases(false);
	/* the first time also those that are not served: they may have been, until this start */
	all = fence_shared->bound_known ? served : worker_list_databases(true);
	list_free(databases);
	databases = NIL;
	foreach(cell, all)
	{
		FenceJob	job = {.kind = JOB_LOAD, .database = lfirst_oid(cell)};

		if (!run_job(&job, error))
		{
			if (job_slots_exhausted)
				return false;
			/* one database that cannot be read is no reason to serve none */
			if (fence_log_due(error))
				ereport(LOG, (errmsg("pgcache_fence: database %u is passed over: %s", job.database, error)));
			unknown = true;
			next_look = fence_clock() + LOOK_AGAIN;
			continue;
		}
		if (!job.extension)
			continue;
		if (list_member_oid(served, job.database))
			remember(&databases, job.database);
		if (job.has_row)
		{
			fence_shared->last_epoch = Max(fence_shared->last_epoch, job.epoch_number);
			/* of this server run the keeper knows more than a row, which may be a restored one */
			if (!fence_shared->bound_known)
				fence_shared->longest_lease = Max(fence_shared->longest_lease, job.longest_lease);
		}
		else
			unknown = true;
	}
	if (!fence_shared->bound_known)
		set_first_bound(fence_shared->longest_lease, unknown);
	known = true;
	return true;
}

/* In one database. */
static bool
store_in(Oid database, uint32 epoch_number, char *error)
{
	FenceJob	job = {.kind = JOB_STORE, .database = database,
		.epoch_number = epoch_number, .longest_lease = setting_lease};

	if (!run_job(&job, error) || !job.extension)
		known = false;	/* it may have been dropped: look again before the next try */
	if (job.done && !job.extension)
		strlcpy(error, "the extension was dropped", REASON_LEN);
	return job.done && job.extension;
}

/* Wherever it can be written: at a start the highest of all databases counts. One that cannot be is tried last from then on. */
bool
databases_store(uint32 epoch_number, char *error)
{
	int			tries = list_length(databases);

	while (tries > 0 && !store_in(linitial_oid(databases), epoch_number, error))
	{
		remember(&databases, take_first(&databases));
		tries--;
	}
	if (tries == 0)
		return false;
	fence_shared->last_epoch = Max(fence_shared->last_epoch, epoch_number);
	fence_shared->longest_lease = Max(fence_shared->longest_lease, setting_lease);
	return true;
}

/*
 * c6: notes the length of a lease before it is granted. lease_bound says until when those run that were granted before: so when the
 * setting is lowered, it says until when longer ones run.
 */
void
databases_note_lease(void)
{
	if (setting_lease < fence_shared->last_lease)
		fence_shared->longer_until = (int64) pg_atomic_read_u64(&fence_shared->lease_bound);
	fence_shared->last_lease = setting_lease;
}

/*
 * Whether the longest lease of before is over, wherever it was granted: then longest_lease is the present setting, and every
 * announcement stores that. It is lowered here first: a longer setting is made durable again before it is granted.
 */
static bool
longest_lease_is_over(void)
{
	if (fence_shared->last_lease != setting_lease || fence_clock() <= fence_shared->longer_until)
		return false;
	if (setting_lease < fence_shared->longest_lease)
	{
		fence_shared->longest_lease = setting_lease;
		announce_again = lower_everywhere = true;
	}
	return true;
}

bool
databases_none(void)
{
	return databases == NIL;
}

void
databases_look_if_due(void)
{
	if (pg_atomic_read_u32(&fence_shared->catalog_serial) != catalog_seen || fence_clock() > next_look)
		known = false;
}

void
databases_look_soon(void)
{
	next_look = 0;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Announcements
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The grant for which the database was announced last in this epoch; 0: it was not. */
static uint32 *
announced_for(Oid database)
{
	MemoryContext old;
	Announced  *entry;
	ListCell   *cell;

	foreach(cell, announced)
		if (((Announced *) lfirst(cell))->database == database)
			return &((Announced *) lfirst(cell))->grant;
	old = MemoryContextSwitchTo(TopMemoryContext);
	entry = palloc0(sizeof(Announced));
	entry->database = database;
	announced = lappend(announced, entry);
	MemoryContextSwitchTo(old);
	return &entry->grant;
}

/*
 * What became of the last job. An attachment that Redis takes for ended, and that is there, has come back from a dump under its old id:
 * only another epoch forgets that it ended.
 */
static void
announcement_ended(FenceWord word)
{
	FenceJob	job;

	announcing = false;
	job_result(&job);
	if (!job.done || job.epoch_number != WORD_EPOCH(word))
	{
		next_look = Min(next_look, fence_clock() + LOOK_AGAIN);
		return;
	}
	if (job.kind != JOB_ANNOUNCE)
		return;
	*announced_for(job.database) = job.grant;
	if (!job.restored)
		return;
	fence_shared->epoch_armed = false;
	fence_word_change(word, FENCE_CLOSED, WORD_EPOCH(word),
					  "an attachment came back under an id that had ended (a restored dump): another epoch is needed");
}

/*
 * All that are served are due: the extension may have been created in any of them. And for a longest lease that is lowered, all
 * others: at the next start their rows count too.
 */
static void
make_queue(void)
{
	List	   *served = worker_list_databases(false);
	List	   *others = lower_everywhere ? list_difference_oid(worker_list_databases(true), served) : NIL;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	announce_queue = list_copy(served);
	list_free(lower_queue);
	lower_queue = list_copy(others);
	MemoryContextSwitchTo(old);
	lower_everywhere = false;
	announce_again = false;
	next_look = fence_clock() + LOOK_EVERY;
}

void
databases_announce(FenceWord word)
{
	uint32		serial = pg_atomic_read_u32(&fence_shared->catalog_serial);
	FenceJob	job = {.epoch_number = WORD_EPOCH(word), .lower = longest_lease_is_over()};

	if (job_running())
	{
		if (!announcing || fence_clock() < announcing_until)
			return;
		/* of a database that nobody can connect to now, for instance: others must not wait for it */
		(void) job_abandon();
	}
	if (announcing)
		announcement_ended(word);
	if (announce_queue == NIL && (announce_again || serial != announce_seen || fence_clock() > next_look))
	{
		announce_seen = serial;
		make_queue();
	}
	if ((announce_queue == NIL && lower_queue == NIL) || !fence_epoch_text(word, job.epoch))
		return;
	job.kind = announce_queue != NIL ? JOB_ANNOUNCE : JOB_STORE;
	job.database = take_first(announce_queue != NIL ? &announce_queue : &lower_queue);
	job.longest_lease = fence_shared->longest_lease;
	job.carried = *announced_for(job.database);
	job.grant = fence_shared->grant;
	announcing_until = fence_clock() + JOB_LIMIT;
	announcing = job_start(&job);
	if (!announcing)
		next_look = fence_clock() + LOOK_AGAIN;
}

void
databases_announce_again(void)
{
	announce_again = true;
}

void
databases_stop_announcing(void)
{
	(void) job_abandon();
	announcing = false;
	list_free(announce_queue);
	announce_queue = NIL;
	list_free(lower_queue);
	lower_queue = NIL;
}

void
databases_forget_announced(void)
{
	list_free_deep(announced);
	announced = NIL;
}
