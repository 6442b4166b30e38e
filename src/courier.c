/*
 * courier.c
 *	  The courier: a background worker that carries all backends' letters (outbox.h) to Redis over one connection, and
 *	  brings the answers back.
 *
 * Owns: that connection and what is outstanding on it. It decides nothing: whether a transaction may commit is decided
 * by its backend, from the word and the answers. A letter that could not be carried, or was not answered, is answered
 * FAILED if anybody waits for it; what ends reservations is left to the patrol.
 *
 * While letters keep coming it lets others run, then naps: being woken costs more than what it does, so what nobody waits
 * for rides along with what somebody does, or goes when the nap is over.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"

#include "compat.h"
#include "outbox.h"
#include "redis/connection.h"
#include "settings.h"
#include "shared.h"

#define CONNECT_AGAIN_US	INT64CONST(50000)	/* after an attempt to connect that led to no answer */
#define MAX_UNSENT			(1024 * 1024)	/* bytes; more letters stay in the ring */
#define BATCH_KEYS			128		/* operations in one command, and bytes of their arguments: bounds how long it takes */
#define BATCH_BYTES			(64 * 1024)
#define NAPS				3		/* of a millisecond, after the last letter or answer: what ends a transaction needs not wake it */

PGDLLEXPORT void fence_courier_main(Datum arg);

/* A letter whose answer is outstanding */
typedef struct Expected
{
	LetterKind	kind;
	bool		last;			/* of those that share a command, and so its reply */
	int			process;
	uint64		number;
} Expected;

/* Everything between us and one Redis process */
typedef struct Link
{
	RedisConnection *connection;	/* NULL: not connected */
	uint32		nodes_serial;	/* when its address was read */
	int64		connect_next;	/* not before this time; 0: the last connection has worked */
	int64		heard_at;		/* last answer, or when something became outstanding */
	Expected   *expected;		/* ring, in the order of sending */
	int			size;
	int			first;
	int			used;

	/* the command that is being made of operations */
	uint32		batch_epoch;
	int			batch_letters;
	int			batch_keys;
	int			batch_args;
	StringInfoData batch_key_bytes;
	StringInfoData batch_arg_bytes;
} Link;

static Link link_to_redis;
static WaitEventSet *wait_set = NULL;
static int	wait_socket_position;

/* -----------------------------------------------------------------------------------------------------------------
 * Outstanding answers
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
expect(Link *to, const Letter *letter)
{
	if (to->used == to->size)
	{
		int			size = to->size ? to->size * 2 : 1024;
		Expected   *bigger = MemoryContextAllocHuge(TopMemoryContext, size * sizeof(Expected));

		for (int i = 0; i < to->used; i++)
			bigger[i] = to->expected[(to->first + i) % to->size];
		if (to->expected)
			pfree(to->expected);
		to->expected = bigger;
		to->size = size;
		to->first = 0;
	}
	if (to->used == 0)
		to->heard_at = fence_clock();
	to->expected[(to->first + to->used++) % to->size] = (Expected) {
		.kind = letter->kind, .last = true, .process = letter->process, .number = letter->number
	};
}

/* A letter that will not be answered */
static void
give_up(LetterKind kind, int process, uint64 number)
{
	outbox_give_answer(process, number, ANSWER_FAILED, 0);
	if (kind == LETTER_END || kind == LETTER_END_DOMAIN)
		fence_wake_patrol();
}

/* The connection is over, and with it everything that is outstanding on it. */
static void
disconnect(Link *to, const char *why)
{
	if (why)
		outbox_set_problem(why);
	if (wait_set)
		FreeWaitEventSet(wait_set);
	wait_set = NULL;
	redis_close(to->connection);
	to->connection = NULL;
	to->batch_letters = 0;
	for (; to->used > 0; to->used--)
	{
		Expected   *lost = &to->expected[to->first];

		give_up(lost->kind, lost->process, lost->number);
		to->first = (to->first + 1) % to->size;
	}
}

static void
note_refusal(const redisReply *reply)
{
	char		text[REASON_LEN];

	if (reply->type == REDIS_REPLY_ERROR)
		snprintf(text, sizeof(text), "Redis answered: %.*s", (int) Min(reply->len, sizeof(text) - 32), reply->str);
	else
		strlcpy(text, "Redis is not armed for this epoch", sizeof(text));
	outbox_set_problem(text);
}

static bool
reply_begins(const redisReply *reply, const char *word)
{
	return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
		reply->element[0]->type == REDIS_REPLY_STRING && strcmp(reply->element[0]->str, word) == 0;
}

/* What is said of the reservation of one row. */
static AnswerKind
read_reserved(const redisReply *element, int64 *ahead)
{
	if (element->type != REDIS_REPLY_STRING || strcmp(element->str, "-") == 0)
	{
		outbox_set_problem("the lease that Redis was given is over");
		return ANSWER_FAILED;
	}
	if (element->len == 0)
		return ANSWER_GRANTED;
	*ahead = strtoll(element->str, NULL, 10);
	return ANSWER_AHEAD;
}

/* Gives a reply to the letters that are first in line: those of one command. */
static void
deliver(Link *from, const redisReply *reply)
{
	bool		written = reply_begins(reply, "written");
	bool		reserved = reply_begins(reply, "reserved");
	size_t		element = 1;
	bool		last = false;

	if (reply->type == REDIS_REPLY_ERROR)
		fence_wake_patrol();	/* else unarmed means a newer epoch: nothing is left there to end */
	while (!last)
	{
		Expected	letter = from->expected[from->first];
		int64		ahead = 0;
		AnswerKind	answer = ANSWER_GRANTED;

		if (letter.kind == LETTER_RESERVE && written && element < reply->elements)
			answer = read_reserved(reply->element[element++], &ahead);
		else if (letter.kind == LETTER_RESERVE || (letter.kind == LETTER_RESERVE_DOMAIN && !reserved))
		{
			note_refusal(reply);
			answer = ANSWER_FAILED;
		}
		last = letter.last;
		from->first = (from->first + 1) % from->size;
		from->used--;
		outbox_give_answer(letter.process, letter.number, answer, ahead);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Connecting
 * -----------------------------------------------------------------------------------------------------------------
 */

static bool
node_address(Link *to, RedisEndpoint *address)
{
	bool		known;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	to->nodes_serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	known = fence_shared->nnodes > 0;
	if (known)
		*address = fence_shared->nodes[0].address;
	LWLockRelease(fence_shared->lock);
	return known;
}

static void
connect_to_redis(Link *to)
{
	RedisEndpoint address;
	RedisUrl	url;
	const char *wrong;
	char		problem[REASON_LEN];

	if (wait_set)
		FreeWaitEventSet(wait_set);
	wait_set = NULL;
	to->connect_next = fence_clock() + CONNECT_AGAIN_US;
	if (!node_address(to, &address))
	{
		outbox_set_problem("the keeper knows no Redis yet");
		return;
	}
	wrong = redis_url_parse(setting_redis_url, &url);
	if (wrong == NULL)
	{
		to->connection = redis_open(&address, &url, fence_clock() + setting_timeout * INT64CONST(1000), problem, sizeof(problem));
		wrong = to->connection ? NULL : problem;
	}
	if (wrong != NULL)
		outbox_set_problem(wrong);
}

/* Whether there is a connection that works, to where Redis is now. Connects if it is time for that. */
static bool
ensure_connected(Link *to)
{
	if (to->connection && redis_error(to->connection))
		disconnect(to, redis_error(to->connection));
	else if (to->connection && to->nodes_serial != pg_atomic_read_u32(&fence_shared->nodes_serial))
		disconnect(to, "the address of Redis changed");
	if (to->connection == NULL &&
		(fence_clock() >= to->connect_next || to->nodes_serial != pg_atomic_read_u32(&fence_shared->nodes_serial)))
		connect_to_redis(to);
	return to->connection != NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * The round
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Sends the command that was being made. */
static void
send_batch(Link *to)
{
	char		epoch[EPOCH_LEN];
	char		head[128];
	char		middle[64];
	int			letters = to->batch_letters;

	to->batch_letters = 0;
	if (letters == 0)
		return;
	fence_epoch_of(to->batch_epoch, epoch);
	snprintf(head, sizeof(head), "*%d\r\n$5\r\nFCALL\r\n$11\r\nfence_write\r\n$%d\r\n%d\r\n",
			 4 + to->batch_keys + to->batch_args, to->batch_keys < 10 ? 1 : to->batch_keys < 100 ? 2 : 3, to->batch_keys);
	snprintf(middle, sizeof(middle), "$%zu\r\n%s\r\n", strlen(epoch), epoch);
	(void) (redis_send_raw(to->connection, head, strlen(head), 0) &&
			redis_send_raw(to->connection, to->batch_key_bytes.data, to->batch_key_bytes.len, 0) &&
			redis_send_raw(to->connection, middle, strlen(middle), 0) &&
			redis_send_raw(to->connection, to->batch_arg_bytes.data, to->batch_arg_bytes.len, 1));
}

/* Adds a letter's operations to the command that is being made. */
static void
add_to_batch(Link *to, const Letter *letter)
{
	if (to->batch_letters > 0 &&
		(to->batch_epoch != letter->epoch || to->batch_keys + letter->keys > BATCH_KEYS ||
		 to->batch_arg_bytes.len + letter->arg_len > BATCH_BYTES))
		send_batch(to);
	if (to->batch_letters++ == 0)
	{
		to->batch_epoch = letter->epoch;
		to->batch_keys = to->batch_args = 0;
		resetStringInfo(&to->batch_key_bytes);
		resetStringInfo(&to->batch_arg_bytes);
	}
	else
		to->expected[(to->first + to->used - 1) % to->size].last = false;
	to->batch_keys += letter->keys;
	to->batch_args += letter->args;
	appendBinaryStringInfo(&to->batch_key_bytes, letter->key_bytes, letter->key_len);
	appendBinaryStringInfo(&to->batch_arg_bytes, letter->arg_bytes, letter->arg_len);
	expect(to, letter);
}

static void
carry(Link *to, const Letter *letter)
{
	if (letter->kind == LETTER_RESERVE || letter->kind == LETTER_END)
		add_to_batch(to, letter);
	else
	{
		send_batch(to);
		(void) redis_send_raw(to->connection, letter->arg_bytes, letter->arg_len, 1);
		expect(to, letter);
	}
}

/* Takes what is in the ring, and writes what the socket takes. Returns whether there was anything. */
static bool
carry_letters(Link *to)
{
	Letter		letter;
	bool		any = false;

	while ((to->connection == NULL || redis_unsent(to->connection) < MAX_UNSENT) && outbox_take(&letter))
	{
		if (any ? to->connection != NULL : ensure_connected(to))
			carry(to, &letter);
		else
			give_up(letter.kind, letter.process, letter.number);
		outbox_done();
		any = true;
	}
	if (to->connection)
	{
		send_batch(to);
		if (redis_unsent(to->connection) > 0 && !redis_flush(to->connection))
			disconnect(to, redis_error(to->connection));
	}
	return any;
}

/* Takes the replies that are here. Returns whether there was any. */
static bool
collect_answers(Link *from)
{
	redisReply *reply;
	bool		any = false;

	if (from->connection == NULL || from->used == 0)
		return false;
	while (from->used > 0 && (reply = redis_poll_reply(from->connection)) != NULL)
	{
		deliver(from, reply);
		freeReplyObject(reply);
		any = true;
	}
	if (any)
	{
		from->heard_at = fence_clock();
		from->connect_next = 0;
	}
	if (redis_error(from->connection))
		disconnect(from, redis_error(from->connection));
	return any;
}

/* Microseconds until silence on the connection counts as its end; 0: it is over. -1: nothing is outstanding. */
static int64
patience_left(const Link *with)
{
	if (with->connection == NULL || with->used == 0)
		return -1;
	return Max(with->heard_at + setting_timeout * INT64CONST(1000) - fence_clock(), 0);
}

static void
make_wait_set(const Link *with)
{
	wait_set = fence_create_wait_event_set(3);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	wait_socket_position = with->connection == NULL ? -1 :
		AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, redis_socket(with->connection), NULL, NULL);
}

/* Sleeps until there is a letter, an answer, or nothing more to hope for; at most a nap, or without end. */
static void
sleep_until_needed(const Link *with, bool nap)
{
	int64		patience = patience_left(with);
	long		timeout = patience < 0 ? -1 : patience / 1000 + 1;
	WaitEvent	event;

	if (!outbox_nap(nap))
		return;
	if (wait_set == NULL)
		make_wait_set(with);
	if (wait_socket_position >= 0)
		ModifyWaitEvent(wait_set, wait_socket_position,
						WL_SOCKET_READABLE | (redis_unsent(with->connection) > 0 ? WL_SOCKET_WRITEABLE : 0), NULL);
	(void) WaitEventSetWait(wait_set, nap ? 1 : timeout, &event, 1, wait_event_worker());
}

/* What an idle connection hears: its end, so that the first letter after a restart of Redis does not pay for it. */
static void
notice_end(Link *of)
{
	if (of->connection && of->used == 0 && !redis_flush(of->connection))
		disconnect(of, redis_error(of->connection));
}

static void
courier_exit(int code, Datum arg)
{
	(void) code;
	(void) arg;
	outbox_serve(false);
	disconnect(&link_to_redis, NULL);
}

void
fence_courier_main(Datum arg)
{
	Link	   *redis = &link_to_redis;
	int			naps = 0;
	int			yields = 0;

	(void) arg;
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	initStringInfo(&redis->batch_key_bytes);
	initStringInfo(&redis->batch_arg_bytes);
	before_shmem_exit(courier_exit, 0);
	outbox_serve(true);

	for (;;)
	{
		bool		carried;
		bool		heard;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		carried = carry_letters(redis);
		heard = collect_answers(redis);
		if (patience_left(redis) == 0)
			disconnect(redis, "no reply in time");
		if (carried || heard)
		{
			naps = NAPS;
			yields = OUTBOX_YIELDS;
		}
		else if (yields > 0 && outbox_yield())
			yields--;
		else
		{
			sleep_until_needed(redis, naps > 0);
			naps = Max(naps - 1, 0);
			notice_end(redis);
		}
	}
}
