/*
 * domain/key.c
 *	  The canonical text of keys, and names in Redis; see key.h.
 *
 * Owns: how each type is printed. A type is printed here if its output function depends on a setting (DateStyle,
 * TimeZone, bytea_output, lc_monetary) or prints equal values differently (numeric, bpchar). All other types are
 * printed by their output function. Takes no locks. Keeps only two buffers.
 *
 * base/key_text.c encodes the text. To rename a label of an enum changes the text of its keys.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/cash.h"
#include "utils/datetime.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "base/key_text.h"
#include "domain/key.h"

/* -----------------------------------------------------------------------------------------------------------------
 * Canonical text of one value
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
print_integer(StringInfo buf, int64 value)
{
	enlargeStringInfo(buf, MAXINT8LEN);
	buf->len += pg_lltoa(value, buf->data + buf->len);
}

static void
print_text(StringInfo buf, Datum value, bool blank_padded)
{
	struct varlena *text = PG_DETOAST_DATUM_PACKED(value);
	int			len = VARSIZE_ANY_EXHDR(text);

	if (blank_padded)
		len = bpchartruelen(VARDATA_ANY(text), len);
	key_encode_text(buf, VARDATA_ANY(text), len);
	if ((Pointer) text != DatumGetPointer(value))
		pfree(text);
}

static void
print_bytea(StringInfo buf, Datum value)
{
	struct varlena *bytes = PG_DETOAST_DATUM_PACKED(value);
	int			len = VARSIZE_ANY_EXHDR(bytes);

	key_encode_text(buf, "\\x", 2);
	enlargeStringInfo(buf, 2 * len);
	buf->len += hex_encode(VARDATA_ANY(bytes), len, buf->data + buf->len);
	buf->data[buf->len] = '\0';
	if ((Pointer) bytes != DatumGetPointer(value))
		pfree(bytes);
}

/* Prints ISO 8601 as JSON has it, timestamptz in UTC, whatever DateStyle and TimeZone are. */
static void
print_datetime(StringInfo buf, Datum value, Oid type)
{
	char		text[MAXDATELEN + 1];
	int			utc = 0;

	key_encode(buf, JsonEncodeDateTime(text, value, type, type == TIMESTAMPTZOID ? &utc : NULL));
}

static void
print_numeric(StringInfo buf, Datum value)
{
	Datum		trimmed = DirectFunctionCall1(numeric_trim_scale, value);

	key_encode(buf, DatumGetCString(DirectFunctionCall1(numeric_out, trimmed)));
}

static void
print_value(StringInfo buf, const KeyColumn *column, Datum value)
{
	switch (column->text_type)
	{
		case INT2OID:
			print_integer(buf, DatumGetInt16(value));
			break;
		case INT4OID:
			print_integer(buf, DatumGetInt32(value));
			break;
		case INT8OID:
			print_integer(buf, DatumGetInt64(value));
			break;
		case CASHOID:
			print_integer(buf, DatumGetCash(value));
			break;
		case TEXTOID:
			print_text(buf, value, false);
			break;
		case BPCHAROID:
			print_text(buf, value, true);
			break;
		case BYTEAOID:
			print_bytea(buf, value);
			break;
		case NUMERICOID:
			print_numeric(buf, value);
			break;
		case DATEOID:
		case TIMEOID:
		case TIMETZOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			print_datetime(buf, value, column->text_type);
			break;
		default:
			key_encode(buf, OutputFunctionCall(unconstify(FmgrInfo *, &column->output), value));
			break;
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Keys
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
check_length(const Domain *domain, int len)
{
	if (len > KEY_MAX_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("key of domain \"%s\" is too long", domain->name),
				 errdetail("Its percent-encoded text has %d bytes; the limit is %d.", len, KEY_MAX_LENGTH)));
}

bool
key_is_complete(const Domain *domain, TupleTableSlot *row)
{
	for (int i = 0; domain->nullable && i < domain->nkeys; i++)
		if (slot_attisnull(row, domain->keys[i].attnum))
			return false;
	return true;
}

/* Appends the text of a key without values, which stands for the whole table. */
static void
print_no_values(StringInfo buf, int nkeys)
{
	if (nkeys == 0)
		appendStringInfoString(buf, KEY_NO_VALUES);
}

/* Appends the key of a row. */
static void
print_key(StringInfo buf, const Domain *domain, TupleTableSlot *row)
{
	int			start = buf->len;

	for (int i = 0; i < domain->nkeys; i++)
	{
		const KeyColumn *column = &domain->keys[i];
		bool		isnull;
		Datum		value = slot_getattr(row, column->attnum, &isnull);

		if (isnull)
			ereport(ERROR,
					(errcode(ERRCODE_NOT_NULL_VIOLATION),
					 errmsg("null value in key column \"%s\" of domain \"%s\"", column->name, domain->name),
					 errhint("Use ALTER TABLE ... ALTER COLUMN ... SET NOT NULL on each key column.")));
		if (i > 0)
			appendStringInfoChar(buf, ',');
		print_value(buf, column, value);
	}
	print_no_values(buf, domain->nkeys);
	check_length(domain, buf->len - start);
}

char *
key_of_row(const Domain *domain, TupleTableSlot *row)
{
	StringInfoData buf;

	initStringInfo(&buf);
	print_key(&buf, domain, row);
	return buf.data;
}

bool
key_same(const Domain *domain, TupleTableSlot *a, TupleTableSlot *b)
{
	char	   *text_a,
			   *text_b;
	bool		same;

	for (int i = 0; i < domain->nkeys; i++)
	{
		const KeyColumn *column = &domain->keys[i];
		bool		null_a,
					null_b;
		Datum		value_a = slot_getattr(a, column->attnum, &null_a);
		Datum		value_b = slot_getattr(b, column->attnum, &null_b);

		if (null_a || null_b || (column->byval ? value_a != value_b : !datum_image_eq(value_a, value_b, false, column->len)))
			goto compare_texts;
	}
	return true;

	/* equal values of some types have different bytes: 1.0 and 1.00 */
compare_texts:
	text_a = key_of_row(domain, a);
	text_b = key_of_row(domain, b);
	same = strcmp(text_a, text_b) == 0;
	pfree(text_a);
	pfree(text_b);
	return same;
}

/* Tells what to do with an array that was passed as one value. */
static int
hint_array(void)
{
	return errhint("Pass the values of the key as separate arguments, or write VARIADIC before an array of all of them.");
}

static bool
is_array(Oid type)
{
	return OidIsValid(get_element_type(type));
}

static void
raise_wrong_number(const Domain *domain, int nparts, const Argument *parts)
{
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < domain->nkeys; i++)
		appendStringInfo(&names, "%s\"%s\"", i > 0 ? ", " : "", domain->keys[i].name);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("wrong number of key values for domain \"%s\"", domain->name),
			 !OidIsValid(domain->relid) ? errdetail("At least one is needed.") :
			 errdetail_plural("The key is (%s); %d value was given.", "The key is (%s); %d values were given.", nparts,
							  names.data, nparts),
			 nparts == 1 && is_array(parts[0].type) ? hint_array() : 0));
}

static void
check_parts(const Domain *domain, int nparts, const Argument *parts)
{
	bool		has_table = OidIsValid(domain->relid);

	if (has_table ? nparts != domain->nkeys : nparts == 0)
		raise_wrong_number(domain, nparts, parts);
	for (int i = 0; i < nparts; i++)
		if (parts[i].isnull)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("key value %d for domain \"%s\" is null", i + 1, domain->name),
					 has_table ? errdetail("It is that of key column \"%s\".", domain->keys[i].name) : 0));
}

static void
raise_unfit(const Domain *domain, int i, Oid type)
{
	const KeyColumn *column = OidIsValid(domain->relid) ? &domain->keys[i] : NULL;

	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("key value %d for domain \"%s\" is of type %s", i + 1, domain->name, format_type_be(type)),
			 column ? errdetail("Key column \"%s\" is of type %s.", column->name, format_type_be(column->input_type)) :
			 errdetail("The domain has no table, so its key values must be texts, integers, UUIDs or labels of enums."),
			 is_array(type) ? hint_array() :
			 column ? errhint("Cast it to the type of the column.") :
			 errhint("Cast it to text, in the same way wherever the key is named.")));
}

/* The key column for which a text is read */
typedef struct InputContext
{
	const Domain *domain;
	const KeyColumn *column;
} InputContext;

static void
input_context(void *arg)
{
	const InputContext *context = arg;

	errcontext("key column \"%s\" of domain \"%s\"", context->column->name, context->domain->name);
}

/* Reads a text as a value of the column. An error from the type's input function names column and domain. */
static Datum
input_value(const Domain *domain, KeyColumn *column, char *text)
{
	InputContext context = {.domain = domain, .column = column};
	ErrorContextCallback callback = {.callback = input_context, .arg = &context, .previous = error_context_stack};
	Datum		value;

	error_context_stack = &callback;
	value = InputFunctionCall(&column->input, text, column->input_ioparam, column->input_typmod);
	error_context_stack = callback.previous;
	return value;
}

/* Appends one value that a caller has given. */
static void
print_part(StringInfo buf, const Domain *domain, int i, const Argument *part)
{
	KeyColumn  *column = OidIsValid(domain->relid) ? &domain->keys[i] : NULL;
	char	   *text;

	switch (argument_form(part->type, column ? column->input_type : InvalidOid))
	{
		case ARGUMENT_VALUE:
			print_value(buf, column, part->value);
			break;
		case ARGUMENT_TEXT:
			text = argument_text(part);
			if (column == NULL)
				key_encode(buf, text);
			else
				print_value(buf, column, input_value(domain, column, text));
			break;
		case ARGUMENT_UNFIT:
			raise_unfit(domain, i, part->type);
	}
}

char *
key_of_arguments(const Domain *domain, int nparts, const Argument *parts)
{
	StringInfoData buf;

	check_parts(domain, nparts, parts);
	initStringInfo(&buf);
	for (int i = 0; i < nparts; i++)
	{
		if (i > 0)
			appendStringInfoChar(&buf, ',');
		print_part(&buf, domain, i, &parts[i]);
	}
	print_no_values(&buf, nparts);
	check_length(domain, buf.len);
	return buf.data;
}

Datum
key_part_datum(const KeyColumn *column, const char *part)
{
	/* print_value prints money as an integer */
	Oid			type = column->text_type == CASHOID ? INT8OID : column->text_type;
	Oid			input;
	Oid			ioparam;

	getTypeInputInfo(type, &input, &ioparam);
	return OidInputFunctionCall(input, unconstify(char *, part), ioparam, column->input_typmod);
}

bool
key_is_canonical(const Domain *domain, const char *key)
{
	StringInfoData buf;
	char	  **parts;
	int			nparts;

	if (!key_parts(key, &nparts, &parts) || strlen(key) > KEY_MAX_LENGTH)
		return false;
	if (!OidIsValid(domain->relid))
		return nparts > 0;
	if (nparts != domain->nkeys)
		return false;
	initStringInfo(&buf);
	for (int i = 0; i < nparts; i++)
	{
		if (i > 0)
			appendStringInfoChar(&buf, ',');
		print_value(&buf, &domain->keys[i], key_part_datum(&domain->keys[i], parts[i]));
	}
	print_no_values(&buf, nparts);
	return strcmp(buf.data, key) == 0;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Tags
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Takes the next piece of a template: literal text, or a column's name in braces. Returns false at the end. A piece
 * that is neither has *name NULL and length 0.
 */
static bool
next_piece(const char **tag, const char **literal, const char **name, int *len)
{
	const char *t = *tag;

	*literal = *name = NULL;
	*len = 0;
	if (*t == '\0')
		return false;
	if (*t == '{')
	{
		const char *end = strchr(t, '}');

		if (end != NULL && end > t + 1)
		{
			*name = t + 1;
			*len = end - t - 1;
			*tag = end + 1;
		}
		return true;
	}
	*literal = t;
	while (key_is_unreserved(*t) || *t == '/')
		t++;
	*len = t - *literal;
	*tag = t;
	return true;
}

static bool
is_name(const char *name, const char *piece, int len)
{
	return (int) strlen(name) == len && strncmp(name, piece, len) == 0;
}

void
key_check_tag(const char *tag, int nkeys, const char *const *names)
{
	const char *literal;
	const char *name;
	int			len;
	bool		any = false;

	while (next_piece(&tag, &literal, &name, &len))
	{
		bool		found = false;

		if (len == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid tag near \"%s\"", tag),
					 errdetail("A tag consists of letters (A-Z, a-z), digits, - . _ ~ / and key columns in braces."),
					 errhint("For example: room/{room_id}.")));
		if (name == NULL)
			continue;
		for (int i = 0; i < nkeys; i++)
			found = found || is_name(names[i], name, len);
		if (!found)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("tag names \"%.*s\", which is not a key column", len, name)));
		any = true;
	}
	if (!any)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("tag names no key column"),
				 errdetail("All keys of the domain would share one hash slot."),
				 errhint("Name a key column in braces, for example room/{room_id}.")));
}

/* Appends the tag, with each column replaced by its part of the key, which is encoded already. */
static void
append_tag(StringInfo buf, const Domain *domain, const char *key)
{
	const char *tag = domain->tag;
	const char *literal;
	const char *name;
	int			len;

	while (next_piece(&tag, &literal, &name, &len) && len > 0)
	{
		const char *part = key;

		if (literal != NULL)
		{
			appendBinaryStringInfo(buf, literal, len);
			continue;
		}
		for (int i = 0; i < domain->nkeys; i++)
		{
			int			part_len = strcspn(part, ",");

			if (is_name(domain->keys[i].name, name, len))
				appendBinaryStringInfo(buf, part, part_len);
			part += part_len;
			if (*part == ',')
				part++;
		}
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Names in Redis
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
check_name(const Domain *domain, const StringInfoData *buf)
{
	if (buf->len > NAME_MAX_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("name in Redis of a key of domain \"%s\" is too long", domain->name),
				 errdetail("It has %d bytes with the tag; the limit is %d.", buf->len, NAME_MAX_LENGTH)));
}

static void
append_name(StringInfo buf, const Domain *domain, const char *prefix, const char *key)
{
	appendStringInfoString(buf, prefix);
	if (domain->tag != NULL)
	{
		append_tag(buf, domain, key);
		appendStringInfoString(buf, "}:");
	}
	appendStringInfoString(buf, key);
	if (domain->tag == NULL)
		appendStringInfoChar(buf, '}');
	check_name(domain, buf);
}

static char *
redis_name(const Domain *domain, const char *prefix, const char *key)
{
	StringInfoData buf;

	initStringInfo(&buf);
	append_name(&buf, domain, prefix, key);
	return buf.data;
}

char *
key_fence_name(const Domain *domain, const char *key)
{
	return redis_name(domain, domain->fence_prefix, key);
}

/* Empties the buffer and keeps its memory, because this runs for each changed row. */
static void
use_buffer(StringInfo buf)
{
	MemoryContext old;

	if (buf->data != NULL)
	{
		resetStringInfo(buf);
		return;
	}
	old = MemoryContextSwitchTo(TopMemoryContext);
	initStringInfo(buf);
	MemoryContextSwitchTo(old);
}

const char *
key_fence_name_of_row(const Domain *domain, TupleTableSlot *row)
{
	static StringInfoData key;
	static StringInfoData name;

	use_buffer(&name);
	if (domain->tag == NULL)
	{
		/* as append_name does, without a copy of the key */
		appendStringInfoString(&name, domain->fence_prefix);
		print_key(&name, domain, row);
		appendStringInfoChar(&name, '}');
		check_name(domain, &name);
		return name.data;
	}
	use_buffer(&key);
	print_key(&key, domain, row);
	append_name(&name, domain, domain->fence_prefix, key.data);
	return name.data;
}

char *
key_value_name(const Domain *domain, const char *key)
{
	return redis_name(domain, domain->value_prefix, key);
}
