/*
 * effects/effect_call.h
 *	  How an effect is asked for, and what Redis answers.
 */
#ifndef FENCE_EFFECT_CALL_H
#define FENCE_EFFECT_CALL_H

#define EFFECT_ID_LEN 100
#define EFFECT_MAX_KEY 1024
#define EFFECT_MAX_ARGS 6
#define EFFECT_PIECE_BYTES (256 * 1024)	/* of a value that is published: bounds how long Redis is busy with it */
#define EFFECT_PIECE_STRINGS 200		/* names and values of a hash */

#define EFFECT_COUNT_MAX INT64CONST(9007199254740991)	/* of counters: see redis/effects.lua */

/* What is asked for; see the kinds in redis/effects.lua. Strings are UTF-8, and need to live as long as the call. */
typedef struct EffectCall
{
	const char *kind;
	const char *key;
	const char *other_key;		/* or NULL */
	int			nargs;
	const char *args[EFFECT_MAX_ARGS];	/* kept with the hold */
	int			nchecks;
	const char *checks[3];		/* looked at only now */
	const char **decided;		/* one of args, of which Redis says what it is to be: the third word of "held"; or NULL */
	bool		unheard;		/* nobody needs the answer before the commit */
	bool		durable;		/* it is also a row of fence.outbox */
	bool		needs_redis;	/* durable or not: it is nothing unless it was checked */
	int			nrow;			/* arguments of the row, if there are more than args (then nrow > 0); */
	const char **row;			/* unheard: kept with the hold too, instead of args */
} EffectCall;

/* What Redis said, as it said it (utf8.h); palloc'd. The first word is "held", or why not. */
typedef struct EffectAnswer
{
	int			n;
	char	  **words;
	size_t	   *lens;			/* of the words; NULL if unasked */
	bool		unasked;		/* a durable effect that Redis could not be told of: its row will do */
} EffectAnswer;

/* Whether the answer's first word is that one. */
extern bool effect_says(const EffectAnswer *answer, const char *word);

/* Raises what a refusal that kinds have in common means for people. */
extern void effect_raise_refused(const char *key, const EffectAnswer *answer);

#endif
