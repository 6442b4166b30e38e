/*
 * send/link.h
 *	  One connection to each Redis process of the table of nodes, and the answers that are outstanding on it. Backends reserve and
 *	  ask on theirs (wire.c), the courier carries messages on its own (courier.c).
 *
 * Owns: the table of this process's links: to which node each leads, the ring of expected answers, and the draft of the next
 * call. Who is told an answer, and who waits for it, is the caller's affair.
 *
 * Invariants:
 *   - Answers come in the order in which calls were sent: Redis answers what was sent first. Positions count up for ever;
 *     first <= sent <= next: [first, sent) is on its way, [sent, next) is in the draft, and belongs to one call.
 *   - Each expected answer is told once: the reply, or NULL when the connection ends: a late reply would answer another question.
 *   - A draft, and anything outstanding, exist only while there is a connection.
 *   - A connection leads to the node as it was when it was looked at; link_check drops one whose node has changed since.
 *
 * Functions that are marked so are usable in COMMIT and ABORT: they neither wait nor raise, and allocate nothing, but for
 * what redis_send_raw needs (malloc).
 */
#ifndef FENCE_LINK_H
#define FENCE_LINK_H

#include "base/send_queue.h"
#include "base/shared.h"
#include "redis/calls.h"

#define LINK_ANSWERS	1024	/* there is room for so many, a power of two; link_make_room makes more */
#define LINK_WORDS		64		/* that end transactions, in one call */

/*
 * What becomes of an operation or a command: the reply to its call, or NULL: there will be none, link_problem tells why.
 * Called while other answers are waited for, or a connection ends, in ABORT too: it neither waits nor raises nor allocates.
 */
typedef struct Expected Expected;
typedef void (*LinkAnswer) (const Expected *expected, const redisReply *reply);

struct Expected
{
	LinkAnswer	answer;
	void	   *owner;			/* these are the caller's, for `answer` */
	uint64		number;
	int			process;		/* the sender of the message of that number, which is answered; -1: it is no message, or was answered */
	bool		last;			/* of its call; set by link.c */
	MessageCount count;
};

typedef struct Link
{
	RedisConnection *connection;	/* NULL: none */
	bool		proven;			/* a function was answered on it: who takes no more clients says so only when asked */
	uint32		nodes_serial;	/* when its node was looked at */
	uint32		node_serial;	/* of its node then */
	int64		connect_next;	/* better not before this time (fence_clock()); 0: the last connection has worked */
	Expected   *expected;		/* ring */
	uint32		size;			/* its places, a power of two */
	uint32		first;			/* see above */
	uint32		sent;
	uint32		next;
	WriteCall    *draft;
	uint32		draft_epoch;
} Link;

extern Link links[MAX_NODES];	/* by node */
extern int	nlinks;				/* those that were ever used are below */
extern uint32 link_changes;		/* counts connections that were made or closed */

/*
 * Why something failed last, for people; and who is told that too, before those who wait for answers are: the courier's backends.
 * There the lock of shared memory is taken for it; the courier has no COMMIT and ABORT.
 */
extern char link_problem[REASON_LEN];
extern void (*link_on_problem) (const char *why);
extern void link_note(const char *why);

/* The link to that node; not connected. May raise. */
extern Link *link_to(int node);

/*
 * Drops a connection that has failed, or whose node is another one now. Returns whether there is a connection. Never waits; takes
 * the lock of shared memory if the nodes have changed.
 */
extern bool link_check(Link *link);

/*
 * Connects; waits for that until deadline (fence_clock() microseconds). connect_next becomes `pause` microseconds later than
 * now, and `times` what it took: a node that is gone is not to take all the time. Interruptible. False: link_problem tells.
 */
extern bool link_connect(Link *link, int64 deadline, int64 pause, int times);

/* Closes the connection, if there is one; why: for people, or NULL. Usable in COMMIT and ABORT. */
extern void link_hang_up(Link *link, const char *why);

/* The answer that is expected at that position. */
static inline Expected *
link_expected(const Link *link, uint32 position)
{
	return &link->expected[position & (link->size - 1)];
}

/* Whether anything that was sent has no answer yet; whether anything is drafted. */
static inline bool
link_is_busy(const Link *link)
{
	return link->first != link->sent;
}

static inline bool
link_has_draft(const Link *link)
{
	return link->sent != link->next;
}

/* How many answers more can be expected; link_make_room makes that one at least, and may raise. Usable in COMMIT and ABORT. */
static inline uint32
link_room(const Link *link)
{
	return link->size - (link->next - link->first);
}

extern void link_make_room(Link *link);

/* Whether the draft takes the message's words (MESSAGE_END), which are of its epoch; adds them. Usable in COMMIT and ABORT. */
extern bool link_fits(const Link *link, const Message *message);
extern void link_add(Link *link, const Message *message);

/* Expects the answer to what was added to the draft. There has to be room for an answer. Usable in COMMIT and ABORT. */
extern void link_expect(Link *link, Expected expected);

/* Queues the draft, if there is one. What fails shows in the connection. Usable in COMMIT and ABORT. */
extern void link_send(Link *link);

/* Queues the draft, and expects the answer to a command that is queued next. Usable in COMMIT and ABORT. */
extern void link_expect_command(Link *link, Expected expected);

/* Queues one message behind the draft, as a call of its own, and expects its answer. Usable in COMMIT and ABORT. */
extern void link_send_message(Link *link, const Message *message, Expected expected);

/* Queues the draft, and writes what the socket takes. False: there is no connection (any more). Usable in COMMIT and ABORT. */
extern bool link_flush(Link *link);

/* Waits for the next reply until deadline; caller: freeReplyObject. NULL: the connection was hung up. Interruptible. */
extern redisReply *link_wait(Link *link, int64 deadline);

/* Waits until deadline for all answers that are outstanding. False: the connection was hung up. Interruptible. */
extern bool link_collect(Link *link, int64 deadline);

/* Takes the replies that are here; hangs up if the connection has failed. Returns whether there was any. */
extern bool link_poll(Link *link);

/* Drops the draft; and what is outstanding has no owner any more. Usable in COMMIT and ABORT. */
extern void link_forget(Link *link);

/* ---- answers that more than one kind of process expects ---- */

/* A message or an operation that ends something, other than a whole domain: counted, its sender answered, the patrol woken if lost. */
extern void link_answer_end(const Expected *expected, const redisReply *reply);

/* Whether the reservation of a row was granted, and its number: counted. 0: link_problem tells why it was not. */
extern int64 link_granted(const Expected *expected, const redisReply *reply);

/* Notes why a reply (not NULL) does not grant. */
extern void link_note_refusal(const redisReply *reply);

#endif
