/*
 * send/coordinator.h
 *	  This backend's conversation with Redis: the only caller of the fence functions on behalf of transactions and
 *	  readers (keeper and patrol use redis/library.h).
 *
 * Owns: which reservations have to be asked for under which word, and by which words a transaction ends (doc/protocol.md,
 * "Writing"). Rows are reserved, and readers ask, over connections of this backend's own (wire.h); whole domains, and the end of
 * the transaction, go through the send queue (send_queue.h), which the courier or the next backend carries.
 */
#ifndef FENCE_COORDINATOR_H
#define FENCE_COORDINATOR_H

#include <hiredis/hiredis.h>

#include "base/send_queue.h"
#include "redis/calls.h"
#include "send/ledger.h"
#include "send/wire.h"

/*
 * Asks for the reservation if fences are OPEN and its domain reserves early; else nothing happens: before the commit it is sent anyway. The
 * first is sent at once, those after it together: when a message is full, or at the end of the statement (wire_send). Waits only
 * to connect, and if more answers are outstanding than can be kept. Never raises because of Redis.
 */
extern void coordinator_reserve_early(Reservation *reservation);

/*
 * Makes sure that every applied reservation of the ledger is acknowledged under exactly this word: sends what is
 * missing and collects the replies, for at most `timeout` (setting) from this backend's own connections, and as long again through
 * the courier, unless it is later than give_up_at (fence_clock() microseconds) by then. Interruptible.
 * False: no answer, or not armed: coordinator_problem() tells.
 */
extern bool coordinator_reserve_all(FenceWord word, int64 give_up_at);

/* The same for one reservation, whatever else the ledger holds. */
extern bool coordinator_reserve_one(FenceWord word, Reservation *reservation);

/* Why the last call failed, for people. */
extern const char *coordinator_problem(void);

/*
 * Formats what COMMIT will send. May raise (memory); nothing
 * is sent. coordinator_commit then neither allocates nor raises nor waits; the patrol settles what never arrives.
 */
extern void coordinator_prepare_commit(void);
extern void coordinator_commit(void);

/*
 * Lets COMMIT announce the tables that this transaction has attached, so that readers need not wait until a worker has. Nothing relies on
 * it: the worker announces them, too. May raise (memory); before the commit.
 */
extern void coordinator_prepare_announcement(void);

/* The transaction was prepared: sends nothing, its reservations stay pending. Same restrictions. */
extern void coordinator_forget(void);

/* Ends all that was sent. Same restrictions as coordinator_commit. */
extern void coordinator_abort(void);

/*
 * Sends a message that ends something of this transaction: after what is on its way to the same process, else through the
 * courier. coordinator_await_messages and coordinator_ask wait for it. False: there is no room. Same restrictions as
 * coordinator_commit.
 */
extern bool coordinator_post(const Message *message);

/* Waits until what this backend has sent has arrived, at most `timeout` for each message. Interruptible. */
extern void coordinator_await_messages(void);

/*
 * Questions to the process that holds the fence, in one round trip on one connection, and their answers (caller: freeReplyObject).
 * Error replies are returned as they are. Sees what this backend has sent before. Interruptible; waits at most `timeout`. False:
 * they could not be had, coordinator_problem() tells.
 */
extern bool coordinator_ask(const char *fence, int n, const Call *calls, redisReply **replies);

/* One question that must not arrive twice: see wire_ask_once. */
extern bool coordinator_ask_once(const char *fence, const Call *call, redisReply **reply);

/*
 * Says something to the process that holds the key, once, without waiting for the answer: wire_say tells when that comes.
 * coordinator_collect waits for all answers that are outstanding, of reservations too, at most `timeout`. Interruptible.
 * False: it was not sent, or not all were answered; coordinator_problem() tells.
 */
extern bool coordinator_say(const char *key, int argc, const char **argv, const size_t *argvlen, LinkAnswer answer, uint64 number);
extern bool coordinator_collect(void);

/*
 * Whether Redis Cluster answered that the key's slot is another process's affair, or nobody's, now. It is never followed
 * there: who was not granted the slot must not be believed. As good as "unarmed".
 */
extern bool coordinator_is_redirection(const redisReply *reply);

/* Whether one question may be about both fences: one process holds them and, in a cluster, in one slot. */
extern bool coordinator_same_place(const char *fence, const char *other);

#endif
