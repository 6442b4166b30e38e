/*
 * redis/tls.h
 *	  TLS for one connection to Redis: the handshake and the check of the server's certificate.
 *
 * Owns: the OpenSSL side of a connection. Takes no locks. Never waits: tls_handshake returns what it waits for, and
 * connection.c waits. hiredis does not check names, so this file always checks that the certificate is for the host (or
 * address) in the URL.
 *
 * Never: palloc, raise, put the passphrase of a key into a message.
 */
#ifndef FENCE_REDIS_TLS_H
#define FENCE_REDIS_TLS_H

#include <hiredis/hiredis.h>

#include "base/url.h"

struct ssl_st;

typedef enum TlsStep
{
	TLS_DONE,
	TLS_WANTS_READ,				/* call again when the socket is readable */
	TLS_WANTS_WRITE,			/* call again when the socket is writable */
	TLS_FAILED
} TlsStep;

/*
 * Executes the next step of the handshake. If *ssl is NULL, begins it on a connected context. From then on the context
 * reads and writes through TLS, and owns *ssl. On TLS_FAILED `why` says why.
 */
extern TlsStep tls_handshake(redisContext *context, struct ssl_st **ssl, const RedisEndpoint *address, char *why, size_t size);

/* Returns whether OpenSSL must write before it can read. ssl NULL (no TLS): false. */
extern bool tls_wants_write(const struct ssl_st *ssl);

/*
 * Reads from a connection with TLS, bypassing hiredis' reader. Returns the number of bytes; 0 if there are none now; -1 if
 * the connection has ended (context->errstr says why).
 */
extern ssize_t tls_read(redisContext *context, char *buf, size_t len);

/* Clears OpenSSL's queue of errors before a write. OpenSSL would take an old error for a new one. */
extern void tls_forget_errors(const struct ssl_st *ssl);

/* Returns why reading or writing failed, if OpenSSL knows it, else `otherwise`. */
extern const char *tls_reason(const struct ssl_st *ssl, const char *otherwise);

#endif
