/*
 * redis/connection.h
 *	  One pipelined connection to one Redis process.
 *
 * Owns: the socket, the bytes on their way out, the replies on their way in. Requests are answered in the order in
 * which they were sent; who asked what is the caller's affair.
 *
 * Rules:
 *   - Nothing here resolves a name: an address is numeric or a socket path.
 *   - Nothing blocks except redis_open and redis_wait_reply; both serve interrupts and stop at their deadline.
 *   - After any error, timeout or interrupted wait the connection is failed: it sends nothing more and must be closed.
 *     A late reply would be taken for the answer to another question.
 *   - redis_send, redis_send_raw, redis_flush and redis_close allocate with malloc only, raise nothing, and may be
 *     called in COMMIT and ABORT callbacks.
 */
#ifndef FENCE_REDIS_CONNECTION_H
#define FENCE_REDIS_CONNECTION_H

#include <hiredis/hiredis.h>

#include "base/url.h"

typedef struct RedisConnection RedisConnection;

/*
 * Connects to address (numeric host or socket path) and authenticates as url says (AUTH only if a password is set;
 * user may be empty). deadline: fence_clock() time in microseconds. Returns NULL on failure, with a message for people
 * in error (no trailing period, never holds the password). Interruptible: a cancel raises, nothing leaks.
 * The connection lives until redis_close, across transactions; it holds one external file descriptor
 * (AcquireExternalFD).
 */
extern RedisConnection *redis_open(const RedisEndpoint *address, const RedisUrl *url, int64 deadline,
								   char *error, size_t error_size);

/* Closes and frees; NULL is allowed. Replies that are outstanding are lost. */
extern void redis_close(RedisConnection *conn);

/* Queues one command for sending; redis_flush sends. argvlen NULL: argv are strings. False: the connection has failed. */
extern bool redis_send(RedisConnection *conn, int argc, const char **argv, const size_t *argvlen);

/* Queues bytes that hold exactly nreplies well-formed commands. False: the connection has failed. */
extern bool redis_send_raw(RedisConnection *conn, const char *bytes, size_t len, int nreplies);

/*
 * Writes what the socket takes without waiting. If it does not take all of it, or nothing is outstanding, also reads
 * what it offers: both sides' buffers must never fill at once. False: the connection has failed.
 */
extern bool redis_flush(RedisConnection *conn);

/* For waiting until it is readable; may be -1. */
extern int	redis_socket(const RedisConnection *conn);

/* Bytes queued and not yet written. */
extern size_t redis_unsent(const RedisConnection *conn);

/* Commands sent or queued whose reply was not taken yet. */
extern int	redis_outstanding(const RedisConnection *conn);

/* The next reply if it is here (reads the socket without waiting), else NULL. Caller: freeReplyObject. */
extern redisReply *redis_poll_reply(RedisConnection *conn);

/*
 * The next reply; sends what is queued and waits until deadline (fence_clock() microseconds) in wait event
 * wait_event. NULL: failed (redis_error tells). Interruptible; an interrupt leaves the connection failed.
 */
extern redisReply *redis_wait_reply(RedisConnection *conn, int64 deadline, uint32 wait_event);

/* Whether the connection has failed, and why (static or owned by conn; NULL if it has not). */
extern const char *redis_error(const RedisConnection *conn);

#endif
