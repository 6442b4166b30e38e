/*
 * base/url.c
 *	  Parses pgcache_fence.redis_url. See url.h.
 *
 * Owns: the syntax.
 *
 * 	 redis[s]://[[user]:password@]host[:port][/0]
 * 	 unix://[[user]:password@]/path
 * 	 redis[s]+sentinel://[[user]:password@]host[:port][,host[:port]].../master[/0]
 * 	 redis[s]+cluster://[[user]:password@]host[:port][,host[:port]]...[/0]
 * 	 several of the first two, separated by commas or blanks: shards
 *
 * User, password and path may be percent-encoded. The text comes from a configuration file or from ALTER SYSTEM, so the
 * parser trusts neither its length nor its bytes. It works on a copy that it gets from malloc and frees before it
 * returns. It never calls palloc, raises an error, resolves a name, or repeats a part of the text in a message.
 */
#include "postgres.h"

#include <ctype.h>
#include <strings.h>
#include <sys/un.h>

#include "base/url.h"

#define REDIS_PORT 6379
#define SENTINEL_PORT 26379

#define BLANKS " \t\n\r"
#define DIGITS "0123456789"
#define NAME_CHARACTERS DIGITS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.-_"

static bool
has_only(const char *text, const char *characters)
{
	return text[strspn(text, characters)] == '\0';
}

/* Ends the text at the first c. Returns what follows that c, or NULL if there is no c. */
static char *
cut(char *text, char c)
{
	char	   *found = strchr(text, c);

	if (found != NULL)
		*found++ = '\0';
	return found;
}

/* Decodes percent-encoded text into a field of the given size. */
static const char *
decode(char *to, size_t size, const char *from)
{
	size_t		n = 0;

	for (; *from != '\0'; from++)
	{
		int			c = (unsigned char) *from;

		if (c == '%')
		{
			if (!isxdigit((unsigned char) from[1]) || !isxdigit((unsigned char) from[2]))
				return "a percent sign must be followed by two hexadecimal digits (a percent sign itself is %25)";
			c = (int) strtol((char[]) {from[1], from[2], '\0'}, NULL, 16);
			if (c == 0)
				return "a zero byte (%00) is not allowed";
			from += 2;
		}
		else if (c < 0x20 || c == 0x7f)
			return "control characters must be percent-encoded";
		if (n + 1 >= size)
			return "a user, password or socket path is too long";
		to[n++] = (char) c;
	}
	to[n] = '\0';
	return NULL;
}

/* Parses "user:password". */
static const char *
parse_credentials(char *text, RedisUrl *url)
{
	char	   *password = cut(text, ':');
	const char *why;

	if (password == NULL)
		return "a user needs a password (a password alone is written as redis://:password@host)";
	if ((why = decode(url->user, sizeof(url->user), text)) != NULL ||
		(why = decode(url->password, sizeof(url->password), password)) != NULL)
		return why;
	return url->password[0] == '\0' ? "the password is empty" : NULL;
}

static const char *
parse_port(const char *text, int *port)
{
	*port = strlen(text) <= 5 && has_only(text, DIGITS) ? atoi(text) : 0;
	return *port < 1 || *port > 65535 ? "the port must be a number from 1 to 65535" : NULL;
}

static const char *
add_endpoint(RedisUrl *url, const RedisEndpoint *new)
{
	if (url->nendpoints == REDIS_MAX_ENDPOINTS)
		return "there are too many addresses";
	for (int i = 0; i < url->nendpoints; i++)
	{
		const RedisEndpoint *old = &url->endpoints[i];

		if (old->is_unix == new->is_unix && old->port == new->port && strcasecmp(old->host, new->host) == 0)
			return "the same address is given twice";
	}
	url->endpoints[url->nendpoints++] = *new;
	return NULL;
}

/* Parses host, host:port, [IPv6] or [IPv6]:port. */
static const char *
parse_host(char *text, int default_port, RedisUrl *url)
{
	RedisEndpoint endpoint;
	bool		bracketed = *text == '[';
	char	   *host = bracketed ? text + 1 : text;
	char	   *port = cut(host, bracketed ? ']' : ':');
	const char *why;

	if (bracketed)
	{
		if (port == NULL)
			return "the closing bracket of an IPv6 address is missing";
		if (*port != '\0' && *port != ':')
			return "only a port may follow an IPv6 address";
		port = *port == ':' ? port + 1 : NULL;
	}
	else if (port != NULL && strchr(port, ':') != NULL)
		return "an IPv6 address must be in brackets, and an address has only one port";

	memset(&endpoint, 0, sizeof(endpoint));
	endpoint.port = default_port;
	if (*host == '\0')
		return "the host is missing";
	if (!has_only(host, bracketed ? NAME_CHARACTERS ":%" : NAME_CHARACTERS))
		return "a host name holds an invalid character";
	if (port != NULL && (why = parse_port(port, &endpoint.port)) != NULL)
		return why;
	if (strlcpy(endpoint.host, host, sizeof(endpoint.host)) >= sizeof(endpoint.host))
		return "a host name is too long";
	strlcpy(endpoint.name, host, sizeof(endpoint.name));
	return add_endpoint(url, &endpoint);
}

/* Checks what follows the addresses: nothing, or database 0. text may be NULL. */
static const char *
check_database(const char *text)
{
	if (text == NULL || *text == '\0' || strcmp(text, "0") == 0)
		return NULL;
	return has_only(text, DIGITS) ? "only database 0 can be used; use pgcache_fence.namespace to keep systems apart" :
		"nothing may follow the address but /0";
}

/* Parses Sentinel's name of the master, which "/0" may follow. */
static const char *
parse_master(char *text, RedisUrl *url)
{
	char	   *database = text != NULL ? cut(text, '/') : NULL;

	if (text == NULL || *text == '\0')
		return "the name of the master is missing (redis+sentinel://host/name)";
	if (!has_only(text, NAME_CHARACTERS))
		return "the name of the master holds an invalid character";
	if (strlcpy(url->master, text, sizeof(url->master)) >= sizeof(url->master))
		return "the name of the master is too long";
	return check_database(database);
}

/* Parses [credentials@]/path, which follows unix://. */
static const char *
parse_unix(char *text, RedisUrl *url)
{
	RedisEndpoint endpoint;
	char	   *path = *text == '/' ? text : cut(text, '@');
	const char *why;

	if (path == NULL || *path != '/')
		return "the path of a socket must begin with a slash (unix:///path or unix://:password@/path)";
	if (path != text && (why = parse_credentials(text, url)) != NULL)
		return why;
	memset(&endpoint, 0, sizeof(endpoint));
	endpoint.is_unix = true;
	if ((why = decode(endpoint.host, sizeof(endpoint.host), path)) != NULL)
		return why;
	/* One byte less than the kernel accepts, because hiredis 0.14 does not write the last byte of sun_path. */
	if (strlen(endpoint.host) + 2 > sizeof(((struct sockaddr_un *) NULL)->sun_path))
		return "the path of a socket is too long";
	return add_endpoint(url, &endpoint);
}

/*
 * Parses [credentials@]host[:port][,host[:port]...][/rest], which follows the scheme. Only Sentinel and Cluster use
 * several hosts.
 */
static const char *
parse_hosts(char *text, RedisUrl *url)
{
	char	   *rest = cut(text, '/');
	char	   *at = strrchr(text, '@');
	char	   *hosts = at != NULL ? at + 1 : text;
	const char *why;

	if (rest != NULL && strchr(rest, '@') != NULL)
		return "special characters in a user or password must be percent-encoded";
	if (at != NULL)
	{
		*at = '\0';
		if ((why = parse_credentials(text, url)) != NULL)
			return why;
	}
	do
	{
		char	   *host = hosts;

		hosts = cut(host, ',');
		why = parse_host(host, url->topology == REDIS_SENTINEL ? SENTINEL_PORT : REDIS_PORT, url);
		if (why != NULL)
			return why;
	} while (hosts != NULL);

	return url->topology == REDIS_SENTINEL ? parse_master(rest, url) : check_database(rest);
}

static bool
has_prefix(char **text, const char *prefix)
{
	size_t		len = strlen(prefix);

	if (strncasecmp(*text, prefix, len) != 0)
		return false;
	*text += len;
	return true;
}

/* Parses one URL with its scheme. */
static const char *
parse_one(char *text, RedisUrl *url)
{
	if (has_prefix(&text, "unix://"))
		return parse_unix(text, url);
	url->tls = has_prefix(&text, "rediss");
	if (url->tls || has_prefix(&text, "redis"))
	{
		if (has_prefix(&text, "+sentinel"))
			url->topology = REDIS_SENTINEL;
		else if (has_prefix(&text, "+cluster"))
			url->topology = REDIS_CLUSTER;
		if (has_prefix(&text, "://"))
			return parse_hosts(text, url);
	}
	return "an address must begin with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://";
}

/*
 * Ends the first URL of a list at a blank, or at a comma that does not separate hosts of Sentinel or Cluster. Returns
 * what follows it, or NULL if only a superfluous comma follows.
 */
static char *
end_url(char *text)
{
	const char *colon = strchr(text, ':');
	bool		own_commas = colon != NULL && memchr(text, '+', colon - text) != NULL;
	char	   *end = text + strcspn(text, own_commas ? BLANKS : "," BLANKS);
	char	   *next = end + strspn(end, BLANKS);
	bool		comma = *next == ',';

	if (comma)
		next += 1 + strspn(next + 1, BLANKS);
	*end = '\0';
	return comma && *next == '\0' ? NULL : next;
}

/* Parses a further URL of a list of shards. It may differ from the first one only in its address. */
static const char *
parse_shard(char *text, RedisUrl *url)
{
	RedisUrl	first;
	const char *why;

	if (url->topology == REDIS_SENTINEL || url->topology == REDIS_CLUSTER)
		return "redis+sentinel:// and redis+cluster:// stand alone; their hosts are separated by commas without blanks";
	first = *url;
	url->tls = false;
	url->user[0] = url->password[0] = '\0';
	if ((why = parse_one(text, url)) != NULL)
		return why;
	if (url->topology == REDIS_SENTINEL || url->topology == REDIS_CLUSTER)
		return "redis+sentinel:// and redis+cluster:// cannot be one of several addresses";
	if (url->tls != first.tls)
		return "either all addresses use TLS or none";
	if (strcmp(url->user, first.user) != 0 || strcmp(url->password, first.password) != 0)
		return "all addresses must have the same user and password";
	url->topology = REDIS_SHARDS;
	return NULL;
}

bool
redis_endpoint_same(const RedisEndpoint *a, const RedisEndpoint *b)
{
	return a->is_unix == b->is_unix && a->port == b->port && strcmp(a->host, b->host) == 0;
}

static const char *
parse_all(char *text, RedisUrl *url)
{
	const char *why = NULL;

	text += strspn(text, BLANKS);
	if (*text == '\0')
		return "the address is empty";
	for (bool first = true; why == NULL && *text != '\0'; first = false)
	{
		char	   *one = text;

		text = end_url(one);
		if (text == NULL || *one == '\0')
			return "there is a comma without an address after it";
		why = first ? parse_one(one, url) : parse_shard(one, url);
	}
	return why;
}

const char *
redis_url_parse(const char *text, RedisUrl *url)
{
	char	   *copy = strdup(text);
	const char *why;

	memset(url, 0, sizeof(*url));
	why = copy != NULL ? parse_all(copy, url) : "out of memory";
	free(copy);
	return why;
}
