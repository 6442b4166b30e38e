/*
 * write/publish.h
 *	  What a commit tells those who listen to PostgreSQL itself (attach's publish => 'notify'); Redis publishes the other
 *	  kinds (fence.lua).
 */
#ifndef FENCE_PUBLISH_H
#define FENCE_PUBLISH_H

/*
 * Called in PRE_COMMIT, before PostgreSQL takes what is to be sent at COMMIT: NOTIFY for each applied reservation of a
 * domain that wants it, or one for the domain if that is reserved as a whole. May raise; nothing is sent if the
 * transaction aborts.
 */
extern void publish_before_commit(void);

/* Called in PRE_PREPARE: raises 0A000 if the transaction would have to send NOTIFY, which PostgreSQL cannot prepare. */
extern void publish_before_prepare(void);

#endif
