/*
 * base/url.h
 *	  pgcache_fence.redis_url taken apart.
 *
 * Owns: the syntax. Knows no socket and no shared memory; never resolves a name.
 */
#ifndef FENCE_REDIS_URL_H
#define FENCE_REDIS_URL_H

#define REDIS_HOST_LEN 256		/* host name, numeric address or socket path, with its NUL */
#define REDIS_CREDENTIAL_LEN 256
#define REDIS_MAX_ENDPOINTS 32

/* NULL if this build has TLS, else why not, for people. */
#ifdef FENCE_TLS
#define TLS_MISSING NULL
#else
#define TLS_MISSING "TLS (rediss://) needs hiredis 1.0 or later with its OpenSSL part: this pgcache_fence was built without"
#endif

typedef enum RedisTopology
{
	REDIS_STANDALONE,			/* redis://, rediss://, unix:// : one process */
	REDIS_SENTINEL,				/* redis+sentinel://a,b,c/master */
	REDIS_CLUSTER,				/* redis+cluster://a,b,c */
	REDIS_SHARDS				/* several plain URLs */
} RedisTopology;

typedef struct RedisEndpoint
{
	bool		is_unix;		/* host is a socket path, port is unused */
	char		host[REDIS_HOST_LEN];
	int			port;
	char		name[REDIS_HOST_LEN];	/* of the host before it was resolved: what a certificate must be for */
} RedisEndpoint;

/* Whether both are one address, whatever name led to it. */
extern bool redis_endpoint_same(const RedisEndpoint *a, const RedisEndpoint *b);

typedef struct RedisUrl
{
	RedisTopology topology;
	bool		tls;
	char		user[REDIS_CREDENTIAL_LEN]; /* empty: none */
	char		password[REDIS_CREDENTIAL_LEN];	/* empty: none */
	char		master[REDIS_CREDENTIAL_LEN];	/* Sentinel's name of the master */
	int			nendpoints;
	RedisEndpoint endpoints[REDIS_MAX_ENDPOINTS];
} RedisUrl;

/*
 * Parses text. Percent-encoded user and password are decoded. Returns NULL if it is well-formed, else what is wrong
 * in a static string that never repeats the text (it may hold a password). Raises nothing: a GUC check hook calls it.
 */
extern const char *redis_url_parse(const char *text, RedisUrl *url);

#endif
