/*
 * base/word.c
 *	  Changes of the state that all backends agree on; see word.h and doc/protocol.md, "State".
 *
 * Owns: every change of the word and of the commit flags, and every rise of lease_bound. (keeper/databases.c sets
 * lease_bound once, from durable state.) fence_word_change and fence_state_now take the lock of shared memory; the
 * other functions take no lock.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/word.h"

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

	/*
	 * Take the lock before the swap, so that a view that reads under the lock sees the reason and time of the word that
	 * it sees.
	 */
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	if (!pg_atomic_compare_exchange_u64(&fence_shared->word, &expected, to))
	{
		LWLockRelease(fence_shared->lock);
		return false;
	}
	if (reason != NULL)
	{
		/*
		 * Log one line per change that matters to people. Do not log again when a further attempt to open fails for the
		 * same reason.
		 */
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
 * Commit flags and the bound of all leases
 * -----------------------------------------------------------------------------------------------------------------
 */

void
fence_commit_flag_set(uint64 flag)
{
	static uint32 count = 0;

	if (flag != COMMIT_FLAG_BYPASS)
		flag |= (uint64) (++count & 0x7FFFFFFF) << 32;
	pg_atomic_write_u64(&fence_shared->commit_flags[fence_process_number()], flag);
	pg_memory_barrier();
}

void
fence_commit_flag_clear(void)
{
	/* all effects of the commit must be visible before the flag is cleared */
	pg_memory_barrier();
	pg_atomic_write_u64(&fence_shared->commit_flags[fence_process_number()], COMMIT_FLAG_NONE);
}

bool
fence_commit_flag_exists(bool bypass)
{
	pg_memory_barrier();
	for (int i = 0; i < fence_shared->ncommit_flags; i++)
	{
		uint64		flag = pg_atomic_read_u64(&fence_shared->commit_flags[i]);

		if (bypass ? flag == COMMIT_FLAG_BYPASS : flag != COMMIT_FLAG_BYPASS && (flag & WORD_MAX_EPOCH) != 0)
			return true;
	}
	return false;
}

int
fence_commit_flags_of_part(FlagSeen *seen)
{
	int			n = 0;

	pg_memory_barrier();
	for (int i = 0; i < fence_shared->ncommit_flags; i++)
	{
		uint64		flag = pg_atomic_read_u64(&fence_shared->commit_flags[i]);

		if (flag & COMMIT_FLAG_PART)
			seen[n++] = (FlagSeen) {.process = i, .flag = flag};
	}
	return n;
}

int
fence_commit_flags_left(FlagSeen *seen, int n)
{
	int			left = 0;

	for (int i = 0; i < n; i++)
		if (pg_atomic_read_u64(&fence_shared->commit_flags[seen[i].process]) == seen[i].flag)
			seen[left++] = seen[i];
	pg_memory_barrier();
	return left;
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

/* A waiting writer may find no bound, because the keeper has never run. Then the longest possible lease may be running. */
int64
fence_lease_bound_or_longest(void)
{
	uint64		unset = 0;

	pg_atomic_compare_exchange_u64(&fence_shared->lease_bound, &unset,
								   (uint64) fence_clock() + (LEASE_MAX_MS + setting_clock_margin) * UINT64CONST(1000));
	return (int64) pg_atomic_read_u64(&fence_shared->lease_bound);
}
