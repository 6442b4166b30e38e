/*
 * write/manual.h
 *	  The guard of tables whose domains have scope 'manual'.
 */
#ifndef FENCE_MANUAL_H
#define FENCE_MANUAL_H

#include "domain/domain.h"

/*
 * Call this when a row of a manual domain's table was stored or deleted. `old` is NULL for an INSERT, `new` for a DELETE.
 * Returns true if this transaction has reserved the row's keys, and the stored version is the reserved one. Otherwise it
 * raises 55000, or returns false if pgcache_fence.unreserved_writes says that the whole domain shall be reserved.
 */
extern bool manual_row_is_reserved(const Domain *domain, TupleTableSlot *old, TupleTableSlot *new);

#endif
