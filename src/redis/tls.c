/*
 * redis/tls.c
 *	  TLS for one connection to Redis. See tls.h for the rules.
 *
 * Compiled with FENCE_TLS if the Makefile found OpenSSL, and hiredis with TLS support. Without FENCE_TLS, tls_handshake
 * only fails with the reason.
 *
 * We read the certificate files for every connection. Connections are few and live long, and so the next connection
 * uses a renewed certificate.
 */
#include "postgres.h"

#include <hiredis/hiredis.h>

#include "base/settings.h"
#include "redis/tls.h"

#ifdef FENCE_TLS

#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

void
tls_forget_errors(const struct ssl_st *ssl)
{
	if (ssl != NULL)
		ERR_clear_error();
}

/*
 * Returns the text of the first error in OpenSSL's queue, or `otherwise` if there is none. Later errors in the queue
 * only say which functions passed it on.
 */
static const char *
first_error(const char *otherwise)
{
	unsigned long code = ERR_peek_error();
	const char *reason;

	if (code == 0)
		return otherwise;
	/* OpenSSL 3 has no texts for system errors */
	if (ERR_GET_LIB(code) == ERR_LIB_SYS)
		return strerror(ERR_GET_REASON(code));
	reason = ERR_reason_error_string(code);
	return reason != NULL ? reason : otherwise;
}

const char *
tls_reason(const struct ssl_st *ssl, const char *otherwise)
{
	return ssl != NULL ? first_error(otherwise) : otherwise;
}

bool
tls_wants_write(const struct ssl_st *ssl)
{
	return ssl != NULL && SSL_want_write(ssl);
}

/* Refuses to ask for a passphrase; OpenSSL would ask at the terminal. */
static int
no_password(char *buf, int size, int rwflag, void *data)
{
	(void) buf;
	(void) size;
	(void) rwflag;
	(void) data;
	return 0;
}

static bool
file_failed(const char *setting, char *why, size_t size)
{
	snprintf(why, size, "%s could not be used: %s", setting, first_error("unknown error"));
	return false;
}

/* Loads the authorities that we trust to certify Redis, and our own certificate. */
static bool
load_files(SSL_CTX *context, char *why, size_t size)
{
	if (setting_tls_ca_file[0] == '\0')
	{
		if (SSL_CTX_set_default_verify_paths(context) != 1)
			return file_failed("the system's list of certificate authorities", why, size);
	}
	else if (SSL_CTX_load_verify_locations(context, setting_tls_ca_file, NULL) != 1)
		return file_failed("pgcache_fence.tls_ca_file", why, size);

	if (setting_tls_cert_file[0] == '\0' && setting_tls_key_file[0] == '\0')
		return true;
	if (setting_tls_cert_file[0] == '\0' || setting_tls_key_file[0] == '\0')
	{
		strlcpy(why, "pgcache_fence.tls_cert_file and pgcache_fence.tls_key_file must be set together", size);
		return false;
	}
	if (SSL_CTX_use_certificate_chain_file(context, setting_tls_cert_file) != 1)
		return file_failed("pgcache_fence.tls_cert_file", why, size);
	if (SSL_CTX_use_PrivateKey_file(context, setting_tls_key_file, SSL_FILETYPE_PEM) != 1)
		return file_failed("pgcache_fence.tls_key_file", why, size);
	return true;
}

static SSL_CTX *
make_context(char *why, size_t size)
{
	SSL_CTX    *context = SSL_CTX_new(TLS_client_method());

	if (context == NULL)
	{
		strlcpy(why, "out of memory", size);
		return NULL;
	}
	SSL_CTX_set_default_passwd_cb(context, no_password);
	SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
	/* without renegotiation, writing never has to wait for input */
	SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
	SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
	if (load_files(context, why, size))
		return context;
	SSL_CTX_free(context);
	return NULL;
}

/* Sets the name that the certificate must have: the host of the URL, or its address if the URL contains an address. */
static bool
set_name(SSL *ssl, const RedisEndpoint *address)
{
	X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
	char		name[REDIS_HOST_LEN];

	strlcpy(name, address->name[0] != '\0' ? address->name : address->host, sizeof(name));
	name[strcspn(name, "%")] = '\0';	/* cut off the zone of an IPv6 address */
	if (X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1)
		return true;
	X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

static SSL *
begin(redisContext *context, const RedisEndpoint *address, char *why, size_t size)
{
	SSL_CTX    *shared;
	SSL		   *ssl;

	ERR_clear_error();
	if ((shared = make_context(why, size)) == NULL)
		return NULL;
	ssl = SSL_new(shared);
	SSL_CTX_free(shared);		/* ssl keeps a reference to it */
	if (ssl == NULL || !set_name(ssl, address))
	{
		SSL_free(ssl);
		strlcpy(why, "out of memory", size);
		return NULL;
	}
	ERR_clear_error();
	/* sends the first message of the handshake; tls_handshake continues */
	if (redisInitiateSSL(context, ssl) != REDIS_OK)
	{
		strlcpy(why, context->errstr, size);
		SSL_free(ssl);
		return NULL;
	}
	return ssl;
}

TlsStep
tls_handshake(redisContext *context, struct ssl_st **connection, const RedisEndpoint *address, char *why, size_t size)
{
	SSL		   *ssl = *connection;
	int			result;
	int			saved_errno;

	if (ssl == NULL && (ssl = *connection = begin(context, address, why, size)) == NULL)
		return TLS_FAILED;
	ERR_clear_error();
	errno = 0;
	result = SSL_do_handshake(ssl);
	saved_errno = errno;
	if (result == 1)
		return TLS_DONE;
	switch (SSL_get_error(ssl, result))
	{
		case SSL_ERROR_WANT_READ:
			return TLS_WANTS_READ;
		case SSL_ERROR_WANT_WRITE:
			return TLS_WANTS_WRITE;
	}
	if (SSL_get_verify_result(ssl) != X509_V_OK)
		snprintf(why, size, "the certificate of the server is not accepted: %s",
				 X509_verify_cert_error_string(SSL_get_verify_result(ssl)));
	else
		snprintf(why, size, "TLS handshake failed: %s",
				 first_error(saved_errno != 0 ? strerror(saved_errno) : "the server closed the connection"));
	return TLS_FAILED;
}

ssize_t
tls_read(redisContext *context, char *buf, size_t len)
{
	ERR_clear_error();
	return context->funcs->read(context, buf, len);
}

#else							/* !FENCE_TLS */

TlsStep
tls_handshake(redisContext *context, struct ssl_st **ssl, const RedisEndpoint *address, char *why, size_t size)
{
	(void) context;
	(void) ssl;
	(void) address;
	strlcpy(why, TLS_MISSING, size);
	return TLS_FAILED;
}

ssize_t
tls_read(redisContext *context, char *buf, size_t len)
{
	(void) context;
	(void) buf;
	(void) len;
	return -1;
}

bool
tls_wants_write(const struct ssl_st *ssl)
{
	(void) ssl;
	return false;
}

void
tls_forget_errors(const struct ssl_st *ssl)
{
	(void) ssl;
}

const char *
tls_reason(const struct ssl_st *ssl, const char *otherwise)
{
	(void) ssl;
	return otherwise;
}

#endif
