/*
 * base/word.h
 *	  Changes of the state that all backends agree on: the word, the commit flags, and the time at which all leases
 *	  have ended. shared.h describes the lock protocol and declares fence_word, which reads the word.
 */
#ifndef FENCE_WORD_H
#define FENCE_WORD_H

#include "base/shared.h"

/* Returns the name of the word's state. */
extern const char *fence_state_name(FenceWord word);

/*
 * Changes the word from exactly `from` to this state and epoch number. Stores and logs the reason (NULL keeps the last
 * one). Returns false if another process has changed the word. Takes the lock, so do not call it in COMMIT or ABORT.
 */
extern bool fence_word_change(FenceWord from, FenceState state, uint32 epoch, const char *reason);

/* The word, and what views show about it. Read under the lock, so that all members belong together. */
typedef struct FenceStateNow
{
	FenceWord	word;
	char		epoch[EPOCH_LEN];
	char		reason[REASON_LEN];
	TimestampTz since;
} FenceStateNow;
extern void fence_state_now(FenceStateNow *now);

/* Closes an OPEN or ARMING state whose time has passed. Any process may do that. Returns the current word. */
extern FenceWord fence_word_expire(void);

/* Set and clear the commit flag of this process. fence_commit_flag_set ends with a full barrier. */
extern void fence_commit_flag_set(uint64 flag);
extern void fence_commit_flag_clear(void);

/*
 * Returns whether any process has set its flag: to COMMIT_FLAG_BYPASS, or (bypass false) with an epoch. A commit that has
 * no reservation names no epoch, and the keeper does not wait for it: such commits go on while fences are CLOSED.
 */
extern bool fence_commit_flag_exists(bool bypass);

/*
 * The commits that have not reserved all that they change. fence_commit_flags_of_part writes those of now to `seen`,
 * which has room for all processes, and returns their number. fence_commit_flags_left keeps of these n the ones that are
 * still committing; the others are visible, or gone.
 */
typedef struct FlagSeen
{
	int			process;
	uint64		flag;
} FlagSeen;
extern int	fence_commit_flags_of_part(FlagSeen *seen);
extern int	fence_commit_flags_left(FlagSeen *seen, int n);

/* Raises lease_bound to at least this time. */
extern void fence_lease_bound_raise(int64 until);

/* Returns whether lease_bound is set and has passed. */
extern bool fence_lease_bound_passed(void);

/* Returns lease_bound. If the keeper has never set it, first sets it as if the longest possible lease had just been granted. */
extern int64 fence_lease_bound_or_longest(void);

#endif
