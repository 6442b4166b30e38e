/*
 * read/many.h
 *	  Strong reads: of several fences, or of one, asked for in as few round trips as their places allow.
 */
#ifndef FENCE_MANY_H
#define FENCE_MANY_H

#include "read/reader.h"
#include "utils/snapshot.h"

/* One of the fences */
typedef struct ManyItem
{
	Domain	   *domain;
	char	   *key;
	char	   *fence;			/* its name in Redis */
	GetAnswer	answer;			/* of many_get */
	int			moment;			/* of many_get: when it was looked at, from 1 on */
	bool		found;			/* of many_read_rows or many_accept: there is a row (or group) ... */
	Datum		row;			/* ... as jsonb */
	int64		version;		/* ... with this version; without a row: of its absence, if the domain caches that, else NO_VERSION */
} ManyItem;

/* The item of a key. */
extern ManyItem many_item(Domain *domain, char *key);

extern const char *many_status_name(GetStatus status);

/*
 * The strong get for all: sets the answers. `why`: what is no hit is asked for once more, which tells pending from a miss, and
 * may tell a reader to wait for another, or make others wait for this one (filler). Returns the last moment: hits
 * of one moment agree. Unless Redis may be asked, it is not: it may hang. Interruptible; waits at most `timeout` for each round trip.
 */
extern int	many_get(int n, ManyItem *items, bool why);

/* Asks again for those that were no hits; moment: the last one until now. Returns the last one. */
extern int	many_ask_why(int n, ManyItem *items, int moment);

/* What is stored, current (then a hit) or not: sets one answer, whatever the state of the fences. */
extern void many_peek(ManyItem *item);

/*
 * Whether the tokens and versions in the answers are current, except of items of that moment (0: of all): false also if Redis could
 * not be asked.
 */
extern bool many_check(int n, ManyItem *items, int moment);

/* Whether the item is a hit that can be used: sets found, row and version then. */
extern bool many_accept(ManyItem *item);

/*
 * The snapshot to read PostgreSQL in after many_get: registered, for the caller to unregister. *may_put: it is new enough
 * for what is read in it to be put.
 */
extern Snapshot many_snapshot(bool *may_put);

/* Reads all rows in that snapshot. */
extern void many_read_rows(int n, ManyItem *items, Snapshot snapshot);

/* Puts what was read where the answer was a miss; who was told to wait for more need not. False: something was refused. */
extern bool many_put_rows(int n, ManyItem *items);

/* The source of truth: reads all rows in one snapshot. fill: puts what was missing in the cache, if the snapshot is new enough. */
extern void many_read_database(int n, ManyItem *items, bool fill);

/* Those who were told to wait for this reader need not. */
extern void many_release(int n, ManyItem *items);

/* Whether this transaction has written in one of the domains: then it fills no cache from what it reads there. */
extern bool many_written(int n, ManyItem *items);

#endif
