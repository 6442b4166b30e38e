/*
 * courier.c
 *	  The courier: a background worker that carries all backends' letters (outbox.h) to Redis over one connection to each
 *	  process, and brings the answers back.
 *
 * Owns: these connections and what is outstanding on them. A letter names the node for which it was drafted; a node keeps its
 * place as long as the epoch lasts, which is part of what is said, so a letter that meets another table is refused and not
 * mistaken. A node that is slow or gone holds up nobody else's letters. It decides nothing: whether a transaction may commit is decided
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
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "draft.h"
#include "outbox.h"
#include "redis/connection.h"
#include "redis/library.h"
#include "settings.h"
#include "shared.h"
#include "tombstone.h"
#include "worker.h"

#define CONNECT_AGAIN_US	INT64CONST(50000)	/* after an attempt to connect that led to no answer */
#define MAX_UNSENT			(1024 * 1024)	/* bytes; more letters stay in the ring, */
#define MAX_UNSENT_BESIDE	(8 * 1024 * 1024)	/* or, if letters for other nodes are behind them, are given up past this */
#define BATCH_KEYS			128		/* operations in one command, and bytes of their arguments: bounds how long it takes */
#define BATCH_BYTES			(64 * 1024)
#define NAPS				3		/* of a millisecond, after the last letter or answer: what ends a transaction needs not wake it */

PGDLLEXPORT void fence_courier_main(Datum arg);

/* A letter to several nodes: answered when all have answered, and failed if one has */
typedef struct Joint
{
	int			left;
	bool		failed;
	LetterResult ended;
} Joint;

/* A letter whose answer is outstanding */
typedef struct Expected
{
	LetterKind	kind;
	Joint	   *joint;			/* NULL: it went to one node */
	bool		last;			/* of those that share a command, and so its reply */
	int			process;
	uint64		number;
	LetterCount count;
} Expected;

/* Everything between us and one Redis process */
typedef struct Link
{
	int			node;			/* index in the table of nodes */
	RedisConnection *connection;	/* NULL: not connected */
	uint32		nodes_serial;	/* when its node was looked at */
	uint32		node_serial;	/* of its node then */
	bool		looked_at;		/* in this round */
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

static Link links[MAX_NODES];
static int	nlinks = 0;			/* those that were ever used */
static WaitEventSet *wait_set = NULL;
static int	wait_position[MAX_NODES];	/* of the link's socket, -1: none */

/* -----------------------------------------------------------------------------------------------------------------
 * Outstanding answers
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
expect(Link *to, const Letter *letter, Joint *joint)
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
		.kind = letter->kind, .joint = joint, .last = true, .process = letter->process, .number = letter->number,
		.count = letter->count
	};
}

/* The answer of one node; of a letter to several it waits for the others, and the worst is counted. */
static void
give_answer(const Expected *letter, AnswerKind answer, LetterResult ended)
{
	Joint	   *joint = letter->joint;

	if (joint != NULL)
	{
		joint->failed = joint->failed || answer == ANSWER_FAILED;
		joint->ended = Max(joint->ended, ended);
		if (--joint->left > 0)
			return;
		answer = joint->failed ? ANSWER_FAILED : answer;
		ended = joint->ended;
		pfree(joint);
	}
	if (letter->kind == LETTER_RESERVE)
		metrics_add(letter->count.slot, answer == ANSWER_GRANTED ? METRIC_RESERVE_GRANTED : METRIC_RESERVE_FAILED, 1);
	else if (letter->kind == LETTER_RESERVE_DOMAIN)
		metrics_add(letter->count.slot, answer == ANSWER_GRANTED ? METRIC_DOMAIN_RESERVE_GRANTED : METRIC_DOMAIN_RESERVE_FAILED, 1);
	else
		metrics_count_end(&letter->count, letter->kind == LETTER_END_DOMAIN, ended);
	outbox_give_answer(letter->process, letter->number, answer);
}

/* A letter that will not be answered */
static void
give_up(const Expected *letter)
{
	give_answer(letter, ANSWER_FAILED, LETTER_LOST);
	if (letter->kind != LETTER_RESERVE && letter->kind != LETTER_RESERVE_DOMAIN)
		fence_wake_patrol();
}

static void
give_up_letter(const Letter *letter, Joint *joint)
{
	Expected	lost = {.kind = letter->kind, .joint = joint, .process = letter->process, .number = letter->number,
		.count = letter->count};

	give_up(&lost);
}

static void
forget_wait_set(void)
{
	if (wait_set)
		FreeWaitEventSet(wait_set);
	wait_set = NULL;
}

/* The connection is over, and with it everything that is outstanding on it. */
static void
disconnect(Link *to, const char *why)
{
	if (why)
		outbox_set_problem(why);
	forget_wait_set();
	redis_close(to->connection);
	to->connection = NULL;
	to->batch_letters = 0;
	for (; to->used > 0; to->used--)
	{
		give_up(&to->expected[to->first]);
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

static bool
is_reservation(LetterKind kind)
{
	return kind == LETTER_RESERVE || kind == LETTER_RESERVE_DOMAIN;
}

/* What a reply says to a reservation: of a domain "reserved", of a row "written" and the answer to it. */
static AnswerKind
answer_of(LetterKind kind, const redisReply *reply)
{
	if (kind == LETTER_RESERVE_DOMAIN ? reply_begins(reply, "reserved") :
		reply_begins(reply, "written") && reply->elements == 2 && library_granted(reply->element[1]))
		return ANSWER_GRANTED;
	note_refusal(reply);
	return ANSWER_FAILED;
}

/* Gives a reply to the letters that are first in line: those of one command. */
static void
deliver(Link *from, const redisReply *reply)
{
	LetterResult ended = reply->type == REDIS_REPLY_ERROR ? LETTER_LOST :
		reply_begins(reply, "unarmed") ? LETTER_UNARMED : LETTER_WRITTEN;
	bool		last = false;

	if (reply->type == REDIS_REPLY_ERROR)
		fence_wake_patrol();	/* else unarmed means a newer epoch: nothing is left there to end */
	while (!last)
	{
		Expected	letter = from->expected[from->first];
		AnswerKind	answer = ANSWER_GRANTED;

		if (is_reservation(letter.kind))
			answer = answer_of(letter.kind, reply);
		last = letter.last;
		from->first = (from->first + 1) % from->size;
		from->used--;
		give_answer(&letter, answer, ended);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Connecting
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Looks at the node; false: there is none of that number. */
static bool
look_at_node(Link *to, RedisEndpoint *address, uint32 *serial)
{
	bool		known;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	to->nodes_serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	known = to->node < fence_shared->nnodes;
	if (known)
	{
		*address = fence_shared->nodes[to->node].address;
		*serial = fence_shared->nodes[to->node].serial;
	}
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
	int64		begun = fence_clock();

	forget_wait_set();
	to->connect_next = begun + CONNECT_AGAIN_US;
	if (!look_at_node(to, &address, &to->node_serial))
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
	/* the time that a dead node takes is others' too: no more than a fifth of it */
	if (to->connection == NULL && nlinks > 1)
		to->connect_next += 5 * (fence_clock() - begun);
}

/* Whether the node is another one, or its process, since the link was made. */
static bool
node_changed(Link *to)
{
	RedisEndpoint address;
	uint32		serial;

	if (to->nodes_serial == pg_atomic_read_u32(&fence_shared->nodes_serial))
		return false;
	return !look_at_node(to, &address, &serial) || serial != to->node_serial;
}

/* Whether there is a connection that works, to where Redis is now. Connects if it is time for that. */
static bool
ensure_connected(Link *to)
{
	bool		changed = node_changed(to);

	if (to->connection && redis_error(to->connection))
		disconnect(to, redis_error(to->connection));
	else if (to->connection && changed)
		disconnect(to, "the address of Redis changed");
	if (to->connection == NULL && (fence_clock() >= to->connect_next || changed))
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
	char		head[DRAFT_HEAD_BYTES];
	char		middle[EPOCH_LEN + 32];
	size_t		middle_len;
	int			letters = to->batch_letters;

	to->batch_letters = 0;
	if (letters == 0)
		return;
	fence_epoch_of(to->batch_epoch, epoch);
	middle_len = draft_text(middle, epoch, strlen(epoch)) - middle;
	(void) (redis_send_raw(to->connection, head, draft_head(head, to->batch_keys, to->batch_args), 0) &&
			redis_send_raw(to->connection, to->batch_key_bytes.data, to->batch_key_bytes.len, 0) &&
			redis_send_raw(to->connection, middle, middle_len, 0) &&
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
	expect(to, letter, NULL);
}

/* The link to a node; made if need be. */
static Link *
link_to(int node)
{
	Link	   *link = &links[node];

	for (; nlinks <= node; nlinks++)
	{
		links[nlinks].node = nlinks;
		initStringInfo(&links[nlinks].batch_key_bytes);
		initStringInfo(&links[nlinks].batch_arg_bytes);
	}
	/* once in a round: what it costs is not to be paid for each letter */
	if (!link->looked_at)
		(void) ensure_connected(link);
	link->looked_at = true;
	return link;
}

static bool
is_congested(const Link *to, size_t limit)
{
	return to->connection != NULL && redis_unsent(to->connection) >= limit;
}

static void
carry(Link *to, const Letter *letter, Joint *joint)
{
	if (to->connection == NULL || is_congested(to, MAX_UNSENT_BESIDE))
		give_up_letter(letter, joint);
	else if (letter->kind == LETTER_END)
		add_to_batch(to, letter);
	else
	{
		send_batch(to);
		(void) redis_send_raw(to->connection, letter->arg_bytes, letter->arg_len, 1);
		expect(to, letter, joint);
	}
}

/*
 * To every process that is armed. If the epoch has changed meanwhile these are not those that the letter is meant for, but
 * then each of them refuses it. If slots have changed hands, so has the word: an acknowledgement does not count any more, and an end
 * finds nothing to end at a process that came.
 */
static void
carry_to_all(const Letter *letter)
{
	bool		granted[MAX_NODES];
	int			nnodes;
	Joint	   *joint = MemoryContextAllocZero(TopMemoryContext, sizeof(Joint));

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	nnodes = fence_shared->nnodes;
	for (int i = 0; i < nnodes; i++)
	{
		granted[i] = fence_shared->nodes[i].granted;
		joint->left += granted[i];
	}
	LWLockRelease(fence_shared->lock);
	if (joint->left == 0)
	{
		joint->left = 1;
		give_up_letter(letter, joint);
		return;
	}
	for (int i = 0; i < nnodes; i++)
		if (granted[i])
			carry(link_to(i), letter, joint);
}

/* Sends what was made of the letters and is not sent yet. */
static void
flush(Link *to)
{
	if (to->connection == NULL)
		return;
	send_batch(to);
	if (redis_unsent(to->connection) > 0 && !redis_flush(to->connection))
		disconnect(to, redis_error(to->connection));
}

/* Letters that were taken from the ring and not carried yet: to carry one may take long, and others take letters too. */
static StringInfoData bag;
static size_t bag_at = 0;		/* where the next one is */

static void
fill_bag(void)
{
	Letter		letter;

	resetStringInfo(&bag);
	bag_at = 0;
	while (outbox_look(&letter) && bag.len + sizeof(letter) + letter.key_len + letter.arg_len < (size_t) bag.maxlen)
	{
		int			before = bag.len;

		appendBinaryStringInfo(&bag, (char *) &letter, sizeof(letter));
		appendBinaryStringInfo(&bag, letter.key_bytes, letter.key_len);
		appendBinaryStringInfo(&bag, letter.arg_bytes, letter.arg_len);
		if (!outbox_take(&letter))
			bag.len = before;	/* it rides with a backend */
	}
}

/* It stays in the bag until the bag is filled again. */
static bool
next_letter(Letter *letter)
{
	if (bag_at == (size_t) bag.len)
		fill_bag();
	if (bag_at == (size_t) bag.len)
		return false;
	memcpy(letter, bag.data + bag_at, sizeof(*letter));
	letter->key_bytes = bag.data + bag_at + sizeof(*letter);
	letter->arg_bytes = letter->key_bytes + letter->key_len;
	bag_at += sizeof(*letter) + letter->key_len + letter->arg_len;
	return true;
}

/* Takes what is in the ring, and writes what the sockets take. Returns whether there was anything. */
static bool
carry_letters(void)
{
	Letter		letter;
	bool		any = false;

	for (int i = 0; i < nlinks; i++)
		links[i].looked_at = false;
	/* with one process only there is nobody behind a letter that has to wait */
	while (!(nlinks == 1 && is_congested(&links[0], MAX_UNSENT)) && next_letter(&letter))
	{
		if (letter.node == LETTER_TO_ALL)
			carry_to_all(&letter);
		else
			carry(link_to(letter.node), &letter, NULL);
		any = true;
	}
	for (int i = 0; i < nlinks; i++)
		flush(&links[i]);
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
make_wait_set(void)
{
	wait_set = fence_create_wait_event_set(nlinks + 2);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < nlinks; i++)
		wait_position[i] = links[i].connection == NULL ? -1 :
			AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, redis_socket(links[i].connection), NULL, NULL);
}

/* Whether somebody waits for an answer that is outstanding. */
static bool
is_awaited(const Link *with)
{
	for (int i = 0; i < with->used; i++)
		if (is_reservation(with->expected[(with->first + i) % with->size].kind))
			return true;
	return false;
}

/*
 * Sleeps until there is a letter, an answer, or nothing more to hope for. A nap is a millisecond in which only what somebody
 * waits for wakes it: whatever ends transactions may meanwhile ride with backends.
 */
static void
sleep_until_needed(bool nap)
{
	long		timeout = -1;
	bool		awaited = false;
	WaitEvent	event;

	if (!outbox_nap(nap))
		return;
	if (wait_set == NULL)
		make_wait_set();
	for (int i = 0; i < nlinks; i++)
	{
		int64		patience = patience_left(&links[i]);

		if (patience >= 0 && (timeout < 0 || patience / 1000 + 1 < timeout))
			timeout = patience / 1000 + 1;
		if (wait_position[i] >= 0)
			ModifyWaitEvent(wait_set, wait_position[i],
							WL_SOCKET_READABLE | (redis_unsent(links[i].connection) > 0 ? WL_SOCKET_WRITEABLE : 0), NULL);
		awaited = awaited || is_awaited(&links[i]);
	}
	if (nap && !awaited)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1, wait_event_worker());
	else
		(void) WaitEventSetWait(wait_set, nap ? 1 : timeout, &event, 1, wait_event_worker());
	(void) outbox_nap(true);
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
	Letter		letter;

	(void) code;
	(void) arg;
	outbox_serve(false);
	for (int i = 0; i < nlinks; i++)
		disconnect(&links[i], NULL);
	while (bag_at < (size_t) bag.len && next_letter(&letter))
		give_up_letter(&letter, NULL);
	fence_wake_patrol();		/* for the one that was being carried */
}

void
fence_courier_main(Datum arg)
{
	int			naps = 0;

	(void) arg;
	worker_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	initStringInfo(&bag);
	enlargeStringInfo(&bag, 2 * OUTBOX_MAX_LETTER);
	before_shmem_exit(courier_exit, 0);
	outbox_serve(true);

	for (;;)
	{
		bool		carried;
		bool		heard = false;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		carried = carry_letters();
		for (int i = 0; i < nlinks; i++)
		{
			heard = collect_answers(&links[i]) || heard;
			if (patience_left(&links[i]) == 0)
				disconnect(&links[i], "no reply in time");
		}
		naps = carried || heard || outbox_is_in_use() ? NAPS : Max(naps - 1, 0);
		sleep_until_needed(naps > 0);
		for (int i = 0; i < nlinks; i++)
			notice_end(&links[i]);
	}
}
