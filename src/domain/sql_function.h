/*
 * domain/sql_function.h
 *	  What SQL-callable functions share: arguments, results, statements.
 */
#ifndef FENCE_SQL_FUNCTION_H
#define FENCE_SQL_FUNCTION_H

#include "fmgr.h"

#include "domain/domain.h"

/*
 * Returns the domain that argument n (text) names. Raises 22004 if it is null, 42704 if there is no such domain, 55000
 * if the library was not preloaded.
 */
extern Domain *domain_argument(FunctionCallInfo fcinfo, int n);

/*
 * Returns the canonical key of the values from argument n on, VARIADIC text[] or "any"; palloc'd. Raises 22004 for a
 * null array, and what argument_list and key_of_arguments raise.
 */
extern char *key_argument(FunctionCallInfo fcinfo, int n, const Domain *domain);

/* Returns the result of a function whose result type is a row type. */
extern Datum function_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls);

/*
 * Runs one statement in a snapshot taken now, whatever the isolation level. The caller has connected to SPI. Returns
 * the number of rows. Raises XX000 unless SPI returns `expected`.
 */
extern uint64 execute_now(const char *sql, int expected, int nargs, Oid *types, Datum *values);

/* Returns a time to live in milliseconds. Raises 22023 if it is below 0 or above 10 years. */
extern int64 ttl_ms_of(const Interval *ttl);

/* The same for values that readers are served, which always have one: 0 is refused too. */
extern int64 value_ttl_ms_of(const Interval *ttl);

#endif
