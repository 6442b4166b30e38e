/*
 * test_calls.c
 *	  Prints every call that src/redis/calls.c makes, one a line: its strings, separated by tabs. Each argument is its own name in
 *	  the signatures of the function library (calls.py compares), or a number that stands for one.
 */
#include "postgres.h"

#include "redis/calls.h"
#include "base/settings.h"

char	   *setting_namespace = "namespace";
int			setting_default_ttl = 1;
int			setting_fill_lease = 2;
int			setting_warm_rate = 9;
int			setting_stream_limit = 3;
int			setting_watch_buckets = 0;

enum {VERSION = 11, TTL_MS, SINCE, ENDED, ID, GRANT, LIMIT, UNTIL, TIMELINE, TURN, MARGIN, NUMBER, RUNNING};

void
fence_epoch_of(uint32 number, char epoch[EPOCH_LEN])
{
	(void) number;
	strcpy(epoch, "epoch");
}

static void
print(const Call *call)
{
	for (int i = 0; i < call->argc; i++)
		printf("%s%.*s", i ? "\t" : "", (int) call->argvlen[i], call->argv[i]);
	printf("\n");
}

/* Commands that are sent without a Call */
static void
print_raw(const char *bytes, size_t len)
{
	const char *end = bytes + len;
	bool		first = true;

	bytes = memchr(bytes, '\n', len) + 1;
	while (bytes < end)
	{
		int			size = atoi(bytes + 1);

		bytes = (const char *) memchr(bytes, '\n', end - bytes) + 1;
		printf("%s%.*s", first ? "" : "\t", size, bytes);
		bytes += size + 2;
		first = false;
	}
	printf("\n");
}

static char sent[64 * 1024];

char *
redis_begin_raw(RedisConnection *conn, size_t len)
{
	(void) conn;
	return len <= sizeof(sent) ? sent : NULL;
}

void
redis_end_raw(RedisConnection *conn, const char *end, int commands)
{
	(void) conn;
	(void) commands;
	print_raw(sent, end - sent);
}

/* -----------------------------------------------------------------------------------------------------------------
 * What calls.c needs of PostgreSQL
 * -----------------------------------------------------------------------------------------------------------------
 */

int
pg_lltoa(int64 value, char *text)
{
	return sprintf(text, INT64_FORMAT, value);
}

void *
palloc(Size size)
{
	return malloc(size);
}

#if PG_VERSION_NUM >= 160000
#define BYTES const void
#else
#define BYTES const char
#endif

void
initStringInfo(StringInfo str)
{
	str->data = malloc(1000);
	str->len = 0;
}

void
appendBinaryStringInfo(StringInfo str, BYTES *data, int len)
{
	memcpy(str->data + str->len, data, len);
	str->len += len;
}

void
appendStringInfo(StringInfo str, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	str->len += vsprintf(str->data + str->len, format, args);
	va_end(args);
}

void
appendStringInfoChar(StringInfo str, char c)
{
	str->data[str->len++] = c;
}

void
ExceptionalCondition(const char *condition, const char *error, const char *file, int line)
{
	fprintf(stderr, "%s: %s, %s:%d\n", error, condition, file, line);
	abort();
}

static void
expect(const Call *call, int i, const char *string)
{
	if (call->argvlen[i] != strlen(string) || memcmp(call->argv[i], string, strlen(string)) != 0)
	{
		fprintf(stderr, "%s expected, not %.*s\n", string, (int) call->argvlen[i], call->argv[i]);
		exit(1);
	}
}

static void
replace(Call *call, int i, const char *string)
{
	call->argv[i] = string;
	call->argvlen[i] = strlen(string);
}

/* The parts of names and records that the function library inspects but has not made */
static void
put_beside(void)
{
	static const char *const set[] = {"SET", "n:v:d:{k:f:}:put.00000000000000ab", "token 11 {k:f:}\npayload", "PX", "10000"};
	Call		calls[2];

	call_put_beside(calls, "n:f:d:{k:f:}", "token 17", "1-ab.11", "payload", strlen("payload"), TTL_MS, 0xab);
	for (int i = 0; i < (int) lengthof(set); i++)
		expect(&calls[0], i, set[i]);
	expect(&calls[1], 3, "n:f:d:{k:f:}");
	expect(&calls[1], 4, set[1]);
	expect(&calls[1], 5, "token 17");
	replace(&calls[1], 3, "fence");
	replace(&calls[1], 4, "side");
	replace(&calls[1], 5, "permit");
	replace(&calls[1], 6, "row-version");
	print(&calls[1]);
}

/* Exits with an error unless calls_take_echo accepts the reply to `call` only if it should. */
static void
expect_echo(redisReply reply, uint32 call, bool accepted, int64 number)
{
	if (calls_take_echo(&reply, call) != accepted || (accepted && reply.type == REDIS_REPLY_INTEGER && reply.integer != number))
	{
		fprintf(stderr, "the reply of type %d to call %u\n", reply.type, call);
		exit(1);
	}
}

static void
echoes(void)
{
	redisReply	word = {.type = REDIS_REPLY_STRING, .str = "#07"};
	redisReply *words[] = {&word, &word};

	expect_echo((redisReply) {.type = REDIS_REPLY_INTEGER, .integer = 1234500}, 300, true, 12345);
	expect_echo((redisReply) {.type = REDIS_REPLY_INTEGER, .integer = 7}, 107, true, 0);
	expect_echo((redisReply) {.type = REDIS_REPLY_INTEGER, .integer = 107}, 8, false, 0);
	expect_echo((redisReply) {.type = REDIS_REPLY_INTEGER, .integer = 1}, 0, false, 0);
	expect_echo((redisReply) {.type = REDIS_REPLY_ARRAY, .elements = 2, .element = words}, 207, true, 0);
	expect_echo((redisReply) {.type = REDIS_REPLY_ARRAY, .elements = 2, .element = words}, 70, false, 0);
	expect_echo((redisReply) {.type = REDIS_REPLY_ARRAY}, 0, false, 0);
	expect_echo((redisReply) {.type = REDIS_REPLY_STATUS, .str = "OK"}, 0, false, 0);
	expect_echo((redisReply) {.type = REDIS_REPLY_ERROR, .str = "OOM"}, 5, true, 0);
}

int
main(void)
{
	const char *fences[] = {"fence", "fence"};
	const char *tokens[] = {"token", "token"};
	const char *versions[] = {"version", "version"};
	char		row_bytes[1000];
	char		command_bytes[1000];
	char		word[END_WORD_LEN];
	StringInfoData rows = {.data = row_bytes};
	StringInfoData command = {.data = command_bytes};
	static WriteCall write;
	Message		message = {.strings = 1, .bytes = "$5\r\nended\r\n", .len = 11};
	Call		call;

	echoes();
	call_token(&call, 2, fences);
	print(&call);
	call_get(&call, "fence");
	print(&call);
	call_release(&call, "fence");
	print(&call);
	call_put(&call, "fence", "permit", "row-version", "payload", strlen("payload"), TTL_MS);
	print(&call);
	put_beside();
	call_check(&call, 2, fences, tokens, versions);
	print(&call);
	call_get_derived(&call, "value");
	print(&call);
	call_reserve(&call, 1, "stamp", "fence");
	print(&call);
	call_end(&call, 1, "ended");
	print(&call);
	call_domain_reserve(&call, 1, "domain", "stamp", ENDED);
	print(&call);
	call_domain_end(&call, 1, "domain", "stamp", true);
	print(&call);
	call_domain_end(&call, 1, "domain", "stamp", false);
	print(&call);
	call_announce(&call, 1, "domain", ID, "publish", GRANT);
	print(&call);
	call_remove(&call, 1, "fence", "seen");
	print(&call);
	call_open(&call, 1, TURN, MARGIN, "buckets");
	print(&call);
	call_sweep(&call, 1, 2, fences);
	print(&call);
	call_mark(&call, 1, NUMBER, "position", RUNNING);
	print(&call);
	call_newest(&call, "fence");
	print(&call);
	call_status(&call, "fence");
	print(&call);
	call_pending(&call, LIMIT, "cursor");
	print(&call);
	call_counts(&call);
	print(&call);
	call_hot(&call);
	print(&call);
	call_hello(&call, "nonce", NULL, 0, NULL);
	print(&call);
	call_hello(&call, "nonce", "owner", TIMELINE, "server");
	print(&call);
	call_arm(&call, "heartbeat-key", "identity", "epoch", UNTIL, "slots", "owner", TIMELINE, "server", "settings");
	print(&call);
	call_renew(&call, "heartbeat-key", "identity", "epoch", UNTIL, "settings", "slots");
	print(&call);
	call_renew(&call, "heartbeat-key", "identity", "epoch", UNTIL, "settings", NULL);
	print(&call);
	call_resume(&call, 1, "identity", TIMELINE, "before", "server");
	print(&call);
	call_disarm(&call, "owner", TIMELINE);
	print(&call);

	write_call_clear(&write);
	write_call_reserve(&write, "stamp", "fence");
	write_call_reserve(&write, "stamp", "fence");
	resp_string(&write.ends, "ended");
	resp_string(&write.ends, "ended");
	(void) calls_send_write(NULL, 1, &write, 7);
	write_call_clear(&write);
	write_call_reserve(&write, "stamp", "fence");
	(void) calls_send_write(NULL, 1, &write, 199);
	(void) calls_send_message(NULL, &message, 0);

	calls_store_row(&rows, "fence", SINCE, VERSION, TTL_MS, "payload");
	calls_store_row(&rows, "fence", SINCE, VERSION, STORE_NOTHING, "payload");
	message.kind = MESSAGE_STORE;
	message.strings = calls_finish_store(&command, 1, "stamp", 2, &rows, "ended");
	message.bytes = command.data;
	message.len = command.len;
	(void) calls_send_message(NULL, &message, 42);

	printf("word\t%s\t%s\t%s\n", calls_end_word(word, "7.ab", true, 0), strdup(calls_end_word(word, "7.ab", false, 5)) , "");
	printf("word\t%s\n", calls_end_word(word, "7.ab", true, 5));
	return 0;
}
