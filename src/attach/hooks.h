/*
 * attach/hooks.h
 *	  Notices what changes or ends a fenced table without firing its row triggers.
 */
#ifndef FENCE_HOOKS_H
#define FENCE_HOOKS_H

#include "nodes/nodes.h"

/* Installs the object access hook and the callback of relation caches. Called once, when the library is loaded. */
extern void hooks_install(void);

/*
 * Called before a utility statement is executed, for what the object access hook does not see. Raises 0A000 if it
 * detaches a partition concurrently; reserves all domains if it renames a label of an enum.
 */
extern void hooks_check_utility(Node *stmt);

/*
 * hooks_before_commit reserves the domains of tables that a logical replication worker has truncated; no hook sees
 * that. Called in PRE_COMMIT and PRE_PREPARE, before the ledger is read. May raise. hooks_at_transaction_end forgets
 * these tables. It neither raises nor allocates.
 */
extern void hooks_before_commit(void);
extern void hooks_at_transaction_end(void);

#endif
