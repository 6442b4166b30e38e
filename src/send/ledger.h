/*
 * send/ledger.h
 *	  What this transaction has reserved in Redis and what of it it has really written, by savepoint level.
 *
 * Owns: the table of reservations of the current top-level transaction (its memory: TopTransactionContext).
 * Knows nothing of connections: coordinator.c sends what is recorded here. Never raises except for lack of memory.
 *
 * A reservation outlives savepoints: what was sent to Redis stays sent. What a savepoint's rollback takes back is
 * "applied": that a statement stored this version of this key, and the row that it stored. What is applied has to be
 * acknowledged before the commit; the end of the transaction ends all that was sent, applied or not.
 */
#ifndef FENCE_LEDGER_H
#define FENCE_LEDGER_H

#include "base/metrics.h"
#include "base/shared.h"
#include "domain/domain.h"
#include "domain/tombstone.h"

typedef enum ReservationKind
{
	RESERVE_ROW,
	RESERVE_DOMAIN				/* a whole domain: detach, DROP */
} ReservationKind;

/* The version of a RESERVE_DOMAIN that only says "many rows". A higher one is the attachment that ends. */
#define WHOLE_DOMAIN 1

typedef struct Reservation
{
	ReservationKind kind;
	const char *name;			/* fence name, or the domain's Redis name; the hash key */
	FailurePolicy policy;
	int64		domain_id;
	MetricSlot	metrics;		/* of the domain */
	const char *stamp;			/* of a detached one, which outlives the transaction; NULL: the transaction's */
	bool		manual;			/* of a domain that begin_write maintains */
	bool		used;			/* of such a domain: a row was stored under it, perhaps in a savepoint that was rolled back */
	bool		notify;
	bool		events;			/* Redis is to be told the version, for those who listen */
	bool		early;			/* it is asked for at once, not only before the commit */
	int64		ttl_ms;

	int64		wanted;			/* highest version that a statement asked for; NO_VERSION if none */
	int64		leaving;		/* of a deleted row, the tombstone's version, from BEFORE to AFTER ROW; else NO_VERSION */
	bool		sent;			/* it was asked for: so it has to be ended */
	FenceWord	sent_word;		/* under which it was asked for last; its epoch number is the one to end in */
	int			node;			/* whom, in that epoch's table */
	uint64		message;			/* with which it was sent (send_queue.h, wire.h); 0: it has to be sent again */
	bool		by_courier;		/* it was sent in a message of the send queue, not on a wire */
	int64		asked;			/* of a whole domain: for which version */
	FenceWord	acked_word;		/* under which it was granted last; 0: it was not */
	int64		number;			/* that Redis gave it then; 0: none that a commit may name */

	int64		applied;		/* version stored by statements not rolled back so far, NO_VERSION if none */
	char	   *payload;		/* the row of that version, for Redis; NULL: Redis is not told */
	SubTransactionId applied_in;	/* subtransaction that last changed applied: saved once in each */

	struct Reservation *next;	/* in order of creation */
} Reservation;

/* Notes that this transaction has written in the domain, though it reserves nothing: a new row, which nobody has cached. */
extern void ledger_note_written(const Domain *domain);

/* The reservation of that fence name, made if there is none. name is copied. */
extern Reservation *ledger_reservation(ReservationKind kind, const char *name, const Domain *domain);

/*
 * A detached reservation that this transaction makes (detached.c), under that stamp: applied, it is left standing by COMMIT.
 * The key may have the transaction's own besides, and ledger_find finds only that. Both strings are copied.
 */
extern Reservation *ledger_detached(const char *name, const char *stamp, const Domain *domain);

/* The reservation of that fence name or NULL. */
extern Reservation *ledger_find(const char *name);

/*
 * A statement has stored version of the key: it counts unless the current savepoint is rolled back. Never lowers.
 * payload: see Reservation; copied, unless the payloads of this transaction fill LEDGER_PAYLOADS.
 */
extern void ledger_apply(Reservation *reservation, int64 version, const char *payload);

/* Bytes of payloads that are kept in one transaction, those of open savepoints included: as much as the send queue holds */
#define LEDGER_PAYLOADS (4 * 1024 * 1024)

/* The explicit withdrawal of begin_write; undone by a rollback like ledger_apply. */
extern void ledger_withdraw(Reservation *reservation);

/*
 * How many rows of the domain have a reservation of their own in this transaction, and whether the domain was reserved
 * as a whole (perhaps in a savepoint that was rolled back).
 */
extern int	ledger_rows(int64 domain_id);
extern bool ledger_is_whole(int64 domain_id);

/* Whether the domain is reserved as a whole by a statement that was not rolled back. */
extern bool ledger_whole_applied(int64 domain_id);

/*
 * A statement has changed, or is about to change, any number of rows of the domain: it is reserved as a whole. Counts
 * unless the current savepoint is rolled back. Returns the reservation.
 */
extern Reservation *ledger_apply_domain(const Domain *domain);

/*
 * The attachment id of the domain ends with this transaction (detach, DROP of the table or of a trigger): reserves the
 * whole domain.
 */
extern void ledger_end_domain(const Domain *domain);

/* attach, CREATE EXTENSION: at COMMIT the keeper is told that the catalogue changed. Rolled back with its savepoint at
 * the cost of one needless look. */
extern void ledger_catalog_changed(void);

/*
 * Whether this transaction has written in the domain, or may have changed a row that it reserves only AFTER ROW. Such
 * a transaction fills no cache, and reads rows instead (rule 6).
 */
extern bool ledger_has_written(const Domain *domain);

extern Reservation *ledger_first(void);
extern bool ledger_is_empty(void);
extern bool ledger_catalog_has_changed(void);

/*
 * Our part of PRE_COMMIT or PRE_PREPARE is done: what is reserved from here on would be neither awaited nor committed. Until the
 * transaction has ended ledger_require_open raises 55000, as does whoever reserves or applies.
 */
extern void ledger_close(void);
extern void ledger_require_open(void);

/* The end of the top-level transaction: forgets everything. The memory goes with TopTransactionContext. */
extern void ledger_forget(void);

/* Savepoints; called from the subtransaction callback. */
extern void ledger_savepoint_release(int level);
extern void ledger_savepoint_rollback(int level);

#endif
