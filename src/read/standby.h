/*
 * read/standby.h
 *	  Strong reads on a hot standby, whose rows may be old: which of them may be used.
 */
#ifndef FENCE_STANDBY_H
#define FENCE_STANDBY_H

#include "read/audit.h"
#include "read/many.h"

/*
 * Whether whoever holds the fence in Redis vouches for it now, for the very history that this standby replays, with nothing pending,
 * and knows who wrote its row (status->recent). To be followed by a look at the row. Interruptible; waits for Redis no longer
 * than twice the `timeout`.
 */
extern bool standby_ask(const char *fence, FenceStatus *status);

/*
 * Reads the item's row in a snapshot taken after standby_ask. False: it is not the one that the transaction of status->recent
 * wrote, or that cannot be told.
 */
extern bool standby_row(ManyItem *item, const FenceStatus *status, Snapshot snapshot);

#endif
