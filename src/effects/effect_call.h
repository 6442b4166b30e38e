/*
 * effects/effect_call.h
 *	  The request for an effect, and Redis' answer to it.
 */
#ifndef FENCE_EFFECT_CALL_H
#define FENCE_EFFECT_CALL_H

#define EFFECT_ID_LEN 100
#define EFFECT_MAX_KEY 1024
#define EFFECT_MAX_ARGS 6
#define EFFECT_PIECE_BYTES (256 * 1024)	/* maximum bytes of a published value in one call, which bounds how long Redis is busy */
#define EFFECT_PIECE_STRINGS 200		/* maximum names and values of a published hash in one call */

#define EFFECT_COUNT_MAX INT64CONST(9007199254740991)	/* the largest value of a counter: see redis/effects.lua */

/*
 * The request for an effect. redis/effects.lua describes the kinds. Strings are UTF-8, and must live as long as the
 * call.
 */
typedef struct EffectCall
{
	const char *kind;
	const char *key;
	const char *other_key;		/* or NULL */
	int			nargs;
	const char *args[EFFECT_MAX_ARGS];	/* Redis keeps these with the hold */
	int			nchecks;
	const char *checks[3];		/* arguments that only this call needs; Redis does not store them */
	const char **decided;		/* the one of args that Redis replaces by the third word of "held"; or NULL */
	bool		pipelined;		/* the caller does not need the answer before the commit */
	bool		durable;		/* the effect is also a row of fence.outbox */
	bool		needs_redis;	/* Redis must confirm the effect before the commit, even if it is durable */
	int			nrow;			/* number of strings in row; 0: the row has args instead */
	const char **row;			/* arguments of the row; if pipelined, Redis keeps these with the hold instead of args */
} EffectCall;

/* Redis' answer, in UTF-8 as Redis gave it (utf8.h); palloc'd. The first word is "held", or the reason why not. */
typedef struct EffectAnswer
{
	int			n;
	char	  **words;
	size_t	   *lens;			/* lengths of the words; NULL if unasked */
	bool		unasked;		/* Redis could not be reached, but the effect is durable, so its row suffices */
} EffectAnswer;

/* Whether the first word of the answer is `word`. */
extern bool effect_says(const EffectAnswer *answer, const char *word);

/* Raises the error for a refusal. Handles the reasons that several kinds of effects have in common. */
extern void effect_raise_refused(const char *key, const EffectAnswer *answer);

#endif
