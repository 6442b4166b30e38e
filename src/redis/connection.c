/*
 * redis/connection.c
 *	  One pipelined connection to one Redis process. See connection.h for the rules.
 *
 * Owns: the socket (one external file descriptor), the queue of bytes to send, the queue of bytes received. Takes no
 * locks. hiredis connects and parses, but for replies that are positive numbers (parse_number), because most replies are.
 * The queues are our own: hiredis moves the whole rest of its buffer each time it consumes a little, which takes quadratic
 * time when much is in flight.
 *
 * We do not trust the server with our memory. A reply has a limited number of bytes and elements. We leave bytes in the
 * socket while too many received bytes are waiting to be taken.
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
#include "redis/tls.h"

/*
 * Bytes that we read and pass to the parser at once. Must be at least one TLS record: then OpenSSL never holds back
 * bytes while the socket is not readable.
 */
#define CHUNK_BYTES (16 * 1024)
#define WRITE_BYTES (64 * 1024)		/* bytes that we pass to hiredis for writing at once */
#define KEEP_BYTES (1024 * 1024)	/* an empty queue larger than this is freed */
#define SHORT_WAIT_US 5000		/* a reply to a reservation comes earlier, unless something is wrong */
#define DO_NOT_WAIT	INT64CONST(0)	/* instead of a deadline */
#define SILENCE_US	INT64CONST(10000)	/* after this time without a read, look whether the server has sent something or closed the connection */
#define MAX_UNSENT_BYTES (1024 * 1024 * 1024)
#define MAX_UNTAKEN_BYTES (64 * 1024 * 1024)	/* with more received bytes than this, leave the rest in the socket */
#define MAX_REPLY_BYTES (64 * 1024 * 1024)
#define MAX_REPLY_ELEMENTS (1024 * 1024)	/* in all arrays of one reply together */
#define MAX_REPLY_DEPTH 7			/* the limit of hiredis 0.14; 1.x has none */
#define MAX_LINE_BYTES (64 * 1024)	/* of a status, error or number */

/* The bytes data[start .. end), in order of arrival. */
typedef struct ByteQueue
{
	char	   *data;
	size_t		start;
	size_t		end;
	size_t		size;
} ByteQueue;

struct RedisConnection
{
	redisContext *context;
	struct ssl_st *ssl;			/* belongs to the context; NULL: no TLS */
	redisReplyObjectFunctions functions;	/* those of hiredis, except createArray */
	void	   *(*create_array) (const redisReadTask *, redis_array_size);
	ByteQueue	out;			/* not yet passed to hiredis or the socket for writing */
	ByteQueue	in;				/* not yet passed to hiredis for parsing */
	size_t		reply_bytes;	/* bytes so far of the reply that is being parsed */
	size_t		reply_elements;
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

/* ---- queues ---- */

static size_t
queue_length(const ByteQueue *queue)
{
	return queue->end - queue->start;
}

static void
queue_free(ByteQueue *queue)
{
	free(queue->data);
	memset(queue, 0, sizeof(*queue));
}

/* Makes room for len bytes at the end. Returns false if there is no memory. */
static bool
queue_reserve(ByteQueue *queue, size_t len)
{
	size_t		used = queue_length(queue);
	size_t		size = Max(queue->size, CHUNK_BYTES);
	char	   *data;

	if (queue->size - queue->end >= len)
		return true;
	/*
	 * Move the bytes only if at least as many have left the queue since the last move. So moving costs constant time
	 * per byte.
	 */
	if (queue->start >= used && queue->size - used >= len)
	{
		if (used > 0)
			memmove(queue->data, queue->data + queue->start, used);
		queue->start = 0;
		queue->end = used;
		return true;
	}
	while (size - queue->end < len)
		size *= 2;
	if ((data = realloc(queue->data, size)) == NULL)
		return false;
	queue->data = data;
	queue->size = size;
	return true;
}

static void
queue_drop(ByteQueue *queue, size_t len)
{
	queue->start += len;
	if (queue->start < queue->end)
		return;
	queue->start = queue->end = 0;
	if (queue->size > KEEP_BYTES)
		queue_free(queue);
}

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
		queue_free(&conn->in);
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

/* ---- parsing ---- */

/* Replaces createArray of hiredis. Limits the elements and the nesting of one reply, because freeing a reply recurses. */
static void *
create_array(const redisReadTask *task, redis_array_size elements)
{
	RedisConnection *conn = task->privdata;
	int			depth = 0;

	for (const redisReadTask *outer = task->parent; outer != NULL; outer = outer->parent)
		depth++;
	if (depth >= MAX_REPLY_DEPTH)
	{
		fail(conn, false, "a reply is nested too deeply");
		return NULL;
	}
	if ((size_t) elements > MAX_REPLY_ELEMENTS - conn->reply_elements)
	{
		fail(conn, false, "a reply has too many elements");
		return NULL;
	}
	conn->reply_elements += elements;
	return conn->create_array(task, elements);
}

/*
 * Returns whether the parser waits for the end of a line that is longer than any line of Redis. It would scan that line
 * again at each call.
 */
static bool
endless_line(const redisReader *reader)
{
	return reader->len - reader->pos > MAX_LINE_BYTES &&
		memchr(reader->buf + reader->pos, '\n', MAX_LINE_BYTES) == NULL;
}

/* Returns whether there are received bytes that nobody has taken. */
static bool
has_input(const RedisConnection *conn)
{
	const redisReader *reader = conn->context->reader;

	return queue_length(&conn->in) > 0 || reader->len > reader->pos || conn->reply_bytes > 0;
}

/* The received bytes are not in the protocol of Redis. */
static void
fail_unparsable(RedisConnection *conn)
{
	const char *why = conn->context->reader->errstr;

	/* "\x15" is the first byte of a TLS alert. If create_array has failed, fail keeps its reason. */
	fail(conn, false, strstr(why, "got \"\\x15\"") != NULL ? "this port is for TLS (rediss://)" : why);
}

/*
 * An error message of Redis goes into messages and views of databases with any encoding, and it may repeat what we
 * sent. So we keep only ASCII.
 */
static void
make_ascii(redisReply *error)
{
	for (size_t i = 0; i < error->len; i++)
		if (error->str[i] < ' ' || error->str[i] > '~')
			error->str[i] = '?';
}

static redisReply *spare = NULL;	/* a number that was freed, for the next one */

void
redis_free_reply(redisReply *reply)
{
	if (spare == NULL && reply->type == REDIS_REPLY_INTEGER)
		spare = reply;
	else
		freeReplyObject(reply);
}

/* Returns a reply that is a number; NULL if there is no memory. */
static redisReply *
make_number(RedisConnection *conn, int64 number)
{
	static redisReadTask task = {.type = REDIS_REPLY_INTEGER};
	redisReply *reply = spare;

	if (reply == NULL)
		return conn->functions.createInteger(&task, number);
	spare = NULL;
	reply->integer = number;
	return reply;
}

/*
 * Parses the next reply without hiredis if it is a positive number and was received completely, as most replies are; hiredis
 * would copy it twice. Returns NULL if it must be parsed otherwise. A reply that hiredis has begun has reply_bytes.
 */
static redisReply *
parse_number(RedisConnection *conn)
{
	const char *bytes = conn->in.data + conn->in.start;
	size_t		len = Min(queue_length(&conn->in), 20);	/* with fewer digits than any that overflow */
	size_t		i = 1;
	int64		number = 0;
	redisReply *reply;

	if (len == 0 || bytes[0] != ':' || conn->reply_bytes > 0)
		return NULL;
	for (; i < len && bytes[i] >= '0' && bytes[i] <= '9'; i++)
		number = number * 10 + (bytes[i] - '0');
	if (i == 1 || len - i < 2 || bytes[i] != '\r' || bytes[i + 1] != '\n' ||
		(reply = make_number(conn, number)) == NULL)
		return NULL;
	queue_drop(&conn->in, i + 2);
	return reply;
}

/* Parses the next complete reply. Returns NULL if there is none. */
static redisReply *
parse_reply(RedisConnection *conn)
{
	redisReader *reader = conn->context->reader;
	redisReply *number = parse_number(conn);

	if (number != NULL)
		return number;
	for (;;)
	{
		void	   *reply = NULL;
		size_t		slice;

		if (reader->len > reader->pos && redisReaderGetReply(reader, &reply) != REDIS_OK)
		{
			fail_unparsable(conn);
			return NULL;
		}
		if (reply != NULL)
		{
			conn->reply_bytes = reader->len - reader->pos;
			conn->reply_elements = 0;
			if (((redisReply *) reply)->type == REDIS_REPLY_ERROR)
				make_ascii(reply);
			return reply;
		}
		slice = Min(queue_length(&conn->in), CHUNK_BYTES);
		if (slice == 0)
			return NULL;
		conn->reply_bytes += slice;
		if (conn->reply_bytes > MAX_REPLY_BYTES || endless_line(reader))
		{
			fail(conn, false, "a reply is too large");
			return NULL;
		}
		if (redisReaderFeed(reader, conn->in.data + conn->in.start, slice) != REDIS_OK)
		{
			fail(conn, false, reader->errstr);
			return NULL;
		}
		queue_drop(&conn->in, slice);
	}
}

/*
 * The server sent bytes although no request is outstanding, so we can no longer match replies to requests. If the bytes
 * are an error, the server says why it rejects us.
 */
static void
fail_unasked(RedisConnection *conn)
{
	redisReply *reply = parse_reply(conn);

	if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
		fail(conn, false, reply->str);
	else
		fail(conn, false, "the server sent something that was not asked for");
	freeReplyObject(reply);
}

/* Returns the next complete reply that was received, or NULL. */
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
	reply = parse_reply(conn);
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
	ssize_t		n = recv(conn->context->fd, conn->in.data + conn->in.end, CHUNK_BYTES, flags);

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

	if (queue_length(&conn->in) >= MAX_UNTAKEN_BYTES)
		return 0;
	if (!queue_reserve(&conn->in, CHUNK_BYTES))
	{
		fail(conn, false, "out of memory");
		return -1;
	}
	conn->read_at = fence_clock();
	n = conn->ssl ? tls_read(conn->context, conn->in.data + conn->in.end, CHUNK_BYTES) :
		read_plain(conn, deadline - conn->read_at > 4 * SHORT_WAIT_US ? 0 : MSG_DONTWAIT);
	if (n >= 0)
		conn->in.end += n;
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
	if (conn->outstanding == 0 && redis_unsent(conn) == 0 &&
		(has_input(conn) || (fence_clock() - conn->read_at > SILENCE_US && read_some(conn, DO_NOT_WAIT) >= 0 && has_input(conn))))
		fail_unasked(conn);
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

	conn->functions = *context->reader->fn;
	conn->create_array = conn->functions.createArray;
	conn->functions.createArray = create_array;
	context->reader->fn = &conn->functions;
	context->reader->privdata = conn;
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
	queue_free(&conn->in);
	free(conn);
}
