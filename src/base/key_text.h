/*
 * base/key_text.h
 *	  Percent-encodes and decodes the text of keys, and parses names in Redis. domain/key.h tells which text the key of a row has.
 */
#ifndef FENCE_KEY_TEXT_H
#define FENCE_KEY_TEXT_H

#include "lib/stringinfo.h"

/* Whether the character stands for itself. */
extern bool key_is_unreserved(unsigned char c);

/* Percent-encodes text of the database onto buf. */
extern void key_encode(StringInfo buf, const char *s);

/* The same of len bytes. */
extern void key_encode_text(StringInfo buf, const char *text, size_t len);

/*
 * Parts of a canonical key, decoded (palloc'd strings, palloc'd array); *nparts is set. False if malformed, or of no text
 * in the database's encoding. For a domain with a table each part is the text of KeyColumn.text_type (domain.h; money:
 * of int8, the same bytes).
 */
extern bool key_parts(const char *key, int *nparts, char ***parts);

/* The same, but the parts stay in UTF-8. Needs no database. */
extern bool key_split(const char *key, int *nparts, char ***parts);

/*
 * Takes a fence name apart: database oid, Redis name of the domain and key (both palloc'd). Needs no domain, works for
 * databases other than this one. False if it is no fence name of this cluster's namespace.
 */
extern bool key_parse_fence_name(const char *fence, Oid *database, char **redis_name, char **key);

#endif
