/*
 * redis/calls.c
 *	  The wire format of the function library; see calls.h. Functions are in the order of calls.h.
 *
 * Owns: the encoding of calls and the decoding of replies. Takes no locks. Keeps no state.
 */
#include "postgres.h"

#include "base/settings.h"
#include "redis/calls.h"

/* number: the epoch's number. Returns the length. */
static size_t
make_header(char header[HEADER_LEN], uint32 number)
{
	size_t		len = strlen(setting_namespace);

	memcpy(header, setting_namespace, len);
	header[len++] = ' ';
	fence_epoch_of(number, header + len);
	return len + strlen(header + len);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Calls
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Returns what follows the domain in the name of a fence, or of a value beside it. */
static const char *
key_of_name(const char *fence)
{
	return strstr(fence, ":{") + 1;
}

static void
add_bytes(Call *call, const char *bytes, size_t len)
{
	Assert(call->argv != call->few || call->argc < CALL_FEW);
	call->argv[call->argc] = bytes;
	call->argvlen[call->argc++] = len;
}

static void
add(Call *call, const char *string)
{
	add_bytes(call, string, strlen(string));
}

static void
add_number(Call *call, int64 number)
{
	char	   *text = call->numbers[call->nnumbers++];

	Assert(call->nnumbers <= CALL_NUMBERS);
	pg_lltoa(number, text);
	add(call, text);
}

void
call_wrap(Call *call, int argc, const char **argv, size_t *argvlen)
{
	call->argc = argc;
	call->argv = argv;
	call->argvlen = argvlen;
	call->nonce[0] = '\0';
}

/* Adds a nonce that no other outstanding call of this process has. */
static void
add_nonce(Call *call)
{
	static uint32 nonces = 0;

	snprintf(call->nonce, NONCE_LEN, "#%u", ++nonces);
	add(call, call->nonce);
}

/* n: how many strings follow. If they do not fit into `few`, allocates. */
static void
begin(Call *call, const char *command, int n)
{
	call->argc = call->nnumbers = 0;
	call->argv = call->few;
	call->argvlen = call->few_len;
	call->nonce[0] = '\0';
	if (n + 5 > CALL_FEW)
	{
		call->argv = palloc(sizeof(char *) * (n + 5));
		call->argvlen = palloc(sizeof(size_t) * (n + 5));
	}
	add(call, command);
}

static void
begin_many(Call *call, const char *function, int nkeys, int n)
{
	begin(call, "FCALL_RO", n);
	add(call, function);
	add_number(call, nkeys);
}

/*
 * Builds a call of a function with `nkeys` keys. `form` has one message for each argument that follows: s (string), n
 * (number, int64), b (bytes and their length, size_t), N (the namespace; takes no argument), h (the header of the epoch
 * with this number, uint32), e (the name of that epoch, uint32).
 */
static void
make(Call *call, const char *command, const char *function, int nkeys, const char *form,...)
{
	va_list		args;

	begin(call, command, 0);
	add(call, function);
	add_number(call, nkeys);
	va_start(args, form);
	for (; *form; form++)
	{
		const char *bytes;

		if (*form == 's')
			add(call, va_arg(args, const char *));
		else if (*form == 'n')
			add_number(call, va_arg(args, int64));
		else if (*form == 'N')
			add(call, setting_namespace);
		else if (*form == 'b')
		{
			bytes = va_arg(args, const char *);
			add_bytes(call, bytes, va_arg(args, size_t));
		}
		else
		{
			if (*form == 'h')
				(void) make_header(call->header, va_arg(args, uint32));
			else
				fence_epoch_of(va_arg(args, uint32), call->header);
			add(call, call->header);
		}
	}
	va_end(args);
}

void
call_mget(Call *call, int n, const char **keys)
{
	begin(call, "MGET", n);
	for (int i = 0; i < n; i++)
		add(call, keys[i]);
}

void
call_token(Call *call, int n, const char **fences)
{
	begin_many(call, "fence_token", n, n);
	for (int i = 0; i < n; i++)
		add(call, fences[i]);
	add_nonce(call);
}

void
call_check(Call *call, int n, const char **fences, const char **tokens, const char **versions)
{
	begin_many(call, "fence_check", n, 3 * n);
	for (int i = 0; i < n; i++)
		add(call, fences[i]);
	for (int i = 0; i < n; i++)
	{
		add(call, tokens[i]);
		add(call, versions[i]);
	}
	add_nonce(call);
}

void
call_about(Call *call, const char *function, const char *key)
{
	make(call, "FCALL_RO", function, 1, "s", key);
	add_nonce(call);
}

void
call_release(Call *call, const char *fence)
{
	make(call, "FCALL_RO", "fence_release", 1, "s", fence);
}

void
call_put(Call *call, const char *fence, const char *permit, const char *word, const char *payload, size_t payload_len, int64 ttl_ms)
{
	make(call, "FCALL", "fence_put", 1, "sssbn", fence, permit, word, payload, payload_len, ttl_ms);
}

void
call_put_beside(Call calls[2], const char *fence, const char *permit, const char *word, const char *payload, size_t payload_len, int64 ttl_ms,
				uint64 nonce)
{
	StringInfoData side;
	StringInfoData record;
	size_t		kind = strcspn(fence, ":") + 1;	/* position of the "f" in the fence's name; values beside the fence have "v" there */

	initStringInfo(&side);
	appendStringInfo(&side, "%s:put.%016llx", fence, (unsigned long long) nonce);
	side.data[kind] = 'v';
	initStringInfo(&record);
	/* the record has the version without the epoch, with which its token begins */
	appendStringInfo(&record, "%.*s %s %s\n", (int) calls_token_len(permit), permit, strchr(word, '.') + 1, key_of_name(fence));
	appendBinaryStringInfo(&record, payload, payload_len);
	call_set(&calls[0], side.data, record.data, record.len, PUT_BESIDE_MS);
	make(&calls[1], "FCALL", "fence_put_from", 2, "ssssn", fence, side.data, permit, word, ttl_ms);
}

void
call_set(Call *call, const char *key, const char *value, size_t len, int64 ttl_ms)
{
	begin(call, "SET", 0);
	add(call, key);
	add_bytes(call, value, len);
	add(call, "PX");
	add_number(call, ttl_ms);
}

void
call_reserve(Call *call, uint32 epoch, const char *stamp, const char *fence)
{
	make(call, "FCALL", "fence_write", 0, "hsns", epoch, stamp, INT64CONST(1), fence);
}

void
call_end(Call *call, uint32 epoch, const char *ended)
{
	make(call, "FCALL", "fence_write", 0, "hsns", epoch, "-", INT64CONST(0), ended);
}

void
call_domain_reserve(Call *call, uint32 epoch, const char *redis_name, const char *stamp, int64 ended)
{
	make(call, "FCALL", "fence_domain_reserve", 0, "hssn", epoch, redis_name, stamp, ended);
}

void
call_domain_end(Call *call, uint32 epoch, const char *redis_name, const char *stamp, bool committed)
{
	make(call, "FCALL", "fence_domain_end", 0, "hsss", epoch, redis_name, stamp, committed ? "committed" : "aborted");
}

void
call_announce(Call *call, uint32 epoch, const char *redis_name, int64 id, const char *publish, uint32 grant)
{
	make(call, "FCALL", "fence_announce", 0, "Nesnsn", epoch, redis_name, id, publish, (int64) grant);
}

void
call_remove(Call *call, uint32 epoch, const char *fence, const char *seen)
{
	make(call, "FCALL", "fence_remove", 1, "shs", fence, epoch, seen);
}

void
call_open(Call *call, uint32 epoch, uint32 turn, int margin_ms, const char *buckets)
{
	make(call, "FCALL", "fence_open", 0, "hnns", epoch, (int64) turn, (int64) margin_ms, buckets);
}

void
call_sweep(Call *call, uint32 epoch, int n, const char **fences)
{
	(void) make_header(call->header, epoch);
	begin(call, "FCALL", n);
	add(call, "fence_sweep");
	add_number(call, 0);
	add(call, call->header);
	for (int i = 0; i < n; i++)
		add(call, fences[i]);
}

void
call_mark(Call *call, uint32 epoch, int64 number, const char *position, int64 running)
{
	make(call, "FCALL", "fence_mark", 0, "hnsn", epoch, number, position, running);
}

void
call_pending(Call *call, int limit, const char *cursor)
{
	make(call, "FCALL_RO", "fence_pending", 0, "Nns", (int64) limit, cursor);
}

void
call_counts(Call *call)
{
	make(call, "FCALL_RO", "fence_counts", 0, "N");
}

void
call_rights(Call *call, bool events)
{
	make(call, "FCALL_RO", "fence_rights", 0, events ? "Ns" : "N", "events");
}

void
call_hot(Call *call)
{
	make(call, "FCALL_RO", "fence_hot", 0, "N");
}

void
calls_settings(char settings[SETTINGS_LEN], uint32 grant)
{
	snprintf(settings, SETTINGS_LEN, INT64_FORMAT " %d %d %u %d %d", (int64) setting_default_ttl * 1000, setting_fill_lease,
			 setting_stream_limit, grant, setting_watch_buckets, setting_warm_rate);
}

void
call_hello(Call *call, const char *nonce, const char *owner, uint32 timeline, const char *server)
{
	make(call, "FCALL", "fence_hello", 0, owner ? "Nssns" : "Ns", nonce, owner, (int64) timeline, server);
}

void
call_arm(Call *call, const char *key, const char *identity, const char *epoch, int64 until, const char *slots, const char *owner,
		 uint32 timeline, const char *server, const char *settings)
{
	make(call, "FCALL", "fence_arm", 1, "sssnssnss", key, identity, epoch, until, slots, owner, (int64) timeline, server, settings);
}

void
call_renew(Call *call, const char *key, const char *identity, const char *epoch, int64 until, const char *settings, const char *slots)
{
	make(call, "FCALL", "fence_renew", 0, slots ? "sssnss" : "sssns", key, identity, epoch, until, settings, slots);
}

void
call_resume(Call *call, uint32 epoch, const char *identity, uint32 timeline, const char *before, const char *server)
{
	make(call, "FCALL", "fence_resume", 0, "hsnss", epoch, identity, (int64) timeline, before, server);
}

void
call_disarm(Call *call, const char *owner, uint32 timeline)
{
	make(call, "FCALL", "fence_disarm", 0, "Nsn", owner, (int64) timeline);
}

bool
calls_encode(RespBuffer *buffer, const Call *call)
{
	resp_clear(buffer);
	for (int i = 0; i < call->argc; i++)
		resp_bytes(buffer, call->argv[i], call->argvlen[i]);
	return !buffer->full;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Calls of fence_write
 * -----------------------------------------------------------------------------------------------------------------
 */

const char *
calls_end_word(char word[END_WORD_LEN], const char *stamp, bool committed, int64 number)
{
	if (!committed)
		snprintf(word, END_WORD_LEN, "-%s", stamp);
	else if (number > 0)
		snprintf(word, END_WORD_LEN, "=" INT64_FORMAT " %s", number, stamp);
	else
		return stamp;
	return word;
}

/*
 * Writes the strings before the fences or rows. Returns their end. Written by hand, because snprintf would take as long as all the
 * rest.
 */
#define HEAD_LEN (HEADER_LEN + 192)
#define HEAD_STRINGS 6
#define WRITE_CALL "$5\r\nFCALL\r\n$11\r\nfence_write\r\n$1\r\n0\r\n"
#define STORE_CALL "$5\r\nFCALL\r\n$11\r\nfence_store\r\n$1\r\n0\r\n"
#define CALL_LEN (sizeof(WRITE_CALL) - 1)	/* of either */

static char *
put_head(char *p, const char *call, uint32 epoch, const char *stamp, const char *number, const char *number_end)
{
	char		header[HEADER_LEN];

	memcpy(p, call, CALL_LEN);
	p = resp_text(p + CALL_LEN, header, make_header(header, epoch));
	p = resp_text(p, stamp, strlen(stamp));
	return resp_text(p, number, number_end - number);
}

/* An echo is '#' and the last two digits of the call's number. */
#define ECHO_SIZE 100
#define ECHO_LEN 3

static char *
put_echo(char *p, uint32 call)
{
	p[0] = '#';
	p[1] = '0' + call % ECHO_SIZE / 10;
	p[2] = '0' + call % 10;
	return p + ECHO_LEN;
}

/* The head of a call of fence_write. The echo stands behind the number of fences. */
static char *
put_write_head(char *p, uint32 epoch, const char *stamp, int n, uint32 call)
{
	char		number[24 + ECHO_LEN];

	return put_head(p, WRITE_CALL, epoch, stamp, number, put_echo(resp_digits(number, n), call));
}

static char *
put_bytes(char *p, const char *bytes, size_t len)
{
	memcpy(p, bytes, len);
	return p + len;
}

bool
calls_take_echo(redisReply *reply, uint32 call)
{
	int64		echo = call % ECHO_SIZE;
	const char *last;
	bool		is;

	if (reply->type == REDIS_REPLY_ERROR)
		return true;
	if (reply->type == REDIS_REPLY_INTEGER)
	{
		is = reply->integer % ECHO_SIZE == echo;
		reply->integer /= ECHO_SIZE;
		return is;
	}
	last = reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 ? calls_string(reply, reply->elements - 1) : NULL;
	return last && last[0] == '#' && atoi(last + 1) == echo;
}

bool
calls_send_write(RedisConnection *conn, uint32 epoch, const WriteCall *write, uint32 call)
{
	const RespBuffer *fences = &write->fences;
	const RespBuffer *ends = &write->ends;
	char	   *p = redis_begin_raw(conn, HEAD_LEN + fences->len + ends->len);

	if (p == NULL)
		return false;
	p = resp_line(p, '*', HEAD_STRINGS + fences->strings + ends->strings);
	p = put_write_head(p, epoch, fences->strings ? write->stamp : "-", fences->strings, call);
	p = put_bytes(p, fences->bytes, fences->len);
	redis_end_raw(conn, put_bytes(p, ends->bytes, ends->len), 1);
	return true;
}

bool
calls_send_message(RedisConnection *conn, const Message *message, uint32 call)
{
	bool		words = message->kind == MESSAGE_END;
	char		echo[ECHO_LEN];
	char	   *p = redis_begin_raw(conn, HEAD_LEN + message->len);

	if (p == NULL)
		return false;
	p = resp_line(p, '*', message->strings + (words ? HEAD_STRINGS : 1));
	if (words)
		p = put_write_head(p, message->epoch, "-", 0, call);
	p = put_bytes(p, message->bytes, message->len);
	if (!words)
		p = resp_text(p, echo, put_echo(echo, call) - echo);
	redis_end_raw(conn, p, 1);
	return true;
}

static void
append_string(StringInfo buf, const char *string, size_t len)
{
	appendStringInfo(buf, "$%zu\r\n", len);
	appendBinaryStringInfo(buf, string, len);
	appendBinaryStringInfo(buf, "\r\n", 2);
}

static void
append_number(StringInfo buf, int64 number)
{
	char		text[24];

	append_string(buf, text, pg_lltoa(number, text));
}

void
calls_store_row(StringInfo rows, const char *fence, int64 number, int64 version, int64 ttl_ms, const char *payload)
{
	append_string(rows, fence, strlen(fence));
	append_number(rows, number);
	append_number(rows, version);
	if (ttl_ms == STORE_NOTHING)
		append_string(rows, "", 0);
	else
		append_number(rows, ttl_ms);
	append_string(rows, payload, strlen(payload));
}

int
calls_finish_store(StringInfo command, uint32 epoch, const char *stamp, int nrows, const StringInfo rows, const char *ended)
{
	char		head[HEAD_LEN];
	char		number[24];

	appendBinaryStringInfo(command, head, put_head(head, STORE_CALL, epoch, stamp, number, resp_digits(number, nrows)) - head);
	appendBinaryStringInfo(command, rows->data, rows->len);
	append_string(command, ended, strlen(ended));
	return HEAD_STRINGS + 5 * nrows + 1;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Answers
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Takes the nonce away that ends a text, behind a blank. */
static bool
strip_text(redisReply *reply, const char *nonce)
{
	char	   *blank = strrchr(reply->str, ' ');

	if (blank == NULL || strcmp(blank + 1, nonce) != 0)
		return false;
	*blank = '\0';
	reply->len = blank - reply->str;
	return true;
}

bool
calls_answers(const Call *call, redisReply *reply)
{
	const char *last;

	if (call->nonce[0] == '\0' || reply->type == REDIS_REPLY_ERROR)
		return true;
	if (reply->type == REDIS_REPLY_STRING)
		return strip_text(reply, call->nonce);
	last = reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 ? calls_string(reply, reply->elements - 1) : NULL;
	if (last == NULL || strcmp(last, call->nonce) != 0)
		return false;
	freeReplyObject(reply->element[--reply->elements]);
	return true;
}

int64
calls_granted(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_INTEGER && reply->integer > 0 ? reply->integer : 0;
}

MessageResult
calls_result(const redisReply *reply)
{
	if (reply == NULL)
		return MESSAGE_UNANSWERED;
	if (reply->type == REDIS_REPLY_ERROR)
		return MESSAGE_LOST;
	return (reply->type == REDIS_REPLY_INTEGER && reply->integer == 0) || calls_is(reply, "unarmed") ? MESSAGE_UNARMED : MESSAGE_WRITTEN;
}

void
calls_refusal(const redisReply *reply, char *text, size_t size)
{
	if (reply->type == REDIS_REPLY_ERROR)
		snprintf(text, size, "Redis answered: %.*s", (int) Min(reply->len, size - 32), reply->str);
	else
		strlcpy(text, "Redis is not armed for this epoch", size);
}

const char *
calls_string(const redisReply *reply, size_t i)
{
	if (reply->type != REDIS_REPLY_ARRAY || i >= reply->elements || reply->element[i]->type != REDIS_REPLY_STRING)
		return NULL;
	return reply->element[i]->str;
}

bool
calls_is(const redisReply *reply, const char *word)
{
	const char *first = calls_string(reply, 0);

	return first && strcmp(first, word) == 0;
}

bool
calls_record(const char *raw, size_t len, Record *record)
{
	const char *end = raw + len;
	const char *newline = memchr(raw, '\n', len);
	const char *stop = newline ? newline : end;
	const char *first = memchr(raw, ' ', stop - raw);
	const char *second = first ? memchr(first + 1, ' ', stop - first - 1) : NULL;
	const char *third = second ? memchr(second + 1, ' ', stop - second - 1) : NULL;
	const char *key = third ? third + 1 : second ? second + 1 : NULL;
	char	   *after;

	if (second == NULL || first == raw || second == first + 1 || second - first > 20 || strspn(first + 1, "0123456789") != (size_t) (second - first - 1))
		return false;
	errno = 0;
	*record = (Record) {
		.token = raw, .token_len = first - raw, .version = strtoll(first + 1, &after, 10), .stamp = second + 1,
		.stamp_len = third ? third - second - 1 : 0, .key = key, .key_len = stop - key, .payload = newline ? newline + 1 : NULL,
		.payload_len = newline ? end - newline - 1 : 0
	};
	return errno == 0;
}

bool
calls_is_of(const Record *record, const char *fence)
{
	const char *key = key_of_name(fence);

	return record->payload == NULL || (strlen(key) == record->key_len && memcmp(key, record->key, record->key_len) == 0);
}

size_t
calls_token_len(const char *permit)
{
	const char *blank = strchr(permit, ' ');

	return blank ? blank - permit : 0;
}

bool
calls_is_current(const Record *record, const char *permit)
{
	size_t		len = calls_token_len(permit);

	return len > 0 && len == record->token_len && memcmp(permit, record->token, len) == 0;
}

const char *
calls_permit(const redisReply *reply, int i, int n)
{
	const char *permit = n > 1 ? calls_string(reply, i) : reply->type == REDIS_REPLY_STRING ? reply->str : NULL;

	return permit ? permit : "";
}

bool
calls_get(const redisReply *reply, GetReply *get)
{
	const char *record = calls_string(reply, 1);
	const char *busy = calls_string(reply, 3);

	memset(get, 0, sizeof(GetReply));
	get->hit = calls_is(reply, "hit") && record && calls_record(record, reply->element[1]->len, &get->record);
	get->permit = calls_is(reply, "miss") ? record : NULL;
	get->busy_ms = get->permit && busy ? atoi(busy) : 0;
	get->pending = calls_is(reply, "pending");
	get->unarmed = calls_is(reply, "unarmed");
	return get->hit || get->permit || get->pending || get->unarmed;
}

const char *
calls_put(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_STRING ? reply->str : NULL;
}

bool
calls_all_same(const redisReply *reply, int n)
{
	return reply->type == REDIS_REPLY_STRING && reply->len == (size_t) n && strspn(reply->str, "1") == (size_t) n;
}

bool
calls_open(const redisReply *reply, OpenReply *open)
{
	const char *former = calls_string(reply, 1);
	const char *longest = calls_string(reply, 2);
	const char *wanted = calls_string(reply, 3);

	if (!calls_is(reply, "opened") || former == NULL || longest == NULL || wanted == NULL)
		return false;
	open->former = former;
	open->longest = strtoll(longest, NULL, 10);
	open->wanted = wanted;
	return true;
}

int64
calls_mark(const redisReply *reply)
{
	const char *number = calls_is(reply, "marked") ? calls_string(reply, 1) : NULL;

	return number ? strtoll(number, NULL, 10) : -1;
}

bool
calls_newest(const redisReply *reply, NewestReply *newest)
{
	const char *strings[6];

	for (int i = 0; i < (int) lengthof(strings); i++)
		if ((strings[i] = calls_string(reply, i)) == NULL)
			return false;
	newest->owner = strings[0];
	newest->timeline = (uint32) strtoul(strings[1], NULL, 10);
	newest->permit = strings[2];
	newest->position = strings[3];
	newest->running = strings[4];
	newest->recent = strings[5];
	return true;
}

bool
calls_hello(const redisReply *reply, Hello *hello)
{
	const char *strings[9];

	for (int i = 0; i < (int) lengthof(strings); i++)
		if ((strings[i] = calls_string(reply, i)) == NULL)
			return false;
	strlcpy(hello->identity, strings[0], IDENTITY_LEN);
	hello->time_ms = strtoll(strings[1], NULL, 10);
	strlcpy(hello->role, strings[2], sizeof(hello->role));
	hello->library = atoi(strings[3]);
	strlcpy(hello->owner, strings[4], sizeof(hello->owner));
	hello->timeline = (uint32) strtoul(strings[5], NULL, 10);
	strlcpy(hello->epoch, strings[6], EPOCH_LEN);
	strlcpy(hello->refusal, strings[8], REASON_LEN);
	return reply->elements == lengthof(strings);
}

#define STATUS_STRINGS 3		/* that precede the reservations, each of which has as many */

bool
calls_status(const redisReply *reply, StatusReply *status)
{
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements < STATUS_STRINGS || reply->elements % STATUS_STRINGS != 0)
		return false;
	for (size_t i = 0; i < reply->elements; i++)
		if (calls_string(reply, i) == NULL)
			return false;
	status->armed = calls_is(reply, "armed");
	status->permit = calls_string(reply, 1);
	status->pending = (int) (reply->elements / STATUS_STRINGS) - 1;
	return true;
}

void
calls_reservation(const redisReply *reply, int i, const char **stamp, bool *domain, int64 *age_ms)
{
	redisReply *const *strings = reply->element + STATUS_STRINGS * (i + 1);

	*stamp = strings[0]->str;
	*domain = strcmp(strings[1]->str, "domain") == 0;
	*age_ms = strtoll(strings[2]->str, NULL, 10);
}

void
calls_append_source(StringInfo record, const char *fence, const char *token, int64 version)
{
	appendStringInfo(record, "%s %s " INT64_FORMAT "\n", fence, token, version);
}

void
calls_append_json(StringInfo record, const char *json, size_t len)
{
	appendStringInfoChar(record, '\n');
	appendBinaryStringInfo(record, json, len);
}

char *
calls_next_source(char *rest, char **fence, char **token, int64 *version)
{
	char	   *newline = strchr(rest, '\n');
	char	   *first = strchr(rest, ' ');
	char	   *second = first ? strchr(first + 1, ' ') : NULL;

	if (newline == NULL || second == NULL || second > newline)
		return NULL;
	*first = *second = *newline = '\0';
	*fence = rest;
	*token = first + 1;
	*version = strtoll(second + 1, NULL, 10);
	return newline + 1;
}

char *
calls_derived_json(char *rest)
{
	return *rest == '\n' ? rest + 1 : NULL;
}
