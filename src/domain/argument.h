/*
 * domain/argument.h
 *	  Values that callers give, of whatever type: for the columns of a key, for the arguments of a derived value.
 */
#ifndef FENCE_ARGUMENT_H
#define FENCE_ARGUMENT_H

#include "fmgr.h"

/* One value as it was given */
typedef struct Argument
{
	Oid			type;
	Datum		value;
	bool		isnull;
} Argument;

/* How a value goes where one of another type is wanted */
typedef enum ArgumentForm
{
	ARGUMENT_VALUE,				/* as it is: the Datum is one of the wanted type */
	ARGUMENT_TEXT,				/* its argument_text goes through the wanted type's input function */
	ARGUMENT_UNFIT				/* not at all: the caller has to say, with a cast, what he means */
} ArgumentForm;

/*
 * The arguments from number n on, of VARIADIC text[] or VARIADIC "any"; *arguments is palloc'd. Returns how many, -1 if the array of a VARIADIC
 * call is null. Raises 22023 for one whose type nobody knows.
 */
extern int	argument_list(FunctionCallInfo fcinfo, int n, Argument **arguments);

/* For a value of the type where one of type `wanted` is; InvalidOid: where a text is that no type's input function reads. */
extern ArgumentForm argument_form(Oid type, Oid wanted);

/* The text of a value that is ARGUMENT_TEXT, palloc'd: the same in every session. */
extern char *argument_text(const Argument *argument);

#endif
