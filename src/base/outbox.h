/*
 * base/outbox.h
 *	  What backends have to say to Redis: letters in shared memory that the courier carries, and the answers.
 *
 * Instead of one connection per backend there is one per server: a backend posts a letter (a copy into a ring, at most one
 * signal), the courier (courier.c) writes what has gathered in one go and notes the answers where the sender finds them.
 *
 * Locks: none, but for the text of the last problem. The ring has many writers and many readers: a writer takes its place by
 * compare-and-swap on `tail`, fills it, and marks it whole; a reader copies the first whole letter and takes it by
 * compare-and-swap on `head`. Answers are atomics that hold the number of the letter they are for, so a late answer can never
 * be taken for another letter's.
 */
#ifndef FENCE_OUTBOX_H
#define FENCE_OUTBOX_H

#include "postgres.h"

#include "base/metrics.h"

typedef enum LetterKind
{
	LETTER_END,					/* words that end transactions: redis/calls.h; the rest are whole commands */
	LETTER_STORE,				/* tells of rows, and ends their transaction */
	LETTER_RESERVE,				/* reserves a row */
	LETTER_RESERVE_DOMAIN,
	LETTER_END_DOMAIN,			/* ends the reservation of a domain, or announces it */
	LETTER_END_EFFECTS			/* effects.c */
} LetterKind;

/* Instead of a node: to every process that was armed in the epoch; answered when all have answered. */
#define LETTER_TO_ALL (-1)

/* Bytes are in Redis' protocol: words as strings, of which many letters' go in one call; of a command all of it. */
typedef struct Letter
{
	LetterKind	kind;
	uint32		epoch;			/* number, in which it is meant */
	int			node;			/* for whom, in the table of nodes of that epoch; or LETTER_TO_ALL */
	int			strings;		/* words; of a command 1 */
	const char *bytes;
	size_t		len;
	bool		spare;			/* to be posted only while half of the ring is free; not carried */
	LetterCount count;

	/* set by outbox_look: who waits for which answer, and where it lies in the ring */
	int			process;
	uint64		number;
	uint64		position;
	uint64		end;
} Letter;

typedef enum AnswerKind
{
	ANSWER_NONE = 0,			/* not yet */
	ANSWER_GRANTED,				/* of a letter that ends: it was answered, or is on its way already */
	ANSWER_FAILED				/* it was not carried, or not granted: outbox_problem tells */
} AnswerKind;

/* Letters of one process that can wait for their answers at the same time. A power of two. */
#define OUTBOX_ANSWERS	256

/* Microseconds after which a courier that ended is back. */
#define COURIER_RESTART_US	INT64CONST(2500000)

/* The largest letter, in bytes. */
#define OUTBOX_MAX_LETTER (1024 * 1024)

/* Shared memory. outbox_initialise is called once, for zeroed memory. */
extern Size outbox_size(void);
extern void outbox_initialise(void *memory);
extern void outbox_use(void *memory);

/* Once in each process before it posts, and not in COMMIT or ABORT: it may raise. */
extern void outbox_join(void);

/*
 * The number of the next letter that outbox_post will post: 1, 2, 3, ... per process slot, never 0, never reused. Posting
 * it forgets the answer to the letter OUTBOX_ANSWERS before it.
 */
extern uint64 outbox_next(void);

/*
 * Posts a copy of the letter and wakes the courier. Returns its number, or 0: there is no room, or it is too large. Letters
 * without which things go on as well (spare) leave room to those that others wait for. Neither
 * waits nor raises nor allocates: usable in COMMIT and ABORT.
 */
extern uint64 outbox_post(const Letter *letter);

/* The answer so far to a letter of this process. */
extern AnswerKind outbox_answer(uint64 letter);

/*
 * Waits until the letter is answered, at most until deadline (fence_clock() microseconds); a courier that is just being
 * restarted gets longer. Interruptible. Returns what outbox_answer does.
 */
extern AnswerKind outbox_wait(uint64 letter, int64 deadline);

/* Why the last letter failed, or (late) was not answered in time, for people; copied. Takes the lock of shared memory. */
extern void outbox_problem(char *text, size_t size, bool late);

/* -----------------------------------------------------------------------------------------------------------------
 * The courier's side
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Whether the oldest letter has been in the ring, unread, for longer than patience (microseconds): the courier hangs, or a
 * process ended while it wrote. For the keeper, which asks again and again.
 */
extern bool outbox_is_stuck(int64 patience);

/*
 * The first letter that nobody has taken, or false. Any process may look and take: whoever sends something to Redis anyway
 * takes letters along. Its bytes are in the ring and may be written over at any moment once another process has taken it:
 * they are copied, no more, and mean something only if outbox_take says so. Neither waits nor raises.
 */
extern bool outbox_look(Letter *letter);

/* Takes the letter that was looked at, after its bytes were copied. False: another process was faster, the copy is void. */
extern bool outbox_take(const Letter *letter);

/* Answers a letter, and wakes its sender if it waits for that. */
extern void outbox_give_answer(int process, uint64 number, AnswerKind kind);

/* Whether anybody has taken letters since the last call. */
extern bool outbox_is_in_use(void);

/* Whether there is a courier. */
extern bool outbox_is_served(void);

/* This process is the courier, or (false) is no longer; letters are posted all the same. */
extern void outbox_serve(bool serving);

/*
 * napping: the courier is awake or looks again within a millisecond, so a letter that ends a transaction need not wake it.
 * Else it is about to sleep until it is woken. False: not now, there is a letter.
 */
extern bool outbox_nap(bool napping);

extern void outbox_set_problem(const char *text);

#endif
