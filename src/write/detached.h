/*
 * write/detached.h
 *	  Detached reservations: of work that spans several transactions. See detached.c for what they promise.
 */
#ifndef FENCE_DETACHED_H
#define FENCE_DETACHED_H

#include "redis/library.h"

/* The longest lease, a day: what nobody ends keeps readers off for that long at most. */
#define DETACHED_LEASE_MAX_MS	INT64CONST(86400000)

/* The transaction commits: if it has ended a reservation, the patrol is told. Usable in COMMIT. */
extern void detached_after_commit(void);

/* The top-level transaction is over, in whatever way: forgets. Usable in COMMIT and ABORT. */
extern void detached_at_transaction_end(void);

/*
 * Whether the reservation of that stamp stands: its row is there. Asked after the fate of the transaction that made it
 * is known not to be in progress. In a transaction, with SPI connected or not. Raises what SQL raises.
 */
extern bool detached_stands(const char *stamp);

/*
 * Deletes the rows of this database whose lease is over, or whose attachment is. One that a transaction is just ending is
 * left to it. In a transaction of its own: nobody may settle what is not known to be deleted.
 */
extern void detached_expire(void);

/*
 * Slots were granted to a node that knows of none: reserves those whose rows are there, of this database, in all of its
 * slots. In a transaction that is newer than the grant. False: call->error tells. Interruptible.
 */
extern bool detached_carry(LibraryCall *call, int node, uint32 epoch);

#endif
