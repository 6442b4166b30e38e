/*
 * send/courier.c
 *	  The courier: a background worker that carries the messages of all backends (send_queue.h) to Redis, over one
 *	  connection to each process, and stores the answers.
 *
 * Owns: this process's links (link.h). Takes the lock of shared memory only to read the table of nodes and to write the
 * last problem.
 *
 * A message names the index of its node in the table of its epoch, and a node keeps its index as long as the epoch
 * lasts. The message also names the epoch. So a process that gets a message by a newer table refuses it.
 *
 * A slow or missing node does not delay messages for other nodes. The courier decides nothing. A backend decides from
 * the word and the answers whether its transaction may commit. If a message was not sent or not answered, its sender
 * gets the answer FAILED, and the patrol ends what the message should have ended.
 *
 * While messages keep coming, the courier naps for a millisecond at a time instead of sleeping. To wake it costs more
 * than its work. So a message for which nobody waits goes along with one for which somebody waits, or when it has been
 * in the ring for a turn.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/bgworker.h"
#include "base/compat.h"
#include "base/settings.h"
#include "send/link.h"
#include "send/openings.h"

#define CONNECT_AGAIN_US	INT64CONST(50000)	/* microseconds until the next attempt after a connection that got no reply */
#define MAX_UNSENT			(1024 * 1024)	/* bytes; with more than this unsent, messages stay in the ring */
#define MAX_UNSENT_BESIDE	(8 * 1024 * 1024)	/* the same with several nodes, where messages beyond this are given up, because others are behind them */
#define NAPS				3		/* naps of a millisecond after the last message or answer */

PGDLLEXPORT void fence_courier_main(Datum arg);

/* A message to several nodes. It is answered once all nodes have answered, and has failed if one of them has. */
typedef struct Joint
{
	bool		reserves;
	int			left;
	bool		failed;
	MessageResult ended;
} Joint;

/* What the courier keeps for each link */
static struct
{
	bool		looked_at;		/* link was checked in this round */
	int64		heard_at;		/* fence_clock() time of the last reply, or of the first call after the link was idle */
	int			wait_position;	/* of its socket in wait_set; -1: none */
}			states[MAX_NODES];

static WaitEventSet *wait_set = NULL;
static uint32 wait_changes;		/* value of link_changes when wait_set was made */

/* -----------------------------------------------------------------------------------------------------------------
 * Outstanding answers
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
answer_reservation(const Expected *e, const redisReply *reply)
{
	send_queue_give_answer(e->process, e->number, link_granted(e, reply) ? ANSWER_GRANTED : ANSWER_FAILED);
}

/* Takes the answer of one node. The last one completes the message, and the worst one is counted. */
static void
answer_joint(const Expected *e, const redisReply *reply)
{
	Joint	   *joint = e->owner;
	bool		refused = joint->reserves && reply && calls_granted(reply) == 0;

	if (refused)
		link_note_refusal(reply);
	joint->failed = joint->failed || refused || reply == NULL;
	joint->ended = Max(joint->ended, calls_result(reply));
	if (--joint->left > 0)
		return;
	if (joint->reserves)
		metrics_add(e->count.slot, !joint->failed ? METRIC_DOMAIN_RESERVE_GRANTED :
					joint->ended == MESSAGE_UNANSWERED ? METRIC_DOMAIN_RESERVE_TIMEOUT : METRIC_DOMAIN_RESERVE_FAILED, 1);
	else
		metrics_count_end(&e->count, true, joint->ended);
	if (!joint->reserves && joint->ended >= MESSAGE_LOST)
		fence_wake_patrol();
	send_queue_give_answer(e->process, e->number, joint->failed ? ANSWER_FAILED : ANSWER_GRANTED);
	pfree(joint);
}

static Expected
expected_of(const Message *message, Joint *joint)
{
	return (Expected) {
		.answer = joint ? answer_joint : message->kind == MESSAGE_RESERVE ? answer_reservation : link_answer_end,
		.owner = joint, .process = message->process, .number = message->number, .count = message->count
	};
}

/* Answers a message that will get no reply. */
static void
give_up(const Message *message, Joint *joint)
{
	Expected	lost = expected_of(message, joint);

	lost.answer(&lost, NULL);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The round
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Returns the link to a node. Checks it only once in a round, because checking costs too much for each message.
 * Connects if it is time for another attempt. If there are several nodes, attempts to reach a missing one may take at
 * most a fifth of the time.
 */
static Link *
courier_link(int node)
{
	Link	   *link = link_to(node);

	if (!states[node].looked_at && !link_check(link) && fence_clock() >= link->connect_next)
		(void) link_connect(link, fence_clock() + setting_timeout_us(), CONNECT_AGAIN_US, nlinks > 1 ? 5 : 0);
	states[node].looked_at = true;
	return link;
}

static bool
is_congested(const Link *to, size_t limit)
{
	return to->connection != NULL && redis_unsent(to->connection) >= limit;
}

static void
carry(Link *to, const Message *message, Joint *joint)
{
	if (to->connection == NULL || is_congested(to, MAX_UNSENT_BESIDE))
	{
		give_up(message, joint);
		return;
	}
	link_make_room(to);
	if (!link_is_busy(to) && !link_has_draft(to))
		states[to - links].heard_at = fence_clock();
	if (message->kind == MESSAGE_END && !link_fits(to, message))
		link_send(to);
	if (message->kind == MESSAGE_END && link_fits(to, message))
	{
		link_add(to, message);
		link_expect(to, expected_of(message, joint));
	}
	else
		link_send_message(to, message, expected_of(message, joint));
}

/* Copies which nodes are armed; returns the number of all. */
static int
granted_nodes(bool granted[MAX_NODES])
{
	int			nnodes;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	nnodes = fence_shared->nnodes;
	for (int i = 0; i < nnodes; i++)
		granted[i] = fence_shared->nodes[i].granted;
	LWLockRelease(fence_shared->lock);
	return nnodes;
}

/*
 * Carries a message to every armed process. If the epoch has changed meanwhile, these are other processes than
 * intended, but each of them refuses the message. If slots were granted again meanwhile, the word has changed. Then a
 * grant does not count any more, and an end finds nothing to end at a process that is new.
 */
static void
carry_to_all(const Message *message)
{
	bool		granted[MAX_NODES];
	int			nnodes = granted_nodes(granted);
	Joint	   *joint = MemoryContextAllocZero(TopMemoryContext, sizeof(Joint));

	for (int i = 0; i < nnodes; i++)
		joint->left += granted[i];
	joint->reserves = message->kind == MESSAGE_RESERVE_DOMAIN;
	if (joint->left == 0)
	{
		joint->left = 1;
		give_up(message, joint);
		return;
	}
	for (int i = 0; i < nnodes; i++)
		if (granted[i])
			carry(courier_link(i), message, joint);
}

/*
 * Messages that were taken from the ring and not carried yet. We take several at once, because carrying one may take
 * long, and meanwhile other processes take messages too.
 */
static StringInfoData bag;
static size_t bag_at = 0;		/* offset of the next message */

/*
 * A message that ends a transaction stays in the ring for a turn, unless a sender has woken us. Meanwhile a backend that
 * reserves a row takes it along, which costs Redis much less than a call of ours (wire.c, take_riders).
 */
static bool woken;
static uint64 old_until = 0;	/* position in the ring: what is before it has been there for a turn */

static bool
is_due(const Message *message)
{
	return woken || message->kind != MESSAGE_END || message->position < old_until;
}

static void
fill_bag(void)
{
	Message		message;

	resetStringInfo(&bag);
	bag_at = 0;
	while (send_queue_look(&message) && is_due(&message) && bag.len + sizeof(message) + message.len < (size_t) bag.maxlen)
	{
		int			before = bag.len;

		appendBinaryStringInfo(&bag, (char *) &message, sizeof(message));
		appendBinaryStringInfo(&bag, message.bytes, message.len);
		if (!send_queue_take(&message))
			bag.len = before;	/* a backend has taken it */
	}
}

/* Returns the next message. Its bytes are valid until the bag is filled again. */
static bool
next_message(Message *message)
{
	if (bag_at == (size_t) bag.len)
		fill_bag();
	if (bag_at == (size_t) bag.len)
		return false;
	memcpy(message, bag.data + bag_at, sizeof(*message));
	message->bytes = bag.data + bag_at + sizeof(*message);
	bag_at += sizeof(*message) + message->len;
	return true;
}

/* Takes the messages that are due from the ring and writes as much as the sockets accept. Returns whether there were any. */
static bool
carry_messages(void)
{
	Message		message;
	bool		any = false;
	uint64		end = send_queue_end();

	woken = send_queue_was_woken();
	for (int i = 0; i < nlinks; i++)
		states[i].looked_at = false;
	/* with a single node, messages can wait in the ring, because none behind them is for another node */
	while (!(nlinks == 1 && is_congested(&links[0], MAX_UNSENT)) && next_message(&message))
	{
		if (message.node == MESSAGE_TO_ALL)
			carry_to_all(&message);
		else
			carry(courier_link(message.node), &message, NULL);
		any = true;
	}
	old_until = end;
	for (int i = 0; i < nlinks; i++)
		if (link_has_draft(&links[i]) || is_congested(&links[i], 1))
			(void) link_flush(&links[i]);
	return any;
}

/* Calls fence_open at each armed process for which it is time. */
static void
open_buckets(void)
{
	bool		granted[MAX_NODES];
	int			nnodes;

	if (!openings_begin_round())
		return;
	nnodes = granted_nodes(granted);
	for (int i = 0; i < nnodes; i++)
	{
		Link	   *link;

		if (!granted[i] || !openings_is_due(i))
			continue;
		link = courier_link(i);
		if (link->connection == NULL || is_congested(link, 1))
			continue;
		if (!link_is_busy(link) && !link_has_draft(link))
			states[i].heard_at = fence_clock();
		openings_send(link);
		(void) link_flush(link);
	}
	openings_end_round(nnodes, granted);
}

/*
 * Returns the microseconds until we give up waiting for replies on this link; 0 if that time has passed; -1 if nothing
 * is outstanding.
 */
static int64
patience_left(int node)
{
	if (!link_is_busy(&links[node]))
		return -1;
	return Max(states[node].heard_at + setting_timeout_us() - fence_clock(), 0);
}

/* Takes the replies that have arrived. Returns whether there were any. */
static bool
collect_answers(int node)
{
	bool		any = link_poll(&links[node]);

	if (any)
		states[node].heard_at = fence_clock();
	if (patience_left(node) == 0)
		link_hang_up(&links[node], "no reply in time");
	return any;
}

static void
make_wait_set(void)
{
	if (wait_set)
		FreeWaitEventSet(wait_set);
	wait_set = fence_create_wait_event_set(nlinks + 2);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < nlinks; i++)
		states[i].wait_position = links[i].connection == NULL ? -1 :
			AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, redis_socket(links[i].connection), NULL, NULL);
	wait_changes = link_changes;
}

/* Returns whether a backend waits for an answer that is outstanding on the link. */
static bool
is_awaited(const Link *with)
{
	for (uint32 p = with->first; p != with->sent; p++)
		if (link_expected(with, p)->answer != link_answer_end)
			return true;
	return false;
}

/*
 * Sleeps until there is a message or a reply, or until it is time to give up waiting for one, or to open buckets. A nap
 * lasts a millisecond. Only a message or a reply that somebody waits for ends it earlier. Meanwhile backends may take
 * messages that end transactions. There is no nap while buckets can be opened at once: a reader may wait for that.
 */
static void
sleep_until_needed(bool nap)
{
	long		timeout = -1;
	long		pause = openings_pause();
	bool		awaited = false;
	WaitEvent	event;

	if (!send_queue_nap(nap))
		return;
	if (wait_set == NULL || wait_changes != link_changes)
		make_wait_set();
	for (int i = 0; i < nlinks; i++)
	{
		int64		patience = patience_left(i);

		if (patience >= 0 && (timeout < 0 || patience / 1000 + 1 < timeout))
			timeout = patience / 1000 + 1;
		if (states[i].wait_position >= 0)
			ModifyWaitEvent(wait_set, states[i].wait_position,
							WL_SOCKET_READABLE | (redis_unsent(links[i].connection) > 0 ? WL_SOCKET_WRITEABLE : 0), NULL);
		awaited = awaited || is_awaited(&links[i]);
	}
	if (pause >= 0 && (timeout < 0 || pause < timeout))
		timeout = pause;
	if (nap && timeout != 0)
		timeout = 1;
	if (nap && !awaited)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout, wait_event_worker());
	else
		(void) WaitEventSetWait(wait_set, timeout, &event, 1, wait_event_worker());
	(void) send_queue_nap(true);
}

static void
courier_exit(int code, Datum arg)
{
	Message		message;

	(void) code;
	(void) arg;
	send_queue_serve(false);
	for (int i = 0; i < nlinks; i++)
		link_hang_up(&links[i], NULL);
	while (bag_at < (size_t) bag.len && next_message(&message))
		give_up(&message, NULL);
	fence_wake_patrol();		/* for the message that was being carried */
}

void
fence_courier_main(Datum arg)
{
	int			naps = 0;

	(void) arg;
	worker_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	initStringInfo(&bag);
	enlargeStringInfo(&bag, 2 * QUEUE_MAX_MESSAGE);
	before_shmem_exit(courier_exit, 0);
	link_on_problem = send_queue_set_problem;
	send_queue_serve(true);

	for (;;)
	{
		bool		carried;
		bool		heard = false;

		(void) worker_next_turn();
		carried = carry_messages();
		open_buckets();
		for (int i = 0; i < nlinks; i++)
			heard = collect_answers(i) || heard;
		/* an answer alone begins no naps: while all is quiet, buckets are asked for again and again */
		naps = carried || (heard && naps > 0) || send_queue_is_in_use() ? NAPS : Max(naps - 1, 0);
		sleep_until_needed(naps > 0);
		/* read from idle connections, to notice that Redis closed them before the next message needs one */
		for (int i = 0; i < nlinks; i++)
			if (!link_is_busy(&links[i]))
				(void) link_flush(&links[i]);
	}
}
