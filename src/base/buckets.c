/*
 * base/buckets.c
 *	  Which fences may be in Redis; see buckets.h.
 *
 * Owns: three maps of bits. The present map and the map of before take turns, and a bucket counts as set if it is in
 * either. The third has the buckets that large statements hold. It is one for all of them, and the courier clears it
 * when the last holder has ended.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bswap.h"

#include "base/buckets.h"
#include "base/send_queue.h"
#include "base/settings.h"
#include "base/shared.h"

#define BITS 32					/* of one word of a map */
#define TURN_SHARE 16			/* the maps take turns when one bit in so many is set */
#define CLEARING PG_UINT32_MAX	/* in holders: the courier clears the map, so nobody may begin to hold */

typedef struct Buckets
{
	pg_atomic_uint32 epoch;		/* see buckets_epoch */
	pg_atomic_uint32 holders;	/* transactions that hold buckets, or CLEARING */
	pg_atomic_uint32 held;		/* 1: the third map may have bits */
	pg_atomic_uint32 hurry;		/* 1: see buckets_hurry */
	pg_atomic_uint64 waits_since;	/* see BucketsNow */
	/* From here to the end of the second map, everything outlives a clean restart. */
	pg_atomic_uint32 turn;		/* number of the turn; its lowest bit says which map is the present one */
	pg_atomic_uint32 set[2];	/* how many bits of each map are set; only the courier writes it */
	pg_atomic_uint32 bits[FLEXIBLE_ARRAY_MEMBER];	/* the three maps, one behind the other */
} Buckets;

#define HELD_MAP 2

static Buckets *buckets = NULL;
static bool holding = false;	/* this transaction is one of the holders */

static int
words(void)
{
	return setting_watch_buckets / BITS;
}

Size
buckets_size(void)
{
	return add_size(offsetof(Buckets, bits), mul_size(3 * sizeof(pg_atomic_uint32), words()));
}

void
buckets_initialise(void *memory)
{
	Buckets    *all = memory;

	pg_atomic_init_u32(&all->epoch, 0);
	pg_atomic_init_u32(&all->turn, 0);
	for (int i = 0; i < 2; i++)
		pg_atomic_init_u32(&all->set[i], 0);
	pg_atomic_init_u32(&all->holders, 0);
	pg_atomic_init_u32(&all->held, 0);
	pg_atomic_init_u32(&all->hurry, 0);
	pg_atomic_init_u64(&all->waits_since, 0);
	for (int i = 0; i < 3 * words(); i++)
		pg_atomic_init_u32(&all->bits[i], 0);
}

void
buckets_use(void *memory)
{
	buckets = memory;
}

/* One step of the hash. The shift mixes high bits into low ones; without it the rows of two tables would meet in whole groups. */
static uint32
mix(uint32 h, uint32 word)
{
	h = (h + word) * 1000003;
	return h ^ h >> 13;
}

/* Must be what hash() in buckets.lua returns. */
static uint32
hash(const char *fence)
{
	size_t		left = strlen(fence);
	uint32		h = left;
	uint32		four;

	for (; left >= 4; left -= 4, fence += 4)
	{
		memcpy(&four, fence, 4);
		h = mix(h, pg_ntoh32(four));
	}
	if (left > 0)
	{
		four = 0;
		memcpy(&four, fence, left);
		h = mix(h, pg_ntoh32(four));
	}
	return mix(mix(h, 0), 0);
}

int
bucket_of(const char *fence)
{
	if (setting_watch_buckets == 0)
		return ALWAYS_RESERVED;
	return (int) ((uint64) hash(fence) * setting_watch_buckets >> 32);
}

static pg_atomic_uint32 *
word_of(int map, int bucket)
{
	return &buckets->bits[map * words() + bucket / BITS];
}

static bool
is_in(int map, int bucket)
{
	return pg_atomic_read_u32(word_of(map, bucket)) >> (bucket % BITS) & 1;
}

/* Adds the bucket to the map, and returns whether it was not there. A full barrier is on both sides. */
static bool
add_to(int map, int bucket)
{
	uint32		bit = (uint32) 1 << (bucket % BITS);

	return (pg_atomic_fetch_or_u32(word_of(map, bucket), bit) & bit) == 0;
}

static void
clear(int map)
{
	for (int i = 0; i < words(); i++)
		pg_atomic_write_u32(&buckets->bits[map * words() + i], 0);
	pg_memory_barrier();
}

bool
bucket_is_set(int bucket)
{
	return pg_atomic_read_u32(&buckets->epoch) == 0 || is_in(0, bucket) || is_in(1, bucket);
}

bool
bucket_is_held(int bucket)
{
	uint32		holders = pg_atomic_read_u32(&buckets->holders);

	return holders > 0 && holders != CLEARING && is_in(HELD_MAP, bucket);
}

/* Becomes a holder. Returns false if the courier keeps on clearing the map, because it is stopped. */
static bool
begin_to_hold(void)
{
	uint32		before = pg_atomic_read_u32(&buckets->holders);

	for (int tries = 0; tries < 1000; tries++)
	{
		if (before == CLEARING)
		{
			CHECK_FOR_INTERRUPTS();
			pg_usleep(10);
			before = pg_atomic_read_u32(&buckets->holders);
		}
		else if (pg_atomic_compare_exchange_u32(&buckets->holders, &before, before + 1))
		{
			pg_atomic_write_u32(&buckets->held, 1);
			holding = true;
			return true;
		}
	}
	return false;
}

bool
bucket_hold(int bucket)
{
	if (!holding && !begin_to_hold())
		return false;
	(void) add_to(HELD_MAP, bucket);
	return !bucket_is_set(bucket);
}

void
buckets_release(void)
{
	if (!holding)
		return;
	holding = false;
	(void) pg_atomic_fetch_sub_u32(&buckets->holders, 1);
}

void
buckets_hurry(void)
{
	pg_atomic_write_u32(&buckets->hurry, 1);
	send_queue_wake();
}

void
buckets_now(BucketsNow *now)
{
	uint32		holders = pg_atomic_read_u32(&buckets->holders);

	now->buckets = setting_watch_buckets;
	now->known = pg_atomic_read_u32(&buckets->epoch) != 0;
	now->turn = pg_atomic_read_u32(&buckets->turn);
	now->set = pg_atomic_read_u32(&buckets->set[now->turn & 1]);
	now->set_before = pg_atomic_read_u32(&buckets->set[~now->turn & 1]);
	now->holders = holders == CLEARING ? 0 : holders;
	now->waits_since = (int64) pg_atomic_read_u64(&buckets->waits_since);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The courier's side
 * -----------------------------------------------------------------------------------------------------------------
 */

uint32
buckets_epoch(void)
{
	return pg_atomic_read_u32(&buckets->epoch);
}

uint32
buckets_turn(void)
{
	return pg_atomic_read_u32(&buckets->turn);
}

void
buckets_begin(uint32 epoch)
{
	for (int i = 0; i < 2; i++)
	{
		clear(i);
		pg_atomic_write_u32(&buckets->set[i], 0);
	}
	pg_atomic_write_u32(&buckets->turn, 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&buckets->epoch, epoch);
}

void *
buckets_kept(Size *size)
{
	*size = offsetof(Buckets, bits) - offsetof(Buckets, turn) + 2 * sizeof(pg_atomic_uint32) * words();
	return &buckets->turn;
}

void
buckets_resume(uint32 epoch)
{
	pg_memory_barrier();
	pg_atomic_write_u32(&buckets->epoch, epoch);
}

bool
buckets_is_hurry(void)
{
	return pg_atomic_exchange_u32(&buckets->hurry, 0) != 0;
}

bool
bucket_set(int bucket)
{
	int			present = buckets_turn() & 1;

	if (add_to(present, bucket))
		pg_atomic_write_u32(&buckets->set[present], pg_atomic_read_u32(&buckets->set[present]) + 1);
	pg_memory_barrier();
	return !is_in(HELD_MAP, bucket);
}

void
buckets_note_wait(int64 since)
{
	pg_atomic_write_u64(&buckets->waits_since, (uint64) since);
}

void
buckets_tidy(void)
{
	uint32		nobody = 0;
	uint32		holders = pg_atomic_read_u32(&buckets->holders);

	if (pg_atomic_read_u32(&buckets->held) == 0)
		return;
	/* CLEARING: the courier before this one ended while it cleared */
	if (holders != CLEARING && !pg_atomic_compare_exchange_u32(&buckets->holders, &nobody, CLEARING))
		return;
	clear(HELD_MAP);
	pg_atomic_write_u32(&buckets->held, 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&buckets->holders, 0);
}

bool
buckets_has_before(void)
{
	return pg_atomic_read_u32(&buckets->set[~buckets_turn() & 1]) > 0;
}

bool
buckets_take_turn(void)
{
	uint32		set = pg_atomic_read_u32(&buckets->set[buckets_turn() & 1]);

	if (buckets_has_before() || set < (uint32) (setting_watch_buckets / TURN_SHARE))
		return false;
	pg_atomic_write_u32(&buckets->turn, buckets_turn() + 1);
	pg_memory_barrier();
	return true;
}

void
buckets_forget(void)
{
	int			before = ~buckets_turn() & 1;

	clear(before);
	pg_atomic_write_u32(&buckets->set[before], 0);
}
