/*
 * read/many.h
 *	  Strong reads of one or several fences, in as few round trips as possible.
 */
#ifndef FENCE_MANY_H
#define FENCE_MANY_H

#include "access/xlogdefs.h"

#include "read/reader.h"
#include "redis/calls.h"
#include "utils/snapshot.h"

/* One of the fences */
typedef struct ManyItem
{
	Domain	   *domain;
	char	   *key;
	char	   *fence;			/* its name in Redis */
	GetAnswer	answer;			/* of many_get */
	int			moment;			/* of many_get: number of the call that read the fence, from 1 on */
	bool		found;			/* many_read_rows and many_accept set these three: whether there is a row (or group), */
	Datum		row;			/* the row as jsonb, */
	int64		version;		/* its version; without a row, the version of its absence if the domain caches that, else NO_VERSION */
	FullTransactionId writer;	/* many_read_rows: as row_as_jsonb sets it */
	/* on a standby, after a miss, what standby.c must know */
	uint32		timeline;		/* on which this counts: */
	XLogRecPtr	position;		/* a server that has replayed this has the newest row, */
	uint64		recent;			/* or one that has this transaction; 0: not known */
	uint64		running;		/* transactions with a lower number are visible on the primary, or gone */
	bool		by_commit;		/* the snapshot has that transaction */
} ManyItem;

/* Makes the item for a key. */
extern ManyItem many_item(Domain *domain, char *key);

extern const char *many_status_name(GetStatus status);

/*
 * The strong get of all items: sets their answers. `why`: asks once more for each item that is no hit (fence_get).
 * That tells pending from a miss, may tell this reader to wait for another reader, and may make other readers wait
 * for this one (filler). Returns the last moment; hits of the same moment agree. It does not ask Redis while fences
 * are not OPEN, because Redis may hang. Interruptible; waits at most `timeout` for each round trip.
 */
extern int	many_get(int n, ManyItem *items, bool why);

/* Asks once more for each item that is no hit. moment: the last one so far. Returns the last one now. */
extern int	many_ask_why(int n, ManyItem *items, int moment);

/* Whether a strong read may ask Redis now; a standby may if Redis is reachable. */
extern bool many_may_ask(void);

/* Reads what is stored under one fence, current (then it is a hit) or not, and also while fences are not OPEN. */
extern void many_peek(ManyItem *item);

/*
 * Whether the tokens and versions in the answers are still current. Skips items of that moment (0: skips none). False
 * also if Redis could not be asked.
 */
extern bool many_check(int n, ManyItem *items, int moment);

/* Whether the item is a hit with a usable payload. Then this sets found, row and version. */
extern bool many_accept(ManyItem *item);

/*
 * Has the buckets opened of those items that were missed, and asks for permits again, so that what is read afterwards can be
 * put. Waits for some milliseconds at most, and only if there is a closed bucket. Interruptible.
 */
extern void many_open_buckets(int n, ManyItem *items);

/*
 * Locks the tables of these items (AccessShareLock, until the end of the transaction), and then takes a snapshot in which
 * to read PostgreSQL after many_get, and registers it; the caller unregisters it. Looks up domains again that have changed
 * while this waited for a lock. *may_put: the snapshot is newer than the permits, so rows that are read in it may be put.
 * Raises 42704 if a domain has ended meanwhile.
 */
extern Snapshot many_snapshot(int n, ManyItem *items, bool *may_put);

/* Reads the rows of all items in that snapshot. */
extern void many_read_rows(int n, ManyItem *items, Snapshot snapshot);

/*
 * Puts the rows of those items whose answer was a miss, and releases readers that wait for any other item. False:
 * Redis has refused some row.
 */
extern bool many_put_rows(int n, ManyItem *items);

/*
 * Reads all rows from PostgreSQL in one snapshot. fill: also puts those that the cache did not have, if the snapshot
 * is new enough.
 */
extern void many_read_database(int n, ManyItem *items, bool fill);

/* What is asked about some items of one place */
typedef struct Asked
{
	int			n;
	ManyItem  **items;
	void	   *arg;
	int			ncalls;
	redisReply **replies;		/* to each call; NULL: there are none */
} Asked;

/*
 * A question about items of one place, `most` at a time. make fills in the calls, in a memory context that lasts until they are
 * sent, and returns their number; 0: these items need none. take gets the replies.
 */
#define QUESTION_CALLS 2		/* maximum of one question */
typedef struct Question
{
	int			most;
	int			(*make) (const Asked *asked, Call *calls);
	void		(*take) (const Asked *asked);
} Question;

/*
 * Asks the question about all items, in as few round trips as possible. Returns false if some process does not answer; then it
 * asks nobody else. Interruptible; waits at most `timeout` for each round trip.
 */
extern bool many_ask(int n, ManyItem *items, const Question *question, void *arg);

/* Tells Redis that other readers need not wait for this one. */
extern void many_release(int n, ManyItem *items);

/* Whether this transaction has written in one of the domains. Then it must not put what it reads there. */
extern bool many_written(int n, ManyItem *items);

#endif
