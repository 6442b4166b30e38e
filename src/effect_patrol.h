/*
 * effect_patrol.h
 *	  The patrol's part in the life of effects: holds whose transactions are over, abandoned jobs, and durable effects.
 */
#ifndef FENCE_EFFECT_PATROL_H
#define FENCE_EFFECT_PATROL_H

#include "redis/library.h"

/*
 * Settles the holds that one node lists and are at least min_age_ms old by the fates of their transactions, and returns
 * abandoned jobs to their queues. Returns `databases` with those added that have durable effects to look at.
 */
extern List *effect_patrol_settle(LibraryCall *call, int min_age_ms, List *databases);

/* A durable effect that was applied, as Redis remembers it */
typedef struct EffectMark
{
	char	   *key;
	char	   *hold;
} EffectMark;

/*
 * For a worker in a database: applies a committed row unless it was applied (false: not now), lets Redis forget that it was,
 * lists what Redis remembers of a database (EffectMark), and closes the connections that these have opened.
 */
extern bool effect_patrol_redo(const char *key, const char *other_key, const char *hold, const char *kind, int n,
							   const char **arguments);
extern void effect_patrol_forget(const char *key, const char *hold);
extern List *effect_patrol_marks(Oid database);
extern void effect_patrol_close(void);

/* effect_outbox.c: a round over fence.outbox. */
extern void effect_outbox_round(void);

#endif
