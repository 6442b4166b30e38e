/*
 * read/standby.h
 *	  Strong reads on a hot standby. Its rows may be old, so these functions tell which row a reader may use.
 */
#ifndef FENCE_STANDBY_H
#define FENCE_STANDBY_H

#include "read/audit.h"
#include "read/many.h"

/*
 * Asks Redis which transaction has committed the row last (status->recent). True: Redis knows it, nothing is pending,
 * and the process is armed by this cluster on the timeline that this standby replays. The caller then calls
 * standby_row. Interruptible; waits for Redis at most twice the `timeout`.
 */
extern bool standby_ask(const char *fence, FenceStatus *status);

/*
 * Reads the item's row in a snapshot taken after standby_ask. False: the transaction of status->recent has not
 * written this row, or that cannot be determined.
 */
extern bool standby_row(ManyItem *item, const FenceStatus *status, Snapshot snapshot);

#endif
