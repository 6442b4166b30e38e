/*
 * domain/argument.c
 *	  Values of any type that callers pass; see argument.h.
 *
 * Owns: which type may stand for which. Each function that takes a key exists twice, with VARIADIC text[] and with
 * VARIADIC "any". PostgreSQL chooses the first for literals and for parameters without a type, as many drivers send
 * them, and the second for values of all other types. Both end here.
 *
 * A caller who names a row must get the fence that the row's triggers write, or an error. Under another name he would
 * find nothing, or would store something that no write makes invalid. So a text means what a literal would mean, and a
 * value of the wanted type means itself. A value of another type is accepted only if its text is the same in every
 * session, and if no digit is lost without an error. No cast meets these conditions. Casts to text depend on settings
 * and choose their own words (true for t), casts from numeric to integer round, and the cast from timestamptz to date
 * drops the time.
 *
 * Never runs a cast, or anything else that a user has made, because it may run with the rights of the owner of
 * fence.reserve. Takes no locks.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "parser/parse_coerce.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "domain/argument.h"

int
argument_list(FunctionCallInfo fcinfo, int n, Argument **arguments)
{
	Datum	   *values;
	Oid		   *types;
	bool	   *nulls;
	int			count = extract_variadic_args(fcinfo, n, true, &values, &types, &nulls);

	/* if the caller passes no values, the parameter has its default, an empty array without VARIADIC */
	if (count == 1 && types[0] == TEXTARRAYOID && !nulls[0] && ArrayGetNItems(ARR_NDIM(DatumGetArrayTypeP(values[0])),
																			 ARR_DIMS(DatumGetArrayTypeP(values[0]))) == 0)
		count = 0;
	*arguments = palloc(sizeof(Argument) * Max(count, 1));
	for (int i = 0; i < count; i++)
		(*arguments)[i] = (Argument) {.type = types[i], .value = values[i], .isnull = nulls[i]};
	return count;
}

/*
 * Returns whether the type's input function reads digits as that number, or raises. That of oid accepts -1, and that of
 * money a currency.
 */
static bool
is_number(Oid type)
{
	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case FLOAT4OID:
		case FLOAT8OID:
			return true;
		default:
			return false;
	}
}

/* Returns whether the type is a string type. "char" is none. */
static bool
is_text(Oid type)
{
	return TypeCategory(type) == TYPCATEGORY_STRING;
}

ArgumentForm
argument_form(Oid type, Oid wanted)
{
	bool		text = !OidIsValid(wanted) || is_text(wanted);

	type = getBaseType(type);
	if (is_text(type))
		return ARGUMENT_TEXT;
	if (OidIsValid(wanted) && IsBinaryCoercible(type, wanted))
		return ARGUMENT_VALUE;
	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case OIDOID:
			return text || is_number(wanted) ? ARGUMENT_TEXT : ARGUMENT_UNFIT;
		case NUMERICOID:		/* equal numerics have several texts: 1.0 and 1.00 */
			return is_number(wanted) ? ARGUMENT_TEXT : ARGUMENT_UNFIT;
		case UUIDOID:
			return text ? ARGUMENT_TEXT : ARGUMENT_UNFIT;
		default:
			return text && type_is_enum(type) ? ARGUMENT_TEXT : ARGUMENT_UNFIT;
	}
}

char *
argument_text(const Argument *argument)
{
	Oid			type = getBaseType(argument->type);
	Datum		value = argument->value;
	Oid			output;
	bool		varlena;

	if (type == NUMERICOID)
		value = DirectFunctionCall1(numeric_trim_scale, value);	/* so that an integer column accepts 42.0 */
	else if (type == BPCHAROID)
		value = DirectFunctionCall1(rtrim1, value);
	getTypeOutputInfo(type == BPCHAROID ? TEXTOID : type, &output, &varlena);
	return OidOutputFunctionCall(output, value);
}
