/*
 * audit.h
 *	  Comparing a fence with its row, and repairing it.
 */
#ifndef FENCE_AUDIT_H
#define FENCE_AUDIT_H

#include "datatype/timestamp.h"
#include "domain.h"
#include "redis/library.h"

typedef enum FenceRelation
{
	RELATION_EQUAL,
	RELATION_FENCE_BEHIND,		/* a broken promise if nothing is pending and the epoch did not change */
	RELATION_FENCE_AHEAD,		/* lost commits, a restored table */
	RELATION_PENDING_AHEAD,		/* a write is on its way */
	RELATION_MISSING,			/* no fence, or none with a version that is trusted */
	RELATION_COUNT
} FenceRelation;

/* What Redis and PostgreSQL say of one key */
typedef struct FenceStatus
{
	bool		asked;			/* Redis has answered */
	bool		armed;
	bool		ticket;			/* the fence has no version, but a ticket */
	char		token[64];
	int64		fence_version;	/* NO_VERSION: none */
	char		stamp[48];		/* of the transaction that committed it; empty: a reader or the audit gave it */
	int64		row_version;	/* of the row or its tombstone; NO_VERSION: neither */
	bool		is_row;			/* of the row */
	int			pending;		/* reservations of the key and of its domain */
	int64		highest_pending;	/* NO_VERSION: none of the key */
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
 * Repairs the key's fence if nothing is pending: raises a version that is behind, removes one that is ahead; never
 * lowers one. Returns repaired, unchanged, pending, unarmed or unavailable.
 */
extern const char *audit_repair(const Domain *domain, const char *key);

/* The last repair of that fence, if it is among the last MAX_REPAIRS of the server. */
extern bool audit_last_repair(const char *fence, FenceRepair *repair);

/* Compares up to `most` rows, a fraction of the table; repairs what is ahead or behind if asked to; adds to counts. */
extern void audit_sample(const Domain *domain, double fraction, int most, bool repair, int64 counts[RELATION_COUNT]);

extern const char *audit_relation_name(FenceRelation relation);

#endif
