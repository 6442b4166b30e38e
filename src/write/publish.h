/*
 * write/publish.h
 *	  Notifications to clients that LISTEN in PostgreSQL, for tables attached with publish => 'notify'. For the other
 *	  values of publish, Redis publishes the changes (fence.lua).
 */
#ifndef FENCE_PUBLISH_H
#define FENCE_PUBLISH_H

/*
 * Queues a NOTIFY for each applied reservation of a domain with publish => 'notify', or one for the domain if it is
 * reserved as a whole. Call it in PRE_COMMIT, before PostgreSQL collects the notifications that COMMIT sends. May raise.
 * PostgreSQL sends nothing if the transaction aborts.
 */
extern void publish_before_commit(void);

/* For PRE_PREPARE. Raises 0A000 if the transaction would have to send NOTIFY, because PostgreSQL cannot prepare that. */
extern void publish_before_prepare(void);

#endif
