/*
 * redis/calls.c
 *	  How calls of the function library are spelled; see calls.h.
 */
#include "postgres.h"

#include "redis/calls.h"
#include "shared.h"

#define WRITE_CALL "$5\r\nFCALL\r\n$11\r\nfence_write\r\n$1\r\n0\r\n"

/* -----------------------------------------------------------------------------------------------------------------
 * Operations
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
begin_operation(Operations *ops, const char *fence, const char *what, const char *stamp)
{
	draft_string(&ops->fences, fence);
	draft_string(&ops->arguments, what);
	draft_string(&ops->arguments, stamp);
}

void
operations_reserve(Operations *ops, const char *fence, const char *stamp, int64 observed, int64 version, uint64 grant)
{
	begin_operation(ops, fence, grant ? "g" : "r", stamp);
	draft_version(&ops->arguments, observed);
	draft_version(&ops->arguments, version);
	if (grant)
		draft_number(&ops->arguments, grant);
}

void
operations_abort(Operations *ops, const char *fence, const char *stamp)
{
	begin_operation(ops, fence, "a", stamp);
}

void
operations_commit(Operations *ops, const char *fence, const char *stamp, int64 version, bool deleted)
{
	begin_operation(ops, fence, deleted ? "d" : "c", stamp);
	draft_version(&ops->arguments, version);
}

void
operations_commit_value(Operations *ops, const char *fence, const char *stamp, int64 version, int64 ttl_ms)
{
	begin_operation(ops, fence, "v", stamp);
	draft_version(&ops->arguments, version);
	draft_number(&ops->arguments, ttl_ms);
}

/* Written by hand: snprintf would take as long as all the rest of a message. */
bool
calls_send_operations(RedisConnection *conn, const Letter *letter)
{
	char		head[128];
	char		number[24];
	char		epoch[EPOCH_LEN];
	char		middle[EPOCH_LEN + 32];
	char	   *p = draft_line(head, '*', 5 + letter->keys + letter->args);
	char	   *end;

	memcpy(p, WRITE_CALL, sizeof(WRITE_CALL) - 1);
	p = draft_text(p + sizeof(WRITE_CALL) - 1, number, pg_lltoa(letter->keys, number));
	fence_epoch_of(letter->epoch, epoch);
	end = draft_text(middle, epoch, strlen(epoch));
	return redis_send_raw(conn, head, p - head, 0) && redis_send_raw(conn, letter->key_bytes, letter->key_len, 0) &&
		redis_send_raw(conn, middle, end - middle, 0) && redis_send_raw(conn, letter->arg_bytes, letter->arg_len, 1);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Replies
 * -----------------------------------------------------------------------------------------------------------------
 */

bool
calls_is(const redisReply *reply, const char *word)
{
	return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_STRING &&
		strcmp(reply->element[0]->str, word) == 0;
}

bool
calls_grants(const redisReply *reply, size_t element)
{
	return calls_is(reply, "written") && element < reply->elements &&
		reply->element[element]->type == REDIS_REPLY_STRING && reply->element[element]->len == 0;
}

LetterResult
calls_result(const redisReply *reply)
{
	if (reply == NULL || reply->type == REDIS_REPLY_ERROR)
		return LETTER_LOST;
	return calls_is(reply, "unarmed") ? LETTER_UNARMED : LETTER_WRITTEN;
}

void
calls_refusal(const redisReply *reply, char *text, size_t size)
{
	if (reply->type == REDIS_REPLY_ERROR)
		snprintf(text, size, "Redis answered: %.*s", (int) Min(reply->len, size - 32), reply->str);
	else
		strlcpy(text, calls_is(reply, "written") ? "the lease that Redis was given is over" :
				"Redis is not armed for this epoch", size);
}
