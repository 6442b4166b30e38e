/*
 * wire.c
 *	  This backend's own connections to the Redis processes; see wire.h.
 *
 * Owns: the connections, what is outstanding on them, and the draft of the next message.
 */
#include "postgres.h"

#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"

#include "draft.h"
#include "wire.h"
#include "redis/connection.h"
#include "redis/library.h"
#include "settings.h"
#include "stamp.h"
#include "test_hooks.h"

#define MOST_OPERATIONS 64		/* of this backend's in one message: bounds how long Redis is busy with it */
#define MOST_RIDERS		64
#define ANSWERS			1024	/* outstanding on a wire; a power of two */
#define MOST_UNSENT		(1024 * 1024)	/* bytes of commands that Redis has not taken yet */
#define CALL_AGAIN_US	INT64CONST(100000)	/* after a connection on which nothing was answered, */
#define CALL_AGAIN_TIMES 5		/* and so many times what it took */

/* An operation, or a command, whose answer is outstanding */
typedef struct Expected
{
	WireAnswer	answer;			/* of a command that was said, else NULL */
	Reservation *reservation;	/* NULL: of a transaction that has ended, or no reservation */
	bool		reserves;		/* the reply has an answer to it */
	bool		last;			/* of its message */
	int			process;		/* a rider's sender, -1: no rider, or answered */
	uint64		number;			/* the reservation's letter, the rider's, or the command's */
	LetterCount count;			/* of a reservation only its slot */
} Expected;

typedef struct Wire
{
	RedisConnection *connection;	/* NULL: none */
	bool		proven;			/* a function was answered on it: who takes no more clients says so only when asked */
	uint32		nodes_serial;	/* when its node was looked at */
	uint32		node_serial;	/* of its node then */
	int64		call_next;		/* reserving calls not before this time: there is another way; questions always call */
	Expected   *expected;		/* ring of ANSWERS, in the order of sending */
	uint32		first;			/* these count up for ever: the next one to be answered, */
	uint32		sent;			/* the first that is still in the draft, */
	uint32		next;			/* and the end */
} Wire;

static Wire wires[MAX_NODES];
static int	nwires = 0;			/* those that were ever used */

/* The message that is being made */
static int	draft_node = -1;	/* -1: there is none */
static uint32 draft_epoch;
static Draft keys;
static Draft arguments;

static uint64 operations = 0;	/* numbers the reservations sent */
static char problem[REASON_LEN] = "";

const char *
wire_problem(void)
{
	return problem;
}

static Expected *
expected_at(Wire *wire, uint32 position)
{
	return &wire->expected[position % ANSWERS];
}

/* Whether an answer is outstanding. */
static bool
is_busy(const Wire *wire)
{
	return wire->first != wire->sent;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Answers
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether the reservation was not sent again since. */
static bool
is_current(const Expected *e)
{
	return e->reservation != NULL && !e->reservation->by_courier && e->reservation->letter == e->number;
}

/* What has no answer will have none: reservations are to be sent again, those in the draft too. */
static void
lose(Wire *wire)
{
	bool		riders = false;

	if (draft_node == wire - wires)
		draft_node = -1;
	for (wire->sent = wire->next; is_busy(wire); wire->first++)
	{
		Expected   *e = expected_at(wire, wire->first);

		if (e->answer)
		{
			e->answer(e->number, NULL);
			continue;
		}
		if (is_current(e))
			e->reservation->letter = 0;
		if (e->reserves)
			metrics_add(e->count.slot, METRIC_RESERVE_FAILED, 1);
		else
			metrics_count_end(&e->count, false, LETTER_LOST);
		if (e->process >= 0)
			outbox_give_answer(e->process, e->number, ANSWER_FAILED);
		riders = riders || !e->reserves;
	}
	if (riders)
		fence_wake_patrol();
}

static void
hang_up(Wire *wire, const char *why)
{
	if (why)
		strlcpy(problem, why, sizeof(problem));
	redis_close(wire->connection);
	wire->connection = NULL;
	lose(wire);
}

/* What is said of one reservation: it counts for the version and the word that it was sent with. */
static void
take_answer(Reservation *r, const redisReply *answer)
{
	if (!library_granted(answer))
	{
		strlcpy(problem, "the lease that Redis was given is over", sizeof(problem));
		r->letter = 0;
	}
	else
	{
		r->acked = r->sent;
		r->acked_word = r->sent_word;
		r->grant = r->letter;
	}
}

/* Whether it was done: what fence_write says, or fence_effects_end. */
static bool
is_written(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_STRING &&
		(strcmp(reply->element[0]->str, "written") == 0 || strcmp(reply->element[0]->str, "ended") == 0);
}

static void
note_refusal(const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_ERROR)
		snprintf(problem, sizeof(problem), "Redis answered: %.*s", (int) Min(reply->len, sizeof(problem) - 32), reply->str);
	else
		strlcpy(problem, "Redis is not armed for this epoch", sizeof(problem));
}

static void
count_answer(const Expected *e, const redisReply *reply, const redisReply *answer)
{
	if (!e->reserves)
		metrics_count_end(&e->count, false, reply->type == REDIS_REPLY_ERROR ? LETTER_LOST :
						  is_written(reply) ? LETTER_WRITTEN : LETTER_UNARMED);
	else
		metrics_add(e->count.slot, answer && library_granted(answer) ? METRIC_RESERVE_GRANTED : METRIC_RESERVE_FAILED, 1);
}

static void
note_answer(Wire *wire, const redisReply *reply)
{
	if (reply->type != REDIS_REPLY_ARRAY)
		return;
	wire->proven = true;
	wire->call_next = 0;
}

/* Gives a reply to the operations of the message that is first in wire. */
static void
deliver(Wire *wire, const redisReply *reply)
{
	bool		written = is_written(reply);
	size_t		element = 1;
	bool		riders = false;
	bool		last = false;

	note_answer(wire, reply);
	if (expected_at(wire, wire->first)->answer)
	{
		Expected	said = *expected_at(wire, wire->first++);

		said.answer(said.number, reply);
		return;
	}
	if (!written)
		note_refusal(reply);
	for (; !last; wire->first++)
	{
		Expected   *e = expected_at(wire, wire->first);
		const redisReply *answer = e->reserves && written && element < reply->elements ? reply->element[element++] : NULL;

		if (is_current(e) && answer != NULL)
			take_answer(e->reservation, answer);
		else if (is_current(e))
			e->reservation->letter = 0;
		count_answer(e, reply, answer);
		if (e->process >= 0)
			outbox_give_answer(e->process, e->number, ANSWER_GRANTED);
		riders = riders || !e->reserves;
		last = e->last;
	}
	if (riders && reply->type == REDIS_REPLY_ERROR)
		fence_wake_patrol();	/* else unarmed means a newer epoch: nothing is left there to end */
}

/* Waits for the answers to all that is outstanding on the wire. False: it was hung up. */
static bool
collect(Wire *wire, int64 deadline)
{
	while (is_busy(wire))
	{
		redisReply *reply = redis_wait_reply(wire->connection, deadline, wait_event_redis());

		if (reply == NULL)
		{
			hang_up(wire, redis_error(wire->connection));
			return false;
		}
		deliver(wire, reply);
		freeReplyObject(reply);
	}
	return true;
}

void
wire_forget(void)
{
	draft_node = -1;
	for (int i = 0; i < nwires; i++)
	{
		Wire	   *wire = &wires[i];

		wire->next = wire->sent;
		for (uint32 p = wire->first; p != wire->sent; p++)
			expected_at(wire, p)->reservation = NULL;
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Connecting
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Looks at the node; false: there is none of that number. */
static bool
look_at_node(Wire *wire, RedisEndpoint *address, uint32 *serial)
{
	int			node = wire - wires;
	bool		known;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	wire->nodes_serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	known = node < fence_shared->nnodes;
	if (known)
	{
		*address = fence_shared->nodes[node].address;
		*serial = fence_shared->nodes[node].serial;
	}
	LWLockRelease(fence_shared->lock);
	return known;
}

/* A connection whose node is another one now, or that failed meanwhile, is dropped. Never waits. */
static bool
is_connected(Wire *wire)
{
	RedisEndpoint address;
	uint32		serial;

	if (wire->connection == NULL)
		return false;
	if (redis_error(wire->connection))
		hang_up(wire, redis_error(wire->connection));
	else if (wire->nodes_serial != pg_atomic_read_u32(&fence_shared->nodes_serial) &&
			 (!look_at_node(wire, &address, &serial) || serial != wire->node_serial))
		hang_up(wire, "the address of Redis changed");
	return wire->connection != NULL;
}

/* At the end of the process: riders that it had taken are answered by nobody. */
static void
hang_up_all(int code, Datum arg)
{
	(void) code;
	(void) arg;
	for (int i = 0; i < nwires; i++)
	{
		redisReply *reply;

		/* what is here already need not be lost */
		while (wires[i].connection != NULL && is_busy(&wires[i]) && (reply = redis_poll_reply(wires[i].connection)) != NULL)
		{
			deliver(&wires[i], reply);
			freeReplyObject(reply);
		}
		if (wires[i].connection != NULL)
			hang_up(&wires[i], NULL);
	}
}

static Wire *
wire_of(int node)
{
	if (nwires == 0)
	{
		before_shmem_exit(hang_up_all, 0);
		outbox_join();			/* what is reserved here may be ended in ABORT */
	}
	nwires = Max(nwires, node + 1);
	if (wires[node].expected == NULL)
		wires[node].expected = MemoryContextAlloc(TopMemoryContext, ANSWERS * sizeof(Expected));
	return &wires[node];
}

/* May wait. */
static bool
call(Wire *wire, int64 deadline)
{
	RedisEndpoint address;
	RedisUrl	url;
	const char *wrong = NULL;
	int64		begun = fence_clock();

	wire->call_next = begun + CALL_AGAIN_US;
	wire->proven = false;
	if (!look_at_node(wire, &address, &wire->node_serial) || address.host[0] == '\0')
		wrong = "the keeper knows no Redis yet";
	else
		wrong = redis_url_parse(setting_redis_url, &url);
	if (wrong)
		strlcpy(problem, wrong, sizeof(problem));
	else
		wire->connection = redis_open(&address, &url, deadline, problem, sizeof(problem));
	/* if that took long, it is not to take as long for each row of a statement */
	wire->call_next = fence_clock() + CALL_AGAIN_US + CALL_AGAIN_TIMES * (fence_clock() - begun);
	return wire->connection != NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Messages
 * -----------------------------------------------------------------------------------------------------------------
 */

static Expected *
expect(Wire *wire)
{
	Expected   *e = expected_at(wire, wire->next++);

	*e = (Expected) {.process = -1};
	return e;
}

static bool
fits(const Letter *letter)
{
	return draft_has_room(&keys, letter->key_len) && draft_has_room(&arguments, letter->arg_len);
}

static void
add_letter(const Letter *letter)
{
	draft_strings(&keys, letter->keys, letter->key_bytes, letter->key_len);
	draft_strings(&arguments, letter->args, letter->arg_bytes, letter->arg_len);
}

/* Takes along what others have to say to the same process in the same epoch. */
static void
take_riders(Wire *wire)
{
	Letter		letter;
	int			riders = 0;

	/* what others have said is not to be lost on a connection that is none */
	while (wire->proven && riders < MOST_RIDERS && outbox_look(&letter) && letter.kind == LETTER_END &&
		   letter.node == draft_node && letter.epoch == draft_epoch && fits(&letter))
	{
		DraftEnd	keys_end = draft_end_of(&keys);
		DraftEnd	arguments_end = draft_end_of(&arguments);
		Expected   *e;

		add_letter(&letter);
		fence_test_point("taking");
		if (!outbox_take(&letter))
		{
			draft_cut(&keys, keys_end);
			draft_cut(&arguments, arguments_end);
			continue;
		}
		e = expect(wire);
		e->process = letter.process;
		e->number = letter.number;
		e->count = letter.count;
		riders += letter.keys;
	}
}

/*
 * Riders from there on are on their way: that is answer enough for who waits for them, because the reply may lie here for as
 * long as this transaction sits idle.
 */
static void
answer_riders(Wire *wire, uint32 from)
{
	for (uint32 p = from; p != wire->sent; p++)
	{
		Expected   *e = expected_at(wire, p);

		if (e->process >= 0)
			outbox_give_answer(e->process, e->number, ANSWER_GRANTED);
		e->process = -1;
	}
}

/* Writes the draft as one call; what the socket does not take now is written when the answer is waited for. */
static void
send_draft(Wire *wire)
{
	uint32		from = wire->sent;
	char		epoch[EPOCH_LEN];
	char		head[DRAFT_HEAD_BYTES];
	char		middle[EPOCH_LEN + 32];
	size_t		head_len = draft_head(head, keys.strings, arguments.strings);
	size_t		middle_len;
	RedisConnection *c = wire->connection;

	draft_node = -1;
	expected_at(wire, wire->next - 1)->last = true;
	wire->sent = wire->next;
	fence_epoch_of(draft_epoch, epoch);
	middle_len = draft_text(middle, epoch, strlen(epoch)) - middle;
	if (!(redis_send_raw(c, head, head_len, 0) && redis_send_raw(c, keys.bytes, keys.len, 0) &&
		  redis_send_raw(c, middle, middle_len, 0) && redis_send_raw(c, arguments.bytes, arguments.len, 1) &&
		  redis_flush(c)))
		hang_up(wire, redis_error(c));
	else if (redis_unsent(c) == 0)
		answer_riders(wire, from);
}

void
wire_send(bool always)
{
	Wire	   *wire;

	if (draft_node < 0)
		return;
	wire = &wires[draft_node];
	if (!always && is_busy(wire))
		return;
	take_riders(wire);
	send_draft(wire);
}

/* A wire that works, with room for what a message may hold. False: problem tells. */
static bool
get_ready(Wire *wire, int64 deadline)
{
	if (!is_connected(wire) && (fence_clock() < wire->call_next || !call(wire, deadline)))
		return false;
	return wire->next - wire->first < ANSWERS - MOST_OPERATIONS - MOST_RIDERS || collect(wire, deadline);
}

static void
begin_draft(int node, uint32 epoch)
{
	draft_clear(&keys);
	draft_clear(&arguments);
	draft_node = node;
	draft_epoch = epoch;
}

const char *
wire_stamp(const Reservation *r)
{
	return r->stamp ? r->stamp : fence_stamp();
}

bool
wire_reserve(Reservation *r, int node, int64 version, FenceWord word, int64 deadline)
{
	Wire	   *wire = wire_of(node);
	Expected   *e;

	if (draft_node >= 0 && (draft_node != node || draft_epoch != WORD_EPOCH(word) || keys.strings >= MOST_OPERATIONS ||
							!draft_has_room(&keys, DRAFT_BYTES / 2) || !draft_has_room(&arguments, DRAFT_BYTES / 2)))
		wire_send(true);
	if (draft_node < 0)
	{
		if (!get_ready(wire, deadline))
			return false;
		begin_draft(node, WORD_EPOCH(word));
	}
	draft_string(&keys, r->name);
	draft_string(&arguments, r->write_through ? "g" : "r");
	draft_string(&arguments, wire_stamp(r));
	draft_version(&arguments, r->observed);
	draft_version(&arguments, version);
	r->letter = ++operations;
	r->by_courier = false;
	if (r->write_through)
		draft_number(&arguments, r->letter);
	e = expect(wire);
	e->reservation = r;
	e->reserves = true;
	e->number = r->letter;
	e->count.slot = r->metrics;
	return true;
}

bool
wire_collect(int64 deadline)
{
	bool		ok = true;

	wire_send(true);
	for (int i = 0; i < nwires; i++)
		if (is_busy(&wires[i]))
			ok = collect(&wires[i], deadline) && ok;
	return ok;
}

void
wire_carry(int64 deadline)
{
	Letter		letter;
	int			taken;

	do
	{
		if (!outbox_look(&letter) || letter.kind != LETTER_END || !get_ready(wire_of(letter.node), deadline))
			return;
		begin_draft(letter.node, letter.epoch);
		take_riders(&wires[letter.node]);
		taken = keys.strings;
		if (taken > 0)
			send_draft(&wires[letter.node]);
		draft_node = -1;
	} while (taken > 0 && fence_clock() < deadline);
}

bool
wire_is_busy(int node)
{
	Wire	   *wire = &wires[node];

	return node < nwires && wire->connection != NULL && redis_error(wire->connection) == NULL && is_busy(wire);
}

/* The answer to a command of its own, which is sent now: no draft for the same wire is under way. */
static Expected *
expect_command(Wire *wire)
{
	Expected   *e = expect(wire);

	e->last = true;
	wire->sent = wire->next;
	return e;
}

/* Whether it leads to its node for all that is known, and takes bytes at once. Takes no lock. */
static bool
is_at_hand(const Wire *wire)
{
	return wire->connection != NULL && redis_error(wire->connection) == NULL && redis_unsent(wire->connection) == 0 &&
		wire->nodes_serial == pg_atomic_read_u32(&fence_shared->nodes_serial);
}

bool
wire_send_after(const Letter *letter)
{
	Wire	   *wire;

	if (letter->kind != LETTER_END && letter->kind != LETTER_END_EFFECTS)
		return false;
	wire = &wires[letter->node];
	if (draft_node == letter->node)
		wire_send(true);
	if (!wire_is_busy(letter->node) && !(letter->kind == LETTER_END_EFFECTS && is_at_hand(wire)))
		return false;
	if (wire->next - wire->first == ANSWERS)
		return false;
	if (letter->kind == LETTER_END)
	{
		begin_draft(letter->node, letter->epoch);
		add_letter(letter);
		expect(wire)->count = letter->count;
		send_draft(wire);
		return true;
	}
	expect_command(wire)->count = letter->count;
	if (!redis_send_raw(wire->connection, letter->arg_bytes, letter->arg_len, 1) || !redis_flush(wire->connection))
		hang_up(wire, redis_error(wire->connection));
	return true;
}

bool
wire_say(int node, int argc, const char **argv, const size_t *argvlen, WireAnswer answer, uint64 number, int64 deadline)
{
	Wire	   *wire = wire_of(node);
	Expected   *e;

	if (draft_node == node)
		wire_send(true);
	/* the other side may have closed it while it was idle */
	if (is_connected(wire) && !redis_flush(wire->connection))
		hang_up(wire, redis_error(wire->connection));
	if (wire->connection != NULL && (wire->next - wire->first >= ANSWERS - MOST_OPERATIONS - MOST_RIDERS ||
									 redis_unsent(wire->connection) > MOST_UNSENT))
		(void) collect(wire, deadline);
	if (wire->connection == NULL && !call(wire, deadline))
		return false;
	e = expect_command(wire);
	e->answer = answer;
	e->number = number;
	if (!redis_send(wire->connection, argc, argv, argvlen) || !redis_flush(wire->connection))
		hang_up(wire, redis_error(wire->connection));
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Questions
 * -----------------------------------------------------------------------------------------------------------------
 */

static redisReply *
ask_once(Wire *wire, int argc, const char **argv, const size_t *argvlen, int64 deadline)
{
	redisReply *reply = NULL;

	/* its answer comes after all that is outstanding, and is waited for together with that */
	if (!redis_send(wire->connection, argc, argv, argvlen))
		hang_up(wire, redis_error(wire->connection));
	else if (collect(wire, deadline))
	{
		reply = redis_wait_reply(wire->connection, deadline, wait_event_redis());
		if (reply == NULL)
			hang_up(wire, redis_error(wire->connection));
		else
			note_answer(wire, reply);
	}
	return reply;
}

redisReply *
wire_ask(int node, int argc, const char **argv, const size_t *argvlen, int64 deadline)
{
	Wire	   *wire = wire_of(node);
	redisReply *reply = NULL;

	wire_send(true);
	/* a connection that the other side closed while it was idle shows only when it is used: once more, then */
	if (is_connected(wire) && collect(wire, deadline))
		reply = ask_once(wire, argc, argv, argvlen, deadline);
	if (reply == NULL && call(wire, deadline))
		reply = ask_once(wire, argc, argv, argvlen, deadline);
	return reply;
}

redisReply *
wire_ask_once(int node, int argc, const char **argv, const size_t *argvlen, int64 deadline)
{
	Wire	   *wire = wire_of(node);

	wire_send(true);
	if (is_connected(wire) && !redis_flush(wire->connection))
		hang_up(wire, redis_error(wire->connection));	/* the other side has closed it while it was idle */
	if (wire->connection == NULL && !call(wire, deadline))
		return NULL;
	return ask_once(wire, argc, argv, argvlen, deadline);
}
