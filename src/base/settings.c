/*
 * base/settings.c
 *	  The configuration parameters pgcache_fence.*: definitions, bounds, descriptions, checks. See settings.h.
 *
 * Owns: the parameters. Takes no locks. Never puts the URL into a message, because it may contain a password.
 */
#include "postgres.h"

#include <limits.h>

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "base/compat.h"
#include "base/settings.h"
#include "base/url.h"

#define NAMESPACE_MAX 32

char	   *setting_redis_url;
const RedisUrl *setting_url = NULL;
char	   *setting_tls_ca_file;
char	   *setting_tls_cert_file;
char	   *setting_tls_key_file;
char	   *setting_namespace;
char	   *setting_databases;
int			setting_lease;
int			setting_clock_margin;
int			setting_timeout;
int			setting_on_redis_failure;
int			setting_reserve;
int			setting_capture;
int			setting_unreserved_writes;
int			setting_patrol_interval;
int			setting_patrol_grace;
double		setting_audit_rate;
int			setting_sweep_rate;
int			setting_bulk_threshold;
int			setting_watch_buckets;
int			setting_value_limit;
int			setting_fill_lease;
int			setting_standby_wait;
int			setting_warm_rate;
int			setting_stream_limit;
int			setting_default_ttl;
int			setting_tombstone_retention;
bool		setting_zero_counters;

static const struct config_enum_entry failure_policies[] = {
	{"bypass", POLICY_BYPASS, false},
	{"error", POLICY_ERROR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry reserve_times[] = {
	{"early", RESERVE_EARLY, false},
	{"commit", RESERVE_AT_COMMIT, false},
	{NULL, 0, false}
};

static const struct config_enum_entry capture_ways[] = {
	{"auto", CAPTURE_AUTO, false},
	{"triggers", CAPTURE_TRIGGERS, false},
	{NULL, 0, false}
};

static const struct config_enum_entry unreserved_choices[] = {
	{"error", UNRESERVED_ERROR, false},
	{"reserve_domain", UNRESERVED_RESERVE_DOMAIN, false},
	{NULL, 0, false}
};

/*
 * Rejects an invalid value in a check hook. detail is a sentence. At server start PostgreSQL would only warn and
 * continue with the default, which means another Redis or other keys. So we stop the start, as PostgreSQL does for
 * invalid values of its own parameters.
 */
static bool
refuse(const char *name, int code, const char *detail)
{
	if (process_shared_preload_libraries_in_progress)
		ereport(FATAL,
				(errcode(code),
				 errmsg("invalid value for parameter \"%s\"", name),
				 errdetail("%s", detail)));
	GUC_check_errcode(code);
	GUC_check_errdetail("%s", detail);
	return false;
}

/* PostgreSQL's own error message would write the value, and with it the password, to the log. So we report our own. */
static bool
check_redis_url(char **newval, void **extra, GucSource source)
{
	static const char *const name = "pgcache_fence.redis_url";
	RedisUrl	url;
	const char *why = redis_url_parse(*newval, &url);

	(void) source;
	if (why != NULL)
	{
		GUC_check_errmsg("invalid value for parameter \"pgcache_fence.redis_url\"");
		return refuse(name, ERRCODE_INVALID_PARAMETER_VALUE, psprintf("The URL is malformed: %s.", why));
	}
	why = url.tls ? TLS_MISSING : NULL;
	if (why != NULL)
	{
		GUC_check_errmsg("unsupported value for parameter \"pgcache_fence.redis_url\"");
		return refuse(name, ERRCODE_FEATURE_NOT_SUPPORTED, psprintf("%s.", why));
	}
	*extra = guc_malloc(LOG, sizeof(RedisUrl));
	if (*extra == NULL)
		return false;
	memcpy(*extra, &url, sizeof(RedisUrl));
	return true;
}

uint64
settings_of_connections(void)
{
	const char *const settings[] = {setting_redis_url, setting_tls_ca_file, setting_tls_cert_file, setting_tls_key_file};
	uint64		hash = 0;

	for (int i = 0; i < (int) lengthof(settings); i++)
		hash = hash_combine64(hash, hash_bytes_extended((const unsigned char *) settings[i], strlen(settings[i]), 0));
	return hash == 0 ? 1 : hash;
}

static void
assign_redis_url(const char *newval, void *extra)
{
	(void) newval;
	setting_url = extra;
}

static emit_log_hook_type next_emit_log_hook = NULL;

/*
 * At a reload the postmaster logs the new value of each changed parameter, and this one may contain a password. We
 * cannot compare the whole message, because it is in the server's language. It contains the parameter's name in the
 * spelling of the configuration file.
 */
static void
hide_redis_url(ErrorData *edata)
{
	static bool ours = false;

	if (ours || edata->elevel >= ERROR || !edata->output_to_server || edata->message == NULL ||
		strcasestr(edata->message, "pgcache_fence.redis_url") == NULL || strstr(edata->message, "://") == NULL)
	{
		if (next_emit_log_hook)
			next_emit_log_hook(edata);
		return;
	}
	edata->output_to_server = false;
	ours = true;
	ereport(LOG, (errmsg("parameter \"pgcache_fence.redis_url\" changed")));
	ours = false;
}

static bool
check_namespace(char **newval, void **extra, GucSource source)
{
	size_t		len = strlen(*newval);

	(void) extra;
	(void) source;
	if (len >= 1 && len <= NAMESPACE_MAX &&
		strspn(*newval, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == len)
		return true;
	return refuse("pgcache_fence.namespace", ERRCODE_INVALID_PARAMETER_VALUE,
				  psprintf("A namespace has 1 to %d letters (A-Z, a-z), digits, underscores, dots and hyphens.", NAMESPACE_MAX));
}

static bool
check_watch_buckets(int *newval, void **extra, GucSource source)
{
	(void) extra;
	(void) source;
	if (*newval == 0 || (*newval >= BUCKETS_MIN && (*newval & (*newval - 1)) == 0))
		return true;
	return refuse("pgcache_fence.watch_buckets", ERRCODE_INVALID_PARAMETER_VALUE,
				  psprintf("It must be 0 or a power of two from %d on.", BUCKETS_MIN));
}

static bool
check_databases(char **newval, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*newval);
	List	   *names;
	bool		valid = SplitIdentifierString(copy, ',', &names);

	(void) extra;
	(void) source;
	list_free(names);
	pfree(copy);
	return valid || refuse("pgcache_fence.databases", ERRCODE_INVALID_PARAMETER_VALUE,
						   "It must be * or a list of database names separated by commas; names with upper-case "
						   "letters or special characters are quoted as in SQL.");
}

/*
 * Returns whether pgcache_fence.databases names the database. The names are read as SQL identifiers, so unquoted ones
 * are lower case.
 */
bool
settings_serves_database(const char *datname)
{
	char	   *copy = pstrdup(setting_databases);
	List	   *names;
	ListCell   *cell;
	bool		found = false;

	if (SplitIdentifierString(copy, ',', &names))
	{
		foreach(cell, names)
		{
			const char *name = lfirst(cell);

			if (strcmp(name, "*") == 0 || strcmp(name, datname) == 0)
				found = true;
		}
	}
	list_free(names);
	pfree(copy);
	return found;
}

static void
define_redis(void)
{
	DefineCustomStringVariable("pgcache_fence.redis_url",
							   "Where Redis is, and how to log in.",
							   "redis://[[user]:password@]host[:port], rediss:// likewise with TLS, "
							   "redis+sentinel://[[user]:password@]host[:port],.../master, "
							   "redis+cluster://[[user]:password@]host[:port],... or "
							   "unix://[[user]:password@]/path/to/socket. Several of the plain ones, separated by commas, "
							   "are shards: the keys are divided among them. "
							   "Special characters in user and password are percent-encoded. Only database 0 can "
							   "be used. Without a password no AUTH is sent.",
							   &setting_redis_url, "redis://127.0.0.1:6379",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, check_redis_url, assign_redis_url, NULL);

	DefineCustomStringVariable("pgcache_fence.namespace",
							   "First part of the name of every Redis key of this cluster.",
							   "Keeps several PostgreSQL clusters that use one Redis apart: two that run at the "
							   "same time must never have the same. Applications use it in the names of keys that "
							   "they compute themselves.",
							   &setting_namespace, "fence",
							   PGC_POSTMASTER, 0, check_namespace, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.timeout",
							"Longest time to wait for one answer of Redis.",
							"After it Redis counts as gone: a read goes to PostgreSQL, the keeper closes the fences "
							"and writers follow pgcache_fence.on_redis_failure.",
							&setting_timeout, 500, 10, 60000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomEnumVariable("pgcache_fence.on_redis_failure",
							 "What writers of fenced tables do while Redis is gone.",
							 "\"bypass\": wait until the lease is over, so that no cached value is served any more, "
							 "and commit without telling Redis. \"error\": the transaction fails. Neither lets "
							 "a stale value be read. A table's own policy, given to fence.attach, comes first.",
							 &setting_on_redis_failure, POLICY_BYPASS, failure_policies,
							 PGC_SUSET, 0, NULL, NULL, NULL);

	DefineCustomEnumVariable("pgcache_fence.reserve",
							 "When a changed row of a fenced table stops being served from Redis.",
							 "\"early\": with the change, so that the commit hardly waits. \"commit\": with the commit, so that readers keep "
							 "their hits while a long transaction runs, and a rollback leaves the cache as it was. A table's own "
							 "choice, given to fence.attach, comes first.",
							 &setting_reserve, RESERVE_EARLY, reserve_times,
							 PGC_USERSET, 0, NULL, NULL, NULL);
}

/* Names of files reveal the server's file system. So only superusers see them, as with data_directory. */
static void
define_tls(void)
{
	DefineCustomStringVariable("pgcache_fence.tls_ca_file",
							   "Certificate authorities by which the certificate of Redis is checked.",
							   "A file in PEM format; empty means those of the system. The certificate must be for the "
							   "host, or the address, that pgcache_fence.redis_url names.",
							   &setting_tls_ca_file, "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);

	DefineCustomStringVariable("pgcache_fence.tls_cert_file",
							   "Certificate that is shown to Redis.",
							   "A file in PEM format, with the certificates between it and its authority. Empty means none.",
							   &setting_tls_cert_file, "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);

	DefineCustomStringVariable("pgcache_fence.tls_key_file",
							   "Private key of the certificate that is shown to Redis.",
							   "A file in PEM format, without a passphrase. Set together with pgcache_fence.tls_cert_file.",
							   &setting_tls_key_file, "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
}

static void
define_lease(void)
{
	DefineCustomIntVariable("pgcache_fence.lease",
							"How long Redis may vouch for cached values without hearing from PostgreSQL.",
							"Renewed at a quarter of it. Longer survives longer pauses of either side; shorter "
							"lets writers go on sooner after Redis is gone, because they wait for its end.",
							&setting_lease, 3000, 500, LEASE_MAX_MS,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.clock_margin",
							"How far the clock of Redis may fall behind during one lease.",
							"Added to every wait for the end of a lease. Freshness holds as long as the clock of "
							"the Redis machine is not set back, and the machine not paused, by more than this "
							"within a lease.",
							&setting_clock_margin, 200, 10, 10000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}

static void
define_patrol(void)
{
	DefineCustomStringVariable("pgcache_fence.databases",
							   "Databases that the background workers look after.",
							   "A list of names separated by commas, or * for every database that allows "
							   "connections; never a template. A fenced table of any other database is not served from the cache.",
							   &setting_databases, "*",
							   PGC_SIGHUP, 0, check_databases, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.patrol_interval",
							"Time between two rounds of the patrol.",
							"A round settles the reservations whose transactions have ended without telling Redis, "
							"and compares a sample of rows with their fences.",
							&setting_patrol_interval, 1000, 50, 3600000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.patrol_grace",
							"Age from which the patrol looks into a reservation.",
							"Younger ones are left to their transactions. Age alone never ends a transaction's "
							"reservation.",
							&setting_patrol_grace, 1000, 0, 3600000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomRealVariable("pgcache_fence.audit_rate",
							 "Rows per second that the patrol compares with their fences.",
							 "In the whole server: the fenced tables share it, and take turns. At least one row of each database in ten "
							 "seconds. 0 turns the comparison off.",
							 &setting_audit_rate, 100, 0, 1e6,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.sweep_rate",
							"Names per second in each Redis process at which the patrol looks for fences that nobody may have stored.",
							"It removes these, because no write would. 0 turns that off.",
							&setting_sweep_rate, 5000, 0, 1000000,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
}

/*
 * Only superusers may set these. A role that raises bulk_threshold can fill the memory of Redis with one reservation
 * per changed row. A role that lowers it can invalidate the cached values of a whole table by changing one row. GRANT
 * SET ON PARAMETER gives the right to a role.
 */
static void
define_writing(void)
{
	DefineCustomEnumVariable("pgcache_fence.capture",
							 "How changed rows of fenced tables are noticed.",
							 "\"auto\": by the executor itself, which costs a fraction of row triggers, and by the triggers where it cannot. "
							 "\"triggers\": by them alone.",
							 &setting_capture, CAPTURE_AUTO, capture_ways,
							 PGC_SUSET, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.bulk_threshold",
							"Number of rows of a table that a transaction reserves one by one.",
							"A transaction that changes more rows reserves the whole table instead: one message instead "
							"of one per row. When it commits, no cached value of the table is trusted any more.",
							&setting_bulk_threshold, 3000, 1, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.watch_buckets",
							"Number of bits by which PostgreSQL remembers what may be cached.",
							"A row of which nothing may be cached is then written without a message to Redis. It must be a "
							"power of two, and is best some 32 times the number of different keys that are stored within the longest ttl. 0 turns this off.",
							&setting_watch_buckets, BUCKETS_DEFAULT, 0, BUCKETS_MAX,
							PGC_POSTMASTER, 0, check_watch_buckets, NULL, NULL);

	DefineCustomEnumVariable("pgcache_fence.unreserved_writes",
							 "What happens to a row of a manual domain that is written without fence.begin_write.",
							 "\"error\": the write is refused, and so is a stored version that was not reserved. \"reserve_domain\": it is let pass, and the "
							 "whole domain is reserved until the transaction ends; then no cached value of it is trusted any more. For migrations.",
							 &setting_unreserved_writes, UNRESERVED_ERROR, unreserved_choices,
							 PGC_SUSET, 0, NULL, NULL, NULL);
}

static void
define_values(void)
{
	DefineCustomIntVariable("pgcache_fence.value_limit",
							"Largest row that a commit stores in Redis.",
							"In bytes of its JSON text, for tables attached with cache => 'row'. A larger row is cached "
							"by the next reader instead. 0 lets no commit store rows: for instance in a session "
							"that changes many rows that nobody will read.",
							&setting_value_limit, 8192, 0, VALUE_LIMIT_MAX,
							PGC_USERSET, GUC_UNIT_BYTE, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.fill_lease",
							"Time for which one reader may fill in a missing value before others are asked to.",
							"Readers that miss the value meanwhile are told so, and may wait that long for it instead of "
							"reading PostgreSQL; fence.read does. 0 turns this off.",
							&setting_fill_lease, 100, 0, FILL_LEASE_MAX_MS,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.standby_wait",
							"Time for which a read on a standby waits for the standby to replay what it needs.",
							"Only for a miss of which Redis knows how far the standby must be. Afterwards the read sends its "
							"caller to the primary. 0: it never waits.",
							&setting_standby_wait, 50, 0, STANDBY_WAIT_MAX_MS,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.warm_rate",
							"Missing values per second that readers of one Redis process may fill in.",
							"When the cache is cold, others that miss a value are told to wait for their turn, up to two seconds, and "
							"then read PostgreSQL all the same; fence.read does. 0 turns this off. It needs pgcache_fence.fill_lease.",
							&setting_warm_rate, 0, 0, WARM_RATE_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.stream_limit",
							"Number of events that Redis keeps in the stream of a table.",
							"For tables attached with publish => 'stream'. Redis keeps somewhat more where that is "
							"cheaper.",
							&setting_stream_limit, 10000, 1, INT_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
}

static void
define_retention(void)
{
	DefineCustomIntVariable("pgcache_fence.default_ttl",
							"Time to live of cached values, unless the table or the caller sets another one.",
							"Then Redis drops the value, which costs one cache miss and nothing else.",
							&setting_default_ttl, 86400, 60, 365 * 86400,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);

	DefineCustomIntVariable("pgcache_fence.tombstone_retention",
							"Time for which the version of each deleted row is kept.",
							"Afterwards the table's floor takes its place: a row that comes back later starts above "
							"the highest version that was forgotten.",
							&setting_tombstone_retention, 7 * 86400, 0, 3650 * 86400,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}

static void
define_metrics(void)
{
	DefineCustomBoolVariable("pgcache_fence.zero_counters",
							 "Whether fence.metrics shows counters of domains that have counted nothing yet.",
							 "With many domains they are nearly all of its rows. Gauges, and all counters of the server, "
							 "are always shown.",
							 &setting_zero_counters, false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
}

/* Defines all parameters. Called once, when the library is preloaded. */
void
settings_define(void)
{
	define_redis();
	define_tls();
	define_lease();
	define_patrol();
	define_writing();
	define_values();
	define_retention();
	define_metrics();
	MarkGUCPrefixReserved("pgcache_fence");
	next_emit_log_hook = emit_log_hook;
	emit_log_hook = hide_redis_url;
}
