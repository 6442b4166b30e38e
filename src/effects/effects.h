/*
 * effects/effects.h
 *	  Effects: changes of keys in Redis that take effect if and only if the PostgreSQL transaction commits.
 *
 * Owns: the list of this transaction's effects, with their savepoint levels (memory: TopTransactionContext). The life
 * cycle of all kinds is here and in redis/effects.lua. effect_functions.c only knows what each kind asks for.
 * Locks: none.
 * Never: lets a transaction commit before Redis has confirmed its holds. The exception are durable effects, which
 * their rows will apply.
 *
 * How an effect ends: its hold in Redis names the subtransaction that made it, and only the fate of that
 * subtransaction decides. If it has committed, the effect is applied, else it is undone. COMMIT, ROLLBACK and
 * ROLLBACK TO tell Redis so without waiting. They use the connection on which the hold was sent, or a message
 * (send_queue.h) if that connection is gone. If Redis is not told, the patrol settles the hold (effect_patrol.c), or
 * the next transaction that wants to change the key does.
 *
 * When a backend waits: if the caller needs Redis' answer (the bounds of a counter, a value that is taken), the
 * backend waits for it in the call. It sends all other requests without waiting (wire.h), and collects the answers
 * before the commit, in the same wait as the answers to reservations. A refusal then raises an error.
 *
 * Effects need neither lease nor epoch, because holds are data: a Redis process that has lost a hold has lost the
 * effect too.
 */
#ifndef FENCE_EFFECTS_H
#define FENCE_EFFECTS_H

#include "access/xact.h"
#include "base/stamp.h"
#include "effects/effect_call.h"

/*
 * Holds the effect for this (sub)transaction, or tells why it cannot. For a pipelined effect it returns "held" before
 * Redis has answered. If holds of transactions that are over stand in the way, it settles them and does not wait for
 * them. Raises 08006 if Redis cannot be reached, 58000 if Redis answers with an error. Interruptible; waits at most
 * `timeout` for each answer.
 */
extern EffectAnswer effect_hold(EffectCall *call);

/*
 * For PRE_COMMIT and PRE_PREPARE: returns when Redis has confirmed every hold. If it has not, this raises an error
 * like effect_hold or effect_raise_refused. Interruptible; waits at most `timeout`, and again for each effect that
 * was refused, because the transaction in the way may have ended meanwhile. Later calls of effect_hold wait for their
 * answers at once.
 */
extern void effects_before_end(void);

/* The kind of this transaction's last effect on the key, "" if it has none. */
extern const char *effect_last_kind(const char *key);

/* The name of the hold that effect_hold has made last, and its number within the transaction. */
extern const char *effect_last_hold(void);
extern int	effect_last_number(void);

/*
 * Asks Redis about a key (FCALL function 1 key ...). The answer is an array of strings or a number. Raises errors
 * like effect_hold.
 */
extern EffectAnswer effect_ask(const char *function, const char *key, int nargs, const char **args);

/* Raises 22023 if effects may not change this key. */
extern void effect_require_key(const char *key);

/* The fate of the transaction that made the hold. False: the hold is of another cluster, or its name is malformed. */
extern bool effect_fate(const char *hold, StampFate *fate);

/*
 * For the ends of transactions and savepoints. effects_commit applies all effects of the transaction, effects_abort
 * undoes them, effects_forget clears the list. These neither wait nor raise nor palloc.
 */
extern bool effects_is_empty(void);
extern void effects_commit(void);
extern void effects_abort(void);
extern void effects_forget(void);
extern void effects_savepoint_release(int level);
extern void effects_savepoint_rollback(int level);

#endif
