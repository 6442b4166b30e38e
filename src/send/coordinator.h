/*
 * send/coordinator.h
 *	  This backend's conversation with Redis. On behalf of transactions and readers, only this file calls the fence
 *	  functions. (Keeper and patrol use redis/library.h.)
 *
 * Owns: which reservations must be sent under which word, and with which words a transaction ends (doc/protocol.md,
 * "Writing"). Reservations of rows, and questions of readers, go over this backend's own connections (wire.h).
 * Reservations of whole domains, and the end of the transaction, go through the send queue (send_queue.h); the courier,
 * or the next backend that sends, carries them.
 */
#ifndef FENCE_COORDINATOR_H
#define FENCE_COORDINATOR_H

#include <hiredis/hiredis.h>

#include "base/send_queue.h"
#include "redis/calls.h"
#include "send/ledger.h"
#include "send/wire.h"

/*
 * Drafts the reservation if fences are OPEN and its domain reserves early. Otherwise does nothing, because the
 * reservation is sent before the commit anyway. The caller sends the draft (wire_send) once it has all reservations of a
 * row. Waits only to connect, or if too many answers are outstanding. Never raises because of Redis.
 */
extern void coordinator_reserve_early(Reservation *reservation);

/*
 * Makes sure that Redis has granted every applied reservation of the ledger under exactly this word. Sends what is
 * missing and collects the replies. Waits at most `timeout` (setting) for this backend's own connections. If give_up_at
 * (fence_clock() microseconds) has not passed by then, waits as long again for the courier. Interruptible. Returns
 * false if a reply is missing, or a process is not armed; coordinator_problem() says why.
 */
extern bool coordinator_reserve_all(FenceWord word, int64 give_up_at);

/* The same for one reservation; ignores the rest of the ledger. */
extern bool coordinator_reserve_one(FenceWord word, Reservation *reservation);

/* Returns why the last call failed, for users. */
extern const char *coordinator_problem(void);

/*
 * coordinator_prepare_commit formats what COMMIT will send and what takes memory: rows. It sends nothing and may raise
 * (memory). coordinator_commit then neither allocates nor raises nor waits. The patrol settles what does not arrive.
 */
extern void coordinator_prepare_commit(void);
extern void coordinator_commit(void);

/*
 * Makes COMMIT announce the tables that this transaction has attached, so that readers need not wait until a worker
 * announces them. Nothing relies on it, because the worker announces them too. Call it before the commit. May raise
 * (memory).
 */
extern void coordinator_prepare_announcement(void);

/*
 * Call it when the transaction was prepared. Sends nothing, so its reservations stay pending. Same restrictions as
 * coordinator_commit.
 */
extern void coordinator_forget(void);

/* Ends everything that was sent, because the transaction is rolled back. Same restrictions as coordinator_commit. */
extern void coordinator_abort(void);

/*
 * Sends a message that ends something of this transaction. If something else is on its way to the same process, sends
 * it behind that; otherwise posts it to the send queue. coordinator_await_messages and coordinator_ask wait for it.
 * Returns false if there is no room. Same restrictions as coordinator_commit.
 */
extern bool coordinator_post(const Message *message);

/* Waits until everything that this backend has sent has arrived, at most `timeout` for each message. Interruptible. */
extern void coordinator_await_messages(void);

/*
 * Asks the process that holds the fence, with all questions in one round trip on one connection. The caller frees the
 * replies with freeReplyObject. Error replies are returned as they are. The process has executed before what this
 * backend has sent before. Interruptible; waits at most `timeout`. Returns false if there are no replies;
 * coordinator_problem() says why.
 */
extern bool coordinator_ask(const char *fence, int n, const Call *calls, redisReply **replies);

/* Closes the connection on which a reply to a question about this fence names another key (rule K). */
extern void coordinator_distrust(const char *fence);

/* Asks one question that must not arrive twice; see wire_ask_once. */
extern bool coordinator_ask_once(const char *fence, const Call *call, redisReply **reply);

/*
 * coordinator_pipeline sends one command to the process that holds the key, exactly once, and does not wait for the reply;
 * see wire_pipeline. coordinator_collect waits at most `timeout` for all outstanding replies, including those to
 * reservations. Interruptible. Return false if the command was not sent, or not all replies arrived;
 * coordinator_problem() says why.
 */
extern bool coordinator_pipeline(const char *key, int argc, const char **argv, const size_t *argvlen, LinkAnswer answer, uint64 number);
extern bool coordinator_collect(void);

/*
 * Returns whether this reply of Redis Cluster redirects to another process, or says that nobody serves the slot now. We
 * never follow a redirection, because we must not believe a process to which the slot was not granted. The caller
 * treats the reply as "unarmed".
 */
extern bool coordinator_is_redirection(const redisReply *reply);

/*
 * Returns the number of the fence's place: one command may name fences of the same place. *process: that of the process that
 * holds it, or SLOT_NOBODY. coordinator_ask may ask about all fences of one process at once.
 */
extern int	coordinator_place(const char *fence, int *process);

#endif
