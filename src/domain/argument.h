/*
 * domain/argument.h
 *	  Values of any type that callers pass, as parts of a key or as arguments of a derived value.
 */
#ifndef FENCE_ARGUMENT_H
#define FENCE_ARGUMENT_H

#include "fmgr.h"

/* One value as the caller passed it */
typedef struct Argument
{
	Oid			type;
	Datum		value;
	bool		isnull;
} Argument;

/* How a value is converted to the wanted type */
typedef enum ArgumentForm
{
	ARGUMENT_VALUE,				/* not at all: the Datum is one of the wanted type */
	ARGUMENT_TEXT,				/* the wanted type's input function reads its argument_text */
	ARGUMENT_UNFIT				/* it cannot be: the caller must write a cast */
} ArgumentForm;

/*
 * Collects the arguments from number n on (from 0), of VARIADIC text[] or VARIADIC "any", in *arguments, palloc'd.
 * Returns how many there are; -1 if the caller passed VARIADIC with a null array. Raises 22023 for an argument of
 * unknown type.
 */
extern int	argument_list(FunctionCallInfo fcinfo, int n, Argument **arguments);

/*
 * Returns how a value of this type is converted to `wanted`. InvalidOid means a text that no input function reads (a
 * domain without a table).
 */
extern ArgumentForm argument_form(Oid type, Oid wanted);

/* Returns the text of a value whose form is ARGUMENT_TEXT, palloc'd. It is the same in every session. */
extern char *argument_text(const Argument *argument);

#endif
