/*
 * domain/tombstone.h
 *	  Durable versions of keys that have no row (fence.tombstone), and the floor of each domain (fence.floor).
 *
 * A tombstone is the version of a deleted key. The version of a group, and of a row without a version column, is in the
 * same table. A floor is a version that no new row of the domain may start at or below; existing rows may have lower
 * versions. This file reads and writes both tables directly, so a user who fires the triggers needs no privilege on
 * them.
 */
#ifndef FENCE_TOMBSTONE_H
#define FENCE_TOMBSTONE_H

#include "nodes/pg_list.h"
#include "utils/snapshot.h"

#define NO_VERSION (-1)			/* int64: there is no version */

typedef struct TombstoneView
{
	int64		tombstone;		/* NO_VERSION if there is none */
	int64		floor;			/* NO_VERSION if there is none */
} TombstoneView;

/*
 * Returns the tombstone of the key and the floor of the domain, in one new snapshot, whatever the isolation level.
 * Includes what this transaction has set so far.
 */
extern TombstoneView tombstone_look_up(int64 domain_id, const char *key);

/*
 * Records that the key was deleted at this version. The caller holds the lock of the deleted row or, where begin_write
 * gives versions, the key's explicit lock. So nobody else writes this tombstone. A tombstone never goes down. The row
 * of fence.tombstone is written by the end of the statement, and tombstone_look_up knows it at once. A rollback of the
 * current savepoint undoes it.
 */
extern void tombstone_set(int64 domain_id, const char *key, int64 version);

/*
 * Writes to fence.tombstone what the current subtransaction (or the transaction, outside of savepoints) has set and not
 * written yet. Call it at the end of each statement, before a subtransaction ends (PRE_COMMIT_SUB), at PRE_COMMIT and
 * at PRE_PREPARE.
 */
extern void tombstone_write_all(void);

/*
 * Forget what was set and not written: since a savepoint of this nesting level, and at the end of the top-level
 * transaction. Neither raise nor allocate.
 */
extern void tombstone_savepoint_rollback(int level);
extern void tombstone_at_transaction_end(void);

/*
 * Increments the version of a group in its row, and returns it. The row stays locked until the transaction ends, which
 * puts the writers of a group in order. Only the first call in a transaction increments. Later calls return the same
 * version and set *advanced to false. Raises 40P01 in a deadlock, as any row lock does.
 */
extern int64 tombstone_advance(int64 domain_id, const char *key, bool *advanced);

/* Returns the version of a group in a snapshot; 0 if the group never changed. */
extern int64 tombstone_group_version(int64 domain_id, const char *key, Snapshot snapshot);

/* Returns the keys of all tombstones of the domain, as a List of palloc'd strings. */
extern List *tombstone_keys(int64 domain_id);

/* Deletes the tombstones and the floor of a domain that has ended, or whose versions begin anew. */
extern void tombstone_forget_domain(int64 domain_id);

#endif
