/*
 * base/utf8.c
 *	  Converts between the encoding of the database and UTF-8; see utf8.h.
 *
 * Owns: the choice of the conversion. It is always PostgreSQL's built-in default conversion. A conversion that a user
 * created, or that search_path would find, is never used, because a name in Redis must not depend on the session. Takes
 * no locks. Keeps no state.
 */
#include "postgres.h"

#include "catalog/pg_conversion.h"
#include "catalog/pg_namespace.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"

#include "base/utf8.h"

/* In every encoding that a database may have, a byte below 0x80 is an ASCII character. */
static bool
is_ascii(const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (IS_HIGHBIT_SET(s[i]))
			return false;
	return true;
}

/* Converts text; the result is palloc'd and ends with a NUL. Sets *len. Returns NULL if any part cannot be converted. */
static char *
convert(const char *s, size_t *len, int from, int to)
{
	Oid			conversion = FindDefaultConversion(PG_CATALOG_NAMESPACE, from, to);
	Size		room;
	char	   *result;
	int			converted;

	if (!OidIsValid(conversion) || *len > PG_INT32_MAX)
		return NULL;
	room = (Size) *len * MAX_CONVERSION_GROWTH + 1;
	result = MemoryContextAllocHuge(CurrentMemoryContext, room);
	converted = DatumGetInt32(OidFunctionCall6(conversion, Int32GetDatum(from), Int32GetDatum(to), CStringGetDatum(s),
											   CStringGetDatum(result), Int32GetDatum((int) *len), BoolGetDatum(true)));
	if ((size_t) converted != *len)
	{
		pfree(result);
		return NULL;
	}
	*len = strlen(result);
	if (room > 1024 * 1024)
		result = repalloc_huge(result, *len + 1);
	return result;
}

const char *
utf8_of_text(const char *text, size_t *len)
{
	int			encoding = GetDatabaseEncoding();
	size_t		utf8_len = *len;
	size_t		back_len;
	char	   *utf8;
	char	   *back;
	bool		same;

	if (encoding == PG_UTF8 || is_ascii(text, *len))
		return text;
	if (encoding == PG_SQL_ASCII)
		return *len <= PG_INT32_MAX && pg_verify_mbstr(PG_UTF8, text, (int) *len, true) ? text : NULL;
	utf8 = convert(text, &utf8_len, encoding, PG_UTF8);
	if (utf8 == NULL)
		return NULL;
	back_len = utf8_len;
	back = convert(utf8, &back_len, PG_UTF8, encoding);
	same = back != NULL && back_len == *len && memcmp(back, text, *len) == 0;
	if (back != NULL)
		pfree(back);
	if (!same)
	{
		pfree(utf8);
		return NULL;
	}
	*len = utf8_len;
	return utf8;
}

const char *
utf8_require(const char *text, size_t *len)
{
	const char *utf8 = utf8_of_text(text, len);

	if (utf8 == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNTRANSLATABLE_CHARACTER),
				 errmsg("text cannot be converted from encoding %s to UTF-8", GetDatabaseEncodingName()),
				 errdetail("pgcache_fence stores names and values in Redis as UTF-8."),
				 GetDatabaseEncoding() == PG_SQL_ASCII ?
				 errhint("A database with encoding SQL_ASCII accepts any bytes. Store only UTF-8 in fenced tables, or use a database with encoding UTF8.") :
				 errhint("Replace the characters that Unicode does not have, or that this encoding has twice, or use a database with encoding UTF8.")));
	return utf8;
}

char *
utf8_of_string(const char *text)
{
	size_t		len = strlen(text);

	return unconstify(char *, utf8_require(text, &len));
}

char *
utf8_copy(const char *bytes, size_t len)
{
	char	   *copy = palloc(len + 1);

	memcpy(copy, bytes, len);
	copy[len] = '\0';
	return copy;
}

char *
utf8_to_text(const char *utf8, size_t len)
{
	int			encoding = GetDatabaseEncoding();

	if (len > PG_INT32_MAX || !pg_verify_mbstr(PG_UTF8, utf8, (int) len, true))
		return NULL;
	if (encoding == PG_UTF8 || encoding == PG_SQL_ASCII || is_ascii(utf8, len))
		return unconstify(char *, utf8);
	return convert(utf8, &len, PG_UTF8, encoding);
}

char *
utf8_require_text(const char *utf8, size_t len)
{
	char	   *text = utf8_to_text(utf8, len);

	if (text == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("the cached value is not valid text in the encoding of this database"),
				 errdetail("Values are UTF-8 in Redis; the encoding of this database is %s.", GetDatabaseEncodingName()),
				 errhint("Read it with a Redis client, or store it as text.")));
	return text;
}

char *
utf8_to_display(const char *utf8)
{
	char	   *text = utf8_to_text(utf8, strlen(utf8));
	StringInfoData buf;

	if (text != NULL)
		return text;
	initStringInfo(&buf);
	for (; *utf8; utf8++)
		if (*utf8 >= ' ' && *utf8 <= '~')
			appendStringInfoChar(&buf, *utf8);
		else
			appendStringInfo(&buf, "\\x%02x", (unsigned char) *utf8);
	return buf.data;
}
