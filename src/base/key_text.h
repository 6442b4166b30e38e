/*
 * base/key_text.h
 *	  Percent-encodes and decodes the text of keys, and parses names of fences in Redis. domain/key.h defines which
 *	  text a row has as its key.
 */
#ifndef FENCE_KEY_TEXT_H
#define FENCE_KEY_TEXT_H

#include "lib/stringinfo.h"

/* The key of a whole table. Encoding never writes an asterisk, and Redis Cluster needs a tag that is not empty. */
#define KEY_NO_VALUES "*"

/* Returns whether percent-encoding leaves this character as it is. */
extern bool key_is_unreserved(unsigned char c);

/* Appends the percent-encoded form of a text of the database to buf. */
extern void key_encode(StringInfo buf, const char *s);

/* The same for a text of len bytes. */
extern void key_encode_text(StringInfo buf, const char *text, size_t len);

/*
 * Splits a canonical key into its decoded parts, in the encoding of the database. Sets *nparts and *parts (palloc'd).
 * Returns false if the key is malformed, or if this encoding cannot represent a part. In a domain with a table, each
 * part is in the text form of KeyColumn.text_type (domain.h). A money column has the same bytes as an int8 column.
 */
extern bool key_parts(const char *key, int *nparts, char ***parts);

/* The same, but leaves the parts in UTF-8. Needs no database. */
extern bool key_split(const char *key, int *nparts, char ***parts);

/*
 * Splits the name of a fence into the database's oid, the domain's name in Redis, and the key (the last two palloc'd).
 * Needs no domain, so it also works for other databases. Returns false if this is not the name of a fence in this
 * cluster's namespace.
 */
extern bool key_parse_fence_name(const char *fence, Oid *database, char **redis_name, char **key);

#endif
