/*
 * send/ledger.h
 *	  What this transaction has reserved in Redis, and which of these rows it has really written, by savepoint level.
 *
 * Owns: the reservations of the current top-level transaction (in TopTransactionContext). Takes no locks. Knows no
 * connections: coordinator.c sends what is recorded here. Raises for lack of memory, and 55000 after ledger_close.
 *
 * A reservation outlives savepoints, because what was sent to Redis stays sent. A rollback to a savepoint undoes only
 * `applied`: that a statement stored this version of this key, and the stored row. The commit must wait until Redis has
 * granted all applied reservations. The end of the transaction ends all reservations that were sent, applied or not.
 */
#ifndef FENCE_LEDGER_H
#define FENCE_LEDGER_H

#include "base/buckets.h"
#include "base/metrics.h"
#include "base/shared.h"
#include "domain/domain.h"
#include "domain/tombstone.h"

typedef enum ReservationKind
{
	RESERVE_ROW,
	RESERVE_DOMAIN				/* a whole domain: many rows, TRUNCATE, detach, DROP */
} ReservationKind;

/* The version of a RESERVE_DOMAIN that only means "many rows". A higher one is the id of the attachment that ends. */
#define WHOLE_DOMAIN 1

typedef struct Reservation
{
	ReservationKind kind;
	const char *name;			/* name of the fence, or the domain's name in Redis; the hash key */
	FailurePolicy policy;
	int64		domain_id;
	MetricSlot	metrics;		/* slot of the domain */
	const char *stamp;			/* of a detached reservation, which outlives the transaction; NULL: this transaction's stamp */
	bool		manual;			/* begin_write makes the reservations of this domain */
	bool		used;			/* manual domains: a row was stored with this version, perhaps in a savepoint that was rolled back */
	bool		notify;
	bool		events;			/* Redis publishes the version to subscribers */
	bool		early;			/* send it at once, not only before the commit */
	int			bucket;			/* of a row; ALWAYS_RESERVED: it does not go by the bits (buckets.h) */
	bool		needed;			/* Redis must grant it before the commit, if it is applied; false: its bucket was closed at the last look */
	int64		ttl_ms;

	int64		wanted;			/* highest version that a statement requested; NO_VERSION: none */
	bool		lost;			/* a statement took the key's row away, perhaps in a savepoint that was rolled back */
	int64		leaving;		/* version of the tombstone, from BEFORE ROW to AFTER ROW of a DELETE; else NO_VERSION */
	bool		sent;			/* it was sent, so the end of the transaction must end it */
	FenceWord	sent_word;		/* word under which it was sent last; it must be ended in the epoch of this word */
	int			node;			/* index of the node that it was sent to, in that epoch's table */
	uint64		message;			/* number of its last message (send_queue.h, wire.h); 0: it must be sent again */
	bool		by_courier;		/* that message went through the send queue, not on a wire */
	int64		asked;			/* of a whole domain: version in the last message */
	FenceWord	acked_word;		/* word under which Redis last granted it; 0: never */
	int64		number;			/* number that Redis gave it then; 0: none that a commit may name */

	int64		applied;		/* version stored by statements that are not rolled back; NO_VERSION: none */
	char	   *payload;		/* the row of that version, for Redis; NULL: Redis does not get the row */
	SubTransactionId applied_in;	/* subtransaction that last changed `applied`; it saves the old value only once */

	struct Reservation *next;	/* in order of creation */
} Reservation;

/*
 * Notes that this transaction has written in the domain without reserving anything: it has inserted a row, which nobody
 * can have cached.
 */
extern void ledger_note_written(const Domain *domain);

/* Returns the reservation with this name in Redis; makes it if necessary. Copies name. */
extern Reservation *ledger_reservation(ReservationKind kind, const char *name, const Domain *domain);

/*
 * Makes a detached reservation (detached.c) under this stamp. If it is applied, COMMIT leaves it pending. The
 * transaction may also have a reservation of its own for the same key, and ledger_find finds only that one. Copies both
 * strings.
 */
extern Reservation *ledger_detached(const char *name, const char *stamp, const Domain *domain);

/* Returns the reservation with this name in Redis, or NULL. */
extern Reservation *ledger_find(const char *name);

/*
 * Notes that a statement has stored this version of the key. It counts unless the current savepoint is rolled back. A
 * lower version changes nothing. payload: see Reservation; copied, unless the transaction's payloads would exceed
 * LEDGER_PAYLOADS.
 */
extern void ledger_apply(Reservation *reservation, int64 version, const char *payload);

/* Maximum bytes of payloads in one transaction, including those of open savepoints: as much as the send queue holds. */
#define LEDGER_PAYLOADS (4 * 1024 * 1024)

/* Withdraws a reservation of begin_write explicitly. A rollback undoes it, as with ledger_apply. */
extern void ledger_withdraw(Reservation *reservation);

/*
 * Looks at the bits of what is applied and not needed yet. What may be cached by now is needed. Returns whether there
 * was any. With ledger_need_all, everything is needed, whatever the bits say.
 */
extern bool ledger_look_at_buckets(void);
extern void ledger_need_all(void);

/* Return whether something is applied, and whether something of it is needed, or not needed. */
extern bool ledger_any_applied(void);
extern bool ledger_any(bool needed);

/* Counts the rows that the commit has not reserved because their buckets were closed. Usable in COMMIT. */
extern void ledger_count_closed(void);

/*
 * Holds the bucket of a row instead of reserving it, where bulk_threshold is passed. Returns false if the row must be
 * reserved, because it may be cached. A transaction that holds buckets cannot be prepared without reserving the whole
 * domain, so ledger_need_all does that.
 */
extern bool ledger_hold(const Domain *domain, const char *name);

/*
 * Return how many rows of the domain this transaction has reserved one by one, and whether it has reserved the whole
 * domain (perhaps in a savepoint that was rolled back). Of the rows, ledger_rows_needed counts those that are needed.
 */
extern int	ledger_rows(int64 domain_id);
extern int	ledger_rows_needed(int64 domain_id);
extern bool ledger_is_whole(int64 domain_id);

/* Returns whether a statement that is not rolled back has reserved the whole domain. */
extern bool ledger_whole_applied(int64 domain_id);

/*
 * Reserves the whole domain, because a statement has changed or is about to change any number of its rows. Counts
 * unless the current savepoint is rolled back. Returns the reservation.
 */
extern Reservation *ledger_apply_domain(const Domain *domain);

/* Reserves the whole domain, because its attachment ends with this transaction (detach, or DROP of the table or a trigger). */
extern void ledger_end_domain(const Domain *domain);

/*
 * Makes COMMIT tell the keeper that the catalogue has changed (attach, CREATE EXTENSION). A rollback to a savepoint
 * does not undo it; then the keeper looks once in vain.
 */
extern void ledger_catalog_changed(void);

/*
 * Returns whether this transaction has written in the domain, or may have changed a row that it reserves only in AFTER
 * ROW. Such a transaction fills no cache, and reads rows instead (rule 6).
 */
extern bool ledger_has_written(const Domain *domain);

extern Reservation *ledger_first(void);
extern bool ledger_is_empty(void);
extern bool ledger_catalog_has_changed(void);

/*
 * ledger_close is called when our part of PRE_COMMIT or PRE_PREPARE is done. A reservation made later would be neither
 * awaited nor committed. So until the transaction has ended, ledger_require_open raises 55000, and so do the functions
 * that reserve or apply.
 */
extern void ledger_close(void);
extern void ledger_require_open(void);

/* Forgets everything at the end of the top-level transaction. TopTransactionContext frees the memory. */
extern void ledger_forget(void);

/* The end of a savepoint; called from the subtransaction callback. */
extern void ledger_savepoint_release(int level);
extern void ledger_savepoint_rollback(int level);

#endif
