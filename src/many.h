/*
 * many.h
 *	  Several fences at once: asked for in as few calls as their places allow, checked again where that took several.
 */
#ifndef FENCE_MANY_H
#define FENCE_MANY_H

#include "reader.h"
#include "utils/snapshot.h"

/* One of the fences, and what became known of it */
typedef struct ManyItem
{
	Domain	   *domain;
	char	   *key;
	char	   *fence;			/* names in Redis */
	char	   *value;
	GetAnswer	answer;			/* of many_get */
	bool		found;			/* of many_read_rows: there is a row (or group) ... */
	Datum		row;			/* ... as jsonb; of a hit that was accepted, the cached one */
	int64		version;		/* ... with this version */
} ManyItem;

/* The item of a key; values are read under the domain's own value name. */
extern ManyItem many_item(Domain *domain, char *key);

/*
 * The strong get for all: sets the answers. Returns the number of calls it took: after one, items that are all hits are
 * one snapshot. Without OPEN fences Redis is not asked. Interruptible; waits at most `timeout` for each call.
 */
extern int	many_get(int n, ManyItem *items);

/* Whether the token and version in each answer are still current, all of them: false also if Redis could not be asked. */
extern bool many_check(int n, ManyItem *items);

/*
 * The snapshot to read PostgreSQL in after many_get: registered, for the caller to unregister. *may_put: it is new enough
 * for what is read in it to be put.
 */
extern Snapshot many_snapshot(bool *may_put);

/* Reads all rows in that snapshot. */
extern void many_read_rows(int n, ManyItem *items, Snapshot snapshot);

/* Puts what was read where the answer was a miss. */
extern void many_put_rows(int n, ManyItem *items);

/* Whether this transaction has written in one of the domains: then it fills no cache from what it reads there. */
extern bool many_written(int n, ManyItem *items);

#endif
