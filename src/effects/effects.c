/*
 * effects/effects.c
 *	  The life of an effect: a transaction holds it, then applies or undoes it at its end; see effects.h.
 *
 * Owns: the list of effects, in the order in which they were made. The effects of the innermost savepoint are always
 * at the end of the list. ROLLBACK TO removes that end, and RELEASE moves it to the level above.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/test_hooks.h"
#include "base/utf8.h"
#include "effects/effect_call.h"
#include "effects/effect_row.h"
#include "effects/effects.h"
#include "redis/library.h"
#include "redis/resp.h"
#include "send/coordinator.h"
#include "send/ledger.h"

#define HEAD_BYTES	256			/* maximum length of a message before its pairs of key and hold */
#define SETTLE_TRIES 5			/* how often a request is repeated after other transactions' holds were settled */
/* Redis does nothing else while it ends the effects of one message. So a message ends at most: */
#define MESSAGE_EFFECTS 100		/* so many effects, */
#define MESSAGE_KEPT	(1024 * 1024)	/* with so many bytes in Redis, unless a single effect has more */

/* A command to Redis, in one chunk of memory */
typedef struct Command
{
	int			nkeys;			/* 1 or 2; the keys are argv[3] and argv[4] */
	int			argc;
	const char **argv;
	size_t	   *argvlen;
} Command;

typedef enum EffectState
{
	EFFECT_SENT,				/* sent; no answer yet */
	EFFECT_HELD,
	EFFECT_REFUSED,				/* Redis has refused to hold it; it may be requested again */
	EFFECT_UNANSWERED			/* the answer is lost; it must not be sent again, see ask() */
} EffectState;

typedef struct Effect
{
	const char *kind;
	char	   *key;
	char		hold[EFFECT_ID_LEN];
	uint64		serial;			/* number of the effect in this process; answers are matched by it */
	EffectState state;
	bool		row_will_do;	/* the patrol can apply it from its row, so it does not need the hold */
	Command    *command;		/* the request; NULL once the effect is held */
	int			node;			/* to which the request was sent */
	int			level;			/* nest level of the savepoint in which it was made */
	int			before;			/* index of this transaction's previous effect on that key, -1 if there is none */
	size_t		kept;			/* bytes that Redis keeps with the hold */
} Effect;

/* The last effect on each key. The hash function uses the text, not the pointer. */
typedef struct LastEffect
{
	const char *key;
	int			index;			/* -1: savepoints have rolled back all effects on that key */
} LastEffect;

static Effect *effects = NULL;
static HTAB *last_effects = NULL;
static int	neffects = 0,
			effects_size = 0;
static int	number = 0;			/* number of the last effect in this transaction; counts those rolled back too */
static uint64 last_serial = 0;	/* serial of the last effect in this process */
static bool any_durable = false;
static bool any_pipelined = false;	/* some effect was sent without waiting for the answer */
static bool collected = false;	/* effects_before_end has collected the answers: the transaction is about to end */
static char unanswered_why[REASON_LEN];	/* why the last unanswered effect got no answer */

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

static uint32
key_hash(const void *key, Size size)
{
	const char *text = *(const char *const *) key;

	(void) size;
	return DatumGetUInt32(hash_any((const unsigned char *) text, strlen(text)));
}

static int
key_compare(const void *a, const void *b, Size size)
{
	(void) size;
	return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static void
create_last_effects(void)
{
	HASHCTL		control = {.keysize = sizeof(char *), .entrysize = sizeof(LastEffect), .hash = key_hash, .match = key_compare,
		.hcxt = TopTransactionContext};

	last_effects = hash_create("pgcache_fence effects", 32, &control, HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
}

/* This transaction's last effect on the key, NULL if there is none. Allocates nothing. */
static LastEffect *
find_last(const char *key)
{
	LastEffect *last = last_effects ? hash_search(last_effects, &key, HASH_FIND, NULL) : NULL;

	return last && last->index >= 0 ? last : NULL;
}

const char *
effect_last_kind(const char *key)
{
	LastEffect *last = find_last(key);

	return last ? effects[last->index].kind : "";
}

/* Removes the last effect from the list. */
static void
forget_last(void)
{
	const Effect *effect = &effects[--neffects];
	LastEffect *last = find_last(effect->key);

	if (last)
		last->index = effect->before;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Keys and fates
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Whether the name of a hold can be derived from the key so that both are in the same slot. beside() in effects.lua
 * must have the same rule.
 */
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
				 errmsg("no effect may touch key \"%s\"", utf8_to_display(key)),
				 errdetail("Keys that begin with \"%s:\" belong to pgcache_fence.", setting_namespace)));
	if (!has_plain_slot(key))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no effect may touch key \"%s\"", utf8_to_display(key)),
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

/*
 * Raises an error: Redis has answered with the error `reply`, or (reply is NULL) it could not be reached, because of
 * `why`.
 */
static void
raise_problem(redisReply *reply, const char *why)
{
	char		text[REASON_LEN];

	if (reply)
	{
		snprintf(text, sizeof(text), "Redis answered: %.*s", (int) Min(reply->len, sizeof(text) - 32), reply->str);
		freeReplyObject(reply);
	}
	else
		strlcpy(text, why, sizeof(text));
	metrics_add_server(SERVER_METRIC_EFFECT_HOLD_FAILED, 1);
	ereport(ERROR,
			(errcode(reply ? ERRCODE_SYSTEM_ERROR : ERRCODE_CONNECTION_FAILURE),
			 errmsg("could not hold an effect in Redis: %s", text),
			 reply ? errhint("Redis refused the command. doc/operations.md, \"Redis\", tells what pgcache_fence needs.") :
			 errhint("Try the transaction again when Redis is back; SELECT * FROM fence.state tells what is wrong.")));
}

/* The reply as palloc'd strings; a number becomes a string. Frees the reply. */
static EffectAnswer
take_answer(redisReply *reply)
{
	EffectAnswer answer = {0};
	bool		many = reply->type == REDIS_REPLY_ARRAY;
	size_t		n = many ? reply->elements : 1;

	answer.words = palloc(sizeof(char *) * (n + 1));
	answer.lens = palloc(sizeof(size_t) * (n + 1));
	for (size_t i = 0; i < n; i++)
	{
		redisReply *one = many ? reply->element[i] : reply;

		if (one->type != REDIS_REPLY_INTEGER && one->type != REDIS_REPLY_STRING)
			continue;
		answer.words[answer.n] = one->type == REDIS_REPLY_INTEGER ? psprintf("%lld", one->integer) : utf8_copy(one->str, one->len);
		answer.lens[answer.n] = one->type == REDIS_REPLY_INTEGER ? strlen(answer.words[answer.n]) : one->len;
		answer.n++;
	}
	answer.words[answer.n] = NULL;
	freeReplyObject(reply);
	return answer;
}

/*
 * Makes an FCALL of that function, with one key, or two keys of the same slot. It lives in TopTransactionContext,
 * because effects_before_end may send it again.
 */
static Command *
make_command(const char *function, int nkeys, const char **keys, int nargs, const char **args)
{
	int			argc = 3 + nkeys + nargs;
	const char *head[] = {"FCALL", function, nkeys == 2 ? "2" : "1"};
	Size		size = MAXALIGN(sizeof(Command)) + argc * (sizeof(char *) + sizeof(size_t));
	Size		bytes = 0;
	Command    *command;
	char	   *p;

#define STRING(i) ((i) < 3 ? head[i] : (i) < 3 + nkeys ? keys[(i) - 3] : args[(i) - 3 - nkeys])
	for (int i = 0; i < argc; i++)
		bytes += strlen(STRING(i)) + 1;
	command = MemoryContextAllocHuge(TopTransactionContext, size + bytes);
	command->nkeys = nkeys;
	command->argc = argc;
	command->argv = (const char **) ((char *) command + MAXALIGN(sizeof(Command)));
	command->argvlen = (size_t *) (command->argv + argc);
	p = (char *) command + size;
	for (int i = 0; i < argc; i++)
	{
		command->argv[i] = p;
		command->argvlen[i] = strlen(STRING(i));
		memcpy(p, STRING(i), command->argvlen[i] + 1);
		p += command->argvlen[i] + 1;
	}
#undef STRING
	return command;
}

/*
 * Sends a command and waits for the reply, which may be an error reply. NULL: there is no reply.
 *
 * A command is sent again only after Redis has answered it. Suppose that a command without an answer were sent twice,
 * and that the first one arrived after the transaction had committed and its effect was applied. Then the patrol
 * would find that hold, and apply the effect again. Instead, a missing answer is an error. So a hold that arrives
 * late belongs to a subtransaction that was rolled back. (For durable effects Redis recognises a late hold by the
 * mark.)
 */
static redisReply *
ask(const Command *command)
{
	redisReply *reply;
	Call		call;

	call_wrap(&call, command->argc, command->argv, command->argvlen);
	return coordinator_ask_once(command->argv[3], &call, &reply) ? reply : NULL;
}

EffectAnswer
effect_ask(const char *function, const char *key, int nargs, const char **args)
{
	redisReply *reply;
	Command    *command;

	shared_require();
	command = make_command(function, 1, &key, nargs, args);
	reply = ask(command);
	pfree(command);
	if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
		raise_problem(reply, coordinator_problem());
	return take_answer(reply);
}

/*
 * Ends those holds in the way whose transactions are over. Their own messages to Redis are late or lost. Returns
 * whether there was any such hold.
 */
static bool
settle_holders(const Command *command, const EffectAnswer *answer)
{
	bool		any = false;

	for (int i = 1; i < answer->n; i++)
	{
		StampFate	fate;
		const char *hold = answer->words[i];

		if (!effect_fate(hold, &fate) || fate == FATE_IN_PROGRESS)
			continue;
		for (int k = 0; k < command->nkeys; k++)
		{
			const char *key = command->argv[3 + k];
			const char *verb = fate == FATE_COMMITTED ? "apply" : "undo";
			const char *argv[] = {"FCALL", "fence_effects_end", "0", setting_namespace, verb, key, hold};
			Call		call;
			redisReply *reply;

			call_wrap(&call, lengthof(argv), argv, NULL);
			if (coordinator_ask(key, 1, &call, &reply))
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

/* Adds the effect to the list before the request is sent, because Redis may hold it even if no answer comes. */
static Effect *
note_effect(const EffectCall *call)
{
	Effect	   *effect;
	LastEffect *last;
	bool		found;

	ledger_require_open();
	if (last_effects == NULL)
		create_last_effects();
	if (neffects == effects_size)
	{
		effects_size = effects_size ? effects_size * 2 : 16;
		effects = effects ? repalloc_huge(effects, effects_size * sizeof(Effect)) :
			MemoryContextAlloc(TopTransactionContext, effects_size * sizeof(Effect));
	}
	effect = &effects[neffects];
	effect->kind = call->kind;
	effect->key = MemoryContextStrdup(TopTransactionContext, call->key);
	effect->serial = ++last_serial;
	effect->state = EFFECT_SENT;
	effect->row_will_do = call->durable && !call->needs_redis;
	effect->command = NULL;
	effect->node = fence_node_of(call->key);
	effect->level = GetCurrentTransactionNestLevel();
	effect->kept = 0;
	last = hash_search(last_effects, &effect->key, HASH_ENTER, &found);
	effect->before = found ? last->index : -1;
	last->index = neffects;
	snprintf(effect->hold, sizeof(effect->hold), "%s.%llu.%08x.%d", library_owner(),
			 (unsigned long long) U64FromFullTransactionId(GetCurrentFullTransactionId()),
			 (uint32) fence_shared->nonce, ++number);
	neffects++;
	return effect;
}

/* Makes the request to hold the effect. Adds to *kept the bytes that Redis will keep with the hold. */
static Command *
hold_command(const EffectCall *call, const Effect *effect, size_t *kept)
{
	const char *keys[] = {call->key, call->other_key};
	bool		whole = call->pipelined && call->nrow > 0;
	int			nkept = whole ? call->nrow : call->nargs;
	const char *const *keep = whole ? call->row : call->args;
	const char **args = palloc(sizeof(char *) * (7 + nkept + call->nchecks));
	char		top[64];
	char		database[12] = "";
	char		count[12];
	int			n = 0;
	Command    *command;

	snprintf(top, sizeof(top), "%s.%s", library_owner(), fence_stamp());
	if (call->durable)
		snprintf(database, sizeof(database), "%u", MyDatabaseId);
	pg_ltoa(nkept, count);
	args[n++] = setting_namespace;
	args[n++] = effect->hold;
	args[n++] = top;
	args[n++] = effect->before >= 0 ? effects[effect->before].hold : "";
	args[n++] = database;
	args[n++] = call->kind;
	args[n++] = count;
	for (int i = 0; i < nkept; i++)
	{
		args[n++] = keep[i];
		*kept += strlen(keep[i]);
	}
	for (int i = 0; i < call->nchecks; i++)
		args[n++] = call->checks[i];
	command = make_command("fence_effect", call->other_key ? 2 : 1, keys, n, args);
	pfree(args);
	return command;
}

static void
note_held(Effect *effect)
{
	effect->state = EFFECT_HELD;
	pfree(effect->command);
	effect->command = NULL;
}

static char *held[] = {"held", NULL};

/*
 * Leaves the effect to its row, from which the patrol applies it. If the hold has arrived nevertheless, the mark
 * prevents a second apply.
 */
static EffectAnswer
leave_to_row(Effect *effect)
{
	effect->state = EFFECT_UNANSWERED;
	return (EffectAnswer) {.n = 1, .words = held, .unasked = true};
}

static int
compare_serials(const void *serial, const void *effect)
{
	uint64		a = *(const uint64 *) serial;
	uint64		b = ((const Effect *) effect)->serial;

	return a < b ? -1 : a > b;
}

/* The effect with that serial. NULL: it is of an earlier transaction, or ROLLBACK TO has removed it. */
static Effect *
effect_of(uint64 serial)
{
	return neffects > 0 ? bsearch(&serial, effects, neffects, sizeof(Effect), compare_serials) : NULL;
}

/* Whether one of the holds that the answer names is of this transaction itself. */
static bool
any_is_own(const EffectAnswer *answer)
{
	for (int i = 1; i < answer->n; i++)
	{
		const char *n = strrchr(answer->words[i], '.');
		/* Each effect raises both number and last_serial by one, so their difference gives the serial. */
		Effect	   *effect = n ? effect_of(last_serial - number + strtoul(n + 1, NULL, 10)) : NULL;

		if (effect && strcmp(answer->words[i], effect->hold) == 0)
			return true;
	}
	return false;
}

/* Requests the hold and waits for the answer. Repeats the request after it has settled holds that were in the way. */
static EffectAnswer
hold_now(Effect *effect)
{
	EffectAnswer answer = {0};

	for (int try = 0; try < SETTLE_TRIES; try++)
	{
		redisReply *reply;

		CHECK_FOR_INTERRUPTS();
		effect->state = EFFECT_UNANSWERED;
		reply = ask(effect->command);
		if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
		{
			if (!effect->row_will_do)
				raise_problem(reply, coordinator_problem());
			freeReplyObject(reply);
			return leave_to_row(effect);
		}
		answer = take_answer(reply);
		if (effect_says(&answer, "held"))
		{
			metrics_add_server(SERVER_METRIC_EFFECT_HOLD_HELD, 1);
			note_held(effect);
			return answer;
		}
		effect->state = EFFECT_REFUSED;
		if (!settle_holders(effect->command, &answer))
			break;
	}
	metrics_add_server(SERVER_METRIC_EFFECT_HOLD_REFUSED, 1);
	if (effect_says(&answer, "busy") && any_is_own(&answer))
		answer.words[0] = pstrdup("mixed");
	return answer;
}

/* Takes the answer to a request that was sent without waiting; see LinkAnswer. */
static void
take_pipelined_answer(const Expected *expected, const redisReply *reply)
{
	Effect	   *effect = effect_of(expected->number);
	bool		held = reply && calls_is(reply, "held");

	metrics_add_server(SERVER_METRIC_EFFECT_HOLD_HELD, held);
	if (effect == NULL)
		return;
	if (held)
		note_held(effect);
	else if (reply)
		effect->state = EFFECT_REFUSED;
	else
	{
		effect->state = EFFECT_UNANSWERED;
		strlcpy(unanswered_why, link_problem, sizeof(unanswered_why));
	}
}

/* Sends the request without waiting. effects_before_end finds out whether Redis holds the effect. */
static EffectAnswer
hold_pipelined(Effect *effect)
{
	const Command *command = effect->command;

	CHECK_FOR_INTERRUPTS();
	any_pipelined = true;
	if (coordinator_pipeline(effect->key, command->argc, command->argv, command->argvlen, take_pipelined_answer, effect->serial))
		return (EffectAnswer) {.n = 1, .words = held};
	if (!effect->row_will_do)
		raise_problem(NULL, coordinator_problem());
	return leave_to_row(effect);
}

EffectAnswer
effect_hold(EffectCall *call)
{
	Effect	   *effect;
	EffectAnswer answer;

	shared_require();
	PreventCommandDuringRecovery("an effect");
	PreventCommandIfReadOnly("an effect");
	effect = note_effect(call);
	effect->command = hold_command(call, effect, &effect->kept);
	answer = call->pipelined && !collected ? hold_pipelined(effect) : hold_now(effect);
	if (!effect_says(&answer, "held"))
	{
		pfree(effect->command);
		forget_last();
		return answer;
	}
	fence_test_point("effect-held");
	/* If a crash could lose the commit, Redis might have applied an effect of a transaction that never happened. */
	ForceSyncCommit();
	if (call->decided && answer.n > 2)
		*call->decided = answer.words[2];
	if (call->durable)
	{
		any_durable = true;
		effect_row_insert(effect_last_hold(), call);
	}
	return answer;
}

void
effects_before_end(void)
{
	fence_test_point("before-effects-collected");
	if (any_pipelined)
		(void) coordinator_collect();
	for (int i = 0; i < neffects; i++)
	{
		Effect	   *effect = &effects[i];

		/* The transaction in the way may have ended by now, so request the hold again. */
		if (effect->state == EFFECT_REFUSED)
		{
			EffectAnswer answer = hold_now(effect);

			if (!effect_says(&answer, "held"))
				effect_raise_refused(effect->key, &answer);
		}
		else if (effect->state != EFFECT_HELD && !effect->row_will_do)
			raise_problem(NULL, unanswered_why);
	}
	collected = true;
	fence_test_point("effects-collected");
}

/* -----------------------------------------------------------------------------------------------------------------
 * Ending
 * -----------------------------------------------------------------------------------------------------------------
 */

static RespBuffer pairs;				/* pairs of key and hold for the next message */

/* Posts one message, which is one command, with the pairs collected so far. */
static bool
post_pairs(int node, const char *verb)
{
	static char bytes[HEAD_BYTES + RESP_BUFFER_BYTES];
	Message		message = {.kind = MESSAGE_END_EFFECTS, .node = node, .strings = 5 + pairs.strings, .bytes = bytes};
	int			len;

	if (pairs.strings == 0)
		return true;
	len = snprintf(bytes, HEAD_BYTES,
				   "$5\r\nFCALL\r\n$17\r\nfence_effects_end\r\n$1\r\n0\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
				   strlen(setting_namespace), setting_namespace, strlen(verb), verb);
	memcpy(bytes + len, pairs.bytes, pairs.len);
	message.len = len + pairs.len;
	message.count.slot = METRIC_EFFECTS;
	*(*verb == 'a' ? &message.count.commits : &message.count.aborts) = pairs.strings / 2;
	resp_clear(&pairs);
	return coordinator_post(&message);
}

/* Ends those effects from index `first` on that were sent to that node. */
static bool
end_on_node(int first, int node, const char *verb)
{
	bool		ok = true;
	size_t		kept = 0;

	resp_clear(&pairs);
	for (int i = first; i < neffects; i++)
	{
		if (effects[i].node != node)
			continue;
		if (!resp_has_room(&pairs, EFFECT_MAX_KEY + EFFECT_ID_LEN + 64) || pairs.strings >= 2 * MESSAGE_EFFECTS ||
			kept + effects[i].kept > MESSAGE_KEPT)
		{
			ok = post_pairs(node, verb) && ok;
			kept = 0;
		}
		kept += effects[i].kept;
		resp_string(&pairs, effects[i].key);
		resp_string(&pairs, effects[i].hold);
	}
	return post_pairs(node, verb) && ok;
}

static void
end_from(int first, const char *verb)
{
	int			last = -1;
	bool		ok = true;

	for (int i = first; i < neffects; i++)
		if (effects[i].node < MAX_NODES)
			last = Max(last, effects[i].node);
	for (int node = 0; node <= last; node++)
		ok = end_on_node(first, node, verb) && ok;
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
	last_effects = NULL;
	neffects = effects_size = number = 0;
	any_durable = any_pipelined = collected = false;
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
	while (neffects > first)
		forget_last();
}
