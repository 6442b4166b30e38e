/*
 * aborts.c
 *	  A library that is preloaded into the servers of tests. Each abort(), with which a failed assertion or a PANIC of
 *	  PostgreSQL ends, writes a line and its stack to the file that FENCE_ABORTS names. Otherwise a test might pass in spite of
 *	  the abort, and the server's log may be gone.
 */
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void
abort(void)
{
	const char *name = getenv("FENCE_ABORTS");
	char		line[256] = "";
	void	   *stack[32];
	int			in = open("/proc/self/cmdline", O_RDONLY);
	int			out = name ? open(name, O_WRONLY | O_APPEND | O_CREAT, 0666) : -1;

	if (in >= 0 && out >= 0)
	{
		int			len = snprintf(line, sizeof(line), "process %d: ", (int) getpid());
		ssize_t		n = read(in, line + len, sizeof(line) - len - 1);

		if (n > 0)
			line[len + n] = '\0';
		len = strlen(line);
		line[len++] = '\n';
		(void) !write(out, line, len);
		backtrace_symbols_fd(stack, backtrace(stack, 32), out);
	}
	signal(SIGABRT, SIG_DFL);
	raise(SIGABRT);
	_exit(127);
}
