/*
 * domain/plain_json.h
 *	  JSON of values as to_json makes it, but from the value alone, and without running a function of a user.
 *
 * to_json calls the cast to json that the owner of a type has made, with the rights of the caller. Here the caller is a
 * reader, who may be a superuser, or a writer. So this file calls such a cast only if its function is of language C or
 * internal, which only superusers can create (hstore and PostGIS have such casts). Values of other user-defined types
 * are printed by the type's output function.
 *
 * Some types print the name of another object, which may be renamed without any change of the row. This file prints the
 * OID instead: for regclass and the like, and for aclitem "grantee=privileges/grantor" with OIDs and hexadecimal
 * privileges.
 *
 * SQL domains, arrays and composite types are treated as the values that they consist of.
 */
#ifndef FENCE_PLAIN_JSON_H
#define FENCE_PLAIN_JSON_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"

/* Returns whether to_json itself meets these rules for values of this type, whatever users do. */
extern bool plain_json_is_builtin(Oid type);

/*
 * Appends the value as JSON text, in the encoding of the database. May raise what the type's output function or its
 * cast raises.
 */
extern void plain_json_value(StringInfo buf, Datum value, bool isnull, Oid type);

/* Appends the row as a JSON object with the columns of these names (char *), in the table's order; NIL: all columns. */
extern void plain_json_row(StringInfo buf, HeapTuple row, TupleDesc desc, List *columns);

#endif
