/*
 * send/link.h
 *	  One connection from this process to each Redis process in the table of nodes, and the replies that are
 *	  outstanding on it. Backends use their links to reserve and to ask (wire.c). The courier uses its own links to
 *	  carry messages (courier.c).
 *
 * Owns: the table of this process's links. Each link has a connection to a node, a ring of expected replies, and a
 * draft of the next call. The callers decide who gets a reply and who waits for it.
 *
 * Invariants:
 *   - Redis replies in the order in which calls were sent. Positions in the ring only go up, and first <= sent <= next.
 *     The replies in [first, sent) are outstanding. Those in [sent, next) belong to the draft, which is one call.
 *   - A reply names the call that it answers (calls_take_echo). If that is not the oldest outstanding one, a call or a
 *     reply was lost on the way, and the connection is closed.
 *   - Each expected reply is delivered exactly once: the reply itself, or NULL when the connection ends. (After that, a
 *     late reply would answer another question.)
 *   - A draft and outstanding replies exist only while there is a connection.
 *   - A connection belongs to the node as the table had it at the time. link_check closes it if the node has changed.
 *
 * Functions marked "Usable in COMMIT and ABORT" neither wait nor raise, and allocate only what redis_begin_raw needs
 * (malloc).
 */
#ifndef FENCE_LINK_H
#define FENCE_LINK_H

#include "base/send_queue.h"
#include "base/shared.h"
#include "redis/calls.h"

#define LINK_ANSWERS	1024	/* initial size of the ring, a power of two; link_make_room enlarges it */
#define LINK_WORDS		64		/* maximum of words that end transactions in one call */

/*
 * Receives the reply to an operation or command; NULL if there will be none (link_problem says why). May be called
 * while other replies are waited for, and when a connection ends, even in ABORT. So it must not wait, raise or
 * allocate.
 */
typedef struct Expected Expected;
typedef void (*LinkAnswer) (const Expected *expected, const redisReply *reply);

struct Expected
{
	LinkAnswer	answer;
	void	   *owner;			/* owner and number belong to the caller, for use in `answer` */
	uint64		number;
	int			process;		/* sender of message `number`, who gets the answer; -1: not from the send queue, or already answered */
	bool		last;			/* last operation of its call; set by link.c */
	bool		unnamed;		/* the reply names no call: a command that the caller queued itself */
	MessageCount count;
};

typedef struct Link
{
	RedisConnection *connection;	/* NULL: not connected */
	bool		proven;			/* Redis has executed a function on it; a server at maxclients rejects us only at the first command */
	uint32		nodes_serial;	/* value of the shared nodes_serial when the node was last read */
	uint32		node_serial;	/* serial of the node when we connected */
	int64		connect_next;	/* fence_clock() time before which not to try again; 0: the last connection worked */
	Expected   *expected;		/* ring of expected replies */
	uint32		size;			/* of the ring, a power of two */
	uint32		first;			/* positions in the ring, see above */
	uint32		sent;
	uint32		next;
	uint32		calls_sent;		/* on this link; numbers the calls for their echoes */
	uint32		calls_answered;
	WriteCall  *draft;
	uint32		draft_epoch;
} Link;

extern Link links[MAX_NODES];	/* by index of the node */
extern int	nlinks;				/* all links that were ever used have a lower index */
extern uint32 link_changes;		/* number of times that a connection was made or closed */

/*
 * link_problem says why something failed last, for users. link_note sets it. The courier also sets link_on_problem,
 * which publishes the text before the waiting backends get their answers. That takes the lock of shared memory, which
 * is allowed because the courier has no COMMIT and ABORT.
 */
extern char link_problem[REASON_LEN];
extern void (*link_on_problem) (const char *why);
extern void link_note(const char *why);

/* Returns the link to this node, which may not be connected. May raise. */
extern Link *link_to(int node);

/*
 * Closes a connection that has failed, or whose node has changed. Returns whether there is a connection. Never waits.
 * Takes the lock of shared memory if the nodes have changed.
 */
extern bool link_check(Link *link);

/*
 * Connects, and waits for that until deadline (fence_clock() microseconds). Sets connect_next to `pause` microseconds
 * from now, plus `times` the duration of this attempt, so that a missing node does not take all the time.
 * Interruptible. On failure link_problem says why.
 */
extern bool link_connect(Link *link, int64 deadline, int64 pause, int times);

/* Closes the connection, if there is one. why: a text for users, or NULL. Usable in COMMIT and ABORT. */
extern void link_hang_up(Link *link, const char *why);

/* Returns the expected reply at this position. */
static inline Expected *
link_expected(const Link *link, uint32 position)
{
	return &link->expected[position & (link->size - 1)];
}

/* Return whether a reply is outstanding, and whether there is a draft. */
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

/*
 * link_room returns for how many more replies there is room. Usable in COMMIT and ABORT. link_make_room makes room for
 * at least one more, and may raise.
 */
static inline uint32
link_room(const Link *link)
{
	return link->size - (link->next - link->first);
}

extern void link_make_room(Link *link);

/*
 * link_fits returns whether the draft has room for the message's words (MESSAGE_END) and has the same epoch. link_add
 * adds them. Usable in COMMIT and ABORT.
 */
extern bool link_fits(const Link *link, const Message *message);
extern void link_add(Link *link, const Message *message);

/* Expects a reply to an operation that was added to the draft. There must be room for it. Usable in COMMIT and ABORT. */
extern void link_expect(Link *link, Expected expected);

/* Queues the draft, if there is one. A failure shows in the connection. Usable in COMMIT and ABORT. */
extern void link_send(Link *link);

/*
 * Queues the draft, and expects the reply to a command that the caller queues next. That reply names no call. Usable in
 * COMMIT and ABORT.
 */
extern void link_expect_command(Link *link, Expected expected);

/* Queues the draft, then this message as a call of its own, and expects its reply. Usable in COMMIT and ABORT. */
extern void link_send_message(Link *link, const Message *message, Expected expected);

/*
 * Queues the draft, and writes as much as the socket accepts. Returns false if there is no connection (any more).
 * Usable in COMMIT and ABORT.
 */
extern bool link_flush(Link *link);

/*
 * Waits for the next reply until deadline; the caller frees it with freeReplyObject. Returns NULL if the connection has
 * failed and was closed. Interruptible.
 */
extern redisReply *link_wait(Link *link, int64 deadline);

/*
 * Waits until deadline for all outstanding replies. Returns false if the connection has failed and was closed.
 * Interruptible.
 */
extern bool link_collect(Link *link, int64 deadline);

/* Takes the replies that have arrived; closes the connection if it has failed. Returns whether there were any replies. */
extern bool link_poll(Link *link);

/* Discards the draft, and removes the owners of outstanding replies. Usable in COMMIT and ABORT. */
extern void link_forget(Link *link);

/* ---- replies that backends and the courier both expect ---- */

/*
 * Receives the reply to a message or operation that ends something (except a whole domain). Counts it, answers the
 * message's sender, and wakes the patrol if the message was lost.
 */
extern void link_answer_end(const Expected *expected, const redisReply *reply);

/*
 * Counts whether the reservation of a row was granted, and returns its number. Returns 0 if it was not granted;
 * link_problem says why.
 */
extern int64 link_granted(const Expected *expected, const redisReply *reply);

/* Notes why this reply (not NULL) does not grant the reservation. */
extern void link_note_refusal(const redisReply *reply);

#endif
