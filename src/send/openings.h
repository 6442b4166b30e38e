/*
 * send/openings.h
 *	  The courier opens buckets in the Redis processes, and lets the maps of bits take turns (doc/protocol.md, "Buckets").
 *
 * Owns: what each Redis process wants opened, and whom its opening waits for. Only the courier uses it. It takes no
 * locks. The maps themselves are in base/buckets.c.
 */
#ifndef FENCE_OPENINGS_H
#define FENCE_OPENINGS_H

#include "send/link.h"

/*
 * Looks at the word. Returns whether there is something to open in some process now: the fences are OPEN and buckets
 * are watched. In a new epoch it forgets all bits.
 */
extern bool openings_begin_round(void);

/* Returns whether this node's process is to be called now. */
extern bool openings_is_due(int node);

/* Queues the call of fence_open on the link, which is connected. Its reply sets the bits of what the process wants. */
extern void openings_send(Link *link);

/* Ends the round. Forgets the map of before once each of these processes has said that nothing of it is left. */
extern void openings_end_round(int nnodes, const bool granted[]);

/* Returns the milliseconds until the next round; -1: buckets are not watched. */
extern long openings_pause(void);

#endif
