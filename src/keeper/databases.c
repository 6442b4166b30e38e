/*
 * keeper/databases.c
 *	  The keeper's work inside databases; see databases.h.
 *
 * Owns: the list of databases that have the extension; for which grant each of them was announced in this epoch; the
 * rule that after a server start the longest lease of the previous run may still last [c6]. All of this is in the
 * keeper's own memory, or in fields of shared memory that only the keeper writes, so it takes no lock.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "base/bgworker.h"
#include "base/jobs.h"
#include "base/settings.h"
#include "base/word.h"
#include "keeper/databases.h"

/* Times are in microseconds. */
#define LOOK_EVERY	INT64CONST(60000000)	/* time between two looks at all databases if nothing has changed, */
#define LOOK_AGAIN	INT64CONST(10000000)	/* and after a look that failed in some database */
#define JOB_LIMIT	INT64CONST(5000000)		/* maximum duration of a job, because the jobs of other databases wait for it */

static List *databases = NIL;	/* Oids of databases that have the extension; databases_store writes into the first that it can */
static bool known = false;		/* the list databases is valid */
static uint32 catalog_seen = 0; /* value of catalog_serial when that list was made */
static int64 next_look = 0;		/* fence_clock() time at which the next look at all databases is due */
static bool job_slots_exhausted = false;	/* the last job found no free background worker slot */

static List *announce_queue = NIL;	/* Oids whose domains are to be announced in the current epoch */
static bool announce_again = true;	/* announce all databases, though nothing has changed */
static bool lower_everywhere = false;	/* lower the durable longest lease in all databases, also where no domains are announced */
static List *lower_queue = NIL; /* Oids of databases in which only that is to be done, after announce_queue */
static uint32 announce_seen = 0;	/* value of catalog_serial when announce_queue was made */
static bool announcing = false; /* databases_announce started the last job, and has not looked at its result yet */
static int64 announcing_until = 0;	/* fence_clock() time at which it gives that job up */

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
 * c6: Sets lease_bound at the first look after a server start, because leases of the previous run may still last.
 * `longest` is the longest lease in any row; 0: there is no row, so no lease was ever granted. `unknown`: some
 * database could not be read, or has the extension but no row; then the longest possible lease counts. The row may
 * come from a backup that is older than a raise of the setting, so the present setting counts too.
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
	/*
	 * At the first look read also databases that are not served now, because they may have been served until this
	 * start.
	 */
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
			/* A database that cannot be read must not stop the service of the others. */
			if (fence_log_due(error))
				ereport(LOG, (errmsg("pgcache_fence: the keeper skips database %u: %s", job.database, error)));
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
			/*
			 * Once the bound is known, shared memory is better informed than a row, which may come from a restored
			 * dump.
			 */
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

/* Writes the durable row in one database. */
static bool
store_in(Oid database, uint32 epoch_number, char *error)
{
	FenceJob	job = {.kind = JOB_STORE, .database = database,
		.epoch_number = epoch_number, .longest_lease = setting_lease};

	if (!run_job(&job, error) || !job.extension)
		known = false;	/* the database or the extension may have been dropped: look again before the next try */
	if (job.done && !job.extension)
		strlcpy(error, "the extension was dropped", REASON_LEN);
	return job.done && job.extension;
}

/*
 * One database is enough, because at a start the highest value of all databases counts. So this tries one after the
 * other until it can write. A database that fails goes to the end of the list.
 */
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
 * c6: At this moment lease_bound is the end of all leases that were granted before. So if the setting was lowered, it
 * is the end of all leases that are longer than the setting.
 */
void
databases_note_lease(void)
{
	if (setting_lease < fence_shared->last_lease)
		fence_shared->longer_until = (int64) pg_atomic_read_u64(&fence_shared->lease_bound);
	fence_shared->last_lease = setting_lease;
}

/*
 * Whether all leases longer than the present setting are over. Then longest_lease becomes the present setting, and
 * every announcement stores that value. Shared memory is lowered first, and the rows follow. This order is safe,
 * because the keeper makes a longer setting durable again before it grants such a lease.
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

/*
 * The place of the number of the grant for which the database was announced last in this epoch; 0 there: it was not
 * announced.
 */
static uint32 *
announced_for(Oid database)
{
	static uint32 of_no_entry;
	int			n = fence_shared->nannounced;

	for (int i = 0; i < n; i++)
		if (fence_shared->announced[i].database == database)
			return &fence_shared->announced[i].grant;
	of_no_entry = 0;
	if (n == MAX_DATABASES)
		return &of_no_entry;
	fence_shared->announced[n] = (FenceAnnounced) {.database = database};
	fence_shared->nannounced = n + 1;
	return &fence_shared->announced[n].grant;
}

/*
 * Looks at the result of the last job. If Redis says that an attachment has ended, but the job found it in the
 * database, it has come back from a dump under its old id. Redis forgets such an end only in another epoch, so this
 * ends the epoch.
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
 * Queues all served databases for an announcement, because the extension may have been created in any of them. When
 * the longest lease is to be lowered, it queues all other databases too, because their rows count at the next start.
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
		/*
		 * This happens, for instance, if nobody can connect to the database now. Other databases must not wait for
		 * it.
		 */
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
	fence_shared->nannounced = 0;
}
