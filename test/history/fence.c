/*
 * fence.c
 *	  The strategy "fence": readers that follow the rules of pgcache_fence, in every way that doc/clients.md describes. Writers
 *	  need no code here, because they only write SQL.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define FENCED		"\"fenced\":"			/* the fence's version, in the payloads that these readers put */
#define ID			"\"id\":"				/* the row's key, in all payloads: a row of another key must not pass for this one */
#define SUFFIX		":text"					/* of the value beside the fence; its payload is the same */

/* -----------------------------------------------------------------------------------------------------------------
 * Names and records
 * -----------------------------------------------------------------------------------------------------------------
 */

void
names_of(const Client *c, int key, Names *names)
{
	snprintf(names->fence, sizeof(names->fence), "%s%d}", c->at.fence, key);
	snprintf(names->value, sizeof(names->value), "%s%d}" SUFFIX, c->at.value, key);
}

/* Parses a payload; "null" means that there is no such row. Returns false if the payload has an unknown form. */
bool
parse_payload(const char *payload, Row *row)
{
	const char *version = strstr(payload, "\"version\":");
	const char *val = strstr(payload, "\"val\":");
	const char *fenced = strstr(payload, FENCED);
	const char *id = strstr(payload, ID);

	*row = (Row) {NONE, NONE, NONE, 0, ""};
	if (version == NULL || val == NULL)
		return strcmp(payload, "null") == 0 || strcmp(payload, "[]") == 0;
	row->version = strtoll(version + 10, NULL, 10);
	row->val = strtoll(val + 6, NULL, 10);
	row->fenced = fenced == NULL ? NONE : strtoll(fenced + strlen(FENCED), NULL, 10);
	row->id = id == NULL ? 0 : atoi(id + strlen(ID));
	return true;
}

/* Takes the fence's version from the header. If the payload has another one, the checker will report it. */
static void
take_row(const char *payload, int64_t version, bool written, Cached *found)
{
	if (!parse_payload(payload, &found->row))
	{
		found->kind = READ_ERROR;
		return;
	}
	found->kind = written ? READ_WRITTEN : READ_HIT;
	if (found->row.fenced == NONE && written)
		found->row.fenced = found->row.version;
	if (found->row.fenced != NONE && found->row.fenced != version)
		found->row.val = NONE - 1;
	found->row.fenced = version;
}

/* Where the name's key begins in the header that ends at `end`; NULL if the header's last word is another key. */
static const char *
key_in_header(const char *record, const char *end, const char *name)
{
	const char *key = strchr(name, '{');
	size_t		length = strlen(key);
	const char *word = end - length;

	return (size_t) (end - record) > length && word[-1] == ' ' && strncmp(word, key, length) == 0 ? word : NULL;
}

/*
 * Judges a record of that name, "<token> <version> <stamp> <key>\n<payload>", or one without a newline: a hit if the permit begins
 * with the same token. The record of another key is the answer to another question; then nothing that comes on these connections
 * can be trusted.
 */
void
take_record(Client *c, const char *name, const char *record, const char *permit, Cached *found)
{
	size_t		length = strcspn(permit, " ");
	const char *newline = strchr(record, '\n');
	const char *key = newline ? key_in_header(record, newline, name) : NULL;
	char	   *stamp;
	int64_t		number;

	found->kind = READ_ERROR;
	if (newline != NULL && key == NULL)
	{
		redis_leave(c);
		return;
	}
	found->kind = length == 0 ? READ_UNARMED : READ_MISS;
	snprintf(found->permit, sizeof(found->permit), "%s", permit);
	if (length == 0 || strncmp(record, permit, length) != 0 || record[length] != ' ' || newline == NULL)
		return;
	snprintf(found->token, sizeof(found->token), "%.*s", (int) length, permit);
	number = strtoll(record + length + 1, &stamp, 10);
	take_row(newline + 1, number, stamp + 1 < key, found);
}

/* A nonce for the next question. The beginning is this client's own: no other one may have the same answer coming. */
static const char *
next_nonce(Client *c)
{
	static uint64_t questions;
	static uint64_t own;

	if (own == 0)
		own = 1 + draw(c, UINT32_MAX);
	snprintf(c->nonce, sizeof(c->nonce), "#%xn%x", (unsigned) own, (unsigned) ++questions);
	return c->nonce;
}

/*
 * The number of elements before the nonce, if the reply is an array that has the present one. Otherwise it answers another question,
 * and the connections are closed.
 */
static size_t
elements_of(Client *c, const redisReply *reply)
{
	if (reply == NULL)
		return 0;
	if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 1 && is_word(reply, reply->elements - 1, c->nonce))
		return reply->elements - 1;
	redis_leave(c);
	return 0;
}

/* The same for a text, behind which the nonce stands after a blank: takes it away, and returns the text. NULL: another question's. */
static const char *
answer_of(Client *c, redisReply *reply)
{
	size_t		length = strlen(c->nonce) + 1;

	if (reply == NULL)
		return NULL;
	if (reply->type == REDIS_REPLY_STRING && reply->len >= length && reply->str[reply->len - length] == ' ' &&
		strcmp(reply->str + reply->len - length + 1, c->nonce) == 0)
	{
		reply->str[reply->len - length] = '\0';
		return reply->str;
	}
	redis_leave(c);
	return NULL;
}

static const char *
text_of(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_STRING ? reply->str : "";
}

/* -----------------------------------------------------------------------------------------------------------------
 * Straight from Redis
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * The strong read of n names in one process: MGET, then fence_token. The caller frees the two replies, which have been checked;
 * false if there are none. block: send them within MULTI and EXEC.
 */
static bool
read_names(Client *c, bool block, int n, const char *const *names, const char *fence, redisReply **replies)
{
	const char *mget[1 + 2 * GROUP_MAX] = {"MGET"};
	const char *told[] = {"FCALL_RO", "fence_token", "1", fence, next_nonce(c)};
	Command		commands[] = {{.n = 1 + n, .words = mget}, {.n = 5, .words = told}};

	memcpy(mget + 1, names, sizeof(char *) * (size_t) n);
	if (!redis_together(c, block || c->at.confused, commands, 2, replies))
		return false;
	if (answer_of(c, replies[1]) != NULL && replies[0]->type == REDIS_REPLY_ARRAY && replies[0]->elements == (size_t) n)
		return true;
	redis_leave(c);
	discard(replies[0]);
	discard(replies[1]);
	return false;
}

static void
get_fast(Client *c, const Names *names, bool block, Cached *found)
{
	redisReply *replies[COMMANDS_MAX];

	if (!read_names(c, block, 1, (const char *[]) {names->fence}, names->fence, replies))
		return;
	take_record(c, names->fence, text_of(replies[0]->element[0]), replies[1]->str, found);
	discard(replies[0]);
	discard(replies[1]);
}

/* Whether two records have the same header, "<token> <version> ". */
static bool
same_header(const char *one, const char *other)
{
	const char *blank = strchr(one, ' ');
	const char *end = blank ? strchr(blank + 1, ' ') : NULL;

	return end != NULL && strncmp(one, other, (size_t) (end + 1 - one)) == 0;
}

/* A value beside the fence is current if the fence is current and both have the same header. The fence may be a mark. */
static void
get_beside(Client *c, const Names *names, Cached *found)
{
	redisReply *replies[COMMANDS_MAX];
	const char *fence;
	const char *value;

	if (!read_names(c, true, 2, (const char *[]) {names->fence, names->value}, names->fence, replies))
		return;
	fence = text_of(replies[0]->element[0]);
	value = text_of(replies[0]->element[1]);
	take_record(c, names->value, same_header(fence, value) ? value : "", replies[1]->str, found);
	discard(replies[0]);
	discard(replies[1]);
}

/* fence_get. Returns the milliseconds within which another reader is expected to put the value; 0 if no reader is. */
static int
get_slow(Client *c, const Names *names, bool beside, Cached *found)
{
	const char *nonce = next_nonce(c);
	redisReply *reply = redis_call(c, beside ? 6 : 5, (const char *[]) {"FCALL_RO", "fence_get", beside ? "2" : "1", names->fence,
								   beside ? names->value : nonce, nonce});
	size_t		words = elements_of(c, reply);
	int			busy_ms = 0;

	found->kind = READ_ERROR;
	if (words == 2 && is_word(reply, 0, "hit"))
	{
		/* the function has checked that its token is current */
		take_record(c, beside ? names->value : names->fence, text_of(reply->element[1]), text_of(reply->element[1]), found);
		if (!IS_HIT(found->kind))
			found->kind = READ_ERROR;
	}
	else if (words >= 2 && is_word(reply, 0, "miss"))
	{
		found->kind = READ_MISS;
		snprintf(found->permit, sizeof(found->permit), "%s", text_of(reply->element[1]));
		if (words == 4)
			busy_ms = atoi(text_of(reply->element[3]));
	}
	else if (words == 1 && is_word(reply, 0, "pending"))
		found->kind = READ_PENDING;
	else if (words == 1 && is_word(reply, 0, "unarmed"))
		found->kind = READ_UNARMED;
	discard(reply);
	return busy_ms;
}

/* Half of the readers wait while another one puts the missing value. The others read and put anyway. */
static void
get_patiently(Client *c, const Names *names, Cached *found)
{
	bool		beside = draw(c, 4) == 0;
	int64_t		until = 0;
	int			busy_ms;

	if (beside)
		found->way = WAY_BESIDE;
	while ((busy_ms = get_slow(c, names, beside, found)) > 0 && c->worker % 4 < 2)
	{
		if (until == 0)
			until = now_ns() + busy_ms * INT64_C(1000000);
		else if (now_ns() > until)
			break;
		sleep_ms(2);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Through PostgreSQL
 * -----------------------------------------------------------------------------------------------------------------
 */

static PGresult *
execute_for_key(Client *c, const char *prepared, int key)
{
	char		id[16];

	snprintf(id, sizeof(id), "%d", key);
	return pg_ready(c) ? pg_execute(c, prepared, 1, (const char *[]) {id}) : NULL;
}

/* fence.read is for domains whose rows have a version. */
bool
has_sql_read(const Client *c)
{
	return options.strategy->fenced && strcmp(c->at.versions, "aside") != 0 && strcmp(c->at.versions, "group") != 0;
}

static void
get_by_sql(Client *c, int key, Cached *found)
{
	PGresult   *result = execute_for_key(c, "get", key);

	found->kind = READ_NONE;
	if (pg_ok(result) && PQntuples(result) == 1)
	{
		const char *status = PQgetvalue(result, 0, 0);

		found->kind = status[0] == 'm' ? READ_MISS : status[0] == 'p' ? READ_PENDING :
			strcmp(status, "unarmed") == 0 ? READ_UNARMED : READ_ERROR;
		snprintf(found->permit, sizeof(found->permit), "%s", PQgetvalue(result, 0, 1));
		snprintf(found->token, sizeof(found->token), "%.*s", (int) strcspn(found->permit, " "), found->permit);
		if (status[0] == 'h')
			take_row(PQgetvalue(result, 0, 3), pg_number(result, 0, 2), false, found);
	}
	PQclear(result);
}

/*
 * Some readers ask in a transaction with an older snapshot. The checker does not judge these answers, but a value that only that
 * snapshot sees must not get into the cache.
 */
static void
read_by_sql(Client *c, int key, Cached *found)
{
	bool		late = draw(c, 4) == 0;
	PGresult   *result;

	if (late && pg_ready(c))
	{
		PQclear(pg_query(c, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM item LIMIT 1"));
		sleep_ms((int) draw(c, 10));
	}
	result = execute_for_key(c, "read", key);
	if (late)
		PQclear(pg_query(c, "ROLLBACK"));
	found->kind = READ_NONE;
	if (late && pg_ok(result))
		found->kind = READ_PENDING;
	else if (pg_ok(result) && PQntuples(result) == 1)
	{
		found->kind = READ_SQL;
		if (PQgetisnull(result, 0, 0) || !parse_payload(PQgetvalue(result, 0, 0), &found->row))
			found->row = (Row) {NONE, NONE, NONE, 0, ""};
	}
	PQclear(result);
}

/* ----------------------------------------------------------------------------------------------------------------- */

/* Draws the way of a read of one key; the numbers are shares of 16. */
static int
draw_way(Client *c)
{
	static const char ways[] = {WAY_BLOCK, WAY_BLOCK, WAY_BLOCK, WAY_BLOCK, WAY_BLOCK, WAY_PLAIN, WAY_PLAIN, WAY_PLAIN, WAY_PLAIN,
	WAY_SLOW, WAY_SLOW, WAY_SLOW, WAY_BESIDE, WAY_BESIDE, WAY_SQL_GET, WAY_SQL_READ};
	int			way = ways[draw(c, sizeof(ways))];

	return way == WAY_SQL_READ && !has_sql_read(c) ? WAY_SQL_GET : way;
}

void
fence_get(Client *c, int key, Cached *found)
{
	Names		names;

	follow_endpoints(c);
	names_of(c, key, &names);
	found->way = draw_way(c);
	found->kind = READ_ERROR;
	if (found->way == WAY_SLOW)
		get_patiently(c, &names, found);
	else if (found->way == WAY_BESIDE)
		get_beside(c, &names, found);
	else if (found->way == WAY_SQL_GET)
		get_by_sql(c, key, found);
	else if (found->way == WAY_SQL_READ)
		read_by_sql(c, key, found);
	else
		get_fast(c, &names, found->way == WAY_BLOCK, found);
}

void
fence_fill(Client *c, int key, const Cached *found, const Row *row)
{
	Names		names;
	char		id[16];
	char		version[24];
	char		payload[128] = "null";

	if (row->word[0] == '\0')
		return;
	follow_endpoints(c);
	names_of(c, key, &names);
	snprintf(id, sizeof(id), "%d", key);
	snprintf(version, sizeof(version), "%lld", (long long) row->fenced);
	if (row->version != NONE)
		snprintf(payload, sizeof(payload), "{" ID "%d,\"version\":%lld,\"val\":%lld," FENCED "%lld}", key,
				 (long long) row->version, (long long) row->val, (long long) row->fenced);
	if (found->way == WAY_SQL_GET)
		PQclear(pg_execute(c, "put", 4, (const char *[]) {found->permit, version, payload, id}));
	else if (found->way == WAY_BESIDE)
		discard(redis_call(c, 9, (const char *[]) {"FCALL", "fence_put", "2", names.fence, names.value, found->permit, row->word,
						   payload, "0"}));
	else
		discard(redis_call(c, 8, (const char *[]) {"FCALL", "fence_put", "1", names.fence, found->permit, row->word, payload, "0"}));
}

/* -----------------------------------------------------------------------------------------------------------------
 * Several keys
 * -----------------------------------------------------------------------------------------------------------------
 */

/* One MGET reads all keys at the same moment, so hits need no check afterwards. */
static void
get_many_fast(Client *c, const int *keys, Cached *found, int n, int way)
{
	Names		names[GROUP_MAX];
	const char *fences[GROUP_MAX] = {0};
	redisReply *replies[COMMANDS_MAX];

	for (int i = 0; i < n; i++)
	{
		names_of(c, keys[i], &names[i]);
		fences[i] = names[i].fence;
	}
	if (!read_names(c, way == WAY_BLOCK, n, fences, fences[0], replies))
		return;
	for (int i = 0; i < n; i++)
		take_record(c, fences[i], text_of(replies[0]->element[i]), replies[1]->str, &found[i]);
	discard(replies[0]);
	discard(replies[1]);
}

static void
read_many_by_sql(Client *c, const int *keys, Cached *found, int n)
{
	char		list[128] = "{";
	PGresult   *result;

	for (int i = 0; i < n; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%d", i ? "," : "", keys[i]);
	strcat(list, "}");
	result = pg_ready(c) ? pg_execute(c, "read_many", 1, (const char *[]) {list}) : NULL;
	for (int i = 0; i < n && pg_ok(result); i++)
	{
		found[i].kind = READ_SQL;
		found[i].row = (Row) {NONE, NONE, NONE, 0, ""};
		for (int r = 0; r < PQntuples(result); r++)
			if (pg_number(result, r, 0) == keys[i] && !PQgetisnull(result, r, 1))
				(void) parse_payload(PQgetvalue(result, r, 1), &found[i].row);
	}
	PQclear(result);
}

/* Parses {"a": row, "b": row}; a row may be null. */
void
take_both(char *payload, int kind, Cached *found)
{
	char	   *b = strstr(payload, "\"b\":");

	if (b == NULL)
		return;
	for (int i = 1; i >= 0; i--)
	{
		found[i].kind = kind;
		if (!parse_payload(i == 0 ? payload : b, &found[i].row))
			found[i].row = (Row) {NONE, NONE, NONE, 0, ""};
		*b = '\0';
	}
}

static bool
is_current(Client *c, const char *fence, const char *token, const char *version)
{
	redisReply *reply = redis_call(c, 7, (const char *[]) {"FCALL_RO", "fence_check", "1", fence, token, version, next_nonce(c)});
	const char *answer = answer_of(c, reply);
	bool		current = answer != NULL && strcmp(answer, "1") == 0;

	discard(reply);
	return current;
}

/*
 * The payload of "<fence> <token> <version>\n... \n\n<payload>" if each of its sources is current at its own process; else NULL.
 * Then all of them were current when the first one was read, because no version newer than the record's existed before.
 */
static char *
checked_payload(Client *c, char *record)
{
	char	   *payload = strstr(record, "\n\n");
	char	   *rest;

	if (payload == NULL)
		return NULL;
	*payload = '\0';
	for (char *line = strtok_r(record, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
	{
		char		fence[160];
		char		token[64];
		char		version[24];

		if (sscanf(line, "%159s %63s %23s", fence, token, version) != 3 || !is_current(c, fence, token, version))
			return NULL;
	}
	return payload + 2;
}

/* Reads the value derived from both keys, if it exists and is current. */
static bool
ask_derived(Client *c, const char *value, Cached *found)
{
	redisReply *reply = redis_call(c, 5, (const char *[]) {"FCALL_RO", "fence_get_derived", "1", value, next_nonce(c)});
	size_t		words = elements_of(c, reply);
	char	   *payload = NULL;

	if (words == 2 && is_word(reply, 0, "hit"))
		payload = reply->element[1]->str;
	else if (words == 2 && is_word(reply, 0, "elsewhere"))
		payload = checked_payload(c, reply->element[1]->str);
	if (payload != NULL)
		take_both(payload, READ_HIT, found);
	discard(reply);
	return payload != NULL;
}

/* Half of the readers that have computed the value read it once more, because writers change it before most others find it. */
static void
get_derived(Client *c, const int *keys, Cached *found)
{
	char		ids[2][16];
	char		value[256];
	const char *values[] = {ids[0], ids[1]};
	PGresult   *result;

	snprintf(ids[0], sizeof(ids[0]), "%d", keys[0]);
	snprintf(ids[1], sizeof(ids[1]), "%d", keys[1]);
	result = pg_ready(c) ? pg_execute(c, "derived_value", 2, values) : NULL;
	snprintf(value, sizeof(value), "%s", pg_ok(result) && PQntuples(result) == 1 ? PQgetvalue(result, 0, 0) : "");
	PQclear(result);
	if (value[0] == '\0' || ask_derived(c, value, found))
		return;
	result = pg_execute(c, "read_derived", 2, values);
	if (pg_ok(result) && PQntuples(result) == 1 && (draw(c, 2) == 0 || !ask_derived(c, value, found)))
		take_both(PQgetvalue(result, 0, 0), READ_SQL, found);
	PQclear(result);
}

/*
 * Reads several keys at one moment. If kind of the first is 0 afterwards, the caller must read each key alone, and check. That is
 * so with several servers, where one MGET cannot read all keys.
 */
void
fence_get_many(Client *c, const int *keys, Cached *found, int n)
{
	static const char ways[] = {WAY_BLOCK, WAY_BLOCK, WAY_PLAIN, WAY_SQL_MANY, WAY_DERIVED, 0, 0};
	int			way = ways[draw(c, sizeof(ways))];

	follow_endpoints(c);
	if (n == 2 && draw(c, 4) == 0)
		way = WAY_DERIVED;
	if ((way == WAY_DERIVED && n != 2) || (way == WAY_SQL_MANY && !has_sql_read(c)))
		way = WAY_BLOCK;
	if ((way == WAY_BLOCK || way == WAY_PLAIN) && c->layout != SINGLE)
		way = 0;
	if (way == 0)
		return;
	for (int i = 0; i < n; i++)
	{
		found[i].kind = READ_ERROR;
		found[i].way = way;
	}
	if (way == WAY_DERIVED)
		get_derived(c, keys, found);
	else if (way == WAY_SQL_MANY)
		read_many_by_sql(c, keys, found, n);
	else
		get_many_fast(c, keys, found, n, way);
}

/*
 * A GET of each key, and one token for all after the last. Each hit is current at the moment of its own GET. With several servers
 * this reads only one key, because the keys are on different servers.
 */
int
fence_get_pipeline(Client *c, const int *keys, Cached *found, int n)
{
	Names		names[GROUP_MAX];
	const char *gets[GROUP_MAX][2];
	const char *told[] = {"FCALL_RO", "fence_token", "1", names[0].fence, next_nonce(c)};
	Command		commands[COMMANDS_MAX];
	redisReply *replies[COMMANDS_MAX];
	const char *permit;

	follow_endpoints(c);
	n = c->layout == SINGLE ? n : 1;
	for (int i = 0; i < n; i++)
	{
		names_of(c, keys[i], &names[i]);
		gets[i][0] = "GET";
		gets[i][1] = names[i].fence;
		commands[i] = (Command) {.n = 2, .words = gets[i]};
		found[i] = (Cached) {.kind = READ_ERROR, .way = WAY_PIPELINE, .start = now_ns()};
	}
	commands[n] = (Command) {.n = 5, .words = told};
	if (!redis_together(c, c->at.confused, commands, n + 1, replies))
		return n;
	permit = answer_of(c, replies[n]);
	for (int i = 0; i < n; i++)
	{
		if (!c->at.confused)
			found[i].start = commands[i].sent;
		if (permit != NULL)
			take_record(c, names[i].fence, text_of(replies[i]), permit, &found[i]);
		discard(replies[i]);
	}
	discard(replies[n]);
	return n;
}

/*
 * Whether all hits, each found at its own moment, are still current. Then all were current at once, between the reads and the
 * checks. Half of the time this calls fence_check, otherwise it reads them again.
 */
bool
fence_check(Client *c, const int *keys, const Cached *found, int n)
{
	bool		again = draw(c, 2) == 0;
	bool		all = true;

	for (int i = 0; i < n && all; i++)
	{
		Cached		now = {.kind = READ_ERROR};
		char		version[24];
		Names		names;

		names_of(c, keys[i], &names);
		snprintf(version, sizeof(version), "%lld", (long long) found[i].row.fenced);
		if (!again)
			all = is_current(c, names.fence, found[i].token, version);
		else
		{
			get_fast(c, &names, true, &now);
			all = IS_HIT(now.kind) && strcmp(now.token, found[i].token) == 0 && now.row.fenced == found[i].row.fenced;
		}
	}
	return all;
}
