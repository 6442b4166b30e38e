/*
 * write/explicit.h
 *	  Explicit reservations: the caller names the key, instead of changing a row.
 */
#ifndef FENCE_EXPLICIT_H
#define FENCE_EXPLICIT_H

#include "send/ledger.h"

/*
 * Makes transactions that write or reserve the same key explicitly wait for each other, because no row lock does. Keeps
 * the lock until the end of the transaction. Interruptible.
 */
extern void explicit_lock_key(const char *fence);

/*
 * The highest version of the key that PostgreSQL knows; NO_VERSION if it knows none. In a domain with scope 'manual' this
 * is the higher of the row's version and the one that begin_write returned last.
 */
extern int64 explicit_known(const Domain *domain, const char *key);

/*
 * The higher of `observed`, which the caller says that it has read, and `known`. Raises 22023 if `observed` is negative,
 * and 22003 if it is higher than an application may bring (fence_version_fits).
 */
extern int64 explicit_observed(const Domain *domain, int64 observed, int64 known);

/* Requests an applied reservation from Redis at once, if fences are OPEN. If that fails, it is requested before the commit. */
extern void explicit_reserve(Reservation *r);

/*
 * Does what begin_write does: reserves the key for this transaction, and returns the version that the caller must store,
 * which is above observed. Waits for other transactions that reserve the key, and for Redis. Raises what locks and
 * explicit_observed raise, and 22003 if there is no higher version. With `strict`, also raises 40001 if others have
 * written a version above observed.
 */
extern int64 explicit_write(const Domain *domain, const char *key, int64 observed, bool strict);

#endif
