/*
 * domain/tombstone.h
 *	  Durable versions of keys that have no row: fence.tombstone, and the floor of each domain: fence.floor.
 *
 * A tombstone is the version of a deleted key. A floor is a version that no new row of the domain may start at or
 * below (live rows may lie below it: a floor is nobody's version). Both are read and written here, by direct table
 * access: whoever fires the triggers needs no privilege on these tables.
 */
#ifndef FENCE_TOMBSTONE_H
#define FENCE_TOMBSTONE_H

#include "nodes/pg_list.h"
#include "utils/snapshot.h"

#define NO_VERSION (-1)			/* int64: there is none */

typedef struct TombstoneView
{
	int64		tombstone;		/* NO_VERSION if there is none */
	int64		floor;			/* NO_VERSION if there is none */
} TombstoneView;

/*
 * Tombstone of key and floor of the domain in one newly taken snapshot, whatever the isolation level, and what this
 * transaction has set so far.
 */
extern TombstoneView tombstone_look_up(int64 domain_id, const char *key);

/*
 * Records that key was deleted at version. The caller holds the lock of the deleted row, so nobody else writes this
 * tombstone; or, where begin_write gives versions, the key's explicit lock. A tombstone never goes down. It is in the table when
 * the statement ends, or before; tombstone_look_up knows it at once. Undone by the rollback of the current savepoint.
 */
extern void tombstone_set(int64 domain_id, const char *key, int64 version);

/*
 * Writes what the current subtransaction, or the transaction outside of savepoints, has set and not written. To be called at the
 * end of each statement, before a subtransaction ends (PRE_COMMIT_SUB), at PRE_COMMIT and PRE_PREPARE.
 */
extern void tombstone_write_all(void);

/* Savepoints and the end of the top-level transaction: forgets what was set; neither raises nor allocates. */
extern void tombstone_savepoint_rollback(int level);
extern void tombstone_at_transaction_end(void);

/*
 * The next version of a group, in its row, which is then locked until the transaction ends: so writers of a group are
 * ordered. Once per transaction: *advanced is false if this transaction did it before, and then the version is that
 * one. Raises 40P01 in a deadlock, as usual.
 */
extern int64 tombstone_advance(int64 domain_id, const char *key, bool *advanced);

/* The version of a group in a snapshot; 0 if it never changed. */
extern int64 tombstone_group_version(int64 domain_id, const char *key, Snapshot snapshot);

/* Keys of all tombstones of the domain: a List of palloc'd strings. */
extern List *tombstone_keys(int64 domain_id);

/* Forgets tombstones and floor of a domain that has ended, or whose versions begin anew. */
extern void tombstone_forget_domain(int64 domain_id);

#endif
