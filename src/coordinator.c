/*
 * coordinator.c
 *	  This backend's conversation with Redis; see coordinator.h.
 *
 * Owns: this backend's letters and what their answers mean for its reservations; what COMMIT says, announcements of what it has
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

#include "coordinator.h"
#include "domain.h"
#include "wire.h"
#include "settings.h"
#include "shape.h"
#include "stamp.h"

#define NAMES_PER_LETTER 64		/* fences in one letter that ends reservations */
#define ROWS_AT_ONCE	64		/* of one statement: those after it may turn out to be so many that none is needed */

/* State of the current transaction */
static Reservation *waiting[OUTBOX_ANSWERS];	/* whose answers are outstanding, by letter number */
static StringInfoData commit_letters;	/* a Letter, its bytes, a Letter, ... */
static bool commit_prepared = false;

static int	rows_of_statement = 0;	/* wanted since the end of a statement */
static bool held_back = false;	/* some of them were not asked for */

static uint64 first_end = 0;	/* letters that ended transactions since somebody waited for them: the first */
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
	return fence_clock() + setting_timeout * INT64CONST(1000);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Questions
 * -----------------------------------------------------------------------------------------------------------------
 */

static void ask_for_held_back(void);

/* Letters to different nodes are answered in any order, so each of them is waited for. There must be no draft. */
static void
await_carried(int64 deadline)
{
	uint64		first = first_end;
	uint64		last = last_end;

	if (first != 0 && outbox_answer(last) == ANSWER_NONE)
	{
		wire_carry(deadline);
		(void) wire_collect(deadline);
	}
	for (int i = 0; i < OUTBOX_ANSWERS; i++)
		if (waiting[i] != NULL)
		{
			first = first ? Min(first, waiting[i]->letter) : waiting[i]->letter;
			last = Max(last, waiting[i]->letter);
		}
	if (last - first >= OUTBOX_ANSWERS)
		first = last - OUTBOX_ANSWERS + 1;	/* of older ones the answer is forgotten */
	for (uint64 letter = first; letter != 0 && letter <= last; letter++)
		(void) outbox_wait(letter, deadline);
	first_end = last_end = 0;
}

void
coordinator_await_letters(void)
{
	int64		deadline = reply_deadline();

	ask_for_held_back();
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
redisReply *
coordinator_ask(const char *fence, int argc, const char **argv, const size_t *argvlen)
{
	int			node;

	coordinator_await_letters();
	return find_node(fence, &node) ? wire_ask(node, argc, argv, argvlen, reply_deadline()) : NULL;
}

/* What is outstanding on the same wire arrives before, so it is not waited for. */
redisReply *
coordinator_ask_once(const char *fence, int argc, const char **argv, const size_t *argvlen)
{
	int			node;

	ask_for_held_back();
	wire_send(true);
	await_carried(reply_deadline());
	return find_node(fence, &node) ? wire_ask_once(node, argc, argv, argvlen, reply_deadline()) : NULL;
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
	RedisUrl	url;

	if (slot_of_key(fence, strlen(fence)) == slot_of_key(other, strlen(other)))
		return true;
	/* only a cluster wants the keys of one command in one slot */
	return fence_node_of(fence) == fence_node_of(other) &&
		redis_url_parse(setting_redis_url, &url) == NULL && url.topology != REDIS_CLUSTER;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Reserving
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether the courier's answer is outstanding */
static bool
is_waiting(const Reservation *r)
{
	return r->by_courier && r->letter != 0 && waiting[r->letter % OUTBOX_ANSWERS] == r;
}

/* It is about to be sent again: an answer to the former letter does not count any more. */
static void
forget_letter(Reservation *r)
{
	if (!is_waiting(r))
		return;
	waiting[r->letter % OUTBOX_ANSWERS] = NULL;
	r->letter = 0;
}

/* What is being written: of a command all its strings are arguments */
static Operations draft;
static LetterCount count;

static void
draft_begin(void)
{
	operations_clear(&draft);
	count = (LetterCount) {.slot = METRIC_OTHER_SLOT};
}

/* A letter of what was drafted. False: it did not fit. */
static bool
draft_letter(Letter *letter, LetterKind kind, FenceWord word, int node)
{
	*letter = (Letter) {.kind = kind, .epoch = WORD_EPOCH(word), .node = node, .count = count};
	return operations_to_letter(&draft, letter);
}

static void
draft_command(int argc, const char *const *argv)
{
	draft_begin();
	draft.arguments.len = draft_line(draft.arguments.bytes, '*', argc) - draft.arguments.bytes;
	for (int i = 0; i < argc; i++)
		draft_string(&draft.arguments, argv[i]);
}

/* A command about a whole domain, of the form that all three have; ended: see fence.lua, or NULL. */
static void
draft_domain_command(const char *function, const Reservation *r, FenceWord word, const char *ended)
{
	char		epoch[EPOCH_LEN];
	const char *argv[] = {"FCALL", function, "0", setting_namespace, r->name, epoch, fence_stamp(), ended};

	fence_epoch_of(WORD_EPOCH(word), epoch);
	draft_command(lengthof(argv) - (ended == NULL), argv);
	count.slot = r->metrics;
}

/* What is sent is the reservation's last word, and its answer the only one that counts. */
static void
note_sent(Reservation *r, int node, int64 version, FenceWord word)
{
	r->node = node;
	r->sent = version;
	r->sent_word = word;
}

/*
 * Asks for that version of a row under the word, on this backend's own wire. The map of slots is read after the word: if it is
 * another one's by now, the word has changed, and neither what is sent nor its answer counts. False: link_problem tells.
 */
static bool
ask_for_row(Reservation *r, int64 version, FenceWord word)
{
	int			node = fence_node_of(r->name);

	forget_letter(r);

	if (node == SLOT_NOBODY)
	{
		/* no process may answer readers there in this epoch: there is nobody to tell */
		r->acked = version;
		r->acked_word = word;
		return true;
	}
	if (!wire_reserve(r, node, version, word, reply_deadline()))
		return false;
	note_sent(r, node, version, word);
	return true;
}

/*
 * Of a row: for the courier, if this backend gets no connection. It is granted without a number, so its commit will bring no
 * value.
 */
static bool
draft_reserve(Letter *letter, const Reservation *r, int node, int64 version, FenceWord word)
{
	char		ended[24] = "";

	if (r->kind == RESERVE_ROW)
	{
		draft_begin();
		count.slot = r->metrics;
		operations_reserve(&draft, r->name, wire_stamp(r), r->observed, version, 0);
		return draft_letter(letter, LETTER_RESERVE, word, node);
	}
	if (version > WHOLE_DOMAIN)
		pg_lltoa(version, ended);
	draft_domain_command("fence_domain_reserve", r, word, ended);
	return draft_letter(letter, LETTER_RESERVE_DOMAIN, word, node);
}

/* Posts reserve under the word: whole domains always go that way. False: there is no room now. */
static bool
post_reserve(Reservation *r, int64 version, FenceWord word)
{
	int			node = r->kind == RESERVE_ROW ? fence_node_of(r->name) : LETTER_TO_ALL;
	Letter		letter;
	uint64		number;

	if (node == SLOT_NOBODY)
		return true;			/* the word has changed: there is nothing to be granted under it */
	if (!draft_reserve(&letter, r, node, version, word) || (number = outbox_post(&letter)) == 0)
		return false;
	forget_letter(r);
	waiting[number % OUTBOX_ANSWERS] = r;
	r->letter = number;
	r->by_courier = true;
	note_sent(r, node, version, word);
	return true;
}

/* Takes the answer, if it is here: it counts for the version and the word that it was sent with. */
static void
take_answer(Reservation *r, AnswerKind answer)
{
	if (answer == ANSWER_NONE)
		return;
	waiting[r->letter % OUTBOX_ANSWERS] = NULL;
	if (answer == ANSWER_GRANTED)
	{
		r->acked = r->sent;
		r->acked_word = r->sent_word;
		r->grant = 0;
	}
	else
		r->letter = 0;			/* not granted: it has to be sent again */
}

/* False: none came in time. */
static bool
await_answer(Reservation *r)
{
	AnswerKind	answer = outbox_wait(r->letter, reply_deadline());

	if (answer == ANSWER_NONE || answer == ANSWER_FAILED)
		outbox_problem(link_problem, sizeof(link_problem), answer == ANSWER_NONE);
	take_answer(r, answer == ANSWER_NONE ? ANSWER_FAILED : answer);
	return answer != ANSWER_NONE;
}

/* Makes room for one more outstanding answer. False: the oldest, which is in the way, has none yet; wait: in time. */
static bool
make_room(bool wait)
{
	Reservation *oldest = waiting[outbox_next() % OUTBOX_ANSWERS];

	if (oldest == NULL)
		return true;
	if (wait)
		return await_answer(oldest);
	take_answer(oldest, outbox_answer(oldest->letter));
	return !is_waiting(oldest);
}

/* Of a domain that is reserved as a whole by now, rows that were held back are not needed. */
static void
ask_for_held_back(void)
{
	FenceWord	word = fence_word();

	if (!held_back)
		return;
	held_back = false;
	if (WORD_STATE(word) != FENCE_OPEN)
		return;
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (r->kind == RESERVE_ROW && r->wanted > r->sent && !ledger_is_whole(r->domain_id))
			(void) ask_for_row(r, r->wanted, word);
}

void
coordinator_reserve_early(Reservation *r)
{
	FenceWord	word = fence_word();

	if (WORD_STATE(word) != FENCE_OPEN)
		return;
	if (r->kind == RESERVE_DOMAIN)
	{
		if (make_room(false))
			(void) post_reserve(r, r->wanted, word);
	}
	else if (rows_of_statement++ >= ROWS_AT_ONCE)
		held_back = true;
	else if (ask_for_row(r, r->wanted, word))
		wire_send(false);
}

void
coordinator_send_early(bool always)
{
	ask_for_held_back();
	rows_of_statement = 0;
	wire_send(always);
}

/* Whether the applied version is acknowledged under the word. */
static bool
granted(const Reservation *r, FenceWord word)
{
	return r->acked == r->applied && r->acked_word == word;
}

/* Whether it was asked for, and has an answer or may yet get one. */
static bool
asked(const Reservation *r, FenceWord word)
{
	return r->letter != 0 && r->sent == r->applied && r->sent_word == word;
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
	for (deadline = reply_deadline(); !post_reserve(r, r->applied, word);)
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
	(void) ask_for_row(r, r->applied, word);
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
 * What ends a transaction's reservations: those that were applied (if it commits) are committed at the applied version, all
 * others aborted. Operations of one epoch, node and domain share letters; a row that Redis is to store has one of its own.
 * Nothing here allocates, except where letters are kept.
 */
typedef bool (*EmitLetter) (const Letter *letter);

static bool
emit_draft(EmitLetter emit, FenceWord word, int node)
{
	Letter		letter;
	bool		ok = true;

	if (draft.fences.strings > 0)
		ok = draft_letter(&letter, LETTER_END, word, node) && emit(&letter);
	draft_begin();
	return ok;
}

static void
count_end(const Reservation *r, bool commit)
{
	count.slot = r->metrics;
	count.commits += commit;
	count.aborts += !commit;
}

static void
draft_end(const Reservation *r, bool commit)
{
	count_end(r, commit);
	if (commit)
		operations_commit(&draft, r->name, wire_stamp(r), r->applied, r->payload && *r->payload == '\0');
	else
		operations_abort(&draft, r->name, wire_stamp(r));
}

/* Whether COMMIT tells Redis the row. Of a domain that was reserved as a whole no value will be trusted anyway. */
static bool
brings_value(const Reservation *r)
{
	return r->payload && *r->payload && r->applied != NO_VERSION && !ledger_is_whole(r->domain_id);
}

/* A detached reservation outlives the transaction that made it. */
static bool
stays(const Reservation *r, bool committing)
{
	return r->stamp && committing && r->applied != NO_VERSION;
}

/* The next higher node to which rows' reservations were sent; -1: there is none. */
static int
next_node(int after)
{
	int			next = -1;

	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (r->sent != NO_VERSION && r->kind == RESERVE_ROW && r->node > after && (next < 0 || r->node < next))
			next = r->node;
	return next;
}

static bool
emit_rows_of(int node, bool committing, EmitLetter emit)
{
	FenceWord	word = 0;
	bool		ok = true;

	draft_begin();
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		if (r->sent == NO_VERSION || r->kind != RESERVE_ROW || r->node != node || (committing && brings_value(r)) ||
			stays(r, committing))
			continue;
		if (draft.fences.strings == NAMES_PER_LETTER || !operations_have_room(&draft) ||
			WORD_EPOCH(r->sent_word) != WORD_EPOCH(word) || r->metrics != count.slot)
			ok = emit_draft(emit, word, node) && ok;
		word = r->sent_word;
		draft_end(r, committing && r->applied != NO_VERSION);
	}
	return emit_draft(emit, word, node) && ok;
}

static bool
emit_rows(bool committing, EmitLetter emit)
{
	bool		ok = true;

	for (int node = next_node(-1); node >= 0; node = next_node(node))
		ok = emit_rows_of(node, committing, emit) && ok;
	return ok;
}

static bool
emit_domains(bool committing, EmitLetter emit)
{
	bool		ok = true;

	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		bool		commit = committing && r->applied != NO_VERSION;
		Letter		letter;

		if (r->sent == NO_VERSION || r->kind != RESERVE_DOMAIN)
			continue;
		draft_domain_command(commit ? "fence_domain_commit" : "fence_domain_abort", r, r->sent_word, NULL);
		count_end(r, commit);
		ok = draft_letter(&letter, LETTER_END_DOMAIN, r->sent_word, LETTER_TO_ALL) && emit(&letter) && ok;
	}
	return ok;
}

/* False: something could not be emitted. */
static bool
emit_end(bool committing, EmitLetter emit)
{
	bool		ok = emit_domains(committing, emit);

	return emit_rows(committing, emit) && ok;
}

static bool
keep_letter(const Letter *letter)
{
	appendBinaryStringInfo(&commit_letters, (const char *) letter, sizeof(Letter));
	appendBinaryStringInfo(&commit_letters, letter->key_bytes, letter->key_len);
	appendBinaryStringInfo(&commit_letters, letter->arg_bytes, letter->arg_len);
	return true;
}

/*
 * Keeps two letters that commit the row: one with its value, and one without, for the case that there is no room for values
 * when it commits. False: something did not fit.
 */
static bool
keep_value(const Reservation *r)
{
	Letter		letter;
	size_t		before = commit_letters.len;
	char		grant[24];
	bool		ok;

	draft_begin();
	count_end(r, true);
	operations_commit_value(&draft, r->name, fence_stamp(), r->applied, r->ttl_ms);
	ok = draft_letter(&letter, LETTER_END, r->sent_word, r->node);
	keep_letter(&letter);
	grant[pg_ulltoa_n(r->grant, grant)] = '\0';
	appendStringInfo(&commit_letters, "$%zu\r\n%s\r\n$%zu\r\n%s\r\n", strlen(r->payload), r->payload, strlen(grant), grant);
	letter.spare = true;
	letter.args += 2;
	letter.arg_len = commit_letters.len - before - sizeof(Letter) - letter.key_len;
	memcpy(commit_letters.data + before, &letter, sizeof(Letter));

	draft_begin();
	draft_end(r, true);
	return draft_letter(&letter, LETTER_END, r->sent_word, r->node) && keep_letter(&letter) && ok;
}

static bool
keep_values(void)
{
	bool		ok = true;

	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (r->sent != NO_VERSION && brings_value(r))
			ok = keep_value(r) && ok;
	return ok;
}

bool
coordinator_post(const Letter *letter)
{
	uint64		number;

	if (wire_send_after(letter))
		return true;
	number = outbox_post(letter);
	if (number != 0)
	{
		first_end = first_end ? first_end : number;
		last_end = number;
	}
	else if (!letter->spare)
		metrics_count_end(&letter->count, letter->kind == LETTER_END_DOMAIN, LETTER_LOST);
	return number != 0;
}

void
coordinator_prepare_commit(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	initStringInfo(&commit_letters);
	MemoryContextSwitchTo(old);
	if (!emit_end(true, keep_letter) || !keep_values())
		elog(ERROR, "could not write what ends the reservations");
	commit_prepared = true;
}

/* One letter to every process. The number of the grant is that of the word: if slots change hands, so does the word. */
static void
keep_announcement(const DomainRef *domain, FenceWord word, uint32 grant)
{
	char		epoch[EPOCH_LEN];
	char		id[24];
	char		number[12];
	const char *argv[] = {"FCALL", "fence_announce", "0", setting_namespace, epoch, domain->wire_name, id, domain->publish, number};
	Letter		letter;

	fence_epoch_of(WORD_EPOCH(word), epoch);
	pg_lltoa(domain->id, id);
	snprintf(number, sizeof(number), "%u", grant);
	draft_command(lengthof(argv), argv);
	if (draft_letter(&letter, LETTER_END_DOMAIN, word, LETTER_TO_ALL))
		(void) keep_letter(&letter);
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
	outbox_join();
	if (!commit_prepared)
		coordinator_prepare_commit();
	foreach(cell, domain_list_own())
	{
		DomainRef  *domain = lfirst(cell);
		bool		by_application;

		/* a restore brings the rows of fence.domain before the triggers */
		if (!OidIsValid(domain->row->relid) || shape_fault_of_domain(domain->row, &by_application) == NULL)
			keep_announcement(domain, word, grant);
	}
}

void
coordinator_forget(void)
{
	commit_prepared = false;
	rows_of_statement = 0;
	held_back = false;
	memset(waiting, 0, sizeof(waiting));
	wire_forget();
}

void
coordinator_commit(void)
{
	bool		ok = true;
	bool		told = false;	/* with its value: the letter without is not needed */
	int64		now;

	if (!commit_prepared)
		return;
	coordinator_forget();
	now = fence_clock();
	for (const char *p = commit_letters.data; p < commit_letters.data + commit_letters.len;)
	{
		Letter		letter;

		memcpy(&letter, p, sizeof(letter));
		letter.key_bytes = p + sizeof(letter);
		letter.arg_bytes = letter.key_bytes + letter.key_len;
		p = letter.arg_bytes + letter.arg_len;
		letter.count.committed_at = letter.count.commits > 0 ? now : 0;
		if (letter.spare)
			/* a wire takes short letters only */
			told = !wire_is_busy(letter.node) && coordinator_post(&letter);
		else
		{
			ok = (told || coordinator_post(&letter)) && ok;
			told = false;
		}
	}
	if (!ok)
		fence_wake_patrol();
}

void
coordinator_abort(void)
{
	coordinator_forget();
	if (!emit_end(false, coordinator_post))
		fence_wake_patrol();
}
