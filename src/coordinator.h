/*
 * coordinator.h
 *	  This backend's conversation with Redis: the only caller of the fence functions on behalf of transactions and
 *	  readers (keeper and patrol use redis/library.h).
 *
 * Owns: the backend's connections and what is outstanding on them. One connection per Redis process, opened on first
 * use and kept. Replies come in the order of the requests; each is taken by the request at the head of the queue, so
 * a late one can never answer another question; after an error, timeout or interrupt the connection is dropped.
 */
#ifndef FENCE_COORDINATOR_H
#define FENCE_COORDINATOR_H

#include <hiredis/hiredis.h>

#include "ledger.h"

/*
 * Sends reserve for the reservation's wanted version, without waiting, if fences are OPEN and a connection is at
 * hand; else nothing happens: before the commit it is sent anyway. Never raises because of Redis.
 */
extern void coordinator_reserve_early(Reservation *reservation);

typedef enum ReserveOutcome
{
	RESERVE_GRANTED,			/* every applied version is acknowledged under the word */
	RESERVE_AHEAD,				/* a fence is ahead of its table: *ahead tells which */
	RESERVE_FAILED				/* no answer, or not armed: coordinator_problem() tells */
} ReserveOutcome;

/*
 * Makes sure that every applied reservation of the ledger is acknowledged under exactly this word: sends what is
 * missing and collects the replies, for at most `timeout` (setting). Interruptible.
 */
extern ReserveOutcome coordinator_reserve_all(FenceWord word, Reservation **ahead);

/* The same for one reservation, whatever else the ledger holds. */
extern ReserveOutcome coordinator_reserve_one(FenceWord word, Reservation *reservation);

/* Why the last call failed, for people. */
extern const char *coordinator_problem(void);

/*
 * Formats what COMMIT will send: commit for applied reservations, abort for the others. May raise (memory); nothing
 * is sent. coordinator_commit then neither allocates with palloc nor raises nor waits; what the socket does not take
 * at once goes out at the next use, and the patrol settles what never arrives.
 */
extern void coordinator_prepare_commit(void);
extern void coordinator_commit(void);

/* The transaction was prepared: sends nothing, its reservations stay pending. Same restrictions. */
extern void coordinator_forget(void);

/* Sends abort for all that was sent. Same restrictions as coordinator_commit. */
extern void coordinator_abort(void);

/*
 * One question to the process that holds the fence, and its answer (caller: freeReplyObject); NULL if it could not be had:
 * coordinator_problem() tells. Error replies are returned as they are. Interruptible; waits at most `timeout`.
 */
extern redisReply *coordinator_ask(const char *fence, int argc, const char **argv, const size_t *argvlen);

#endif
