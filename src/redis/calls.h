/*
 * redis/calls.h
 *	  The wire format of the function library: for each function of fence.lua, how it is called and what it answers. No other
 *	  file knows it. (Effects, which are another library in all but name, have theirs in effects.c.)
 *
 * Questions and commands are built as a Call: strings that point to the caller's, and numbers that it keeps itself. What
 * transactions say is built as a WriteCall instead: one call of fence_write that many add to. Both can be written into fixed
 * buffers, so all of this is usable in COMMIT and ABORT unless it says otherwise: nothing here waits or raises.
 */
#ifndef FENCE_REDIS_CALLS_H
#define FENCE_REDIS_CALLS_H

#include "lib/stringinfo.h"

#include "base/send_queue.h"
#include "base/shared.h"
#include "redis/connection.h"
#include "redis/resp.h"

/* "<namespace> <epoch>", by which writers name both */
#define HEADER_LEN (NAMEDATALEN + EPOCH_LEN + 1)

/* -----------------------------------------------------------------------------------------------------------------
 * Calls
 * -----------------------------------------------------------------------------------------------------------------
 */

#define CALL_FEW		14		/* strings of a call with a fixed number of them */
#define CALL_NUMBERS	6

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
} Call;

/* A call of strings that are there already. argvlen NULL: they end with a NUL. */
extern void call_wrap(Call *call, int argc, const char **argv, size_t *argvlen);

/* A question about one key. */
extern void call_about(Call *call, const char *function, const char *key);

/*
 * Readers. Those with n fences allocate and may raise. payload_len 0 is possible. ttl_ms 0: the default. A strong read is call_mget
 * and then call_token, on one connection (calls_is_current).
 */
extern void call_mget(Call *call, int n, const char **keys);
extern void call_token(Call *call, int n, const char **fences);
#define call_get(call, fence) call_about(call, "fence_get", fence)
#define call_release(call, fence) call_about(call, "fence_release", fence)
extern void call_put(Call *call, const char *fence, const char *permit, int64 version, const char *payload, size_t payload_len,
					 int64 ttl_ms);

/*
 * The same as two calls, for a payload that shall not pass through Redis' Lua: the whole record goes into a key of its own, which
 * fence_put_from renames once it has proven that it may. nonce: nobody else knows it. Allocates.
 */
#define PUT_BESIDE_BYTES	4096	/* a payload of so many; from about a quarter of that on it is cheaper */
#define PUT_BESIDE_MS		10000	/* what nobody renames goes by itself */
extern void call_put_beside(Call calls[2], const char *fence, const char *permit, int64 version, const char *payload, size_t payload_len,
							int64 ttl_ms, uint64 nonce);
extern void call_check(Call *call, int n, const char **fences, const char **tokens, const char **versions);
#define call_get_derived(call, value) call_about(call, "fence_get_derived", value)
extern void call_set(Call *call, const char *key, const char *value, size_t len, int64 ttl_ms);

/* Writers; epoch: the number. call_reserve is fence_write with one fence and nothing else. */
extern void call_reserve(Call *call, uint32 epoch, const char *stamp, const char *fence);
extern void call_end(Call *call, uint32 epoch, const char *ended);
extern void call_domain_reserve(Call *call, uint32 epoch, const char *redis_name, const char *stamp, int64 ended);
extern void call_domain_end(Call *call, uint32 epoch, const char *redis_name, const char *stamp, bool committed);
extern void call_announce(Call *call, uint32 epoch, const char *redis_name, int64 id, const char *publish, uint32 grant);
extern void call_remove(Call *call, uint32 epoch, const char *fence, const char *seen);

/* The patrol and the views. cursor "" to begin. */
#define call_status(call, fence) call_about(call, "fence_status", fence)
extern void call_pending(Call *call, int limit, const char *cursor);
extern void call_counts(Call *call);

/* The keeper. settings: calls_settings. slots of renew: NULL: as they are. */
#define SETTINGS_LEN 96
extern void calls_settings(char settings[SETTINGS_LEN], uint32 grant);
extern void call_hello(Call *call, const char *nonce);
extern void call_arm(Call *call, const char *key, const char *identity, const char *epoch, int64 until, const char *slots,
					 const char *owner, uint32 timeline, const char *server, const char *settings);
extern void call_renew(Call *call, const char *key, const char *identity, const char *epoch, int64 until, const char *settings,
					   const char *slots);
extern void call_disarm(Call *call, const char *owner, uint32 timeline);

/* Encodes the call into the buffer, which is cleared before. False: it did not fit. */
extern bool calls_encode(RespBuffer *buffer, const Call *call);

/* -----------------------------------------------------------------------------------------------------------------
 * Calls of fence_write
 * -----------------------------------------------------------------------------------------------------------------
 */

#define WRITE_CALL_FENCES 128		/* in one call at most: bounds how long Redis is busy with it */

/* Reservations of one stamp, and words that end transactions: of any */
typedef struct WriteCall
{
	char		stamp[64];		/* whose the fences are; empty: there are none */
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

/* Whether the fence can be reserved with this call; reserves it. */
static inline bool
write_call_takes(const WriteCall *call, const char *stamp)
{
	return call->fences.strings == 0 ||
		(call->fences.strings < WRITE_CALL_FENCES && resp_has_room(&call->fences, RESP_BUFFER_BYTES / 2) &&
		 strcmp(call->stamp, stamp) == 0);
}

static inline void
write_call_reserve(WriteCall *call, const char *stamp, const char *fence)
{
	if (call->fences.strings == 0)
		strlcpy(call->stamp, stamp, sizeof(call->stamp));
	resp_string(&call->fences, fence);
}

/*
 * The word that ends a transaction. number: of its reservations, the smallest, if a commit is to name it; 0: it names none. Returns
 * word, or stamp if the word is no more than that.
 */
#define END_WORD_LEN 96
extern const char *calls_end_word(char word[END_WORD_LEN], const char *stamp, bool committed, int64 number);

/* Queues the call. calls_send_ends: one that only ends transactions, by the words of that message. False: the connection failed. */
extern bool calls_send_write(RedisConnection *conn, uint32 epoch, const WriteCall *call);
extern bool calls_send_ends(RedisConnection *conn, const Message *message);

/*
 * What a transaction tells of rows: fence_store, as a whole command in Redis' protocol. Rows are appended to one buffer; then
 * calls_finish_store writes what comes before and behind them. Raises for lack of memory.
 */
extern void calls_store_row(StringInfo rows, const char *fence, int64 number, int64 version, int64 ttl_ms, const char *payload);
extern void calls_finish_store(StringInfo command, uint32 epoch, const char *stamp, int nrows, const StringInfo rows, const char *ended);

/* ttl_ms of a row that is not stored: its version is published only */
#define STORE_NOTHING (-1)

/* -----------------------------------------------------------------------------------------------------------------
 * Answers. A reply that is none of the expected form counts as an error.
 * -----------------------------------------------------------------------------------------------------------------
 */

/* fence_write: its number; 0: not granted, or an error. fence_domain_reserve: 1 or 0. */
extern int64 calls_granted(const redisReply *reply);

/* What a reply, or NULL: none, means for what was to end or be told: of fence_write, _store, _domain_end, _announce, effects'. */
extern MessageResult calls_result(const redisReply *reply);

/* Why a reply does not grant, in words for people. */
extern void calls_refusal(const redisReply *reply, char *text, size_t size);

/* Whether the reply is an array that begins with that word; its string number i, or NULL. */
extern bool calls_is(const redisReply *reply, const char *word);
extern const char *calls_string(const redisReply *reply, size_t i);

/* What a fence, or a value beside it, holds. Pointers into the raw bytes, which are not changed. */
typedef struct Record
{
	const char *token;
	size_t		token_len;
	int64		version;
	const char *stamp;			/* who committed the version; length 0: not known */
	size_t		stamp_len;
	const char *payload;		/* NULL: a mark, which has none */
	size_t		payload_len;
} Record;

/* False: it is no such record. */
extern bool calls_record(const char *raw, size_t len, Record *record);

/* Whether the record is current: permit is what fence_token answered after it was read, by the same process. */
extern bool calls_is_current(const Record *record, const char *permit);

/* The token of a permit: length of its beginning; 0: it is none. */
extern size_t calls_token_len(const char *permit);

/* fence_token: the permit for fence number i of the n that were asked for; "": nothing may be taken for current. */
extern const char *calls_permit(const redisReply *reply, int i, int n);

/* fence_get: either a record, or what else it is. Pointers into the reply. */
typedef struct GetReply
{
	bool		hit;			/* record is set */
	Record		record;
	const char *permit;			/* of a miss; else NULL */
	int			busy_ms;		/* of a miss: how long another reader has to put the value; 0: none has */
	bool		pending;
	bool		unarmed;
} GetReply;

/* False: it is no such answer. */
extern bool calls_get(const redisReply *reply, GetReply *get);

/* fence_put: "stored", or "refused" and why; NULL: it is no such answer. */
extern const char *calls_put(const redisReply *reply);

/* fence_check: whether all n are as they were. */
extern bool calls_all_same(const redisReply *reply, int n);

/* fence_hello */
typedef struct Hello
{
	char		identity[IDENTITY_LEN];
	int64		time_ms;		/* the node's clock */
	char		role[16];
	int			library;		/* version of the function library */
	char		owner[32];		/* of the arming that the process has; empty: none */
	uint32		timeline;		/* of the owner then */
	char		epoch[EPOCH_LEN];
} Hello;

/* False: it is no such answer. */
extern bool calls_hello(const redisReply *reply, Hello *hello);

/* fence_status. Pointers into the reply. */
typedef struct StatusReply
{
	bool		armed;			/* readers are answered, unless something is pending */
	const char *permit;			/* "": the domain is not known */
	const char *recent;			/* stamp of who committed what is newest; "": not known, or something is pending */
	int			pending;		/* reservations: see calls_reservation */
} StatusReply;

/* False: it is no such answer. */
extern bool calls_status(const redisReply *reply, StatusReply *status);
extern void calls_reservation(const redisReply *reply, int i, const char **stamp, bool *domain, int64 *age_ms);

/*
 * A derived value as it is stored: its sources, then a JSON text. A record is read source by source: calls_next_source returns
 * where the rest begins, and changes the text; NULL: there is no further one. What follows the last one is told by
 * calls_derived_json, NULL if nothing is.
 */
extern void calls_append_source(StringInfo record, const char *fence, const char *token, int64 version);
extern void calls_append_json(StringInfo record, const char *json, size_t len);
extern char *calls_next_source(char *rest, char **fence, char **token, int64 *version);
extern char *calls_derived_json(char *rest);

#endif
