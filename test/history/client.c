/*
 * client.c
 *	  The addresses of the servers, and one process's connection to PostgreSQL, which faults often break.
 *
 * A statement whose answer is missing ends the connection; the next use makes a new one, with a backoff.
 * Never: repeats a statement by itself. The checker must find out whether the lost one took effect.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "history.h"

#define PG_PATIENCE_MS		20000
#define DOMAIN				"current_setting('history.domain')"	/* of this client */

static const struct
{
	const char *name;
	const char *sql;
}			statements[] =
{
	{"row", "SELECT version, val, fenced_version(k), put_version(k) FROM (VALUES ($1::int)) x (k) LEFT JOIN item ON id = k"},
	{"rows", "SELECT k, version, val, fenced_version(k), put_version(k) FROM unnest($1::int[]) k LEFT JOIN item ON id = k"},
	{"get", "SELECT status, permit, version, payload FROM fence.get(" DOMAIN ", $1::int)"},
	{"put", "SELECT fence.put(" DOMAIN ", $1, $2::bigint, $3, NULL, $4::int)"},
	{"read", "SELECT fence.read(" DOMAIN ", $1::int)::text"},
	{"read_many", "SELECT k, value::text FROM unnest($1::int[]) k JOIN "
	"fence.read_many(ARRAY(SELECT fence.fence_key(" DOMAIN ", k) FROM unnest($1::int[]) k)) r ON r.fence = fence.fence_key(" DOMAIN ", k)"},
	{"derived_value", "SELECT value FROM fence.derived_keys('pair', $1::int, $2::int)"},
	{"read_derived", "SELECT fence.read_derived('pair', $1::int, $2::int)::text"},
	{"update", "UPDATE item SET val = $2 WHERE id = $1 RETURNING id, version, val"},
	{"update_version", "UPDATE item SET val = $2, version = $3 WHERE id = $1 AND version = $4 RETURNING id, version, val"},
	{"insert", "INSERT INTO item (id, val) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET val = EXCLUDED.val "
	"RETURNING id, version, val"},
	{"delete", "DELETE FROM item WHERE id = $1 RETURNING id, version + 1, 0"},
	{"move", "WITH old AS (SELECT id, version FROM item WHERE id = $1 FOR UPDATE) "
	"UPDATE item SET id = $3, val = $2 FROM old WHERE item.id = old.id "
	"RETURNING item.id, item.version, item.val, old.version + 1"},
	{"many", "UPDATE item SET val = $2::bigint + 200 + id WHERE id BETWEEN $1 AND $3 AND id <= 600 "
	"RETURNING id, version, val"},
};

/* "…item:{" → "…item_of_id:{" */
static void
name_group(char *prefix, size_t size)
{
	char	   *colon = strrchr(prefix, ':');

	snprintf(colon, size - (size_t) (colon - prefix), "_of_id:{");
}

/*
 * Which of the table's domains this client reads. Where there are several, some know a key as the unique one of a row, others as that of
 * a group; so each of them is read while the others are written.
 */
static void
choose_domain(Client *c)
{
	bool		several = strcmp(c->at.versions, "attachments") == 0;
	bool		group = several && c->worker % 3 == 1;

	strcpy(c->at.domain, group ? "item_of_id" : "item");
	if (several)
		strcpy(c->at.versions, group ? "group" : "trigger");
	if (group)
	{
		name_group(c->at.fence, sizeof(c->at.fence));
		name_group(c->at.value, sizeof(c->at.value));
	}
}

static void
read_endpoints(Client *c)
{
	char		path[512];
	char		confused[16];
	char	   *lines[] = {c->at.dsn, c->at.old_dsn, c->at.redis, c->at.old_redis, c->at.fence, c->at.value, c->at.versions,
		c->at.capture, confused};
	size_t		sizes[] = {sizeof(c->at.dsn), sizeof(c->at.old_dsn), sizeof(c->at.redis), sizeof(c->at.old_redis), sizeof(c->at.fence),
		sizeof(c->at.value), sizeof(c->at.versions), sizeof(c->at.capture), sizeof(confused)};
	FILE	   *file;

	c->at.number = control->endpoints;
	snprintf(path, sizeof(path), "%s/endpoints", options.directory);
	file = fopen(path, "r");
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
	{
		if (file == NULL || fgets(lines[i], (int) sizes[i], file) == NULL)
		{
			fprintf(stderr, "workload: cannot read %s\n", path);
			exit(2);
		}
		lines[i][strcspn(lines[i], "\n")] = '\0';
	}
	fclose(file);
	c->at.confused = strcmp(confused, "confused") == 0;
	choose_domain(c);
}

/*
 * Reads the addresses again and closes connections to old ones. But every second reader stays with the old master of Redis while that
 * one answers, as if it had not heard of the new one; and the others stay with the old primary of PostgreSQL.
 */
void
follow_endpoints(Client *c)
{
	Endpoints	former = c->at;

	if (former.number != 0 && former.number == control->endpoints)
		return;
	read_endpoints(c);
	c->stays = c->reader && c->worker % 2 == 0 && strcmp(c->at.old_dsn, "-") != 0;
	if (c->stays)
		strcpy(c->at.dsn, c->at.old_dsn);
	if (strcmp(former.dsn, c->at.dsn) != 0)
		pg_leave(c);
	if (c->reader && c->worker % 2 == 1 && strcmp(former.redis, c->at.old_redis) == 0)
		strcpy(c->at.redis, former.redis);
	if (strcmp(former.redis, c->at.redis) != 0 || former.confused != c->at.confused)
		redis_servers(c);
}

/* -----------------------------------------------------------------------------------------------------------------
 * PostgreSQL
 * -----------------------------------------------------------------------------------------------------------------
 */

void
pg_leave(Client *c)
{
	if (c->pg != NULL)
		PQfinish(c->pg);
	c->pg = NULL;
}

static bool
prepare_all(PGconn *pg)
{
	for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++)
	{
		PGresult   *result = PQprepare(pg, statements[i].name, statements[i].sql, 0, NULL);
		bool		ok = pg_ok(result);

		if (!ok)
			fprintf(stderr, "workload: %s: %s", statements[i].name, PQerrorMessage(pg));
		PQclear(result);
		if (!ok)
			return false;
	}
	return true;
}

/* The value of pgcache_fence.capture for this session. */
static const char *
capture_of_session(Client *c)
{
	if (strcmp(c->at.capture, "mixed") != 0)
		return c->at.capture;
	return draw(c, 2) == 0 ? "auto" : "triggers";
}

/*
 * Connects, and waits for that as long as the run lasts. Returns false if the run is over.
 *
 * Sets a short lock_timeout. Rows of prepared transactions stay locked, and a writer that waits may have reserved other rows, or
 * a whole domain, which then gives no hits. A long wait would also count as a slow COMMIT.
 */
bool
pg_ready(Client *c)
{
	int			backoff = BACKOFF_MIN_MS;
	char		dsn[768];

	follow_endpoints(c);
	while (c->pg == NULL)
	{
		if (control->stop)
			return false;
		snprintf(dsn, sizeof(dsn), "%s connect_timeout=2 application_name=history-%d "
				 "options='-c deadlock_timeout=20ms -c lock_timeout=100ms -c pgcache_fence.capture=%s "
				 "-c history.domain=%s'",
				 c->at.dsn, c->worker, capture_of_session(c), c->at.domain);
		c->pg = PQconnectdb(dsn);
		if (PQstatus(c->pg) == CONNECTION_OK)
		{
			PQclear(PQexec(c->pg, "SET client_min_messages = error"));
			if (prepare_all(c->pg))
			{
				c->sessions++;
				return true;
			}
		}
		pg_leave(c);
		sleep_ms(backoff);
		backoff = backoff * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : backoff * 2;
		follow_endpoints(c);
	}
	return true;
}

/* The last result of the statements sent, or the first error; NULL if the connection is lost. */
static PGresult *
pg_collect(Client *c)
{
	int64_t		deadline = now_ns() + (int64_t) PG_PATIENCE_MS * 1000000;
	PGresult   *kept = NULL;

	for (;;)
	{
		PGresult   *result;

		while (PQisBusy(c->pg))
		{
			struct pollfd wait = {.fd = PQsocket(c->pg), .events = POLLIN};

			if (poll(&wait, 1, 100) < 0 && errno != EINTR)
				goto lost;
			if (now_ns() > deadline || (wait.revents != 0 && !PQconsumeInput(c->pg)))
				goto lost;
		}
		result = PQgetResult(c->pg);
		if (result == NULL)
			break;
		if (kept != NULL && !pg_ok(kept))
			PQclear(result);
		else
		{
			PQclear(kept);
			kept = result;
		}
	}
	if (PQstatus(c->pg) == CONNECTION_OK)
		return kept;
lost:
	PQclear(kept);
	pg_leave(c);
	return NULL;
}

PGresult *
pg_query(Client *c, const char *sql)
{
	if (c->pg == NULL)
		return NULL;
	if (PQsendQuery(c->pg, sql))
		return pg_collect(c);
	pg_leave(c);
	return NULL;
}

PGresult *
pg_execute(Client *c, const char *prepared, int n, const char *const *values)
{
	if (c->pg == NULL)
		return NULL;
	if (PQsendQueryPrepared(c->pg, prepared, n, values, NULL, NULL, 0))
		return pg_collect(c);
	pg_leave(c);
	return NULL;
}

bool
pg_ok(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

/* The number in a field; NONE for null. */
int64_t
pg_number(const PGresult *result, int row, int column)
{
	if (PQgetisnull(result, row, column))
		return NONE;
	return strtoll(PQgetvalue(result, row, column), NULL, 10);
}
