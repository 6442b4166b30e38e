/*
 * base/shared.c
 *	  The state that all processes share, and functions that read it; see shared.h. word.c changes the word.
 */
#include "postgres.h"

#include <time.h>

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/compat.h"
#include "base/shared.h"

FenceShared *fence_shared = NULL;

static int
commit_flag_count(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

Size
shared_size(void)
{
	return add_size(offsetof(FenceShared, commit_flags), mul_size(commit_flag_count(), sizeof(pg_atomic_uint64)));
}

void
shared_initialise(void *memory)
{
	FenceShared *shared = memory;

	memset(shared, 0, offsetof(FenceShared, commit_flags));
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
	pg_atomic_init_u32(&shared->audit_yields, 0);
	pg_atomic_init_u64(&shared->first_xid, 0);
	pg_atomic_init_u32(&shared->outbox_wanted, 1);	/* effects from before this start may be waiting */
	if (!pg_strong_random(&shared->nonce, sizeof(shared->nonce)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not draw a random number for pgcache_fence")));
	strlcpy(shared->reason, "the keeper has not started yet", REASON_LEN);
	shared->since = GetCurrentTimestamp();
	for (int i = 0; i < LOG_TIMES; i++)
		pg_atomic_init_u64(&shared->logged[i], 0);
	shared->ncommit_flags = commit_flag_count();
	for (int i = 0; i < shared->ncommit_flags; i++)
		pg_atomic_init_u64(&shared->commit_flags[i], COMMIT_FLAG_NONE);
}

void
shared_use(void *memory)
{
	fence_shared = memory;
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

FenceWord
fence_word(void)
{
	FenceWord	word;

	pg_memory_barrier();
	word = pg_atomic_read_u64(&fence_shared->word);
	pg_memory_barrier();
	return word;
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

	/* every message names the epoch, which seldom changes, so we keep its text */
	if (last[0] == '\0' || number != last_number || random != last_random)
		snprintf(last, EPOCH_LEN, "%u-%016llx", number, (unsigned long long) random);
	last_number = number;
	last_random = random;
	memcpy(epoch, last, EPOCH_LEN);
}

bool
fence_epoch_short(FenceWord word, char epoch[EPOCH_LEN])
{
	bool		same = fence_epoch_text(word, epoch);

	epoch[strcspn(epoch, "-") + 1 + EPOCH_SHORT_DIGITS] = '\0';
	return same;
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
	int			only = fence_shared->only_node;

	return only >= 0 ? only : fence_shared->slot_node[slot_of_key(fence, strlen(fence))];
}

/* -----------------------------------------------------------------------------------------------------------------
 * Waking the workers, seldom logging
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
wake(Latch *volatile *latch)
{
	Latch	   *target = *latch;	/* points into a PGPROC, so the memory stays valid even if the process has exited */

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

/* An element of the table holds 24 bits of the text's hash and 40 bits of the time in milliseconds. */
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
	static const char *const names[] = {"PgcacheFenceRedis", "PgcacheFenceLease", "PgcacheFenceWorker", "PgcacheFenceStandby"};
	static uint32 events[FENCE_WAIT_COUNT] = {0};

	if (events[what] == 0)
		events[what] = WaitEventExtensionNew(names[what]);
	return events[what];
}
