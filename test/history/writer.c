/*
 * writer.c
 *	  A writer runs transactions of all kinds, one after the other. It writes what it knows of their outcome into the history.
 *	  Table item_log in PostgreSQL has what was really committed, written by a trigger in the same transaction.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define BULK_ROWS	25

/* -----------------------------------------------------------------------------------------------------------------
 * One transaction
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
txn_new(Client *c, Txn *txn)
{
	txn->id = (int64_t) (c->worker + 1) * 1000000000 + ++c->operations;
	txn->statements = 0;
	txn->n = 0;
	txn->broken = false;
	txn->sent = 0;
	txn->start = now_ns();
}

static bool
run_sql(Client *c, Txn *txn, const char *sql)
{
	PGresult   *result = txn->broken ? NULL : pg_query(c, sql);
	bool		ok = pg_ok(result);

	PQclear(result);
	if (!ok)
		txn->broken = true;
	return ok;
}

/* The setting history.txn tells the trigger which transaction deletes rows. For other changes the row's val tells it. */
static bool
txn_begin(Client *c, Txn *txn, const char *isolation)
{
	char		sql[128];

	snprintf(sql, sizeof(sql), "SET history.txn = '%lld'; BEGIN %s", (long long) txn->id, isolation);
	return run_sql(c, txn, sql);
}

static void
add_change(Txn *txn, int key, int64_t version, int64_t val, char kind, const char *token)
{
	Change	   *change;

	if (txn->n == CHANGES_MAX)
		return;
	change = &txn->changes[txn->n++];
	change->key = key;
	change->row = (Row) {version, val, version, 0, ""};
	change->kind = kind;
	snprintf(change->token, sizeof(change->token), "%s", token);
}

/* Runs a prepared statement that changes rows, and adds them to the changes. Returns their number, -1 after an error. */
static int
change_rows(Client *c, Txn *txn, const char *prepared, int n, const char *const *values, char kind, const char *token)
{
	PGresult   *result = txn->broken ? NULL : pg_execute(c, prepared, n, values);
	int			rows = -1;

	if (pg_ok(result))
	{
		rows = PQntuples(result);
		for (int i = 0; i < rows; i++)
			add_change(txn, (int) pg_number(result, i, 0), pg_number(result, i, 1), pg_number(result, i, 2), kind, token);
		if (PQnfields(result) == 4 && rows == 1)	/* the row has moved to another key, so the old key has no row any more */
			add_change(txn, atoi(values[0]), pg_number(result, 0, 3), 0, 'd', token);
	}
	else
		txn->broken = true;
	PQclear(result);
	return rows;
}

static void
next_val(Txn *txn, char *text, size_t size)
{
	snprintf(text, size, "%lld", (long long) (txn->id * 1000 + txn->statements++));
}

static void
before(Client *c, int key)
{
	if (options.strategy->before != NULL)
		options.strategy->before(c, key);
}

/* For strategies whose cache gives the version: reads it, reserves the next one, and writes only if no other writer has. */
static bool
write_reserved(Client *c, Txn *txn, int key, const char *id, const char *val)
{
	Change		change = {.key = key};
	PGresult   *result = txn->broken ? NULL : pg_execute(c, "row", 1, (const char *[]) {id});
	char		observed[24];
	char		version[24];

	if (!pg_ok(result) || PQntuples(result) != 1 || pg_number(result, 0, 0) == NONE)
	{
		txn->broken = true;
		PQclear(result);
		return false;
	}
	change.row.version = pg_number(result, 0, 0);
	PQclear(result);
	snprintf(observed, sizeof(observed), "%lld", (long long) change.row.version);
	if (chance(c, control->gap_stall_ppm))
		sleep_ms((int) control->gap_stall_ms);
	if (!options.strategy->reserve(c, &change))
	{
		txn->broken = true;
		return false;
	}
	snprintf(version, sizeof(version), "%lld", (long long) change.row.version);
	if (change_rows(c, txn, "update_version", 4, (const char *[]) {id, val, version, observed}, 'u', change.token) == 1)
		return true;
	options.strategy->aborted(c, &change, 1);
	txn->broken = true;
	return false;
}

/* Reads rows that the transaction itself has written. They must not get into the cache. */
static void
read_own(Client *c, Txn *txn, const char *id)
{
	PGresult   *result = pg_execute(c, "read", 1, (const char *[]) {id});

	if (!pg_ok(result))
		txn->broken = true;
	PQclear(result);
}

/* An UPDATE, or an INSERT if the row does not exist. */
static bool
write_row(Client *c, Txn *txn, int key)
{
	char		id[16];
	char		val[24];
	int			rows;

	snprintf(id, sizeof(id), "%d", key);
	next_val(txn, val, sizeof(val));
	if (options.strategy->plain)
		return write_reserved(c, txn, key, id, val);
	before(c, key);
	rows = change_rows(c, txn, "update", 2, (const char *[]) {id, val}, 'u', "");
	if (rows == 0)
		rows = change_rows(c, txn, "insert", 2, (const char *[]) {id, val}, 'i', "");
	if (rows == 1 && has_sql_read(c) && draw(c, 16) == 0)
		read_own(c, txn, id);
	return rows == 1 && !txn->broken;
}

static bool
delete_row(Client *c, Txn *txn, int key)
{
	char		id[16];

	snprintf(id, sizeof(id), "%d", key);
	before(c, key);
	return change_rows(c, txn, "delete", 1, (const char *[]) {id}, 'd', "") >= 0;
}

static int
twin_of(int key)
{
	return key > options.keys ? key - options.keys : key + options.keys;
}

static bool
move_row(Client *c, Txn *txn, int key, int new_key)
{
	char		from[16];
	char		to[16];
	char		val[24];

	snprintf(from, sizeof(from), "%d", key);
	snprintf(to, sizeof(to), "%d", new_key);
	next_val(txn, val, sizeof(val));
	before(c, key);
	before(c, new_key);
	return change_rows(c, txn, "move", 3, (const char *[]) {from, val, to}, 'u', "") >= 0;
}

static void
write_many(Client *c, Txn *txn)
{
	int			first = 1 + (int) draw(c, (uint64_t) options.keys);
	char		from[16];
	char		to[16];
	char		base[24];

	snprintf(from, sizeof(from), "%d", first);
	snprintf(to, sizeof(to), "%d", first + BULK_ROWS - 1);
	snprintf(base, sizeof(base), "%lld", (long long) txn->id * 1000);
	for (int key = first; key < first + BULK_ROWS; key++)
		before(c, key);
	change_rows(c, txn, "many", 3, (const char *[]) {from, base, to}, 'u', "");
}

/* -----------------------------------------------------------------------------------------------------------------
 * Its end
 * -----------------------------------------------------------------------------------------------------------------
 */

void
record_txn(Client *c, const Txn *txn, int outcome, int64_t done)
{
	record(c, 'T', outcome, 0, txn->n, txn->id, done, 0, txn->start, txn->sent, txn->end);
	for (int i = 0; i < txn->n; i++)
		record(c, 'W', txn->changes[i].kind, 0, txn->changes[i].key, txn->id, txn->changes[i].row.version,
			   txn->changes[i].row.val, 0, 0, 0);
}

/* Does what the strategy does after COMMIT, unless the client dies before. */
void
txn_committed(Client *c, Txn *txn)
{
	int64_t		done = 0;

	control->counts[c->worker].commits++;
	if (chance(c, control->writer_crash_ppm))
	{
		pg_leave(c);
		redis_leave(c);
	}
	else
	{
		if (chance(c, control->writer_stall_ppm))
			sleep_ms((int) control->writer_stall_ms);
		if (options.strategy->committed != NULL)
			options.strategy->committed(c, txn);
		done = now_ns();
	}
	record_txn(c, txn, OUTCOME_COMMITTED, done);
}

void
txn_aborted(Client *c, Txn *txn)
{
	txn->end = now_ns();
	if (options.strategy->aborted != NULL)
		options.strategy->aborted(c, txn->changes, txn->n);
	record_txn(c, txn, OUTCOME_ABORTED, 0);
}

static void
txn_rollback(Client *c, Txn *txn)
{
	PQclear(pg_query(c, "ROLLBACK"));
	txn_aborted(c, txn);
}

/* Notes the outcome. It is unknown without an answer, and after the last message of a server that is shutting down. */
static void
txn_settle(Client *c, Txn *txn, PGresult *result)
{
	bool		ok = pg_ok(result) && strcmp(PQcmdStatus(result), "ROLLBACK") != 0;
	bool		answered = result != NULL && c->pg != NULL;

	txn->end = now_ns();
	PQclear(result);
	if (ok)
		txn_committed(c, txn);
	else if (answered)
		txn_aborted(c, txn);
	else
		record_txn(c, txn, OUTCOME_UNKNOWN, 0);
}

void
txn_commit(Client *c, Txn *txn)
{
	if (txn->broken)
	{
		txn_rollback(c, txn);
		return;
	}
	if (chance(c, control->gap_stall_ppm))
		sleep_ms((int) control->gap_stall_ms);
	txn->sent = now_ns();
	txn_settle(c, txn, pg_query(c, "COMMIT"));
}

/* -----------------------------------------------------------------------------------------------------------------
 * The kinds
 * -----------------------------------------------------------------------------------------------------------------
 */

/* One statement without BEGIN, as most applications do. */
static void
autocommit(Client *c, Txn *txn)
{
	int			key = draw_key(c);
	char		id[16];
	char		val[24];
	PGresult   *result;

	snprintf(id, sizeof(id), "%d", key);
	next_val(txn, val, sizeof(val));
	before(c, key);
	txn->sent = now_ns();
	result = pg_execute(c, "update", 2, (const char *[]) {id, val});
	for (int i = 0; pg_ok(result) && i < PQntuples(result); i++)
		add_change(txn, key, pg_number(result, i, 1), pg_number(result, i, 2), 'u', "");
	txn_settle(c, txn, result);
}

static void
one_row(Client *c, Txn *txn)
{
	if (txn_begin(c, txn, draw(c, 4) == 0 ? "ISOLATION LEVEL REPEATABLE READ" : ""))
		write_row(c, txn, draw_key(c));
	txn_commit(c, txn);
}

/* Changes rows in random order, so that there are deadlocks. */
static void
two_rows(Client *c, Txn *txn)
{
	int			first = draw_key(c);
	int			second = draw_key(c);

	if (txn_begin(c, txn, "") && write_row(c, txn, first) && second != first)
		write_row(c, txn, second);
	txn_commit(c, txn);
}

static void
twice(Client *c, Txn *txn)
{
	int			key = draw_key(c);

	if (txn_begin(c, txn, "") && write_row(c, txn, key))
		write_row(c, txn, key);
	txn_commit(c, txn);
}

static void
rolled_back(Client *c, Txn *txn)
{
	int			key = draw_key(c);

	if (txn_begin(c, txn, "") && write_row(c, txn, key) && draw(c, 2) == 0 && write_row(c, txn, key) && draw(c, 2) == 0)
		run_sql(c, txn, "SELECT 1 / 0");
	txn_rollback(c, txn);
}

static void
savepoint(Client *c, Txn *txn)
{
	int			key = draw_key(c);

	if (txn_begin(c, txn, "") && write_row(c, txn, key) && run_sql(c, txn, "SAVEPOINT s"))
	{
		int			kept = txn->n;

		write_row(c, txn, draw(c, 2) ? key : draw_key(c));
		txn->broken = false;
		if (run_sql(c, txn, "ROLLBACK TO s"))
		{
			if (options.strategy->aborted != NULL)
				options.strategy->aborted(c, txn->changes + kept, txn->n - kept);
			txn->n = kept;
			if (draw(c, 2))
				write_row(c, txn, draw_key(c));
		}
	}
	txn_commit(c, txn);
}

static void
deletion(Client *c, Txn *txn)
{
	if (txn_begin(c, txn, "") && delete_row(c, txn, draw_key(c)) && draw(c, 4) == 0)
		write_row(c, txn, draw_key(c));
	txn_commit(c, txn);
}

static void
move(Client *c, Txn *txn)
{
	if (txn_begin(c, txn, ""))
	{
		int			key = draw_key(c);

		move_row(c, txn, key, twin_of(key));
	}
	txn_commit(c, txn);
}

/* Two rows exchange their keys: each key gets another row, whose version is not the next one. */
static void
exchange(Client *c, Txn *txn)
{
	int			key = draw_key(c);
	int			between = 1000000 + c->worker;

	if (txn_begin(c, txn, "") && move_row(c, txn, key, between) && move_row(c, txn, twin_of(key), key))
		move_row(c, txn, between, twin_of(key));
	txn_commit(c, txn);
}

/* Changes more rows than pgcache_fence.bulk_threshold, which it sets low. */
static void
bulk(Client *c, Txn *txn)
{
	if (txn_begin(c, txn, "") &&
		(!options.strategy->fenced || draw(c, 3) == 0 || run_sql(c, txn, "SET LOCAL pgcache_fence.bulk_threshold = 10")))
		write_many(c, txn);
	txn_commit(c, txn);
}

/*
 * Most prepared transactions end at once or soon. Some stay prepared long enough to outlive a restart. Those change rows that few
 * other writers change, because the rows stay locked.
 */
static void
two_phase(Client *c, Txn *txn)
{
	bool		patient = draw(c, 5) == 0;
	uint64_t	among = (uint64_t) (patient ? (options.keys + 3) / 4 : options.keys);

	if (txn_begin(c, txn, "") && write_row(c, txn, options.keys - (int) draw(c, among)) && draw(c, 3) == 0)
		write_row(c, txn, options.keys - (int) draw(c, among));
	txn_prepare(c, txn, patient ? 2500 : draw(c, 2) ? 40 : 1);
}

static const struct
{
	int			share;
	void		(*run) (Client *c, Txn *txn);
	bool		plain;				/* "plain" strategies have this kind too */
}			kinds[] =
{
	{40, autocommit, false},
	{20, one_row, true},
	{14, two_rows, true},
	{6, twice, true},
	{6, rolled_back, true},
	{6, savepoint, true},
	{4, deletion, false},
	{3, move, false},
	{3, exchange, false},
	{1, bulk, false},
	{5, two_phase, false},
};

#define KINDS	(sizeof(kinds) / sizeof(kinds[0]))

static void
run_kind(Client *c, Txn *txn)
{
	int			total = 0;
	int			drawn;

	for (size_t i = 0; i < KINDS; i++)
		if (kinds[i].plain || !options.strategy->plain)
			total += kinds[i].share;
	drawn = (int) draw(c, (uint64_t) total);
	for (size_t i = 0; i < KINDS; i++)
	{
		if (!kinds[i].plain && options.strategy->plain)
			continue;
		if (drawn < kinds[i].share)
		{
			kinds[i].run(c, txn);
			return;
		}
		drawn -= kinds[i].share;
	}
}

void
run_writer(Client *c)
{
	static Txn	txn;

	while (!control->stop)
	{
		if (!pg_ready(c))
			break;
		resolve_prepared(c);
		txn_new(c, &txn);
		run_kind(c, &txn);
		if (options.pause_us > 0)
			sleep_ms((int) draw(c, (uint64_t) options.pause_us * 2 / 1000 + 1));
	}
	leave_prepared(c);
}
