/*
 * read/audit.h
 *	  Comparing a fence with its row, and repairing it.
 */
#ifndef FENCE_AUDIT_H
#define FENCE_AUDIT_H

#include "datatype/timestamp.h"
#include "domain/domain.h"
#include "redis/library.h"

typedef enum FenceRelation
{
	RELATION_EQUAL,
	RELATION_BEHIND,			/* a broken promise if nothing is pending and the epoch did not change */
	RELATION_AHEAD,				/* lost commits, a restored table */
	RELATION_PAYLOAD,			/* of the row's version, with the row's columns, and another content: a broken promise, too */
	RELATION_PENDING,			/* a write is on its way */
	RELATION_MISSING,			/* no current fence: as after every write, until a reader puts it */
	RELATION_COUNT
} FenceRelation;

/* What Redis and PostgreSQL say of one key; strings are palloc'd */
typedef struct FenceStatus
{
	bool		asked;			/* Redis has answered */
	bool		armed;			/* readers are answered, unless something is pending */
	char	   *permit;			/* empty: Redis does not know the domain */
	char	   *token;			/* its beginning */
	char	   *recent;			/* stamp of who committed what is newest; empty: not known, or something is pending */
	char	   *header;			/* what the fence holds before the payload, current or not; NULL: there is no fence */
	int64		fence_version;	/* of a current fence; else NO_VERSION */
	char	   *stamp;			/* of who committed it; empty: a reader put it; NULL: no current fence */
	char	   *payload;		/* of a current fence; NULL: none */
	size_t		payload_len;
	int64		row_version;	/* of the row or its tombstone; NO_VERSION: neither */
	bool		is_row;			/* of the row */
	int			pending;		/* reservations of the key and of its domain */
	List	   *reservations;	/* of ListedReservation, without names */
	FenceRelation relation;
} FenceStatus;

/*
 * The fence as Redis holds it: fills all but row_version and relation. False: Redis could not be asked
 * (coordinator_problem). Interruptible.
 */
extern bool audit_ask(const char *fence, FenceStatus *status);

/*
 * Compares the key's fence with its row; if they differ, again, because a commit in between looks like a difference.
 * False: Redis could not be asked (coordinator_problem). Interruptible.
 */
extern bool audit_key(const Domain *domain, const char *key, FenceStatus *status);

/*
 * Removes the key's fence if it differs from the row with nothing pending. Returns repaired, unchanged, pending, unarmed or
 * unavailable.
 */
extern const char *audit_repair(const Domain *domain, const char *key);

/* The last repair of that fence, if it is among the last MAX_REPAIRS of the server. */
extern bool audit_last_repair(const char *fence, FenceRepair *repair);

/* Compares up to `most` rows, a fraction of the table; repairs what differs if asked to; adds to counts. */
extern void audit_sample(const Domain *domain, double fraction, int most, bool repair, int64 counts[RELATION_COUNT]);

extern const char *audit_relation_name(FenceRelation relation);

#endif
