/*
 * fill.c
 *	  Fills the fence of each row of a domain in as readers would: fence_token, and fence_put with the permit that it told.
 *	  Pipelined. All rows have version 0, and a payload of x. usage: fill SOCKET FENCE FIRST COUNT PAYLOAD_BYTES, where the
 *	  name has %i for the key.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#define WINDOW 500

static redisContext *redis;

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "fill: %s: %s\n", what, why);
	exit(1);
}

static void
name_of(const char *pattern, long row, char *out, size_t size)
{
	const char *at = strstr(pattern, "%i");

	snprintf(out, size, "%.*s%ld%s", (int) (at - pattern), pattern, row, at + 2);
}

static redisReply *
next_reply(void)
{
	redisReply *reply;

	if (redisGetReply(redis, (void **) &reply) != REDIS_OK)
		die("redis", redis->errstr);
	if (reply->type == REDIS_REPLY_ERROR)
		die("redis", reply->str);
	return reply;
}

int
main(int argc, char **argv)
{
	static char fences[WINDOW][256];
	long		first,
				count;
	char	   *payload;

	if (argc != 6)
		die("usage", "fill SOCKET FENCE FIRST COUNT PAYLOAD_BYTES");
	redis = redisConnectUnix(argv[1]);
	if (redis == NULL || redis->err)
		die(argv[1], "no connection");
	first = atol(argv[3]);
	count = atol(argv[4]);
	payload = calloc(1, atol(argv[5]) + 1);
	memset(payload, 'x', atol(argv[5]));

	for (long done = 0; done < count; done += WINDOW)
	{
		int			n = count - done < WINDOW ? (int) (count - done) : WINDOW;

		for (int i = 0; i < n; i++)
		{
			name_of(argv[2], first + done + i, fences[i], sizeof(fences[i]));
			redisAppendCommand(redis, "FCALL_RO fence_token 1 %s", fences[i]);
		}
		for (int i = 0; i < n; i++)
		{
			redisReply *reply = next_reply();

			if (reply->type != REDIS_REPLY_STRING || reply->len == 0)
				die(fences[i], "no permit");
			redisAppendCommand(redis, "FCALL fence_put 1 %s %s %.*s.0 %s 0", fences[i], reply->str, (int) strcspn(reply->str, "."), reply->str, payload);
			freeReplyObject(reply);
		}
		for (int i = 0; i < n; i++)
			freeReplyObject(next_reply());
	}
	redisFree(redis);
	return 0;
}
