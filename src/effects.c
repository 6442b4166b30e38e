/*
 * effects.c
 *	  The life of an effect: held, then applied or undone with its transaction; see effects.h.
 *
 * Owns: the list of effects. They are listed in the order in which they were made, so those of the innermost savepoint are
 * always at its end: a rollback takes that end away, a release hands it to the level above.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "coordinator.h"
#include "draft.h"
#include "effects.h"
#include "redis/library.h"
#include "settings.h"
#include "shared.h"
#include "test_hooks.h"

#define HEAD_BYTES	256			/* of a letter, before its pairs of key and hold */
#define SETTLE_TRIES 5

typedef struct Effect
{
	char	   *key;
	char		hold[EFFECT_ID_LEN];
	int			node;			/* that was asked */
	int			level;			/* of the savepoint in which it was made */
} Effect;

static Effect *effects = NULL;
static int	neffects = 0,
			effects_size = 0;
static int	number = 0;			/* of the last effect in this transaction, those taken back included */
static bool any_durable = false;

bool
effects_is_empty(void)
{
	return neffects == 0;
}

const char *
effect_last_hold(void)
{
	return effects[neffects - 1].hold;
}

int
effect_last_number(void)
{
	return number;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Keys and fates
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether Redis finds a name for the hold in the key's slot; effects.lua, beside(), goes by the same rule. */
static bool
has_plain_slot(const char *key)
{
	const char *open = strchr(key, '{');
	const char *close = open ? strchr(open, '}') : NULL;

	return (close && close > open + 1) || strchr(key, '}') == NULL;
}

void
effect_require_key(const char *key)
{
	size_t		len = strlen(setting_namespace);

	if (*key == '\0' || strlen(key) > EFFECT_MAX_KEY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the key of an effect must have 1 to %d bytes", EFFECT_MAX_KEY)));
	if (strncmp(key, setting_namespace, len) == 0 && key[len] == ':')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no effect may touch key \"%s\"", key),
				 errdetail("Keys that begin with \"%s:\" belong to pgcache_fence.", setting_namespace)));
	if (!has_plain_slot(key))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no effect may touch key \"%s\"", key),
				 errdetail("It has a closing brace, but no hash tag."),
				 errhint("Write the hash tag as {tag}, or use no braces.")));
}

bool
effect_fate(const char *hold, StampFate *fate)
{
	char		stamp[EFFECT_ID_LEN];
	size_t		len = strlen(library_owner());
	char	   *last;

	if (strncmp(hold, library_owner(), len) != 0 || hold[len] != '.' || strlen(hold) >= sizeof(stamp))
		return false;
	strlcpy(stamp, hold + len + 1, sizeof(stamp));
	last = strrchr(stamp, '.');
	if (last == NULL)
		return false;
	*last = '\0';
	*fate = fence_stamp_own_fate(stamp);
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Asking Redis
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Raises: Redis could not be asked, or (reply) answered with an error. Frees the reply. */
static void
raise_problem(redisReply *reply)
{
	char		why[REASON_LEN];

	if (reply)
	{
		snprintf(why, sizeof(why), "Redis answered: %.*s", (int) Min(reply->len, sizeof(why) - 32), reply->str);
		freeReplyObject(reply);
	}
	else
		strlcpy(why, coordinator_problem(), sizeof(why));
	ereport(ERROR,
			(errcode(reply ? ERRCODE_SYSTEM_ERROR : ERRCODE_CONNECTION_FAILURE),
			 errmsg("could not hold an effect in Redis: %s", why),
			 errhint("Try the transaction again when Redis is back; SELECT * FROM fence.state tells how things stand.")));
}

/* As strings, palloc'd; a number becomes one. Frees the reply. */
static EffectAnswer
take_answer(redisReply *reply)
{
	EffectAnswer answer = {0};
	bool		many = reply->type == REDIS_REPLY_ARRAY;
	size_t		n = many ? reply->elements : 1;

	answer.words = palloc(sizeof(char *) * (n + 1));
	for (size_t i = 0; i < n; i++)
	{
		redisReply *one = many ? reply->element[i] : reply;

		if (one->type == REDIS_REPLY_INTEGER)
			answer.words[answer.n++] = psprintf("%lld", one->integer);
		else if (one->type == REDIS_REPLY_STRING)
			answer.words[answer.n++] = pnstrdup(one->str, one->len);
	}
	answer.words[answer.n] = NULL;
	freeReplyObject(reply);
	return answer;
}

/*
 * NULL: Redis could not be asked. May be an error reply. keys: one, or two of one slot. Never sent twice: a hold that arrived
 * after the transaction has committed and its effect was applied would be settled, and applied again. What was sent and not
 * answered is an error, so whatever arrives late belongs to a subtransaction that is rolled back.
 */
static redisReply *
ask(const char *function, int nkeys, const char **keys, int nargs, const char **args)
{
	int			argc = 3 + nkeys + nargs;
	const char **argv = palloc(sizeof(char *) * argc);
	size_t	   *argvlen = palloc(sizeof(size_t) * argc);
	redisReply *reply;

	argv[0] = "FCALL";
	argv[1] = function;
	argv[2] = nkeys == 2 ? "2" : "1";
	memcpy(argv + 3, keys, sizeof(char *) * nkeys);
	memcpy(argv + 3 + nkeys, args, sizeof(char *) * nargs);
	for (int i = 0; i < argc; i++)
		argvlen[i] = strlen(argv[i]);
	reply = coordinator_ask_once(keys[0], argc, argv, argvlen);
	pfree(argv);
	pfree(argvlen);
	return reply;
}

EffectAnswer
effect_ask(const char *function, const char *key, int nargs, const char **args)
{
	redisReply *reply;

	shared_require();
	reply = ask(function, 1, &key, nargs, args);
	if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
		raise_problem(reply);
	return take_answer(reply);
}

/*
 * Holds that are in the way although their transactions are over: their letters are still on their way, or lost. Ends them
 * now. Returns whether there was any.
 */
static bool
settle_holders(const EffectCall *call, const EffectAnswer *answer)
{
	bool		any = false;

	for (int i = 1; i < answer->n; i++)
	{
		StampFate	fate;
		const char *hold = answer->words[i];

		if (!effect_fate(hold, &fate) || fate == FATE_IN_PROGRESS)
			continue;
		for (int k = 0; k < (call->other_key ? 2 : 1); k++)
		{
			const char *key = k == 0 ? call->key : call->other_key;
			const char *verb = fate == FATE_COMMITTED ? "apply" : "undo";
			const char *argv[] = {"FCALL", "fence_effects_end", "0", setting_namespace, verb, key, hold};
			size_t		argvlen[lengthof(argv)];
			redisReply *reply;

			for (int a = 0; a < (int) lengthof(argv); a++)
				argvlen[a] = strlen(argv[a]);
			reply = coordinator_ask(key, lengthof(argv), argv, argvlen);
			if (reply)
				freeReplyObject(reply);
		}
		any = true;
	}
	return any;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Holding
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Notes the effect before it is asked for: if no answer comes it may be held all the same. */
static Effect *
note_effect(const EffectCall *call)
{
	Effect	   *effect;

	if (neffects == effects_size)
	{
		effects_size = effects_size ? effects_size * 2 : 16;
		effects = effects ? repalloc_huge(effects, effects_size * sizeof(Effect)) :
			MemoryContextAlloc(TopTransactionContext, effects_size * sizeof(Effect));
	}
	effect = &effects[neffects];
	effect->key = MemoryContextStrdup(TopTransactionContext, call->key);
	effect->node = fence_node_of(call->key);
	effect->level = GetCurrentTransactionNestLevel();
	snprintf(effect->hold, sizeof(effect->hold), "%s.%llu.%08x.%d", library_owner(),
			 (unsigned long long) U64FromFullTransactionId(GetCurrentFullTransactionId()),
			 (uint32) fence_shared->nonce, ++number);
	neffects++;
	return effect;
}

/* Returns what ask does. */
static redisReply *
ask_for_hold(const EffectCall *call, const Effect *effect)
{
	const char *keys[] = {call->key, call->other_key};
	const char *args[6 + EFFECT_MAX_ARGS + 2];
	char		top[64];
	char		database[12] = "";
	char		nargs[12];
	int			n = 0;

	snprintf(top, sizeof(top), "%s.%s", library_owner(), fence_stamp());
	if (call->durable)
		snprintf(database, sizeof(database), "%u", MyDatabaseId);
	pg_ltoa(call->nargs, nargs);
	args[n++] = setting_namespace;
	args[n++] = effect->hold;
	args[n++] = top;
	args[n++] = database;
	args[n++] = call->kind;
	args[n++] = nargs;
	for (int i = 0; i < call->nargs; i++)
		args[n++] = call->args[i];
	for (int i = 0; i < call->nchecks; i++)
		args[n++] = call->checks[i];
	return ask("fence_effect", call->other_key ? 2 : 1, keys, n, args);
}

static bool
is_word(const EffectAnswer *answer, const char *word)
{
	return answer->n > 0 && strcmp(answer->words[0], word) == 0;
}

/* One try. */
static EffectAnswer
try_to_hold(const EffectCall *call)
{
	Effect	   *effect = note_effect(call);
	redisReply *reply = ask_for_hold(call, effect);
	static char *held[] = {"held", NULL};
	EffectAnswer answer;

	if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
	{
		if (!call->durable || call->needs_redis)
			raise_problem(reply);
		if (reply)
			freeReplyObject(reply);
		/* it will be applied from its row; what may have arrived all the same counts once */
		return (EffectAnswer) {.n = 1, .words = held, .unasked = true};
	}
	answer = take_answer(reply);
	if (!is_word(&answer, "held"))
		neffects--;
	return answer;
}

/* Whether one of the holders that an answer names is this transaction itself. */
static bool
any_is_own(const EffectAnswer *answer)
{
	for (int i = 1; i < answer->n; i++)
		for (int e = 0; e < neffects; e++)
			if (strcmp(answer->words[i], effects[e].hold) == 0)
				return true;
	return false;
}

EffectAnswer
effect_hold(const EffectCall *call)
{
	EffectAnswer answer = {0};

	shared_require();
	PreventCommandDuringRecovery("an effect");
	PreventCommandIfReadOnly("an effect");
	for (int try = 0; try < SETTLE_TRIES; try++)
	{
		CHECK_FOR_INTERRUPTS();
		answer = try_to_hold(call);
		if (is_word(&answer, "held") || !settle_holders(call, &answer))
			break;
	}
	if (is_word(&answer, "busy") && any_is_own(&answer))
		answer.words[0] = pstrdup("mixed");
	if (!is_word(&answer, "held"))
		return answer;
	fence_test_point("effect-held");
	/* a commit that is lost in a crash must not have been applied */
	ForceSyncCommit();
	if (call->durable)
	{
		any_durable = true;
		effect_outbox_insert(effect_last_hold(), call);
	}
	return answer;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Ending
 * -----------------------------------------------------------------------------------------------------------------
 */

static Draft pairs;				/* of key and hold */

/* Posts a letter of the pairs: one command. */
static bool
post_pairs(int node, const char *verb)
{
	static char bytes[HEAD_BYTES + DRAFT_BYTES];
	Letter		letter = {.kind = LETTER_END_EFFECTS, .node = node, .args = 1, .arg_bytes = bytes, .key_bytes = ""};
	int			len;

	if (pairs.strings == 0)
		return true;
	len = snprintf(bytes, HEAD_BYTES,
				   "*%d\r\n$5\r\nFCALL\r\n$17\r\nfence_effects_end\r\n$1\r\n0\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
				   5 + pairs.strings, strlen(setting_namespace), setting_namespace, strlen(verb), verb);
	memcpy(bytes + len, pairs.bytes, pairs.len);
	letter.arg_len = len + pairs.len;
	draft_clear(&pairs);
	return coordinator_post(&letter);
}

/* Ends the effects from `first` on that were held by that node. */
static bool
end_on_node(int first, int node, const char *verb)
{
	bool		ok = true;

	draft_clear(&pairs);
	for (int i = first; i < neffects; i++)
	{
		if (effects[i].node != node)
			continue;
		if (!draft_has_room(&pairs, EFFECT_MAX_KEY + EFFECT_ID_LEN + 64))
			ok = post_pairs(node, verb) && ok;
		draft_string(&pairs, effects[i].key);
		draft_string(&pairs, effects[i].hold);
	}
	return post_pairs(node, verb) && ok;
}

static void
end_from(int first, const char *verb)
{
	int			node = -1;
	bool		ok = true;

	for (;;)
	{
		int			next = MAX_NODES;

		for (int i = first; i < neffects; i++)
			if (effects[i].node > node && effects[i].node < next)
				next = effects[i].node;
		if (next == MAX_NODES)
			break;
		ok = end_on_node(first, next, verb) && ok;
		node = next;
	}
	if (!ok)
		fence_wake_patrol();
}

void
effects_commit(void)
{
	end_from(0, "apply");
	if (any_durable)
		pg_atomic_write_u32(&fence_shared->outbox_wanted, 1);
}

void
effects_abort(void)
{
	end_from(0, "undo");
}

void
effects_forget(void)
{
	effects = NULL;
	neffects = effects_size = number = 0;
	any_durable = false;
}

void
effects_savepoint_release(int level)
{
	for (int i = neffects - 1; i >= 0 && effects[i].level >= level; i--)
		effects[i].level = level - 1;
}

void
effects_savepoint_rollback(int level)
{
	int			first = neffects;

	while (first > 0 && effects[first - 1].level >= level)
		first--;
	end_from(first, "undo");
	neffects = first;
}
