/*
 * patrol/effect_patrol.h
 *	  The patrol's part in the life of effects. It settles holds whose transactions are over, returns abandoned jobs
 *	  to their queues, and applies durable effects.
 */
#ifndef FENCE_EFFECT_PATROL_H
#define FENCE_EFFECT_PATROL_H

#include "redis/library.h"

/* A hold, or the mark that Redis keeps of an applied durable effect, as a node lists it; palloc'd */
typedef struct ListedEffect
{
	const char *key;
	const char *hold;
	const char *kind;
	const char *top;			/* the cluster and the stamp of the top-level transaction; "" for a mark */
	int64		age_ms;
	Oid			done_in;		/* for a mark, the database that has its row; for a hold, InvalidOid */
} ListedEffect;

/*
 * Adds to *list one page of a node's holds and marks that are at least min_age_ms old (ListedEffect). The cursor
 * works as in library_pending. False: there is no answer, and call->error tells why.
 */
extern bool effect_patrol_page(LibraryCall *call, int min_age_ms, char **cursor, List **list);

/*
 * Settles the holds of one node that are at least min_age_ms old, by the fates of their transactions, and returns
 * abandoned jobs to their queues. Adds to *held the number of holds whose transactions are not over. Returns
 * `databases`, to which it has added the databases whose durable effects need a round.
 */
extern List *effect_patrol_settle(LibraryCall *call, int min_age_ms, List *databases, uint64 *held);

/*
 * Lets one node forget the marks of a database that does not exist any more, so that nobody will apply its rows
 * again.
 */
extern void effect_patrol_forget_database(LibraryCall *call, Oid database);

/*
 * For a worker in a database. effect_patrol_redo applies a committed row unless it was applied before; false: it
 * cannot be applied now. effect_patrol_forget lets Redis forget the row's mark. effect_patrol_marks lists the marks
 * of a database (ListedEffect).
 */
extern bool effect_patrol_redo(const char *key, const char *other_key, const char *hold, const char *kind, int n,
							   const char **arguments);
extern void effect_patrol_forget(const char *key, const char *hold);
extern List *effect_patrol_marks(Oid database);

#endif
