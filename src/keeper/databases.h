/*
 * keeper/databases.h
 *	  What the keeper has done inside databases, by short-lived workers (base/jobs.h): which of them have the extension, the
 *	  durable row (the highest epoch, the longest lease), and telling Redis their attached domains.
 *
 * Called by the keeper only, which is connected to none itself.
 */
#ifndef FENCE_DATABASES_H
#define FENCE_DATABASES_H

#include "base/shared.h"

/*
 * Learns which databases have the extension, and takes the highest durable state among them into shared memory; at once if it
 * is known. The first time after a start of the server it also sets until when a lease of before may run [c6]. Waits for a worker
 * in each database. False: error (REASON_LEN bytes) tells why; a single database that cannot be read is passed over.
 */
extern bool databases_load(char *error);

/* Whether none has the extension, as far as the last databases_load found. */
extern bool databases_none(void);

/*
 * A look at all databases is due when the catalogue has changed, when a minute is over, and after databases_look_soon. While OPEN it is
 * databases_announce that looks; else databases_look_if_due lets the next databases_load do it.
 */
extern void databases_look_if_due(void);
extern void databases_look_soon(void);

/*
 * Writes the epoch's number, and the lease that is set, into a durable row: before the epoch is armed or so long a lease granted.
 * Waits for a worker. False: error (REASON_LEN bytes) tells why; it may have been written nevertheless.
 */
extern bool databases_store(uint32 epoch_number, char *error);

/* c6: the lease that is set is about to be granted; before the bound of all leases is raised for it. */
extern void databases_note_lease(void);

/*
 * While OPEN, beside the heartbeats: lets workers tell Redis the domains of each database, one after the other, once for each grant and
 * again when a look at all is due. They lower the durable longest lease too, when longer ones are over everywhere. Never waits.
 * Ends the epoch (CLOSED) if an attachment came back that had ended.
 */
extern void databases_announce(FenceWord word);

/* What was announced is announced once more: OPEN begins. */
extern void databases_announce_again(void);

/* Ends an announcement that is under way, and drops those that wait: OPEN has ended. */
extern void databases_stop_announcing(void);

/* Nothing was announced yet: a new epoch begins. */
extern void databases_forget_announced(void);

#endif
