/*
 * backend.h
 *	  What the code under test needs of a backend, for the unit tests in C. Include it after postgres.h.
 */
#include "miscadmin.h"
#include "storage/shmem.h"

volatile sig_atomic_t InterruptPending = false;

void
ProcessInterrupts(void)
{
}

Size
add_size(Size a, Size b)
{
	return a + b;
}

Size
mul_size(Size a, Size b)
{
	return a * b;
}
