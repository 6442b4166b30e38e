/*
 * effects/effects.h
 *	  Effects: changes of keys in Redis that live and die with the PostgreSQL transaction.
 *
 * Owns: the list of this transaction's effects, by savepoint level (memory: TopTransactionContext). The life cycle of all
 * kinds is here and in redis/effects.lua; effect_functions.c only says what each kind wants. A hold in Redis names the
 * subtransaction that made it, so its fate alone decides: apply if that is committed, else undo. COMMIT, ROLLBACK and
 * ROLLBACK TO say the one or the other on the wire that the hold went, without waiting, or post it as a message (send_queue.h) if
 * there is none any more; what does not arrive is settled by the patrol (effect_patrol.c), or by whoever finds the hold in his
 * way.
 *
 * Who needs Redis' answer (a counter's bounds, a value that is taken) waits for it at the call. All others are only said
 * (wire.h): their answers are collected before the commit, in the one wait in which those to reservations are, and a refusal
 * is an error there. Nothing is committed whose hold was not confirmed, but for durable effects that a row will make happen.
 * Takes no locks. Effects need neither lease nor epoch: holds are data, and a process that lost them has lost the effect.
 */
#ifndef FENCE_EFFECTS_H
#define FENCE_EFFECTS_H

#include "access/xact.h"
#include "base/stamp.h"
#include "effects/effect_call.h"

/*
 * Holds the effect for this (sub)transaction, or tells why not; of an unheard one it says "held" before it is known. Raises
 * 08006 or 58000 if Redis cannot be asked, 22023 if the key is none for effects. Interruptible; waits at most `timeout`. Holds
 * of transactions that are over are settled on the way, not waited for.
 */
extern EffectAnswer effect_hold(EffectCall *call);

/*
 * PRE_COMMIT and PRE_PREPARE: returns when every effect is held, and raises if one is not: as effect_hold, or what
 * effect_raise_refused does. Interruptible; waits at most `timeout`, and once more where another transaction is in the way.
 * What is asked for afterwards is waited for at once.
 */
extern void effects_before_end(void);

/* The kind of this transaction's last effect on the key, "" if it has none. */
extern const char *effect_last_kind(const char *key);

/* The name of the hold that effect_hold made last, and its number in the transaction. */
extern const char *effect_last_hold(void);
extern int	effect_last_number(void);

/* One question about a key (FCALL function 1 key ...), answered by an array of strings or a number; raises as effect_hold. */
extern EffectAnswer effect_ask(const char *function, const char *key, int nargs, const char **args);

/* Raises 22023 unless the key is one for effects. */
extern void effect_require_key(const char *key);

/* The fate of a hold's transaction; false: it is of another cluster, or malformed. */
extern bool effect_fate(const char *hold, StampFate *fate);

/* What must stay when the transaction is over, and may be forgotten. Neither waits nor raises nor allocates. */
extern bool effects_is_empty(void);
extern void effects_commit(void);
extern void effects_abort(void);
extern void effects_forget(void);
extern void effects_savepoint_release(int level);
extern void effects_savepoint_rollback(int level);

#endif
