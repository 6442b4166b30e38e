/*
 * attach/follow.h
 *	  Statements that change what an attachment rests on, and that the attachment survives.
 */
#ifndef FENCE_FOLLOW_H
#define FENCE_FOLLOW_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"

/*
 * Called before a utility statement is carried out. Lets it change the type of columns, and drop constraints and indexes, that an
 * attachment rests on. Returns the attachments concerned, for follow_end. Locks their tables (AccessExclusiveLock), as the
 * statement itself will. Raises what the statement would: no such table, not its owner.
 */
extern List *follow_begin(Node *stmt);

/*
 * Called after it. Raises what fence.attach would, with a context, if a table cannot be fenced that way any more: then the statement
 * fails. An attachment whose keys may have other texts than before begins anew, under a new id.
 */
extern void follow_end(List *followed);

#endif
