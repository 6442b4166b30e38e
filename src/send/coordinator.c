/*
 * send/coordinator.c
 *	  This backend's conversation with Redis; see coordinator.h.
 *
 * Owns: this backend's messages in the send queue, the effect of their answers on its reservations, and the messages
 * that COMMIT sends. COMMIT also announces domains that the transaction has attached. Takes the lock of shared memory
 * only to read the number of the grant, and never in COMMIT or ABORT.
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/settings.h"
#include "base/stamp.h"
#include "domain/catalog.h"
#include "domain/domain.h"
#include "domain/shape.h"
#include "send/coordinator.h"
#include "send/wire.h"

#define STORE_BYTES	(QUEUE_MAX_MESSAGE / 2)	/* largest total of the rows that a commit sends to one process; the other rows are only ended */

/* State of the current transaction */
static Reservation *waiting[QUEUE_ANSWERS];	/* by message number: reservations whose answers are outstanding */
static bool any_waiting = false;	/* `waiting` may have an entry */
static bool any_sent = false;	/* a reservation was sent, so something must be ended */
static StringInfoData kept;		/* what COMMIT is to send, as far as PRE_COMMIT has made it: a Message, its bytes, a Message, ... */
static bool ends_kept = false;	/* that includes the messages that end the reservations */
static int64 committed_at = 0;	/* in COMMIT: the time by fence_clock() */

static uint64 first_end = 0;	/* first message that ended a transaction since this backend last waited for such messages */
static uint64 last_end = 0;		/* last such message; 0: none */

const char *
coordinator_problem(void)
{
	return link_problem;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Questions
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Waits for all messages of this backend in the send queue. Waits for each of them, because messages to different nodes
 * are answered in any order. No link may have a draft.
 */
static void
await_carried(int64 deadline)
{
	uint64		first = first_end;
	uint64		last = last_end;

	if (first != 0 && send_queue_answer(last) == ANSWER_NONE)
	{
		wire_carry(deadline);
		(void) wire_collect(deadline);
	}
	for (int i = 0; i < QUEUE_ANSWERS; i++)
		if (waiting[i] != NULL)
		{
			first = first ? Min(first, waiting[i]->message) : waiting[i]->message;
			last = Max(last, waiting[i]->message);
		}
	if (last - first >= QUEUE_ANSWERS)
		first = last - QUEUE_ANSWERS + 1;	/* the answers to older messages are forgotten */
	for (uint64 message = first; message != 0 && message <= last; message++)
		(void) send_queue_wait(message, deadline);
	first_end = last_end = 0;
}

void
coordinator_await_messages(void)
{
	int64		deadline = wire_deadline();

	(void) wire_collect(deadline);
	await_carried(deadline);
}

bool
coordinator_is_redirection(const redisReply *reply)
{
	static const char *const kinds[] = {"MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN"};

	for (int i = 0; i < (int) lengthof(kinds); i++)
		if (reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, kinds[i], strlen(kinds[i])) == 0)
			return true;
	return false;
}

/* Finds the node that holds the key now. Returns false if none does. */
static bool
find_node(const char *key, int *node)
{
	*node = fence_node_of(key);
	if (*node == SLOT_NOBODY)
		link_note("the Redis process that holds the slot of this key was not there when the epoch began");
	return *node != SLOT_NOBODY;
}

/*
 * Asks the process to which the slot was granted, because only that process knows whether the fence may be trusted. The
 * process to which Redis Cluster redirects does not know.
 */
bool
coordinator_ask(const char *fence, int n, const Call *calls, redisReply **replies)
{
	int			node;

	coordinator_await_messages();
	return find_node(fence, &node) && wire_ask(node, n, calls, replies, wire_deadline());
}

void
coordinator_distrust(const char *fence)
{
	int			node;

	if (find_node(fence, &node))
		wire_distrust(node);
}

/* Does not wait for what is outstanding on the same wire, because that arrives first. */
bool
coordinator_ask_once(const char *fence, const Call *call, redisReply **reply)
{
	int			node;

	wire_send(true);
	await_carried(wire_deadline());
	return find_node(fence, &node) && wire_ask_once(node, call, reply, wire_deadline());
}

bool
coordinator_pipeline(const char *key, int argc, const char **argv, const size_t *argvlen, LinkAnswer answer, uint64 number)
{
	int			node;

	return find_node(key, &node) && wire_pipeline(node, argc, argv, argvlen, answer, number, wire_deadline());
}

bool
coordinator_collect(void)
{
	return wire_collect(wire_deadline());
}

int
coordinator_place(const char *fence, int *process)
{
	*process = fence_node_of(fence);
	/* only a cluster requires all keys of a command to be in one slot */
	return setting_url->topology == REDIS_CLUSTER ? slot_of_key(fence, strlen(fence)) : *process;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Reserving
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Returns whether the reservation waits for an answer from the courier. */
static bool
is_waiting(const Reservation *r)
{
	return r->by_courier && r->message != 0 && waiting[r->message % QUEUE_ANSWERS] == r;
}

/* The reservation is about to be sent again, so an answer to its last message must not count. */
static void
forget_message(Reservation *r)
{
	if (!is_waiting(r))
		return;
	waiting[r->message % QUEUE_ANSWERS] = NULL;
	r->message = 0;
}

/* The message that is being written: a command, or words */
static RespBuffer draft;

/* Makes a message from the draft. Returns false if the contents did not fit. */
static bool
draft_message(Message *message, MessageKind kind, FenceWord word, int node, MessageCount count)
{
	*message = (Message) {
		.kind = kind, .epoch = WORD_EPOCH(word), .node = node, .strings = draft.strings, .bytes = draft.bytes, .len = draft.len,
		.count = count
	};
	return !draft.full;
}

/* Notes to which node and under which word the reservation was sent last. Only the answer to this message counts. */
static void
note_sent(Reservation *r, int node, FenceWord word)
{
	r->node = node;
	r->sent = any_sent = true;
	r->sent_word = word;
}

/*
 * Requests a row under the word, on this backend's own wire. We read the map of slots after the word. If the map is of
 * a newer word, then the word has changed, and neither this message nor its answer counts. Returns false if it was not
 * sent; link_problem says why.
 */
static bool
ask_for_row(Reservation *r, FenceWord word)
{
	int			node = fence_node_of(r->name);

	forget_message(r);
	if (node == SLOT_NOBODY)
	{
		/* no process may answer readers in this slot in this epoch, so there is nobody to tell */
		r->acked_word = word;
		return true;
	}
	if (!wire_reserve(r, node, word))
		return false;
	note_sent(r, node, word);
	return true;
}

/*
 * Writes a message that reserves. A row goes through the courier only if this backend cannot connect. Such a row has no
 * number, so its commit stores no value.
 */
static bool
draft_reserve(Message *message, const Reservation *r, int node, FenceWord word)
{
	MessageCount count = {.slot = r->metrics};
	Call		call;

	if (r->kind == RESERVE_ROW)
		call_reserve(&call, WORD_EPOCH(word), wire_stamp(r), r->name);
	else
		call_domain_reserve(&call, WORD_EPOCH(word), r->name, fence_stamp(), r->applied > WHOLE_DOMAIN ? r->applied : 0);
	return calls_encode(&draft, &call) &&
		draft_message(message, r->kind == RESERVE_ROW ? MESSAGE_RESERVE : MESSAGE_RESERVE_DOMAIN, word, node, count);
}

/*
 * Posts the reservation under the word to the send queue. Whole domains always go that way. Returns false if there is
 * no room.
 */
static bool
post_reserve(Reservation *r, FenceWord word)
{
	int			node = r->kind == RESERVE_ROW ? fence_node_of(r->name) : MESSAGE_TO_ALL;
	Message		message;
	uint64		number;

	if (node == SLOT_NOBODY)
		return true;			/* the word has changed, so nothing can be granted under it */
	if (!draft_reserve(&message, r, node, word) || (number = send_queue_post(&message)) == 0)
		return false;
	forget_message(r);
	waiting[number % QUEUE_ANSWERS] = r;
	any_waiting = true;
	r->message = number;
	r->by_courier = true;
	r->asked = Max(r->applied, WHOLE_DOMAIN);
	note_sent(r, node, word);
	return true;
}

/* Takes the answer if it has arrived. It counts for the word under which the message was sent. */
static void
take_answer(Reservation *r, AnswerKind answer)
{
	if (answer == ANSWER_NONE)
		return;
	waiting[r->message % QUEUE_ANSWERS] = NULL;
	if (answer == ANSWER_GRANTED)
	{
		r->acked_word = r->sent_word;
		r->number = 0;
	}
	else
		r->message = 0;			/* not granted, so it must be sent again */
}

/* Waits for the answer. Returns false if none arrives in time. */
static bool
await_answer(Reservation *r)
{
	AnswerKind	answer = send_queue_wait(r->message, wire_deadline());

	if (answer == ANSWER_NONE || answer == ANSWER_FAILED)
		send_queue_problem(link_problem, sizeof(link_problem), answer == ANSWER_NONE);
	take_answer(r, answer == ANSWER_NONE ? ANSWER_FAILED : answer);
	return answer != ANSWER_NONE;
}

/*
 * Makes room for one more outstanding answer, by taking the oldest one. Returns false if that has not arrived; with
 * `wait`, if it does not arrive in time.
 */
static bool
make_room(bool wait)
{
	Reservation *oldest = waiting[send_queue_next() % QUEUE_ANSWERS];

	if (oldest == NULL)
		return true;
	if (wait)
		return await_answer(oldest);
	take_answer(oldest, send_queue_answer(oldest->message));
	return !is_waiting(oldest);
}

/*
 * Returns whether the reservation covers what is applied. A row covers any version. A whole domain must also have named
 * the attachment that ends, if one does.
 */
static bool
covers(const Reservation *r)
{
	return r->kind == RESERVE_ROW || r->asked >= r->applied;
}

/* Returns whether Redis has granted the reservation under the word. */
static bool
granted(const Reservation *r, FenceWord word)
{
	return r->acked_word == word && covers(r);
}

/* Returns whether the reservation was sent under the word, and was granted or may still be. */
static bool
asked(const Reservation *r, FenceWord word)
{
	return (r->message != 0 || r->acked_word == word) && r->sent_word == word && covers(r);
}

void
coordinator_reserve_early(Reservation *r)
{
	FenceWord	word = fence_word();

	if (WORD_STATE(word) != FENCE_OPEN || !r->needed || asked(r, word))
		return;
	if (r->kind == RESERVE_DOMAIN)
	{
		if (make_room(false))
			(void) post_reserve(r, word);
	}
	else if (r->early)
		(void) ask_for_row(r, word);
}

/* Returns whether the commit need not wait for the reservation: nothing is applied, or its bucket was closed. */
static bool
is_idle(const Reservation *r)
{
	return r->applied == NO_VERSION || !r->needed;
}

/* Returns whether nothing needs to be sent: it is idle, or Redis has granted it, or the answer is outstanding. */
static bool
settled(const Reservation *r, FenceWord word)
{
	return is_idle(r) || granted(r, word) || asked(r, word);
}

static bool
post_patiently(Reservation *r, FenceWord word)
{
	int64		deadline;

	if (!make_room(true))
		return false;
	for (deadline = wire_deadline(); !post_reserve(r, word);)
	{
		if (fence_clock() > deadline)
		{
			link_note("the courier is behind: there is no room for more");
			return false;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1, wait_event_redis());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * Sends the reservation if it is neither granted nor sent. A row goes on the wire and a domain through the courier.
 * With by_courier a row that did not get through on the wire also goes through the courier. Returns false if it could
 * not be posted.
 */
static bool
ask_if_missing(Reservation *r, FenceWord word, bool by_courier)
{
	if (settled(r, word))
		return true;
	if (r->kind == RESERVE_DOMAIN || by_courier)
		return post_patiently(r, word);
	(void) ask_for_row(r, word);
	return true;
}

/*
 * Returns whether the reservation is granted. Waits for the courier's answer if necessary. All answers on the wires
 * have arrived before.
 */
static bool
is_granted(Reservation *r, FenceWord word)
{
	if (is_idle(r) || granted(r, word))
		return true;
	if (asked(r, word) && is_waiting(r))
		await_answer(r);
	return granted(r, word);
}

bool
coordinator_reserve_all(FenceWord word, int64 give_up_at)
{
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (!ask_if_missing(r, word, false))
			return false;
	if (!coordinator_collect() && fence_clock() > give_up_at)
		return false;
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (!ask_if_missing(r, word, true))
			return false;
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (!is_granted(r, word))
			return false;
	return true;
}

bool
coordinator_reserve_one(FenceWord word, Reservation *r)
{
	if (!ask_if_missing(r, word, false))
		return false;
	(void) wire_collect(wire_deadline());
	return ask_if_missing(r, word, true) && is_granted(r, word);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Ending
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Messages that end the transaction's reservations. One word ends everything that a process has recorded for the
 * transaction, applied or not. So there is one message for each process and epoch, and one for each domain that was
 * reserved as a whole. A process that gets rows gets the word with them. Nothing here allocates, except in functions
 * that keep messages for COMMIT.
 */
typedef bool (*EmitMessage) (const Message *message);

/* A process to which rows were sent, in one epoch */
typedef struct Target
{
	int			node;
	FenceWord	word;			/* any word of that epoch */
} Target;

static bool
is_of(const Reservation *r, const Target *target)
{
	return r->sent && r->kind == RESERVE_ROW && r->node == target->node && WORD_EPOCH(r->sent_word) == WORD_EPOCH(target->word);
}

/* Finds the next target; node -1 starts. Returns false if there is none. */
static bool
next_target(Target *target)
{
	Target		next = {.node = -1};

	for (const Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		Target		of = {.node = r->node, .word = r->sent_word};

		if (!r->sent || r->kind != RESERVE_ROW)
			continue;
		if ((of.node > target->node || (of.node == target->node && WORD_EPOCH(of.word) > WORD_EPOCH(target->word))) &&
			(next.node < 0 || of.node < next.node || (of.node == next.node && WORD_EPOCH(of.word) < WORD_EPOCH(next.word))))
			next = of;
	}
	*target = next;
	return next.node >= 0;
}

/* Returns whether the reservation stays after this transaction, as a committed detached one does. */
static bool
stays(const Reservation *r, bool committing)
{
	return r->stamp && committing && r->applied != NO_VERSION;
}

/*
 * Returns the smallest number of the transaction's reservations at the target. Redis needs it to tell standbys who
 * committed last. Returns 0 if a reservation has no number, if there are no standbys, or if a key has lost its row: an
 * INSERT, which need not reserve, may then give the key another row of which Redis knows nothing.
 */
static int64
smallest_number(const Target *target)
{
	int64		smallest = 0;

	if (pg_atomic_read_u32(&fence_shared->standbys) == 0)
		return 0;
	for (const Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		if (!is_of(r, target) || r->stamp)
			continue;
		if (r->number == 0 || r->lost)
			return 0;
		smallest = smallest ? Min(smallest, r->number) : r->number;
	}
	return smallest;
}

/*
 * Counts the rows that the message ends. Rows in the first row's domain are counted when the message is answered, those
 * in other domains now.
 */
static MessageCount
count_rows(const Target *target, bool committing)
{
	MessageCount count = {.slot = -1};

	for (const Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		bool		commit = committing && r->applied != NO_VERSION;

		if (!is_of(r, target) || stays(r, committing))
			continue;
		if (count.slot < 0)
			count.slot = r->metrics;
		if (count.slot != r->metrics)
			metrics_add(r->metrics, commit ? METRIC_COMMIT_WRITTEN : METRIC_ABORT_WRITTEN, 1);
		else if (commit)
			count.commits++;
		else
			count.aborts++;
	}
	if (count.slot < 0)
		count.slot = METRIC_OTHER_SLOT;
	count.committed_at = count.commits > 0 ? committed_at : 0;
	return count;
}

/*
 * Emits the words that end the reservations at the target: the transaction's own, and those of detached reservations
 * that do not stay.
 */
static bool
emit_words(const Target *target, bool committing, EmitMessage emit)
{
	char		word[END_WORD_LEN];
	bool		own = false;
	Message		message;

	resp_clear(&draft);
	for (const Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		if (!is_of(r, target) || stays(r, committing) || (own && !r->stamp))
			continue;
		own = own || !r->stamp;
		resp_string(&draft, calls_end_word(word, wire_stamp(r), committing, r->stamp ? 0 : smallest_number(target)));
	}
	return draft.strings == 0 ||
		(draft_message(&message, MESSAGE_END, target->word, target->node, count_rows(target, committing)) && emit(&message));
}

static bool
emit_domains(bool committing, EmitMessage emit)
{
	bool		ok = true;

	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		bool		commit = committing && r->applied != NO_VERSION;
		MessageCount count = {.slot = r->metrics, .commits = commit, .aborts = !commit, .committed_at = commit ? committed_at : 0};
		Call		call;
		Message		message;

		if (!r->sent || r->kind != RESERVE_DOMAIN)
			continue;
		call_domain_end(&call, WORD_EPOCH(r->sent_word), r->name, fence_stamp(), commit);
		ok = calls_encode(&draft, &call) && draft_message(&message, MESSAGE_END_DOMAIN, r->sent_word, MESSAGE_TO_ALL, count) &&
			emit(&message) && ok;
	}
	return ok;
}

/* Emits all messages that end reservations. Returns false if one of them could not be emitted. */
static bool
emit_ends(bool committing, EmitMessage emit)
{
	Target		target = {.node = -1};
	bool		ok = emit_domains(committing, emit);

	while (next_target(&target))
		ok = emit_words(&target, committing, emit) && ok;
	return ok;
}

static bool
keep_message(const Message *message)
{
	if (kept.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

		initStringInfo(&kept);
		MemoryContextSwitchTo(old);
	}
	appendBinaryStringInfo(&kept, (const char *) message, sizeof(Message));
	appendBinaryStringInfo(&kept, message->bytes, message->len);
	return true;
}

/*
 * Returns whether COMMIT sends the row, or its version, to Redis. If the domain was reserved as a whole, its fences
 * become invalid anyway.
 */
static bool
is_told(const Reservation *r)
{
	return (r->payload || r->events) && !r->stamp && r->applied != NO_VERSION && !ledger_is_whole(r->domain_id);
}

/*
 * Keeps a message that sends the target's rows and ends the transaction. The caller also keeps a message that only ends
 * the transaction, in case there is no room for this one.
 */
static void
keep_rows(const Target *target)
{
	StringInfoData rows;
	StringInfoData command;
	char		word[END_WORD_LEN];
	int			n = 0;
	Message		message = {.kind = MESSAGE_STORE, .epoch = WORD_EPOCH(target->word), .node = target->node, .spare = true};

	initStringInfo(&rows);
	for (const Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		bool		stored = r->payload && r->number > 0;

		if (!is_of(r, target) || !is_told(r) || !(stored || r->events) || n == WRITE_CALL_FENCES ||
			rows.len + (stored ? strlen(r->payload) : 0) > STORE_BYTES)
			continue;
		/* as in smallest_number: nobody is told who took a row away */
		calls_store_row(&rows, r->name, r->lost && !stored ? 0 : r->number, r->applied, stored ? r->ttl_ms : STORE_NOTHING, stored ? r->payload : "");
		n++;
	}
	if (n > 0)
	{
		initStringInfo(&command);
		message.strings = calls_finish_store(&command, message.epoch, fence_stamp(), n, &rows,
						   calls_end_word(word, fence_stamp(), true, smallest_number(target)));
		message.bytes = command.data;
		message.len = command.len;
		message.count = count_rows(target, true);
		(void) keep_message(&message);
		pfree(command.data);
	}
	pfree(rows.data);
}

static bool
any_told(void)
{
	for (const Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (is_told(r))
			return true;
	return false;
}

bool
coordinator_post(const Message *message)
{
	uint64		number;

	if (wire_send_after(message))
		return true;
	number = send_queue_post(message);
	if (number != 0)
	{
		first_end = first_end ? first_end : number;
		last_end = number;
	}
	else if (!message->spare)
		metrics_count_end(&message->count, message->kind == MESSAGE_END_DOMAIN, MESSAGE_LOST);
	return number != 0;
}

/* COMMIT can make the other messages itself. A message with rows takes memory. */
void
coordinator_prepare_commit(void)
{
	Target		target = {.node = -1};
	bool		ok;

	if (!any_sent || !any_told())
		return;
	ok = emit_domains(true, keep_message);
	while (next_target(&target))
	{
		keep_rows(&target);
		ok = emit_words(&target, true, keep_message) && ok;
	}
	if (!ok)
		elog(ERROR, "could not write what ends the reservations");
	ends_kept = true;
}

/*
 * Keeps a message that announces the domain to all processes. The number of the grant belongs to the word: if slots are
 * granted again, the word changes.
 */
static void
keep_announcement(const DomainRef *domain, FenceWord word, uint32 grant)
{
	Call		call;
	Message		message;

	call_announce(&call, WORD_EPOCH(word), domain->redis_name, domain->id, domain->publish, grant);
	if (calls_encode(&draft, &call) &&
		draft_message(&message, MESSAGE_END_DOMAIN, word, MESSAGE_TO_ALL, (MessageCount) {.slot = METRIC_OTHER_SLOT}))
		(void) keep_message(&message);
}

void
coordinator_prepare_announcement(void)
{
	FenceWord	word = fence_word();
	uint32		grant;
	ListCell   *cell;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	grant = fence_shared->grant;
	LWLockRelease(fence_shared->lock);
	if (WORD_STATE(word) != FENCE_OPEN || fence_word() != word)
		return;
	send_queue_join();
	foreach(cell, domain_list_own())
	{
		DomainRef  *domain = lfirst(cell);

		/* a restore inserts the rows of fence.domain before it creates the triggers */
		if (!OidIsValid(domain->row->relid) || shape_fault_of_domain(domain->row) == NULL)
			keep_announcement(domain, word, grant);
	}
}

/* Stops waiting for answers, because the transaction ends. */
static void
forget_answers(void)
{
	if (any_waiting)
		memset(waiting, 0, sizeof(waiting));
	any_waiting = false;
	wire_forget();
}

static void
forget_sent(void)
{
	kept.data = NULL;
	ends_kept = any_sent = false;
}

void
coordinator_forget(void)
{
	forget_answers();
	forget_sent();
}

static bool
post_kept(void)
{
	bool		ok = true;
	bool		told = false;	/* the rows' message was sent and ends the transaction, so the next one is not needed */

	for (const char *p = kept.data; p < kept.data + kept.len;)
	{
		Message		message;

		memcpy(&message, p, sizeof(message));
		message.bytes = p + sizeof(message);
		p = message.bytes + message.len;
		message.count.committed_at = message.count.commits > 0 ? committed_at : 0;
		if (message.spare)
			told = !wire_is_busy(message.node) && coordinator_post(&message);
		else
		{
			ok = (told || coordinator_post(&message)) && ok;
			told = false;
		}
	}
	return ok;
}

void
coordinator_commit(void)
{
	bool		ok;

	if (!any_sent && kept.data == NULL)
		return;
	forget_answers();
	committed_at = fence_clock();
	ok = ends_kept || emit_ends(true, coordinator_post);
	ok = (kept.data == NULL || post_kept()) && ok;
	committed_at = 0;
	forget_sent();
	if (!ok)
		fence_wake_patrol();
}

void
coordinator_abort(void)
{
	coordinator_forget();
	if (!emit_ends(false, coordinator_post))
		fence_wake_patrol();
}
