/*
 * check.h
 *	  What the unit tests in C share: they count checks, and print "N passed, N failed". Include it after postgres.h.
 */
#undef printf

static int	passed = 0;
static int	failed = 0;

/* detail: what it was about, for a failure; NULL: nothing to add */
static void
check_detail(bool ok, const char *what, const char *detail)
{
	if (ok)
	{
		passed++;
		return;
	}
	failed++;
	printf("not ok: %s%s%.200s\n", what, detail ? ": " : "", detail ? detail : "");
}

#define check(ok, what) check_detail(ok, what, NULL)

/* Returns the exit status of the program. */
static int
report_checks(void)
{
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0;
}
