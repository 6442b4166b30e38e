/*
 * attach/attach_triggers.h
 *	  The triggers of fenced tables, and what these depend on (pg_depend).
 *
 * A trigger depends on the columns and indexes that its attachments rest on, so PostgreSQL refuses to drop one of these
 * without CASCADE, and CASCADE ends the attachments.
 */
#ifndef FENCE_ATTACH_TRIGGERS_H
#define FENCE_ATTACH_TRIGGERS_H

#include "attach/attach_check.h"

/*
 * True while attach_shape_triggers runs. The object access hook then ignores triggers: fence.attach checks them once
 * all exist, and to drop one that is no longer needed ends no attachment.
 */
extern bool attach_in_progress;

/* Runs one utility statement with the rights of the caller. Raises what the statement raises. */
extern void attach_run(const char *sql);

/* Returns the table's name for use in a statement: qualified, quoted, palloc'd. */
extern char *attach_quoted_table(Oid relid);

/*
 * Creates the triggers that these attachments (DomainRows) need and the table lacks, and drops those of ours that they
 * do not need. `first` says that the table had no attachments before; then a trigger with the name of one of ours
 * belongs to somebody else, and CREATE TRIGGER raises 42710. The caller holds ShareRowExclusiveLock or a stronger lock
 * on the table.
 */
extern void attach_shape_triggers(Oid relid, List *rows, bool first);

/*
 * Records what a new attachment rests on: the master trigger depends on its key and version columns and on the key's
 * index, and the other triggers depend on the master. Dependencies that are recorded already stay.
 */
extern void attach_bind_triggers(const AttachRequest *request);

/*
 * Drops all of our triggers of the table; the object access hook then ends the attachments. Returns whether there were
 * any.
 */
extern bool attach_drop_triggers(Oid relid);

/*
 * attach_loosen removes the dependencies of all attachments of a table, so that a statement can change what they rest
 * on. attach_fasten records those of one attachment again, for the table as it is now; raises what fence.attach would
 * if the table no longer fits. In between the caller keeps AccessExclusiveLock on the table.
 */
extern void attach_loosen(Oid relid);
extern void attach_fasten(const DomainRow *row);

/*
 * Records the dependencies of a restored attachment, without checks, as far as its table, columns and triggers exist.
 * Takes AccessShareLock on the table.
 */
extern void attach_restore_dependencies(const DomainRow *row);

#endif
