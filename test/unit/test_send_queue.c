/*
 * test_send_queue.c
 *	  src/base/send_queue.c by itself: processes that post, processes that take, one that is stopped while it takes. Every message is
 *	  taken exactly once, and as it was posted.
 *
 * What it takes from PostgreSQL is put in its place below. The processes are forks of this one; memory that is mapped before
 * is shared.
 *
 * Usage: test_send_queue [messages]. Prints "N passed, N failed"; exit status 0 only if nothing failed.
 */
#include "postgres.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "miscadmin.h"
#include "base/send_queue.h"
#include "base/shared.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "backend.h"
#include "check.h"

#define POSTERS 4
#define TAKERS	3
#define LONGEST 3000			/* bytes of arguments */
#define RING	(4 * 1024 * 1024)	/* as in send_queue.c */

/* ---- substitutes for PostgreSQL's functions ---- */

struct Latch *MyLatch = NULL;
int			MaxBackends = POSTERS + TAKERS + 1;
FenceShared *fence_shared = NULL;
PROC_HDR   *ProcGlobal = NULL;
#if PG_VERSION_NUM >= 170000
ProcNumber	MyProcNumber;
#else
PGPROC	   *MyProc = NULL;
#endif

static void
become(int number)
{
#if PG_VERSION_NUM >= 170000
	MyProcNumber = number;
#else
	static PGPROC process;

	MyProc = &process;
	process.pgprocno = number;
#endif
}

void
SetLatch(Latch *latch)
{
	(void) latch;
}

void
ResetLatch(Latch *latch)
{
	(void) latch;
}

int
WaitLatch(Latch *latch, int events, long timeout, uint32 wait_event)
{
	(void) latch;
	(void) events;
	(void) timeout;
	(void) wait_event;
	return WL_TIMEOUT;
}

bool
LWLockAcquire(LWLock *lock, LWLockMode mode)
{
	(void) lock;
	(void) mode;
	return true;
}

void
LWLockRelease(LWLock *lock)
{
	(void) lock;
}

void
before_shmem_exit(pg_on_exit_callback function, Datum arg)
{
	(void) function;
	(void) arg;
}

int64
fence_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000 + 1;
}

uint32
fence_wait_event(FenceWait what)
{
	(void) what;
	return 0;
}

/* ---- messages whose content can be checked ---- */

static int	messages = 20000;

/* Shared */
static struct
{
	pg_atomic_uint32 wrong;		/* messages taken whose content differs from what was posted */
	pg_atomic_uint32 raced;		/* copies of messages that another process took first */
	pg_atomic_uint32 taken;
	pg_atomic_uint32 times[FLEXIBLE_ARRAY_MEMBER];	/* how often each message was taken; POSTERS times messages entries */
}		   *result;

static uint32
scramble(uint32 x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	return x ^ x >> 16;
}

/* Makes the bytes of message n of that process. Returns their number. */
static size_t
make_bytes(int process, uint64 n, char *bytes)
{
	uint32		seed = scramble(process * 1000003 + n);
	size_t		len = 1 + seed % LONGEST;

	for (size_t i = 0; i < len; i++)
		bytes[i] = (char) (seed + i * 7);
	return len;
}

/* Returns false if there is no room. */
static bool
post(int process, uint64 n)
{
	char		bytes[LONGEST];
	size_t		len = make_bytes(process, n, bytes);
	Message		message = {.kind = MESSAGE_END, .epoch = n, .node = process, .strings = 3, .bytes = bytes, .len = len};

	return send_queue_post(&message) != 0;
}

/* Copies the bytes of the first message. Returns -1 if there is no message. */
static int
copy_first(Message *message, char *copy)
{
	if (!send_queue_look(message))
		return -1;
	memcpy(copy, message->bytes, message->len);
	return message->len;
}

static bool
is_right(const Message *message, const char *copy, int len)
{
	char		bytes[LONGEST];

	return message->process == message->node && len == (int) make_bytes(message->node, message->epoch, bytes) &&
		memcmp(bytes, copy, len) == 0;
}

/* Takes one message, unless there is none or other processes are faster. */
static bool
take(void)
{
	Message		message;
	char		copy[LONGEST];
	int			len = copy_first(&message, copy);

	if (len < 0)
		return false;
	if (!send_queue_take(&message))
	{
		pg_atomic_fetch_add_u32(&result->raced, 1);
		return false;
	}
	if (!is_right(&message, copy, len))
		pg_atomic_fetch_add_u32(&result->wrong, 1);
	else if (message.node < POSTERS && message.epoch < (uint32) messages)
		pg_atomic_fetch_add_u32(&result->times[message.node * messages + message.epoch], 1);
	pg_atomic_fetch_add_u32(&result->taken, 1);
	return true;
}

/* ---- tests ---- */

static void
test_one_after_the_other(void)
{
	Message		message;
	char		copy[LONGEST];
	int			len;
	int			n = 0;

	check(!send_queue_look(&message), "nothing is there");
	while (post(0, n))
		n++;
	check(n > 1000, "a ring has room for more than a thousand messages");
	for (int i = 0; i < n; i++)
	{
		len = copy_first(&message, copy);
		check(len > 0 && message.epoch == (uint32) i && is_right(&message, copy, len) && send_queue_take(&message), "in order");
		check(!send_queue_take(&message), "a message is taken once");
	}
	check(!send_queue_look(&message), "and then there is none");
	check(post(0, n) && post(0, n + 1) && take() && take(), "there is room again");
}

/*
 * Old bytes of an earlier round must not pass for a message. Messages of one size begin at the same places in each round of
 * the ring.
 */
static void
test_round_and_round(void)
{
	char		bytes[64] = "";
	Message		message = {.kind = MESSAGE_END, .strings = 1, .bytes = bytes, .len = 64};
	Message		found;
	int			right = 0;
	int			rounds = 3 * RING / 128;

	for (int i = 0; i < rounds; i++)
		right += !send_queue_look(&found) && send_queue_post(&message) != 0 && send_queue_look(&found) && send_queue_take(&found);
	check(right == rounds, "three times round, there is one message when it was posted, and none when it was taken");
}

/* A process stops between copying and taking a message. All others go on, past the end of the ring and again. */
static void
test_stopped(void)
{
	pid_t		pid;
	int			status;
	uint64		bytes = 0;
	char		copy[LONGEST];
	int			n = 0;

	check(post(0, 1) && post(0, 2), "two messages");
	pid = fork();
	if (pid == 0)
	{
		Message		message;

		become(1);
		if (copy_first(&message, copy) < 0)
			_exit(2);
		raise(SIGSTOP);
		_exit(send_queue_take(&message) ? 1 : 0);
	}
	waitpid(pid, &status, WUNTRACED);
	check(WIFSTOPPED(status), "one stands still");
	check(take() && take() && !take(), "another one takes both");
	for (; bytes < 3 * (uint64) RING; n++)
	{
		if (!post(0, n) || !take())
			break;
		bytes += make_bytes(0, n, copy);
	}
	check(bytes >= 3 * (uint64) RING, "messages go round and round");
	kill(pid, SIGCONT);
	waitpid(pid, &status, 0);
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "whoever stood still has taken nothing");
	check(pg_atomic_read_u32(&result->wrong) == 0, "every message is as it was posted");
}

static void
work(int number)
{
	become(number);
	if (number < POSTERS)
		for (int n = 0; n < messages; n++)
			while (!post(number, n))
				sched_yield();
	else
		while (pg_atomic_read_u32(&result->taken) < (uint32) (POSTERS * messages))
			if (!take())
				sched_yield();
	_exit(0);
}

static void
test_many(void)
{
	pid_t		pids[POSTERS + TAKERS];
	int			once = 0;
	int			clean = 0;

	pg_atomic_write_u32(&result->taken, 0);
	for (int i = 0; i < POSTERS * messages; i++)
		pg_atomic_write_u32(&result->times[i], 0);
	for (int i = 0; i < POSTERS + TAKERS; i++)
		if ((pids[i] = fork()) == 0)
			work(i);
	for (int i = 0; i < POSTERS + TAKERS; i++)
	{
		int			status;

		waitpid(pids[i], &status, 0);
		clean += WIFEXITED(status) && WEXITSTATUS(status) == 0;
	}
	for (int i = 0; i < POSTERS * messages; i++)
		once += pg_atomic_read_u32(&result->times[i]) == 1;
	check(clean == POSTERS + TAKERS, "all processes end well");
	check(once == POSTERS * messages, "each message is taken exactly once");
	check(pg_atomic_read_u32(&result->wrong) == 0, "each message is as it was posted");
	printf("# %d messages, %u times another process was faster\n", POSTERS * messages, pg_atomic_read_u32(&result->raced));
}

static void *
shared_memory(size_t size)
{
	void	   *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		abort();
	return memory;
}

int
main(int argc, char **argv)
{
	void	   *memory;

	alarm(300);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1)
		messages = atoi(argv[1]);
	memory = shared_memory(send_queue_size());
	fence_shared = shared_memory(sizeof(FenceShared));
	result = shared_memory(sizeof(*result) + POSTERS * messages * sizeof(pg_atomic_uint32));
	send_queue_initialise(memory);
	send_queue_use(memory);
	become(0);
	test_one_after_the_other();
	test_round_and_round();
	test_stopped();
	test_many();
	return report_checks();
}
