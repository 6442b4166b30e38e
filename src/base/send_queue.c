/*
 * base/send_queue.c
 *	  The send queue: a ring of messages to Redis in shared memory, and the answers; see send_queue.h.
 *
 * Owns: its part of shared memory.
 *
 * Memory order: a sender writes the message first and its mark afterwards (release). A reader reads the mark first and
 * the message only if the mark says that it is complete (acquire).
 *
 * The marks are not in the ring but in an array beside it, with one mark for each place where a message may begin. When
 * a message is complete, its mark is set to the number of the round in which the ring has reached that place. So no
 * mark must be cleared when a message is taken.
 *
 * A reader copies the message and then takes it with one compare-and-swap on `head`. As long as `head` has not passed
 * the message, no sender writes there. If `head` has passed it, the swap fails, and the reader discards its copy. So a
 * reader that is stopped half-way delays nobody.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "base/compat.h"
#include "base/send_queue.h"
#include "base/shared.h"

#define RING_BYTES			(4 * 1024 * 1024)	/* must be a power of two */
#define MARKS				(RING_BYTES / sizeof(Envelope))

/* Head of a message in the ring. The message's bytes follow it. */
typedef struct Envelope
{
	uint32		size;			/* of head and bytes, rounded up to a multiple of the head's size */
	uint32		len;			/* number of bytes; 0: filler up to the end of the ring */
	uint32		strings;
	uint32		epoch;
	int32		process;
	int32		kind;
	uint64		number;
	int32		node;
	MessageCount count;
} Envelope;

StaticAssertDecl(sizeof(Envelope) == 64, "places in the ring are multiples of a power of two");

/* The sending side of one process */
typedef struct Sender
{
	uint64		posted;			/* number of its last message; only the process itself writes it */
	pg_atomic_uint64 awaited;	/* number of the message whose answer it sleeps for, or 0 */
	pg_atomic_uint64 answers[QUEUE_ANSWERS];	/* number << 2 | AnswerKind */
} Sender;

typedef struct SendQueue
{
	pg_atomic_uint64 tail;		/* position of the next message, in bytes since the server start */
	char		pad1[PG_CACHE_LINE_SIZE];
	pg_atomic_uint64 head;		/* position of the first message that nobody has taken */
	char		pad2[PG_CACHE_LINE_SIZE];
	struct Latch *volatile courier; /* NULL: no courier is running */
	volatile bool napping;		/* the courier looks at the queue again within a millisecond */
	volatile bool woken;		/* a sender has woken the courier, which has not taken notice yet */
	char		problem[REASON_LEN];	/* protected by the lock of shared memory */
	char	   *ring;
	pg_atomic_uint32 *marks;	/* one for each multiple of sizeof(Envelope) in the ring */
	Sender		senders[FLEXIBLE_ARRAY_MEMBER]; /* indexed by process number */
} SendQueue;

static SendQueue *queue = NULL;

static int
sender_count(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

static Size
senders_size(void)
{
	return MAXALIGN(add_size(offsetof(SendQueue, senders), mul_size(sender_count(), sizeof(Sender))));
}

Size
send_queue_size(void)
{
	return add_size(senders_size(), RING_BYTES + MARKS * sizeof(pg_atomic_uint32));
}

void
send_queue_initialise(void *memory)
{
	SendQueue  *new = memory;

	memset(memory, 0, send_queue_size());
	pg_atomic_init_u64(&new->tail, 0);
	pg_atomic_init_u64(&new->head, 0);
	new->ring = (char *) memory + senders_size();
	new->marks = (pg_atomic_uint32 *) (new->ring + RING_BYTES);
	for (int i = 0; i < (int) MARKS; i++)
		pg_atomic_init_u32(&new->marks[i], 0);
	for (int i = 0; i < sender_count(); i++)
	{
		pg_atomic_init_u64(&new->senders[i].awaited, 0);
		for (int a = 0; a < QUEUE_ANSWERS; a++)
			pg_atomic_init_u64(&new->senders[i].answers[a], 0);
	}
}

void
send_queue_use(void *memory)
{
	queue = memory;
}

static Sender *
myself(void)
{
	return &queue->senders[fence_process_number()];
}

/* -----------------------------------------------------------------------------------------------------------------
 * Posting
 * -----------------------------------------------------------------------------------------------------------------
 */

static Envelope *
envelope_at(uint64 position)
{
	return (Envelope *) (queue->ring + (position & (RING_BYTES - 1)));
}

/* Returns the mark of this position. mark_of returns its value once the message there is complete, which is never 0. */
static pg_atomic_uint32 *
mark_at(uint64 position)
{
	return &queue->marks[(position & (RING_BYTES - 1)) / sizeof(Envelope)];
}

static uint32
mark_of(uint64 position)
{
	return (uint32) (position / RING_BYTES) + 1;
}

static void
mark_whole(uint64 position)
{
	pg_write_barrier();
	pg_atomic_write_u32(mark_at(position), mark_of(position));
}

static bool
is_whole(uint64 position)
{
	return pg_atomic_read_u32(mark_at(position)) == mark_of(position);
}

/*
 * The place that this process has taken in the ring and has not completed yet. A background worker may exit at any
 * point (bgworker_die raises in the signal handler). A place that is never completed would block all messages behind
 * it.
 */
static volatile bool unfinished = false;
static volatile uint64 unfinished_at;
static volatile uint32 unfinished_size;

static void
give_up_unfinished(int code, Datum arg)
{
	Envelope   *envelope;

	(void) code;
	(void) arg;
	if (!unfinished)
		return;
	envelope = envelope_at(unfinished_at);
	envelope->size = unfinished_size;
	envelope->len = 0;		/* 0 means filler */
	mark_whole(unfinished_at);
}

void
send_queue_join(void)
{
	static bool joined = false;

	if (!joined)
		before_shmem_exit(give_up_unfinished, 0);
	joined = true;
}

/*
 * Takes a place of this size in the ring. If the rest of the ring is too short for it, fills that up first. Returns
 * false if less than `size` bytes of the given part of the ring are free.
 */
static bool
take_place(uint32 size, uint32 part, uint64 *position)
{
	uint64		tail = pg_atomic_read_u64(&queue->tail);

	for (;;)
	{
		uint64		left = RING_BYTES - (tail & (RING_BYTES - 1));
		uint64		skip = left < size ? left : 0;

		/* signed, because head may have passed our old tail meanwhile; the exchange then fails and returns the new tail */
		if ((int64) (tail + skip + size - pg_atomic_read_u64(&queue->head)) > part)
			return false;
		if (!pg_atomic_compare_exchange_u64(&queue->tail, &tail, tail + skip + size))
			continue;
		if (skip > 0)
		{
			Envelope   *filler = envelope_at(tail);

			filler->size = skip;
			filler->len = 0;
			mark_whole(tail);
		}
		*position = tail + skip;
		return true;
	}
}

void
send_queue_wake(void)
{
	struct Latch *latch = queue->courier;	/* points into a PGPROC, so the memory stays valid even if the courier has exited */

	if (latch != NULL)
		SetLatch(latch);
}

/*
 * To wake the courier costs more than its work for one message. Nobody waits for a message that ends a transaction, so
 * a courier that is napping is not woken for it.
 */
static void
wake_courier(MessageKind kind)
{
	/*
	 * The message is complete before we look at the courier. So either a courier that starts or falls asleep sees the
	 * message, or we see the courier.
	 */
	pg_memory_barrier();
	if (kind == MESSAGE_END && queue->napping)
		return;
	queue->woken = true;
	send_queue_wake();
}

uint64
send_queue_next(void)
{
	return myself()->posted + 1;
}

uint64
send_queue_post(const Message *message)
{
	Sender	   *me = myself();
	uint64		number = me->posted + 1;
	uint32		size = TYPEALIGN(sizeof(Envelope), sizeof(Envelope) + message->len);
	uint64		position;
	Envelope   *envelope;

	Assert(message->len > 0);
	send_queue_join();
	if (message->len > QUEUE_MAX_MESSAGE || !take_place(size, message->spare ? RING_BYTES / 2 : RING_BYTES, &position))
		return 0;
	unfinished_size = size;
	unfinished_at = position;
	unfinished = true;
	envelope = envelope_at(position);
	me->posted = number;
	pg_atomic_write_u64(&me->answers[number % QUEUE_ANSWERS], number << 2 | ANSWER_NONE);

	envelope->size = size;
	envelope->len = message->len;
	envelope->strings = message->strings;
	envelope->epoch = message->epoch;
	envelope->node = message->node;
	envelope->process = fence_process_number();
	envelope->kind = message->kind;
	envelope->number = number;
	envelope->count = message->count;
	memcpy(envelope + 1, message->bytes, message->len);
	mark_whole(position);
	unfinished = false;
	wake_courier(message->kind);
	return number;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Answers, as the sender sees them
 * -----------------------------------------------------------------------------------------------------------------
 */

AnswerKind
send_queue_answer(uint64 message)
{
	Sender	   *me = myself();
	uint64		answer = pg_atomic_read_u64(&me->answers[message % QUEUE_ANSWERS]);

	if (answer >> 2 != message)
		return ANSWER_FAILED;	/* a later message uses its place; the caller is so late that it must send again */
	return answer & 3;
}

AnswerKind
send_queue_wait(uint64 message, int64 deadline)
{
	Sender	   *me = myself();
	int64		patience = deadline + COURIER_RESTART_US;
	AnswerKind	answer = send_queue_answer(message);

	while (answer == ANSWER_NONE)
	{
		int64		now = fence_clock();
		int64		until = queue->courier == NULL ? patience : deadline;

		if (now > until)
			break;
		pg_atomic_write_u64(&me->awaited, message);
		pg_memory_barrier();
		answer = send_queue_answer(message);
		if (answer != ANSWER_NONE)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min((until - now) / 1000 + 1, 100), wait_event_redis());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		answer = send_queue_answer(message);
	}
	pg_atomic_write_u64(&me->awaited, 0);
	return answer;
}

void
send_queue_problem(char *text, size_t size, bool late)
{
	LWLockAcquire(fence_shared->lock, LW_SHARED);
	strlcpy(text, queue->courier == NULL ? "the courier is not running" : late ? "no reply in time" : queue->problem, size);
	LWLockRelease(fence_shared->lock);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The courier's side
 * -----------------------------------------------------------------------------------------------------------------
 */

void
send_queue_serve(bool serving)
{
	queue->napping = false;
	queue->courier = serving ? MyLatch : NULL;
}

bool
send_queue_is_served(void)
{
	return queue->courier != NULL;
}

bool
send_queue_nap(bool napping)
{
	queue->napping = napping;
	pg_memory_barrier();
	return napping || !is_whole(pg_atomic_read_u64(&queue->head));	/* there is a message or filler to take */
}

bool
send_queue_was_woken(void)
{
	if (!queue->woken)
		return false;
	queue->woken = false;
	pg_memory_barrier();		/* what a sender posted before it set `woken` is complete */
	return true;
}

uint64
send_queue_end(void)
{
	return pg_atomic_read_u64(&queue->tail);
}

void
send_queue_set_problem(const char *text)
{
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	strlcpy(queue->problem, text, REASON_LEN);
	LWLockRelease(fence_shared->lock);
}

bool
send_queue_is_in_use(void)
{
	static uint64 seen = 0;
	uint64		head = pg_atomic_read_u64(&queue->head);
	bool		moved = head != seen;

	seen = head;
	return moved;
}

bool
send_queue_look(Message *message)
{
	for (;;)
	{
		uint64		head = pg_atomic_read_u64(&queue->head);
		Envelope	envelope;

		if (!is_whole(head))
			return false;
		pg_read_barrier();
		envelope = *envelope_at(head);
		pg_read_barrier();
		if (pg_atomic_read_u64(&queue->head) != head)
			continue;			/* another process took it, so a sender may have overwritten what we read */
		*message = (Message) {
			.kind = envelope.kind, .epoch = envelope.epoch, .node = envelope.node,
			.strings = envelope.strings, .bytes = (char *) (envelope_at(head) + 1), .len = envelope.len,
			.process = envelope.process, .number = envelope.number, .count = envelope.count,
			.position = head, .end = head + envelope.size
		};
		if (envelope.len > 0)
			return true;
		(void) send_queue_take(message);	/* skip the filler */
	}
}

bool
send_queue_take(const Message *message)
{
	uint64		position = message->position;

	return pg_atomic_compare_exchange_u64(&queue->head, &position, message->end);
}

bool
send_queue_is_stuck(int64 patience)
{
	static uint64 seen = 0;
	static bool was_empty = true;
	static int64 since = 0;
	uint64		head = pg_atomic_read_u64(&queue->head);
	bool		is_empty = head == pg_atomic_read_u64(&queue->tail);

	/* a message that was not there at our last look, perhaps long ago, may have been posted just now */
	if (head != seen || is_empty || was_empty)
	{
		seen = head;
		since = fence_clock();
	}
	was_empty = is_empty;
	return fence_clock() - since > patience;
}

void
send_queue_give_answer(int process, uint64 number, AnswerKind kind)
{
	Sender	   *sender = &queue->senders[process];
	uint64		unanswered = number << 2 | ANSWER_NONE;

	if (!pg_atomic_compare_exchange_u64(&sender->answers[number % QUEUE_ANSWERS], &unanswered, number << 2 | kind))
		return;					/* the sender no longer waits for this answer */
	if (pg_atomic_read_u64(&sender->awaited) == number)
		SetLatch(&ProcGlobal->allProcs[process].procLatch);
}
