/*
 * base/buckets.c
 *	  Which fences may be in Redis; see buckets.h.
 *
 * Owns: the maps of bits. One map is the present one, in its turn; the others are former ones, or empty. A bucket counts as
 * set if it is in any of them. The words of the maps for the same buckets lie side by side, so that a look at all of them
 * takes one line of the processor's cache. One more map has the buckets that large statements hold. It is one for all of
 * them, and the courier clears it when the last holder has ended.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bswap.h"
#include "storage/shmem.h"

#include "base/buckets.h"
#include "base/send_queue.h"
#include "base/settings.h"
#include "base/shared.h"

#define BITS 32					/* of one word of a map */
#define MANY	16				/* a turn ends when one bit in so many is set, */
#define SOME	64				/* or one in so many and it has lasted long enough */
#define HELD_MAX (1 << 20)		/* bits of the map of held buckets: it must be cleared quickly */
#define CLEARING PG_UINT32_MAX	/* in holders: the courier clears the map, so nobody may begin to hold */

typedef struct Buckets
{
	pg_atomic_uint32 epoch;		/* see buckets_epoch */
	pg_atomic_uint32 holders;	/* transactions that hold buckets, or CLEARING */
	pg_atomic_uint32 held;		/* 1: the map of held buckets may have bits */
	pg_atomic_uint32 hurry;		/* 1: see buckets_hurry */
	pg_atomic_uint64 waits_since;	/* see BucketsNow */
	pg_atomic_uint32 begun;		/* batches of buckets that the courier has begun to open, */
	pg_atomic_uint32 opened;	/* and those up to which all are open */
	/* From here to the end of the maps, everything outlives a clean restart. Only the courier writes it. */
	pg_atomic_uint32 present;	/* which map is the present one */
	pg_atomic_uint32 turn_of[BUCKET_MAPS];	/* the turn in which each map was, or is, the present one */
	pg_atomic_uint32 set[BUCKET_MAPS];	/* how many bits of each map are set */
	/* first for each 32 buckets a word of each map, then the map of held buckets */
	pg_atomic_uint32 bits[FLEXIBLE_ARRAY_MEMBER] pg_attribute_aligned(BUCKET_MAPS * sizeof(uint32));
} Buckets;

static Buckets *buckets = NULL;
static bool holding = false;	/* this transaction is one of the holders */

/* Words of all maps but the last one */
static int
map_words(void)
{
	return setting_watch_buckets / BITS * BUCKET_MAPS;
}

static int
held_words(void)
{
	return Min(setting_watch_buckets, HELD_MAX) / BITS;
}

Size
buckets_size(void)
{
	return add_size(offsetof(Buckets, bits), mul_size(sizeof(pg_atomic_uint32), map_words() + held_words()));
}

void
buckets_initialise(void *memory)
{
	Buckets    *all = memory;

	pg_atomic_init_u32(&all->epoch, 0);
	pg_atomic_init_u32(&all->present, 0);
	for (int i = 0; i < BUCKET_MAPS; i++)
	{
		pg_atomic_init_u32(&all->turn_of[i], 0);
		pg_atomic_init_u32(&all->set[i], 0);
	}
	pg_atomic_init_u32(&all->holders, 0);
	pg_atomic_init_u32(&all->held, 0);
	pg_atomic_init_u32(&all->hurry, 0);
	pg_atomic_init_u64(&all->waits_since, 0);
	pg_atomic_init_u32(&all->begun, 0);
	pg_atomic_init_u32(&all->opened, 0);
	for (int i = 0; i < map_words() + held_words(); i++)
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

static int
present(void)
{
	return pg_atomic_read_u32(&buckets->present);
}

/* The bucket's words in all maps, one behind the other */
static pg_atomic_uint32 *
words_of(int bucket)
{
	return &buckets->bits[bucket / BITS * BUCKET_MAPS];
}

/* Several buckets share a bit of the map of held buckets if there are more than that has. */
static int
held_bit(int bucket)
{
	return setting_watch_buckets > HELD_MAX ? bucket / (setting_watch_buckets / HELD_MAX) : bucket;
}

static pg_atomic_uint32 *
held_word(int bucket)
{
	return &buckets->bits[map_words() + held_bit(bucket) / BITS];
}

static bool
is_in(pg_atomic_uint32 *word, int bit)
{
	return pg_atomic_read_u32(word) >> (bit % BITS) & 1;
}

/* A full barrier is on both sides. */
static void
set_bit(pg_atomic_uint32 *word, int bit)
{
	(void) pg_atomic_fetch_or_u32(word, (uint32) 1 << (bit % BITS));
}

static bool
is_held(int bucket)
{
	return is_in(held_word(bucket), held_bit(bucket));
}

static void
clear_map(int map)
{
	for (int i = map; i < map_words(); i += BUCKET_MAPS)
		pg_atomic_write_u32(&buckets->bits[i], 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&buckets->set[map], 0);
}

bool
bucket_is_set(int bucket)
{
	pg_atomic_uint32 *words = words_of(bucket);
	uint32		any = 0;

	if (pg_atomic_read_u32(&buckets->epoch) == 0)
		return true;
	for (int i = 0; i < BUCKET_MAPS; i++)
		any |= pg_atomic_read_u32(&words[i]);
	return any >> (bucket % BITS) & 1;
}

bool
bucket_is_held(int bucket)
{
	uint32		holders = pg_atomic_read_u32(&buckets->holders);

	return holders > 0 && holders != CLEARING && is_held(bucket);
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
	set_bit(held_word(bucket), held_bit(bucket));
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

uint32
buckets_begun(void)
{
	pg_read_barrier();			/* after the look at the bit */
	return pg_atomic_read_u32(&buckets->begun);
}

bool
buckets_are_open(uint32 batch)
{
	return (int32) (pg_atomic_read_u32(&buckets->opened) - batch) >= 0;
}

void
buckets_now(BucketsNow *now)
{
	uint32		holders = pg_atomic_read_u32(&buckets->holders);

	now->buckets = setting_watch_buckets;
	now->known = pg_atomic_read_u32(&buckets->epoch) != 0;
	now->turn = buckets_turn();
	now->set = pg_atomic_read_u32(&buckets->set[present()]);
	now->set_before = 0;
	for (int i = 0; i < BUCKET_MAPS; i++)
		now->set_before += i == present() ? 0 : pg_atomic_read_u32(&buckets->set[i]);
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
	return pg_atomic_read_u32(&buckets->turn_of[present()]);
}

void
buckets_begin(uint32 epoch)
{
	for (int i = 0; i < BUCKET_MAPS; i++)
		clear_map(i);
	pg_atomic_write_u32(&buckets->turn_of[present()], 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&buckets->epoch, epoch);
}

void *
buckets_kept(Size *size)
{
	*size = offsetof(Buckets, bits) - offsetof(Buckets, present) + sizeof(pg_atomic_uint32) * map_words();
	return &buckets->present;
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
	int			map = present();
	pg_atomic_uint32 *word = &words_of(bucket)[map];

	if (!is_in(word, bucket))
	{
		/* First the count: a map with bits must never pass for empty, whenever the courier ends. */
		pg_atomic_write_u32(&buckets->set[map], pg_atomic_read_u32(&buckets->set[map]) + 1);
		pg_memory_barrier();
		set_bit(word, bucket);
	}
	pg_memory_barrier();
	return !is_held(bucket);
}

uint32
buckets_begin_batch(void)
{
	uint32		batch = pg_atomic_add_fetch_u32(&buckets->begun, 1);

	return batch != 0 ? batch : pg_atomic_add_fetch_u32(&buckets->begun, 1);
}

void
buckets_note_opened(uint32 batch)
{
	pg_atomic_write_u32(&buckets->opened, batch);
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
	for (int i = 0; i < held_words(); i++)
		pg_atomic_write_u32(&buckets->bits[map_words() + i], 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&buckets->held, 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&buckets->holders, 0);
}

bool
buckets_take_turn(bool long_enough)
{
	uint32		set = pg_atomic_read_u32(&buckets->set[present()]);

	if (set < (uint32) (setting_watch_buckets / (long_enough ? SOME : MANY)))
		return false;
	for (int i = 0; i < BUCKET_MAPS; i++)
		if (i != present() && pg_atomic_read_u32(&buckets->set[i]) == 0)
		{
			pg_atomic_write_u32(&buckets->turn_of[i], buckets_turn() + 1);
			pg_memory_barrier();
			pg_atomic_write_u32(&buckets->present, i);
			pg_memory_barrier();
			return true;
		}
	return false;
}

int
buckets_former(uint32 turns[BUCKET_MAPS])
{
	int			n = 0;

	for (int i = 0; i < BUCKET_MAPS; i++)
		if (i != present() && pg_atomic_read_u32(&buckets->set[i]) > 0)
			turns[n++] = pg_atomic_read_u32(&buckets->turn_of[i]);
	return n;
}

void
buckets_forget(uint32 turn)
{
	for (int i = 0; i < BUCKET_MAPS; i++)
		if (i != present() && pg_atomic_read_u32(&buckets->turn_of[i]) == turn)
			clear_map(i);
}
