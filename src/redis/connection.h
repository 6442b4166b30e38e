/*
 * redis/connection.h
 *	  One pipelined connection to one Redis process.
 *
 * Owns: the socket, the bytes to send, the replies received. Replies arrive in the order of the requests. The caller
 * must know which request each reply answers.
 *
 * Rules:
 *   - Nothing here resolves a name: an address is numeric or a socket path.
 *   - Only redis_open and redis_wait_reply block. Both serve interrupts and stop at their deadline.
 *   - After any error, timeout or interrupted wait the connection has failed: it sends nothing more, and the caller must
 *     close it. A late reply would be taken for the answer to another request.
 *   - redis_send, redis_begin_raw, redis_flush and redis_close allocate with malloc only and raise nothing, so COMMIT and
 *     ABORT callbacks may call them.
 */
#ifndef FENCE_REDIS_CONNECTION_H
#define FENCE_REDIS_CONNECTION_H

#include <hiredis/hiredis.h>

#include "base/url.h"

typedef struct RedisConnection RedisConnection;

/*
 * Connects to address (numeric host or socket path) and authenticates with the credentials of url. Sends AUTH only if
 * there is a password; user may be empty. deadline is fence_clock() time in microseconds. On failure returns NULL and
 * writes a message for users to error. The message has no trailing period and never contains the password.
 * Interruptible: a cancel raises and leaks nothing. The connection lives until redis_close, across transactions, and
 * holds one external file descriptor (AcquireExternalFD).
 */
extern RedisConnection *redis_open(const RedisEndpoint *address, const RedisUrl *url, int64 deadline,
								   char *error, size_t error_size);

/* Closes and frees the connection; conn may be NULL. Outstanding replies are lost. */
extern void redis_close(RedisConnection *conn);

/*
 * Queues one command; redis_flush sends it. argvlen NULL: argv are NUL-terminated. Returns false if the connection has
 * failed.
 */
extern bool redis_send(RedisConnection *conn, int argc, const char **argv, const size_t *argvlen);

/*
 * Queue well-formed commands that the caller writes in place. redis_begin_raw returns where to write up to len bytes, or NULL
 * if the connection has failed. redis_end_raw then queues what was written up to `end`, which has nreplies replies.
 */
extern char *redis_begin_raw(RedisConnection *conn, size_t len);
extern void redis_end_raw(RedisConnection *conn, const char *end, int nreplies);

/*
 * Writes as much as the socket accepts without waiting. If something is left, or no reply is outstanding, also reads,
 * because the buffers of both sides must never fill up at the same time. Returns false if the connection has failed.
 */
extern bool redis_flush(RedisConnection *conn);

/* Returns the socket, so that the caller can wait until it is readable; may be -1. */
extern int	redis_socket(const RedisConnection *conn);

/* Returns the number of bytes that are queued and not yet written. */
extern size_t redis_unsent(const RedisConnection *conn);

/* Returns the number of commands sent or queued whose reply was not taken yet. */
extern int	redis_outstanding(const RedisConnection *conn);

/*
 * Returns the next reply if it has arrived (reads the socket without waiting), else NULL. The caller frees it with
 * freeReplyObject.
 */
extern redisReply *redis_poll_reply(RedisConnection *conn);

/*
 * Sends what is queued, and waits for the next reply until deadline (fence_clock() microseconds). Backends show
 * wait_event meanwhile. Returns NULL if the connection has failed (redis_error says why). Interruptible; after an
 * interrupt the connection has failed.
 */
extern redisReply *redis_wait_reply(RedisConnection *conn, int64 deadline, uint32 wait_event);

/* Returns why the connection has failed (static, or owned by conn), or NULL if it has not. */
extern const char *redis_error(const RedisConnection *conn);

#endif
