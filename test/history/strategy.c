/*
 * strategy.c
 *	  The ways of caching: with pgcache_fence (fence.c), the same with readers that break a rule (fence_wrong.c), with a reader in
 *	  any language (program.c), and the ways in common use. The latter are written as a careful team would write them: the
 *	  errors are in the idea, not in the code.
 */
#include <stdlib.h>
#include <string.h>

#include "history.h"

#define EXPIRY	"60000"				/* milliseconds after which a value expires, as in most applications */

/* -----------------------------------------------------------------------------------------------------------------
 * A value without a header: "version val". The last writer wins or, with compare, the highest version
 * -----------------------------------------------------------------------------------------------------------------
 */

static const char *
value_name(const Client *c, int key)
{
	static char name[160];

	snprintf(name, sizeof(name), "%s%d}", c->at.value, key);
	return name;
}

static void
plain_get(Client *c, int key, Cached *found)
{
	redisReply *reply = redis_call(c, 2, (const char *[]) {"GET", value_name(c, key)});
	char	   *rest;

	found->kind = READ_ERROR;
	if (reply == NULL)
		return;
	found->kind = READ_MISS;
	if (reply->type == REDIS_REPLY_STRING)
	{
		found->row.version = strtoll(reply->str, &rest, 10);
		found->row.val = strtoll(rest, NULL, 10);
		if (found->row.val != 0)	/* 0: deleted (version_set only) */
			found->kind = READ_HIT;
	}
	freeReplyObject(reply);
}

static void
plain_set(Client *c, int key, const Row *row)
{
	char		value[64];

	snprintf(value, sizeof(value), "%lld %lld", (long long) row->version, (long long) row->val);
	discard(redis_call(c, 5, (const char *[]) {"SET", value_name(c, key), value, "PX", EXPIRY}));
}

static void
plain_fill(Client *c, int key, const Cached *found, const Row *row)
{
	(void) found;
	plain_set(c, key, row);
}

static void
plain_delete(Client *c, int key)
{
	discard(redis_call(c, 2, (const char *[]) {"DEL", value_name(c, key)}));
}

/* Whether this is the transaction's last change of the key; only that one counts. */
bool
is_last(const Txn *txn, int change)
{
	for (int i = change + 1; i < txn->n; i++)
		if (txn->changes[i].key == txn->changes[change].key)
			return false;
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * After COMMIT: delete, or set
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
delete_committed(Client *c, const Txn *txn)
{
	for (int i = 0; i < txn->n; i++)
		plain_delete(c, txn->changes[i].key);
}

static void
through_committed(Client *c, const Txn *txn)
{
	for (int i = 0; i < txn->n; i++)
	{
		if (!is_last(txn, i))
			continue;
		if (txn->changes[i].kind == 'd')
			plain_delete(c, txn->changes[i].key);
		else
			plain_set(c, txn->changes[i].key, &txn->changes[i].row);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * NOTIFY from a trigger (run.py makes it), and a process that listens
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
notify_listen(Client *c)
{
	while (!control->stop)
	{
		PGnotify   *notice;

		if (c->pg == NULL)
		{
			if (!pg_ready(c))
				return;
			PQclear(pg_query(c, "LISTEN item"));
			continue;
		}
		PQclear(pg_query(c, ""));	/* gets what has come */
		while (c->pg != NULL && (notice = PQnotifies(c->pg)) != NULL)
		{
			plain_delete(c, atoi(notice->extra));
			PQfreemem(notice);
		}
		sleep_ms(1);
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Set only what is newer: the version decides, in a script
 * -----------------------------------------------------------------------------------------------------------------
 */

static const char *const version_script =
	"local present = redis.call('GET', KEYS[1])\n"
	"if present and tonumber(string.match(present, '^%d+')) >= tonumber(ARGV[1]) then return 0 end\n"
	"redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', ARGV[3])\n"
	"return 1";

static void
version_set(Client *c, int key, const Row *row)
{
	char		version[24];
	char		val[24];

	snprintf(version, sizeof(version), "%lld", (long long) row->version);
	snprintf(val, sizeof(val), "%lld", (long long) row->val);
	discard(redis_call(c, 7, (const char *[]) {"EVAL", version_script, "1", value_name(c, key), version, val, EXPIRY}));
}

static void
version_fill(Client *c, int key, const Cached *found, const Row *row)
{
	(void) found;
	version_set(c, key, row);
}

static void
version_committed(Client *c, const Txn *txn)
{
	for (int i = 0; i < txn->n; i++)
		if (is_last(txn, i))
			version_set(c, txn->changes[i].key, &txn->changes[i].row);
}

/* ----------------------------------------------------------------------------------------------------------------- */

const Strategy strategies[] = {
	{.name = "fence", .fenced = true, .get = fence_get, .fill = fence_fill, .check = fence_check,
	.get_many = fence_get_many, .get_pipeline = fence_get_pipeline},
	{.name = "token-first", .fenced = true, .get = token_first_get, .fill = fence_fill},
	{.name = "token-kept", .fenced = true, .get = token_kept_get, .fill = fence_fill},
	{.name = "token-elsewhere", .fenced = true, .get = token_elsewhere_get, .fill = fence_fill},
	{.name = "permit-late", .fenced = true, .get = permit_late_get, .fill = permit_late_fill},
	{.name = "epoch-of-permit", .fenced = true, .get = fence_get, .fill = epoch_of_permit_fill},
	{.name = "program", .fenced = true, .get = program_get, .check = program_check,
	.get_many = program_get_many},
	{.name = "delete", .get = plain_get, .fill = plain_fill, .committed = delete_committed},
	{.name = "delete-twice", .get = plain_get, .fill = plain_fill, .before = plain_delete, .committed = delete_committed},
	{.name = "write-through", .get = plain_get, .fill = plain_fill, .committed = through_committed},
	{.name = "notify", .get = plain_get, .fill = plain_fill, .listen = notify_listen},
	{.name = "version-check", .get = plain_get, .fill = version_fill, .committed = version_committed},
	{.name = "lease-timeout", .plain = true, .get = lease_get, .fill = lease_fill, .reserve = lease_reserve,
	.committed = lease_committed, .aborted = lease_aborted},
	{.name = NULL}
};

const Strategy *
strategy_by_name(const char *name)
{
	for (const Strategy *s = strategies; s->name != NULL; s++)
		if (strcmp(s->name, name) == 0)
			return s;
	return NULL;
}
