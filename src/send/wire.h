/*
 * send/wire.h
 *	  This backend's own connections to the Redis processes, one to each that it has to do with: reservations of rows before
 *	  the commit, effects, and questions.
 *
 * A reservation is what a transaction waits for, so it goes straight to Redis and its answer straight back: every process in
 * between would cost two more wake-ups. What ends transactions nobody waits for: it lies in the send queue, and whoever sends
 * a reservation to the same process takes it along (riders); the courier carries what nobody took.
 *
 * A wire is a link (link.h): operations for one process gather in its draft, which goes as one call of fence_write.
 * Rules: nothing here decides whether a transaction may commit. After an error, timeout or interrupt the wire is hung up,
 * because a late reply would answer another question: reservations that were outstanding have to be sent again, riders are
 * left to the patrol.
 */
#ifndef FENCE_WIRE_H
#define FENCE_WIRE_H

#include "send/ledger.h"
#include "send/link.h"

/* The stamp under which Redis holds it. Usable in COMMIT and ABORT. */
extern const char *wire_stamp(const Reservation *reservation);

/*
 * Adds reserve under the word, to the process of that node, to the draft. The answer goes to the
 * reservation: acked_word and number; a refusal, or the end of the wire, makes its message 0. May connect, if that did not fail a
 * moment ago, and waits for that, and for room, until deadline (fence_clock() microseconds). Interruptible. False:
 * link_problem tells; the courier may get through.
 */
extern bool wire_reserve(Reservation *reservation, int node, FenceWord word, int64 deadline);

/* Sends each draft if no answer of its wire is outstanding, or (always) in any case. Neither waits nor raises. */
extern void wire_send(bool always);

/* Sends the drafts and waits for all outstanding answers until deadline. False: a wire was hung up. Interruptible. */
extern bool wire_collect(int64 deadline);

/* Carries what lies in the send queue for nobody to wait until the courier does. Interruptible; waits at most until deadline. */
extern void wire_carry(int64 deadline);

/*
 * The end of the transaction: its reservations are forgotten, answers that are still to come will be dropped. Usable in
 * COMMIT and ABORT.
 */
extern void wire_forget(void);

/* Whether anything that was sent to the process of that node has no answer yet. Usable in COMMIT and ABORT. */
extern bool wire_is_busy(int node);

/*
 * Sends one command to the process of that node, whose answer wire_collect collects, or whatever waits on that wire before.
 * May connect, and waits for that, and for room, until deadline. Interruptible. False: it was not sent, link_problem tells;
 * else `answer` is called once, for this number.
 */
extern bool wire_say(int node, int argc, const char **argv, const size_t *argvlen, LinkAnswer answer, uint64 number,
					 int64 deadline);

/*
 * A message that ends what may not have arrived yet: it has to arrive after that, so it goes the same way. One that ends effects
 * does so wherever there is a connection: what this backend says next has to arrive after it, and is not to wait for it. False:
 * any way will do. Usable in COMMIT and ABORT.
 */
extern bool wire_send_after(const Message *message);

/*
 * Questions to the process of that node, in one round trip on one connection, and their answers (caller: freeReplyObject). Collects
 * what is outstanding on the wire before. Interruptible. False: link_problem tells, and there are no answers.
 */
extern bool wire_ask(int node, int n, const Call *calls, redisReply **replies, int64 deadline);

/*
 * The same for one that must not be said twice: what was sent on a connection that broke is not sent again on another, where the
 * first might still arrive after all that follows. Does not wait for what is outstanding before, but together with it.
 */
extern bool wire_ask_once(int node, const Call *call, redisReply **reply, int64 deadline);

#endif
