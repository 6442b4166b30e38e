/*
 * functions.h
 *	  Arguments of SQL-callable functions.
 */
#ifndef FENCE_FUNCTIONS_H
#define FENCE_FUNCTIONS_H

#include "fmgr.h"

#include "domain.h"

/* The domain that argument n names. Raises 22004 for a null, 42704 if there is none, 55000 if the library is not loaded. */
extern Domain *domain_argument(FunctionCallInfo fcinfo, int n);

/* The canonical key of the VARIADIC text[] argument n. Raises 22004 for a null, and what key_of_texts raises. */
extern char *key_argument(FunctionCallInfo fcinfo, int n, const Domain *domain);

#endif
