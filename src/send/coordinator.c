/*
 * send/coordinator.c
 *	  This backend's conversation with Redis; see coordinator.h.
 *
 * Owns: this backend's messages and what their answers mean for its reservations; what COMMIT says, announcements of what it has
 * attached included; its connection for questions.
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

#define STORE_BYTES	(QUEUE_MAX_MESSAGE / 2)	/* of the rows that a commit tells one process of; the others are only ended */

/* State of the current transaction */
static Reservation *waiting[QUEUE_ANSWERS];	/* whose answers are outstanding, by message number */
static bool any_waiting = false;	/* there may be some */
static StringInfoData commit_messages;	/* a Message, its bytes, a Message, ... */
static bool commit_prepared = false;

static uint64 first_end = 0;	/* messages that ended transactions since somebody waited for them: the first */
static uint64 last_end = 0;		/* and the last; 0: none */

const char *
coordinator_problem(void)
{
	return link_problem;
}

/* Until when an answer is waited for that is asked, or waited for, now. */
static int64
reply_deadline(void)
{
	return fence_clock() + setting_timeout_us();
}

/* -----------------------------------------------------------------------------------------------------------------
 * Questions
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Messages to different nodes are answered in any order, so each of them is waited for. There must be no draft. */
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
		first = last - QUEUE_ANSWERS + 1;	/* of older ones the answer is forgotten */
	for (uint64 message = first; message != 0 && message <= last; message++)
		(void) send_queue_wait(message, deadline);
	first_end = last_end = 0;
}

void
coordinator_await_messages(void)
{
	int64		deadline = reply_deadline();

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

/* Who holds the key now. False: nobody. */
static bool
find_node(const char *key, int *node)
{
	*node = fence_node_of(key);
	if (*node == SLOT_NOBODY)
		link_note("the Redis process that holds the slot of this key was not there when the epoch began");
	return *node != SLOT_NOBODY;
}

/* Who was granted the slot knows whether the fence may be trusted; whoever Redis Cluster points to instead does not. */
bool
coordinator_ask(const char *fence, int n, const Call *calls, redisReply **replies)
{
	int			node;

	coordinator_await_messages();
	return find_node(fence, &node) && wire_ask(node, n, calls, replies, reply_deadline());
}

/* What is outstanding on the same wire arrives before, so it is not waited for. */
bool
coordinator_ask_once(const char *fence, const Call *call, redisReply **reply)
{
	int			node;

	wire_send(true);
	await_carried(reply_deadline());
	return find_node(fence, &node) && wire_ask_once(node, call, reply, reply_deadline());
}

bool
coordinator_say(const char *key, int argc, const char **argv, const size_t *argvlen, LinkAnswer answer, uint64 number)
{
	int			node;

	return find_node(key, &node) && wire_say(node, argc, argv, argvlen, answer, number, reply_deadline());
}

bool
coordinator_collect(void)
{
	return wire_collect(reply_deadline());
}

bool
coordinator_same_place(const char *fence, const char *other)
{
	if (slot_of_key(fence, strlen(fence)) == slot_of_key(other, strlen(other)))
		return true;
	/* only a cluster wants the keys of one command in one slot */
	return fence_node_of(fence) == fence_node_of(other) && setting_url->topology != REDIS_CLUSTER;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Reserving
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether the courier's answer is outstanding */
static bool
is_waiting(const Reservation *r)
{
	return r->by_courier && r->message != 0 && waiting[r->message % QUEUE_ANSWERS] == r;
}

/* It is about to be sent again: an answer to the former message does not count any more. */
static void
forget_message(Reservation *r)
{
	if (!is_waiting(r))
		return;
	waiting[r->message % QUEUE_ANSWERS] = NULL;
	r->message = 0;
}

/* What is being written: a command, or words */
static RespBuffer draft;

/* A message of what was drafted. False: it did not fit. */
static bool
draft_message(Message *message, MessageKind kind, FenceWord word, int node, MessageCount count)
{
	*message = (Message) {
		.kind = kind, .epoch = WORD_EPOCH(word), .node = node, .strings = draft.strings, .bytes = draft.bytes, .len = draft.len,
		.count = count
	};
	return !draft.full;
}

/* What is sent is the reservation's last word, and its answer the only one that counts. */
static void
note_sent(Reservation *r, int node, FenceWord word)
{
	r->node = node;
	r->sent = true;
	r->sent_word = word;
}

/*
 * Asks for a row under the word, on this backend's own wire. The map of slots is read after the word: if it is
 * another one's by now, the word has changed, and neither what is sent nor its answer counts. False: link_problem tells.
 */
static bool
ask_for_row(Reservation *r, FenceWord word)
{
	int			node = fence_node_of(r->name);

	forget_message(r);

	if (node == SLOT_NOBODY)
	{
		/* no process may answer readers there in this epoch: there is nobody to tell */
		r->acked_word = word;
		return true;
	}
	if (!wire_reserve(r, node, word, reply_deadline()))
		return false;
	note_sent(r, node, word);
	return true;
}

/* A row's through the courier, if this backend gets no connection, is granted without a number: its commit will bring no value. */
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

/* Posts reserve under the word: whole domains always go that way. False: there is no room now. */
static bool
post_reserve(Reservation *r, FenceWord word)
{
	int			node = r->kind == RESERVE_ROW ? fence_node_of(r->name) : MESSAGE_TO_ALL;
	Message		message;
	uint64		number;

	if (node == SLOT_NOBODY)
		return true;			/* the word has changed: there is nothing to be granted under it */
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

/* Takes the answer, if it is here: it counts for the word that it was sent under. */
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
		r->message = 0;			/* not granted: it has to be sent again */
}

/* False: none came in time. */
static bool
await_answer(Reservation *r)
{
	AnswerKind	answer = send_queue_wait(r->message, reply_deadline());

	if (answer == ANSWER_NONE || answer == ANSWER_FAILED)
		send_queue_problem(link_problem, sizeof(link_problem), answer == ANSWER_NONE);
	take_answer(r, answer == ANSWER_NONE ? ANSWER_FAILED : answer);
	return answer != ANSWER_NONE;
}

/* Makes room for one more outstanding answer. False: the oldest, which is in the way, has none yet; wait: in time. */
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

/* Whether it covers what is applied: a row, whatever its version; a whole domain, and the end of its attachment if that ends. */
static bool
covers(const Reservation *r)
{
	return r->kind == RESERVE_ROW || r->asked >= r->applied;
}

/* Whether it is acknowledged under the word. */
static bool
granted(const Reservation *r, FenceWord word)
{
	return r->acked_word == word && covers(r);
}

/* Whether it was asked for, and has an answer or may yet get one. */
static bool
asked(const Reservation *r, FenceWord word)
{
	return (r->message != 0 || r->acked_word == word) && r->sent_word == word && covers(r);
}

void
coordinator_reserve_early(Reservation *r)
{
	FenceWord	word = fence_word();

	if (WORD_STATE(word) != FENCE_OPEN || asked(r, word))
		return;
	if (r->kind == RESERVE_DOMAIN)
	{
		if (make_room(false))
			(void) post_reserve(r, word);
	}
	else if (r->early && ask_for_row(r, word))
		wire_send(false);
}

/* Whether there is nothing to be asked: it is granted, or Redis has it and will answer, or has. */
static bool
settled(const Reservation *r, FenceWord word)
{
	return r->applied == NO_VERSION || granted(r, word) || asked(r, word);
}

static bool
post_patiently(Reservation *r, FenceWord word)
{
	int64		deadline;

	if (!make_room(true))
		return false;
	for (deadline = reply_deadline(); !post_reserve(r, word);)
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
 * Asks for it if it is neither acknowledged nor asked for: a row on the wire, a domain through the courier, and by_courier a
 * row too that the wire did not get through. False: it could not be sent.
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

/* Whether it is granted, once all answers of rows are here. */
static bool
is_granted(Reservation *r, FenceWord word)
{
	if (r->applied == NO_VERSION || granted(r, word))
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
	(void) wire_collect(reply_deadline());
	return ask_if_missing(r, word, true) && is_granted(r, word);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Ending
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * What ends a transaction's reservations. One word ends all that a process has recorded for it, whether it was applied or not, so
 * there is one message for each process and epoch, and for each domain that was reserved as a whole. A process that is told of
 * rows gets the word with them. Nothing here allocates, except where messages are kept.
 */
typedef bool (*EmitMessage) (const Message *message);

/* To whom rows were sent, and in which epoch */
typedef struct Target
{
	int			node;
	FenceWord	word;			/* one of that epoch */
} Target;

static bool
is_of(const Reservation *r, const Target *target)
{
	return r->sent && r->kind == RESERVE_ROW && r->node == target->node && WORD_EPOCH(r->sent_word) == WORD_EPOCH(target->word);
}

/* The target that comes next; node -1 begins. False: there is none. */
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

/* A detached reservation outlives the transaction that made it. */
static bool
stays(const Reservation *r, bool committing)
{
	return r->stamp && committing && r->applied != NO_VERSION;
}

/*
 * The smallest number of the transaction's reservations there, for whoever asks who has committed last: standbys do. 0: one has
 * none, or nobody asks.
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
		if (r->number == 0)
			return 0;
		smallest = smallest ? Min(smallest, r->number) : r->number;
	}
	return smallest;
}

/* Counts the rows: those of the first one's domain with the message, when it is answered; those of others now. */
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
	return count;
}

/* The words that end what is there: the transaction's own, and those of detached reservations that do not stay. */
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
		MessageCount count = {.slot = r->metrics, .commits = commit, .aborts = !commit};
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

static bool
keep_message(const Message *message)
{
	appendBinaryStringInfo(&commit_messages, (const char *) message, sizeof(Message));
	appendBinaryStringInfo(&commit_messages, message->bytes, message->len);
	return true;
}

/* Whether COMMIT tells Redis of the row. Of a domain that was reserved as a whole nothing will be trusted anyway. */
static bool
is_told(const Reservation *r)
{
	return (r->payload || r->events) && !r->stamp && r->applied != NO_VERSION && !ledger_is_whole(r->domain_id);
}

/* Keeps a message that tells of the rows there and ends the transaction; one that only ends it follows, in case there is no room. */
static void
keep_rows(const Target *target)
{
	StringInfoData rows;
	StringInfoData command;
	char		word[END_WORD_LEN];
	int			n = 0;
	Message		message = {.kind = MESSAGE_STORE, .epoch = WORD_EPOCH(target->word), .node = target->node, .strings = 1, .spare = true};

	initStringInfo(&rows);
	for (const Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		bool		stored = r->payload && r->number > 0;

		if (!is_of(r, target) || !is_told(r) || !(stored || r->events) || n == WRITE_CALL_FENCES ||
			rows.len + (stored ? strlen(r->payload) : 0) > STORE_BYTES)
			continue;
		calls_store_row(&rows, r->name, r->number, r->applied, stored ? r->ttl_ms : STORE_NOTHING, stored ? r->payload : "");
		n++;
	}
	if (n > 0)
	{
		initStringInfo(&command);
		calls_finish_store(&command, message.epoch, fence_stamp(), n, &rows,
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

void
coordinator_prepare_commit(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	Target		target = {.node = -1};
	bool		tell = any_told();
	bool		ok;

	initStringInfo(&commit_messages);
	MemoryContextSwitchTo(old);
	ok = emit_domains(true, keep_message);
	while (next_target(&target))
	{
		if (tell)
			keep_rows(&target);
		ok = emit_words(&target, true, keep_message) && ok;
	}
	if (!ok)
		elog(ERROR, "could not write what ends the reservations");
	commit_prepared = true;
}

/* One message to every process. The number of the grant is that of the word: if slots change hands, so does the word. */
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
	if (!commit_prepared)
		coordinator_prepare_commit();
	foreach(cell, domain_list_own())
	{
		DomainRef  *domain = lfirst(cell);

		/* a restore brings the rows of fence.domain before the triggers */
		if (!OidIsValid(domain->row->relid) || shape_fault_of_domain(domain->row) == NULL)
			keep_announcement(domain, word, grant);
	}
}

void
coordinator_forget(void)
{
	commit_prepared = false;
	if (any_waiting)
		memset(waiting, 0, sizeof(waiting));
	any_waiting = false;
	wire_forget();
}

void
coordinator_commit(void)
{
	bool		ok = true;
	bool		told = false;	/* with its rows: the message without is not needed */
	int64		now;

	if (!commit_prepared)
		return;
	coordinator_forget();
	now = fence_clock();
	for (const char *p = commit_messages.data; p < commit_messages.data + commit_messages.len;)
	{
		Message		message;

		memcpy(&message, p, sizeof(message));
		message.bytes = p + sizeof(message);
		p = message.bytes + message.len;
		message.count.committed_at = message.count.commits > 0 ? now : 0;
		if (message.spare)
			told = !wire_is_busy(message.node) && coordinator_post(&message);
		else
		{
			ok = (told || coordinator_post(&message)) && ok;
			told = false;
		}
	}
	if (!ok)
		fence_wake_patrol();
}

void
coordinator_abort(void)
{
	Target		target = {.node = -1};
	bool		ok;

	coordinator_forget();
	ok = emit_domains(false, coordinator_post);
	while (next_target(&target))
		ok = emit_words(&target, false, coordinator_post) && ok;
	if (!ok)
		fence_wake_patrol();
}
