/*
 * base/stamp.h
 *	  The stamp of a writing transaction, and the transaction's fate.
 *
 * A stamp is "<top-level xid8>.<nonce>". The nonce is drawn at each server start, because after a crash PostgreSQL may
 * issue an xid again that never reached the disk.
 */
#ifndef FENCE_STAMP_H
#define FENCE_STAMP_H

#include "access/transam.h"

/* Returns the stamp of the current transaction (static buffer). The first call assigns an xid; later calls allocate nothing. */
extern const char *fence_stamp(void);

/* Returns the stamp of a running or prepared transaction; palloc'd. */
extern char *fence_stamp_of(TransactionId xid);

/* Returns the full transaction id of a transaction that is not older than 2^31 others. */
extern FullTransactionId fence_full_xid(TransactionId xid);

/*
 * Returns whether this is the stamp of a detached reservation (detached.c). Such a stamp is that of the transaction
 * that made the reservation, a dot, and the id of the reservation. Stores the id in *id, unless id is NULL. For such a
 * stamp fence_stamp_fate tells the fate of that transaction.
 */
extern bool fence_stamp_is_detached(const char *stamp, int64 *id);

typedef enum StampFate
{
	FATE_IN_PROGRESS,			/* or prepared */
	FATE_COMMITTED,
	FATE_ABORTED,				/* or of an earlier server start and not committed */
	FATE_UNKNOWN				/* the commit log does not go back that far; certainly not in progress */
} StampFate;

/*
 * Returns the fate of the stamp's transaction. It asks whether the transaction is running or prepared before it asks
 * the commit log (trace [8]: the log says "committed" before the transaction is visible). Unless pid is NULL, *pid is
 * the process id of the running backend, or 0. A malformed stamp belongs to no transaction, so it is FATE_ABORTED.
 */
extern StampFate fence_stamp_fate(const char *stamp, int *pid);

/*
 * The same, for a caller that must not confuse two transactions with the same xid. Suppose that an xid was issued in
 * this server start, but the stamp has the nonce of another start. Then a crash lost the stamp's transaction before its
 * xid reached the disk. (For reservations we need not ask that, because the version of the row decides.) Two starts
 * back we cannot tell any more.
 */
extern StampFate fence_stamp_own_fate(const char *stamp);

/*
 * Note the first xid of this server start. An earlier start may have issued the same xids and lost them in a crash, so
 * this must happen before the first client gets an xid.
 *
 * stamp_install must be called while shared_preload_libraries is processed. Workers that run before clients can connect
 * call stamp_note_start, again and again. It does nothing while a standby replays. After a promotion, sessions exist
 * already, so for at most a quarter of a second xids may be issued before a worker notes the first. Those we cannot
 * tell apart.
 */
extern void stamp_install(void);
extern void stamp_note_start(void);

extern const char *fence_fate_name(StampFate fate);

#endif
