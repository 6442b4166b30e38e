/*
 * step_clock.c
 *	  A library that is preloaded into Redis. Its wall clock is the real one plus an offset that tests can change at any time.
 *
 * The file that STEP_CLOCK_FILE names has the offset, a 64-bit number of microseconds. The file is mapped, so that a change takes
 * effect at once. The monotonic clock does not change. (libfaketime can do the same, but not with Redis' jemalloc, which asks for
 * the time before libfaketime is ready.)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset = NULL;

__attribute__((constructor))
static void
map_offset(void)
{
	const char *path = getenv("STEP_CLOCK_FILE");
	int			fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void	   *mapped;

	if (fd < 0)
		return;
	mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped != MAP_FAILED)
		offset = mapped;
}

static int64_t
stepped_us(void)
{
	struct timespec real;

	syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
	return real.tv_sec * INT64_C(1000000) + real.tv_nsec / 1000 + (offset ? *offset : 0);
}

int
gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	int64_t		us = stepped_us();

	(void) zone;
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	int64_t		us;

	if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
		return (int) syscall(SYS_clock_gettime, clock, ts);
	us = stepped_us();
	ts->tv_sec = us / 1000000;
	ts->tv_nsec = us % 1000000 * 1000;
	return 0;
}

time_t
time(time_t *where)
{
	time_t		now = stepped_us() / 1000000;

	if (where)
		*where = now;
	return now;
}
