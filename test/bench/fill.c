/*
 * fill.c
 *	  Stores a value for each row of a domain as readers would: fence_get, and fence_put with what it told. Pipelined.
 *	  All rows have version 0, and a payload of x. usage: fill SOCKET FENCE VALUE FIRST COUNT PAYLOAD_BYTES, where the
 *	  names have %i for the key.
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
	static char fences[WINDOW][256],
				values[WINDOW][256];
	long		first,
				count;
	char	   *payload;

	if (argc != 7)
		die("usage", "fill SOCKET FENCE VALUE FIRST COUNT PAYLOAD_BYTES");
	redis = redisConnectUnix(argv[1]);
	if (redis == NULL || redis->err)
		die(argv[1], "no connection");
	first = atol(argv[4]);
	count = atol(argv[5]);
	payload = calloc(1, atol(argv[6]) + 1);
	memset(payload, 'x', atol(argv[6]));

	for (long done = 0; done < count; done += WINDOW)
	{
		int			n = count - done < WINDOW ? (int) (count - done) : WINDOW;

		for (int i = 0; i < n; i++)
		{
			name_of(argv[2], first + done + i, fences[i], sizeof(fences[i]));
			name_of(argv[3], first + done + i, values[i], sizeof(values[i]));
			redisAppendCommand(redis, "FCALL fence_get 2 %s %s", fences[i], values[i]);
		}
		for (int i = 0; i < n; i++)
		{
			redisReply *reply = next_reply();

			if (reply->elements < 3)	/* a miss may end with a hint, and a hit has one element */
				die(fences[i], reply->elements ? reply->element[0]->str : "no answer");
			redisAppendCommand(redis, "FCALL fence_put 2 %s %s %s %s 0 %s 0", fences[i], values[i],
							   reply->element[1]->str, reply->element[2]->str, payload);
			freeReplyObject(reply);
		}
		for (int i = 0; i < n; i++)
			freeReplyObject(next_reply());
	}
	redisFree(redis);
	return 0;
}
