/*
 * base/send_queue.h
 *	  The send queue: messages from backends to Redis, in shared memory. The courier carries them and stores the
 *	  answers.
 *
 * It replaces one connection per backend by one connection per server. A backend posts a message: it copies the message
 * into a ring and sends at most one signal. A backend that sends to Redis on its own connection takes waiting messages
 * along. The courier (send/courier.c) writes the others, many at once, and stores each answer where the sender finds
 * it.
 *
 * Locks: none, except for the text of the last problem (the lock of shared memory). The ring has many writers and many
 * readers. A writer takes its place by compare-and-swap on `tail`, fills it, and marks it as complete. A reader copies
 * the first message, if it is complete, and takes it by compare-and-swap on `head`. Answers are atomics that contain
 * the number of their message, so a late answer is never mistaken for the answer to another message.
 */
#ifndef FENCE_SEND_QUEUE_H
#define FENCE_SEND_QUEUE_H

#include "postgres.h"

#include "base/metrics.h"

typedef enum MessageKind
{
	MESSAGE_END,					/* words that end transactions (redis/calls.h); all other kinds are commands */
	MESSAGE_STORE,				/* stores rows and ends their transaction */
	MESSAGE_RESERVE,				/* reserves a row */
	MESSAGE_RESERVE_DOMAIN,
	MESSAGE_END_DOMAIN,			/* ends the reservation of a domain, or announces the domain */
	MESSAGE_END_EFFECTS,			/* applies or undoes effects: effects.c */
	MESSAGE_OPEN				/* opens buckets: openings.c; never in the ring */
} MessageKind;

/* In place of a node: every process that was armed in the epoch. The message is answered once all of them have answered. */
#define MESSAGE_TO_ALL (-1)

/*
 * The bytes are bulk strings in the protocol of Redis: words, or all strings of one command. The carrier puts the words
 * of many messages into one call. It adds an echo to each call (redis/calls.h).
 */
typedef struct Message
{
	MessageKind	kind;
	uint32		epoch;			/* number of the epoch for which it is meant */
	int			node;			/* index in that epoch's table of nodes, or MESSAGE_TO_ALL */
	int			strings;		/* number of bulk strings in bytes */
	const char *bytes;
	size_t		len;
	bool		spare;			/* post it only while half of the ring is free; not in the ring */
	MessageCount count;

	/* set by send_queue_look: sender, number, and position in the ring */
	int			process;
	uint64		number;
	uint64		position;
	uint64		end;
} Message;

typedef enum AnswerKind
{
	ANSWER_NONE = 0,			/* no answer yet */
	ANSWER_GRANTED,				/* for a message that ends something: answered, or already on its way */
	ANSWER_FAILED				/* not sent, or Redis refused it; send_queue_problem tells why */
} AnswerKind;

/* How many messages of one process can wait for their answers at the same time. A power of two. */
#define QUEUE_ANSWERS	256

/* Microseconds within which PostgreSQL restarts a courier that has exited. */
#define COURIER_RESTART_US	INT64CONST(2500000)

/* The largest message, in bytes. */
#define QUEUE_MAX_MESSAGE (1024 * 1024)

/* Memory of this part. send_queue_initialise is called once, for zeroed memory. */
extern Size send_queue_size(void);
extern void send_queue_initialise(void *memory);
extern void send_queue_use(void *memory);

/* Call it once in each process before it posts, but not in COMMIT or ABORT, because it may raise. */
extern void send_queue_join(void);

/*
 * Returns the number that send_queue_post will give to the next message. Each process slot counts 1, 2, 3, ...; a
 * number is never 0 and never reused. Posting the message discards the answer to the message QUEUE_ANSWERS before it.
 */
extern uint64 send_queue_next(void);

/*
 * Posts a copy of the message and wakes the courier if necessary. Returns the message's number, or 0 if there is no
 * room or the message is too large. A message that can be dropped (spare) leaves half of the ring to messages that
 * senders wait for. Never waits, raises or allocates, so it is safe in COMMIT and ABORT.
 */
extern uint64 send_queue_post(const Message *message);

/* Wakes the courier. Neither waits nor raises. */
extern void send_queue_wake(void);

/* Returns the answer so far to a message of this process. */
extern AnswerKind send_queue_answer(uint64 message);

/*
 * Waits until the message is answered, but not longer than deadline (fence_clock() microseconds). While no courier is
 * running it waits longer, so that PostgreSQL can restart it. Interruptible. Returns what send_queue_answer returns.
 */
extern AnswerKind send_queue_wait(uint64 message, int64 deadline);

/*
 * Copies the text that says why the last message failed, or (late) why no answer came in time. Takes the lock of shared
 * memory.
 */
extern void send_queue_problem(char *text, size_t size, bool late);

/* -----------------------------------------------------------------------------------------------------------------
 * The courier's side
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Returns whether the oldest message has been in the ring for longer than patience (microseconds). Then the courier
 * hangs, or a process exited while it wrote. The keeper calls this again and again.
 */
extern bool send_queue_is_stuck(int64 patience);

/*
 * Reads the first message that nobody has taken; returns false if there is none. Any process may do that: a process
 * that sends something to Redis anyway takes messages along. The message's bytes are still in the ring. Once another
 * process takes the message, a sender may overwrite them at any moment. So copy them, and use the copy only if
 * send_queue_take returns true. Neither waits nor raises.
 */
extern bool send_queue_look(Message *message);

/* Takes the message after its bytes were copied. Returns false if another process was faster; then the copy is worthless. */
extern bool send_queue_take(const Message *message);

/* Stores the answer to a message, and wakes the sender if it waits for this answer. */
extern void send_queue_give_answer(int process, uint64 number, AnswerKind kind);

/* Returns whether any process has taken messages since the last call. */
extern bool send_queue_is_in_use(void);

/* Returns whether a courier is running. */
extern bool send_queue_is_served(void);

/* Registers this process as the courier, or (false) unregisters it. Backends can post messages even without a courier. */
extern void send_queue_serve(bool serving);

/* Returns whether a sender has woken the courier since the last call. What that sender posted before is complete. */
extern bool send_queue_was_woken(void);

/* Returns the position behind the last message. */
extern uint64 send_queue_end(void);

/*
 * Says whether the courier naps or sleeps. napping: the courier is awake, or looks again within a millisecond, so a
 * message that ends a transaction need not wake it. Not napping: the courier is about to sleep until a sender wakes it.
 * Returns false if it must not sleep now because there is a message.
 */
extern bool send_queue_nap(bool napping);

extern void send_queue_set_problem(const char *text);

#endif
