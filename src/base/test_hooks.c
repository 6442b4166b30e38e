/*
 * base/test_hooks.c
 *	  Points at which a test can stop a backend; see test_hooks.h. Not part of a release build.
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"

#include "base/test_hooks.h"

void
fence_test_point(const char *name)
{
	char		wanted[MAXPGPATH];
	char		taken[MAXPGPATH];

	/* the working directory of a backend is the data directory */
	snprintf(wanted, sizeof(wanted), "fence_pause_%s", name);
	snprintf(taken, sizeof(taken), "fence_paused_%s.%d", name, MyProcPid);
	if (rename(wanted, taken) == 0)
		raise(SIGSTOP);
}
