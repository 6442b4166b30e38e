/*
 * test_buckets.c
 *	  The hash of src/base/buckets.c by itself: how the rows of tables share out among the buckets. (With Redis, which computes
 *	  the same hash: test/t/write/buckets.pl.)
 *
 * Build and run: sh test/unit/buckets.sh. Prints "N passed, N failed"; exit status 0 only if nothing failed.
 */
#include "postgres.h"

#include "base/buckets.h"
#include "base/send_queue.h"
#include "base/settings.h"

#include "backend.h"
#include "check.h"

#define BUCKETS (1 << 20)
#define ROWS	1000

/* ---- substitutes for PostgreSQL's functions ---- */

int			setting_watch_buckets = BUCKETS;

void
send_queue_wake(void)
{
}

/* Marks the buckets of the table's rows, and returns how many rows met a bucket that was marked. */
static int
mark(unsigned char *marks, const char *prefix, bool uuids)
{
	int			met = 0;

	for (int row = 1; row <= ROWS; row++)
	{
		char		fence[100];
		int			bucket;

		if (uuids)
			snprintf(fence, sizeof(fence), "%s:{%08x-0000-4000-8000-%012x}", prefix, row * 7919, row);
		else
			snprintf(fence, sizeof(fence), "%s:{%d}", prefix, row);
		bucket = bucket_of(fence);
		met += marks[bucket];
		marks[bucket] = 1;
	}
	return met;
}

/*
 * Two tables of 1,000 rows each should have about one bucket in common, if there are a million. The hash is the same in every run,
 * so this cannot fail by chance.
 */
static void
test_spread(void)
{
	static const char *const tables[] = {"many", "held", "users", "orders", "item", "rooms", "a", "b", "public.users", "public.order"};
	static const char *const prefixes[] = {"fence:f:5.", "main:f:5.", "test:f:13395.", "app:f:16384.", "f:f:13780."};

	for (size_t p = 0; p < lengthof(prefixes); p++)
		for (size_t i = 0; i < lengthof(tables); i++)
			for (size_t j = 0; j < i; j++)
			{
				static unsigned char marks[BUCKETS];
				char		one[64];
				char		other[64];

				memset(marks, 0, sizeof(marks));
				snprintf(one, sizeof(one), "%s%s", prefixes[p], tables[i]);
				snprintf(other, sizeof(other), "%s%s", prefixes[p], tables[j]);
				check(mark(marks, one, false) < 10, "the rows of a table spread");
				check(mark(marks, other, false) < 10, "two tables meet in few buckets");
				check(mark(marks, other, true) < 10, "and so does one whose keys are UUIDs");
			}
}

/* With the default number, few of the writes of rows that nobody has cached meet a bucket of the million keys that are. */
static void
test_default(void)
{
	static unsigned char marks[BUCKETS_DEFAULT];
	int			met = 0;

	setting_watch_buckets = BUCKETS_DEFAULT;
	for (int row = 0; row < 1100000; row++)
	{
		char		fence[100];
		int			bucket;

		snprintf(fence, sizeof(fence), "main:f:5.items:{%d}", row);
		bucket = bucket_of(fence);
		if (row < 1000000)
			marks[bucket] = 1;
		else
			met += marks[bucket];
	}
	check(met < 5000, "less than 5 % of others after a million keys");
	setting_watch_buckets = BUCKETS;
}

int
main(void)
{
	test_spread();
	test_default();
	check(bucket_of("") >= 0 && bucket_of("a") < BUCKETS, "short names");
	setting_watch_buckets = 0;
	check(bucket_of("a") == ALWAYS_RESERVED, "no buckets");
	return report_checks();
}
