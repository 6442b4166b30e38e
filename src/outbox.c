/*
 * outbox.c
 *	  The ring of letters to Redis and the answers; see outbox.h.
 *
 * Owns: its part of shared memory. Memory order: a letter is filled, then marked whole (release); read only if whole
 * (acquire). An answer's value is written before its kind.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "compat.h"
#include "outbox.h"
#include "shared.h"

#define RING_BYTES			(4 * 1024 * 1024)	/* a power of two */

/* A letter in the ring, followed by its key_bytes and arg_bytes */
typedef struct Envelope
{
	pg_atomic_uint32 whole;		/* 1: all of it may be read */
	uint32		size;			/* with this head, a multiple of the head's alignment */
	uint32		key_len;
	uint32		arg_len;		/* 0: this only fills the end of the ring */
	uint16		keys;
	uint16		args;
	uint32		epoch;
	int32		process;
	int32		kind;
	uint64		number;
	int32		node;
	LetterCount count;
} Envelope;

StaticAssertDecl(sizeof(Envelope) == 64, "places in the ring are multiples of a power of two");

/* One process's letters */
typedef struct Sender
{
	uint64		posted;			/* number of its last letter; written by its owner only */
	pg_atomic_uint64 awaited;	/* letter whose answer it sleeps for, or 0 */
	pg_atomic_uint64 answers[OUTBOX_ANSWERS];	/* number << 2 | AnswerKind */
	int64		ahead[OUTBOX_ANSWERS];
} Sender;

typedef struct Outbox
{
	pg_atomic_uint64 tail;		/* where the next letter goes: counts bytes since the server start */
	char		pad1[PG_CACHE_LINE_SIZE];
	pg_atomic_uint64 head;		/* where the courier reads */
	char		pad2[PG_CACHE_LINE_SIZE];
	pg_atomic_uint32 taker;		/* number of the process that takes letters, + 1; 0: none does */
	struct Latch *volatile courier; /* NULL: there is none at the moment */
	volatile bool napping;		/* the courier looks again by itself within a millisecond */
	char		problem[REASON_LEN];	/* under the lock of shared memory */
	char	   *ring;
	Sender		senders[FLEXIBLE_ARRAY_MEMBER]; /* by process number */
} Outbox;

static Outbox *outbox = NULL;

static int
sender_count(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

static Size
senders_size(void)
{
	return MAXALIGN(add_size(offsetof(Outbox, senders), mul_size(sender_count(), sizeof(Sender))));
}

Size
outbox_size(void)
{
	return add_size(senders_size(), RING_BYTES);
}

void
outbox_initialise(void *memory)
{
	Outbox	   *box = memory;

	memset(memory, 0, outbox_size());
	pg_atomic_init_u64(&box->tail, 0);
	pg_atomic_init_u64(&box->head, 0);
	pg_atomic_init_u32(&box->taker, 0);
	box->ring = (char *) memory + senders_size();
	for (int i = 0; i < sender_count(); i++)
	{
		pg_atomic_init_u64(&box->senders[i].awaited, 0);
		for (int a = 0; a < OUTBOX_ANSWERS; a++)
			pg_atomic_init_u64(&box->senders[i].answers[a], 0);
	}
}

void
outbox_use(void *memory)
{
	outbox = memory;
}

static Sender *
myself(void)
{
	return &outbox->senders[fence_process_number()];
}

/* -----------------------------------------------------------------------------------------------------------------
 * Posting
 * -----------------------------------------------------------------------------------------------------------------
 */

static Envelope *
envelope_at(uint64 position)
{
	return (Envelope *) (outbox->ring + (position & (RING_BYTES - 1)));
}

/*
 * The place that this process has taken and not filled yet. Background workers may end anywhere (bgworker_die raises in the
 * signal handler), and a place that is never whole would hold up all letters behind it.
 */
static Envelope *volatile unfinished = NULL;
static volatile uint32 unfinished_size;

/* Where the head will be when the place that this process gives back is clear. */
static volatile uint64 next_head = 0;

static uint32
my_taker(void)
{
	return fence_process_number() + 1;
}

/* Clears the first place, which ends at next_head, and moves the head past it. */
static void
clear_first_place(void)
{
	uint64		head = pg_atomic_read_u64(&outbox->head);

	memset(envelope_at(head), 0, next_head - head);
	pg_write_barrier();
	pg_atomic_write_u64(&outbox->head, next_head);
}

static void
give_up_unfinished(int code, Datum arg)
{
	(void) code;
	(void) arg;
	if (pg_atomic_read_u32(&outbox->taker) == my_taker())
	{
		/* half-cleared, the place would tell nobody where the next one begins */
		if (pg_atomic_read_u64(&outbox->head) < next_head)
			clear_first_place();
		outbox_end_taking();
	}
	if (unfinished == NULL)
		return;
	unfinished->size = unfinished_size;
	unfinished->arg_len = 0;	/* nothing but filling */
	pg_write_barrier();
	pg_atomic_write_u32(&unfinished->whole, 1);
}

/* Once in each process; the first letter of a backend is not posted in COMMIT without one before. */
static void
clean_up_at_exit(void)
{
	static bool registered = false;

	if (!registered)
		before_shmem_exit(give_up_unfinished, 0);
	registered = true;
}

/*
 * Takes a place of that size, filling up the end of the ring if it does not fit there. NULL: there is no room in the part of
 * the ring that it may use.
 */
static Envelope *
take_place(uint32 size, uint32 part)
{
	uint64		tail = pg_atomic_read_u64(&outbox->tail);

	for (;;)
	{
		uint64		left = RING_BYTES - (tail & (RING_BYTES - 1));
		uint64		skip = left < size ? left : 0;

		/* signed: if others posted and the courier passed our tail meanwhile, the exchange fails and tells the new one */
		if ((int64) (tail + skip + size - pg_atomic_read_u64(&outbox->head)) > part)
			return NULL;
		if (!pg_atomic_compare_exchange_u64(&outbox->tail, &tail, tail + skip + size))
			continue;
		if (skip > 0)
		{
			Envelope   *filler = envelope_at(tail);

			filler->size = skip;
			pg_write_barrier();
			pg_atomic_write_u32(&filler->whole, 1);
		}
		return envelope_at(tail + skip);
	}
}

/* Being woken costs more than what the courier does: nobody waits for what ends a transaction, so it may ride along. */
static void
wake_courier(LetterKind kind)
{
	struct Latch *latch;

	/* the letter is whole before this looks: a courier that starts, or falls asleep, sees it, or this sees that */
	pg_memory_barrier();
	latch = outbox->courier;	/* of a PGPROC: valid memory even if its owner is gone by now */
	if (latch != NULL && !(kind == LETTER_END && outbox->napping))
		SetLatch(latch);
}

uint64
outbox_next(void)
{
	return myself()->posted + 1;
}

uint64
outbox_post(const Letter *letter)
{
	Sender	   *me = myself();
	uint64		number = me->posted + 1;
	size_t		len = letter->key_len + letter->arg_len;
	uint32		size = TYPEALIGN(sizeof(Envelope), sizeof(Envelope) + len);
	Envelope   *envelope;

	Assert(letter->arg_len > 0);
	clean_up_at_exit();
	if (len > OUTBOX_MAX_LETTER || (envelope = take_place(size, letter->spare ? RING_BYTES / 2 : RING_BYTES)) == NULL)
		return 0;
	unfinished_size = size;
	unfinished = envelope;
	me->posted = number;
	pg_atomic_write_u64(&me->answers[number % OUTBOX_ANSWERS], number << 2 | ANSWER_NONE);

	envelope->size = size;
	envelope->key_len = letter->key_len;
	envelope->arg_len = letter->arg_len;
	envelope->keys = letter->keys;
	envelope->args = letter->args;
	envelope->epoch = letter->epoch;
	envelope->node = letter->node;
	envelope->process = fence_process_number();
	envelope->kind = letter->kind;
	envelope->number = number;
	envelope->count = letter->count;
	memcpy(envelope + 1, letter->key_bytes, letter->key_len);
	memcpy((char *) (envelope + 1) + letter->key_len, letter->arg_bytes, letter->arg_len);
	pg_write_barrier();
	pg_atomic_write_u32(&envelope->whole, 1);
	unfinished = NULL;
	wake_courier(letter->kind);
	return number;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Answers, as the sender sees them
 * -----------------------------------------------------------------------------------------------------------------
 */

AnswerKind
outbox_answer(uint64 letter, int64 *ahead)
{
	Sender	   *me = myself();
	uint64		answer = pg_atomic_read_u64(&me->answers[letter % OUTBOX_ANSWERS]);

	if (answer >> 2 != letter)
		return ANSWER_FAILED;	/* its place was used again: whoever asks so late sends it again */
	if ((answer & 3) == ANSWER_AHEAD && ahead != NULL)
	{
		pg_read_barrier();
		*ahead = me->ahead[letter % OUTBOX_ANSWERS];
	}
	return answer & 3;
}

AnswerKind
outbox_wait(uint64 letter, int64 deadline, int64 *ahead)
{
	Sender	   *me = myself();
	int64		patience = deadline + COURIER_RESTART_US;
	AnswerKind	answer = outbox_answer(letter, ahead);

	while (answer == ANSWER_NONE)
	{
		int64		now = fence_clock();
		int64		until = outbox->courier == NULL ? patience : deadline;

		if (now > until)
			break;
		pg_atomic_write_u64(&me->awaited, letter);
		pg_memory_barrier();
		answer = outbox_answer(letter, ahead);
		if (answer != ANSWER_NONE)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min((until - now) / 1000 + 1, 100), wait_event_redis());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		answer = outbox_answer(letter, ahead);
	}
	pg_atomic_write_u64(&me->awaited, 0);
	return answer;
}

void
outbox_problem(char *text, size_t size, bool late)
{
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	strlcpy(text, outbox->courier == NULL ? "the courier is not running" : late ? "no reply in time" : outbox->problem, size);
	LWLockRelease(fence_shared->lock);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The courier's side
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether there is a letter (or filling) to be taken. */
static bool
is_first_whole(void)
{
	return pg_atomic_read_u32(&envelope_at(pg_atomic_read_u64(&outbox->head))->whole) != 0;
}

void
outbox_serve(bool serving)
{
	outbox->napping = false;
	outbox->courier = serving ? MyLatch : NULL;
}

bool
outbox_is_served(void)
{
	return outbox->courier != NULL;
}

bool
outbox_nap(bool napping)
{
	outbox->napping = napping;
	pg_memory_barrier();
	/* who takes letters at this moment looks after the rest; what it clears must not be mistaken for the end */
	if (napping || pg_atomic_read_u32(&outbox->taker) != 0)
		return true;
	pg_read_barrier();
	return !is_first_whole();
}

void
outbox_set_problem(const char *text)
{
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	strlcpy(outbox->problem, text, REASON_LEN);
	LWLockRelease(fence_shared->lock);
}

/* Gives the first place back, as zeros: what is to be written there is not whole before its writer says so. */
static void
give_place_back(Envelope *envelope)
{
	next_head = pg_atomic_read_u64(&outbox->head) + envelope->size;
	pg_compiler_barrier();		/* before anything is cleared: see give_up_unfinished */
	clear_first_place();
}

bool
outbox_begin_taking(void)
{
	uint32		nobody = 0;

	clean_up_at_exit();
	return pg_atomic_compare_exchange_u32(&outbox->taker, &nobody, my_taker());
}

void
outbox_end_taking(void)
{
	struct Latch *latch;

	pg_write_barrier();
	pg_atomic_write_u32(&outbox->taker, 0);
	/* the courier may have fallen asleep meanwhile, see outbox_nap: what is left here is its affair again */
	pg_memory_barrier();
	latch = outbox->courier;
	if (latch != NULL && latch != MyLatch && !outbox->napping && is_first_whole())
		SetLatch(latch);
}

bool
outbox_is_in_use(void)
{
	static uint64 seen = 0;
	uint64		head = pg_atomic_read_u64(&outbox->head);
	bool		moved = head != seen;

	seen = head;
	return moved;
}

bool
outbox_take(Letter *letter)
{
	for (;;)
	{
		Envelope   *envelope = envelope_at(pg_atomic_read_u64(&outbox->head));

		if (pg_atomic_read_u32(&envelope->whole) == 0)
			return false;
		pg_read_barrier();
		if (envelope->arg_len > 0)
		{
			*letter = (Letter) {
				.kind = envelope->kind, .epoch = envelope->epoch, .node = envelope->node,
				.keys = envelope->keys, .args = envelope->args,
				.key_bytes = (char *) (envelope + 1), .key_len = envelope->key_len,
				.arg_bytes = (char *) (envelope + 1) + envelope->key_len, .arg_len = envelope->arg_len,
				.process = envelope->process, .number = envelope->number, .count = envelope->count
			};
			return true;
		}
		give_place_back(envelope);
	}
}

bool
outbox_is_stuck(int64 patience)
{
	static uint64 seen = 0;
	static bool was_empty = true;
	static int64 since = 0;
	uint64		head = pg_atomic_read_u64(&outbox->head);
	bool		is_empty = head == pg_atomic_read_u64(&outbox->tail);

	/* what was not there at the last look, perhaps long ago, may have come just now */
	if (head != seen || is_empty || was_empty)
	{
		seen = head;
		since = fence_clock();
	}
	was_empty = is_empty;
	return fence_clock() - since > patience;
}

void
outbox_done(void)
{
	give_place_back(envelope_at(pg_atomic_read_u64(&outbox->head)));
}

void
outbox_give_answer(int process, uint64 number, AnswerKind kind, int64 ahead)
{
	Sender	   *sender = &outbox->senders[process];
	uint64		unanswered = number << 2 | ANSWER_NONE;

	if (kind == ANSWER_AHEAD)
	{
		sender->ahead[number % OUTBOX_ANSWERS] = ahead;
		pg_write_barrier();
	}
	if (!pg_atomic_compare_exchange_u64(&sender->answers[number % OUTBOX_ANSWERS], &unanswered, number << 2 | kind))
		return;					/* its sender has given up on it */
	if (pg_atomic_read_u64(&sender->awaited) == number)
		SetLatch(&ProcGlobal->allProcs[process].procLatch);
}
