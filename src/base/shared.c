/*
 * base/shared.c
 *	  Shared memory of pgcache_fence. The lock protocol is in shared.h.
 *
 * Owns: every change of the word, of lease_bound and of the markers (doc/protocol.md, "State").
 */
#include "postgres.h"

#include <time.h>

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/compat.h"
#include "base/metrics.h"
#include "base/outbox.h"
#include "base/settings.h"
#include "base/shared.h"

FenceShared *fence_shared = NULL;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

static int
marker_count(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

static Size
state_size(void)
{
	return add_size(offsetof(FenceShared, markers), mul_size(marker_count(), sizeof(pg_atomic_uint64)));
}

/* The parts that others own, behind our own */
static const struct
{
	Size		(*size) (void);
	void		(*initialise) (void *memory);
	void		(*use) (void *memory);
}			parts[] = {
	{metrics_size, metrics_initialise, metrics_use},
	{outbox_size, outbox_initialise, outbox_use},
};

static Size
shared_size(void)
{
	Size		size = MAXALIGN(state_size());

	for (int i = 0; i < (int) lengthof(parts); i++)
		size = add_size(size, parts[i].size());
	return size;
}

static void
shared_request(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("pgcache_fence", 1);
}

static void
shared_initialise(FenceShared *shared)
{
	memset(shared, 0, offsetof(FenceShared, markers));
	shared->lock = &GetNamedLWLockTranche("pgcache_fence")->lock;
	pg_atomic_init_u64(&shared->word, 0);
	pg_atomic_init_u64(&shared->epoch_random, 0);
	pg_atomic_init_u64(&shared->lease_bound, 0);
	pg_atomic_init_u64(&shared->arming_until, 0);
	pg_atomic_init_u32(&shared->bypassed, 0);
	pg_atomic_init_u32(&shared->writer_gave_up, 0);
	pg_atomic_init_u32(&shared->nodes_serial, 1);
	pg_atomic_init_u32(&shared->catalog_serial, 1);
	pg_atomic_init_u32(&shared->patrol_wanted, 0);
	pg_atomic_init_u64(&shared->first_xid, 0);
	pg_atomic_init_u32(&shared->outbox_wanted, 1);	/* of former starts */
	if (!pg_strong_random(&shared->nonce, sizeof(shared->nonce)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not draw a random number for pgcache_fence")));
	strlcpy(shared->reason, "the keeper has not started yet", REASON_LEN);
	shared->since = GetCurrentTimestamp();
	for (int i = 0; i < LOG_TIMES; i++)
		pg_atomic_init_u64(&shared->logged[i], 0);
	shared->nmarkers = marker_count();
	for (int i = 0; i < shared->nmarkers; i++)
		pg_atomic_init_u64(&shared->markers[i], MARKER_NONE);
}

static void
shared_startup(void)
{
	bool		found;
	char	   *part;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	fence_shared = ShmemInitStruct("pgcache_fence", shared_size(), &found);
	if (!found)
		shared_initialise(fence_shared);
	part = (char *) fence_shared + MAXALIGN(state_size());
	for (int i = 0; i < (int) lengthof(parts); i++)
	{
		if (!found)
			parts[i].initialise(part);
		parts[i].use(part);
		part += parts[i].size();
	}
	LWLockRelease(AddinShmemInitLock);
}

void
shared_install(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = shared_request;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shared_startup;
}

void
shared_require(void)
{
	if (fence_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pgcache_fence is not loaded"),
				 errdetail("Fences need shared memory and background workers, which exist only if the library is loaded at server start."),
				 errhint("Add pgcache_fence to shared_preload_libraries in postgresql.conf and restart PostgreSQL.")));
}

int64
fence_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000 + 1;
}

void
fence_pause(int64 microseconds, uint32 wait_event)
{
	int64		until = fence_clock() + microseconds;
	int64		left;

	while ((left = until - fence_clock()) > 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, Max(left / 1000, 1), wait_event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * The word
 * -----------------------------------------------------------------------------------------------------------------
 */

FenceWord
fence_word(void)
{
	FenceWord	word;

	pg_memory_barrier();
	word = pg_atomic_read_u64(&fence_shared->word);
	pg_memory_barrier();
	return word;
}

const char *
fence_state_name(FenceWord word)
{
	return WORD_STATE(word) == FENCE_OPEN ? "OPEN" : WORD_STATE(word) == FENCE_ARMING ? "ARMING" : "CLOSED";
}

bool
fence_word_change(FenceWord from, FenceState state, uint32 epoch, const char *reason)
{
	uint64		expected = from;
	FenceWord	to = ((uint64) state << 62) | ((uint64) epoch << 32) | (uint32) ((uint32) from + 1);
	bool		opens_or_ends = state == FENCE_OPEN || WORD_STATE(from) == FENCE_OPEN;
	bool		news = false;

	/* the lock is taken first, so that reason and since belong to the word that a view reads under it */
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	if (!pg_atomic_compare_exchange_u64(&fence_shared->word, &expected, to))
	{
		LWLockRelease(fence_shared->lock);
		return false;
	}
	if (reason != NULL)
	{
		/* one line per change that people care about: not again for each try to open that ends like one before it */
		news = WORD_STATE(from) != FENCE_ARMING || state == FENCE_OPEN || strcmp(reason, fence_shared->reason) != 0;
		strlcpy(fence_shared->reason, reason, REASON_LEN);
	}
	if (state != FENCE_ARMING && (news || WORD_STATE(from) == FENCE_OPEN))
		fence_shared->since = GetCurrentTimestamp();
	LWLockRelease(fence_shared->lock);

	if (opens_or_ends)
		metrics_add_server(state == FENCE_OPEN ? SERVER_METRIC_STATE_OPEN : SERVER_METRIC_STATE_CLOSED, 1);
	if (news && state != FENCE_ARMING && (fence_log_due(reason) || opens_or_ends))
		ereport(LOG,
				(errmsg("pgcache_fence: %s in epoch %u: %s", fence_state_name(to), epoch, reason)));
	return true;
}

void
fence_state_now(FenceStateNow *now)
{
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	now->word = fence_word();
	fence_epoch_of(WORD_EPOCH(now->word), now->epoch);
	strlcpy(now->reason, fence_shared->reason, REASON_LEN);
	now->since = fence_shared->since;
	LWLockRelease(fence_shared->lock);
}

int
fence_copy_nodes(FenceNode nodes[MAX_NODES])
{
	int			n;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	n = fence_shared->nnodes;
	memcpy(nodes, fence_shared->nodes, n * sizeof(FenceNode));
	LWLockRelease(fence_shared->lock);
	return n;
}

void
fence_epoch_of(uint32 number, char epoch[EPOCH_LEN])
{
	static uint32 last_number = 0;
	static uint64 last_random = 0;
	static char last[EPOCH_LEN] = "";
	uint64		random = pg_atomic_read_u64(&fence_shared->epoch_random);

	/* every message names it, and it seldom changes */
	if (last[0] == '\0' || number != last_number || random != last_random)
		snprintf(last, EPOCH_LEN, "%u-%016llx", number, (unsigned long long) random);
	last_number = number;
	last_random = random;
	memcpy(epoch, last, EPOCH_LEN);
}

bool
fence_epoch_text(FenceWord word, char epoch[EPOCH_LEN])
{
	fence_epoch_of(WORD_EPOCH(word), epoch);
	return fence_word() == word;
}

int
fence_node_of(const char *fence)
{
	return fence_shared->slot_node[slot_of_key(fence, strlen(fence))];
}

FenceWord
fence_word_expire(void)
{
	FenceWord	word = fence_word();

	if (WORD_STATE(word) == FENCE_OPEN && fence_lease_bound_passed())
		fence_word_change(word, FENCE_CLOSED, WORD_EPOCH(word), "the lease ran out: the keeper did not renew it");
	else if (WORD_STATE(word) == FENCE_ARMING &&
			 (uint64) fence_clock() > pg_atomic_read_u64(&fence_shared->arming_until))
		fence_word_change(word, FENCE_CLOSED, WORD_EPOCH(word), "arming took longer than a lease");
	else
		return word;
	return fence_word();
}

/* -----------------------------------------------------------------------------------------------------------------
 * Markers and the bound of all leases
 * -----------------------------------------------------------------------------------------------------------------
 */

void
fence_marker_set(uint64 marker)
{
	pg_atomic_write_u64(&fence_shared->markers[fence_process_number()], marker);
	pg_memory_barrier();
}

void
fence_marker_clear(void)
{
	/* whatever the commit did must be visible before the marker goes */
	pg_memory_barrier();
	pg_atomic_write_u64(&fence_shared->markers[fence_process_number()], MARKER_NONE);
}

bool
fence_marker_exists(bool bypass)
{
	pg_memory_barrier();
	for (int i = 0; i < fence_shared->nmarkers; i++)
	{
		uint64		marker = pg_atomic_read_u64(&fence_shared->markers[i]);

		if (marker != MARKER_NONE && (marker == MARKER_BYPASS) == bypass)
			return true;
	}
	return false;
}

void
fence_lease_bound_raise(int64 until)
{
	uint64		current = pg_atomic_read_u64(&fence_shared->lease_bound);

	while (current < (uint64) until &&
		   !pg_atomic_compare_exchange_u64(&fence_shared->lease_bound, &current, (uint64) until))
		;
}

bool
fence_lease_bound_passed(void)
{
	uint64		bound;

	pg_memory_barrier();
	bound = pg_atomic_read_u64(&fence_shared->lease_bound);
	return bound != 0 && (uint64) fence_clock() > bound;
}

/* A writer that waits and finds no bound: the keeper never started, so the longest lease possible may run. */
int64
fence_lease_bound_or_longest(void)
{
	uint64		unset = 0;

	pg_atomic_compare_exchange_u64(&fence_shared->lease_bound, &unset,
								   (uint64) fence_clock() + (LEASE_MAX_MS + setting_clock_margin) * UINT64CONST(1000));
	return (int64) pg_atomic_read_u64(&fence_shared->lease_bound);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Waking the workers, seldom logging
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
wake(Latch *volatile *latch)
{
	Latch	   *target = *latch;	/* of a PGPROC: valid memory even if its owner is gone by now */

	if (target != NULL)
		SetLatch(target);
}

void
fence_wake_keeper_process(void)
{
	wake(&fence_shared->latches[JOBS_OF_KEEPER]);
}

void
fence_wake_patrol(void)
{
	pg_atomic_write_u32(&fence_shared->patrol_wanted, 1);
	pg_memory_barrier();
	wake(&fence_shared->latches[JOBS_OF_PATROL]);
}

bool
fence_database_is_known(Oid database)
{
	bool		known = false;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	for (int i = 0; i < fence_shared->ndatabases && !known; i++)
		known = fence_shared->databases[i] == database;
	LWLockRelease(fence_shared->lock);
	return known;
}

void
fence_database_note(Oid database, bool has_extension)
{
	int			i = 0;

	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	while (i < fence_shared->ndatabases && fence_shared->databases[i] != database)
		i++;
	if (has_extension && i == fence_shared->ndatabases && i < MAX_DATABASES)
		fence_shared->databases[fence_shared->ndatabases++] = database;
	else if (!has_extension && i < fence_shared->ndatabases)
		fence_shared->databases[i] = fence_shared->databases[--fence_shared->ndatabases];
	LWLockRelease(fence_shared->lock);
}

/* An element of the table: 24 bits of the text's hash, 40 bits of the time in milliseconds. */
bool
fence_log_due(const char *text)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) text, strlen(text), 0);
	uint64		now = (fence_clock() / 1000 + LOG_INTERVAL_MS) & UINT64CONST(0xFFFFFFFFFF);
	pg_atomic_uint64 *logged = &fence_shared->logged[hash % LOG_TIMES];
	uint64		last = pg_atomic_read_u64(logged);

	if (last >> 40 == hash >> 40 && now - (last & UINT64CONST(0xFFFFFFFFFF)) < LOG_INTERVAL_MS)
		return false;
	return pg_atomic_compare_exchange_u64(logged, &last, (hash >> 40) << 40 | now);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Wait events
 * -----------------------------------------------------------------------------------------------------------------
 */

uint32
fence_wait_event(FenceWait what)
{
	static const char *const names[] = {"PgcacheFenceRedis", "PgcacheFenceLease", "PgcacheFenceWorker"};
	static uint32 events[FENCE_WAIT_COUNT] = {0};

	if (events[what] == 0)
		events[what] = WaitEventExtensionNew(names[what]);
	return events[what];
}
