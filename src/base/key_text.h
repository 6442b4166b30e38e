/*
 * base/key_text.h
 *	  Percent-encodes and decodes the text of keys, and makes and parses the names of domains and fences in Redis.
 *	  domain/key.h defines which text a row has as its key.
 */
#ifndef FENCE_KEY_TEXT_H
#define FENCE_KEY_TEXT_H

#include "lib/stringinfo.h"

/* The key of a whole table. Encoded values never contain an asterisk. The key is not empty because Redis Cluster ignores an empty tag. */
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
 * Returns how the names in Redis of this database's domains begin: "<database oid><cluster>.", palloc'd. The code of the
 * cluster is there because two clusters that use one namespace by mistake must not share names, and their databases have
 * equal oids.
 */
extern char *key_database_prefix(void);

/* Returns the domain's name in Redis, which is the prefix and the percent-encoded name; palloc'd. */
extern char *key_domain_name(const char *domain);

/* Returns the domain's name of a name that key_domain_name has made, in any process. NULL: it is not of this database. */
extern char *key_own_domain(const char *redis_name);

/* Returns the database of a domain's name in Redis. InvalidOid: it is not the name of a domain of this cluster. */
extern Oid	key_database_of(const char *redis_name);

/*
 * Splits the name of a fence into the database's oid, the domain's name in Redis, and the key (the last two palloc'd).
 * Needs no domain, so it also works for other databases. Returns false if this is not the name of a fence of this
 * cluster.
 */
extern bool key_parse_fence_name(const char *fence, Oid *database, char **redis_name, char **key);

#endif
