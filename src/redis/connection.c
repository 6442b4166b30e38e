/*
 * redis/connection.c
 *	  One pipelined connection to one Redis process. See connection.h for the rules.
 *
 * Owns: the socket (one external file descriptor), the queue of bytes to send, and the parser with the bytes received. Takes
 * no locks.
 *
 * We do not trust the server with our memory: we leave bytes in the socket while too many received bytes are waiting to be
 * taken, and reply_parser.c limits each reply.
 *
 * Never: palloc in functions that COMMIT and ABORT call (they never wait; see make_wait_set), resolve a name, put the
 * password into a message.
 */
#include "postgres.h"

#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/shared.h"
#include "redis/connection.h"
#include "redis/reply_parser.h"
#include "redis/tls.h"

/* Bytes that we read at once. Must be at least one TLS record: then OpenSSL never holds back bytes while the socket is not readable. */
#define CHUNK_BYTES (16 * 1024)
#define WRITE_BYTES (64 * 1024)		/* bytes that we pass to hiredis for writing at once */
#define SHORT_WAIT_US 5000		/* a reply to a reservation comes earlier, unless something is wrong */
#define DO_NOT_WAIT	INT64CONST(0)	/* instead of a deadline */
#define SILENCE_US	INT64CONST(10000)	/* after this time without a read, look whether the server has sent something or closed the connection */
#define MAX_UNSENT_BYTES (1024 * 1024 * 1024)
#define MAX_UNTAKEN_BYTES (64 * 1024 * 1024)	/* with more received bytes than this, leave the rest in the socket */

struct RedisConnection
{
	redisContext *context;
	struct ssl_st *ssl;			/* belongs to the context; NULL: no TLS */
	ByteQueue	out;			/* not yet passed to hiredis or the socket for writing */
	ReplyParser parser;
	int			outstanding;
	int64		read_at;		/* fence_clock() time of the last read */
	bool		has_fd;			/* AcquireExternalFD succeeded */
	WaitEventSet *wait_set;		/* latch and socket; NULL: not needed yet */
	int			wait_events;	/* events of the socket that wait_set waits for */
	int			wait_position;	/* position of the socket in wait_set */
	bool		waiting;		/* inside redis_wait_reply, or left it by an error */
	bool		failed;
	bool		unusable;		/* failed, and received replies must not be taken either */
	char		address[REDIS_HOST_LEN + 16];
	char		error[REDIS_HOST_LEN + 512];
};

/* ---- failure ---- */

/*
 * Marks the connection as failed, and keeps the first reason. If usable is true, the caller can still take replies that
 * were received completely. Always returns false, so that callers can return it.
 */
static bool
fail(RedisConnection *conn, bool usable, const char *why)
{
	if (!conn->failed)
		snprintf(conn->error, sizeof(conn->error), "%s: %s", conn->address, why);
	conn->failed = true;
	queue_free(&conn->out);
	if (!usable)
	{
		conn->unusable = true;
		queue_free(&conn->parser.in);
	}
	return false;
}

const char *
redis_error(const RedisConnection *conn)
{
	if (conn->failed)
		return conn->error;
	return conn->waiting ? "interrupted while waiting for Redis" : NULL;
}

/* ---- replies ---- */

static bool
has_input(const RedisConnection *conn)
{
	return reply_parser_has_input(&conn->parser);
}

/* Returns the next complete reply that was received, or NULL. */
static redisReply *
parse(RedisConnection *conn)
{
	redisReply *reply = reply_parser_next(&conn->parser);

	if (reply == NULL && conn->parser.problem != NULL)
		fail(conn, false, conn->parser.problem);
	return reply;
}

/*
 * The server sent bytes although no request is outstanding, so we can no longer match replies to requests. If the bytes
 * are an error, the server says why it rejects us.
 */
static void
fail_unasked(RedisConnection *conn)
{
	redisReply *reply = parse(conn);

	if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
		fail(conn, false, reply->str);
	else
		fail(conn, false, "the server sent something that was not asked for");
	freeReplyObject(reply);
}

/* The same, as the reply to the first of the outstanding requests. */
static redisReply *
next_reply(RedisConnection *conn)
{
	redisReply *reply;

	if (conn->unusable)
		return NULL;
	if (conn->outstanding == 0)
	{
		if (has_input(conn))
			fail_unasked(conn);
		return NULL;
	}
	reply = parse(conn);
	if (reply != NULL)
		conn->outstanding--;
	return reply;
}

/* ---- the socket ---- */

/*
 * Reads without hiredis, because the caller says by the flags whether to wait: without MSG_DONTWAIT, for SHORT_WAIT_US at
 * most. Returns 0 also if a signal came. (With SO_RCVTIMEO the kernel never restarts recv after a signal.)
 */
static ssize_t
read_plain(RedisConnection *conn, int flags)
{
	ssize_t		n = recv(conn->context->fd, conn->parser.in.data + conn->parser.in.end, CHUNK_BYTES, flags);

	if (n > 0)
		return n;
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return 0;
	strlcpy(conn->context->errstr, n == 0 ? "Server closed the connection" : strerror(errno), sizeof(conn->context->errstr));
	return -1;
}

/*
 * Reads once. Returns the number of bytes; 0 if the socket has none, or too many are waiting to be taken; -1 if the
 * connection has failed. Waits for bytes if the deadline is far enough away for a short wait, which the kernel may extend
 * by some milliseconds. With TLS it never waits, because OpenSSL's reads belong to no single recv.
 */
static ssize_t
read_some(RedisConnection *conn, int64 deadline)
{
	ssize_t		n;

	if (queue_length(&conn->parser.in) >= MAX_UNTAKEN_BYTES)
		return 0;
	if (!queue_reserve(&conn->parser.in, CHUNK_BYTES))
	{
		fail(conn, false, "out of memory");
		return -1;
	}
	conn->read_at = fence_clock();
	n = conn->ssl ? tls_read(conn->context, conn->parser.in.data + conn->parser.in.end, CHUNK_BYTES) :
		read_plain(conn, deadline - conn->read_at > 4 * SHORT_WAIT_US ? 0 : MSG_DONTWAIT);
	if (n >= 0)
		conn->parser.in.end += n;
	else if (conn->outstanding == 0 && has_input(conn))
		fail_unasked(conn);
	else
		fail(conn, true, tls_reason(conn->ssl, conn->context->errstr));
	return n;
}

/* Writing failed. Read first, because the server may have said why it closed the connection. */
static ssize_t
fail_writing(RedisConnection *conn, const char *reason)
{
	char		why[sizeof(conn->context->errstr)];

	strlcpy(why, reason, sizeof(why));
	while (read_some(conn, DO_NOT_WAIT) > 0)
		;
	fail(conn, true, why);
	return -1;
}

/*
 * Writes without hiredis, which would allocate a buffer and copy the bytes to it. That copy took the largest part of
 * the time to write a one-row transaction.
 */
static ssize_t
write_plain(RedisConnection *conn)
{
	size_t		slice = Min(queue_length(&conn->out), WRITE_BYTES);
	ssize_t		n = slice > 0 ? send(conn->context->fd, conn->out.data + conn->out.start, slice, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;

	if (n > 0)
		queue_drop(&conn->out, n);
	if (n >= 0)
		return n;
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : fail_writing(conn, strerror(errno));
}

/* Writes once. Returns the number of bytes; 0 if the socket accepts none now; -1 if the connection has failed. */
static ssize_t
write_some(RedisConnection *conn)
{
	redisContext *context = conn->context;
	size_t		before;

	if (conn->ssl == NULL)
		return write_plain(conn);
	if (sdslen(context->obuf) == 0)
	{
		size_t		slice = Min(queue_length(&conn->out), WRITE_BYTES);

		if (slice == 0)
			return 0;
		if (redisAppendFormattedCommand(context, conn->out.data + conn->out.start, slice) != REDIS_OK)
		{
			fail(conn, false, context->errstr);
			return -1;
		}
		queue_drop(&conn->out, slice);
	}
	before = sdslen(context->obuf);
	tls_forget_errors(conn->ssl);
	if (redisBufferWrite(context, NULL) != REDIS_OK)
		return fail_writing(conn, tls_reason(conn->ssl, context->errstr));
	return before - sdslen(context->obuf);
}

/*
 * Writes once and reads once. If everything is written, the read may wait a short time, see read_some. Sets *progress if
 * another attempt may succeed at once. Returns false if the connection has failed.
 */
static bool
transfer(RedisConnection *conn, int64 deadline, bool *progress)
{
	ssize_t		written = write_some(conn);
	ssize_t		received = written < 0 ? -1 : read_some(conn, redis_unsent(conn) == 0 ? deadline : DO_NOT_WAIT);

	*progress = written > 0 || received > 0;
	return received >= 0;
}

/*
 * Makes the wait event set. We keep it with the connection, because making one costs more than waiting. May raise
 * (memory, files). That is safe: only functions that wait call this, and there an interrupt may raise too. COMMIT and
 * ABORT never wait.
 */
static void
make_wait_set(RedisConnection *conn)
{
	conn->wait_set = fence_create_wait_event_set(3);
	AddWaitEventToSet(conn->wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(conn->wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	conn->wait_events = WL_SOCKET_READABLE;
	conn->wait_position = AddWaitEventToSet(conn->wait_set, conn->wait_events, conn->context->fd, NULL, NULL);
}

/*
 * Waits until the socket is ready for `events`, the latch is set, or the deadline has passed (then returns WL_TIMEOUT).
 * Raises if interrupted.
 */
static int
wait_socket(RedisConnection *conn, int events, int64 deadline, uint32 wait_event)
{
	int64		left = deadline - fence_clock();
	WaitEvent	event;

	CHECK_FOR_INTERRUPTS();
	if (left <= 0)
		return WL_TIMEOUT;
	if (conn->wait_set == NULL)
		make_wait_set(conn);
	if (conn->wait_events != events)
		ModifyWaitEvent(conn->wait_set, conn->wait_position, events, NULL);
	conn->wait_events = events;
	if (WaitEventSetWait(conn->wait_set, (long) Min((left + 999) / 1000, INT_MAX), &event, 1, wait_event) == 0)
		return WL_TIMEOUT;
	if (event.events & WL_LATCH_SET)
		ResetLatch(MyLatch);
	return event.events;
}

/* ---- requests and replies ---- */

/*
 * Returns whether a command may be queued. Bytes that arrived before the command was sent are not its reply, so they
 * fail the connection. This also notices that the server has closed the connection. We look only after some time
 * without a read, because it costs a system call, and cannot notice bytes that arrive later anyway.
 */
static bool
may_send(RedisConnection *conn)
{
	if (conn->failed || conn->waiting)
		return false;
	if (conn->outstanding == 0 && redis_unsent(conn) == 0)
	{
		if (!has_input(conn) && fence_clock() - conn->read_at > SILENCE_US)
			(void) read_some(conn, DO_NOT_WAIT);
		if (!conn->failed && has_input(conn))
			fail_unasked(conn);
	}
	return !conn->failed;
}

/* Makes room for bytes to be sent. Returns false if the connection has failed. */
static bool
make_room(RedisConnection *conn, size_t len)
{
	if (len > MAX_UNSENT_BYTES || queue_length(&conn->out) > MAX_UNSENT_BYTES - len)
		return fail(conn, false, "too much is waiting to be sent");
	return queue_reserve(&conn->out, len) || fail(conn, false, "out of memory");
}

/* Queues bytes. Returns false if the connection has failed. */
static bool
enqueue(RedisConnection *conn, const char *bytes, size_t len)
{
	if (!make_room(conn, len))
		return false;
	if (len > 0)
		memcpy(conn->out.data + conn->out.end, bytes, len);
	conn->out.end += len;
	return true;
}

bool
redis_send(RedisConnection *conn, int argc, const char **argv, const size_t *argvlen)
{
	char		head[32];

	if (!may_send(conn) || !enqueue(conn, head, snprintf(head, sizeof(head), "*%d\r\n", argc)))
		return false;
	for (int i = 0; i < argc; i++)
	{
		size_t		len = argvlen ? argvlen[i] : strlen(argv[i]);

		if (!enqueue(conn, head, snprintf(head, sizeof(head), "$%zu\r\n", len)) ||
			!enqueue(conn, argv[i], len) ||
			!enqueue(conn, "\r\n", 2))
			return false;
	}
	conn->outstanding++;
	return true;
}

char *
redis_begin_raw(RedisConnection *conn, size_t len)
{
	return may_send(conn) && make_room(conn, len) ? conn->out.data + conn->out.end : NULL;
}

void
redis_end_raw(RedisConnection *conn, const char *end, int nreplies)
{
	conn->out.end = end - conn->out.data;
	conn->outstanding += nreplies;
}

bool
redis_flush(RedisConnection *conn)
{
	bool		progress = true;

	if (conn->failed || conn->waiting)
		return false;
	while (redis_unsent(conn) > 0 && progress)
	{
		ssize_t		written = write_some(conn);

		if (written < 0)
			return false;
		if (written == 0 && !transfer(conn, DO_NOT_WAIT, &progress))
			return false;
	}
	if (conn->outstanding == 0)
	{
		if (read_some(conn, DO_NOT_WAIT) >= 0 && has_input(conn))
			fail_unasked(conn);
	}
	return !conn->failed;
}

int
redis_socket(const RedisConnection *conn)
{
	return conn->context->fd;
}

size_t
redis_unsent(const RedisConnection *conn)
{
	return conn->failed ? 0 : queue_length(&conn->out) + sdslen(conn->context->obuf);
}

int
redis_outstanding(const RedisConnection *conn)
{
	return conn->outstanding;
}

redisReply *
redis_poll_reply(RedisConnection *conn)
{
	redisReply *reply;
	bool		progress;

	if (conn->waiting)
		return NULL;
	reply = next_reply(conn);
	if (reply != NULL || conn->failed)
		return reply;
	(void) transfer(conn, DO_NOT_WAIT, &progress);
	return next_reply(conn);
}

/*
 * The first wait is a short one in recv, because a wait event set takes two more system calls. A signal ends it, so an
 * interrupt is served at once; one that came just before it waits for SHORT_WAIT_US.
 */
redisReply *
redis_wait_reply(RedisConnection *conn, int64 deadline, uint32 wait_event)
{
	redisReply *reply;
	bool		at_first = true;

	if (conn->waiting)
		return NULL;
	if (conn->outstanding == 0)
		fail(conn, false, "waiting for a reply to nothing");

	/*
	 * If an interrupt raises out of this function, `waiting` stays set. The connection cannot be used then, because
	 * this reply would arrive when the next one is expected.
	 */
	conn->waiting = true;
	while ((reply = next_reply(conn)) == NULL && !conn->failed)
	{
		int			events = WL_SOCKET_READABLE;
		bool		progress;
		bool		whole;

		pgstat_report_wait_start(wait_event);
		whole = transfer(conn, at_first ? deadline : DO_NOT_WAIT, &progress);
		pgstat_report_wait_end();
		if (!whole || progress)
			continue;
		at_first = false;
		if (redis_unsent(conn) > 0 || tls_wants_write(conn->ssl))
			events |= WL_SOCKET_WRITEABLE;
		if (wait_socket(conn, events, deadline, wait_event) & WL_TIMEOUT)
			fail(conn, false, "no reply in time");
	}
	conn->waiting = false;
	return reply;
}

/* ---- opening and closing ---- */

/* Formats an address for people. An IPv6 address gets brackets. */
static void
format_address(const RedisEndpoint *address, char *text, size_t size)
{
	if (address->is_unix)
		strlcpy(text, address->host, size);
	else
		snprintf(text, size, strchr(address->host, ':') != NULL ? "[%s]:%d" : "%s:%d", address->host, address->port);
}

/* hiredis would ask the resolver about any other host, which blocks. */
static bool
is_numeric(const char *host)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;

	if (getaddrinfo(host, NULL, &hints, &found) != 0)
		return false;
	freeaddrinfo(found);
	return true;
}

/* Begins to connect. */
static bool
start_connect(RedisConnection *conn, const RedisEndpoint *address)
{
	redisContext *context;

	if (!address->is_unix && !is_numeric(address->host))
		return fail(conn, false, "not a numeric address");
	if (!AcquireExternalFD())
		return fail(conn, false, "too many open files in this process");
	conn->has_fd = true;
	/* The wait event set needs a descriptor too, and raises if there is none. So check for it now. */
	if (!AcquireExternalFD())
		return fail(conn, false, "too many open files in this process");
	ReleaseExternalFD();

	context = address->is_unix ? redisConnectUnixNonBlock(address->host) :
		redisConnectNonBlock(address->host, address->port);
	if (context == NULL)
		return fail(conn, false, "out of memory");
	conn->context = context;
	if (context->err != 0)
		return fail(conn, false, context->errstr);

	reply_parser_begin(&conn->parser, context->reader);
	/* Programs that PostgreSQL starts (archive_command, COPY PROGRAM) must not inherit the socket. hiredis sets TCP_NODELAY. */
	if (fcntl(context->fd, F_SETFD, FD_CLOEXEC) != 0)
		return fail(conn, false, strerror(errno));
	return true;
}

/* Waits until the connection is established. */
static bool
finish_connect(RedisConnection *conn, int64 deadline)
{
	int			happened;
	int			error = 0;
	socklen_t	len = sizeof(error);

	do
	{
		happened = wait_socket(conn, WL_SOCKET_CONNECTED, deadline, wait_event_redis());
		if (happened & WL_TIMEOUT)
			return fail(conn, false, "no connection in time");
	} while (!(happened & WL_SOCKET_CONNECTED));

	if (getsockopt(conn->context->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
		error = errno;
	if (error != 0)
		return fail(conn, false, strerror(error));
	return true;
}

/* Makes the socket block, for a short time, where a call does not say MSG_DONTWAIT. */
static bool
allow_short_waits(RedisConnection *conn)
{
	struct timeval shortly = {.tv_usec = SHORT_WAIT_US};
	int			flags = fcntl(conn->context->fd, F_GETFL);

	if (flags < 0 || setsockopt(conn->context->fd, SOL_SOCKET, SO_RCVTIMEO, &shortly, sizeof(shortly)) != 0 ||
		fcntl(conn->context->fd, F_SETFL, flags & ~O_NONBLOCK) != 0)
		return fail(conn, false, strerror(errno));
	return true;
}

/* Executes the TLS handshake, which checks the certificate's name before we send anything. */
static bool
secure(RedisConnection *conn, const RedisEndpoint *address, int64 deadline)
{
	char		why[256];
	TlsStep		step;

	if (address->is_unix)
		return fail(conn, false, "no TLS over a Unix socket");
	while ((step = tls_handshake(conn->context, &conn->ssl, address, why, sizeof(why))) != TLS_DONE)
	{
		if (step == TLS_FAILED)
			return fail(conn, false, why);
		if (wait_socket(conn, step == TLS_WANTS_READ ? WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE, deadline,
						wait_event_redis()) & WL_TIMEOUT)
			return fail(conn, false, "no TLS handshake in time (is this port for TLS?)");
	}
	return true;
}

/*
 * Reports the server's reply to AUTH, unless the reply may repeat the password. If AUTH is renamed, the server's error
 * "unknown command" repeats the arguments, shortened and with some characters replaced.
 */
static void
fail_authentication(RedisConnection *conn, const redisReply *reply, const char *password)
{
	char		start[9];
	char		why[256];

	strlcpy(start, password, sizeof(start));
	if (reply->type != REDIS_REPLY_ERROR)
		strlcpy(why, "AUTH was not answered with OK", sizeof(why));
	else if (strstr(reply->str, start) != NULL || strstr(reply->str, "unknown command") != NULL)
		strlcpy(why, "AUTH failed (the server's message is withheld: it may repeat the password)", sizeof(why));
	else
		snprintf(why, sizeof(why), "AUTH failed: %s", reply->str);
	fail(conn, false, why);
}

static bool
authenticate(RedisConnection *conn, const RedisUrl *url, int64 deadline)
{
	const char *argv[3] = {"AUTH"};
	int			argc = 1;
	redisReply *reply;

	if (url->password[0] == '\0')
		return true;
	if (url->user[0] != '\0')
		argv[argc++] = url->user;
	argv[argc++] = url->password;
	if (!redis_send(conn, argc, argv, NULL))
		return false;
	reply = redis_wait_reply(conn, deadline, wait_event_redis());
	if (reply == NULL)
		return false;
	if (reply->type != REDIS_REPLY_STATUS || strcmp(reply->str, "OK") != 0)
		fail_authentication(conn, reply, url->password);
	freeReplyObject(reply);
	return !conn->failed;
}

/* Connects and logs in. Raises if interrupted, after it has closed conn. */
static void
establish(RedisConnection *conn, const RedisEndpoint *address, const RedisUrl *url, int64 deadline)
{
	PG_TRY();
	{
		(void) (start_connect(conn, address) && finish_connect(conn, deadline) &&
				(url->tls ? secure(conn, address, deadline) : allow_short_waits(conn)) &&
				authenticate(conn, url, deadline));
	}
	PG_CATCH();
	{
		redis_close(conn);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

RedisConnection *
redis_open(const RedisEndpoint *address, const RedisUrl *url, int64 deadline, char *error, size_t error_size)
{
	RedisConnection *conn = calloc(1, sizeof(RedisConnection));

	if (conn == NULL)
	{
		strlcpy(error, "out of memory", error_size);
		return NULL;
	}
	format_address(address, conn->address, sizeof(conn->address));
	establish(conn, address, url, deadline);
	if (!conn->failed)
		return conn;
	strlcpy(error, conn->error, error_size);
	redis_close(conn);
	return NULL;
}

void
redis_close(RedisConnection *conn)
{
	if (conn == NULL)
		return;
	if (conn->wait_set != NULL)
		FreeWaitEventSet(conn->wait_set);
	if (conn->context != NULL)
		redisFree(conn->context);
	if (conn->has_fd)
		ReleaseExternalFD();
	queue_free(&conn->out);
	queue_free(&conn->parser.in);
	free(conn);
}
