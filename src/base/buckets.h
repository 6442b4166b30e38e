/*
 * base/buckets.h
 *	  Which fences may be in Redis: one bit for each bucket of fences (doc/protocol.md, "Buckets").
 *
 * Owns: the maps of bits in shared memory, which buckets large statements hold, and how far the courier has opened what it
 * has begun to open. Only the courier sets and clears bits. Without pgcache_fence.watch_buckets there are no maps, and every row is reserved.
 *
 * No function here takes a lock. A bit is set, and a commit flag is set, with a full barrier behind it. So either the
 * courier sees the flag of a transaction that commits, or that transaction sees the bit.
 */
#ifndef FENCE_BUCKETS_H
#define FENCE_BUCKETS_H

#include "postgres.h"

#define BUCKET_MAPS 4			/* the present one, and former ones */

#define ALWAYS_RESERVED (-1)	/* instead of a bucket: what is reserved whatever the bits say */

/* Returns the fence's bucket; ALWAYS_RESERVED if buckets are not watched. Redis computes the same (buckets.lua). */
extern int	bucket_of(const char *fence);

/* Returns whether something of the bucket may be in Redis. Never of ALWAYS_RESERVED. */
extern bool bucket_is_set(int bucket);

/* Returns whether a large transaction keeps the bucket closed. Never of ALWAYS_RESERVED. */
extern bool bucket_is_held(int bucket);

/*
 * Holds the bucket until the transaction ends: nobody opens it. Returns false if it may be open already; then the row
 * must be reserved. May wait some milliseconds, and may raise. buckets_release is called when the transaction is
 * visible or gone. It neither waits nor raises.
 */
extern bool bucket_hold(int bucket);
extern void buckets_release(void);

/* A reader of this server was refused, because the bucket is closed. Wakes the courier, which need not wait for its next look. */
extern void buckets_hurry(void);

/*
 * The courier opens buckets in batches, which have numbers. buckets_begun returns the number of the last one that it has
 * begun, buckets_are_open whether Redis has answered about all up to that one. Who finds a bit set finds that its batch has
 * begun. A batch that was lost or dropped counts as answered: a reader that waited for it is refused, and reads all the same.
 */
extern uint32 buckets_begun(void);
extern bool buckets_are_open(uint32 batch);

/* What the views show */
typedef struct BucketsNow
{
	int			buckets;		/* 0: not watched */
	int			set;			/* bits set in the present map */
	int			set_before;		/* in the former maps together; a bucket in two of them counts twice */
	bool		known;			/* false: no epoch has begun since the server start, and all count as set */
	uint32		turn;
	int			holders;		/* transactions that hold buckets */
	int64		waits_since;	/* fence_clock() time since which an opening waits for commits; 0: none waits */
} BucketsNow;
extern void buckets_now(BucketsNow *now);

/* -----------------------------------------------------------------------------------------------------------------
 * The courier's side
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whose bits these are. buckets_begin forgets all bits; it is called when the fences are OPEN in this epoch. */
extern uint32 buckets_epoch(void);
extern uint32 buckets_turn(void);
extern void buckets_begin(uint32 epoch);

/*
 * What outlives a clean restart, as the place and the size of it in shared memory. After a server start its bits do not
 * count until buckets_resume says whose they are.
 */
extern void *buckets_kept(Size *size);
extern void buckets_resume(uint32 epoch);

/* Returns whether buckets_hurry was called since the last call. */
extern bool buckets_is_hurry(void);

/* Sets the bit. Returns false if somebody holds the bucket: then it must not be opened. */
extern bool bucket_set(int bucket);

/*
 * buckets_begin_batch begins a batch, before its bits are set, and returns its number, which is not 0. buckets_note_opened
 * tells readers up to which batch Redis has answered about all.
 */
extern uint32 buckets_begin_batch(void);
extern void buckets_note_opened(uint32 batch);

/* Tells the views since when an opening waits for commits; 0: none waits. */
extern void buckets_note_wait(int64 since);

/* Forgets what was held, if nobody holds anything any more. */
extern void buckets_tidy(void);

/*
 * The maps take turns. buckets_take_turn makes an empty map the present one, if there is one and the present one has many
 * bits; long_enough: some suffice. Returns whether it did. buckets_former fills in the turns of the former maps that have
 * bits, and returns how many these are; buckets_forget clears the map of one.
 */
extern bool buckets_take_turn(bool long_enough);
extern int	buckets_former(uint32 turns[BUCKET_MAPS]);
extern void buckets_forget(uint32 turn);

/* Memory of this part (shmem.c). */
extern Size buckets_size(void);
extern void buckets_initialise(void *memory);
extern void buckets_use(void *memory);

#endif
