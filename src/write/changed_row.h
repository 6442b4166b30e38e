/*
 * write/changed_row.h
 *	  What a changed row of a fenced table means: the version it gets, what is reserved for it, its tombstone, the row for
 *	  write-through; and which changes are refused.
 *
 * Two callers tell of changed rows: the row triggers (trigger.c) and the executor's own steps (capture.c). Which of them it was makes no
 * difference here. A trigger prepares a row that is locked. The executor prepares it before it locks it, and again if another
 * transaction was faster. Both tell that it was stored only after that.
 */
#ifndef FENCE_CHANGED_ROW_H
#define FENCE_CHANGED_ROW_H

#include "executor/tuptable.h"

#include "domain/domain.h"
#include "send/ledger.h"

/* What the change means for one attachment; nothing if none of the first three is set. A row with a null in the key has no key there. */
typedef struct KeyChange
{
	bool		kept;			/* an UPDATE leaves the row under its key, and changes something that counts */
	bool		lost;			/* the old row's key has no row any more */
	bool		gained;			/* the new row's key has had none */
	Reservation *of_old;		/* of the key that is lost; NULL: see reservation_of */
	Reservation *of_new;		/* of the key that is kept or gained; likewise */
	int64		last;			/* what the new row's version must be above */
} KeyChange;

typedef struct RowChange
{
	const Domain *domains;		/* all attachments of the table, chained */
	TupleTableSlot *old;		/* NULL: INSERT */
	TupleTableSlot *new;		/* NULL: DELETE */

	/* left by changed_row_prepare for changed_row_stored */
	bool		prepared;		/* false: another call has prepared the row, or none */
	KeyChange	keys[MAX_ATTACHMENTS];	/* as many as there are attachments, in their order */
} RowChange;

/*
 * A row is about to be stored, or deleted: reserves its keys, in one message. Returns the version that the new row must get; of a
 * DELETE, that of its tombstones; NO_VERSION: the row keeps the one that it has, because nothing changes that counts. Only for tables
 * with a version column. A row that is not stored after all costs reservations that nothing applies. Raises 22003 (the version is
 * at its end), 54000 (a long key), 55000 (ledger_close).
 */
extern int64 changed_row_prepare(RowChange *change);

/*
 * The row was stored, or is deleted: it counts unless the savepoint is rolled back. Raises 27000 (another trigger set a version that
 * cannot be), 40001 (the key was deleted meanwhile), 55000; of a domain whose versions are aside what changed_row_prepare does, and 40P01.
 */
extern void changed_row_stored(RowChange *change);

/* Reserves the whole domain, which now counts as changed. */
extern void changed_row_reserve_domain(const Domain *domain);

#endif
