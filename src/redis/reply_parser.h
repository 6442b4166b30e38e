/*
 * redis/reply_parser.h
 *	  Replies of Redis, out of the bytes that a connection has received.
 *
 * hiredis parses, but for replies that are positive numbers, because most replies are. We do not trust the server with our
 * memory: a reply has a limited number of bytes, elements and levels.
 *
 * Nothing here waits, raises or pallocs.
 */
#ifndef FENCE_REDIS_REPLY_PARSER_H
#define FENCE_REDIS_REPLY_PARSER_H

#include <hiredis/hiredis.h>

#include "base/compat.h"
#include "redis/byte_queue.h"

/* All zeros: reply_parser_begin was not called. */
typedef struct ReplyParser
{
	ByteQueue	in;				/* received, and not yet passed to hiredis */
	redisReader *reader;		/* belongs to the connection's context */
	redisReplyObjectFunctions functions;	/* those of hiredis, except createArray */
	void	   *(*create_array) (const redisReadTask *, redis_array_size);
	size_t		bytes;			/* so far, of the reply that is being parsed */
	size_t		elements;
	const char *problem;		/* the bytes are no replies; NULL: they are, so far */
} ReplyParser;

/* Begins to parse with the reader of a connection. The parser must stay where it is as long as the reader lives. */
extern void reply_parser_begin(ReplyParser *parser, redisReader *reader);

/*
 * Takes the next complete reply out of the received bytes. Returns NULL if there is none, or if the bytes are not replies
 * (`problem` says why, and lives as long as the reader). An error of Redis has only ASCII characters.
 */
extern redisReply *reply_parser_next(ReplyParser *parser);

/* Returns whether there are received bytes that are no taken reply. */
extern bool reply_parser_has_input(const ReplyParser *parser);

/* Frees a reply as freeReplyObject does, but keeps memory for the next number. */
extern void redis_free_reply(redisReply *reply);

#endif
