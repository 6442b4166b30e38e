/*
 * redis/tls.h
 *	  TLS for one connection to Redis: who the server is, and who we are.
 *
 * Owns: the OpenSSL side of a connection that is being made. It waits for nothing: tls_handshake says what it needs, and
 * connection.c waits. hiredis checks no name: here the name (or address) of the URL is checked, always.
 *
 * Never: palloc, raise, put the password of a key into a message.
 */
#ifndef FENCE_REDIS_TLS_H
#define FENCE_REDIS_TLS_H

#include <hiredis/hiredis.h>

#include "base/url.h"

struct ssl_st;

typedef enum TlsStep
{
	TLS_DONE,
	TLS_WANTS_READ,				/* again when the socket can be read, */
	TLS_WANTS_WRITE,			/* or written */
	TLS_FAILED
} TlsStep;

/*
 * Begins the handshake on a connected context, if *ssl is NULL: from here on the context reads and writes through TLS, and *ssl belongs to
 * it. Else goes on with it. After TLS_FAILED `why` tells.
 */
extern TlsStep tls_handshake(redisContext *context, struct ssl_st **ssl, const RedisEndpoint *address, char *why, size_t size);

/* Whether reading is held up until something can be written. NULL (no TLS): no. */
extern bool tls_wants_write(const struct ssl_st *ssl);

/* Before each read or write: OpenSSL takes an old error in its queue for a new one. */
extern void tls_forget_errors(const struct ssl_st *ssl);

/* Why reading or writing failed, as OpenSSL knows it; else `otherwise`. */
extern const char *tls_reason(const struct ssl_st *ssl, const char *otherwise);

#endif
