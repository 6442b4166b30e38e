/*
 * redis/calls.h
 *	  The wire format of the function library: how to call each function of fence.lua, and what it replies. No other
 *	  file knows it. (Effects are almost a library of their own. src/effects/ has their format.)
 *
 * A Call holds pointers to the caller's strings, and the numbers as text. Messages of transactions use a WriteCall
 * instead: one call of fence_write, to which many transactions can add. Both can be encoded into fixed buffers. Unless
 * a comment says otherwise, nothing here waits, raises or allocates, so it is safe in COMMIT and ABORT.
 */
#ifndef FENCE_REDIS_CALLS_H
#define FENCE_REDIS_CALLS_H

#include "lib/stringinfo.h"

#include "base/send_queue.h"
#include "base/shared.h"
#include "redis/connection.h"
#include "redis/resp.h"

/* "<namespace> <epoch>", the first argument of every writing call */
#define HEADER_LEN (NAMEDATALEN + EPOCH_LEN + 1)

/* -----------------------------------------------------------------------------------------------------------------
 * Calls
 * -----------------------------------------------------------------------------------------------------------------
 */

#define CALL_FEW		14		/* strings of a call that has a fixed number of them */
#define CALL_NUMBERS	6
#define NONCE_LEN		12

typedef struct Call
{
	int			argc;
	const char **argv;			/* points to few, or is palloc'd */
	size_t	   *argvlen;
	const char *few[CALL_FEW];
	size_t		few_len[CALL_FEW];
	int			nnumbers;
	char		numbers[CALL_NUMBERS][24];
	char		header[HEADER_LEN];
	char		nonce[NONCE_LEN];	/* by which the answer names this call; empty: it need not */
} Call;

/* Makes a call from existing strings. argvlen NULL: they are NUL-terminated. */
extern void call_wrap(Call *call, int argc, const char **argv, size_t *argvlen);

/* Builds a question about one key. The answer must name the call; of fence_release it need not. */
extern void call_about(Call *call, const char *function, const char *key);
extern void call_release(Call *call, const char *fence);

/*
 * Returns whether the reply answers this very call: it ends with the call's nonce, which this function then takes away, so that
 * the reply is what Redis says without a nonce. An error answers any call, because it tells nothing that a reader could
 * believe. False: replies of this connection may be in disorder, so the caller must close it.
 */
extern bool calls_answers(const Call *call, redisReply *reply);

/*
 * Calls of readers. Those with n fences allocate and may raise. payload_len may be 0. ttl_ms 0 means the default. word is a
 * row version (read/row_version.h). For a
 * strong read, send call_mget and then call_token on the same connection, and compare with calls_is_current.
 */
extern void call_mget(Call *call, int n, const char **keys);
extern void call_token(Call *call, int n, const char **fences);
#define call_get(call, fence) call_about(call, "fence_get", fence)
extern void call_put(Call *call, const char *fence, const char *permit, const char *word, const char *payload, size_t payload_len,
					 int64 ttl_ms);

/*
 * The same as call_put, but as two calls, for a payload that should not pass through Redis' Lua. The first call writes
 * the whole record to a key of its own. The second, fence_put_from, renames that key after the same proof. nonce must
 * be unique, because it is part of that key's name. Allocates.
 */
#define PUT_BESIDE_BYTES	4096	/* use it for payloads from this size on; it is cheaper from about a quarter of that */
#define PUT_BESIDE_MS		10000	/* the key expires after this time if nothing renames it */
extern void call_put_beside(Call calls[2], const char *fence, const char *permit, const char *word, const char *payload, size_t payload_len,
							int64 ttl_ms, uint64 nonce);
extern void call_check(Call *call, int n, const char **fences, const char **tokens, const char **versions);
#define call_get_derived(call, value) call_about(call, "fence_get_derived", value)
extern void call_set(Call *call, const char *key, const char *value, size_t len, int64 ttl_ms);

/* Calls of writers. epoch is the epoch's number. call_reserve is fence_write with one fence and no ends. */
extern void call_reserve(Call *call, uint32 epoch, const char *stamp, const char *fence);
extern void call_end(Call *call, uint32 epoch, const char *ended);
extern void call_domain_reserve(Call *call, uint32 epoch, const char *redis_name, const char *stamp, int64 ended);
extern void call_domain_end(Call *call, uint32 epoch, const char *redis_name, const char *stamp, bool committed);
extern void call_announce(Call *call, uint32 epoch, const char *redis_name, int64 id, const char *publish, uint32 grant);
extern void call_remove(Call *call, uint32 epoch, const char *fence, const char *seen);

/* The call by which the courier opens buckets. buckets: their numbers, separated by commas. */
extern void call_open(Call *call, uint32 epoch, uint32 turn, int margin_ms, const char *buckets);

/* The call by which the patrol removes what nobody may have stored. Allocates. */
extern void call_sweep(Call *call, uint32 epoch, int n, const char **fences);

/*
 * Calls that tell a reader on a standby how much WAL it must have replayed (marks.lua). number 0: call_mark only asks for
 * a number.
 */
extern void call_mark(Call *call, uint32 epoch, int64 number, const char *position, int64 running);
#define call_newest(call, fence) call_about(call, "fence_newest", fence)

/* Calls of the patrol and the views. cursor is "" for the first page. */
#define call_status(call, fence) call_about(call, "fence_status", fence)
extern void call_pending(Call *call, int limit, const char *cursor);
extern void call_counts(Call *call);
extern void call_hot(Call *call);
extern void call_rights(Call *call, bool events);

/*
 * Calls of the keeper. calls_settings makes `settings`. owner NULL in call_hello: who asks arms nothing. slots NULL in
 * call_renew: the slots stay as they are.
 */
#define SETTINGS_LEN 96
extern void calls_settings(char settings[SETTINGS_LEN], uint32 grant);
extern void call_hello(Call *call, const char *nonce, const char *owner, uint32 timeline, const char *server);
extern void call_arm(Call *call, const char *key, const char *identity, const char *epoch, int64 until, const char *slots,
					 const char *owner, uint32 timeline, const char *server, const char *settings);
extern void call_renew(Call *call, const char *key, const char *identity, const char *epoch, int64 until, const char *settings,
					   const char *slots);
extern void call_resume(Call *call, uint32 epoch, const char *identity, uint32 timeline, const char *before, const char *server);
extern void call_disarm(Call *call, const char *owner, uint32 timeline);

/* Clears the buffer and encodes the call's strings into it, for a message. Returns false if they did not fit. */
extern bool calls_encode(RespBuffer *buffer, const Call *call);

/* -----------------------------------------------------------------------------------------------------------------
 * Calls of fence_write
 * -----------------------------------------------------------------------------------------------------------------
 */

#define WRITE_CALL_FENCES 128		/* maximum in one call; limits how long Redis is busy with it */

/* Reservations of one transaction, and words that end transactions of any backend */
typedef struct WriteCall
{
	char		stamp[64];		/* the transaction that reserves the fences; empty: no fences */
	RespBuffer	fences;
	RespBuffer	ends;
} WriteCall;

static inline void
write_call_clear(WriteCall *call)
{
	call->stamp[0] = '\0';
	resp_clear(&call->fences);
	resp_clear(&call->ends);
}

/*
 * Returns whether there is room to reserve a fence for this stamp, in a call of at most so many fences.
 * write_call_reserve adds the fence.
 */
static inline bool
write_call_takes(const WriteCall *call, const char *stamp, int most)
{
	return call->fences.strings == 0 ||
		(call->fences.strings < most && resp_has_room(&call->fences, RESP_BUFFER_BYTES / 2) &&
		 strcmp(call->stamp, stamp) == 0);
}

static inline void
write_call_reserve(WriteCall *call, const char *stamp, const char *fence)
{
	if (call->fences.strings == 0)
	{
		size_t		len = Min(strlen(stamp), sizeof(call->stamp) - 1);

		memcpy(call->stamp, stamp, len);	/* not strlcpy, which copies byte by byte */
		call->stamp[len] = '\0';
	}
	resp_string(&call->fences, fence);
}

/*
 * Makes the word that ends a transaction. number is the smallest number of its reservations, if a commit has to name
 * it, else 0. Returns `word`, or `stamp` itself if the word is just the stamp.
 */
#define END_WORD_LEN 96
extern const char *calls_end_word(char word[END_WORD_LEN], const char *stamp, bool committed, int64 number);

/*
 * Queue the call, or the message as a call of its own, on the connection. `call` counts the calls on this connection. Its
 * last two digits are the echo, which the reply must name. Return false if the connection has failed.
 */
extern bool calls_send_write(RedisConnection *conn, uint32 epoch, const WriteCall *write, uint32 call);
extern bool calls_send_message(RedisConnection *conn, const Message *message, uint32 call);

/*
 * Removes the echo from the number in a reply to calls_send_*. Returns false if this is the reply to another call. Then
 * something between us and Redis has lost a call or a reply, but has kept the connection. An error names no call, and
 * counts as the reply to any.
 */
extern bool calls_take_echo(redisReply *reply, uint32 call);

/*
 * Build a call of fence_store, by which a transaction stores rows. calls_store_row appends one row to a buffer.
 * calls_finish_store then makes the strings of the call from these rows, and returns their number. May raise for lack
 * of memory.
 */
extern void calls_store_row(StringInfo rows, const char *fence, int64 number, int64 version, int64 ttl_ms, const char *payload);
extern int	calls_finish_store(StringInfo command, uint32 epoch, const char *stamp, int nrows, const StringInfo rows, const char *ended);

/* ttl_ms of a row whose version is only published, not stored */
#define STORE_NOTHING (-1)

/* -----------------------------------------------------------------------------------------------------------------
 * Answers. A reply that is none of the expected form counts as an error.
 * -----------------------------------------------------------------------------------------------------------------
 */

/* fence_write: its number, or 0 if it was not granted or failed. fence_domain_reserve: 1 or 0. */
extern int64 calls_granted(const redisReply *reply);

/*
 * Returns the result of a message that ends or stores something: the reply of fence_write, fence_store,
 * fence_domain_end, fence_announce, or an effect. reply NULL: no reply came.
 */
extern MessageResult calls_result(const redisReply *reply);

/* Writes why a reply does not grant the reservation, for users. */
extern void calls_refusal(const redisReply *reply, char *text, size_t size);

/* Return whether the reply is an array that begins with this word; and its string number i, or NULL. */
extern bool calls_is(const redisReply *reply, const char *word);
extern const char *calls_string(const redisReply *reply, size_t i);

/* The contents of a fence, or of a value beside a fence. The members point into the raw bytes. */
typedef struct Record
{
	const char *token;
	size_t		token_len;
	int64		version;
	const char *stamp;			/* of the transaction that committed the version; length 0: unknown */
	size_t		stamp_len;
	const char *key;			/* whose record this is; length 0: of a mark, which does not say */
	size_t		key_len;
	const char *payload;		/* NULL: this is a mark, which has no payload */
	size_t		payload_len;
} Record;

/* Parses a record. Returns false if it is malformed. */
extern bool calls_record(const char *raw, size_t len, Record *record);

/*
 * Returns whether the record is current. permit must be the reply of fence_token, asked of the same process after the
 * record was read.
 */
extern bool calls_is_current(const Record *record, const char *permit);

/* Returns whether the record is of this fence, by the key that it names. Marks are of any. */
extern bool calls_is_of(const Record *record, const char *fence);

/* Returns the length of the token with which a permit begins; 0 if there is no permit. */
extern size_t calls_token_len(const char *permit);

/* fence_token: the permit for fence i of the n fences asked for; "" if no record may count as current. */
extern const char *calls_permit(const redisReply *reply, int i, int n);

/* The reply of fence_get. The members point into the reply. */
typedef struct GetReply
{
	bool		hit;			/* then record is set */
	Record		record;
	const char *permit;			/* of a miss, else NULL */
	int			busy_ms;		/* of a miss: how long another reader still has to put the value; 0: no reader is busy with it */
	bool		pending;
	bool		unarmed;
} GetReply;

/* Decodes a reply of fence_get. Returns false if it is malformed. */
extern bool calls_get(const redisReply *reply, GetReply *get);

/* fence_put: "stored", or "refused" and the reason; NULL if the reply is malformed. */
extern const char *calls_put(const redisReply *reply);

/* fence_check: whether all n records are still current. */
extern bool calls_all_same(const redisReply *reply, int n);

/* The reply of fence_open. The texts point into the reply. */
typedef struct OpenReply
{
	const char *former;			/* the former turns of which something that was stored may be left, separated by commas */
	int64		longest;		/* ms: the longest time to live in the present turn */
	const char *wanted;			/* buckets that readers have missed since, separated by commas */
} OpenReply;

/* Decodes a reply of fence_open. Returns false if it opened nothing. */
extern bool calls_open(const redisReply *reply, OpenReply *open);

/* fence_mark: a number; -1: the process is not armed in that epoch. */
extern int64 calls_mark(const redisReply *reply);

/* The reply of fence_newest. The members point into the reply. */
typedef struct NewestReply
{
	const char *owner;			/* cluster that armed the process, */
	uint32		timeline;		/* and its timeline then */
	const char *permit;
	const char *position;		/* "": unknown */
	const char *running;		/* transactions with a lower number are visible on the primary, or gone */
	const char *recent;			/* stamp of the newest commit; "": unknown */
} NewestReply;

/* Decodes a reply of fence_newest. Returns false if it tells nothing. */
extern bool calls_newest(const redisReply *reply, NewestReply *newest);

/* The reply of fence_hello */
typedef struct Hello
{
	char		identity[IDENTITY_LEN];
	int64		time_ms;		/* time of the node's clock */
	char		role[16];
	int			library;		/* version of the function library */
	char		owner[32];		/* cluster that has armed or disarmed the process last; empty: none */
	uint32		timeline;		/* its newest timeline that has done so */
	char		epoch[EPOCH_LEN];
	char		refusal[REASON_LEN];	/* why it would refuse to be armed by this server; empty: it would not */
} Hello;

/* Decodes a reply of fence_hello. Returns false if it is malformed. */
extern bool calls_hello(const redisReply *reply, Hello *hello);

/* The reply of fence_status. The members point into the reply. */
typedef struct StatusReply
{
	bool		armed;			/* readers get answers, unless something is pending */
	const char *permit;			/* "": the domain is unknown */
	int			pending;		/* number of reservations; calls_reservation returns each */
} StatusReply;

/* Decodes a reply of fence_status. Returns false if it is malformed. */
extern bool calls_status(const redisReply *reply, StatusReply *status);
extern void calls_reservation(const redisReply *reply, int i, const char **stamp, bool *domain, int64 *age_ms);

/*
 * A derived value as it is stored: its sources, then a JSON text. calls_next_source reads one source from the start of
 * `rest`, and returns a pointer to what follows it, or NULL if there is no further source. It changes the text. After
 * the last source, calls_derived_json returns the JSON text, or NULL if there is none.
 */
extern void calls_append_source(StringInfo record, const char *fence, const char *token, int64 version);
extern void calls_append_json(StringInfo record, const char *json, size_t len);
extern char *calls_next_source(char *rest, char **fence, char **token, int64 *version);
extern char *calls_derived_json(char *rest);

#endif
