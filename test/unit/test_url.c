/*
 * test_url.c
 *	  src/base/url.c by itself: what must parse, what must not, and random texts under the sanitizers.
 *
 * Build and run: sh test/unit/run.sh. Prints "N passed, N failed"; exit status 0 only if nothing failed.
 */
#include "postgres.h"

#include "base/url.h"

#include "check.h"
#undef snprintf
#undef fprintf

/* Checks that text parses, and yields this first endpoint, user, password and number of endpoints. */
static void
good(const char *text, RedisTopology topology, int nendpoints, const char *host, int port, const char *user,
	 const char *password)
{
	RedisUrl	url;
	const char *why = redis_url_parse(text, &url);

	check_detail(why == NULL, why ? why : "", text);
	if (why != NULL)
		return;
	check_detail(url.topology == topology, "topology", text);
	check_detail(url.nendpoints == nendpoints, "number of endpoints", text);
	check_detail(strcmp(url.endpoints[0].host, host) == 0, "host", text);
	check_detail(url.endpoints[0].port == port, "port", text);
	check_detail(url.endpoints[0].is_unix == (host[0] == '/'), "kind of address", text);
	check_detail(strcmp(url.user, user) == 0, "user", text);
	check_detail(strcmp(url.password, password) == 0, "password", text);
}

/* Checks that text does not parse, and that the reason contains this. */
static void
bad(const char *text, const char *reason)
{
	RedisUrl	url;
	const char *why = redis_url_parse(text, &url);

	check_detail(why != NULL && strstr(why, reason) != NULL, why ? why : "was accepted", text);
}

static void
test_good(void)
{
	RedisUrl	url;

	good("redis://127.0.0.1:6379", REDIS_STANDALONE, 1, "127.0.0.1", 6379, "", "");
	good("  redis://h/ \n", REDIS_STANDALONE, 1, "h", 6379, "", "");
	good("REDIS://h:1/0", REDIS_STANDALONE, 1, "h", 1, "", "");
	good("redis://:pw@h", REDIS_STANDALONE, 1, "h", 6379, "", "pw");
	good("redis://user:p%40%3a%2F@h:65535", REDIS_STANDALONE, 1, "h", 65535, "user", "p@:/");
	good("redis://:a@b@h", REDIS_STANDALONE, 1, "h", 6379, "", "a@b");
	good("redis://:a:b@h", REDIS_STANDALONE, 1, "h", 6379, "", "a:b");
	good("redis://[::1]", REDIS_STANDALONE, 1, "::1", 6379, "", "");
	good("redis://:p@[fe80::1%eth0]:7/0", REDIS_STANDALONE, 1, "fe80::1%eth0", 7, "", "p");
	good("unix:///run/redis.sock", REDIS_STANDALONE, 1, "/run/redis.sock", 0, "", "");
	good("unix://u:p@/run/a%2Cb@c", REDIS_STANDALONE, 1, "/run/a,b@c", 0, "u", "p");
	good("redis+sentinel://a:1,b,[::2]:3/my-master", REDIS_SENTINEL, 3, "a", 1, "", "");
	good("redis+sentinel://:p@a,b/m/0", REDIS_SENTINEL, 2, "a", 26379, "", "p");
	good("redis+cluster://u:p@a:1,b:2,c", REDIS_CLUSTER, 3, "a", 1, "u", "p");
	good("redis+cluster://a/0", REDIS_CLUSTER, 1, "a", 6379, "", "");
	good("redis://a redis://b", REDIS_SHARDS, 2, "a", 6379, "", "");
	good("redis://:p@a:1 , redis://:p@b:2,\tunix://:p@/c", REDIS_SHARDS, 3, "a", 1, "", "p");

	check_detail(redis_url_parse("rediss://h", &url) == NULL && url.tls, "tls", "rediss://h");
	check_detail(redis_url_parse("rediss+cluster://h", &url) == NULL && url.tls, "tls", "rediss+cluster://h");
	check_detail(redis_url_parse("redis://h", &url) == NULL && !url.tls, "no tls", "redis://h");
	check_detail(redis_url_parse("redis+sentinel://a/m", &url) == NULL && strcmp(url.master, "m") == 0, "master", "m");
}

static void
test_bad(void)
{
	bad("", "empty");
	bad(" \t", "empty");
	bad("http://h", "must begin with");
	bad("127.0.0.1:6379", "must begin with");
	bad("redis:/h", "must begin with");
	bad("redis+x://h", "must begin with");
	bad("redis://", "host is missing");
	bad("redis://:6379", "host is missing");
	bad("redis://h:", "port");
	bad("redis://h:0", "port");
	bad("redis://h:65536", "port");
	bad("redis://h:99999999999999999999", "port");
	bad("redis://h:+1", "port");
	bad("redis://h:6379?x=1", "port");
	bad("redis://h/1", "only database 0");
	bad("redis://h/00", "only database 0");
	bad("redis://h/x", "nothing may follow");
	bad("redis://user@h", "needs a password");
	bad("redis://@h", "needs a password");
	bad("redis://:@h", "password is empty");
	bad("redis://:pa/ss@h", "percent-encoded");
	bad("redis://:%4@h", "percent sign");
	bad("redis://:%zz@h", "percent sign");
	bad("redis://:%@h", "percent sign");
	bad("redis://:a%00b@h", "zero byte");
	bad("redis://:a\001b@h", "control characters");
	bad("redis://::1", "brackets");
	bad("redis://h:1:2", "brackets");
	bad("redis://[::1", "closing bracket");
	bad("redis://[::1]x", "only a port");
	bad("redis://[::1]:", "port");
	bad("redis://[]", "host is missing");
	bad("redis://h\303\244", "invalid character");
	bad("redis://h#", "invalid character");
	bad("unix://run/redis.sock", "slash");
	bad("unix://", "slash");
	bad("unix://u@/x", "needs a password");
	bad("redis+sentinel://a,b", "name of the master");
	bad("redis+sentinel://a/", "name of the master");
	bad("redis+sentinel://a/m m", "stand alone");
	bad("redis+sentinel://a/m:1", "invalid character");
	bad("redis+sentinel://a/m/3", "only database 0");
	bad("redis+cluster://a,,b", "host is missing");
	bad("redis+cluster://a,", "host is missing");
	bad("redis+cluster://a,a", "twice");
	bad("redis+cluster://a redis://b", "stand alone");
	bad("redis://b redis+cluster://a", "one of several");
	bad("redis://a,b", "must begin with");
	bad("redis://a,", "comma");
	bad(",redis://a", "comma");
	bad("redis://a,,redis://b", "comma");
	bad("redis://a redis://A:6379", "twice");
	bad("redis://a rediss://b", "TLS");
	bad("redis://:p@a redis://:q@b", "same user and password");
	bad("redis://:p@a redis://b", "same user and password");
}

/* The text before, n times c, after */
static char *
long_text(const char *before, char c, size_t n, const char *after)
{
	size_t		head = strlen(before);
	char	   *text = malloc(head + n + strlen(after) + 1);

	memcpy(text, before, head);
	memset(text + head, c, n);
	strcpy(text + head + n, after);
	return text;
}

/* Each field must take exactly as many bytes as its size allows. */
static void
test_lengths(void)
{
	static const struct
	{
		const char *before;
		const char *after;
		size_t		longest;
	}			fields[] = {
		{"redis://", "", REDIS_HOST_LEN - 1},
		{"redis://[:", "]:1", REDIS_HOST_LEN - 2},
		{"redis://:", "@h", REDIS_CREDENTIAL_LEN - 1},
		{"redis://", ":p@h", REDIS_CREDENTIAL_LEN - 1},
		{"redis+sentinel://h/", "", REDIS_CREDENTIAL_LEN - 1},
		{"unix:///", "", 105},
	};
	char	   *many = malloc(64 * 32);
	size_t		n = 0;

	for (size_t i = 0; i < lengthof(fields); i++)
	{
		for (size_t over = 0; over <= 100000; over = over * 10 + 1)
		{
			RedisUrl	url;
			char	   *text = long_text(fields[i].before, 'a', fields[i].longest + over, fields[i].after);
			const char *why = redis_url_parse(text, &url);

			check_detail(over == 0 ? why == NULL : why != NULL && strstr(why, "too long") != NULL, "length", text);
			free(text);
		}
	}
	for (int i = 0; i <= REDIS_MAX_ENDPOINTS; i++)
	{
		n += snprintf(many + n, 64, "%sh%d", i == 0 ? "redis+cluster://" : ",", i);
		if (i == REDIS_MAX_ENDPOINTS - 1)
			good(many, REDIS_CLUSTER, REDIS_MAX_ENDPOINTS, "h0", 6379, "", "");
	}
	bad(many, "too many");
	free(many);
}

/* Parses texts made of meaningful pieces, each in memory of exactly its size, so that the sanitizer notices reads past the end. */
static void
test_random(int rounds)
{
	static const char *const pieces[] = {
		"redis://", "rediss://", "unix://", "redis+sentinel://", "redis+cluster://", "rediss+", ":", "/", "@", ",", " ",
		"[", "]", "%", "%41", "%00", "%f", "host", "127.0.0.1", "::1", "6379", "0", "/0", "/m", "\t", "\n", "?", "#", "+",
		"\377", "\001", "user:pw@",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	};
	int			accepted = 0;

	srand(1);
	for (int i = 0; i < rounds; i++)
	{
		char		text[8192] = "";
		RedisUrl	url;
		char	   *exact;

		for (int n = rand() % 24; n >= 0; n--)
			strcat(text, pieces[rand() % lengthof(pieces)]);
		exact = strdup(text);
		if (redis_url_parse(exact, &url) == NULL)
		{
			accepted++;
			if (url.nendpoints < 1 || url.nendpoints > REDIS_MAX_ENDPOINTS || url.endpoints[0].host[0] == '\0' ||
				(url.user[0] != '\0' && url.password[0] == '\0'))
				check_detail(false, "accepted nonsense", text);
		}
		free(exact);
	}
	check_detail(accepted > rounds / 1000, "random texts are accepted now and then", "");
}

int
main(void)
{
	test_good();
	test_bad();
	test_lengths();
	test_random(1000000);
	return report_checks();
}
