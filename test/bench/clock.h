/*
 * clock.h
 *	  Time, for the programs of the benchmark.
 */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of that clock. */
static inline uint64_t
now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
