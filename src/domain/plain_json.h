/*
 * domain/plain_json.h
 *	  JSON of values as to_json makes it, but of nothing beside the value, and without running a user's code.
 *
 * to_json calls the cast to json that the owner of a type has made, as whoever asks: here that is a reader, who may be a
 * superuser, or a writer. So a cast counts only if its function is of language C or internal, which superusers alone make
 * (those of hstore and PostGIS are). Values of other types that users have made are what the type's output function prints.
 *
 * What prints the name of something else, which may be renamed without a word to the row, is printed by number: regclass and
 * its like as the oid, aclitem as "grantee=privileges/grantor" of oids and hex.
 *
 * Domains, arrays and composite types count as what they are made of.
 */
#ifndef FENCE_PLAIN_JSON_H
#define FENCE_PLAIN_JSON_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"

/* Whether to_json itself does what is said above with values of this type, now and for ever. */
extern bool plain_json_is_builtin(Oid type);

/* Appends the value as JSON text, in the encoding of the database. */
extern void plain_json_value(StringInfo buf, Datum value, bool isnull, Oid type);

/* Appends the row as a JSON object: the columns of these names (char *), in the table's order; NIL: all. */
extern void plain_json_row(StringInfo buf, HeapTuple row, TupleDesc desc, List *columns);

#endif
