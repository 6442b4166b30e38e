/*
 * attach/attach.h
 *	  What fence.attach asks for, and whether a table can be fenced that way.
 */
#ifndef FENCE_ATTACH_H
#define FENCE_ATTACH_H

#include "domain/domain.h"
#include "utils/rel.h"

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

/* Raises 42501 unless the caller is the table's owner, a member of that role or a superuser, and 42P01 if it is gone. */
extern void attach_check_owner(Oid relid);

/* Everything here raises, with a reason, a detail and a hint, or returns. */

/* Arguments that make sense whatever the table is. */
extern void attach_check_request(const AttachRequest *request);

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

/* fence.attach is making triggers: what the hooks see of them is no restore, and is not finished. */
extern bool attach_in_progress;

/*
 * Records what the master trigger depends on (key and version columns, the key's index), and that the others go with
 * it, though each can be dropped by itself. other and another may be InvalidOid. What is on record stays.
 */
extern void attach_record_dependencies(const AttachRequest *request, Oid master, Oid other, Oid another);

/*
 * Lets a statement change what the attachments of a table rest on; and holds on to that of one attachment again, as it is now, or raises
 * what fence.attach would. In between the caller keeps AccessExclusiveLock on the table.
 */
extern void attach_loosen(Oid relid);
extern void attach_fasten(const DomainRow *row);

/* The same for an attachment that is not checked again, as far as its triggers are there (hooks.c). */
extern void attach_restore_dependencies(const DomainRow *row);

/* Ends the attachment and begins it anew, with the same options and triggers and a new id, which is stored in row. */
extern void attach_renew(DomainRow *row);

/*
 * The attachment ends with this transaction: reserves its end, and for attach_end removes its durable rows too; false: another session
 * has ended it.
 */
extern void attach_announce_end(const DomainRow *row);
extern bool attach_end(const DomainRow *row);

#endif
