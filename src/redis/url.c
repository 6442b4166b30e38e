/*
 * redis/url.c
 *	  pgcache_fence.redis_url taken apart. See url.h.
 *
 * Owns: the syntax.
 *
 *	 redis[s]://[[user]:password@]host[:port][/0]
 *	 unix://[[user]:password@]/path
 *	 redis[s]+sentinel://[[user]:password@]host[:port][,host[:port]].../master[/0]
 *	 redis[s]+cluster://[[user]:password@]host[:port][,host[:port]]...[/0]
 *	 several of the first two, separated by commas or blanks: shards
 *
 * User, password and path may be percent-encoded. The text comes from a configuration file or from ALTER SYSTEM:
 * nothing here trusts its length or its bytes. Never: allocate, raise, resolve a name, repeat a part of the text.
 */
#include "postgres.h"

#include <ctype.h>
#include <strings.h>
#include <sys/un.h>

#include "redis/url.h"

#define REDIS_PORT 6379
#define SENTINEL_PORT 26379

/* A part of the text; not terminated. */
typedef struct Span
{
	const char *at;
	size_t		len;
} Span;

static bool
is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Copies a span into a field of the given size. False: it does not fit. */
static bool
copy_span(char *to, size_t size, Span from)
{
	if (from.len >= size)
		return false;
	memcpy(to, from.at, from.len);
	to[from.len] = '\0';
	return true;
}

/* Splits at the first c: what is before stays in *left, what is after is returned; at is NULL if there is no c. */
static Span
split(Span *left, char c)
{
	Span		right = {NULL, 0};
	const char *found = left->len > 0 ? memchr(left->at, c, left->len) : NULL;

	if (found != NULL)
	{
		right.at = found + 1;
		right.len = left->at + left->len - right.at;
		left->len = found - left->at;
	}
	return right;
}

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Decodes percent-encoded text into a field of the given size. */
static const char *
decode(char *to, size_t size, Span from)
{
	size_t		n = 0;

	for (size_t i = 0; i < from.len; i++)
	{
		int			c = (unsigned char) from.at[i];

		if (c == '%')
		{
			int			high = i + 2 < from.len ? hex_digit(from.at[i + 1]) : -1;
			int			low = i + 2 < from.len ? hex_digit(from.at[i + 2]) : -1;

			if (high < 0 || low < 0)
				return "a percent sign must be followed by two hexadecimal digits (a percent sign itself is %25)";
			c = high * 16 + low;
			if (c == 0)
				return "a zero byte (%00) is not allowed";
			i += 2;
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

/* user:password of an address. An address of a list may repeat what an earlier one said, nothing else. */
static const char *
parse_credentials(Span text, RedisUrl *url)
{
	char		user[REDIS_CREDENTIAL_LEN];
	char		password[REDIS_CREDENTIAL_LEN];
	Span		secret = split(&text, ':');
	const char *why;

	if (secret.at == NULL)
		return "a user needs a password (a password alone is written as redis://:password@host)";
	if ((why = decode(user, sizeof(user), text)) != NULL ||
		(why = decode(password, sizeof(password), secret)) != NULL)
		return why;
	if (password[0] == '\0')
		return "the password is empty";
	strlcpy(url->user, user, sizeof(url->user));
	strlcpy(url->password, password, sizeof(url->password));
	return NULL;
}

static const char *
parse_port(Span text, int *port)
{
	int			n = 0;

	if (text.len == 0 || text.len > 5)
		return "the port must be a number from 1 to 65535";
	for (size_t i = 0; i < text.len; i++)
	{
		if (!isdigit((unsigned char) text.at[i]))
			return "the port must be a number from 1 to 65535";
		n = n * 10 + (text.at[i] - '0');
	}
	if (n < 1 || n > 65535)
		return "the port must be a number from 1 to 65535";
	*port = n;
	return NULL;
}

static const char *
check_host(Span host, bool bracketed)
{
	if (host.len == 0)
		return "the host is missing";
	for (size_t i = 0; i < host.len; i++)
	{
		unsigned char c = (unsigned char) host.at[i];

		if (c < 0x80 && isalnum(c))
			continue;
		if (c == '.' || c == '-' || c == '_' || (bracketed && (c == ':' || c == '%')))
			continue;
		return "a host name holds an invalid character";
	}
	return NULL;
}

/* The next free endpoint, or NULL. */
static RedisEndpoint *
next_endpoint(RedisUrl *url)
{
	return url->nendpoints < REDIS_MAX_ENDPOINTS ? &url->endpoints[url->nendpoints] : NULL;
}

/* Takes the endpoint that next_endpoint gave, unless it is there already. */
static const char *
add_endpoint(RedisUrl *url)
{
	const RedisEndpoint *new = &url->endpoints[url->nendpoints];

	for (int i = 0; i < url->nendpoints; i++)
	{
		const RedisEndpoint *old = &url->endpoints[i];

		if (old->is_unix == new->is_unix && old->port == new->port && strcasecmp(old->host, new->host) == 0)
			return "the same address is given twice";
	}
	url->nendpoints++;
	return NULL;
}

/* host, host:port, [IPv6] or [IPv6]:port */
static const char *
parse_host(Span text, int default_port, RedisUrl *url)
{
	RedisEndpoint *endpoint = next_endpoint(url);
	bool		bracketed = text.len > 0 && text.at[0] == '[';
	Span		port = {NULL, 0};
	Span		host = text;
	const char *why;

	if (endpoint == NULL)
		return "there are too many addresses";
	if (bracketed)
	{
		host.at++;
		host.len--;
		port = split(&host, ']');
		if (port.at == NULL)
			return "the closing bracket of an IPv6 address is missing";
		if (port.len > 0 && port.at[0] != ':')
			return "only a port may follow an IPv6 address";
		if (port.len == 0)
			port.at = NULL;
		else
		{
			port.at++;
			port.len--;
		}
	}
	else
	{
		port = split(&host, ':');
		if (port.at != NULL && port.len > 0 && memchr(port.at, ':', port.len) != NULL)
			return "an IPv6 address must be in brackets, and an address has only one port";
	}

	endpoint->is_unix = false;
	endpoint->port = default_port;
	if ((why = check_host(host, bracketed)) != NULL)
		return why;
	if (port.at != NULL && (why = parse_port(port, &endpoint->port)) != NULL)
		return why;
	if (!copy_span(endpoint->host, sizeof(endpoint->host), host))
		return "a host name is too long";
	strlcpy(endpoint->name, endpoint->host, sizeof(endpoint->name));
	return add_endpoint(url);
}

/* What follows the addresses: nothing, or database 0. */
static const char *
check_database(Span text)
{
	if (text.len == 0 || (text.len == 1 && text.at[0] == '0'))
		return NULL;
	for (size_t i = 0; i < text.len; i++)
	{
		if (!isdigit((unsigned char) text.at[i]))
			return "nothing may follow the address but /0";
	}
	return "only database 0 can be used; use pgcache_fence.namespace to keep systems apart";
}

/* Sentinel's name of the master, perhaps followed by /0. */
static const char *
parse_master(Span text, RedisUrl *url)
{
	Span		database = split(&text, '/');

	if (text.len == 0)
		return "the name of the master is missing (redis+sentinel://host/name)";
	for (size_t i = 0; i < text.len; i++)
	{
		unsigned char c = (unsigned char) text.at[i];

		if (c >= 0x80 || (!isalnum(c) && c != '.' && c != '-' && c != '_'))
			return "the name of the master holds an invalid character";
	}
	if (!copy_span(url->master, sizeof(url->master), text))
		return "the name of the master is too long";
	return check_database(database);
}

/* unix://[credentials@]/path, without the scheme */
static const char *
parse_unix(Span text, RedisUrl *url)
{
	RedisEndpoint *endpoint = next_endpoint(url);
	Span		path = text;
	const char *why;

	if (endpoint == NULL)
		return "there are too many addresses";
	if (path.len == 0 || path.at[0] != '/')
	{
		path = split(&text, '@');
		if (path.at == NULL || path.len == 0 || path.at[0] != '/')
			return "the path of a socket must begin with a slash (unix:///path or unix://:password@/path)";
		if ((why = parse_credentials(text, url)) != NULL)
			return why;
	}
	if ((why = decode(endpoint->host, sizeof(endpoint->host), path)) != NULL)
		return why;
	/* One less than the kernel takes: hiredis 0.14 leaves the last byte of sun_path as it was. */
	if (strlen(endpoint->host) + 2 > sizeof(((struct sockaddr_un *) NULL)->sun_path))
		return "the path of a socket is too long";
	endpoint->is_unix = true;
	endpoint->port = 0;
	return add_endpoint(url);
}

/* [credentials@]host[:port][,host[:port]...][/rest], without the scheme; several hosts only for Sentinel and Cluster */
static const char *
parse_hosts(Span text, RedisUrl *url)
{
	Span		rest = split(&text, '/');
	Span		hosts = text;
	const char *why;

	if (rest.at != NULL && rest.len > 0 && memchr(rest.at, '@', rest.len) != NULL)
		return "special characters in a user or password must be percent-encoded";
	for (size_t i = text.len; i-- > 0;)
	{
		if (text.at[i] != '@')
			continue;
		hosts.at = text.at + i + 1;
		hosts.len = text.len - i - 1;
		text.len = i;
		if ((why = parse_credentials(text, url)) != NULL)
			return why;
		break;
	}

	do
	{
		Span		host = hosts;

		hosts = split(&host, ',');
		why = parse_host(host, url->topology == REDIS_SENTINEL ? SENTINEL_PORT : REDIS_PORT, url);
		if (why != NULL)
			return why;
	} while (hosts.at != NULL);

	return url->topology == REDIS_SENTINEL ? parse_master(rest, url) : check_database(rest);
}

static bool
has_prefix(Span *text, const char *prefix)
{
	size_t		len = strlen(prefix);

	if (text->len < len || strncasecmp(text->at, prefix, len) != 0)
		return false;
	text->at += len;
	text->len -= len;
	return true;
}

/* One URL, with its scheme. */
static const char *
parse_one(Span text, RedisUrl *url)
{
	if (has_prefix(&text, "unix://"))
		return parse_unix(text, url);
	if (has_prefix(&text, "rediss"))
		url->tls = true;
	else if (!has_prefix(&text, "redis"))
		return "an address must begin with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://";
	if (has_prefix(&text, "+sentinel"))
		url->topology = REDIS_SENTINEL;
	else if (has_prefix(&text, "+cluster"))
		url->topology = REDIS_CLUSTER;
	if (!has_prefix(&text, "://"))
		return "an address must begin with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://";
	return parse_hosts(text, url);
}

/*
 * The next URL of a list: up to a blank, or to a comma that is not inside the list of hosts of Sentinel or Cluster.
 * Returns what follows it; NULL if that is only a separator too many.
 */
static const char *
next_url(const char *at, Span *text)
{
	Span		scheme = {at, strcspn(at, ":")};
	bool		own_commas = scheme.len < strlen(at) && memchr(at, '+', scheme.len) != NULL;

	text->at = at;
	text->len = strcspn(at, own_commas ? " \t\n\r" : ", \t\n\r");
	at += text->len;
	while (is_blank(*at))
		at++;
	if (*at != ',')
		return at;
	do
		at++;
	while (is_blank(*at));
	return *at != '\0' ? at : NULL;
}

/* Parses a further URL of a list of shards: it may differ from the first in its address only. */
static const char *
parse_shard(Span text, RedisUrl *url)
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

const char *
redis_url_parse(const char *text, RedisUrl *url)
{
	const char *why;
	bool		first = true;

	memset(url, 0, sizeof(*url));
	while (is_blank(*text))
		text++;
	if (*text == '\0')
		return "the address is empty";
	while (*text != '\0')
	{
		Span		one;

		text = next_url(text, &one);
		if (text == NULL || one.len == 0)
			return "there is a comma without an address after it";
		if ((why = first ? parse_one(one, url) : parse_shard(one, url)) != NULL)
			return why;
		first = false;
	}
	return NULL;
}
