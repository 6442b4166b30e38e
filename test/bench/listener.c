/*
 * listener.c
 *	  What stands beside NOTIFY: listens on channel "rows" and deletes the named keys from Redis, until it is killed.
 *	  usage: listener CONNINFO REDIS_SOCKET
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <hiredis/hiredis.h>
#include <libpq-fe.h>

static void
die(const char *why)
{
	fprintf(stderr, "listener: %s\n", why);
	exit(1);
}

int
main(int argc, char **argv)
{
	PGconn	   *pg;
	redisContext *redis;

	if (argc != 3)
		die("usage: listener CONNINFO REDIS_SOCKET");
	pg = PQconnectdb(argv[1]);
	redis = redisConnectUnix(argv[2]);
	if (PQstatus(pg) != CONNECTION_OK || redis == NULL || redis->err)
		die("no connection");
	PQclear(PQexec(pg, "LISTEN rows"));
	printf("ready\n");
	fflush(stdout);

	for (;;)
	{
		struct pollfd fd = {.fd = PQsocket(pg), .events = POLLIN};
		PGnotify   *notify;
		int			sent = 0;

		if (poll(&fd, 1, -1) < 0 || !PQconsumeInput(pg))
			die("connection lost");
		while ((notify = PQnotifies(pg)) != NULL)
		{
			redisAppendCommand(redis, "DEL notify:%s", notify->extra);
			PQfreemem(notify);
			sent++;
		}
		for (; sent > 0; sent--)
		{
			void	   *reply;

			if (redisGetReply(redis, &reply) != REDIS_OK)
				die(redis->errstr);
			freeReplyObject(reply);
		}
	}
}
