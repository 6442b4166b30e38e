/*
 * base/url.h
 *	  Parses pgcache_fence.redis_url.
 *
 * Owns: the syntax. Opens no socket, resolves no name, uses no shared memory, takes no locks.
 */
#ifndef FENCE_REDIS_URL_H
#define FENCE_REDIS_URL_H

#define REDIS_HOST_LEN 256		/* of a host name, numeric address or socket path, with its NUL */
#define REDIS_CREDENTIAL_LEN 256
#define REDIS_MAX_ENDPOINTS 32

/* NULL if this build supports TLS, else the reason why not. */
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
	bool		is_unix;		/* host is a socket path; port is unused */
	char		host[REDIS_HOST_LEN];
	int			port;
	char		name[REDIS_HOST_LEN];	/* host before name resolution; the certificate must be for this name */
	uint64		settings;		/* settings_of_connections() with which it was found; 0: this process has found it just now */
} RedisEndpoint;

/* Returns whether both are the same address, even if they were found by different names. */
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
 * Parses text, and decodes user and password. Returns NULL if text is well-formed, else a static string that says what
 * is wrong. That string never repeats the text, which may contain a password. Raises nothing, because a GUC check hook
 * calls it.
 */
extern const char *redis_url_parse(const char *text, RedisUrl *url);

#endif
