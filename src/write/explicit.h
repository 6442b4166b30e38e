/*
 * write/explicit.h
 *	  Explicit reservations: of keys that a caller names, not of rows that change.
 */
#ifndef FENCE_EXPLICIT_H
#define FENCE_EXPLICIT_H

#include "send/ledger.h"

/*
 * Orders those who write, or reserve, a key explicitly: no row's lock does. Until the end of the transaction. Interruptible.
 */
extern void explicit_lock_key(const char *fence);

/*
 * The highest version of the key that PostgreSQL knows of, NO_VERSION if none. In a domain with scope 'manual' that is the one that
 * begin_write gave last, besides the row's.
 */
extern int64 explicit_known(const Domain *domain, const char *key);

/*
 * The higher of what the caller says that he has read, and what is known. Raises 22023 if he says a negative version, 22003 if he says
 * one that no application may bring (fence_version_fits).
 */
extern int64 explicit_observed(const Domain *domain, int64 observed, int64 known);

/* Asks Redis for an applied reservation at once, if fences are OPEN; else, or without success, it is asked before the commit. */
extern void explicit_reserve(Reservation *r);

/*
 * begin_write: reserves the key for this transaction and returns the version that it has to store, above observed. Waits for
 * others who do the same, and for Redis; raises what locks and explicit_observed raise, and 22003 if there is no higher version.
 * strict: raises 40001 if others have written a version above observed.
 */
extern int64 explicit_write(const Domain *domain, const char *key, int64 observed, bool strict);

#endif
