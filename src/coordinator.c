/*
 * coordinator.c
 *	  This backend's conversation with Redis; see coordinator.h.
 *
 * With one standalone Redis there is one connection. Topologies with several processes will have one per node; the
 * place where that is decided is connection_for().
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "coordinator.h"
#include "redis/connection.h"
#include "settings.h"
#include "stamp.h"

#define FLUSH_BYTES 8192		/* later reservations of a transaction are written when that much has gathered */
#define MAX_OUTSTANDING 1024	/* replies are taken when more are outstanding: bounds memory on both sides */
#define NAMES_PER_MESSAGE 64	/* fences in one commit or abort message */
#define MAX_ARGUMENTS (4 + 2 * NAMES_PER_MESSAGE + 2)

typedef enum RequestKind
{
	REQUEST_RESERVE,
	REQUEST_END,				/* commit or abort of a whole transaction's reservations */
	REQUEST_ASK
} RequestKind;

/* What an outstanding reply will answer */
typedef struct Request
{
	RequestKind kind;
	Reservation *reservation;	/* valid while transaction is the current one */
	uint64		transaction;
	int64		version;
	FenceWord	word;
} Request;

/* Backend-wide state */
static RedisConnection *connection = NULL;
static uint32 connection_nodes_serial;
static char problem[REASON_LEN] = "";

static Request *requests = NULL;	/* ring; malloc'd, for COMMIT and ABORT append to it */
static int	requests_size = 0,
			requests_first = 0,
			requests_used = 0;

/* State of the current transaction */
static uint64 transaction = 1;	/* number of the current top-level transaction, to tell whose replies come in */
static bool sent_something = false;
static StringInfoData commit_bytes;
static int	commit_messages = 0;
static bool commit_prepared = false;

/* -----------------------------------------------------------------------------------------------------------------
 * The connection and the queue of what is outstanding on it
 * -----------------------------------------------------------------------------------------------------------------
 */

const char *
coordinator_problem(void)
{
	return problem;
}

static void
disconnect(const char *why)
{
	if (why)
		strlcpy(problem, why, sizeof(problem));
	redis_close(connection);
	connection = NULL;
	requests_used = 0;
}

/* A connection whose node moved or that failed meanwhile is dropped. Never waits. */
static RedisConnection *
live_connection(void)
{
	if (connection == NULL)
		return NULL;
	if (redis_error(connection))
		disconnect(redis_error(connection));
	else if (connection_nodes_serial != pg_atomic_read_u32(&fence_shared->nodes_serial))
		disconnect("the address of Redis changed");
	return connection;
}

/* The time limit is for silence, not for the amount of work: each reply starts it anew. */
static int64
reply_deadline(void)
{
	return fence_clock() + setting_timeout * INT64CONST(1000);
}

/* The connection to the process that holds the fence; opens it if need be. NULL: problem tells. May wait. */
static RedisConnection *
connection_for(const char *fence)
{
	RedisEndpoint address;
	RedisUrl	url;
	const char *wrong;

	(void) fence;				/* one standalone Redis holds them all */
	if (live_connection())
		return connection;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	connection_nodes_serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	if (fence_shared->nnodes > 0)
		address = fence_shared->nodes[0].address;
	else
		address.host[0] = '\0';
	LWLockRelease(fence_shared->lock);

	if (address.host[0] == '\0')
	{
		strlcpy(problem, "the keeper knows no Redis yet", sizeof(problem));
		return NULL;
	}
	wrong = redis_url_parse(setting_redis_url, &url);
	if (wrong)
	{
		strlcpy(problem, wrong, sizeof(problem));
		return NULL;
	}
	requests_used = 0;
	connection = redis_open(&address, &url, reply_deadline(),
							problem, sizeof(problem));
	return connection;
}

/* Appends to the queue; malloc only. False: no memory. */
static bool
push_request(Request request)
{
	if (requests_used == requests_size)
	{
		int			size = requests_size ? requests_size * 2 : 64;
		Request    *bigger = malloc(size * sizeof(Request));

		if (bigger == NULL)
			return false;
		for (int i = 0; i < requests_used; i++)
			bigger[i] = requests[(requests_first + i) % requests_size];
		free(requests);
		requests = bigger;
		requests_size = size;
		requests_first = 0;
	}
	requests[(requests_first + requests_used++) % requests_size] = request;
	return true;
}

static Request
pop_request(void)
{
	Request		request;

	Assert(requests_used > 0);
	request = requests[requests_first];
	requests_first = (requests_first + 1) % requests_size;
	requests_used--;
	return request;
}

/* Queues a message and notes what its reply will answer. On failure the connection is dropped. Never waits. */
static bool
send_request(Request request, int argc, const char **argv, const size_t *argvlen)
{
	if (!push_request(request))
	{
		disconnect("out of memory");
		return false;
	}
	if (!redis_send(connection, argc, argv, argvlen))
	{
		disconnect(redis_error(connection));
		return false;
	}
	return true;
}

static void
note_problem(const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_ERROR)
		snprintf(problem, sizeof(problem), "Redis answered: %.*s",
				 (int) Min(reply->len, sizeof(problem) - 32), reply->str);
	else
		strlcpy(problem, "Redis is not armed for this epoch", sizeof(problem));
}

static bool
reply_begins(const redisReply *reply, const char *word)
{
	return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
		reply->element[0]->type == REDIS_REPLY_STRING && strcmp(reply->element[0]->str, word) == 0;
}

/* The answer to a reservation: it counts for the version and the word that it was sent with. */
static void
take_reserve_reply(const Request *request, const redisReply *reply)
{
	Reservation *r = request->reservation;

	if (request->transaction != transaction)
		return;
	if (!reply_begins(reply, "reserved"))
		note_problem(reply);
	else if (r->kind == RESERVE_ROW && (reply->elements != 2 || reply->element[1]->type != REDIS_REPLY_STRING))
		strlcpy(problem, "Redis gave a malformed answer to a reservation", sizeof(problem));
	else if (r->kind == RESERVE_ROW && reply->element[1]->len > 0)
	{
		if (request->version == r->sent)
			r->ahead = strtoll(reply->element[1]->str, NULL, 10);
		return;
	}
	else
	{
		r->acked = request->version;
		r->acked_word = request->word;
		return;
	}
	/* not granted: it has to be sent again */
	if (request->version == r->sent && request->word == r->sent_word)
		r->sent_serial = 0;
}

/* Gives a reply to the request at the head of the queue. Returns true (and keeps the reply) if that is an ask. */
static bool
take_reply(redisReply *reply)
{
	Request		request = pop_request();

	switch (request.kind)
	{
		case REQUEST_ASK:
			return true;
		case REQUEST_RESERVE:
			take_reserve_reply(&request, reply);
			break;
		case REQUEST_END:
			/* unarmed means a newer epoch: nothing is left there to end; an error leaves it to the patrol */
			if (reply->type == REDIS_REPLY_ERROR)
				fence_wake_patrol();
			break;
	}
	freeReplyObject(reply);
	return false;
}

/* Takes the replies that are here already. Never waits, never raises: usable in COMMIT and ABORT. */
static void
take_arrived_replies(void)
{
	redisReply *reply;

	while (connection && requests_used > 0 && (reply = redis_poll_reply(connection)) != NULL)
		take_reply(reply);
	live_connection();
}

/* Waits for one reply and takes it. NULL result with ok false: the connection is gone. */
static redisReply *
wait_for_reply(bool *ok)
{
	redisReply *reply = redis_wait_reply(connection, reply_deadline(), wait_event_redis());

	*ok = reply != NULL;
	if (reply == NULL)
	{
		disconnect(redis_error(connection));
		return NULL;
	}
	return take_reply(reply) ? reply : NULL;
}

redisReply *
coordinator_ask(const char *fence, int argc, const char **argv, const size_t *argvlen)
{
	/* a connection that the other side closed while it was idle shows only when it is used: once more, then */
	for (int try = 0; try < 2; try++)
	{
		bool		ok = true;
		bool		fresh = live_connection() == NULL;

		if (connection_for(fence) == NULL)
			return NULL;
		if (send_request((Request) {.kind = REQUEST_ASK}, argc, argv, argvlen))
		{
			while (ok)
			{
				redisReply *reply = wait_for_reply(&ok);

				if (reply)
					return reply;
			}
		}
		if (fresh)
			return NULL;
	}
	return NULL;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Reserving
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Formats and queues reserve for that version under the word. */
static bool
send_reserve(Reservation *r, int64 version, FenceWord word, const char *epoch)
{
	const char *argv[8];
	size_t		argvlen[8];
	int			argc;
	char		observed[24] = "";	/* of a domain: the attachment that ends */
	char		w[24];

	pg_lltoa(version, w);
	if (r->kind == RESERVE_ROW)
	{
		if (r->observed != NO_VERSION)
			pg_lltoa(r->observed, observed);
		argc = 8;
		argv[1] = "fence_reserve";
		argv[2] = "1";
		argv[3] = r->name;
		argv[4] = epoch;
		argv[5] = fence_stamp();
		argv[6] = observed;
		argv[7] = w;
	}
	else
	{
		if (version > WHOLE_DOMAIN)
			pg_lltoa(version, observed);
		argc = 8;
		argv[1] = "fence_domain_reserve";
		argv[2] = "0";
		argv[3] = setting_namespace;
		argv[4] = r->name;
		argv[5] = epoch;
		argv[6] = fence_stamp();
		argv[7] = observed;
	}
	argv[0] = "FCALL";
	for (int i = 0; i < argc; i++)
		argvlen[i] = strlen(argv[i]);

	if (!send_request((Request) {.kind = REQUEST_RESERVE, .reservation = r, .transaction = transaction,
								 .version = version, .word = word}, argc, argv, argvlen))
		return false;
	r->sent = version;
	r->sent_word = word;
	r->sent_serial = redis_serial(connection);
	r->ahead = NO_VERSION;
	return true;
}

void
coordinator_reserve_early(Reservation *r)
{
	FenceWord	word = fence_word();
	char		epoch[EPOCH_LEN];

	if (WORD_STATE(word) != FENCE_OPEN || live_connection() == NULL || !fence_epoch_text(word, epoch))
		return;
	if (requests_used >= MAX_OUTSTANDING)
		take_arrived_replies();
	if (live_connection() == NULL || !send_reserve(r, r->wanted, word, epoch))
		return;

	/* The first goes out at once, so that its answer is here when the transaction ends; the others gather. */
	if (!sent_something || redis_unsent(connection) >= FLUSH_BYTES)
	{
		if (!redis_flush(connection))
			disconnect(redis_error(connection));
		sent_something = true;
	}
	while (connection && requests_used >= MAX_OUTSTANDING)
	{
		bool		ok;

		/* Redis is slower than we */
		wait_for_reply(&ok);
	}
}

/* Whether the applied version is acknowledged under the word. */
static bool
granted(const Reservation *r, FenceWord word)
{
	return r->acked == r->applied && r->acked_word == word;
}

/* Whether it was asked for on the connection that is still open, and the answer may yet come. */
static bool
in_flight(const Reservation *r, FenceWord word)
{
	return connection && r->sent == r->applied && r->sent_word == word && r->sent_serial == redis_serial(connection);
}

/* Sends it if it is neither acknowledged nor on its way. False: the connection failed. */
static bool
send_if_missing(Reservation *r, FenceWord word, const char *epoch)
{
	bool		ok = true;

	if (r->applied == NO_VERSION || granted(r, word) || in_flight(r, word))
		return true;
	if (connection_for(r->name) == NULL || !send_reserve(r, r->applied, word, epoch))
		return false;
	while (ok && requests_used >= MAX_OUTSTANDING)
		wait_for_reply(&ok);
	return ok;
}

/* Waits for the answer to what was sent. */
static ReserveOutcome
await_reservation(Reservation *r, FenceWord word)
{
	bool		ok = true;

	if (r->applied == NO_VERSION)
		return RESERVE_GRANTED;
	while (ok && !granted(r, word) && r->ahead == NO_VERSION && in_flight(r, word))
		wait_for_reply(&ok);
	if (granted(r, word))
		return RESERVE_GRANTED;
	return in_flight(r, word) && r->ahead != NO_VERSION ? RESERVE_AHEAD : RESERVE_FAILED;
}

/* The epoch's text, and the replies that are here already. False: the word is another one now. */
static bool
begin_reserving(FenceWord word, char epoch[EPOCH_LEN])
{
	if (!fence_epoch_text(word, epoch))
	{
		strlcpy(problem, "the epoch changed", sizeof(problem));
		return false;
	}
	take_arrived_replies();
	return true;
}

ReserveOutcome
coordinator_reserve_all(FenceWord word, Reservation **ahead)
{
	char		epoch[EPOCH_LEN];

	if (!begin_reserving(word, epoch))
		return RESERVE_FAILED;
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (!send_if_missing(r, word, epoch))
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
	char		epoch[EPOCH_LEN];

	if (!begin_reserving(word, epoch) || !send_if_missing(r, word, epoch))
		return RESERVE_FAILED;
	return await_reservation(r, word);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Ending
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Walks the reservations that were sent and passes the messages that end them to emit: applied ones (if commit) are
 * committed at the applied version, all others aborted; fences of the same fate and epoch share a message. Allocates
 * nothing.
 */
typedef bool (*EmitMessage) (int argc, const char **argv, const size_t *argvlen);

typedef struct Batch
{
	bool		commit;
	uint32		epoch_number;
	int			count;
	const char *names[NAMES_PER_MESSAGE];
	char		versions[NAMES_PER_MESSAGE][24];
} Batch;

static bool
emit_batch(Batch *batch, EmitMessage emit)
{
	const char *argv[MAX_ARGUMENTS];
	size_t		argvlen[MAX_ARGUMENTS];
	int			argc = 0;
	char		count[12];
	char		epoch[EPOCH_LEN];

	if (batch->count == 0)
		return true;
	fence_epoch_of(batch->epoch_number, epoch);
	pg_ltoa(batch->count, count);
	argv[argc++] = "FCALL";
	argv[argc++] = batch->commit ? "fence_commit" : "fence_abort";
	argv[argc++] = count;
	for (int i = 0; i < batch->count; i++)
		argv[argc++] = batch->names[i];
	argv[argc++] = epoch;
	argv[argc++] = fence_stamp();
	for (int i = 0; batch->commit && i < batch->count; i++)
		argv[argc++] = batch->versions[i];
	for (int i = 0; i < argc; i++)
		argvlen[i] = strlen(argv[i]);
	batch->count = 0;
	return emit(argc, argv, argvlen);
}

static bool
emit_domain(const Reservation *r, bool commit, EmitMessage emit)
{
	char		epoch[EPOCH_LEN];
	const char *argv[] = {"FCALL", commit ? "fence_domain_commit" : "fence_domain_abort", "0",
		setting_namespace, r->name, epoch, fence_stamp()};
	size_t		argvlen[lengthof(argv)];

	fence_epoch_of(WORD_EPOCH(r->sent_word), epoch);
	for (int i = 0; i < (int) lengthof(argv); i++)
		argvlen[i] = strlen(argv[i]);
	return emit(lengthof(argv), argv, argvlen);
}

static bool
emit_end(bool committing, EmitMessage emit)
{
	Batch		batches[2];		/* [1]: commit, [0]: abort */

	batches[0].count = batches[1].count = 0;
	batches[0].commit = false;
	batches[1].commit = true;
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
	{
		bool		commit = committing && r->applied != NO_VERSION;
		Batch	   *batch = &batches[commit];

		if (r->sent == NO_VERSION)
			continue;
		if (r->kind == RESERVE_DOMAIN)
		{
			if (!emit_domain(r, commit, emit))
				return false;
			continue;
		}
		if (batch->count == NAMES_PER_MESSAGE ||
			(batch->count > 0 && batch->epoch_number != WORD_EPOCH(r->sent_word)))
			if (!emit_batch(batch, emit))
				return false;
		batch->epoch_number = WORD_EPOCH(r->sent_word);
		batch->names[batch->count] = r->name;
		if (commit)
			pg_lltoa(r->applied, batch->versions[batch->count]);
		batch->count++;
	}
	return emit_batch(&batches[0], emit) && emit_batch(&batches[1], emit);
}

static bool
emit_to_buffer(int argc, const char **argv, const size_t *argvlen)
{
	appendStringInfo(&commit_bytes, "*%d\r\n", argc);
	for (int i = 0; i < argc; i++)
	{
		appendStringInfo(&commit_bytes, "$%zu\r\n", argvlen[i]);
		appendBinaryStringInfo(&commit_bytes, argv[i], argvlen[i]);
		appendBinaryStringInfo(&commit_bytes, "\r\n", 2);
	}
	commit_messages++;
	return true;
}

static bool
emit_to_connection(int argc, const char **argv, const size_t *argvlen)
{
	return send_request((Request) {.kind = REQUEST_END}, argc, argv, argvlen);
}

void
coordinator_prepare_commit(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	initStringInfo(&commit_bytes);
	MemoryContextSwitchTo(old);
	commit_messages = 0;
	emit_end(true, emit_to_buffer);
	commit_prepared = true;
}

void
coordinator_forget(void)
{
	commit_prepared = false;
	sent_something = false;
	transaction++;
}

/* Writes what is queued; whatever fails is the patrol's. */
static void
flush_end(void)
{
	if (connection == NULL || !redis_flush(connection))
	{
		if (connection)
			disconnect(redis_error(connection));
		fence_wake_patrol();
		return;
	}
	take_arrived_replies();
}

void
coordinator_commit(void)
{
	if (commit_prepared && commit_messages > 0)
	{
		bool		ok = live_connection() != NULL;

		for (int i = 0; ok && i < commit_messages; i++)
			ok = push_request((Request) {.kind = REQUEST_END});
		if (ok)
			ok = redis_send_raw(connection, commit_bytes.data, commit_bytes.len, commit_messages);
		if (!ok && connection)
			disconnect("could not queue the commit message");
		flush_end();
	}
	coordinator_forget();
}

void
coordinator_abort(void)
{
	bool		sent = false;

	for (Reservation *r = ledger_first(); r != NULL && !sent; r = r->next)
		sent = r->sent != NO_VERSION;
	if (sent)
	{
		if (live_connection() != NULL)
			emit_end(false, emit_to_connection);
		flush_end();
	}
	coordinator_forget();
}
