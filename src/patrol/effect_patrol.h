/*
 * patrol/effect_patrol.h
 *	  The patrol's part in the life of effects: holds whose transactions are over, abandoned jobs, and durable effects.
 */
#ifndef FENCE_EFFECT_PATROL_H
#define FENCE_EFFECT_PATROL_H

#include "redis/library.h"

/* A hold, or the mark of a durable effect that was applied, as a node lists it; palloc'd */
typedef struct ListedEffect
{
	const char *key;
	const char *hold;
	const char *kind;
	const char *top;			/* the cluster and the stamp of the whole transaction; of a mark "" */
	int64		age_ms;
	Oid			done_in;		/* a mark: the database that has the row, else InvalidOid */
} ListedEffect;

/*
 * One page of what a node lists and is at least min_age_ms old; cursor as for library_pending. Lines (ListedEffect) are added
 * to *list. False: no answer, call->error tells.
 */
extern bool effect_patrol_page(LibraryCall *call, int min_age_ms, char **cursor, List **list);

/*
 * Settles the holds that one node lists and are at least min_age_ms old by the fates of their transactions, and returns
 * abandoned jobs to their queues. Returns `databases` with those added that have durable effects to look at; adds to *held
 * the holds that stay, of transactions that are not over.
 */
extern List *effect_patrol_settle(LibraryCall *call, int min_age_ms, List *databases, uint64 *held);

/* Lets one node forget the marks of a database that does not exist: nobody will apply anything from there. */
extern void effect_patrol_forget_database(LibraryCall *call, Oid database);

/*
 * For a worker in a database: applies a committed row unless it was applied (false: not now), lets Redis forget that it was,
 * and lists what Redis remembers of a database (ListedEffect).
 */
extern bool effect_patrol_redo(const char *key, const char *other_key, const char *hold, const char *kind, int n,
							   const char **arguments);
extern void effect_patrol_forget(const char *key, const char *hold);
extern List *effect_patrol_marks(Oid database);

#endif
