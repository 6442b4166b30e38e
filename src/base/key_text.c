/*
 * base/key_text.c
 *	  Percent-encodes the text of keys, and makes and parses names in Redis; see key_text.h.
 *
 * The encoded bytes are UTF-8 (utf8.h), whatever the encoding of the database. So names and keys in Redis are ASCII,
 * and clients in all languages compute the same text for a key. Takes no locks. Keeps the code of the cluster.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"

#include "base/key_text.h"
#include "base/settings.h"
#include "base/utf8.h"

static const char hex_upper[] = "0123456789ABCDEF";

bool
key_is_unreserved(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		c == '-' || c == '.' || c == '_' || c == '~';
}

/* Encodes the empty text as "%00". No other text is encoded so, because a text never contains a NUL byte. */
void
key_encode_text(StringInfo buf, const char *text, size_t len)
{
	const char *utf8 = utf8_require(text, &len);

	if (len == 0)
		appendStringInfoString(buf, "%00");
	enlargeStringInfo(buf, len);
	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = utf8[i];

		if (key_is_unreserved(c))
			appendStringInfoCharMacro(buf, c);
		else
		{
			appendStringInfoCharMacro(buf, '%');
			appendStringInfoCharMacro(buf, hex_upper[c >> 4]);
			appendStringInfoCharMacro(buf, hex_upper[c & 0xF]);
		}
	}
	if (utf8 != text)
		pfree(unconstify(char *, utf8));
}

void
key_encode(StringInfo buf, const char *s)
{
	key_encode_text(buf, s, strlen(s));
}

/* Returns the value of an upper-case hex digit, or -1 for any other character. */
static int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Decodes one part of a key into `out`. Returns false unless key_encode_text could have written the part. */
static bool
decode_part(const char *part, int len, char *out)
{
	if (len == 0)
		return false;
	if (len == 3 && strncmp(part, "%00", 3) == 0)
		len = 0;				/* "%00" stands for the empty text */
	for (int i = 0; i < len; i++)
	{
		int			c = (unsigned char) part[i];

		if (c == '%')
		{
			int			high = i + 2 < len ? hex_value(part[i + 1]) : -1;
			int			low = i + 2 < len ? hex_value(part[i + 2]) : -1;

			c = high * 16 + low;
			if (high < 0 || low < 0 || c == 0 || key_is_unreserved(c))
				return false;
			i += 2;
		}
		else if (!key_is_unreserved(c))
			return false;
		*out++ = c;
	}
	*out = '\0';
	return true;
}

/* Splits a canonical key into its decoded parts, in UTF-8. Returns false if the key is malformed. Needs no database. */
bool
key_split(const char *key, int *nparts, char ***parts)
{
	char	  **found = palloc(sizeof(char *) * (strlen(key) + 1));
	int			n = 0;

	while (strcmp(key, KEY_NO_VALUES) != 0)
	{
		int			len = strcspn(key, ",");

		found[n] = palloc(len + 1);
		if (!decode_part(key, len, found[n++]))
			return false;
		if (key[len] == '\0')
			break;
		key += len + 1;
	}
	*nparts = n;
	*parts = found;
	return true;
}

bool
key_parts(const char *key, int *nparts, char ***parts)
{
	if (!key_split(key, nparts, parts))
		return false;
	for (int i = 0; i < *nparts; i++)
	{
		(*parts)[i] = utf8_to_text((*parts)[i], strlen((*parts)[i]));
		if ((*parts)[i] == NULL)
			return false;
	}
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Names in Redis
 * -----------------------------------------------------------------------------------------------------------------
 */

#define CODE_LENGTH 6

/*
 * The code of this cluster, made of its system identifier, so that its standbys have the same. It begins with a letter,
 * because a number precedes it.
 */
static const char *
cluster_code(void)
{
	static const char digits[] = "abcdefghijklmnopqrstuvwxyz0123456789";
	static char code[CODE_LENGTH + 1] = "";

	if (code[0] == '\0')
	{
		uint64		id = GetSystemIdentifier();
		uint64		hash = hash_bytes_extended((const unsigned char *) &id, sizeof(id), 0);

		for (int i = CODE_LENGTH - 1; i > 0; i--)
		{
			code[i] = digits[hash % 36];
			hash /= 36;
		}
		code[0] = digits[hash % 26];
	}
	return code;
}

char *
key_database_prefix(void)
{
	return psprintf("%u%s.", MyDatabaseId, cluster_code());
}

char *
key_domain_name(const char *domain)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoString(&buf, key_database_prefix());
	key_encode(&buf, domain);
	return buf.data;
}

/* Returns what follows "<database oid><cluster>." in a domain's name in Redis; NULL if it does not begin so. */
static const char *
after_code(const char *redis_name, Oid *database)
{
	char	   *end;

	if (*redis_name < '0' || *redis_name > '9')
		return NULL;
	*database = (Oid) strtoul(redis_name, &end, 10);
	if (strncmp(end, cluster_code(), CODE_LENGTH) != 0 || end[CODE_LENGTH] != '.')
		return NULL;
	return end + CODE_LENGTH + 1;
}

Oid
key_database_of(const char *redis_name)
{
	Oid			database;

	return after_code(redis_name, &database) ? database : InvalidOid;
}

char *
key_own_domain(const char *redis_name)
{
	Oid			database;
	const char *name = after_code(redis_name, &database);
	int			nparts;
	char	  **parts;

	return name && database == MyDatabaseId && key_parts(name, &nparts, &parts) && nparts == 1 ? parts[0] : NULL;
}

bool
key_parse_fence_name(const char *fence, Oid *database, char **redis_name, char **key)
{
	size_t		len = strlen(setting_namespace);
	const char *wire;
	const char *colon;
	const char *close;
	const char *domain;
	char	  **parts;
	int			nparts;

	if (strncmp(fence, setting_namespace, len) != 0 || strncmp(fence + len, ":f:", 3) != 0)
		return false;
	wire = fence + len + 3;
	colon = strchr(wire, ':');
	if (colon == NULL || colon[1] != '{' || (close = strchr(colon, '}')) == NULL)
		return false;
	domain = after_code(wire, database);
	if (domain == NULL || domain >= colon)
		return false;

	if (close[1] == '\0')
		*key = pnstrdup(colon + 2, close - colon - 2);
	else if (close[1] == ':')
		*key = pstrdup(close + 2);
	else
		return false;
	*redis_name = pnstrdup(wire, colon - wire);
	return key_split(*key, &nparts, &parts);
}
