/*
 * workload.c
 *	  Starts the processes: writers, readers, and the strategy's listener if it has one. Each has its own random numbers, from
 *	  one seed, and its own history file. run.py stops them through the control file.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "history.h"

#define ZIPF_EXPONENT	0.9

Options		options = {.seed = 1, .readers = 4, .writers = 4, .keys = 64, .pause_us = 2000, .defects = 63,
	.lease_ms = 1000};
Control    *control;

static double share_up_to[KEYS_MAX + 1];	/* the share of draws that fall on the keys 1 .. i */

int64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

void
sleep_ms(int ms)
{
	struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};

	if (ms > 0)
		nanosleep(&wait, NULL);
}

/* splitmix64, for which all seeds are equally good. */
static uint64_t
next_random(uint64_t *state)
{
	uint64_t	z = (*state += 0x9E3779B97F4A7C15u);

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

uint64_t
draw(Client *c, uint64_t below)
{
	return next_random(&c->random) % below;
}

bool
chance(Client *c, uint32_t ppm)
{
	return ppm > 0 && draw(c, 1000000) < ppm;
}

static void
compute_shares(void)
{
	double		sum = 0;

	for (int i = 1; i <= options.keys; i++)
		share_up_to[i] = sum += 1 / pow(i, ZIPF_EXPONENT);
	for (int i = 1; i <= options.keys; i++)
		share_up_to[i] /= sum;
}

/* Draws a key. Few keys are hot. One draw of 32 is a key to which another one may have moved. */
int
draw_key(Client *c)
{
	double		at = (double) (next_random(&c->random) >> 11) / 9007199254740992.0;
	int			key = 1;

	while (key < options.keys && share_up_to[key] < at)
		key++;
	return !options.strategy->plain && draw(c, 32) == 0 ? key + options.keys : key;
}

static void
append(Client *c, const Record *r)
{
	if (fwrite(r, sizeof(*r), 1, c->history) != 1)
	{
		perror("workload: history");
		_exit(2);
	}
}

void
record(Client *c, int type, int kind, int way, int key, int64_t group, int64_t version, int64_t val, int64_t start,
	   int64_t middle, int64_t end)
{
	append(c, &(Record) {(uint8_t) type, (uint8_t) kind, (uint8_t) way, (uint8_t) c->worker, key, 0, 0, group, version, val,
		start, middle, end});
}

void
record_read(Client *c, int kind, int way, int key, int64_t group, const Row *row, int64_t start, int64_t middle, int64_t end)
{
	append(c, &(Record) {'R', (uint8_t) kind, (uint8_t) way, (uint8_t) c->worker, key, row->id, 0, group,
		row->version, row->val, start, middle, end});
}

static void
run_worker(int number, void (*run) (Client *c))
{
	Client		c = {.worker = number};
	char		path[512];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	c.reader = run == run_reader;
	c.random = options.seed * 1000003 + (uint64_t) number;
	snprintf(path, sizeof(path), "%s/worker%d.history", options.directory, number);
	c.history = fopen(path, "wb");
	if (c.history == NULL)
	{
		perror(path);
		_exit(2);
	}
	setvbuf(c.history, NULL, _IOFBF, 1 << 16);
	run(&c);
	if (fclose(c.history) != 0)
		_exit(2);
	pg_leave(&c);
	redis_leave(&c);
	_exit(0);
}

/* Starts a process, and writes its pid to the file "workers", for faults that stop or kill a worker. */
static void
start_worker(FILE *workers, int number, const char *role, void (*run) (Client *c))
{
	pid_t		pid = fork();

	if (pid < 0)
	{
		perror("workload: fork");
		exit(2);
	}
	if (pid == 0)
		run_worker(number, run);
	fprintf(workers, "%s %d\n", role, (int) pid);
}

static void
start_all(void)
{
	char		path[512];
	FILE	   *workers;
	int			number = 0;

	snprintf(path, sizeof(path), "%s/workers", options.directory);
	workers = fopen(path, "w");
	if (workers == NULL)
	{
		perror(path);
		exit(2);
	}
	setvbuf(workers, NULL, _IOLBF, BUFSIZ);	/* so that the buffer is empty when a child is forked */
	for (int i = 0; i < options.writers; i++)
		start_worker(workers, number++, "writer", run_writer);
	for (int i = 0; i < options.readers; i++)
		start_worker(workers, number++, "reader", run_reader);
	if (options.strategy->listen != NULL)
		start_worker(workers, number++, "listener", options.strategy->listen);
	fclose(workers);
}

static void
map_control(void)
{
	char		path[512];
	int			fd;

	snprintf(path, sizeof(path), "%s/control", options.directory);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(Control)) != 0)
	{
		perror(path);
		exit(2);
	}
	control = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (control == MAP_FAILED)
	{
		perror(path);
		exit(2);
	}
	close(fd);
}

static void
usage(void)
{
	fprintf(stderr, "usage: workload DIRECTORY STRATEGY SEED READERS WRITERS KEYS PAUSE_US [DEFECTS LEASE_MS]\nstrategies:");
	for (const Strategy *s = strategies; s->name != NULL; s++)
		fprintf(stderr, " %s", s->name);
	fprintf(stderr, "\n");
	exit(2);
}

int
main(int argc, char **argv)
{
	int			status = 0;
	int			failed = 0;

	if (argc != 8 && argc != 10)
		usage();
	options.directory = argv[1];
	options.strategy = strategy_by_name(argv[2]);
	options.seed = strtoull(argv[3], NULL, 10);
	options.readers = atoi(argv[4]);
	options.writers = atoi(argv[5]);
	options.keys = atoi(argv[6]);
	options.pause_us = atoi(argv[7]);
	if (argc == 10)
	{
		options.defects = atoi(argv[8]);
		options.lease_ms = atoi(argv[9]);
	}
	if (options.strategy == NULL || options.keys < 2 || options.keys > KEYS_MAX || options.readers < 0 ||
		options.writers < 0 || options.readers + options.writers + 1 > WORKERS_MAX)
		usage();
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	compute_shares();
	map_control();
	start_all();
	for (;;)
	{
		if (wait(&status) < 0)
		{
			if (errno == EINTR)
				continue;
			break;
		}
		if (status != 0)
			failed = 1;
	}
	return failed;
}
