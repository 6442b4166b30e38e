/*
 * attach/detach.h
 *	  How attachments end: what Redis is told, and what is deleted in PostgreSQL.
 *
 * The end of an attachment reserves its whole domain, so that with the commit every token of the domain becomes invalid
 * (doc/protocol.md, "Writing").
 */
#ifndef FENCE_DETACH_H
#define FENCE_DETACH_H

#include "domain/catalog.h"

/* Reserves the end of the attachment: COMMIT announces it to Redis. Deletes nothing. */
extern void detach_announce(const DomainRow *row);

/*
 * Ends the attachment with this transaction, and deletes its durable rows. If other tables remain in the domain, the
 * domain goes on with them, and only what is cached becomes invalid. Never increments the command counter, because the
 * object access hook calls this. Returns false if another session has ended the attachment.
 */
extern bool detach_end(const DomainRow *row);

/*
 * Ends the attachment, with the triggers that only it needs, as fence.detach does, because the table cannot be fenced
 * that way any more. Warns; the reason is a sentence. Takes AccessExclusiveLock on the table. Raises 42501 if the caller
 * is not its owner, 55006 if a statement of this session uses it.
 */
extern void detach_unfit(const DomainRow *row, const char *reason);

/*
 * Ends the attachment and begins it anew, with the same options and triggers and a new id, which is stored in *row.
 * Raises 0A000 if the domain has other tables, whose keys would keep their text.
 */
extern void detach_renew(DomainRow *row);

#endif
