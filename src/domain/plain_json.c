/*
 * domain/plain_json.c
 *	  JSON of values without running a function of a user; see plain_json.h.
 *
 * Never looks a cast up twice: between the two its owner may put another function in its place.
 *
 * Locks: AccessShareLock on a composite type's relation while its description is copied.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_coerce.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "domain/plain_json.h"

/* Returns whether values of the type are OIDs that its output function prints as names. */
static bool
is_reference(Oid type)
{
	static const Oid references[] = {
		REGPROCOID, REGPROCEDUREOID, REGOPEROID, REGOPERATOROID, REGCLASSOID, REGCOLLATIONOID, REGTYPEOID, REGROLEOID,
		REGNAMESPACEOID, REGCONFIGOID, REGDICTIONARYOID
	};

	for (int i = 0; i < (int) lengthof(references); i++)
		if (references[i] == type)
			return true;
	return false;
}

bool
plain_json_is_builtin(Oid type)
{
	Oid			element;

	type = getBaseType(type);
	if (type >= FirstNormalObjectId || is_reference(type) || type == ACLITEMOID || type_is_rowtype(type))
		return false;
	element = get_element_type(type);
	return !OidIsValid(element) || plain_json_is_builtin(element);
}

/* Appends what to_json returns for a value of a built-in type. */
static void
append_builtin(StringInfo buf, Datum value, Oid type)
{
	FmgrInfo	to_json;

	/* to_json looks up the type of its argument in the expression */
	fmgr_info(F_TO_JSON, &to_json);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_TO_JSON, JSONOID, list_make1(makeNullConst(type, -1, InvalidOid)),
											 InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL), &to_json);
	appendStringInfoString(buf, TextDatumGetCString(FunctionCall1(&to_json, value)));
}

static void
append_aclitem(StringInfo buf, Datum value)
{
	const AclItem *item = DatumGetAclItemP(value);

	appendStringInfo(buf, "\"%u=%llx/%u\"", item->ai_grantee, (unsigned long long) item->ai_privs, item->ai_grantor);
}

static bool
is_made_by_superuser(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			language;

	if (!HeapTupleIsValid(tuple))
		return false;
	language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
	ReleaseSysCache(tuple);
	return language == ClanguageId || language == INTERNALlanguageId;
}

/* Appends a value of a user-defined type that is neither an array nor composite. */
static void
append_scalar(StringInfo buf, Datum value, Oid type)
{
	Oid			function;
	bool		varlena;

	if (find_coercion_pathway(JSONOID, type, COERCION_EXPLICIT, &function) == COERCION_PATH_FUNC &&
		OidIsValid(function) && is_made_by_superuser(function))
	{
		appendStringInfoString(buf, TextDatumGetCString(OidFunctionCall1(function, value)));
		return;
	}
	getTypeOutputInfo(type, &function, &varlena);
	escape_json(buf, OidOutputFunctionCall(function, value));
}

/* Appends one array of dimension `depth`, and advances *values and *nulls behind its elements. */
static void
append_elements(StringInfo buf, int depth, int ndims, const int *dims, Oid type, Datum **values, bool **nulls)
{
	appendStringInfoChar(buf, '[');
	for (int i = 0; i < dims[depth]; i++)
	{
		if (i > 0)
			appendStringInfoChar(buf, ',');
		if (depth + 1 < ndims)
			append_elements(buf, depth + 1, ndims, dims, type, values, nulls);
		else
			plain_json_value(buf, *(*values)++, *(*nulls)++, type);
	}
	appendStringInfoChar(buf, ']');
}

static void
append_array(StringInfo buf, Datum value, Oid element)
{
	ArrayType  *array = DatumGetArrayTypeP(value);
	int16		len;
	bool		byval;
	char		align;
	Datum	   *values;
	bool	   *nulls;
	int			n;

	get_typlenbyvalalign(element, &len, &byval, &align);
	deconstruct_array(array, element, len, byval, align, &values, &nulls, &n);
	if (n == 0)
		appendStringInfoString(buf, "[]");
	else
		append_elements(buf, 0, ARR_NDIM(array), ARR_DIMS(array), element, &values, &nulls);
}

static void
append_composite(StringInfo buf, Datum value)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(value);
	HeapTupleData tuple = {.t_len = HeapTupleHeaderGetDatumLength(header), .t_data = header};
	Oid			relid = get_typ_typrelid(HeapTupleHeaderGetTypeId(header));
	TupleDesc	desc;

	/*
	 * ALTER TYPE tells Redis first and then invalidates the caches of other backends, and keeps its lock until both are
	 * done
	 */
	if (OidIsValid(relid))
		LockRelationOid(relid, AccessShareLock);
	desc = lookup_rowtype_tupdesc_copy(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
	if (OidIsValid(relid))
		UnlockRelationOid(relid, AccessShareLock);
	ItemPointerSetInvalid(&tuple.t_self);
	plain_json_row(buf, &tuple, desc, NIL);
}

void
plain_json_value(StringInfo buf, Datum value, bool isnull, Oid type)
{
	Oid			element;

	check_stack_depth();
	type = getBaseType(type);
	element = get_element_type(type);
	if (isnull)
		appendStringInfoString(buf, "null");
	else if (is_reference(type))
		append_builtin(buf, value, OIDOID);
	else if (type == ACLITEMOID)
		append_aclitem(buf, value);
	else if (plain_json_is_builtin(type))
		append_builtin(buf, value, type);
	else if (OidIsValid(element))
		append_array(buf, value, element);
	else if (type_is_rowtype(type))
		append_composite(buf, value);
	else
		append_scalar(buf, value, type);
}

static bool
is_wanted(Form_pg_attribute att, List *columns)
{
	ListCell   *cell;

	foreach(cell, columns)
		if (strcmp(lfirst(cell), NameStr(att->attname)) == 0)
			break;
	return !att->attisdropped && (columns == NIL || cell != NULL);
}

void
plain_json_row(StringInfo buf, HeapTuple row, TupleDesc desc, List *columns)
{
	bool		first = true;

	appendStringInfoChar(buf, '{');
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		bool		isnull;
		Datum		value;

		if (!is_wanted(att, columns))
			continue;
		value = heap_getattr(row, i + 1, desc, &isnull);
		if (!first)
			appendStringInfoChar(buf, ',');
		first = false;
		escape_json(buf, NameStr(att->attname));
		appendStringInfoChar(buf, ':');
		plain_json_value(buf, value, isnull, att->atttypid);
	}
	appendStringInfoChar(buf, '}');
}
