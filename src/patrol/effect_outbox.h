/*
 * patrol/effect_outbox.h
 *	  Applies durable effects from their committed rows in fence.outbox.
 */
#ifndef FENCE_EFFECT_OUTBOX_H
#define FENCE_EFFECT_OUTBOX_H

/*
 * Applies and deletes all rows of fence.outbox that it can, and lets Redis forget the marks of rows that are gone. If
 * the table was dropped, Redis forgets all marks of this database. Returns false if it has stopped at `until`
 * (fence_clock() microseconds) and must be called again.
 */
extern bool effect_outbox_round(int64 until);

#endif
