/*
 * functions.h
 *	  What SQL-callable functions share: arguments, explicit reservations.
 */
#ifndef FENCE_FUNCTIONS_H
#define FENCE_FUNCTIONS_H

#include "fmgr.h"

#include "domain.h"

/* The domain that argument n names. Raises 22004 for a null, 42704 if there is none, 55000 if the library is not loaded. */
extern Domain *domain_argument(FunctionCallInfo fcinfo, int n);

/* The canonical key of the VARIADIC text[] argument n. Raises 22004 for a null, and what key_of_texts raises. */
extern char *key_argument(FunctionCallInfo fcinfo, int n, const Domain *domain);

/*
 * Orders those who write, or reserve, a key explicitly: no row's lock does. Until the end of the transaction. Interruptible.
 */
extern void explicit_lock_key(const char *fence);

/*
 * begin_write: reserves the key for this transaction and returns the version that it has to store, above observed. Waits for
 * others who do the same, and for Redis; raises what locks raise, and 22003 if there is no higher version.
 */
extern int64 explicit_write(const Domain *domain, const char *key, int64 observed);

#endif
