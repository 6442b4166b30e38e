/*
 * domain/sql_function.h
 *	  What SQL-callable functions share: arguments, results, statements.
 */
#ifndef FENCE_SQL_FUNCTION_H
#define FENCE_SQL_FUNCTION_H

#include "fmgr.h"

#include "domain/domain.h"

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

/* A time to live in milliseconds; raises 22023 if it is below 0 or above 10 years. */
extern int64 ttl_ms_of(const Interval *ttl);

#endif
