/*
 * coordinator.c
 *	  This backend's conversation with Redis; see coordinator.h.
 *
 * Owns: this backend's letters and what their answers mean for its reservations; its connection for questions.
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
#include "outbox.h"
#include "redis/connection.h"
#include "settings.h"
#include "stamp.h"

#define NAMES_PER_LETTER 64		/* fences in one letter that ends reservations */
#define DRAFT_BYTES (16 * 1024) /* of a letter's fences, and of its arguments; a name is shorter than half of it */

static char problem[REASON_LEN] = "";

/* State of the current transaction */
static Reservation *waiting[OUTBOX_ANSWERS];	/* whose answers are outstanding, by letter number */
static StringInfoData commit_letters;	/* a Letter, its bytes, a Letter, ... */
static bool commit_prepared = false;

static uint64 first_end = 0;	/* letters that ended transactions since somebody waited for them: the first */
static uint64 last_end = 0;		/* and the last; 0: none */

const char *
coordinator_problem(void)
{
	return problem;
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

/* A connection to one of the nodes */
typedef struct Line
{
	RedisConnection *connection;
	uint32		nodes_serial;	/* when its address was read */
} Line;

static Line lines[MAX_NODES];

static void
disconnect(Line *line, const char *why)
{
	strlcpy(problem, why, sizeof(problem));
	redis_close(line->connection);
	line->connection = NULL;
}

/* A connection whose node moved, or that failed meanwhile, is dropped. Never waits. */
static bool
still_connected(Line *line)
{
	if (line->connection == NULL)
		return false;
	if (redis_error(line->connection))
		disconnect(line, redis_error(line->connection));
	else if (line->nodes_serial != pg_atomic_read_u32(&fence_shared->nodes_serial))
		disconnect(line, "the address of Redis changed");
	return line->connection != NULL;
}

/* Connects to that node. False: problem tells. May wait. */
static bool
connect_line(Line *line, int node)
{
	RedisEndpoint address = {0};
	RedisUrl	url;
	const char *wrong;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	line->nodes_serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	if (node < fence_shared->nnodes)
		address = fence_shared->nodes[node].address;
	LWLockRelease(fence_shared->lock);

	if (address.host[0] == '\0')
		wrong = "the keeper knows no Redis yet";
	else
		wrong = redis_url_parse(setting_redis_url, &url);
	if (wrong)
	{
		strlcpy(problem, wrong, sizeof(problem));
		return false;
	}
	line->connection = redis_open(&address, &url, reply_deadline(), problem, sizeof(problem));
	return line->connection != NULL;
}

static redisReply *
ask_once(Line *line, int argc, const char **argv, const size_t *argvlen)
{
	redisReply *reply = NULL;

	if (redis_send(line->connection, argc, argv, argvlen))
		reply = redis_wait_reply(line->connection, reply_deadline(), wait_event_redis());
	if (reply == NULL)
		disconnect(line, redis_error(line->connection));
	return reply;
}

/* Letters to different nodes are answered in any order, so each of them is waited for. */
void
coordinator_await_letters(void)
{
	uint64		first = first_end;
	uint64		last = last_end;
	int64		deadline = reply_deadline();

	for (int i = 0; i < OUTBOX_ANSWERS; i++)
		if (waiting[i] != NULL)
		{
			first = first ? Min(first, waiting[i]->letter) : waiting[i]->letter;
			last = Max(last, waiting[i]->letter);
		}
	if (last - first >= OUTBOX_ANSWERS)
		first = last - OUTBOX_ANSWERS + 1;	/* of older ones the answer is forgotten */
	for (uint64 letter = first; letter != 0 && letter <= last; letter++)
		(void) outbox_wait(letter, deadline, NULL);
	first_end = last_end = 0;
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

/* Who was granted the slot knows whether the fence may be trusted; whoever Redis Cluster points to instead does not. */
redisReply *
coordinator_ask(const char *fence, int argc, const char **argv, const size_t *argvlen)
{
	int			node;
	Line	   *line;
	redisReply *reply = NULL;

	coordinator_await_letters();
	node = fence_node_of(fence);
	if (node == SLOT_NOBODY)
	{
		strlcpy(problem, "the Redis process that holds the slot of this key was not there when the epoch began", sizeof(problem));
		return NULL;
	}
	line = &lines[node];
	/* a connection that the other side closed while it was idle shows only when it is used: once more, then */
	if (still_connected(line))
		reply = ask_once(line, argc, argv, argvlen);
	if (reply == NULL && connect_line(line, node))
		reply = ask_once(line, argc, argv, argvlen);
	return reply;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Reserving
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether its answer is outstanding */
static bool
is_waiting(const Reservation *r)
{
	return r->letter != 0 && waiting[r->letter % OUTBOX_ANSWERS] == r;
}

/* Bytes in Redis' protocol, in a buffer of fixed size: much of this runs in COMMIT and ABORT */
typedef struct Draft
{
	int			strings;
	size_t		len;
	bool		full;			/* something did not fit */
	char		bytes[DRAFT_BYTES];
} Draft;

static void
draft_clear(Draft *draft)
{
	draft->strings = 0;
	draft->len = 0;
	draft->full = false;
}

static void
draft_string(Draft *draft, const char *string)
{
	size_t		len = strlen(string);
	char	   *p = draft->bytes + draft->len;

	if (draft->len + len + 32 > sizeof(draft->bytes))
	{
		draft->full = true;
		return;
	}
	*p++ = '$';
	p += pg_lltoa(len, p);
	*p++ = '\r';
	*p++ = '\n';
	memcpy(p, string, len);
	p += len;
	*p++ = '\r';
	*p++ = '\n';
	draft->len = p - draft->bytes;
	draft->strings++;
}

static void
draft_version(Draft *draft, int64 version)
{
	char		text[24] = "";

	if (version != NO_VERSION)
		pg_lltoa(version, text);
	draft_string(draft, text);
}

/* What is being written: of operations the fences and the arguments, of a command all its strings (arguments) */
static Draft keys;
static Draft arguments;

static void
draft_begin(void)
{
	draft_clear(&keys);
	draft_clear(&arguments);
}

/* A letter of what was drafted. False: it did not fit. */
static bool
draft_letter(Letter *letter, LetterKind kind, FenceWord word, int node)
{
	*letter = (Letter) {
		.kind = kind, .epoch = WORD_EPOCH(word), .node = node, .keys = keys.strings, .args = arguments.strings,
		.key_bytes = keys.bytes, .key_len = keys.len, .arg_bytes = arguments.bytes, .arg_len = arguments.len
	};
	return !keys.full && !arguments.full;
}

/* A command about a whole domain, of the form that all three have; ended: see fence.lua, or NULL. */
static void
draft_domain_command(const char *function, const Reservation *r, FenceWord word, const char *ended)
{
	char		epoch[EPOCH_LEN];

	draft_begin();
	fence_epoch_of(WORD_EPOCH(word), epoch);
	arguments.len = snprintf(arguments.bytes, 8, "*%d\r\n", ended ? 8 : 7);
	draft_string(&arguments, "FCALL");
	draft_string(&arguments, function);
	draft_string(&arguments, "0");
	draft_string(&arguments, setting_namespace);
	draft_string(&arguments, r->name);
	draft_string(&arguments, epoch);
	draft_string(&arguments, fence_stamp());
	if (ended)
		draft_string(&arguments, ended);
}

/*
 * Posts reserve for that version under the word. False: there is no room now. The map of slots is read after the word: if it
 * is another one's by now, the word has changed, and neither what is sent nor its answer counts.
 */
static bool
send_reserve(Reservation *r, int64 version, FenceWord word)
{
	Letter		letter;
	uint64		number = 0;
	int			node = LETTER_TO_ALL;

	if (r->kind == RESERVE_ROW)
	{
		node = fence_node_of(r->name);
		if (node == SLOT_NOBODY)
		{
			/* no process may answer readers there in this epoch: there is nobody to tell */
			r->acked = version;
			r->acked_word = word;
			return true;
		}
		draft_begin();
		draft_string(&keys, r->name);
		draft_string(&arguments, "r");
		draft_string(&arguments, fence_stamp());
		draft_version(&arguments, r->observed);
		draft_version(&arguments, version);
		if (draft_letter(&letter, LETTER_RESERVE, word, node))
			number = outbox_post(&letter);
	}
	else
	{
		char		ended[24] = "";

		if (version > WHOLE_DOMAIN)
			pg_lltoa(version, ended);
		draft_domain_command("fence_domain_reserve", r, word, ended);
		if (draft_letter(&letter, LETTER_RESERVE_DOMAIN, word, node))
			number = outbox_post(&letter);
	}
	if (number == 0)
		return false;
	if (is_waiting(r))
		waiting[r->letter % OUTBOX_ANSWERS] = NULL; /* the former one does not count any more */
	waiting[number % OUTBOX_ANSWERS] = r;
	r->node = node;
	r->letter = number;
	r->sent = version;
	r->sent_word = word;
	r->ahead = NO_VERSION;
	return true;
}

/* Takes the answer, if it is here: it counts for the version and the word that it was sent with. */
static void
take_answer(Reservation *r, AnswerKind answer, int64 ahead)
{
	if (answer == ANSWER_NONE)
		return;
	waiting[r->letter % OUTBOX_ANSWERS] = NULL;
	if (answer == ANSWER_GRANTED)
	{
		r->acked = r->sent;
		r->acked_word = r->sent_word;
	}
	else if (answer == ANSWER_AHEAD)
		r->ahead = ahead;
	else
		r->letter = 0;			/* not granted: it has to be sent again */
}

/* False: none came in time. */
static bool
await_answer(Reservation *r)
{
	int64		ahead = NO_VERSION;
	AnswerKind	answer = outbox_wait(r->letter, reply_deadline(), &ahead);

	if (answer == ANSWER_NONE || answer == ANSWER_FAILED)
		outbox_problem(problem, sizeof(problem), answer == ANSWER_NONE);
	take_answer(r, answer == ANSWER_NONE ? ANSWER_FAILED : answer, ahead);
	return answer != ANSWER_NONE;
}

/* Makes room for one more outstanding answer. False: the oldest, which is in the way, has none yet; wait: in time. */
static bool
make_room(bool wait)
{
	Reservation *oldest = waiting[outbox_next() % OUTBOX_ANSWERS];
	int64		ahead = NO_VERSION;

	if (oldest == NULL)
		return true;
	if (wait)
		return await_answer(oldest);
	take_answer(oldest, outbox_answer(oldest->letter, &ahead), ahead);
	return !is_waiting(oldest);
}

void
coordinator_reserve_early(Reservation *r)
{
	FenceWord	word = fence_word();

	if (WORD_STATE(word) != FENCE_OPEN)
		return;
	if (make_room(false))
		(void) send_reserve(r, r->wanted, word);
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

/* Sends it if it is neither acknowledged nor on its way. False: it could not be sent. */
static bool
send_if_missing(Reservation *r, FenceWord word)
{
	int64		deadline;

	if (r->applied == NO_VERSION || granted(r, word) || asked(r, word))
		return true;
	if (!make_room(true))
		return false;
	for (deadline = reply_deadline(); !send_reserve(r, r->applied, word);)
	{
		if (fence_clock() > deadline)
		{
			strlcpy(problem, "the courier is behind: there is no room for more", sizeof(problem));
			return false;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1, wait_event_redis());
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/* Waits for the answer to what was sent. */
static ReserveOutcome
await_reservation(Reservation *r, FenceWord word)
{
	if (r->applied == NO_VERSION || granted(r, word))
		return RESERVE_GRANTED;
	if (asked(r, word) && is_waiting(r))
		await_answer(r);
	if (granted(r, word))
		return RESERVE_GRANTED;
	return asked(r, word) && r->ahead != NO_VERSION ? RESERVE_AHEAD : RESERVE_FAILED;
}

/* The last one that is waited for: its answer comes after all others from the same process, so one wait is often enough. */
static bool
await_last(FenceWord word)
{
	Reservation *last = NULL;

	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (r->applied != NO_VERSION && asked(r, word) && is_waiting(r) && (last == NULL || r->letter > last->letter))
			last = r;
	return last == NULL || await_answer(last);
}

ReserveOutcome
coordinator_reserve_all(FenceWord word, Reservation **ahead)
{
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (!send_if_missing(r, word))
			return RESERVE_FAILED;
	if (!await_last(word))
		return RESERVE_FAILED;
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		ReserveOutcome outcome = await_reservation(r, word);

		*ahead = r;
		if (outcome != RESERVE_GRANTED)
			return outcome;
	}
	return RESERVE_GRANTED;
}

ReserveOutcome
coordinator_reserve_one(FenceWord word, Reservation *r)
{
	if (!send_if_missing(r, word))
		return RESERVE_FAILED;
	return await_reservation(r, word);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Ending
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * What ends a transaction's reservations: those that were applied (if it commits) are committed at the applied version, all
 * others aborted. Operations of one epoch and node share letters. Nothing here allocates, except where letters are kept.
 */
typedef bool (*EmitLetter) (const Letter *letter);

static bool
emit_draft(EmitLetter emit, FenceWord word, int node)
{
	Letter		letter;
	bool		ok = true;

	if (keys.strings > 0)
		ok = draft_letter(&letter, LETTER_END, word, node) && emit(&letter);
	draft_begin();
	return ok;
}

static void
draft_end(const Reservation *r, bool commit)
{
	draft_string(&keys, r->name);
	draft_string(&arguments, commit ? "c" : "a");
	draft_string(&arguments, fence_stamp());
	if (commit)
		draft_version(&arguments, r->applied);
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
		if (r->sent == NO_VERSION || r->kind != RESERVE_ROW || r->node != node)
			continue;
		if (keys.strings == NAMES_PER_LETTER || keys.len > DRAFT_BYTES / 2 || arguments.len > DRAFT_BYTES / 2 ||
			WORD_EPOCH(r->sent_word) != WORD_EPOCH(word))
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

static bool
post_letter(const Letter *letter)
{
	uint64		number = outbox_post(letter);

	if (number != 0)
	{
		first_end = first_end ? first_end : number;
		last_end = number;
	}
	return number != 0;
}

void
coordinator_prepare_commit(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	initStringInfo(&commit_letters);
	MemoryContextSwitchTo(old);
	if (!emit_end(true, keep_letter))
		elog(ERROR, "could not write what ends the reservations");
	commit_prepared = true;
}

void
coordinator_forget(void)
{
	commit_prepared = false;
	memset(waiting, 0, sizeof(waiting));
}

void
coordinator_commit(void)
{
	bool		ok = true;

	if (!commit_prepared)
		return;
	for (const char *p = commit_letters.data; p < commit_letters.data + commit_letters.len;)
	{
		Letter		letter;

		memcpy(&letter, p, sizeof(letter));
		letter.key_bytes = p + sizeof(letter);
		letter.arg_bytes = letter.key_bytes + letter.key_len;
		p = letter.arg_bytes + letter.arg_len;
		ok = post_letter(&letter) && ok;
	}
	if (!ok)
		fence_wake_patrol();
	coordinator_forget();
}

void
coordinator_abort(void)
{
	if (!emit_end(false, post_letter))
		fence_wake_patrol();
	coordinator_forget();
}
