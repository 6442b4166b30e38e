/*
 * redis/reply_parser.c
 *	  Parses the replies of Redis; see reply_parser.h.
 */
#include "postgres.h"

#include "redis/reply_parser.h"

#define CHUNK_BYTES (16 * 1024)		/* bytes that hiredis gets at once */
#define MAX_REPLY_BYTES (64 * 1024 * 1024)
#define MAX_REPLY_ELEMENTS (1024 * 1024)	/* in all arrays of one reply together */
#define MAX_REPLY_DEPTH 7			/* the limit of hiredis 0.14; 1.x has none */
#define MAX_LINE_BYTES (64 * 1024)	/* of a status, error or number */

/* Replaces createArray of hiredis. Limits the elements and the nesting of one reply, because freeing a reply recurses. */
static void *
create_array(const redisReadTask *task, redis_array_size elements)
{
	ReplyParser *parser = task->privdata;
	int			depth = 0;

	for (const redisReadTask *outer = task->parent; outer != NULL; outer = outer->parent)
		depth++;
	if (depth >= MAX_REPLY_DEPTH)
	{
		parser->problem = "a reply is nested too deeply";
		return NULL;
	}
	if ((size_t) elements > MAX_REPLY_ELEMENTS - parser->elements)
	{
		parser->problem = "a reply has too many elements";
		return NULL;
	}
	parser->elements += elements;
	return parser->create_array(task, elements);
}

/*
 * Returns whether the parser waits for the end of a line that is longer than any line of Redis. It would scan that line
 * again at each call.
 */
static bool
endless_line(const redisReader *reader)
{
	return reader->len - reader->pos > MAX_LINE_BYTES &&
		memchr(reader->buf + reader->pos, '\n', MAX_LINE_BYTES) == NULL;
}

bool
reply_parser_has_input(const ReplyParser *parser)
{
	const redisReader *reader = parser->reader;

	return queue_length(&parser->in) > 0 || reader->len > reader->pos || parser->bytes > 0;
}

/* The received bytes are not in the protocol of Redis. If create_array has failed, its reason stands. */
static void
note_unparsable(ReplyParser *parser)
{
	const char *why = parser->reader->errstr;

	if (parser->problem != NULL)
		return;
	/* "\x15" is the first byte of a TLS alert */
	parser->problem = strstr(why, "got \"\\x15\"") != NULL ? "this port is for TLS (rediss://)" : why;
}

/*
 * An error message of Redis goes into messages and views of databases with any encoding, and it may repeat what we
 * sent. So we keep only ASCII.
 */
static void
make_ascii(redisReply *error)
{
	for (size_t i = 0; i < error->len; i++)
		if (error->str[i] < ' ' || error->str[i] > '~')
			error->str[i] = '?';
}

static redisReply *spare = NULL;	/* a number that was freed, for the next one */

void
redis_free_reply(redisReply *reply)
{
	if (spare == NULL && reply->type == REDIS_REPLY_INTEGER)
		spare = reply;
	else
		freeReplyObject(reply);
}

/* Returns a reply that is a number; NULL if there is no memory. */
static redisReply *
make_number(ReplyParser *parser, int64 number)
{
	static redisReadTask task = {.type = REDIS_REPLY_INTEGER};
	redisReply *reply = spare;

	if (reply == NULL)
		return parser->functions.createInteger(&task, number);
	spare = NULL;
	reply->integer = number;
	return reply;
}

/*
 * Parses the next reply without hiredis if it is a positive number and was received completely, as most replies are; hiredis
 * would copy it twice. Returns NULL if it must be parsed otherwise. A reply that hiredis has begun has bytes.
 */
static redisReply *
parse_number(ReplyParser *parser)
{
	const char *bytes = parser->in.data + parser->in.start;
	size_t		len = Min(queue_length(&parser->in), 20);	/* with fewer digits than any that overflow */
	size_t		i = 1;
	int64		number = 0;
	redisReply *reply;

	if (len == 0 || bytes[0] != ':' || parser->bytes > 0)
		return NULL;
	for (; i < len && bytes[i] >= '0' && bytes[i] <= '9'; i++)
		number = number * 10 + (bytes[i] - '0');
	if (i == 1 || len - i < 2 || bytes[i] != '\r' || bytes[i + 1] != '\n' ||
		(reply = make_number(parser, number)) == NULL)
		return NULL;
	queue_drop(&parser->in, i + 2);
	return reply;
}

redisReply *
reply_parser_next(ReplyParser *parser)
{
	redisReader *reader = parser->reader;
	redisReply *number = parse_number(parser);

	if (number != NULL)
		return number;
	for (;;)
	{
		void	   *reply = NULL;
		size_t		slice;

		if (reader->len > reader->pos && redisReaderGetReply(reader, &reply) != REDIS_OK)
		{
			note_unparsable(parser);
			return NULL;
		}
		if (reply != NULL)
		{
			parser->bytes = reader->len - reader->pos;
			parser->elements = 0;
			if (((redisReply *) reply)->type == REDIS_REPLY_ERROR)
				make_ascii(reply);
			return reply;
		}
		slice = Min(queue_length(&parser->in), CHUNK_BYTES);
		if (slice == 0)
			return NULL;
		parser->bytes += slice;
		if (parser->bytes > MAX_REPLY_BYTES || endless_line(reader))
		{
			parser->problem = "a reply is too large";
			return NULL;
		}
		if (redisReaderFeed(reader, parser->in.data + parser->in.start, slice) != REDIS_OK)
		{
			parser->problem = reader->errstr;
			return NULL;
		}
		queue_drop(&parser->in, slice);
	}
}

void
reply_parser_begin(ReplyParser *parser, redisReader *reader)
{
	parser->reader = reader;
	parser->functions = *reader->fn;
	parser->create_array = parser->functions.createArray;
	parser->functions.createArray = create_array;
	reader->fn = &parser->functions;
	reader->privdata = parser;
}
