/*
 * attach/attach.h
 *	  Attachments begin, are held on to, and end.
 */
#ifndef FENCE_ATTACH_H
#define FENCE_ATTACH_H

#include "attach/attach_check.h"

/* Raises 42501 unless the caller is the table's owner, a member of that role or a superuser, and 42P01 if it is gone. */
extern void attach_check_owner(Oid relid);

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
