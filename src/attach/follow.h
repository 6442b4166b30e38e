/*
 * attach/follow.h
 *	  ALTER TABLE and DROP INDEX that change what an attachment rests on, and that the attachment survives.
 *
 * transaction.c calls both functions around each utility statement. Whatever they change is in the catalogs, so it is
 * rolled back with the statement.
 */
#ifndef FENCE_FOLLOW_H
#define FENCE_FOLLOW_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"

/*
 * Called before a utility statement is executed. Removes the dependencies that would keep the statement from changing
 * the type of columns, or dropping constraints and indexes, that an attachment rests on. Returns the attachments
 * concerned, for follow_end. Takes AccessExclusiveLock on their tables, as the statement itself will. Raises what the
 * statement would raise: the table does not exist, or the caller is not its owner.
 */
extern List *follow_begin(Node *stmt);

/*
 * Called after the statement. Records the dependencies again. If a table can no longer be fenced that way, raises what
 * fence.attach would raise, with a context line, and so the statement fails. If the keys of an attachment may have
 * other texts than before, ends it and begins it anew, under a new id.
 */
extern void follow_end(List *followed);

#endif
