/*
 * send/wire.c
 *	  This backend's own connections to the Redis processes; see wire.h.
 *
 * Owns: how this backend uses its links (link.h): when it waits, which riders it takes along, and how often it tries to
 * connect. Takes no locks itself; link.c takes the lock of shared memory to read a node's address.
 */
#include "postgres.h"

#include "storage/ipc.h"

#include "base/settings.h"
#include "base/stamp.h"
#include "base/test_hooks.h"
#include "send/wire.h"

#define MAX_RIDERS		64		/* messages of other backends in one call; one if it reserves one row, see take_riders */
#define MAX_ANSWERS	(WRITE_CALL_FENCES + MAX_RIDERS)	/* most replies that one call can have */
#define FEWEST_FENCES	16		/* with fewer, the call itself costs Redis more than its rows */
#define MAX_UNSENT		(1024 * 1024)	/* bytes of commands that Redis has not accepted yet */
#define CALL_AGAIN_US	INT64CONST(100000)	/* microseconds until the next attempt after a connection that got no reply */
#define CALL_AGAIN_TIMES 5		/* plus this many times its duration, so that the rows of one statement do not each wait as long */

static uint64 reservations = 0; /* counts the reservations that were sent; gives each its number */

/* -----------------------------------------------------------------------------------------------------------------
 * Answers
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Takes the reply to a reservation, unless its transaction has ended or it was sent again. It counts for the word under
 * which the reservation was sent. If it was not granted, it must be sent again.
 */
static void
answer_reservation(const Expected *e, const redisReply *reply)
{
	Reservation *r = e->owner;
	int64		number = link_granted(e, reply);

	if (r == NULL || r->by_courier || r->message != e->number)
		return;
	if (number == 0)
		r->message = 0;
	else
	{
		r->acked_word = r->sent_word;
		r->number = number;
	}
}

void
wire_forget(void)
{
	for (int i = 0; i < nlinks; i++)
		link_forget(&links[i]);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Connecting
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Runs when the process exits. Nobody will receive the replies to the riders that it has taken. So take at least the
 * replies that have already arrived.
 */
static void
hang_up_all(int code, Datum arg)
{
	(void) code;
	(void) arg;
	for (int i = 0; i < nlinks; i++)
	{
		(void) link_poll(&links[i]);
		link_hang_up(&links[i], NULL);
	}
}

int64
wire_deadline(void)
{
	return fence_clock() + setting_timeout_us();
}

static Link *
wire_to(int node)
{
	if (nlinks == 0)
	{
		before_shmem_exit(hang_up_all, 0);
		send_queue_join();			/* ABORT may have to post the end of what is reserved here */
	}
	return link_to(node);
}

/* Connects, even if the last attempt has just failed, because a question cannot go another way. May wait. */
static bool
call(Link *wire, int64 deadline)
{
	return link_connect(wire, deadline, CALL_AGAIN_US, CALL_AGAIN_TIMES);
}

/* Returns whether the wire is connected and has room for the replies to one more call. */
static bool
is_ready(Link *wire)
{
	return link_check(wire) && link_room(wire) > MAX_ANSWERS;
}

/* Makes the wire so. On failure link_problem says why. */
static bool
get_ready(Link *wire, int64 deadline)
{
	if (link_room(wire) <= MAX_ANSWERS)
		(void) link_poll(wire);	/* take the replies that have arrived, so that we need not wait for them */
	if (!link_check(wire) && (fence_clock() < wire->connect_next || !call(wire, deadline)))
		return false;
	return link_room(wire) > MAX_ANSWERS || link_collect(wire, deadline);
}

/* Makes sure that the wire is connected. Redis may have closed it while it was idle; then connects again. */
static bool
get_through(Link *wire, int64 deadline)
{
	return (link_check(wire) && link_flush(wire)) || call(wire, deadline);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Calls
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Adds messages of other backends for the same process and epoch to the draft. Redis has a short path for one row and
 * one end (fence.lua, replace()). So a call with one row takes one, and leaves the others to the next such calls.
 */
static void
take_riders(Link *wire)
{
	Message		message;
	int			riders = 0;
	int			most = wire->draft->fences.strings == 1 ? 1 : MAX_RIDERS;

	/* do not risk other backends' messages on a connection that has not worked yet */
	while (wire->proven && riders < most && send_queue_look(&message) && message.kind == MESSAGE_END &&
		   message.node == wire - links && link_fits(wire, &message))
	{
		link_add(wire, &message);
		fence_test_point("taking");
		if (!send_queue_take(&message))
		{
			resp_take_back(&wire->draft->ends, message.strings, message.len);
			continue;
		}
		link_expect(wire, (Expected) {
					.answer = link_answer_end, .process = message.process, .number = message.number, .count = message.count
		});
		riders++;
	}
}

/*
 * Sends the draft and its riders. Riders count as answered as soon as they are on their way. Otherwise their senders
 * would have to wait as long as this transaction is idle, because this backend reads the reply only later. Returns
 * whether there was anything to send.
 */
static bool
send_draft(Link *wire)
{
	uint32		from = wire->sent;

	take_riders(wire);
	if (!link_has_draft(wire))
		return false;
	if (link_flush(wire) && redis_unsent(wire->connection) == 0)
		for (; from != wire->sent; from++)
		{
			Expected   *e = link_expected(wire, from);

			if (e->process >= 0)
				send_queue_give_answer(e->process, e->number, ANSWER_GRANTED);
			e->process = -1;
		}
	return true;
}

void
wire_send(bool always)
{
	for (int i = 0; i < nlinks; i++)
		if (link_has_draft(&links[i]) && (always || !link_is_busy(&links[i])))
			(void) send_draft(&links[i]);
}

const char *
wire_stamp(const Reservation *r)
{
	return r->stamp ? r->stamp : fence_stamp();
}

/*
 * Returns how many fences the next call shall have at most. Redis handles a call while the statement goes on; the
 * commit waits until it has handled the last one. So that this is never the larger part of the work, calls grow with
 * what this backend has sent and has read no replies to: the statement's rows, until its wire is full.
 */
static int
most_fences(const Link *wire)
{
	int			outstanding = wire->sent - wire->first;

	return Min(Max(outstanding / 4, FEWEST_FENCES), WRITE_CALL_FENCES);
}

bool
wire_reserve(Reservation *r, int node, FenceWord word)
{
	Link	   *wire = wire_to(node);

	if (link_has_draft(wire) &&
		(wire->draft_epoch != WORD_EPOCH(word) || !write_call_takes(wire->draft, wire_stamp(r), most_fences(wire))))
		(void) send_draft(wire);
	/* a deadline takes a look at the clock, and most rows need none */
	if (!link_has_draft(wire) && !is_ready(wire) && !get_ready(wire, wire_deadline()))
		return false;
	r->message = ++reservations;
	r->by_courier = false;
	wire->draft_epoch = WORD_EPOCH(word);
	write_call_reserve(wire->draft, wire_stamp(r), r->name);
	link_expect(wire, (Expected) {
				.answer = answer_reservation, .owner = r, .number = r->message, .process = -1, .count.slot = r->metrics
	});
	return true;
}

bool
wire_collect(int64 deadline)
{
	bool		ok = true;

	wire_send(true);
	for (int i = 0; i < nlinks; i++)
		ok = link_collect(&links[i], deadline) && ok;
	return ok;
}

void
wire_carry(int64 deadline)
{
	Message		message;

	while (send_queue_look(&message) && message.kind == MESSAGE_END && get_ready(wire_to(message.node), deadline) &&
		   send_draft(&links[message.node]) && fence_clock() < deadline)
		;
}

/* Returns whether the wire has a connection that is not known to have failed. */
static bool
is_whole(const Link *wire)
{
	return wire->connection != NULL && redis_error(wire->connection) == NULL;
}

bool
wire_is_busy(int node)
{
	return is_whole(&links[node]) && link_is_busy(&links[node]);
}

/* Returns whether the wire seems to lead to its node and accepts bytes at once. Takes no lock. */
static bool
is_at_hand(const Link *wire)
{
	return is_whole(wire) && redis_unsent(wire->connection) == 0 &&
		wire->nodes_serial == pg_atomic_read_u32(&fence_shared->nodes_serial);
}

bool
wire_send_after(const Message *message)
{
	Link	   *wire;

	if (message->kind != MESSAGE_END && message->kind != MESSAGE_END_EFFECTS)
		return false;
	wire = &links[message->node];
	if (link_has_draft(wire))
		(void) send_draft(wire);
	if ((!wire_is_busy(message->node) && !(message->kind == MESSAGE_END_EFFECTS && is_at_hand(wire))) || link_room(wire) == 0)
		return false;
	link_send_message(wire, message, (Expected) {.answer = link_answer_end, .process = -1, .count = message->count});
	(void) link_flush(wire);
	return true;
}

bool
wire_pipeline(int node, int argc, const char **argv, const size_t *argvlen, LinkAnswer answer, uint64 number, int64 deadline)
{
	Link	   *wire = wire_to(node);

	if (link_has_draft(wire))
		(void) send_draft(wire);
	if (!get_through(wire, deadline))
		return false;
	if ((link_room(wire) <= MAX_ANSWERS || redis_unsent(wire->connection) > MAX_UNSENT) &&
		!link_collect(wire, deadline) && !call(wire, deadline))
		return false;
	link_expect_command(wire, (Expected) {.answer = answer, .number = number, .process = -1});
	(void) redis_send(wire->connection, argc, argv, argvlen);
	(void) link_flush(wire);
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Questions
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
free_replies(int n, redisReply **replies)
{
	for (int i = 0; i < n; i++)
	{
		freeReplyObject(replies[i]);
		replies[i] = NULL;
	}
}

void
wire_distrust(int node)
{
	link_hang_up(&links[node], "Redis replied to another question than the one that was asked, so replies were mixed up on the way");
}

/* Sends the questions behind everything that is outstanding, and waits for all the replies. */
static bool
ask_once(Link *wire, int n, const Call *calls, redisReply **replies, int64 deadline)
{
	bool		ok = true;

	memset(replies, 0, sizeof(*replies) * n);
	for (int i = 0; ok && i < n; i++)
		ok = redis_send(wire->connection, calls[i].argc, calls[i].argv, calls[i].argvlen);
	if (!ok)
		link_hang_up(wire, redis_error(wire->connection));
	ok = ok && link_collect(wire, deadline);
	for (int i = 0; ok && i < n; i++)
		ok = (replies[i] = link_wait(wire, deadline)) != NULL;
	for (int i = 0; ok && i < n; i++)
		if (!calls_answers(&calls[i], replies[i]))
		{
			wire_distrust(wire - links);
			ok = false;
		}
	if (!ok)
		free_replies(n, replies);
	return ok;
}

bool
wire_ask(int node, int n, const Call *calls, redisReply **replies, int64 deadline)
{
	Link	   *wire = wire_to(node);

	wire_send(true);
	/* if Redis closed an idle connection, we notice only when we use it; then connect and ask once more */
	return (link_check(wire) && link_collect(wire, deadline) && ask_once(wire, n, calls, replies, deadline)) ||
		(call(wire, deadline) && ask_once(wire, n, calls, replies, deadline));
}

bool
wire_ask_once(int node, const Call *call, redisReply **reply, int64 deadline)
{
	Link	   *wire = wire_to(node);

	wire_send(true);
	return get_through(wire, deadline) && ask_once(wire, 1, call, reply, deadline);
}
