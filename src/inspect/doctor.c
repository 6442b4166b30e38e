/*
 * inspect/doctor.c
 *	  fence.doctor: checks a whole installation, and says what to do.
 *
 * Owns: the table of checks, at the end of this file. A check reports its findings; if it has none, fence.doctor
 * shows a row "ok" for it. Each check runs in a subtransaction, so that an error in one check does not hide what the
 * others find.
 * Locks: fence_shared->lock, for copies only; those of SELECTs on the catalog and on the extension's tables and views.
 * Never: changes anything.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xact.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/resowner.h"

#include "base/buckets.h"
#include "base/metrics.h"
#include "base/send_queue.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/word.h"
#include "domain/catalog.h"
#include "domain/shape.h"
#include "keeper/worker.h"
#include "redis/library.h"
#include "write/capture.h"

PG_FUNCTION_INFO_V1(fence_doctor);

#define OURS "'pgcache_fence'"
#define LONG_WAIT 10			/* a reservation that is older than so many times patrol_grace is a finding */
#define MANY_GROUPS 4			/* a table with so many attachments of scope 'group' is a finding */
#define SMALL_TABLE 10000		/* a table with one key for all rows is a finding if it has more rows */
#define HOT_SHARE "0.25"		/* a key, or a slot, with so large a share of the calls to its process is a finding, ... */
#define HOT_CALLS "1000"		/* ... from so many of them per second on */
#define MANY_SET 8				/* a finding, if of so many buckets one or more is set */
#define ENOUGH_COMPARED 1000	/* so many keys of a domain must have been compared before it is a finding that none is cached */

typedef struct Report
{
	ReturnSetInfo *rsinfo;
	int			found;			/* number of findings of the present check */
} Report;

static void
put_finding(Report *report, const char *severity, const char *finding, const char *hint)
{
	Datum		values[3];
	bool		nulls[3] = {false};

	values[0] = CStringGetTextDatum(severity);
	values[1] = CStringGetTextDatum(finding);
	nulls[2] = hint == NULL;
	values[2] = hint ? CStringGetTextDatum(hint) : (Datum) 0;
	tuplestore_putvalues(report->rsinfo->setResult, report->rsinfo->setDesc, values, nulls);
	report->found++;
}

/* Reports each row of a query as a finding. The columns of the query are finding and hint. */
static void
put_rows(Report *report, const char *severity, const char *sql)
{
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute(sql, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not execute \"%s\"", sql);
	for (uint64 i = 0; i < SPI_processed; i++)
		put_finding(report, severity, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1),
					SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2));
	SPI_finish();
}

static char *
milliseconds(uint64 us)
{
	return psprintf("%llu.%03llu ms", (unsigned long long) us / 1000, (unsigned long long) us % 1000);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The server
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
check_preload(Report *report)
{
	if (fence_shared == NULL)
		put_finding(report, "error", "the library was not loaded at server start: nothing is fenced, and writes to fenced tables fail",
					"Add pgcache_fence to shared_preload_libraries in postgresql.conf and restart PostgreSQL.");
}

static void
check_version(Report *report)
{
	put_rows(report, "warning",
			 "SELECT pg_catalog.format('the extension has version %s in this database, the installed files have %s',"
			 " installed_version, default_version),"
			 " 'ALTER EXTENSION pgcache_fence UPDATE.'"
			 " FROM pg_catalog.pg_available_extensions WHERE name OPERATOR(pg_catalog.=) " OURS
			 " AND installed_version OPERATOR(pg_catalog.<>) default_version");
}

static void
check_workers(Report *report)
{
	const char *hint = "PostgreSQL starts it again within a second. If it ends again and again, the server log tells why.";

	if (fence_shared->latches[JOBS_OF_KEEPER] == NULL)
		put_finding(report, "error", "the keeper is not running: no lease is renewed", hint);
	if (RecoveryInProgress())
		return;					/* the other workers start, and the keeper opens fences, when recovery ends */
	if (fence_shared->latches[JOBS_OF_PATROL] == NULL)
		put_finding(report, "error", "the patrol is not running: nobody settles what backends have left behind", hint);
	if (!send_queue_is_served())
		put_finding(report, "error", "the courier is not running: what lies in the send queue does not reach Redis", hint);
}

/*
 * Whether no epoch has begun since the server start, because leases of the previous run may still last, or the keeper
 * does not know yet whether they do.
 */
static bool
is_starting(void)
{
	return (WORD_EPOCH(fence_word()) == 0 || fence_shared->resume_from != 0) && (!fence_shared->bound_known || !fence_lease_bound_passed());
}

static void
check_state(Report *report)
{
	FenceStateNow now;

	fence_state_now(&now);
	if (WORD_STATE(now.word) == FENCE_OPEN || RecoveryInProgress())
		return;
	if (is_starting())
		put_finding(report, "info", "the server has just started: fences open when the leases of its last run have ended",
					"SELECT fence.wait_open() waits for that. Writes wait too, or fail if on_redis_failure is error.");
	else
		put_finding(report, "error", psprintf("fences are %s: %s", fence_state_name(now.word), now.reason),
					"doc/operations.md lists the reasons and what to do about each.");
}

static void
check_served(Report *report)
{
	char	   *database = get_database_name(MyDatabaseId);

	if (!settings_serves_database(database))
		put_finding(report, "error", psprintf("database \"%s\" is not served: readers of its domains get the answer unarmed", database),
					"Add it to pgcache_fence.databases, and reload the configuration.");
}

/*
 * The workers that stay keep their slots if max_worker_processes is large enough at the server start. A job inside a
 * database takes a free slot, or else waits for a reserve worker. So this also reports whether parallel queries may
 * take all free slots.
 */
static void
check_slots(Report *report)
{
	bool		reserved = fence_shared->reserves[JOBS_OF_KEEPER].exists && fence_shared->reserves[JOBS_OF_PATROL].exists;
	int			needed = max_parallel_workers + WORKERS_THAT_STAY + 2;
	const char *why = "parallel queries may take every free background worker slot";

	if (!RecoveryInProgress() && !reserved)
		put_finding(report, "warning",
					psprintf("max_worker_processes is %d: too few for the %d permanent workers of pgcache_fence and those of others",
							 max_worker_processes, WORKERS_THAT_STAY),
					psprintf("Raise it to %d or more, and restart PostgreSQL.", needed));
	else if (max_worker_processes < needed)
		put_finding(report, "info",
					psprintf("%s (max_worker_processes %d, max_parallel_workers %d): each job of pgcache_fence in a database then"
							 " takes a second", why, max_worker_processes, max_parallel_workers),
					psprintf("Raise max_worker_processes to %d or more, plus what other extensions and replication need;"
							 " or lower max_parallel_workers.", needed));
}

static void
check_settings(Report *report)
{
	if (setting_timeout * 2 > setting_lease)
		put_finding(report, "warning",
					psprintf("pgcache_fence.timeout (%d ms) is more than half of pgcache_fence.lease (%d ms): one slow answer of Redis closes the fences",
							 setting_timeout, setting_lease),
					"Lower the timeout or raise the lease.");
	if (setting_audit_rate <= 0)
		put_finding(report, "warning", "pgcache_fence.audit_rate is 0: fences are never compared with their rows",
					"Set it to 1 or more.");
	if (setting_tombstone_retention < 60)
		put_finding(report, "info", "pgcache_fence.tombstone_retention is below a minute: the floors of the domains rise quickly",
					"A day or more keeps the versions of new rows small.");
}

/* -----------------------------------------------------------------------------------------------------------------
 * Redis
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The value of a field in a reply to INFO; -1 if the reply does not have that field. */
static int64
info_number(const char *info, const char *field)
{
	const char *at = strstr(info, field);

	return at ? strtoll(at + strlen(field), NULL, 10) : -1;
}

/* Whether effects were used since the counters were reset. */
static bool
effects_are_used(void)
{
	return metrics_value_server(SERVER_METRIC_EFFECT_HOLD_HELD) + metrics_value_server(SERVER_METRIC_EFFECT_OUTBOX_DONE) > 0;
}

static bool
info_has(const char *info, const char *line)
{
	return strstr(info, line) != NULL;
}

/* Redis may evict any fence or value. It must not evict holds and marks of effects, which have no time to live. */
static void
check_memory(Report *report, const char *node, const char *info)
{
	int64		limit = info_number(info, "\nmaxmemory:");
	int64		used = info_number(info, "\nused_memory:");
	const char *policy = "Set maxmemory-policy to allkeys-lru or allkeys-lfu, which is safe for fences and values; if it also "
		"keeps effects, to volatile-lru, volatile-lfu or volatile-ttl.";

	if (limit == 0)
		put_finding(report, "info", psprintf("Redis %s has no maxmemory: cached values may use up the machine's memory", node),
					psprintf("Set maxmemory. %s", policy));
	else if (limit > 0 && info_has(info, "\nmaxmemory_policy:allkeys-") && effects_are_used())
		put_finding(report, "warning", psprintf("Redis %s may evict the holds of effects, and those effects would be lost", node),
					"Set maxmemory-policy to volatile-lru, volatile-lfu, volatile-ttl or noeviction (doc/patterns.md).");
	else if (limit > 0 && info_has(info, "\nmaxmemory_policy:noeviction"))
		put_finding(report, used > limit / 10 * 9 ? "error" : "warning",
					psprintf("Redis %s refuses writes when its memory is full (noeviction): then fences close", node),
					policy);
}

static void
check_server(Report *report, LibraryCall *call, const char *name)
{
	const char *argv[] = {"INFO"};
	redisReply *info = library_call(call, lengthof(argv), argv);
	if (info == NULL || info->type != REDIS_REPLY_STRING)
		put_finding(report, "error", psprintf("Redis %s does not answer INFO: %s", name, call->error),
					"The user of pgcache_fence needs the command INFO (doc/operations.md, \"Users and passwords\").");
	else
	{
		check_memory(report, name, info->str);
		if (!info_has(info->str, "\nrole:master"))
			put_finding(report, "error", psprintf("Redis %s is a replica", name),
						"Point pgcache_fence.redis_url to the master, or to Sentinel.");
	}
	if (info)
		freeReplyObject(info);
}

/* Whether Redis is to tell subscribers of commits of any domain of this database. */
static bool
tells_events(void)
{
	ListCell   *lc;

	foreach(lc, domain_rows())
		if (strcmp(((DomainRow *) lfirst(lc))->publish, "pubsub") == 0 || strcmp(((DomainRow *) lfirst(lc))->publish, "stream") == 0)
			return true;
	return false;
}

/* Reports each right that the user of the servers lacks in Redis. Returns whether there is one. */
static bool
check_rights(Report *report, LibraryCall *call, const char *name, bool events)
{
	redisReply *missing = library_missing_rights(call, events);
	bool		any = missing != NULL && missing->elements > 0;

	for (size_t i = 0; any && i < missing->elements; i++)
		put_finding(report, events ? "warning" : "error",
					psprintf("user \"%s\" lacks %s in Redis %s%s", library_user(), calls_string(missing, i), name,
							 events ? ": events are lost" : ""),
					psprintf("ACL SETUSER %s %s (doc/operations.md, \"Users and passwords\").", library_user(), calls_string(missing, i)));
	freeReplyObject(missing);
	return any;
}

static void
check_library(Report *report, LibraryCall *call, const char *name)
{
	Hello		hello;
	bool		found = false;

	if (check_rights(report, call, name, false))
		return;					/* what else fails may follow from that */
	if (!library_hello(call, &hello, &found))
		put_finding(report, "error", psprintf("the function library does not answer in Redis %s: %s", name, call->error), NULL);
	else if (!found)
		put_finding(report, "error", psprintf("Redis %s does not have the function library", name),
					"The keeper loads it when it opens the fences. If it cannot, fence.state tells why.");
	else if (hello.library != library_version())
		put_finding(report, "warning", psprintf("Redis %s has version %d of the function library, this build has version %d",
												name, hello.library, library_version()),
					"The keeper replaces an older one when fences open the next time. If the one in Redis is newer, upgrade pgcache_fence here.");
	else if (hello.refusal[0] != '\0' && strcmp(hello.owner, library_owner()) != 0)
		put_finding(report, "error",
					psprintf("two clusters use pgcache_fence.namespace \"%s\": Redis %s is armed by cluster %s, and this is cluster %s",
							 setting_namespace, name, hello.owner, library_owner()),
					"Give each cluster a pgcache_fence.namespace of its own, in its configuration, and restart it. "
					"Nothing of this cluster is cached meanwhile.");
	else if (tells_events())
		(void) check_rights(report, call, name, true);
}

static void
check_node(Report *report, const FenceNode *node)
{
	LibraryCall call = {.deadline = fence_clock() + setting_timeout_us()};
	const char *name = node->address.is_unix ? psprintf("at %s", node->address.host) :
		psprintf("at %s, port %d", node->address.host, node->address.port);

	if (!library_open(&call, &node->address))
	{
		put_finding(report, "error", psprintf("Redis %s cannot be reached from this backend: %s", name, call.error),
					"Check that it runs, and that network, user and password are right.");
		return;
	}
	PG_TRY();
	{
		check_server(report, &call, name);
		check_library(report, &call, name);
	}
	PG_FINALLY();
	{
		redis_close(call.conn);
	}
	PG_END_TRY();
}

static void
check_redis(Report *report)
{
	FenceNode  *nodes = palloc(sizeof(FenceNode) * MAX_NODES);
	int			n = fence_copy_nodes(nodes);

	if (n == 0)
		put_finding(report, "error", "the keeper has not found a Redis yet", "fence.state tells why.");
	for (int i = 0; i < n; i++)
		if (!nodes[i].dismissed)
			check_node(report, &nodes[i]);
}

static void
check_heartbeat(Report *report)
{
	uint64		worst = metrics_value_server(SERVER_METRIC_HEARTBEAT);
	uint64		lease = (uint64) setting_lease * 1000;

	if (worst > lease / 4)
		put_finding(report, worst > lease / 2 ? "error" : "warning",
					psprintf("the slowest heartbeat took %s of a lease of %d ms", milliseconds(worst), setting_lease),
					"Raise pgcache_fence.lease to four times that or more, or find what is slow; then SELECT fence.reset_metrics().");
}

static void
check_clock(Report *report)
{
	uint64		step = metrics_value_server(SERVER_METRIC_CLOCK_STEP);

	if (step > (uint64) setting_clock_margin * 1000)
		put_finding(report, "error",
					psprintf("the clock of a Redis node has stepped by %s, which is more than pgcache_fence.clock_margin", milliseconds(step)),
					"Let its clock be slewed (chrony without makestep); then SELECT fence.reset_metrics().");
}

/* -----------------------------------------------------------------------------------------------------------------
 * Tables
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Reports domains that are not served because of their triggers: those of the table, and those that PostgreSQL has
 * copied to its partitions.
 */
static void
check_shapes(Report *report)
{
	ListCell   *lc;

	foreach(lc, domain_list())
	{
		const DomainRow *row = ((DomainRef *) lfirst(lc))->row;
		char	   *fault = shape_fault_of_domain(row);

		if (fault == NULL)
			continue;
		put_finding(report, "error", psprintf("domain %s is not served, because changes of its table are not fenced: %s", row->name, fault),
					psprintf("Find out who changed that. Then SELECT fence.detach_domain(%s), and attach the table again.",
							 quote_literal_cstr(row->name)));
	}
}

static void
check_triggers(Report *report)
{
	const char *problem = RecoveryInProgress() ? NULL : capture_problem();

	if (problem != NULL)
		put_finding(report, "warning", psprintf("row triggers, not the executor, capture changed rows: %s", problem),
					"No stale value is served, but writes cost more. Please report this.");
	check_shapes(report);
	put_rows(report, "error",
			 "SELECT pg_catalog.format('the table of domain %s does not exist (OID %s)', d.name, d.relation::pg_catalog.oid),"
			 " pg_catalog.format('SELECT fence.detach_domain(%L)', d.name)"
			 " FROM fence.domain d WHERE d.relation IS NOT NULL"
			 " AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) d.relation)");
	put_rows(report, "error",
			 "SELECT pg_catalog.format('table %s has triggers of a fenced table, but is not attached: writes to it fail', t.tgrelid::pg_catalog.regclass),"
			 " pg_catalog.format('SELECT fence.attach(%L) replaces them.', t.tgrelid::pg_catalog.regclass)"
			 " FROM pg_catalog.pg_trigger t WHERE t.tgname OPERATOR(pg_catalog.=) ANY"
			 " ('{zzz_pgcache_fence_before,zzz_pgcache_fence_after,zzz_pgcache_fence_truncate}'::pg_catalog.name[])"
			 " AND t.tgparentid OPERATOR(pg_catalog.=) 0"
			 " AND NOT EXISTS (SELECT FROM fence.domain d WHERE d.relation OPERATOR(pg_catalog.=) t.tgrelid)"
			 " GROUP BY t.tgrelid");
}

/* Checks that the index of the key still is as fence.attach demands it. */
static void
check_indexes(Report *report)
{
	put_rows(report, "error",
			 "SELECT pg_catalog.format('table %s has no valid unique index on its key any more: two rows could share one fence', d.relation),"
			 " 'REINDEX the index, or create it again.'"
			 " FROM fence.domain d WHERE d.scope OPERATOR(pg_catalog.=) 'row'"
			 " AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) d.relation) AND NOT EXISTS ("
			 "  SELECT FROM pg_catalog.pg_index i WHERE i.indrelid OPERATOR(pg_catalog.=) d.relation AND i.indisunique"
			 "   AND i.indisvalid AND i.indimmediate AND i.indisready AND i.indislive AND i.indpred IS NULL AND i.indexprs IS NULL"
			 "   AND ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) d.relation"
			 "    AND a.attnum OPERATOR(pg_catalog.=) ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts OPERATOR(pg_catalog.-) 1])"
			 "    ORDER BY a.attname)"
			 "   OPERATOR(pg_catalog.=) ARRAY(SELECT k FROM pg_catalog.unnest(d.key_columns) k ORDER BY k))");
}

/*
 * Reports unfenced tables that look as if somebody forgot to attach them. They have a primary key, and a column that
 * is named like a version column in use or like the default.
 */
static void
check_unfenced(Report *report)
{
	put_rows(report, "info",
			 "SELECT pg_catalog.format('table %s has a column %I, but is not fenced', c.oid::pg_catalog.regclass, a.attname),"
			 " pg_catalog.format('SELECT fence.attach(%L), if it is cached.', c.oid::pg_catalog.regclass)"
			 " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid"
			 " WHERE c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p']::pg_catalog.\"char\"[]) AND NOT c.relispartition"
			 " AND c.relpersistence OPERATOR(pg_catalog.=) 'p'"
			 " AND a.atttypid OPERATOR(pg_catalog.=) ANY (ARRAY['int2', 'int4', 'int8']::pg_catalog.regtype[])"
			 " AND NOT a.attisdropped"
			 " AND (a.attname OPERATOR(pg_catalog.=) 'version' OR"
			 "  a.attname OPERATOR(pg_catalog.=) ANY (SELECT d.version_column FROM fence.domain d))"
			 " AND c.relnamespace OPERATOR(pg_catalog.<>) ALL ("
			 "  ARRAY['pg_catalog', 'information_schema', 'fence']::pg_catalog.regnamespace[])"
			 " AND EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisprimary)"
			 " AND NOT EXISTS (SELECT FROM fence.domain d WHERE d.relation OPERATOR(pg_catalog.=) c.oid)"
			 " ORDER BY 1");
}

/* Reports attachments of one table that have the same key, that have no effect, or that make every write expensive. */
static void
check_attachments(Report *report)
{
	put_rows(report, "info",
			 "SELECT pg_catalog.format('domains %s and %s of table %s have the same key', a.name, b.name, a.relation),"
			 " 'One of them is enough, unless they differ in columns on purpose.'"
			 " FROM fence.domain a JOIN fence.domain b ON a.relation OPERATOR(pg_catalog.=) b.relation"
			 " AND a.id OPERATOR(pg_catalog.<) b.id AND a.scope OPERATOR(pg_catalog.=) b.scope"
			 " AND a.key_columns OPERATOR(pg_catalog.@>) b.key_columns AND b.key_columns OPERATOR(pg_catalog.@>) a.key_columns"
			 " WHERE coalesce(a.tag, '') OPERATOR(pg_catalog.=) coalesce(b.tag, '')"	/* with other tags they are read copies */
			 " ORDER BY 1");
	put_rows(report, "info",
			 "SELECT pg_catalog.format('only_columns of domain %s has no effect: domain %s has the same version column, which any change of the row raises',"
			 " a.name, pg_catalog.min(b.name)), 'Attach both with only_columns, or one of them with version => NULL.'"
			 " FROM fence.domain a JOIN fence.domain b ON a.relation OPERATOR(pg_catalog.=) b.relation"
			 " AND a.version_column OPERATOR(pg_catalog.=) b.version_column"
			 " WHERE a.only_columns AND NOT b.only_columns GROUP BY a.name ORDER BY 1");
	put_rows(report, "warning",
			 psprintf("SELECT pg_catalog.format('a row of table %%s is in %%s groups: each write locks them all', relation, pg_catalog.count(*)),"
					  " 'Detach those that nobody reads, or attach them with only_columns.'"
					  " FROM fence.domain WHERE scope OPERATOR(pg_catalog.=) 'group' AND NOT only_columns"
					  " GROUP BY relation HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) %d ORDER BY 1", MANY_GROUPS));
	put_rows(report, "warning",
			 psprintf("SELECT pg_catalog.format('domain %%s has one key for all of table %%s, which has about %%s rows:"
					  " all of its writers wait for each other',"
					  " d.name, d.relation, c.reltuples::bigint), 'Attach it by a key of its rows.'"
					  " FROM fence.domain d JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.relation"
					  " WHERE d.key_columns OPERATOR(pg_catalog.=) '{}' AND d.scope OPERATOR(pg_catalog.=) 'group'"
					  " AND c.reltuples OPERATOR(pg_catalog.>) %d ORDER BY 1", SMALL_TABLE));
}

/* Readers ask Redis, so PostgreSQL does not see them. But the audit sees whether any of the keys that it samples is cached. */
static void
check_read(Report *report)
{
	put_rows(report, "info",
			 psprintf("SELECT pg_catalog.format('nobody seems to read domain %%s: none of %%s keys that the audit compared is cached',"
					  " labels OPERATOR(pg_catalog.->>) 'domain', pg_catalog.sum(value)),"
					  " 'Detach it if nobody reads it, because it makes each write of its table more expensive.'"
					  " FROM fence._metrics() WHERE name OPERATOR(pg_catalog.=) 'cache_fence_db_compare'"
					  " AND labels OPERATOR(pg_catalog.->>) 'domain' OPERATOR(pg_catalog.=) ANY (SELECT d.name FROM fence.domain d)"
					  " GROUP BY labels OPERATOR(pg_catalog.->>) 'domain' HAVING pg_catalog.sum(value) OPERATOR(pg_catalog.>=) %d"
					  " AND pg_catalog.sum(value) OPERATOR(pg_catalog.=)"
					  "  pg_catalog.sum(CASE WHEN labels OPERATOR(pg_catalog.->>) 'relation' OPERATOR(pg_catalog.=) 'missing' THEN value ELSE 0 END)"
					  " ORDER BY 1", ENOUGH_COMPARED));
}

/* -----------------------------------------------------------------------------------------------------------------
 * What goes on
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
check_reservations(Report *report)
{
	char	   *wait = psprintf("interval '%lld milliseconds'",
								(long long) LONG_WAIT * (setting_patrol_grace + setting_patrol_interval));

	put_rows(report, "warning",
			 psprintf("SELECT pg_catalog.format('prepared transaction %%L has held %%s reservation(s) for %%s', gid,"
					  " pg_catalog.sum(coalesce(fences, 1)), pg_catalog.max(age)),"
					  " pg_catalog.format('COMMIT PREPARED %%1$L or ROLLBACK PREPARED %%1$L: until then readers of these keys go to PostgreSQL.', gid)"
					  " FROM fence.pending WHERE gid IS NOT NULL AND age OPERATOR(pg_catalog.>) %s"
					  " GROUP BY gid ORDER BY gid", wait));
	put_rows(report, "warning",
			 psprintf("SELECT pg_catalog.format('%%s reservation(s) of ended transactions have not been settled for %%s: one is of domain %%s',"
					  " pg_catalog.sum(coalesce(fences, 1)), pg_catalog.max(age), pg_catalog.min(domain)),"
					  " 'The server log tells why the patrol cannot settle them.'"
					  " FROM fence.pending WHERE fate OPERATOR(pg_catalog.<>) ALL (ARRAY['in progress', 'stands'])"
					  " AND gid IS NULL AND age OPERATOR(pg_catalog.>) %s"
					  " HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0", wait));
}

/* What the sweep of the patrol has found since the counters began. */
static void
check_swept(Report *report)
{
	uint64		swept = metrics_value_server(SERVER_METRIC_SWEPT);

	if (swept > 0)
		put_finding(report, "warning",
					psprintf(UINT64_FORMAT " cached value(s) were removed from Redis that nobody may have stored", swept),
					"A user of Redis writes fences past the function library (SET), or prolongs their life. Readers were served them."
					" The server log names some. Afterwards fence.reset_metrics() ends this finding.");
}

static void
check_buckets(Report *report)
{
	BucketsNow	now;
	int64		wait;

	buckets_now(&now);
	wait = now.waits_since == 0 ? 0 : fence_clock() - now.waits_since;
	if (now.buckets == 0 || WORD_STATE(fence_word()) != FENCE_OPEN)
		return;
	if (wait > LONG_WAIT * INT64CONST(1000) * (setting_patrol_grace + setting_patrol_interval))
		put_finding(report, "warning",
					psprintf("no bucket has opened for %s, because a transaction has not ended its commit: keys that readers miss for the"
							 " first time are not cached", milliseconds(wait)),
					"It may wait for a synchronous standby: look for wait_event 'SyncRep' in pg_stat_activity.");
	if (now.set + now.set_before > now.buckets / MANY_SET)
		put_finding(report, "warning",
					psprintf("%d of %d buckets may have something in Redis: as large a part of the rows that nobody has cached is reserved when"
							 " it is written", now.set + now.set_before, now.buckets),
					"Raise pgcache_fence.watch_buckets to 32 times the number of different keys that are stored within the longest ttl, or lower the ttl"
					" of tables and pgcache_fence.default_ttl.");
}

/*
 * Checks holds in Redis, which are of all databases, and rows of fence.outbox in this database. It shows no keys,
 * because these are users' data, which not everybody who may call fence.doctor may see.
 */
static void
check_effects(Report *report)
{
	char	   *wait = psprintf("interval '%lld milliseconds'",
								(long long) LONG_WAIT * (setting_patrol_grace + setting_patrol_interval));

	put_rows(report, "warning",
			 psprintf("SELECT pg_catalog.format('prepared transaction %%L has held %%s effect(s) for %%s', gid,"
					  " pg_catalog.count(*), pg_catalog.max(age)),"
					  " pg_catalog.format('COMMIT PREPARED %%1$L or ROLLBACK PREPARED %%1$L:"
					  " until then no other transaction can have effects on these keys.', gid)"
					  " FROM fence.effects WHERE gid IS NOT NULL AND age OPERATOR(pg_catalog.>) %s"
					  " GROUP BY gid ORDER BY gid", wait));
	put_rows(report, "warning",
			 psprintf("SELECT pg_catalog.format('%%s effect(s) of kind %%s (%%s) have not been settled for %%s',"
					  " pg_catalog.count(*), kind, fate, pg_catalog.max(age)),"
					  " 'fence.effects shows the keys, and the server log tells why the patrol cannot settle them: see doc/operations.md, \"Effects\".'"
					  " FROM fence.effects WHERE fate OPERATOR(pg_catalog.=) ANY (ARRAY['committed', 'aborted', 'unknown'])"
					  " AND age OPERATOR(pg_catalog.>) %s"
					  " GROUP BY kind, fate ORDER BY kind, fate", wait));
	put_rows(report, "warning",
			 "SELECT pg_catalog.format('%s effect(s) in Redis are of another PostgreSQL cluster', pg_catalog.count(*)),"
			 " 'If that cluster is gone (pg_upgrade, a new initdb), delete them: doc/operations.md.'"
			 " FROM fence.effects WHERE fate OPERATOR(pg_catalog.=) 'of another cluster'"
			 " HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0");
	put_rows(report, "warning",
			 psprintf("SELECT pg_catalog.format('%%s durable effect(s) have waited in fence.outbox for %%s', pg_catalog.count(*),"
					  " pg_catalog.now() OPERATOR(pg_catalog.-) pg_catalog.min(created_at)),"
					  " 'The patrol applies them when Redis accepts them. The server log tells why it does not.'"
					  " FROM fence.outbox WHERE created_at OPERATOR(pg_catalog.<) (pg_catalog.now() OPERATOR(pg_catalog.-) %s)"
					  " HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0", wait));
}

/* Shows no keys, as above. A hot slot does no harm if all slots are in one process, or if it is hot by one key alone. */
static void
check_hot(Report *report)
{
	put_rows(report, "warning",
			 "SELECT pg_catalog.format('one key of domain %s takes %s %% of all calls to Redis process %s', domain,"
			 " pg_catalog.round(100 OPERATOR(pg_catalog.*) share), node),"
			 " 'fence.hot_keys shows it. doc/operations.md, \"Hot keys\", says how to spread its calls.'"
			 " FROM fence.hot_keys WHERE share OPERATOR(pg_catalog.>=) " HOT_SHARE
			 " AND (reads OPERATOR(pg_catalog.+) misses OPERATOR(pg_catalog.+) writes) OPERATOR(pg_catalog.>=) " HOT_CALLS
			 " ORDER BY share DESC");
	put_rows(report, "warning",
			 "SELECT pg_catalog.format('slot %s takes %s %% of all calls to Redis process %s', s.slot,"
			 " pg_catalog.round(100 OPERATOR(pg_catalog.*) s.share), s.node),"
			 " 'Many keys of one tag are there. Attach the table with a tag that divides them: see doc/operations.md, \"Hot keys\".'"
			 " FROM fence.hot_slots s WHERE s.share OPERATOR(pg_catalog.>=) " HOT_SHARE
			 " AND (s.reads OPERATOR(pg_catalog.+) s.misses OPERATOR(pg_catalog.+) s.writes) OPERATOR(pg_catalog.>=) " HOT_CALLS
			 " AND (SELECT pg_catalog.count(*) FROM fence.nodes WHERE slots OPERATOR(pg_catalog.>) 0) OPERATOR(pg_catalog.>) 1"
			 " AND NOT EXISTS (SELECT FROM fence.hot_keys k WHERE k.node OPERATOR(pg_catalog.=) s.node"
			 "  AND k.slot OPERATOR(pg_catalog.=) s.slot AND (2 OPERATOR(pg_catalog.*) k.share) OPERATOR(pg_catalog.>) s.share)"
			 " ORDER BY s.share DESC");
}

static void
check_bypassed(Report *report)
{
	uint64		n = metrics_value_server(SERVER_METRIC_BYPASSED);

	if (n > 0)
		put_finding(report, "warning", psprintf("%llu transaction(s) committed without reservations", (unsigned long long) n),
					"Each waited until no Redis process had a lease of this cluster. The server log tells why fences were CLOSED then; "
					"SELECT fence.reset_metrics() resets the count.");
}

static void
check_promises(Report *report)
{
	put_rows(report, "error",
			 "SELECT pg_catalog.format('%s fence(s) of domain %s were behind their rows: stale values may have been served',"
			 " value, labels OPERATOR(pg_catalog.->>) 'domain'),"
			 " 'The log names them. Look for writes that bypass the triggers, and for clients that put what they have read on"
			 " another server than this one. SELECT fence.reset_metrics() resets the count.'"
			 " FROM fence._metrics() WHERE name OPERATOR(pg_catalog.=) 'cache_fence_db_compare' AND value OPERATOR(pg_catalog.>) 0"
			 " AND labels OPERATOR(pg_catalog.->>) 'relation' OPERATOR(pg_catalog.=) 'fence_behind_db'");
	put_rows(report, "error",
			 "SELECT pg_catalog.format('%s cached row(s) of domain %s differed from their rows, although both had the same version', value,"
			 " labels OPERATOR(pg_catalog.->>) 'domain'),"
			 " 'The log names them. Look for clients that put other values than they have read. SELECT fence.reset_metrics() resets the count.'"
			 " FROM fence._metrics() WHERE name OPERATOR(pg_catalog.=) 'cache_fence_db_compare' AND value OPERATOR(pg_catalog.>) 0"
			 " AND labels OPERATOR(pg_catalog.->>) 'relation' OPERATOR(pg_catalog.=) 'payload_differs'");
	put_rows(report, "warning",
			 "SELECT pg_catalog.format('%s fence(s) of domain %s were ahead of their rows', value,"
			 " labels OPERATOR(pg_catalog.->>) 'domain'),"
			 " 'This happens if commits were lost or a table was restored. The patrol repairs them. SELECT fence.reset_metrics() resets the count.'"
			 " FROM fence._metrics() WHERE name OPERATOR(pg_catalog.=) 'cache_fence_db_compare' AND value OPERATOR(pg_catalog.>) 0"
			 " AND labels OPERATOR(pg_catalog.->>) 'relation' OPERATOR(pg_catalog.=) 'fence_ahead_db'");
}

/* -----------------------------------------------------------------------------------------------------------------
 * The checks
 * -----------------------------------------------------------------------------------------------------------------
 */

typedef struct Check
{
	void		(*check) (Report *report);
	bool		needs_library;	/* it works only if the library was preloaded */
	const char *well;			/* the text of the row "ok" */
} Check;

static const Check checks[] = {
	{check_preload, false, "the library is loaded at server start"},
	{check_version, false, "the extension has the version of the installed files"},
	{check_workers, true, "keeper, patrol and courier are running"},
	{check_state, true, "fences are OPEN"},
	{check_served, true, "this database is served"},
	{check_slots, true, "there are enough background workers"},
	{check_settings, true, "the settings go together"},
	{check_redis, true, "Redis answers and is set up well"},
	{check_heartbeat, true, "heartbeats are quick enough for the lease"},
	{check_clock, true, "no clock of a Redis node has stepped"},
	{check_triggers, false, "all triggers are there, and as fence.attach makes them"},
	{check_indexes, false, "the unique indexes of all keys are valid"},
	{check_attachments, false, "no attachment is redundant, without effect or expensive"},
	{check_read, true, "every domain has readers, as far as the audit has seen"},
	{check_unfenced, false, "no table with a version column is left unfenced"},
	{check_reservations, true, "no reservation is left over"},
	{check_buckets, true, "buckets open as readers miss their keys, and there are enough of them"},
	{check_swept, true, "nothing was in Redis that nobody may have stored"},
	{check_effects, true, "no effect is left over"},
	{check_hot, true, "no key and no slot takes more than its share of the calls to Redis"},
	{check_bypassed, true, "no transaction has committed without reservations"},
	{check_promises, true, "no fence was found to differ from its row"},
};

/* Runs a check. An error that it raises is a finding too. */
static void
run_check(Report *report, const Check *check)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	report->found = 0;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		check->check(report);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		put_finding(report, "error", psprintf("could not check whether %s: %s", check->well, error->message), error->hint);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (report->found == 0)
		put_finding(report, "ok", check->well, NULL);
}

Datum
fence_doctor(PG_FUNCTION_ARGS)
{
	Report		report = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < (int) lengthof(checks); i++)
		if (fence_shared != NULL || !checks[i].needs_library)
			run_check(&report, &checks[i]);
	return (Datum) 0;
}
