/*
 * multiplexer.c
 *	  Would one connection to Redis for all backends be cheaper than one for each? A model of both, without PostgreSQL.
 *
 * Clients are processes, as backends are. Each computes for some microseconds (the UPDATE), then has one call of
 * fence_write done and waits for its answer:
 *
 *	own		over a connection of its own: write, poll, read
 *	latch	through a process that gathers the calls of all clients in shared memory, as group commit does, and wakes them
 *			as PostgreSQL's latches do: a signal, read from a descriptor that the sleeper polls
 *	futex	the same, but wakes with one futex each: the least that the kernel offers; latches of PostgreSQL cost more
 *	none	no call: what the others are compared with
 *
 * Prints one line of JSON: calls per second, latency of a call, processor time per call of clients, Redis and gatherer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "clock.h"

#define MAX_CLIENTS 256
#define MAX_SAMPLES 200000
#define ROWS 100000

enum {IDLE, ASKED, ANSWERED};

typedef struct
{
	atomic_int	state;
	atomic_int	sleeping;
	pid_t		pid;
	int			length;
	char		call[512];
	long		count;			/* while measured */
	double		seconds;		/* of processor */
	uint32_t	ns[MAX_SAMPLES];	/* of the first calls */
} __attribute__((aligned(64))) Slot;

typedef struct
{
	atomic_int	go;				/* measured now */
	atomic_int	stop;
	atomic_int	asked;			/* the gatherer sleeps on it */
	atomic_int	gatherer_sleeps;
	double		gatherer_seconds;
	Slot		slots[MAX_CLIENTS];
} Shared;

static Shared *shared;
static const char *mode;
static const char *path;
static const char *fence;
static const char *header;
static int	nclients;
static double seconds;
static double busy_ns;
static int	redis_pid;

static void
die(const char *what)
{
	perror(what);
	exit(1);
}

static double
redis_seconds(void)
{
	char		name[64];
	unsigned long long ns = 0;
	FILE	   *f;

	snprintf(name, sizeof(name), "/proc/%d/schedstat", redis_pid);
	f = fopen(name, "r");
	if (f == NULL || fscanf(f, "%llu", &ns) != 1)
		die(name);
	fclose(f);
	return ns / 1e9;
}

static void
futex(atomic_int *word, int what, int value)
{
	struct timespec second = {1, 0};

	syscall(SYS_futex, word, what, value, what == FUTEX_WAIT ? &second : NULL, NULL, 0);
}

static redisContext *
connect_redis(void)
{
	redisContext *c = redisConnectUnix(path);

	if (c == NULL || c->err)
		die(c ? c->errstr : "redis");
	return c;
}

/* -----------------------------------------------------------------------------------------------------------------
 * The process that gathers
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
wake(Slot *slot)
{
	if (!atomic_exchange(&slot->sleeping, 0))
		return;
	if (strcmp(mode, "latch") == 0)
		kill(slot->pid, SIGURG);
	else
		futex(&slot->state, FUTEX_WAKE, 1);
}

static void
gather(void)
{
	static char out[MAX_CLIENTS * 512];
	redisContext *c = connect_redis();
	Slot	   *waiting[MAX_CLIENTS];
	uint64_t	processor = 0;

	while (!atomic_load(&shared->stop))
	{
		int			asked = atomic_load(&shared->asked);
		int			n = 0;
		size_t		length = 0;

		if (processor == 0 && atomic_load(&shared->go))
			processor = now_ns(CLOCK_PROCESS_CPUTIME_ID);
		for (int i = 0; i < nclients; i++)
		{
			Slot	   *slot = &shared->slots[i];

			if (atomic_load(&slot->state) != ASKED)
				continue;
			memcpy(out + length, slot->call, slot->length);
			length += slot->length;
			waiting[n++] = slot;
		}
		if (n == 0)
		{
			atomic_store(&shared->gatherer_sleeps, 1);
			futex(&shared->asked, FUTEX_WAIT, asked);
			atomic_store(&shared->gatherer_sleeps, 0);
			continue;
		}
		if (write(c->fd, out, length) != (ssize_t) length)
			die("write");
		for (int i = 0; i < n; i++)
		{
			redisReply *reply;

			if (redisGetReply(c, (void **) &reply) != REDIS_OK || reply->type == REDIS_REPLY_ERROR)
				die(c->err ? c->errstr : reply->str);
			freeReplyObject(reply);
			atomic_store(&waiting[i]->state, ANSWERED);
			wake(waiting[i]);
		}
	}
	shared->gatherer_seconds = (now_ns(CLOCK_PROCESS_CPUTIME_ID) - processor) / 1e9;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Clients
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
call_alone(redisContext *c, Slot *slot)
{
	struct pollfd fd = {.fd = c->fd, .events = POLLIN};
	redisReply *reply = NULL;

	if (write(c->fd, slot->call, slot->length) != slot->length)
		die("write");
	while (reply == NULL)
	{
		if (poll(&fd, 1, 1000) < 0 && errno != EINTR)
			die("poll");
		if (redisBufferRead(c) != REDIS_OK || redisGetReplyFromReader(c, (void **) &reply) != REDIS_OK)
			die(c->errstr);
	}
	if (reply->type == REDIS_REPLY_ERROR)
		die(reply->str);
	freeReplyObject(reply);
}

static void
call_gathered(Slot *slot, int signals)
{
	atomic_store(&slot->state, ASKED);
	atomic_fetch_add(&shared->asked, 1);
	if (atomic_load(&shared->gatherer_sleeps))
		futex(&shared->asked, FUTEX_WAKE, 1);
	while (atomic_load(&slot->state) != ANSWERED && !atomic_load(&shared->stop))
	{
		atomic_store(&slot->sleeping, 1);
		if (atomic_load(&slot->state) == ANSWERED)
			break;
		if (strcmp(mode, "latch") == 0)
		{
			struct pollfd fd = {.fd = signals, .events = POLLIN};
			struct signalfd_siginfo info;

			if (poll(&fd, 1, 1000) > 0 && read(signals, &info, sizeof(info)) < 0 && errno != EAGAIN)
				die("signalfd");
		}
		else
			futex(&slot->state, FUTEX_WAIT, ASKED);
	}
	atomic_store(&slot->sleeping, 0);
	atomic_store(&slot->state, IDLE);
}

static void
client(int number)
{
	Slot	   *slot = &shared->slots[number];
	redisContext *own = strcmp(mode, "own") == 0 ? connect_redis() : NULL;
	uint64_t	random = 88172645463325252ULL ^ (uint64_t) getpid() * 2654435761u;
	uint64_t	processor = 0;
	sigset_t	set;
	int			signals;

	sigemptyset(&set);
	sigaddset(&set, SIGURG);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_NONBLOCK);
	slot->pid = getpid();
	for (long done = 0; !atomic_load(&shared->stop); done++)
	{
		uint64_t	begun = now_ns(CLOCK_PROCESS_CPUTIME_ID);
		char		name[128],
					stamp[48];

		if (processor == 0 && atomic_load(&shared->go))
			processor = begun;
		/* processor time, not time: what is computed takes the same however many compute */
		while (now_ns(CLOCK_PROCESS_CPUTIME_ID) - begun < busy_ns)
			;
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		snprintf(name, sizeof(name), fence, (int) (random % ROWS));
		snprintf(stamp, sizeof(stamp), "700.%08x", (unsigned) getpid());
		begun = now_ns(CLOCK_MONOTONIC);
		if (strcmp(mode, "none") != 0)
		{
			const char *argv[] = {"FCALL", "fence_write", "0", header, stamp, "1", name, stamp};
			char	   *call;

			slot->length = redisFormatCommandArgv(&call, sizeof(argv) / sizeof(*argv), argv, NULL);
			memcpy(slot->call, call, slot->length);
			free(call);
			if (own)
				call_alone(own, slot);
			else
				call_gathered(slot, signals);
		}
		if (!atomic_load(&shared->go))
			continue;
		if (slot->count < MAX_SAMPLES)
			slot->ns[slot->count] = now_ns(CLOCK_MONOTONIC) - begun;
		slot->count++;
	}
	slot->seconds = (now_ns(CLOCK_PROCESS_CPUTIME_ID) - processor) / 1e9;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Results
 * -----------------------------------------------------------------------------------------------------------------
 */

static int
compare_ns(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a,
				y = *(const uint32_t *) b;

	return (x > y) - (x < y);
}

static void
print_results(double elapsed, double redis)
{
	uint32_t   *all = malloc(sizeof(uint32_t) * MAX_CLIENTS * 1000 * 64);
	size_t		n = 0;
	long		count = 0;
	double		clients = 0;

	for (int i = 0; i < nclients; i++)
	{
		Slot	   *slot = &shared->slots[i];
		long		kept = slot->count < MAX_SAMPLES ? slot->count : MAX_SAMPLES;

		if (kept > 64000)
			kept = 64000;
		memcpy(all + n, slot->ns, kept * sizeof(uint32_t));
		n += kept;
		count += slot->count;
		clients += slot->seconds;
	}
	qsort(all, n, sizeof(uint32_t), compare_ns);
	printf("{\"tps\": %.1f, \"p50\": %.1f, \"p99\": %.1f, \"cpu_clients\": %.2f, \"cpu_redis\": %.2f, \"cpu_gatherer\": %.2f}\n",
		   count / elapsed, n ? all[n / 2] / 1e3 : 0, n ? all[n * 99 / 100] / 1e3 : 0, clients * 1e6 / count, redis * 1e6 / count,
		   shared->gatherer_seconds * 1e6 / count);
}

int
main(int argc, char **argv)
{
	double		before;
	uint64_t	begun;
	double		elapsed,
				redis;

	if (argc != 9)
	{
		fprintf(stderr, "usage: multiplexer own|latch|futex|none SOCKET REDIS-PID FENCE HEADER CLIENTS SECONDS BUSY-MICROSECONDS\n");
		return 2;
	}
	mode = argv[1];
	path = argv[2];
	redis_pid = atoi(argv[3]);
	fence = argv[4];
	header = argv[5];
	nclients = atoi(argv[6]);
	seconds = atof(argv[7]);
	busy_ns = atof(argv[8]) * 1000;
	if (nclients < 1 || nclients > MAX_CLIENTS)
		return 2;
	shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	for (int i = -1; i < nclients; i++)
	{
		if (i < 0 && (strcmp(mode, "own") == 0 || strcmp(mode, "none") == 0))
			continue;
		if (fork() == 0)
		{
			if (i < 0)
				gather();
			else
				client(i);
			_exit(0);
		}
	}
	usleep(300000);
	before = redis_seconds();
	begun = now_ns(CLOCK_MONOTONIC);
	atomic_store(&shared->go, 1);
	usleep(seconds * 1e6);
	atomic_store(&shared->go, 0);
	elapsed = (now_ns(CLOCK_MONOTONIC) - begun) / 1e9;
	redis = redis_seconds() - before;
	atomic_store(&shared->stop, 1);
	while (wait(NULL) > 0 || errno == EINTR)
		;
	print_results(elapsed, redis);
	return 0;
}
