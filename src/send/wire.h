/*
 * send/wire.h
 *	  This backend's own connections to the Redis processes that it needs. They carry reservations of rows before the
 *	  commit, effects, and questions.
 *
 * A transaction waits for its reservations. So they go straight to Redis, because every process in between would cost
 * two more wake-ups. Nobody waits for the end of a transaction. It lies in the send queue, and a backend that sends a
 * reservation to the same process takes it along (a rider). The courier carries the rest.
 *
 * A wire is a link (link.h). Its draft collects operations for one process and sends them as one call of fence_write.
 *
 * Nothing here decides whether a transaction may commit. After an error, timeout or interrupt the wire is closed,
 * because a late reply would answer another question. Then outstanding reservations must be sent again, and the patrol
 * ends what the riders should have ended.
 */
#ifndef FENCE_WIRE_H
#define FENCE_WIRE_H

#include "send/ledger.h"
#include "send/link.h"

/* Returns the stamp under which Redis holds the reservation. Usable in COMMIT and ABORT. */
extern const char *wire_stamp(const Reservation *reservation);

/*
 * Adds the reservation under the word to the draft for this node. Its reply sets acked_word and number. A refusal, or
 * the end of the connection, sets message to 0. Connects if necessary, unless that failed a moment ago. Waits for the
 * connection, and for room, until wire_deadline(). Interruptible. On failure link_problem says why; the courier may
 * still be able to send it.
 */
extern bool wire_reserve(Reservation *reservation, int node, FenceWord word);

/* Returns the deadline for a reply that is requested now, or waited for from now on. */
extern int64 wire_deadline(void);

/*
 * Closes the connection to this node's process, because a reply on it answers another question than the one that was asked. Every
 * later reply may, too.
 */
extern void wire_distrust(int node);

/* Sends each draft whose wire has no outstanding replies; with `always`, sends all drafts. Neither waits nor raises. */
extern void wire_send(bool always);

/* Sends the drafts, and waits for all outstanding replies until deadline. Returns false if a wire has failed. Interruptible. */
extern bool wire_collect(int64 deadline);

/*
 * Carries the messages that lie in the send queue, so that the caller need not wait for the courier. Interruptible;
 * waits at most until deadline.
 */
extern void wire_carry(int64 deadline);

/* Forgets the reservations at the end of the transaction. Later replies to them are dropped. Usable in COMMIT and ABORT. */
extern void wire_forget(void);

/* Returns whether a reply from this node's process is outstanding. Usable in COMMIT and ABORT. */
extern bool wire_is_busy(int node);

/*
 * Sends one command to this node's process. wire_collect, or any function that waits on this wire, receives the reply
 * and calls `answer` once with this number. Connects if necessary. Waits for the connection, and for room, until
 * deadline. Interruptible. Returns false if it was not sent; link_problem says why.
 */
extern bool wire_pipeline(int node, int argc, const char **argv, const size_t *argvlen, LinkAnswer answer, uint64 number,
						  int64 deadline);

/*
 * Sends a message behind what this backend has outstanding at the same process, if the message ends that: it must
 * arrive later, so it must go the same way. A message that ends effects goes this way whenever there is a connection,
 * because the next command of this backend must arrive after it and should not have to wait. Returns false if the
 * message may go any other way. Usable in COMMIT and ABORT.
 */
extern bool wire_send_after(const Message *message);

/*
 * Asks this node's process, with all questions in one round trip on one connection. The caller frees the replies with
 * freeReplyObject. First collects the outstanding replies on the wire. Interruptible. Returns false if there are no
 * replies; link_problem says why.
 */
extern bool wire_ask(int node, int n, const Call *calls, redisReply **replies, int64 deadline);

/*
 * The same for a question that must not be sent twice. If the connection breaks, it is not repeated on another one,
 * because the first might still arrive after everything that follows. Waits for outstanding replies together with this
 * one, not before.
 */
extern bool wire_ask_once(int node, const Call *call, redisReply **reply, int64 deadline);

#endif
