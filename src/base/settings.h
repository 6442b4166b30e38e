/*
 * base/settings.h
 *	  The configuration parameters pgcache_fence.*. settings.c defines and documents them.
 *
 * Durations are in milliseconds, unless a comment says seconds.
 */
#ifndef FENCE_SETTINGS_H
#define FENCE_SETTINGS_H

#include "base/url.h"

typedef enum FailurePolicy
{
	POLICY_BYPASS,				/* without Redis: wait until the lease has ended, then commit without reservations */
	POLICY_ERROR				/* without Redis: raise */
} FailurePolicy;

typedef enum ReserveWhen
{
	RESERVE_EARLY,				/* as soon as the row changes */
	RESERVE_AT_COMMIT
} ReserveWhen;

typedef enum CaptureWay
{
	CAPTURE_AUTO,				/* the executor reports changed rows wherever it can */
	CAPTURE_TRIGGERS			/* only row triggers report them */
} CaptureWay;

typedef enum UnreservedWrites
{
	UNRESERVED_ERROR,
	UNRESERVED_RESERVE_DOMAIN	/* the whole domain is reserved instead */
} UnreservedWrites;

extern char *setting_redis_url;
extern const RedisUrl *setting_url;	/* setting_redis_url, parsed */
extern char *setting_tls_ca_file;
extern char *setting_tls_cert_file;
extern char *setting_tls_key_file;
/*
 * Returns a hash of all settings that affect connections to Redis; never 0. Whoever has found an address with other
 * settings must not send the present password there. Allocates nothing.
 */
extern uint64 settings_of_connections(void);
extern char *setting_namespace;
extern char *setting_databases;
extern int	setting_lease;
extern int	setting_clock_margin;
extern int	setting_timeout;
extern int	setting_on_redis_failure;	/* FailurePolicy */
extern int	setting_reserve;	/* ReserveWhen */
extern int	setting_capture;	/* CaptureWay */
extern int	setting_unreserved_writes;	/* UnreservedWrites */
extern int	setting_patrol_interval;
extern int	setting_patrol_grace;
extern int	setting_sweep_rate;	/* names per second in each Redis process; 0: none */
extern double setting_audit_rate;	/* rows per second in the whole server */
extern int	setting_bulk_threshold; /* rows of one domain in one transaction */
extern int	setting_watch_buckets;	/* number of buckets, a power of two; 0: off */
extern int	setting_value_limit;	/* bytes of a row as JSON; 0: commits store no rows */
extern int	setting_fill_lease;		/* 0: off */
extern int	setting_standby_wait;	/* ms; 0: a reader on a standby does not wait for replay */
extern int	setting_warm_rate;		/* 0: off */
extern int	setting_stream_limit;	/* entries of a stream */
extern int	setting_default_ttl;	/* seconds */
extern int	setting_tombstone_retention;	/* seconds */
extern bool setting_zero_counters;

#define BUCKETS_MIN 64			/* of pgcache_fence.watch_buckets, if it is not 0 */
#define BUCKETS_MAX (1 << 28)
#define BUCKETS_DEFAULT (1 << 25)
#define WARM_RATE_MAX 1000000
#define FILL_LEASE_MAX_MS 10000
#define STANDBY_WAIT_MAX_MS 60000
#define VALUE_LIMIT_MAX (512 * 1024)	/* half of the largest message to Redis */
#define LEASE_MAX_MS 60000		/* upper bound of pgcache_fence.lease; we assume it where a lease is unknown */

/* pgcache_fence.timeout in microseconds, as fence_clock() counts. */
static inline int64
setting_timeout_us(void)
{
	return setting_timeout * INT64CONST(1000);
}

extern void settings_define(void);
extern bool settings_serves_database(const char *datname);

#endif
