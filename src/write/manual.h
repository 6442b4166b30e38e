/*
 * write/manual.h
 *	  The guard of tables whose domains have scope 'manual'.
 */
#ifndef FENCE_MANUAL_H
#define FENCE_MANUAL_H

#include "domain/domain.h"

/*
 * A row of a manual domain's table was stored (new), or is deleted (then new is NULL); old: what it was before, or NULL. Returns whether this
 * transaction has reserved its keys, and the stored version is the reserved one. Otherwise raises 55000, or returns false if
 * pgcache_fence.unreserved_writes says that the whole domain is to be reserved.
 */
extern bool manual_row_is_reserved(const Domain *domain, TupleTableSlot *old, TupleTableSlot *new);

#endif
