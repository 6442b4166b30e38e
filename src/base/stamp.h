/*
 * base/stamp.h
 *	  The stamp of a writing transaction, and what became of it.
 *
 * A stamp is "<top-level xid8>.<nonce>": the nonce is drawn at each server start, because after a crash an xid that
 * never reached the disk is issued again.
 */
#ifndef FENCE_STAMP_H
#define FENCE_STAMP_H

/* The current transaction's stamp (static buffer). Assigns an xid on first use; afterwards it allocates nothing. */
extern const char *fence_stamp(void);

/* The stamp of a running or prepared transaction; palloc'd. */
extern char *fence_stamp_of(TransactionId xid);

/*
 * Whether it is the stamp of a detached reservation (detached.c): that of the transaction which made it, a dot, and the
 * reservation's id, which is stored in *id (may be NULL). fence_stamp_fate tells of the transaction.
 */
extern bool fence_stamp_is_detached(const char *stamp, int64 *id);

typedef enum StampFate
{
	FATE_IN_PROGRESS,			/* or prepared */
	FATE_COMMITTED,
	FATE_ABORTED,				/* or of an earlier server start and not committed */
	FATE_UNKNOWN				/* the commit log does not go back that far: certainly not in progress */
} StampFate;

/*
 * The fate of the stamp's transaction: first whether it is in progress or prepared, then the commit log (trace [8]: the
 * log says committed before the transaction is visible). pid, if not NULL: of the backend in progress, else 0.
 * A malformed stamp is FATE_ABORTED: no transaction has it.
 */
extern StampFate fence_stamp_fate(const char *stamp, int *pid);

/*
 * The same for who must not take another transaction's fate for this one's: an xid that was issued in this server start, under
 * the nonce of another, was lost in a crash before it reached the disk, and its transaction with it. (Of reservations
 * that is not asked: the row's version decides.) Of two starts ago it cannot be told.
 */
extern StampFate fence_stamp_own_fate(const char *stamp);

/*
 * Notes which xids are of this server start, before the first client can be given one: an earlier start may have issued the
 * same, and lost them in a crash. stamp_install is called while shared_preload_libraries is processed; stamp_note_start by
 * workers that come before clients do, and again and again: while a standby replays it does nothing, and after a promotion
 * sessions are there already. (What gets an xid before anybody looks, at most a quarter of a second, is not told apart.)
 */
extern void stamp_install(void);
extern void stamp_note_start(void);

extern const char *fence_fate_name(StampFate fate);

#endif
