/*
 * prepared.c
 *	  Two-phase commit. Each writer is a transaction manager of its own: it keeps some transactions prepared for a while,
 *	  over lost connections, restarts and promotions too, and ends them one way or the other.
 *
 * Never: sends COMMIT PREPARED twice for one transaction. The server may have executed the first one, readers may have seen it,
 * and a failover may have lost it again with the newest commits. A second one would be a new write that looks like the first. So
 * if COMMIT PREPARED gets no answer, the writer rolls the transaction back if it still exists, and item_log tells its outcome.
 * The writer also rolls back prepared transactions of its name that it does not know: a restored server brings back
 * transactions that ended long ago.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define KEPT_MAX		2			/* max_prepared_transactions (fence_site.py) has room for those of ten writers */
#define LOOK_NS			INT64_C(1000000000)

typedef struct Kept
{
	bool		used;
	bool		commit;				/* the decision */
	bool		told;				/* COMMIT PREPARED was sent and has no answer */
	int64_t		due;				/* when it is to end */
	uint32_t	session;			/* in which it was prepared */
	Txn			txn;
} Kept;

static Kept kept[KEPT_MAX];			/* a writer is a process */

static PGresult *
end_prepared(Client *c, const char *how, int64_t txn)
{
	char		sql[128];

	snprintf(sql, sizeof(sql), "%s PREPARED 'history-%d-%lld'", how, c->worker, (long long) txn);
	return pg_query(c, sql);
}

/* Whether the error says that there is no such prepared transaction. */
static bool
is_gone(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state != NULL && strcmp(state, "42704") == 0;
}

static Kept *
find_free(void)
{
	for (int i = 0; i < KEPT_MAX; i++)
		if (!kept[i].used)
			return &kept[i];
	return NULL;
}

/* Ends with PREPARE TRANSACTION, if the writer may keep another one, for at most that time; otherwise with COMMIT. */
void
txn_prepare(Client *c, Txn *txn, int most_ms)
{
	Kept	   *one = find_free();
	char		sql[128];
	PGresult   *result;

	if (one == NULL || txn->broken)
	{
		txn_commit(c, txn);
		return;
	}
	snprintf(sql, sizeof(sql), "PREPARE TRANSACTION 'history-%d-%lld'", c->worker, (long long) txn->id);
	result = pg_query(c, sql);
	if (result != NULL && (!pg_ok(result) || strcmp(PQcmdStatus(result), "PREPARE TRANSACTION") != 0))
		txn_aborted(c, txn);
	else
	{
		one->used = true;
		one->told = false;
		one->commit = result != NULL && draw(c, 4) != 0;	/* roll back if it is unknown whether it is prepared */
		one->due = now_ns() + (int64_t) draw(c, (uint64_t) most_ms) * 1000000;
		one->session = c->sessions;
		one->txn = *txn;
	}
	PQclear(result);
}

/* Records how it ended, for the figures of the run only. */
static void
record_end(Client *c, const Kept *one, int outcome)
{
	record(c, 'P', outcome, 0, 0, one->txn.id, c->sessions - one->session, 0, 0, 0, 0);
}

static void
commit_kept(Client *c, Kept *one)
{
	PGresult   *result;

	one->txn.sent = now_ns();
	result = end_prepared(c, "COMMIT", one->txn.id);
	one->txn.end = now_ns();
	one->told = !pg_ok(result) && !is_gone(result);
	one->used = one->told;
	if (!one->told)
		record_end(c, one, pg_ok(result) ? OUTCOME_COMMITTED : OUTCOME_ABORTED);
	if (pg_ok(result))
		txn_committed(c, &one->txn);
	else if (!one->told)
		txn_aborted(c, &one->txn);
	PQclear(result);
}

static void
roll_back_kept(Client *c, Kept *one)
{
	PGresult   *result = end_prepared(c, "ROLLBACK", one->txn.id);

	if (pg_ok(result) || is_gone(result))
	{
		one->used = false;
		record_end(c, one, one->told ? OUTCOME_UNKNOWN : OUTCOME_ABORTED);
		if (!one->told)
			txn_aborted(c, &one->txn);
		else
			record_txn(c, &one->txn, OUTCOME_UNKNOWN, 0);
	}
	PQclear(result);
}

static bool
is_kept(const Client *c, const char *gid)
{
	char		name[64];

	for (int i = 0; i < KEPT_MAX; i++)
	{
		snprintf(name, sizeof(name), "history-%d-%lld", c->worker, (long long) kept[i].txn.id);
		if (kept[i].used && strcmp(name, gid) == 0)
			return true;
	}
	return false;
}

/* Rolls back prepared transactions of the writer's name that it does not know. */
static void
roll_back_others(Client *c)
{
	char		sql[128];
	PGresult   *result;

	snprintf(sql, sizeof(sql), "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'history-%d-%%'", c->worker);
	result = pg_query(c, sql);
	for (int i = 0; pg_ok(result) && i < PQntuples(result); i++)
	{
		if (is_kept(c, PQgetvalue(result, i, 0)))
			continue;
		snprintf(sql, sizeof(sql), "ROLLBACK PREPARED '%.60s'", PQgetvalue(result, i, 0));
		PQclear(pg_query(c, sql));
	}
	PQclear(result);
}

/*
 * Ends the prepared transactions that are due. Callers must be connected and between transactions. In a new session, and once a
 * second, this also looks for unknown prepared transactions.
 */
void
resolve_prepared(Client *c)
{
	static uint32_t session;
	static int64_t looked;

	if (session != c->sessions || now_ns() - looked > LOOK_NS)
	{
		session = c->sessions;
		looked = now_ns();
		roll_back_others(c);
	}
	for (int i = 0; i < KEPT_MAX; i++)
	{
		if (!kept[i].used || now_ns() < kept[i].due || c->pg == NULL)
			continue;
		if (kept[i].commit && !kept[i].told)
			commit_kept(c, &kept[i]);
		else
			roll_back_kept(c, &kept[i]);
	}
}

/* Called at the end of the run. run.py rolls back what is still prepared. */
void
leave_prepared(Client *c)
{
	for (int i = 0; i < KEPT_MAX; i++)
		if (kept[i].used)
			record_txn(c, &kept[i].txn, kept[i].told ? OUTCOME_UNKNOWN : OUTCOME_ABORTED, 0);
}
