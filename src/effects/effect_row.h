/*
 * effects/effect_row.h
 *	  Writes the row of a durable effect to fence.outbox.
 */
#ifndef FENCE_EFFECT_ROW_H
#define FENCE_EFFECT_ROW_H

#include "effects/effect_call.h"

/* Inserts the row of a durable effect, with the rights of the table's owner. */
extern void effect_row_insert(const char *hold, const EffectCall *call);

#endif
