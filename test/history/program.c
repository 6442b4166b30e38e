/*
 * program.c
 *	  The strategy "program", with which the checker tests a reader in any language. Each reading process starts the program
 *	  that HISTORY_PROGRAM names, and talks to it over its standard input and output as test/clients/conformance.md describes.
 *
 * The program does everything that a reader has to do: it reads Redis and PostgreSQL, and puts. The checker judges its answers
 * like all other reads. The run ends if the program ends, does not answer for too long, or sends an answer without a request.
 */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "history.h"

#define ANSWER_MS		60000			/* PostgreSQL may be down for long */
#define ANSWER_SIZE		65536
#define AGAIN_MS		20				/* pause before the next read if PostgreSQL has not answered */

static struct
{
	pid_t		pid;				/* 0: not started */
	bool		together;			/* it has said that it can read several keys together, */
	bool		derived;			/* and derived values */
	FILE	   *requests;
	int			answers;
	char		line[ANSWER_SIZE];
	char		redis[512];			/* what it was told last */
	char		dsn[512];
}			program;

static void
give_up(const char *why)
{
	fprintf(stderr, "workload: the program %s: \"%s\"\n", why, program.line);
	control->stop = 1;
	exit(2);
}

/* Reads one line, without its end. There is never more than one, because the program waits for a request after each answer. */
static void
read_answer(void)
{
	int64_t		deadline = now_ns() + ANSWER_MS * INT64_C(1000000);
	size_t		length = 0;

	for (;;)
	{
		struct pollfd wait = {.fd = program.answers, .events = POLLIN};
		ssize_t		got;

		program.line[length] = '\0';
		if (now_ns() > deadline)
			give_up("does not answer");
		if (poll(&wait, 1, 100) <= 0)
			continue;
		got = read(program.answers, program.line + length, ANSWER_SIZE - 1 - length);
		if (got <= 0)
			give_up("has ended, or answers too much");
		length += (size_t) got;
		if (program.line[length - 1] != '\n')
			continue;
		program.line[length - 1] = '\0';
		return;
	}
}

static void
start_program(void)
{
	const char *command = getenv("HISTORY_PROGRAM");
	int			requests[2];
	int			answers[2];

	if (command == NULL || pipe(requests) != 0 || pipe(answers) != 0 || (program.pid = fork()) < 0)
		give_up("was not started");
	if (program.pid == 0)
	{
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGPIPE, SIG_DFL);
		dup2(requests[0], 0);
		dup2(answers[1], 1);
		closefrom(3);
		execl("/bin/sh", "sh", "-c", command, (char *) NULL);
		_exit(127);
	}
	close(requests[0]);
	close(answers[1]);
	program.requests = fdopen(requests[1], "w");
	program.answers = answers[0];
	read_answer();
	if (strncmp(program.line, "ready", 5) != 0)
		give_up("did not say \"ready\"");
	program.together = strstr(program.line, "\ttogether") != NULL;
	program.derived = strstr(program.line, "\tderived") != NULL;
}

static void
ask(const char *format,...)
{
	va_list		values;

	va_start(values, format);
	vfprintf(program.requests, format, values);
	va_end(values);
	if (fflush(program.requests) != 0)
		give_up("does not listen");
	read_answer();
}

static void
ask_ok(const char *word, const char *first, const char *second)
{
	ask("%s\t%s\t%s\n", word, first, second);
	if (strcmp(program.line, "ok") != 0)
		give_up("did not say \"ok\"");
}

/* Makes sure that the program runs and knows the present addresses of the servers. */
static void
ready_program(Client *c)
{
	static const char *const layouts[] = {[SINGLE] = "single", [SHARDS] = "shards", [CLUSTER] = "cluster"};
	char		name[32];

	follow_endpoints(c);
	if (program.pid == 0)
		start_program();
	if (strcmp(program.redis, c->at.redis) != 0)
	{
		const char *blank = strchr(c->at.redis, ' ');

		ask_ok("redis", layouts[c->layout], blank ? blank + 1 : c->at.redis);
		strcpy(program.redis, c->at.redis);
	}
	if (strcmp(program.dsn, c->at.dsn) != 0)
	{
		snprintf(name, sizeof(name), "history-%d", c->worker);
		ask_ok("postgres", c->at.dsn, name);
		strcpy(program.dsn, c->at.dsn);
	}
}

/* The kind of the answer. *rest is set to the text after it. */
static int
answer_kind(char **rest)
{
	char	   *word = strsep(rest, "\t");

	if (strcmp(word, "hit") == 0)
		return READ_HIT;
	if (strcmp(word, "read") == 0)
		return READ_SQL;
	if (strcmp(word, "error") != 0)
		give_up("answered what is no answer");
	sleep_ms(AGAIN_MS);
	return READ_NONE;
}

/* Parses "hit" or "read" and n payloads, each after a tab. */
static void
take_answer(int way, Cached *found, int n)
{
	char	   *rest = program.line;
	int			kind = answer_kind(&rest);

	for (int i = 0; i < n; i++)
	{
		char	   *payload = strsep(&rest, "\t");

		found[i].way = way;
		found[i].kind = kind;
		found[i].row = (Row) {NONE, NONE, NONE, 0, ""};
		if (kind != READ_NONE && (payload == NULL || !parse_payload(payload, &found[i].row)))
			give_up("answered what is no row");
	}
}

void
program_get(Client *c, int key, Cached *found)
{
	ready_program(c);
	ask("read\t%d\n", key);
	take_answer(WAY_PROGRAM, found, 1);
}

static void
get_derived(const int *keys, Cached *found)
{
	char	   *rest = program.line;
	int			kind;

	ask("derived\t%d\t%d\n", keys[0], keys[1]);
	kind = answer_kind(&rest);
	found[0].way = found[1].way = WAY_PROGRAM_DERIVED;
	found[0].kind = found[1].kind = kind;
	if (kind != READ_NONE && (rest == NULL || strstr(rest, "\"b\":") == NULL))
		give_up("answered what is no pair");
	if (kind != READ_NONE)
		take_both(rest, kind, found);
}

/* Reads several keys together. Sets kind of the first to 0 if the program cannot do that. */
void
program_get_many(Client *c, const int *keys, Cached *found, int n)
{
	char		list[128] = "";

	ready_program(c);
	if (n == 2 && program.derived && draw(c, 2) == 0)
		get_derived(keys, found);
	else if (program.together)
	{
		for (int i = 0; i < n; i++)
			snprintf(list + strlen(list), sizeof(list) - strlen(list), "\t%d", keys[i]);
		ask("together%s\n", list);
		take_answer(WAY_PROGRAM_TOGETHER, found, n);
	}
}

/* Keys that the program has read one by one may not agree. */
bool
program_check(Client *c, const int *keys, const Cached *found, int n)
{
	(void) c, (void) keys, (void) found, (void) n;
	return false;
}
