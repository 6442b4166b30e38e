/*
 * write/functions.h
 *	  What SQL-callable functions share: arguments, results, statements, explicit reservations.
 */
#ifndef FENCE_FUNCTIONS_H
#define FENCE_FUNCTIONS_H

#include "fmgr.h"

#include "domain/domain.h"
#include "send/ledger.h"

/* The domain that argument n names. Raises 22004 for a null, 42704 if there is none, 55000 if the library is not loaded. */
extern Domain *domain_argument(FunctionCallInfo fcinfo, int n);

/*
 * The canonical key of the values from argument n on, VARIADIC text[] or "any". Raises 22004 for a null array, and what
 * argument_list and key_of_arguments raise.
 */
extern char *key_argument(FunctionCallInfo fcinfo, int n, const Domain *domain);

/* The result of a function that returns one row. */
extern Datum function_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls);

/*
 * Runs one statement in a snapshot that is taken now, whatever the isolation level, with SPI connected. Returns how many rows there
 * were. Raises XX000 unless the result is the expected one of SPI's.
 */
extern uint64 execute_now(const char *sql, int expected, int nargs, Oid *types, Datum *values);

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
 */
extern int64 explicit_write(const Domain *domain, const char *key, int64 observed);

#endif
