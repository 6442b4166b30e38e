/*
 * attach/loaders.h
 *	  ALTER TABLE ... DISABLE | ENABLE TRIGGER ALL | USER, as programs that load data send it for every table.
 */
#ifndef FENCE_LOADERS_H
#define FENCE_LOADERS_H

#include "nodes/plannodes.h"

/*
 * Called before a utility statement is executed. Returns the statement to execute: mostly the one that was passed. If it
 * disables or enables all triggers of a table, and some are ours, returns a copy that names the other triggers one by
 * one; so ours stay enabled. Then takes the lock on the table that the statement takes, and raises what the statement
 * would raise: the table does not exist, or the caller is not its owner.
 */
extern PlannedStmt *loaders_spare_ours(PlannedStmt *statement);

#endif
