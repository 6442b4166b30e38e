/*
 * read/audit.h
 *	  Compares a fence with its row, and repairs it.
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
	RELATION_AHEAD,				/* PostgreSQL has lost commits, or the table was restored */
	RELATION_PAYLOAD,			/* same version and columns as the row, but other content: a broken promise, too */
	RELATION_PENDING,			/* a transaction is writing the row */
	RELATION_MISSING,			/* no current fence, as after every write until a reader puts one */
	RELATION_COUNT
} FenceRelation;

/* What Redis and PostgreSQL say of one key; strings are palloc'd */
typedef struct FenceStatus
{
	bool		asked;			/* Redis has answered */
	bool		armed;			/* Redis gives permits to readers, unless something is pending */
	char	   *permit;			/* empty: Redis does not know the domain */
	char	   *token;			/* the domain's token, with which the permit begins */
	char	   *header;			/* what the fence holds before its payload, current or not; NULL: there is no fence */
	int64		fence_version;	/* of a current fence; else NO_VERSION */
	char	   *stamp;			/* of the transaction that wrote a current fence; empty: a reader put it; NULL: no current fence */
	char	   *payload;		/* of a current fence; NULL: it has none, or there is no current fence */
	size_t		payload_len;
	int64		row_version;	/* of the row or its tombstone; NO_VERSION: there is neither */
	bool		is_row;			/* row_version is that of a row, not of a tombstone */
	int			pending;		/* reservations of the key and of its domain */
	List	   *reservations;	/* of ListedReservation, without names */
	FenceRelation relation;
} FenceStatus;

/*
 * Compares the key's fence with its row. If they differ it compares again, because a commit in between looks like a
 * difference. False: Redis could not be asked, and coordinator_problem tells why. Interruptible.
 */
extern bool audit_key(const Domain *domain, const char *key, FenceStatus *status);

/*
 * Removes the key's fence if it differs from the row with nothing pending. Returns repaired, unchanged, pending,
 * unarmed or unavailable.
 */
extern const char *audit_repair(const Domain *domain, const char *key);

/* Finds the last repair of that fence. False: it is not among the last MAX_REPAIRS repairs of the server. */
extern bool audit_last_repair(const char *fence, FenceRepair *repair);

/*
 * Compares a random fraction of the table's rows, at most `most` rows. If `repair`, repairs fences that differ. Adds
 * to counts.
 */
extern void audit_sample(const Domain *domain, double fraction, int most, bool repair, int64 counts[RELATION_COUNT]);

extern const char *audit_relation_name(FenceRelation relation);

#endif
