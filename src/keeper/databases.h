/*
 * keeper/databases.h
 *	  The keeper's work inside databases, which short-lived workers do (base/jobs.h): finding the databases that have
 *	  the extension, reading and writing their durable row (the highest epoch, the longest lease), and announcing
 *	  their attached domains to Redis.
 *
 * Only the keeper calls these functions. It is not connected to any database itself.
 */
#ifndef FENCE_DATABASES_H
#define FENCE_DATABASES_H

#include "base/shared.h"

/*
 * Finds out which databases have the extension, and takes the highest durable state among them into shared memory.
 * Waits for a worker in each database, but returns at once if the list is still valid. The first call after a server
 * start also sets lease_bound: the time until which a lease of the previous run may last [c6]. Passes over a single
 * database that cannot be read. False: error (REASON_LEN bytes) tells why.
 */
extern bool databases_load(char *error);

/* Whether the last databases_load found no database that has the extension. */
extern bool databases_none(void);

/*
 * A look at all databases is due when the catalogue has changed, a minute after the last look, and after
 * databases_look_soon. While the word is OPEN, databases_announce looks. Otherwise databases_look_if_due makes the
 * next databases_load look.
 */
extern void databases_look_if_due(void);
extern void databases_look_soon(void);

/*
 * Writes the number of the epoch and the setting of the lease into a durable row. The keeper calls it before it arms
 * that epoch, or grants a lease of that length. Waits for a worker. False: error (REASON_LEN bytes) tells why; the
 * row may have been written nevertheless.
 */
extern bool databases_store(uint32 epoch_number, char *error);

/*
 * c6: notes that a lease of the present setting is about to be granted. Call it before lease_bound is raised for that
 * lease.
 */
extern void databases_note_lease(void);

/*
 * Lets workers announce the domains of each database to Redis, one database after the other. The keeper calls it
 * after each heartbeat while the word is OPEN. It never waits. Each database is announced once for each grant, and
 * again when a look at all databases is due. The workers also lower the durable longest lease, once all longer leases
 * are over. If an attachment that had ended has come back, this ends the epoch and sets CLOSED.
 */
extern void databases_announce(FenceWord word);

/* OPEN begins: all databases are to be announced again. */
extern void databases_announce_again(void);

/* OPEN has ended: gives up the announcement that is under way, and drops those that wait. */
extern void databases_stop_announcing(void);

/* A new epoch begins: no database has been announced in it yet. */
extern void databases_forget_announced(void);

#endif
