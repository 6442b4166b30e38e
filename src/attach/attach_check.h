/*
 * attach/attach_check.h
 *	  What fence.attach asks for, and whether a table can be fenced that way.
 */
#ifndef FENCE_ATTACH_CHECK_H
#define FENCE_ATTACH_CHECK_H

#include "utils/rel.h"

#include "domain/catalog.h"

/* The arguments of fence.attach, and what follows from them */
typedef struct AttachRequest
{
	DomainRow	row;			/* what will be stored; filled bit by bit */
	List	   *others;			/* DomainRows of the attachments that the table has already */
	List	   *members;		/* DomainRows of the domain, of other tables; NIL: it is new */
	bool		key_given;		/* key => was not NULL */
	bool		add_version;
	AttrNumber *key_attnums;
	AttrNumber	version_attnum; /* InvalidAttrNumber: there is none */
	Oid			key_index;		/* the unique index on the key */
} AttachRequest;

/* Everything here raises, with a reason, a detail and a hint, or returns. */

/* Arguments that make sense whatever the table is. */
extern void attach_check_request(const AttachRequest *request);

/* Raises 42501 unless the caller is the table's owner, a member of that role or a superuser, and 42P01 if it is gone. */
extern void attach_check_owner(Oid relid);

/* A table that can be fenced at all. */
extern void attach_check_table(Relation rel);

/* Finds the key columns and their index; checks them, and the tag. Fills key_columns, key_attnums, key_index. */
extern void attach_check_key(AttachRequest *request, Relation rel);

/*
 * Finds and checks the version column; fills version_attnum. Returns false if the column does not exist and is to be
 * added; then it must be called again.
 */
extern bool attach_check_version(AttachRequest *request, Relation rel);

/* The table fits the domain of other tables that it is to join. */
extern void attach_check_join(const AttachRequest *request, Relation rel);

/* The columns that `read` is to return exist. */
extern void attach_check_columns(const AttachRequest *request, Relation rel);

#endif
