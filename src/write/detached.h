/*
 * write/detached.h
 *	  Detached reservations, for work that spans several transactions; see detached.c.
 */
#ifndef FENCE_DETACHED_H
#define FENCE_DETACHED_H

#include "redis/library.h"

/* The longest lease is a day. A reservation that nobody ends keeps readers from the cached value for at most that long. */
#define DETACHED_LEASE_MAX_MS	INT64CONST(86400000)

/* Wakes the patrol if the committing transaction has ended a reservation. Usable in COMMIT. */
extern void detached_after_commit(void);

/* Forgets what the top-level transaction has ended. Call it when that transaction is over. Usable in COMMIT and ABORT. */
extern void detached_at_transaction_end(void);

/*
 * Whether the reservation with that stamp stands, which means that its row exists. Call it in a transaction, after the
 * transaction that made the reservation has ended. SPI may be connected or not. Raises what SQL raises.
 */
extern bool detached_stands(const char *stamp);

/*
 * Deletes the rows of this database whose lease or attachment has ended. Skips rows that another transaction is deleting.
 * Call it in a transaction of its own, because nobody may settle a reservation before the deletion is committed.
 */
extern void detached_expire(void);

/*
 * Makes the detached reservations of this database known to a node that was granted slots and does not have them yet. Call
 * it in a transaction that began after the grant. On failure returns false, and call->error says why. Interruptible.
 */
extern bool detached_carry(LibraryCall *call, int node, uint32 epoch);

#endif
