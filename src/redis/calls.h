/*
 * redis/calls.h
 *	  How calls of the function library are spelled, and what their replies say. So far: fence_write.
 *
 * One call of fence_write carries many operations of one epoch, each on one fence: all fences come first, then the epoch, then the
 * arguments of one operation after the other. Its reply is "written" and one element for each reservation among them.
 * Nothing here waits or raises; only calls_send_operations allocates, as redis_send_raw does. All of it is usable in COMMIT and
 * ABORT.
 */
#ifndef FENCE_REDIS_CALLS_H
#define FENCE_REDIS_CALLS_H

#include "draft.h"
#include "outbox.h"
#include "redis/connection.h"

typedef struct Operations
{
	Draft		fences;			/* one for each operation */
	Draft		arguments;		/* of all of them */
} Operations;

static inline void
operations_clear(Operations *ops)
{
	draft_clear(&ops->fences);
	draft_clear(&ops->arguments);
}

/* Whether another operation fits, whatever it is, but for values. */
static inline bool
operations_have_room(const Operations *ops)
{
	return draft_has_room(&ops->fences, DRAFT_BYTES / 2) && draft_has_room(&ops->arguments, DRAFT_BYTES / 2);
}

/* The operations as a letter has them: its keys and arguments point there. False: not all of them did fit. */
static inline bool
operations_to_letter(const Operations *ops, Letter *letter)
{
	letter->keys = ops->fences.strings;
	letter->key_bytes = ops->fences.bytes;
	letter->key_len = ops->fences.len;
	letter->args = ops->arguments.strings;
	letter->arg_bytes = ops->arguments.bytes;
	letter->arg_len = ops->arguments.len;
	return !ops->fences.full && !ops->arguments.full;
}

/* Whether the letter's operations fit; adds them; and takes them away again, which were added last. */
static inline bool
operations_fit(const Operations *ops, const Letter *letter)
{
	return draft_has_room(&ops->fences, letter->key_len) && draft_has_room(&ops->arguments, letter->arg_len);
}

static inline void
operations_add(Operations *ops, const Letter *letter)
{
	draft_strings(&ops->fences, letter->keys, letter->key_bytes, letter->key_len);
	draft_strings(&ops->arguments, letter->args, letter->arg_bytes, letter->arg_len);
}

static inline void
operations_remove(Operations *ops, const Letter *letter)
{
	ops->fences.strings -= letter->keys;
	ops->fences.len -= letter->key_len;
	ops->arguments.strings -= letter->args;
	ops->arguments.len -= letter->arg_len;
}

/*
 * Reserves a version. observed: committed version to be told with it, or NO_VERSION. grant: number of the grant, so that the
 * commit may bring the value; 0: it will not.
 */
extern void operations_reserve(Operations *ops, const char *fence, const char *stamp, int64 observed, int64 version, uint64 grant);

/* Ends a reservation: aborted; committed; or (deleted) committed, and Redis may store that there is no such row. */
extern void operations_abort(Operations *ops, const char *fence, const char *stamp);
extern void operations_commit(Operations *ops, const char *fence, const char *stamp, int64 version, bool deleted);

/* Committed with its value: what it begins with; the value and the number of the grant follow, as two strings of any length. */
extern void operations_commit_value(Operations *ops, const char *fence, const char *stamp, int64 version, int64 ttl_ms);

/* Queues one call of fence_write with a letter's operations. False: the connection has failed. */
extern bool calls_send_operations(RedisConnection *conn, const Letter *letter);

/* Whether the reply is an array that begins with that word. */
extern bool calls_is(const redisReply *reply, const char *word);

/* Whether the reply of fence_write grants the reservation whose element that is: 1, 2, ... */
extern bool calls_grants(const redisReply *reply, size_t element);

/* What a reply, or NULL: none, means for what was to end. */
extern LetterResult calls_result(const redisReply *reply);

/* Why a reply does not grant, in words for people. */
extern void calls_refusal(const redisReply *reply, char *text, size_t size);

#endif
