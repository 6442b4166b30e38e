/*
 * base/word.h
 *	  Changes of the state that all backends agree on: the word, the commit flags, and the bound of all leases. shared.h has the
 *	  lock protocol, and fence_word, which reads the word.
 */
#ifndef FENCE_WORD_H
#define FENCE_WORD_H

#include "base/shared.h"

/* Name of the word's state, for people. */
extern const char *fence_state_name(FenceWord word);

/*
 * Changes the word from exactly `from` to the given state and epoch number, with the reason for people (NULL keeps
 * the last), which is logged. False: somebody else changed it first. Takes the lock: not in COMMIT or ABORT.
 */
extern bool fence_word_change(FenceWord from, FenceState state, uint32 epoch, const char *reason);

/* The word with what is told of it; changes of it are made under the lock, so that all of this belongs together. */
typedef struct FenceStateNow
{
	FenceWord	word;
	char		epoch[EPOCH_LEN];
	char		reason[REASON_LEN];
	TimestampTz since;
} FenceStateNow;
extern void fence_state_now(FenceStateNow *now);

/* Expired leases are everybody's affair: closes an OPEN or ARMING whose time has passed. Returns the word now. */
extern FenceWord fence_word_expire(void);

/* The flag of this process. fence_commit_flag_set ends with a full barrier. */
extern void fence_commit_flag_set(uint64 flag);
extern void fence_commit_flag_clear(void);

/* Whether any process has its flag set: COMMIT_FLAG_BYPASS, or (bypass false) any other. */
extern bool fence_commit_flag_exists(bool bypass);

/* Raises lease_bound to at least that time. */
extern void fence_lease_bound_raise(int64 until);

/* Whether lease_bound is set and has passed. */
extern bool fence_lease_bound_passed(void);

/* lease_bound; if the keeper never set it, it is set as if the longest lease possible had just been granted. */
extern int64 fence_lease_bound_or_longest(void);

#endif
