/*
 * read/standby.h
 *	  Strong reads on a hot standby, whose rows may be old: proves that those that a reader uses are the newest.
 *
 * The caller has called many_get, or takes all items for misses. standby_snapshot finds out how far this standby must be,
 * and takes a snapshot that is as far. The caller reads rows in it. standby_prove then proves them.
 */
#ifndef FENCE_STANDBY_H
#define FENCE_STANDBY_H

#include "read/many.h"

/*
 * Takes a snapshot in which the rows of all items that were a miss may be the newest, and registers it; the caller
 * unregisters it. Waits up to pgcache_fence.standby_wait until the standby has replayed that. NULL: it has not, or nobody
 * knows how much that is; the readers that wait for any of the items are released then. Interruptible.
 */
extern Snapshot standby_snapshot(int n, ManyItem *items);

/*
 * Puts the rows of the items that were a miss, which were read in that snapshot. Returns whether all items, also those that
 * were a hit, had their version together at a moment after that. Releases readers that wait for any of them.
 */
extern bool standby_prove(int n, ManyItem *items);

/* Reads the rows of all items that were a miss. Returns whether they are the newest, together with the hits. */
extern bool standby_read(int n, ManyItem *items);

#endif
