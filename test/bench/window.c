/*
 * window.c
 *	  The time from a transaction's commit record until Redis knows that its reservation has ended, seen from outside: the
 *	  server keeps the time of each commit record (track_commit_timestamp), and this program asks Redis until the answer is
 *	  a miss; it was a hit, and then pending. usage: window CONNINFO REDIS_SOCKET TABLE ROW FENCE COUNT; prints one
 *	  microsecond figure per line. What it prints is too large by up to one round trip to Redis (ten to thirty microseconds).
 */
#include <stdbool.h>
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

/* Whether fence_get says that it is a miss: no hit, and nothing is pending. */
static bool
is_miss(const char *fence)
{
	redisReply *reply = redisCommand(redis, "FCALL_RO fence_get 1 %s", fence);
	bool		miss;

	if (reply == NULL)
		die(redis->errstr);
	miss = reply->type == REDIS_REPLY_ARRAY && strcmp(reply->element[0]->str, "miss") == 0;
	freeReplyObject(reply);
	return miss;
}

/* Fills the fence in, as a reader does. */
static void
fill(const char *fence, long long version)
{
	redisReply *permit = redisCommand(redis, "FCALL_RO fence_token 1 %s", fence);
	redisReply *reply;

	if (permit == NULL || permit->type != REDIS_REPLY_STRING)
		die("no permit");
	reply = redisCommand(redis, "FCALL fence_put 1 %s %s %.*s.%lld x 0", fence, permit->str, (int) strcspn(permit->str, "."), permit->str, version);
	if (reply == NULL || reply->type != REDIS_REPLY_STRING || strcmp(reply->str, "stored") != 0)
		die("not stored");
	freeReplyObject(reply);
	freeReplyObject(permit);
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
		long long	begun;
		long long	seen;

		fill(argv[5], ask(version));
		begun = now_us();
		if (!PQsendQuery(pg, update) || PQflush(pg) != 0)
			die(PQerrorMessage(pg));
		do
		{
			if (is_miss(argv[5]))
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
