/*
 * window.c
 *	  The time from a transaction's commit record to its committed fence, seen from outside: the server keeps the time of
 *	  each commit record (track_commit_timestamp), and this program asks Redis for the fence until it has the new
 *	  version. usage: window CONNINFO REDIS_SOCKET TABLE ROW FENCE COUNT; prints one microsecond figure per line. What it
 *	  prints is too large by up to one round trip to Redis (ten to thirty microseconds).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <hiredis/hiredis.h>
#include <libpq-fe.h>

static PGconn *pg;
static redisContext *redis;

static void
die(const char *why)
{
	fprintf(stderr, "window: %s\n", why);
	exit(1);
}

static long long
now_us(void)
{
	struct timeval t;

	gettimeofday(&t, NULL);
	return t.tv_sec * 1000000LL + t.tv_usec;
}

/* The version in the fence, "<token> <version> <stamp>"; -1 if there is none. */
static long long
fence_version(const char *fence)
{
	redisReply *reply = redisCommand(redis, "GET %s", fence);
	long long	version = -1;
	char	   *blank;

	if (reply == NULL)
		die(redis->errstr);
	blank = reply->type == REDIS_REPLY_STRING ? strchr(reply->str, ' ') : NULL;
	if (blank && blank[1] != '-')
		version = strtoll(blank + 1, NULL, 10);
	freeReplyObject(reply);
	return version;
}

/* The first column of the first row. */
static long long
ask(const char *sql)
{
	PGresult   *result = PQexec(pg, sql);
	long long	value;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		die(PQerrorMessage(pg));
	value = atoll(PQgetvalue(result, 0, 0));
	PQclear(result);
	return value;
}

int
main(int argc, char **argv)
{
	char		update[256],
				version[256],
				committed[256];
	PGresult   *result;

	if (argc != 7)
		die("usage: window CONNINFO REDIS_SOCKET TABLE ROW FENCE COUNT");
	pg = PQconnectdb(argv[1]);
	redis = redisConnectUnix(argv[2]);
	if (PQstatus(pg) != CONNECTION_OK || redis == NULL || redis->err)
		die("no connection");
	snprintf(update, sizeof(update), "UPDATE %s SET data = data WHERE id = %s", argv[3], argv[4]);
	snprintf(version, sizeof(version), "SELECT version FROM %s WHERE id = %s", argv[3], argv[4]);
	snprintf(committed, sizeof(committed),
			 "SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::int8 FROM %s WHERE id = %s", argv[3], argv[4]);

	for (int i = atoi(argv[6]); i > 0; i--)
	{
		long long	next = ask(version) + 1;
		long long	begun = now_us();
		long long	seen;

		if (!PQsendQuery(pg, update) || PQflush(pg) != 0)
			die(PQerrorMessage(pg));
		do
		{
			if (fence_version(argv[5]) >= next)
				break;
			seen = now_us();
		} while (seen < begun + 1000000);
		seen = now_us();
		while ((result = PQgetResult(pg)) != NULL)
		{
			if (PQresultStatus(result) != PGRES_COMMAND_OK)
				die(PQerrorMessage(pg));
			PQclear(result);
		}
		printf("%lld\n", seen - ask(committed));
	}
	return 0;
}
