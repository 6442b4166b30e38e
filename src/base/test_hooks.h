/*
 * base/test_hooks.h
 *	  Points at which a test can stop a backend. Compiled only with TEST_HOOKS=1.
 */
#ifndef FENCE_TEST_HOOKS_H
#define FENCE_TEST_HOOKS_H

/*
 * A backend that reaches the point and finds the file fence_pause_<name> in the data directory renames the file to
 * fence_paused_<name>.<its process id>, and stops itself with SIGSTOP, as under a debugger. So each file stops one
 * backend. Safe in COMMIT and ABORT.
 */
#ifdef FENCE_TEST_HOOKS
extern void fence_test_point(const char *name);
#else
#define fence_test_point(name) ((void) 0)
#endif

#endif
