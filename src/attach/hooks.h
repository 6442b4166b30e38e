/*
 * attach/hooks.h
 *	  What ends or changes a fenced table without its row triggers.
 */
#ifndef FENCE_HOOKS_H
#define FENCE_HOOKS_H

#include "nodes/nodes.h"

/* Called once at load: whatever ends or changes a fenced table without its row triggers is seen. */
extern void hooks_install(void);

/* Refuses or reserves what a utility statement does to fenced tables and the object access hook does not see. */
extern void hooks_check_utility(Node *stmt);

/*
 * Reserves what a logical replication worker truncated past every hook; called in PRE_COMMIT and PRE_PREPARE,
 * before the ledger is read. The other forgets what was noticed; it neither raises nor allocates.
 */
extern void hooks_before_commit(void);
extern void hooks_at_transaction_end(void);

#endif
