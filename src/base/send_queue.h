/*
 * base/send_queue.h
 *	  What backends have to say to Redis: messages in shared memory that the courier carries, and the answers.
 *
 * Instead of one connection per backend there is one per server: a backend posts a message (a copy into a ring, at most one
 * signal), the courier (courier.c) writes what has gathered in one go and notes the answers where the sender finds them.
 *
 * Locks: none, but for the text of the last problem. The ring has many writers and many readers: a writer takes its place by
 * compare-and-swap on `tail`, fills it, and marks it whole; a reader copies the first whole message and takes it by
 * compare-and-swap on `head`. Answers are atomics that hold the number of the message they are for, so a late answer can never
 * be taken for another message's.
 */
#ifndef FENCE_SEND_QUEUE_H
#define FENCE_SEND_QUEUE_H

#include "postgres.h"

#include "base/metrics.h"

typedef enum MessageKind
{
	MESSAGE_END,					/* words that end transactions: redis/calls.h; the rest are whole commands */
	MESSAGE_STORE,				/* tells of rows, and ends their transaction */
	MESSAGE_RESERVE,				/* reserves a row */
	MESSAGE_RESERVE_DOMAIN,
	MESSAGE_END_DOMAIN,			/* ends the reservation of a domain, or announces it */
	MESSAGE_END_EFFECTS			/* effects.c */
} MessageKind;

/* Instead of a node: to every process that was armed in the epoch; answered when all have answered. */
#define MESSAGE_TO_ALL (-1)

/* Bytes are in Redis' protocol: words as strings, of which many messages' go in one call; of a command all of it. */
typedef struct Message
{
	MessageKind	kind;
	uint32		epoch;			/* number, in which it is meant */
	int			node;			/* for whom, in the table of nodes of that epoch; or MESSAGE_TO_ALL */
	int			strings;		/* words; of a command 1 */
	const char *bytes;
	size_t		len;
	bool		spare;			/* to be posted only while half of the ring is free; not carried */
	MessageCount count;

	/* set by send_queue_look: who waits for which answer, and where it lies in the ring */
	int			process;
	uint64		number;
	uint64		position;
	uint64		end;
} Message;

typedef enum AnswerKind
{
	ANSWER_NONE = 0,			/* not yet */
	ANSWER_GRANTED,				/* of a message that ends: it was answered, or is on its way already */
	ANSWER_FAILED				/* it was not carried, or not granted: send_queue_problem tells */
} AnswerKind;

/* Messages of one process that can wait for their answers at the same time. A power of two. */
#define QUEUE_ANSWERS	256

/* Microseconds after which a courier that ended is back. */
#define COURIER_RESTART_US	INT64CONST(2500000)

/* The largest message, in bytes. */
#define QUEUE_MAX_MESSAGE (1024 * 1024)

/* Shared memory. send_queue_initialise is called once, for zeroed memory. */
extern Size send_queue_size(void);
extern void send_queue_initialise(void *memory);
extern void send_queue_use(void *memory);

/* Once in each process before it posts, and not in COMMIT or ABORT: it may raise. */
extern void send_queue_join(void);

/*
 * The number of the next message that send_queue_post will post: 1, 2, 3, ... per process slot, never 0, never reused. Posting
 * it forgets the answer to the message QUEUE_ANSWERS before it.
 */
extern uint64 send_queue_next(void);

/*
 * Posts a copy of the message and wakes the courier. Returns its number, or 0: there is no room, or it is too large. Messages
 * without which things go on as well (spare) leave room to those that others wait for. Neither
 * waits nor raises nor allocates: usable in COMMIT and ABORT.
 */
extern uint64 send_queue_post(const Message *message);

/* The answer so far to a message of this process. */
extern AnswerKind send_queue_answer(uint64 message);

/*
 * Waits until the message is answered, at most until deadline (fence_clock() microseconds); a courier that is just being
 * restarted gets longer. Interruptible. Returns what send_queue_answer does.
 */
extern AnswerKind send_queue_wait(uint64 message, int64 deadline);

/* Why the last message failed, or (late) was not answered in time, for people; copied. Takes the lock of shared memory. */
extern void send_queue_problem(char *text, size_t size, bool late);

/* -----------------------------------------------------------------------------------------------------------------
 * The courier's side
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Whether the oldest message has been in the ring, unread, for longer than patience (microseconds): the courier hangs, or a
 * process ended while it wrote. For the keeper, which asks again and again.
 */
extern bool send_queue_is_stuck(int64 patience);

/*
 * The first message that nobody has taken, or false. Any process may look and take: whoever sends something to Redis anyway
 * takes messages along. Its bytes are in the ring and may be written over at any moment once another process has taken it:
 * they are copied, no more, and mean something only if send_queue_take says so. Neither waits nor raises.
 */
extern bool send_queue_look(Message *message);

/* Takes the message that was looked at, after its bytes were copied. False: another process was faster, the copy is void. */
extern bool send_queue_take(const Message *message);

/* Answers a message, and wakes its sender if it waits for that. */
extern void send_queue_give_answer(int process, uint64 number, AnswerKind kind);

/* Whether anybody has taken messages since the last call. */
extern bool send_queue_is_in_use(void);

/* Whether there is a courier. */
extern bool send_queue_is_served(void);

/* This process is the courier, or (false) is no longer; messages are posted all the same. */
extern void send_queue_serve(bool serving);

/*
 * napping: the courier is awake or looks again within a millisecond, so a message that ends a transaction need not wake it.
 * Else it is about to sleep until it is woken. False: not now, there is a message.
 */
extern bool send_queue_nap(bool napping);

extern void send_queue_set_problem(const char *text);

#endif
