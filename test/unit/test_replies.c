/*
 * test_replies.c
 *	  src/redis/connection.c and reply_parser.c by themselves, against a server that sends what it likes: well-formed replies in every possible
 *	  cut, replies without end, and random bytes that look like the protocol. Under the sanitizers.
 *
 * What it takes from PostgreSQL is put in its place below. Both ends of the connection are in this process.
 *
 * Usage: test_replies [rounds [seed]]. Prints "N passed, N failed"; exit status 0 only if nothing failed.
 */
#include "postgres.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "miscadmin.h"
#include "redis/connection.h"
#include "redis/reply_parser.h"
#include "base/shared.h"
#include "storage/fd.h"
#include "storage/latch.h"

#include "check.h"
#undef snprintf
#undef fprintf

#define MEGABYTE (1024 * 1024)

/* ---- substitutes for PostgreSQL's functions ---- */

sigjmp_buf *PG_exception_stack = NULL;
ErrorContextCallback *error_context_stack = NULL;
volatile sig_atomic_t InterruptPending = false;
struct Latch *MyLatch = NULL;
static uint32 wait_event_info = 0;
uint32	   *my_wait_event_info = &wait_event_info;

static int	files = 0;			/* external file descriptors */
static int	interrupt_in = -1;	/* number of waits before an interrupt; -1: never */

void
pg_re_throw(void)
{
	siglongjmp(*PG_exception_stack, 1);
}

void
ProcessInterrupts(void)
{
	InterruptPending = false;
	pg_re_throw();
}

void
ResetLatch(Latch *latch)
{
	(void) latch;
}

bool
AcquireExternalFD(void)
{
	files++;
	return true;
}

void
ReleaseExternalFD(void)
{
	files--;
}

int64
fence_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000 + 1;
}

uint32
fence_wait_event(FenceWait what)
{
	(void) what;
	return 0;
}

/* Of a WaitEventSet only the socket matters here. */
static struct
{
	pgsocket	socket;
	uint32		events;
}			waited_for;

MemoryContext TopMemoryContext = NULL;

/* One set at a time is enough here. PostgreSQL does not publish the type. */
WaitEventSet *
#if PG_VERSION_NUM >= 170000
CreateWaitEventSet(ResourceOwner owner, int nevents)
#else
CreateWaitEventSet(MemoryContext owner, int nevents)
#endif
{
	(void) owner;
	(void) nevents;
	return (WaitEventSet *) &waited_for;
}

void
FreeWaitEventSet(WaitEventSet *set)
{
	(void) set;
}

int
AddWaitEventToSet(WaitEventSet *set, uint32 events, pgsocket sock, Latch *latch, void *user)
{
	(void) set;
	(void) latch;
	(void) user;
	if (sock == PGINVALID_SOCKET)
		return 0;
	waited_for.socket = sock;
	waited_for.events = events;
	return 2;
}

void
ModifyWaitEvent(WaitEventSet *set, int position, uint32 events, Latch *latch)
{
	(void) set;
	(void) position;
	(void) latch;
	waited_for.events = events;
}

int
WaitEventSetWait(WaitEventSet *set, long timeout, WaitEvent *event, int nevents, uint32 why)
{
	struct pollfd p = {.fd = waited_for.socket};

	(void) set;
	(void) nevents;
	(void) why;
	event->events = 0;
	if (interrupt_in >= 0 && interrupt_in-- == 0)
	{
		InterruptPending = true;
		event->events = WL_LATCH_SET;
		return 1;
	}
	p.events = (waited_for.events & WL_SOCKET_READABLE ? POLLIN : 0) |
		(waited_for.events & (WL_SOCKET_WRITEABLE | WL_SOCKET_CONNECTED) ? POLLOUT : 0);
	if (poll(&p, 1, (int) timeout) == 0)
		return 0;
	if (p.revents & (POLLIN | POLLHUP | POLLERR))
		event->events |= waited_for.events & WL_SOCKET_READABLE;
	if (p.revents & (POLLOUT | POLLHUP | POLLERR))
		event->events |= waited_for.events & (WL_SOCKET_WRITEABLE | WL_SOCKET_CONNECTED);
	return 1;
}

/* ---- the test ---- */

static int	listening;
static RedisEndpoint where = {.is_unix = true};
static RedisUrl url;

static void
listen_somewhere(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char		dir[] = "/tmp/test_replies_XXXXXX";

	if (mkdtemp(dir) == NULL)
		abort();
	snprintf(where.host, sizeof(where.host), "%s/socket", dir);
	strcpy(address.sun_path, where.host);
	listening = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(listening, (struct sockaddr *) &address, sizeof(address)) != 0 || listen(listening, 16) != 0)
		abort();
}

static void
stop_listening(void)
{
	char	   *slash;

	close(listening);
	unlink(where.host);
	slash = strrchr(where.host, '/');
	*slash = '\0';
	rmdir(where.host);
}

/* Makes a connection and queues n commands on it. *server is set to the other end. */
static RedisConnection *
connect_and_ask(int n, int *server)
{
	char		error[256] = "";
	RedisConnection *conn = redis_open(&where, &url, fence_clock() + 5000000, error, sizeof(error));
	const char *ping = "PING";
	size_t		len = 4;

	if (conn == NULL)
	{
		printf("not ok: no connection: %s\n", error);
		exit(1);
	}
	*server = accept(listening, NULL, NULL);
	fcntl(*server, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < n; i++)
		if (!redis_send(conn, 1, &ping, &len))
			abort();
	return conn;
}

/* Reads every byte and element of a reply. Returns their number. */
static size_t
look_at(const redisReply *reply)
{
	size_t		n = 1;

	if (reply->str != NULL)
	{
		for (size_t i = 0; i < reply->len; i++)
			n += reply->str[i] != '\0';
		n += reply->str[reply->len] != '\0' ? 1000000000 : 0;
	}
	for (size_t i = 0; i < reply->elements; i++)
		if (reply->element[i] != NULL)
			n += look_at(reply->element[i]);
	return n;
}

/* Takes the replies that have arrived. Returns their number. */
static int
take_replies(RedisConnection *conn)
{
	redisReply *reply;
	int			n = 0;

	while ((reply = redis_poll_reply(conn)) != NULL)
	{
		check_detail(look_at(reply) < 1000000000, "a string without its end", NULL);
		freeReplyObject(reply);
		n++;
	}
	return n;
}

/* Sends the bytes in pieces of at most `piece` (0: as large as the socket takes). Takes replies meanwhile and returns their number. */
static int
feed(RedisConnection *conn, int server, const char *bytes, size_t len, size_t piece)
{
	int			n = 0;
	size_t		sent = 0;

	while (sent < len && redis_error(conn) == NULL)
	{
		ssize_t		k = send(server, bytes + sent, piece ? Min(piece, len - sent) : len - sent, MSG_NOSIGNAL);

		if (k > 0)
			sent += k;
		n += take_replies(conn);
	}
	return n + take_replies(conn);
}

/* If n commands are answered with text, there must be so many replies and then that error (NULL: none). Tests the text whole, and cut after every byte. */
static void
answer(const char *text, size_t len, int asked, int replies, const char *error)
{
	for (size_t piece = 0; piece <= 3; piece++)
	{
		int			server;
		RedisConnection *conn = connect_and_ask(asked, &server);
		int			n = feed(conn, server, text, len, piece);
		const char *why = redis_error(conn);

		check_detail(n == replies, "number of replies", text);
		check_detail(error ? why != NULL && strstr(why, error) != NULL : why == NULL, why ? why : "no error", text);
		if (why != NULL)
		{
			check_detail(redis_poll_reply(conn) == NULL, "a reply after a failure", text);
			check_detail(redis_begin_raw(conn, 1) == NULL && !redis_flush(conn), "a failed connection takes commands", text);
		}
		redis_close(conn);
		close(server);
	}
}

static void
test_replies(void)
{
#define ANSWER(text, asked, replies, error) answer(text, sizeof(text) - 1, asked, replies, error)
	ANSWER("+OK\r\n", 1, 1, NULL);
	ANSWER("$3\r\na\0b\r\n:5\r\n-ERR no\r\n$-1\r\n*-1\r\n*0\r\n", 6, 6, NULL);
	ANSWER("*2\r\n*2\r\n$0\r\n\r\n+x\r\n:1\r\n+next\r\n", 2, 2, NULL);
	ANSWER("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", 1, 1, NULL);
	ANSWER("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", 1, 0, "");
	ANSWER("+OK\r\n+more\r\n", 1, 1, "not asked for");
	ANSWER("-ERR max number of clients reached\r\n", 0, 0, "");
	ANSWER("*1048576\r\n", 1, 0, NULL);
	ANSWER("*1048577\r\n", 1, 0, "");
	ANSWER("*2147483647\r\n", 1, 0, "");
	ANSWER("*4294967296\r\n", 1, 0, "");
	ANSWER("*9223372036854775807\r\n", 1, 0, "");
	ANSWER("*-2\r\n", 1, 0, "");
	ANSWER("*x\r\n", 1, 0, "");
	ANSWER("$-2\r\n", 1, 0, "");
	ANSWER("$18446744073709551616\r\n", 1, 0, "");
	ANSWER("$9223372036854775807\r\n", 1, 0, NULL);
	ANSWER("$12x\r\n", 1, 0, "");
	ANSWER(":12x\r\n", 1, 0, "");
	ANSWER("HTTP/1.1 400 Bad Request\r\n", 1, 0, "");
	ANSWER("\025\003\001\000\002\002\106", 1, 0, "is for TLS");
	ANSWER("\0\0\0\0", 1, 0, "");
}

/* Bytes that arrived before a command are not its reply. */
static void
test_early(void)
{
	for (int taken = 0; taken <= 1; taken++)
	{
		int			server;
		RedisConnection *conn = connect_and_ask(taken, &server);
		const char *ping = "PING";
		size_t		len = 4;
		redisReply *reply = NULL;

		if (send(server, "+OK\r\n+early\r\n", 13, MSG_NOSIGNAL) != 13)
			abort();
		if (taken)
		{
			reply = redis_wait_reply(conn, fence_clock() + 5000000, 0);
			check_detail(reply != NULL && strcmp(reply->str, "OK") == 0, "the reply", NULL);
			freeReplyObject(reply);
		}
		check_detail(!redis_send(conn, 1, &ping, &len) && redis_error(conn) != NULL, "a command after an early reply", NULL);
		redis_close(conn);
		close(server);
	}
}

/* A reply without end must be refused and must not fill the memory. taken: the maximum number of bytes that may be accepted. */
static void
endless(const char *head, const char *body, size_t body_len, size_t limit, const char *what)
{
	int			server;
	RedisConnection *conn = connect_and_ask(1, &server);
	size_t		taken = 0;
	int64		patience = fence_clock() + INT64CONST(60000000);
	char	   *block = malloc(MEGABYTE);

	for (size_t i = 0; i < MEGABYTE; i++)
		block[i] = body[i % body_len];
	if (send(server, head, strlen(head), MSG_NOSIGNAL) < 0)
		abort();
	while (redis_error(conn) == NULL && taken < 4 * limit && fence_clock() < patience)
	{
		ssize_t		k = send(server, block + taken % body_len, MEGABYTE - body_len, MSG_NOSIGNAL);

		if (k > 0)
			taken += k;
		take_replies(conn);
	}
	check_detail(redis_error(conn) != NULL && taken <= limit, what, redis_error(conn));
	redis_close(conn);
	close(server);
	free(block);
}

static void
test_endless(void)
{
	struct rusage before;
	struct rusage after;

	getrusage(RUSAGE_SELF, &before);
	endless("$1000000000000\r\n", "x", 1, 66 * MEGABYTE, "an endless string");
	endless("+", "x", 1, 2 * MEGABYTE, "an endless line");
	endless("-", "x", 1, 2 * MEGABYTE, "an endless error");
	endless("*", "1", 1, 2 * MEGABYTE, "an endless number of elements");
	endless("*1000000\r\n", "*1\r\n*0\r\n", 8, 66 * MEGABYTE, "arrays in an array");
	endless("*1000000\r\n", "$64\r\n0123456789012345678901234567890123456789012345678901234567890123\r\n", 71,
			66 * MEGABYTE, "a long array");
	endless("", "*1\r\n", 4, MEGABYTE, "arrays all the way down");
	endless("+OK\r\n", "+OK\r\n", 5, 2 * MEGABYTE, "replies that nobody asked for");
	getrusage(RUSAGE_SELF, &after);
	check_detail(after.ru_maxrss - before.ru_maxrss < 1024 * 1024, "memory", NULL);	/* kilobytes; elements cost more than their text */
}

/* Bytes that look like the protocol. */
static size_t
nonsense(char *text, size_t size)
{
	static const char *const pieces[] = {
		"+OK\r\n", "-ERR x\r\n", "-LOADING\r\n", ":1\r\n", ":-9223372036854775808\r\n", "$-1\r\n", "$0\r\n\r\n", "$5\r\nhello\r\n",
		"*0\r\n", "*-1\r\n", "*1\r\n", "*2\r\n", "*3\r\n", "*8\r\n", "*100\r\n", "*1048576\r\n", "*99999999999\r\n", "$99999999\r\n",
		"$2147483648\r\n", "\r\n", "\r", "\n", "+", "-", ":", "$", "*", "1", "-1", "\377", "\001", "%2\r\n", "~2\r\n", ">2\r\n", "_\r\n",
		"#t\r\n", ",1.5\r\n", ",inf\r\n", "(123456789012345678901234567890\r\n", "=7\r\ntxt:abc\r\n", "|1\r\n", "!3\r\nERR\r\n",
		"$?\r\n", "*?\r\n", ".\r\n", "hit", "written", "$8\r\nreserved\r\n", "$7\r\nwritten\r\n"
	};
	size_t		n = 0;

	for (int k = 1 + rand() % 30; k > 0; k--)
	{
		const char *piece = pieces[rand() % lengthof(pieces)];
		size_t		len = strlen(piece);

		if (n + len + 1 > size)
			break;
		memcpy(text + n, piece, len);
		n += len;
		if (rand() % 8 == 0)
			text[n++] = (char) rand();	/* may be 0 too */
	}
	if (n > 0 && rand() % 4 == 0)
		text[rand() % n] = (char) rand();
	if (rand() % 8 == 0)
		n = rand() % (n + 1);
	return n;
}

/* One connection: random replies, cut anywhere, to a random number of commands; then the end, or silence, or a cancel. */
static int	interrupts = 0;

static int
fuzz_once(void)
{
	char	   *text = malloc(4096);	/* on the heap, where the sanitizer notices reads past the end */
	volatile int asked = rand() % 12;
	int			server;
	RedisConnection *conn = connect_and_ask(asked, &server);
	volatile int taken = 0;
	volatile bool thrown = false;
	sigjmp_buf	here;

	taken = feed(conn, server, text, nonsense(text, 4096), rand() % 3 ? 0 : 1 + rand() % 7);
	if (rand() % 8 > 0)
		shutdown(server, rand() % 2 ? SHUT_WR : SHUT_RDWR);
	interrupt_in = rand() % 3 - 1;
	PG_exception_stack = &here;
	if (sigsetjmp(here, 0) == 0)
	{
		while (redis_error(conn) == NULL && redis_outstanding(conn) > 0)
		{
			redisReply *reply = redis_wait_reply(conn, fence_clock() + (rand() % 64 ? 2000 : 30000), 0);

			if (reply != NULL)
			{
				taken++;
				look_at(reply);
				freeReplyObject(reply);
			}
		}
	}
	else
	{
		thrown = true;
		interrupts++;
	}
	PG_exception_stack = NULL;
	interrupt_in = -1;
	InterruptPending = false;
	if (taken > asked || redis_outstanding(conn) != asked - taken)
		check_detail(false, "more replies than commands", NULL);
	if (thrown && redis_error(conn) == NULL)
		check_detail(false, "a connection is used on after an interrupt", NULL);
	if (redis_error(conn) == NULL && asked > taken)
		check_detail(false, "neither a reply nor an error", NULL);
	redis_close(conn);
	close(server);
	free(text);
	return taken;
}

static void
test_random(int rounds)
{
	int			taken = 0;

	for (int i = 0; i < rounds; i++)
		taken += fuzz_once();
	check_detail(taken > rounds / 10, "replies are taken now and then", NULL);
	check_detail(interrupts > rounds / 1000, "waits are interrupted now and then", NULL);
}

static void
put(int server, const char *bytes, int len)
{
	if (write(server, bytes, len) != len)
		abort();
}

/* Numbers that are received completely, or in two pieces cut anywhere. */
static void
test_numbers(void)
{
	static const int64 numbers[] = {0, 7, 42, 100, INT64CONST(12345678901234567), INT64CONST(123456789012345678), PG_INT64_MAX, -1, PG_INT64_MIN};

	for (size_t i = 0; i < lengthof(numbers); i++)
	{
		char		text[64];
		int			len = snprintf(text, sizeof(text), ":" INT64_FORMAT "\r\n:5\r\n", numbers[i]);

		for (int first = 0; first < len; first++)
		{
			int			server;
			RedisConnection *conn = connect_and_ask(2, &server);

			redisReply *reply;

			put(server, text, first);
			reply = redis_poll_reply(conn);
			put(server, text + first, len - first);
			for (int k = 0; k < 2; k++)
			{
				reply = reply ? reply : redis_poll_reply(conn);
				check_detail(reply != NULL && reply->integer == (k == 0 ? numbers[i] : 5), "another number", text);
				redis_free_reply(reply);
				reply = NULL;
			}
			redis_close(conn);
			close(server);
		}
	}
}

/* A server that sends its reply, or a cancel that comes, while redis_wait_reply waits in recv. Signals come meanwhile. */
static volatile sig_atomic_t signals = 0;
static int	answering = -1;		/* the server's socket; -1: a cancel comes */
static volatile sig_atomic_t event_at_signal = 0;

static void
on_alarm(int signal)
{
	const char *pieces[] = {":", "4", "2\r", "\n"};

	(void) signal;
	if (signals == 0)
		event_at_signal = *my_wait_event_info;	/* later waits are in WaitEventSetWait, which shows it itself */
	if (answering < 0)
		InterruptPending = true;
	else if (signals < (int) lengthof(pieces) && write(answering, pieces[signals], strlen(pieces[signals])) < 0)
		abort();
	signals++;
}

static void
wait_in_recv(bool cancel)
{
	struct itimerval soon = {{0, 1000}, {0, 1000}};
	struct itimerval never = {{0, 0}, {0, 0}};
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	const char *what = cancel ? "cancel" : "reply";
	int			server;
	RedisConnection *conn = connect_and_ask(1, &server);
	int64		begun = fence_clock();
	redisReply *volatile reply = NULL;
	volatile bool thrown = false;
	sigjmp_buf	here;

	signals = 0;
	answering = cancel ? -1 : server;
	PG_exception_stack = &here;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &soon, NULL);
	if (sigsetjmp(here, 1) == 0)
		reply = redis_wait_reply(conn, begun + 10000000, 7);
	else
		thrown = true;
	setitimer(ITIMER_REAL, &never, NULL);
	PG_exception_stack = NULL;
	InterruptPending = false;
	check_detail(fence_clock() - begun < 1000000, "waits for longer than it takes", what);
	check_detail(thrown == cancel && (cancel || (reply != NULL && reply->integer == 42)), "another result", what);
	check_detail(cancel || signals >= 4, "the reply came without signals", what);
	check_detail(event_at_signal == 7, "does not show what it waits for", what);
	if (reply != NULL)
		freeReplyObject(reply);
	redis_close(conn);
	close(server);
}

/* After a password is sent, only the reply OK in time may be accepted. */
static void
test_login(void)
{
	static const char *const wrong[] = {"$2\r\nOK\r\n", ":1\r\n", "*1\r\n+OK\r\n", "-ERR no\r\n", "-unknown command 'AUTH' 'secret", "+",
	"OK\r\n", "\r\n", ""};
	char		error[256];

	strcpy(url.password, "secret");
	for (size_t i = 0; i < lengthof(wrong); i++)
	{
		pid_t		pid = fork();
		RedisConnection *conn;

		if (pid == 0)
		{
			int			server = accept(listening, NULL, NULL);

			if (write(server, wrong[i], strlen(wrong[i])) < 0)
				_exit(1);
			if (i % 2)
				poll(NULL, 0, 2000);
			_exit(0);
		}
		conn = redis_open(&where, &url, fence_clock() + 300000, error, sizeof(error));
		check_detail(conn == NULL, "a login that was not answered with OK", wrong[i]);
		check_detail(strstr(error, "secret") == NULL, "an error that repeats the password", error);
		kill(pid, SIGKILL);
	}
	url.password[0] = '\0';
}

int
main(int argc, char **argv)
{
	srand(argc > 2 ? atoi(argv[2]) : 1);
	listen_somewhere();
	test_replies();
	test_early();
	test_endless();
	test_login();
	test_numbers();
	wait_in_recv(false);
	wait_in_recv(true);
	test_random(argc > 1 ? atoi(argv[1]) : 50000);
	check_detail(files == 0, "file descriptors are given back", NULL);
	stop_listening();
	return report_checks();
}
