/*
 * attach/follow.h
 *	  Statements that change what an attachment rests on: the attachment follows, or it ends.
 *
 * transaction.c calls both functions around each utility statement. Whatever they change is in the catalogs, so it is
 * rolled back with the statement.
 */
#ifndef FENCE_FOLLOW_H
#define FENCE_FOLLOW_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"

/* Returns whether the functions below have to be called for this statement. */
extern bool follow_concerns(Node *stmt);

/*
 * Called before such a statement is executed. Removes the dependencies that would keep the statement from changing
 * the type of columns, or dropping constraints and indexes, that an attachment rests on. Returns the attachments
 * concerned, for follow_end. Takes AccessExclusiveLock on their tables, as the statement itself will. Raises what the
 * statement would raise: the table does not exist, or the caller is not its owner.
 */
extern List *follow_begin(Node *stmt);

/*
 * Called after the statement. Records the dependencies again. If the keys of an attachment may have other texts than
 * before, ends it and begins it anew, under a new id. If a table can no longer be fenced that way, ends the attachment
 * with a WARNING. Raises 42501 if the caller has changed a partition of a fenced table that he does not own.
 */
extern void follow_end(Node *stmt, List *followed);

#endif
