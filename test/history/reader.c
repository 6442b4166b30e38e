/*
 * reader.c
 *	  A reader: reads the cache first, PostgreSQL if necessary, and then fills the cache. It reads one key, or several that must
 *	  agree.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define GROUP_PER_MILLE		30
#define PIPELINE_PER_MILLE	30

/* Reads the row from PostgreSQL; version NONE means no row. Returns false if PostgreSQL did not answer. */
bool
read_row(Client *c, int key, Row *row)
{
	char		text[16];
	PGresult   *result;
	bool		ok;

	snprintf(text, sizeof(text), "%d", key);
	if (!pg_ready(c))
		return false;
	result = pg_execute(c, "row", 1, (const char *[]) {text});
	ok = pg_ok(result);
	*row = (Row) {NONE, NONE, NONE, 0, ""};
	if (ok && PQntuples(result) == 1)
	{
		row->version = pg_number(result, 0, 0);
		row->val = pg_number(result, 0, 1);
		row->fenced = pg_number(result, 0, 2);
		snprintf(row->word, sizeof(row->word), "%s", PQgetvalue(result, 0, 3));
	}
	PQclear(result);
	return ok;
}

/* How to record a read that was answered so. A program may call a hit what another of its threads has read from PostgreSQL. */
static int
recorded_kind(const Client *c, int kind)
{
	bool		certain = IS_HIT(kind) && options.strategy->fill != NULL;

	return (c->stays || c->stayed) && kind != READ_NONE && !certain ? READ_OLD : kind;
}

static void
count_read(Client *c, bool hit)
{
	control->counts[c->worker].reads++;
	if (hit)
		control->counts[c->worker].hits++;
}

static void
offer(Client *c, int key, const Cached *found, const Row *row)
{
	if (chance(c, control->reader_stall_ppm))
		sleep_ms((int) draw(c, 2 * (uint64_t) control->reader_stall_ms + 1));
	options.strategy->fill(c, key, found, row);
}

/* Whether the absence of a row may be put: its version must be known, and writers must reserve rows that do not exist. */
static bool
may_offer(const Client *c, const Cached *found, const Row *row)
{
	return found->kind == READ_MISS && (row->version != NONE || (row->fenced != NONE && strcmp(c->at.versions, "group") == 0));
}

/* Finishes a read that began at start: reads from PostgreSQL what the cache has not answered, and puts it. */
static void
finish_read(Client *c, int key, const Cached *found, int64_t start)
{
	int64_t		middle = 0;
	Row			row = found->row;

	if (!IS_ANSWER(found->kind))
	{
		middle = now_ns();
		if (found->kind == READ_NONE || !read_row(c, key, &row))
		{
			record_read(c, READ_NONE, found->way, key, 0, &(Row) {NONE, NONE, NONE, 0, ""}, start, middle, now_ns());
			return;
		}
	}
	record_read(c, recorded_kind(c, found->kind), found->way, key, 0, &row, start, middle, now_ns());
	count_read(c, IS_HIT(found->kind));
	if (may_offer(c, found, &row))
		offer(c, key, found, &row);
}

static void
read_one(Client *c)
{
	int			key = draw_key(c);
	Cached		found = {0};
	int64_t		start = now_ns();

	options.strategy->get(c, key, &found);
	finish_read(c, key, &found, start);
}

/* Reads all keys in one statement, so from one snapshot. */
static bool
read_rows(Client *c, const int *keys, Row *rows, int n)
{
	char		list[128] = "{";
	PGresult   *result;
	bool		ok;

	for (int i = 0; i < n; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%d", i ? "," : "", keys[i]);
	strcat(list, "}");
	if (!pg_ready(c))
		return false;
	result = pg_execute(c, "rows", 1, (const char *[]) {list});
	ok = pg_ok(result);
	for (int i = 0; i < n; i++)
	{
		rows[i] = (Row) {NONE, NONE, NONE, 0, ""};
		for (int r = 0; ok && r < PQntuples(result); r++)
			if (pg_number(result, r, 0) == keys[i])
			{
				rows[i] = (Row) {pg_number(result, r, 1), pg_number(result, r, 2), pg_number(result, r, 3), 0, ""};
				snprintf(rows[i].word, sizeof(rows[i].word), "%s", PQgetvalue(result, r, 4));
			}
	}
	PQclear(result);
	return ok;
}

static int
draw_group(Client *c, int *keys)
{
	int			n = 0;
	int			wanted = 2 + (int) draw(c, GROUP_MAX - 1);

	for (int tries = 0; n < wanted && tries < 50; tries++)
	{
		/* half of the pairs are neighbours, so that the same derived value is read more than once */
		bool		neighbour = wanted == 2 && n == 1 && draw(c, 2) == 0;
		int			key = neighbour ? keys[0] % options.keys + 1 : draw_key(c);
		bool		known = false;

		for (int i = 0; i < n; i++)
			known = known || keys[i] == key;
		if (!known)
			keys[n++] = key;
	}
	return n;
}

/*
 * Reads all keys at one moment, or gets each and then checks all. If one has no answer or has changed, reads all from PostgreSQL in
 * one snapshot.
 */
static void
read_group(Client *c)
{
	int			keys[GROUP_MAX];
	Cached		found[GROUP_MAX] = {{0}};
	Row			rows[GROUP_MAX];
	int			n = draw_group(c, keys);
	int64_t		start = now_ns();
	int64_t		middle = 0;
	int64_t		end;
	int64_t		group = ((int64_t) c->worker << 40) | ++c->operations;
	bool		answered = true;
	bool		hits = true;
	bool		at_once;
	bool		judged;

	if (options.strategy->get_many != NULL)
		options.strategy->get_many(c, keys, found, n);
	at_once = found[0].kind != 0;
	for (int i = 0; i < n; i++)
	{
		if (!at_once)
			options.strategy->get(c, keys[i], &found[i]);
		rows[i] = found[i].row;
		answered = answered && IS_ANSWER(found[i].kind);
		hits = hits && IS_HIT(found[i].kind);
	}
	if (!at_once && options.strategy->check != NULL)
		answered = hits && options.strategy->check(c, keys, found, n);
	if (!answered)
	{
		middle = now_ns();
		if (!read_rows(c, keys, rows, n))
			return;
	}
	end = now_ns();
	judged = answered;
	for (int i = 0; i < n; i++)
		judged = judged && recorded_kind(c, found[i].kind) != READ_OLD;
	record(c, 'G', judged ? 'h' : 'd', found[0].way, n, group, 0, 0, start, middle, end);
	for (int i = 0; i < n; i++)
	{
		/* an answer of the cache that was replaced by the snapshot does not count: the value came from PostgreSQL */
		int			kind = answered || !IS_ANSWER(found[i].kind) ? found[i].kind : READ_MISS;

		record_read(c, recorded_kind(c, kind), found[i].way, keys[i], group, &rows[i], start, middle, end);
		count_read(c, answered && hits);
		if (may_offer(c, &found[i], &rows[i]))
			offer(c, keys[i], &found[i], &rows[i]);
	}
}

/* Reads keys that need not agree. Each is a read of its own. Finishes those first that the cache has answered. */
static void
read_pipeline(Client *c)
{
	int			keys[GROUP_MAX];
	Cached		found[GROUP_MAX] = {{0}};
	int			n = options.strategy->get_pipeline(c, keys, found, draw_group(c, keys));

	for (int answered = 1; answered >= 0; answered--)
		for (int i = 0; i < n; i++)
			if (IS_ANSWER(found[i].kind) == answered)
				finish_read(c, keys[i], &found[i], found[i].start);
}

void
run_reader(Client *c)
{
	while (!control->stop)
	{
		uint64_t	drawn = draw(c, 1000);

		c->stayed = c->stays;
		if (drawn < GROUP_PER_MILLE)
			read_group(c);
		else if (drawn < GROUP_PER_MILLE + PIPELINE_PER_MILLE && options.strategy->get_pipeline != NULL)
			read_pipeline(c);
		else
			read_one(c);
	}
}
