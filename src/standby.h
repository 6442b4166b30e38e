/*
 * standby.h
 *	  Strong reads on a hot standby, whose rows may be old: which of them may be used.
 */
#ifndef FENCE_STANDBY_H
#define FENCE_STANDBY_H

#include "audit.h"
#include "utils/snapshot.h"

/*
 * The fence of the key, if whoever holds it in Redis vouches for it now, for the very history that this standby replays, and
 * nothing is pending. To be followed by a look at the row. False: its row cannot be judged. Interruptible; waits for Redis
 * no longer than twice the `timeout`.
 */
extern bool standby_ask(const Domain *domain, const char *key, FenceStatus *status);

/*
 * The key's row in a snapshot taken after standby_ask, if it is the very one that the fence names. False: it is not, or that
 * cannot be told.
 */
extern bool standby_row(const Domain *domain, const char *key, const FenceStatus *status, Snapshot snapshot, Datum *jsonb);

#endif
