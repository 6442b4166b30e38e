/*
 * base/settings.h
 *	  The configuration parameters pgcache_fence.*; defined and documented in settings.c.
 *
 * Durations are in milliseconds, those of idle fences and tombstones in seconds.
 */
#ifndef FENCE_SETTINGS_H
#define FENCE_SETTINGS_H

#include "base/url.h"

typedef enum FailurePolicy
{
	POLICY_BYPASS,				/* Redis gone: wait the lease out, commit without reservations */
	POLICY_ERROR				/* Redis gone: raise */
} FailurePolicy;

typedef enum ReserveWhen
{
	RESERVE_EARLY,				/* with the change */
	RESERVE_AT_COMMIT
} ReserveWhen;

typedef enum CaptureWay
{
	CAPTURE_AUTO,				/* the executor tells of changed rows wherever it can */
	CAPTURE_TRIGGERS			/* row triggers alone do */
} CaptureWay;

typedef enum UnreservedWrites
{
	UNRESERVED_ERROR,
	UNRESERVED_RESERVE_DOMAIN	/* the whole domain is reserved instead */
} UnreservedWrites;

extern char *setting_redis_url;
extern const RedisUrl *setting_url;	/* setting_redis_url taken apart */
extern char *setting_tls_ca_file;
extern char *setting_tls_cert_file;
extern char *setting_tls_key_file;
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
extern double setting_audit_rate;	/* rows per second and domain */
extern int	setting_bulk_threshold; /* rows of a domain in one transaction */
extern int	setting_value_limit;	/* bytes of a row as JSON; 0: none is sent */
extern int	setting_fill_lease;		/* 0: off */
extern int	setting_stream_limit;	/* entries */
extern int	setting_default_ttl;	/* seconds */
extern int	setting_tombstone_retention;	/* seconds */

#define FILL_LEASE_MAX_MS 10000
#define VALUE_LIMIT_MAX (512 * 1024)	/* half of what a message to Redis may hold */
#define LEASE_MAX_MS 60000		/* upper bound of pgcache_fence.lease: what an unknown lease counts as */

/* pgcache_fence.timeout in microseconds, as fence_clock() counts. */
static inline int64
setting_timeout_us(void)
{
	return setting_timeout * INT64CONST(1000);
}

extern void settings_define(void);
extern bool settings_serves_database(const char *datname);

#endif
