/*
 * patrol/effect_outbox.h
 *	  Applies durable effects from their committed rows in fence.outbox.
 */
#ifndef FENCE_EFFECT_OUTBOX_H
#define FENCE_EFFECT_OUTBOX_H

/* A round over fence.outbox; without that table, what is left of it in Redis is forgotten. */
extern void effect_outbox_round(void);

#endif
