/*
 * read/derived.c
 *	  Values computed from rows of several domains: fence.define_derived, fence.read_derived.
 *
 * Owns: the table fence.derived, and the derived values in Redis.
 * Locks: AccessShareLock to read that table, RowExclusiveLock to write it, kept until the end of the transaction.
 * Never: runs the user's function with other rights than those of its owner, or with the caller's search_path. Others
 * are served what the function computes, and a reader must not run another user's code with his own rights.
 *
 * A derived value in Redis names its sources, each with a token and a version, and the result that was computed from
 * them (calls.h has the form). Such a statement stays true for ever, so any reader may store it. The value is a hit
 * if and only if all of its sources are still current (doc/protocol.md, "Several keys"). It is in the slot of its
 * first source.
 *
 * To compute a value, a reader first gets the tokens of the sources from Redis. Then it takes a snapshot, in which it
 * reads the sources with their versions and calls the function. It puts the sources like any other reader, so that
 * later readers find current fences.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/key_text.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "base/word.h"
#include "domain/argument.h"
#include "domain/catalog.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/plain_json.h"
#include "domain/row.h"
#include "domain/sql_function.h"
#include "domain/suggestion.h"
#include "domain/tombstone.h"
#include "read/many.h"
#include "read/reader.h"
#include "read/row_version.h"
#include "read/standby.h"
#include "send/coordinator.h"

PG_FUNCTION_INFO_V1(fence_define_derived);
PG_FUNCTION_INFO_V1(fence_drop_derived);
PG_FUNCTION_INFO_V1(fence_derived_keys);
PG_FUNCTION_INFO_V1(fence_read_derived);
PG_FUNCTION_INFO_V1(fence_try_read_derived);

/* Columns of fence.derived, in the order of the install script */
typedef enum DerivedColumn
{
	DERIVED_NAME = 1,
	DERIVED_ID,
	DERIVED_COMPUTE,
	DERIVED_SOURCES,
	DERIVED_TTL,
	NDERIVED = DERIVED_TTL
} DerivedColumn;

/* A row of fence.derived */
typedef struct Definition
{
	char	   *name;
	int64		id;				/* a new definition of the same name gets a new id */
	char	   *compute;		/* the function with its argument types, all qualified */
	int			nsources;
	char	  **sources;		/* see parse_source */
	int64		ttl_ms;			/* time to live in Redis; 0: not given */
} Definition;

/* A derived value with these arguments */
typedef struct Derivation
{
	Definition *definition;
	Oid			function;
	int			nargs;
	Oid		   *types;
	Datum	   *values;
	char	  **texts;			/* the arguments as text, which does not depend on the session's settings */
	int			nsources;
	ManyItem   *sources;
	char	   *value;			/* its name in Redis */
} Derivation;

/* -----------------------------------------------------------------------------------------------------------------
 * Definitions
 * -----------------------------------------------------------------------------------------------------------------
 */

static char **
texts_of_array(ArrayType *array, int *n)
{
	Datum	   *elements;
	bool	   *nulls;
	char	  **texts;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, n);
	texts = palloc(sizeof(char *) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("element %d of the array must not be null", i + 1)));
		texts[i] = TextDatumGetCString(elements[i]);
	}
	return texts;
}

static void
raise_undefined(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("derived value \"%s\" does not exist", name),
			 errhint("%s", suggestion("derived", name, "Table fence.derived lists them; fence.define_derived adds one."))));
}

static Definition *
load_definition(const char *name)
{
	Relation	table = fence_table_open("derived", AccessShareLock);
	HeapTuple	tuple = table ? fence_table_find(table, DERIVED_NAME, F_TEXTEQ, CStringGetTextDatum(name)) : NULL;
	Definition *definition = palloc0(sizeof(Definition));
	Datum		values[NDERIVED + 1];
	bool		nulls[NDERIVED + 1];

	if (!HeapTupleIsValid(tuple))
		raise_undefined(name);
	for (int i = 1; i <= NDERIVED; i++)
		values[i] = heap_getattr(tuple, i, RelationGetDescr(table), &nulls[i]);
	definition->name = TextDatumGetCString(values[DERIVED_NAME]);
	definition->id = DatumGetInt64(values[DERIVED_ID]);
	definition->compute = TextDatumGetCString(values[DERIVED_COMPUTE]);
	definition->sources = texts_of_array(DatumGetArrayTypePCopy(values[DERIVED_SOURCES]), &definition->nsources);
	if (!nulls[DERIVED_TTL])
		definition->ttl_ms = value_ttl_ms_of(DatumGetIntervalP(values[DERIVED_TTL]));
	table_close(table, AccessShareLock);
	return definition;
}

static void
raise_malformed(const char *text)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("malformed source \"%s\"", text),
			 errdetail("A source is the name of a domain, and in parentheses the values of its key: "
					   "$1, $2 ... stand for arguments, anything else is percent-encoded text."),
			 errhint("For example: room($1) or setting(default).")));
}

/* Parses one part of a source's key: "$2", or percent-encoded text. texts: the arguments as text; NULL: only checks. */
static Argument
parse_part(const char *source, const char *part, int nargs, char **texts)
{
	char	  **decoded;
	char	   *end;
	int			n;

	if (*part != '$')
	{
		if (!key_parts(part, &n, &decoded) || n != 1)
			raise_malformed(source);
		return (Argument) {.type = TEXTOID, .value = CStringGetTextDatum(decoded[0])};
	}
	n = strtol(part + 1, &end, 10);
	if (n < 1 || *end != '\0')
		raise_malformed(source);
	if (n > nargs)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("source \"%s\" needs argument %d, but the function has %d", source, n, nargs)));
	return (Argument) {.type = TEXTOID, .value = texts ? CStringGetTextDatum(texts[n - 1]) : (Datum) 0};
}

/*
 * Parses a source: "domain(part,part)", or "domain", whose key is then made of the first arguments. Sets the parts of
 * the key, one for each key column. texts NULL: only checks.
 */
static Domain *
parse_source(const char *source, int nargs, char **texts, Argument **parts)
{
	size_t		len = strlen(source);
	const char *open = len > 0 && source[len - 1] == ')' ? strrchr(source, '(') : NULL;
	Domain	   *domain = domain_by_name(open ? pnstrdup(source, open - source) : source, false);
	char	   *rest = open ? pnstrdup(open + 1, source + len - 1 - (open + 1)) : NULL;
	char	   *part;
	int			n = 0;

	reader_require_source(domain);
	*parts = palloc(sizeof(Argument) * Max((int) len, domain->nkeys));
	for (; !open && n < domain->nkeys; n++)
		(*parts)[n] = parse_part(source, psprintf("$%d", n + 1), nargs, texts);
	while ((part = strsep(&rest, ",")) != NULL)
		(*parts)[n++] = parse_part(source, part, nargs, texts);
	if (n != domain->nkeys)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wrong number of key values for domain \"%s\"", domain->name),
				 errdetail("Its key has %d columns, the source has %d values.", domain->nkeys, n)));
	return domain;
}

static Oid
function_owner(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", function)));
	owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);
	return owner;
}

/*
 * Raises an error unless the result of the function depends only on its arguments and one snapshot, because it is
 * kept and served.
 */
static void
check_function(Oid function)
{
	if (get_func_prokind(function) != PROKIND_FUNCTION || get_func_retset(function))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("%s is not a function that returns one value", format_procedure(function))));
	if (func_volatile(function) == PROVOLATILE_VOLATILE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("function %s is volatile", format_procedure(function)),
				 errdetail("Each query of a volatile function sees another state of the tables."),
				 errhint("Use ALTER FUNCTION ... STABLE if it only reads.")));
}

/*
 * If the function sets its own search_path, pg_temp must be last in it, and the path must not depend on the caller
 * ("$user"). Otherwise the first reader could give names of types and tables another meaning, for everybody who is
 * served the value.
 */
static void
check_own_search_path(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	const char *path = NULL;
	List	   *schemas = NIL;
	ListCell   *cell;
	bool		isnull;
	bool		good = true;
	Datum		config;

	if (!HeapTupleIsValid(tuple))
		return;
	config = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	if (!isnull)
	{
		int			n;
		char	  **settings = texts_of_array(DatumGetArrayTypePCopy(config), &n);

		for (int i = 0; i < n; i++)
			if (pg_strncasecmp(settings[i], "search_path=", strlen("search_path=")) == 0)
				path = settings[i] + strlen("search_path=");
	}
	ReleaseSysCache(tuple);
	if (path == NULL)
		return;
	if (!SplitIdentifierString(pstrdup(path), ',', &schemas))
		good = false;
	foreach(cell, schemas)
	{
		const char *schema = lfirst(cell);

		if (strcmp(schema, "$user") == 0 || (strcmp(schema, "pg_temp") == 0) != (lnext(schemas, cell) == NULL))
			good = false;
	}
	if (!good || schemas == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("the search_path of function %s lets its caller change what names in it mean", format_procedure(function)),
				 errdetail("It is %s. What the function computes for one caller is served to others.", path),
				 errhint("Use ALTER FUNCTION ... SET search_path with pg_temp at the end and without \"$user\".")));
}

static void
check_sources(int nsources, char **sources, int nargs)
{
	Argument   *parts;

	if (nsources == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a derived value needs at least one source")));
	for (int i = 0; i < nsources; i++)
		(void) parse_source(sources[i], nargs, NULL, &parts);
}

/* The definition's tuple, which no other session changes until the end of the transaction; NULL if there is none. */
static HeapTuple
find_to_change(Relation table, const char *name)
{
	LockDatabaseObject(RelationGetRelid(table), string_hash(name, strlen(name) + 1), 0, ExclusiveLock);
	return fence_table_find(table, DERIVED_NAME, F_TEXTEQ, CStringGetTextDatum(name));
}

/*
 * A new definition replaces the former one of that name. It has an id of its own, so values of the former one are not
 * used.
 */
Datum
fence_define_derived(PG_FUNCTION_ARGS)
{
	Oid			function;
	Oid		   *types;
	int			nargs;
	int			nsources;
	char	  **sources;
	Relation	table;
	HeapTuple	old;
	HeapTuple	new;
	Datum		values[NDERIVED];
	bool		nulls[NDERIVED] = {false};

	shared_require();
	for (int i = 0; i < 3; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("name, sources and function must not be null")));
	function = PG_GETARG_OID(2);
	sources = texts_of_array(PG_GETARG_ARRAYTYPE_P(1), &nsources);
	/* The function will run with the rights of its owner, so only its owner may define a value with it. */
	if (!has_privs_of_role(GetUserId(), function_owner(function)))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_FUNCTION, get_func_name(function));
	check_function(function);
	check_own_search_path(function);
	(void) get_func_signature(function, &types, &nargs);
	check_sources(nsources, sources, nargs);
	if (!PG_ARGISNULL(3))
		(void) value_ttl_ms_of(PG_GETARG_INTERVAL_P(3));

	table = fence_table_open("derived", RowExclusiveLock);
	values[DERIVED_NAME - 1] = PG_GETARG_DATUM(0);
	values[DERIVED_ID - 1] = Int64GetDatum(nextval_internal(fence_table_oid("derived_id_seq"), false));
	values[DERIVED_COMPUTE - 1] = CStringGetTextDatum(format_procedure_qualified(function));
	values[DERIVED_SOURCES - 1] = PG_GETARG_DATUM(1);
	nulls[DERIVED_TTL - 1] = PG_ARGISNULL(3);
	values[DERIVED_TTL - 1] = PG_GETARG_DATUM(3);
	new = heap_form_tuple(RelationGetDescr(table), values, nulls);
	old = find_to_change(table, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(table, &old->t_self, new);
	else
		CatalogTupleInsert(table, new);
	table_close(table, NoLock);
	CommandCounterIncrement();	/* so that a second call in the same statement sees the row */
	PG_RETURN_VOID();
}

Datum
fence_drop_derived(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Relation	table = fence_table_open("derived", RowExclusiveLock);
	HeapTuple	tuple = find_to_change(table, name);

	if (!HeapTupleIsValid(tuple))
		raise_undefined(name);
	CatalogTupleDelete(table, &tuple->t_self);
	table_close(table, NoLock);
	CommandCounterIncrement();
	PG_RETURN_VOID();
}

/* -----------------------------------------------------------------------------------------------------------------
 * A value with its arguments
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * The text of argument i, for the input function of the parameter's type. The caller has called
 * row_use_standard_settings.
 */
static char *
argument_of_function(const Derivation *d, int i, const Argument *given)
{
	Oid			type = getBaseType(d->types[i]);
	Oid			output;
	bool		varlena;

	if (given->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument %d of derived value \"%s\" must not be null", i + 1, d->definition->name)));
	switch (argument_form(given->type, type))
	{
		case ARGUMENT_TEXT:
			return argument_text(given);
		case ARGUMENT_VALUE:
			getTypeOutputInfo(type, &output, &varlena);
			return OidOutputFunctionCall(output, given->value);
		case ARGUMENT_UNFIT:
			break;
	}
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("argument %d of derived value \"%s\" is of type %s", i + 1, d->definition->name, format_type_be(given->type)),
			 errdetail("The function takes %s.", format_type_be(d->types[i])),
			 errhint("Cast it to that type.")));
}

/* The argument whose text is read */
typedef struct InputContext
{
	const Definition *definition;
	int			argument;
} InputContext;

static void
input_context(void *arg)
{
	const InputContext *context = arg;

	errcontext("argument %d of derived value \"%s\"", context->argument, context->definition->name);
}

/* Converts the arguments to the function's types, and back to text. So each value has exactly one text. */
static void
resolve_arguments(Derivation *d, const Argument *given, int ngiven)
{
	int			nest_level = NewGUCNestLevel();
	InputContext context = {.definition = d->definition};
	ErrorContextCallback callback = {.callback = input_context, .arg = &context, .previous = error_context_stack};

	if (ngiven != d->nargs)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("derived value \"%s\" has %d arguments, not %d", d->definition->name, d->nargs, ngiven)));
	row_use_standard_settings();
	d->values = palloc(sizeof(Datum) * Max(d->nargs, 1));
	d->texts = palloc(sizeof(char *) * Max(d->nargs, 1));
	error_context_stack = &callback;
	for (int i = 0; i < d->nargs; i++)
	{
		Oid			proc;
		Oid			ioparam;
		bool		varlena;

		context.argument = i + 1;
		getTypeInputInfo(d->types[i], &proc, &ioparam);
		d->values[i] = OidInputFunctionCall(proc, argument_of_function(d, i, &given[i]), ioparam, -1);
		getTypeOutputInfo(d->types[i], &proc, &varlena);
		d->texts[i] = OidOutputFunctionCall(proc, d->values[i]);
	}
	error_context_stack = callback.previous;
	AtEOXact_GUC(true, nest_level);
}

static void
resolve_sources(Derivation *d)
{
	d->nsources = d->definition->nsources;
	d->sources = palloc(sizeof(ManyItem) * d->nsources);
	for (int i = 0; i < d->nsources; i++)
	{
		Argument   *parts;
		Domain	   *domain = parse_source(d->definition->sources[i], d->nargs, d->texts, &parts);

		reader_require(domain);
		d->sources[i] = many_item(domain, key_of_arguments(domain, domain->nkeys, parts));
	}
}

/* "<value name of the first source>:<name>.<id>:<arguments>" */
static char *
value_name(const Derivation *d)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "%s:", key_value_name(d->sources[0].domain, d->sources[0].key));
	key_encode(&buf, d->definition->name);
	appendStringInfo(&buf, ".%lld:", (long long) d->definition->id);
	for (int i = 0; i < d->nargs; i++)
	{
		if (i > 0)
			appendStringInfoChar(&buf, ',');
		key_encode(&buf, d->texts[i]);
	}
	if (buf.len > NAME_MAX_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("name in Redis of derived value \"%s\" is too long", d->definition->name),
				 errdetail("It has %d bytes; the limit is %d.", buf.len, NAME_MAX_LENGTH)));
	return buf.data;
}

/*
 * Finds the derived value that the arguments name: argument 0 is its name, the others are its arguments. Raises an
 * error if the user may not read all sources or not run the function, because he may not have its results either.
 */
static void
derivation_arguments(FunctionCallInfo fcinfo, Derivation *d)
{
	Argument   *given;
	int			ngiven = argument_list(fcinfo, 1, &given);

	shared_require();
	if (PG_ARGISNULL(0) || ngiven < 0)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the name of a derived value, and its arguments, must not be null")));
	d->definition = load_definition(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	d->function = DatumGetObjectId(DirectFunctionCall1(regprocedurein, CStringGetDatum(d->definition->compute)));
	check_function(d->function);
	if (object_aclcheck(ProcedureRelationId, d->function, GetUserId(), ACL_EXECUTE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(d->function));
	(void) get_func_signature(d->function, &d->types, &d->nargs);
	resolve_arguments(d, given, ngiven);
	resolve_sources(d);
	d->value = value_name(d);
}

/* The names that a Redis client needs: of the first source's fence, and of the value. */
Datum
fence_derived_keys(PG_FUNCTION_ARGS)
{
	Derivation	d = {0};
	Datum		values[2];
	bool		nulls[2] = {false};

	derivation_arguments(fcinfo, &d);
	values[0] = CStringGetTextDatum(d.sources[0].fence);
	values[1] = CStringGetTextDatum(d.value);
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Reading what is stored
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Copies token and version of each source from the stored record into d->sources, so that the caller can check them.
 * Returns the JSON text of the value. NULL: the record does not have exactly these sources.
 */
static char *
take_stored_sources(Derivation *d, char *record)
{
	char	   *rest = record;

	for (int i = 0; i < d->nsources; i++)
	{
		GetAnswer  *answer = &d->sources[i].answer;
		char	   *fence;

		rest = calls_next_source(rest, &fence, &answer->token, &answer->version);
		if (rest == NULL || strcmp(fence, d->sources[i].fence) != 0)
			return NULL;
	}
	return calls_derived_json(rest);
}

/* The stored value, if all its sources are current. */
static bool
read_stored(Derivation *d, Datum *result)
{
	const char *fence = d->sources[0].fence;
	Call		call;
	redisReply *reply;
	char	   *json = NULL;

	if (!many_may_ask())
		return false;
	call_get_derived(&call, d->value);
	if (!coordinator_ask(fence, 1, &call, &reply))
		return false;
	if (calls_string(reply, 1))
		json = pstrdup(calls_string(reply, 1));
	if (json && calls_is(reply, "elsewhere"))
	{
		json = take_stored_sources(d, json);
		if (json && !many_check(d->nsources, d->sources, 0))
			json = NULL;
	}
	freeReplyObject(reply);
	return json != NULL && row_value_as_jsonb(json, strlen(json), result);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Computing
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Calls the function in that snapshot, with the present rights and settings. Returns JSON text, or NULL. */
static char *
call_function(const Derivation *d, Snapshot snapshot)
{
	LOCAL_FCINFO(call, FUNC_MAX_ARGS);
	FmgrInfo	function;
	StringInfoData json;
	Datum		value;
	Jsonb	   *jsonb;

	fmgr_info(d->function, &function);
	InitFunctionCallInfoData(*call, &function, d->nargs, DEFAULT_COLLATION_OID, NULL, NULL);
	for (int i = 0; i < d->nargs; i++)
		call->args[i] = (NullableDatum) {.value = d->values[i]};
	PushActiveSnapshot(snapshot);
	value = FunctionCallInvoke(call);
	PopActiveSnapshot();
	if (call->isnull)
		return NULL;
	initStringInfo(&json);
	plain_json_value(&json, value, false, get_func_rettype(d->function));
	jsonb = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data)));
	return JsonbToCString(NULL, &jsonb->root, VARSIZE(jsonb));
}

/*
 * Computes the value that all readers are served. Names in the function mean the same whoever calls it: pg_temp is
 * searched last, and the result is refused if the function has used a temporary table. The function runs with the
 * rights of its owner. So the value does not depend on which reader came first, and no reader runs another user's
 * code with his own rights.
 */
static char *
compute(const Derivation *d, Snapshot snapshot)
{
	int			nest_level = NewGUCNestLevel();
	int			before = MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE;
	Oid			reader;
	int			context;
	bool		temporary = false;
	char	   *text = NULL;

	check_own_search_path(d->function);		/* again, because ALTER FUNCTION may have changed it */
	row_use_standard_settings();
	MyXactFlags &= ~XACT_FLAGS_ACCESSEDTEMPNAMESPACE;
	GetUserIdAndSecContext(&reader, &context);
	SetUserIdAndSecContext(function_owner(d->function), context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	PG_TRY();
	{
		text = call_function(d, snapshot);
		temporary = (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0;
	}
	PG_FINALLY();
	{
		MyXactFlags |= before;
		SetUserIdAndSecContext(reader, context);
	}
	PG_END_TRY();
	AtEOXact_GUC(true, nest_level);
	if (temporary)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("function %s has used a temporary table", format_procedure(d->function)),
				 errdetail("What it computes is served to others, who do not have that table."),
				 errhint("Qualify the names of tables in the function, or drop the temporary table.")));
	return text;
}

/*
 * Whether every source has a token from before the snapshot, of this server's epoch, and a version in the snapshot. A source
 * that has no row may have no version.
 */
static bool
all_known(const Derivation *d)
{
	for (int i = 0; i < d->nsources; i++)
		if (!d->sources[i].answer.token || d->sources[i].version == NO_VERSION || !row_version_may_store(d->sources[i].answer.token))
			return false;
	return true;
}

static void
store(const Derivation *d, const char *text)
{
	size_t		len = strlen(text);
	const char *utf8 = utf8_of_text(text, &len);
	StringInfoData record;
	Call		call;
	redisReply *reply;

	if (utf8 == NULL || len > PAYLOAD_MAX_BYTES)
		return;
	initStringInfo(&record);
	for (int i = 0; i < d->nsources; i++)
		calls_append_source(&record, d->sources[i].fence, d->sources[i].answer.token, d->sources[i].version);
	calls_append_json(&record, utf8, len);
	call_set(&call, d->value, record.data, record.len,
			 d->definition->ttl_ms ? d->definition->ttl_ms : setting_default_ttl * INT64CONST(1000));
	if (coordinator_ask(d->sources[0].fence, 1, &call, &reply))
		freeReplyObject(reply);
}

/* Gets the tokens of the sources first. Then reads the sources and computes the value in one snapshot. */
static char *
recompute(Derivation *d, bool fill)
{
	bool		may_put;
	Snapshot	snapshot;
	char	   *text;

	if (fill)
	{
		(void) many_get(d->nsources, d->sources, false);
		many_open_buckets(d->nsources, d->sources);
	}
	snapshot = many_snapshot(d->nsources, d->sources, &may_put);
	fill = fill && may_put;
	if (fill)
		many_read_rows(d->nsources, d->sources, snapshot);
	text = compute(d, snapshot);
	UnregisterSnapshot(snapshot);
	if (fill && all_known(d) && many_put_rows(d->nsources, d->sources))
		store(d, text ? text : "null");
	return text;
}

/*
 * The same on a standby. The value is computed in the snapshot in which the sources are read, so the rows that are there
 * must be the newest. A hit is no proof of that: before a TRUNCATE, another row may have had its version. So this proves
 * all sources as if none were cached. Returns false if it cannot.
 */
static bool
recompute_on_standby(Derivation *d, char **text)
{
	Snapshot	snapshot;
	char	   *computed;

	if (!many_may_ask())
		return false;
	for (int i = 0; i < d->nsources; i++)
		d->sources[i].answer = (GetAnswer) {.status = GET_MISS};
	snapshot = standby_snapshot(d->nsources, d->sources);
	if (snapshot == NULL)
		return false;
	many_read_rows(d->nsources, d->sources, snapshot);
	computed = compute(d, snapshot);
	UnregisterSnapshot(snapshot);
	if (!standby_prove(d->nsources, d->sources))
		return false;
	*text = computed;
	store(d, computed ? computed : "null");
	return true;
}

/* A value that is NULL is stored as JSON's null. */
static bool
is_json_null(Datum jsonb)
{
	JsonbContainer *root = &DatumGetJsonbP(jsonb)->root;

	return JsonContainerIsScalar(root) && getIthJsonbValueFromContainer(root, 0)->type == jbvNull;
}

/* The strong read of a derived value. *result is set unless it is null, or must be read from the primary. */
static ReadSource
read_derived(Derivation *d, Datum *result, bool *isnull)
{
	bool		fill = !many_written(d->nsources, d->sources);
	ReadSource	source = SOURCE_DATABASE;
	char	   *text = NULL;

	if (fill && read_stored(d, result))
	{
		*isnull = is_json_null(*result);
		return SOURCE_CACHE;
	}
	if (!RecoveryInProgress())
		text = recompute(d, fill);
	else if (!recompute_on_standby(d, &text))
		source = SOURCE_PRIMARY;
	if (text)
		*result = DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
	*isnull = text == NULL || is_json_null(*result);
	return source;
}

Datum
fence_read_derived(PG_FUNCTION_ARGS)
{
	Derivation	d = {0};
	Datum		result = (Datum) 0;
	bool		isnull;

	derivation_arguments(fcinfo, &d);
	if (read_derived(&d, &result, &isnull) == SOURCE_PRIMARY)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this standby cannot tell whether its rows for derived value \"%s\" are current", d.definition->name),
				 errhint("Read from the primary server. fence.try_read_derived returns the source \"primary\" instead of this error.")));
	if (isnull)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(result);
}

/* The same, but it says from where the value is, and raises no error if that must be the primary. */
Datum
fence_try_read_derived(PG_FUNCTION_ARGS)
{
	Derivation	d = {0};
	Datum		values[2] = {0};
	bool		nulls[2] = {false};

	derivation_arguments(fcinfo, &d);
	values[1] = CStringGetTextDatum(reader_source_name(read_derived(&d, &values[0], &nulls[0])));
	PG_RETURN_DATUM(function_row(fcinfo, values, nulls));
}
