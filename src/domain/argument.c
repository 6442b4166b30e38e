/*
 * domain/argument.c
 *	  Values that callers give, of whatever type; see argument.h.
 *
 * Owns: which type may stand for which. The functions that take keys are there twice, with VARIADIC text[] and with VARIADIC
 * "any": PostgreSQL takes the first for literals and for parameters without a type, as many drivers send them, and the second
 * for values of all other types. Both end here.
 *
 * Whoever names a row must get the fence that the row's triggers write, or an error: under another name he finds nothing, or
 * keeps something that no write ends. So a text means what a literal would, a value of the wanted type itself, and a value of
 * another type is taken only if its text is one and the same in every session, and no digit is lost on the way without an
 * error. No cast does all of that: those to text follow settings and add words of their own (true for t), those from numeric
 * to integer round, those from timestamptz to date forget.
 *
 * Must never: run a cast, or anything else that a user has made. Its rights could be those of fence.reserve's owner.
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

	/* whoever gives none gets the parameter's default, which is no VARIADIC array */
	if (count == 1 && types[0] == TEXTARRAYOID && !nulls[0] && ArrayGetNItems(ARR_NDIM(DatumGetArrayTypeP(values[0])),
																			 ARR_DIMS(DatumGetArrayTypeP(values[0]))) == 0)
		count = 0;
	*arguments = palloc(sizeof(Argument) * Max(count, 1));
	for (int i = 0; i < count; i++)
		(*arguments)[i] = (Argument) {.type = types[i], .value = values[i], .isnull = nulls[i]};
	return count;
}

/* What reads digits as the number that they say, or raises: oid reads -1, money a currency. */
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

/* "char" is of the category of texts in PostgreSQL 15, and has one byte of them. */
static bool
is_text(Oid type)
{
	return type != CHAROID && TypeCategory(type) == TYPCATEGORY_STRING;
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
		case NUMERICOID:		/* as a text it has several: 1.0 and 1.00 */
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
		value = DirectFunctionCall1(numeric_trim_scale, value);	/* 42.0 is an integer */
	else if (type == BPCHAROID)
		value = DirectFunctionCall1(rtrim1, value);
	getTypeOutputInfo(type == BPCHAROID ? TEXTOID : type, &output, &varlena);
	return OidOutputFunctionCall(output, value);
}
