/*
 * base/metrics.h
 *	  Counters and gauges in shared memory. The lists in this file name every metric that exists.
 *
 * The view fence.metrics shows them. monitoring/generate.py reads these lists, and from them writes or checks the
 * exporter's queries, the alert rules and the dashboard. It needs one entry per line.
 *
 * Locks: counting uses atomics, takes no lock, raises nothing and allocates nothing. So it is safe in COMMIT and ABORT.
 * Only looking up a domain's slot takes the lock of shared memory. That happens when a Domain is built, and the Domain
 * keeps the slot.
 */
#ifndef FENCE_METRICS_H
#define FENCE_METRICS_H

#include "postgres.h"

#include "port/atomics.h"

/*
 * Families: identifier, name, type, label names in order, help text. A family with the label "domain" has series for
 * each domain. Types: COUNTER; GAUGE; SECONDS, which is a gauge that is stored in microseconds and shown in seconds.
 * The view itself sets the label "cache_type", to the scope of the domain.
 */
#define METRIC_FAMILIES(F) \
	F(OPERATIONS, "cache_fence_operations_total", COUNTER, "domain,operation,result", "Operations, by what came of them; hits by plain GET only readers know") \
	F(FALLBACK, "cache_db_fallback_total", COUNTER, "domain,reason", "Reads that had to go to PostgreSQL") \
	F(STALE_REJECT, "cache_stale_write_reject_total", COUNTER, "domain,cache_type,level", "Outdated writes that were turned away") \
	F(PENDING, "cache_fence_pending", GAUGE, "domain", "Reservations that are not settled, as of the last patrol round") \
	F(REPAIR, "cache_fence_repair_total", COUNTER, "domain,result", "Repairs of fences, by result") \
	F(COMPARE, "cache_fence_db_compare", COUNTER, "domain,relation", "Fences compared with their rows, by what was found") \
	F(ROWS, "cache_fence_changed_rows_total", COUNTER, "domain,way", "Changed rows of fenced tables, by what told of them") \
	F(EPOCH_CHANGES, "cache_fence_epoch_changes_total", COUNTER, "reason", "New epochs, by what made them necessary") \
	F(RESUMED, "cache_fence_epochs_resumed_total", COUNTER, "", "Server starts after which the epoch of before went on") \
	F(STATE_CHANGES, "cache_fence_state_changes_total", COUNTER, "state", "Times that the state was entered") \
	F(BYPASSED, "cache_fence_bypassed_transactions_total", COUNTER, "", "Transactions that committed without reservations") \
	F(TOO_LARGE, "cache_fence_values_too_large_total", COUNTER, "", "Rows of tables with write-through that were too large for it") \
	F(TORN, "cache_fence_torn_reads_total", COUNTER, "", "Reads of several keys that changed meanwhile, and were read again") \
	F(EFFECTS, "cache_fence_effects_total", COUNTER, "operation,result", "Effects on keys in Redis that are bound to transactions, by what came of them") \
	F(EFFECTS_HELD, "cache_fence_held_effects", GAUGE, "", "Effects of transactions under way or prepared that the last patrol round found held") \
	F(BUCKETS_SET, "cache_fence_buckets_set", GAUGE, "", "Buckets of pgcache_fence.watch_buckets that may have something in Redis") \
	F(SWEPT, "cache_fence_swept_total", COUNTER, "", "Cached values that nobody may have stored, removed by the patrol") \
	F(OPEN, "cache_fence_open", GAUGE, "", "1 while fences may be used (state OPEN), else 0") \
	F(LEASE, "cache_fence_lease_seconds", SECONDS, "", "The setting pgcache_fence.lease") \
	F(HEARTBEAT, "cache_fence_heartbeat_worst_seconds", SECONDS, "", "Longest heartbeat since the last reset") \
	F(CLOCK_STEP, "cache_fence_clock_step_worst_seconds", SECONDS, "", "Largest step of a Redis node's clock against PostgreSQL's since the last reset")

/* The only histogram. Its only label is "le". */
#define METRIC_WINDOW_NAME "cache_fence_commit_window_seconds"
#define METRIC_WINDOW_HELP "Time from a transaction's commit to the commit of its fences"
/* Upper bounds of its buckets in microseconds. The last bucket has no upper bound. */
#define METRIC_WINDOW_BUCKETS 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 5000000

/* Series of each domain: identifier, family, values of the labels that follow "domain". */
#define METRIC_DOMAIN_SERIES(S) \
	S(RESERVE_GRANTED, OPERATIONS, "reserve", "granted") \
	S(RESERVE_FAILED, OPERATIONS, "reserve", "failed") \
	S(RESERVE_TIMEOUT, OPERATIONS, "reserve", "timeout") \
	S(RESERVE_CONFLICT, OPERATIONS, "reserve", "conflict") \
	S(COMMIT_WRITTEN, OPERATIONS, "commit", "written") \
	S(COMMIT_UNARMED, OPERATIONS, "commit", "unarmed") \
	S(COMMIT_FAILED, OPERATIONS, "commit", "failed") \
	S(COMMIT_TIMEOUT, OPERATIONS, "commit", "timeout") \
	S(COMMIT_BYPASSED, OPERATIONS, "commit", "bypassed") \
	S(COMMIT_CLOSED, OPERATIONS, "commit", "closed") \
	S(ABORT_WRITTEN, OPERATIONS, "abort", "written") \
	S(ABORT_UNARMED, OPERATIONS, "abort", "unarmed") \
	S(ABORT_FAILED, OPERATIONS, "abort", "failed") \
	S(ABORT_TIMEOUT, OPERATIONS, "abort", "timeout") \
	S(DOMAIN_RESERVE_GRANTED, OPERATIONS, "domain_reserve", "granted") \
	S(DOMAIN_RESERVE_FAILED, OPERATIONS, "domain_reserve", "failed") \
	S(DOMAIN_RESERVE_TIMEOUT, OPERATIONS, "domain_reserve", "timeout") \
	S(DOMAIN_COMMIT_WRITTEN, OPERATIONS, "domain_commit", "written") \
	S(DOMAIN_COMMIT_UNARMED, OPERATIONS, "domain_commit", "unarmed") \
	S(DOMAIN_COMMIT_FAILED, OPERATIONS, "domain_commit", "failed") \
	S(DOMAIN_COMMIT_TIMEOUT, OPERATIONS, "domain_commit", "timeout") \
	S(DOMAIN_ABORT_WRITTEN, OPERATIONS, "domain_abort", "written") \
	S(DOMAIN_ABORT_UNARMED, OPERATIONS, "domain_abort", "unarmed") \
	S(DOMAIN_ABORT_FAILED, OPERATIONS, "domain_abort", "failed") \
	S(DOMAIN_ABORT_TIMEOUT, OPERATIONS, "domain_abort", "timeout") \
	S(SETTLE_COMMITTED, OPERATIONS, "settle", "committed") \
	S(SETTLE_ABORTED, OPERATIONS, "settle", "aborted") \
	S(SETTLE_UNKNOWN, OPERATIONS, "settle", "unknown") \
	S(GET_TOLD, OPERATIONS, "get", "told") \
	S(GET_HIT, OPERATIONS, "get", "hit") \
	S(GET_MISS, OPERATIONS, "get", "miss") \
	S(GET_PENDING, OPERATIONS, "get", "pending") \
	S(GET_UNARMED, OPERATIONS, "get", "unarmed") \
	S(GET_UNAVAILABLE, OPERATIONS, "get", "unavailable") \
	S(SEED_STORED, OPERATIONS, "seed", "stored") \
	S(SEED_REFUSED, OPERATIONS, "seed", "refused") \
	S(STANDBY_SERVED, OPERATIONS, "standby", "served") \
	S(STANDBY_PRIMARY, OPERATIONS, "standby", "primary") \
	S(FALLBACK_MISS, FALLBACK, "miss", NULL) \
	S(FALLBACK_PENDING, FALLBACK, "pending", NULL) \
	S(FALLBACK_UNARMED, FALLBACK, "unarmed", NULL) \
	S(FALLBACK_UNAVAILABLE, FALLBACK, "unavailable", NULL) \
	S(FALLBACK_OWN_WRITE, FALLBACK, "own_write", NULL) \
	S(FALLBACK_UNREADABLE, FALLBACK, "unreadable", NULL) \
	S(STALE_REDIS, STALE_REJECT, "redis", NULL) \
	S(STALE_POSTGRES, STALE_REJECT, "postgres", NULL) \
	S(PENDING, PENDING, NULL, NULL) \
	S(REPAIR_REPAIRED, REPAIR, "repaired", NULL) \
	S(REPAIR_UNCHANGED, REPAIR, "unchanged", NULL) \
	S(REPAIR_PENDING, REPAIR, "pending", NULL) \
	S(REPAIR_UNARMED, REPAIR, "unarmed", NULL) \
	S(REPAIR_UNAVAILABLE, REPAIR, "unavailable", NULL) \
	S(COMPARE_EQUAL, COMPARE, "equal", NULL) \
	S(COMPARE_BEHIND, COMPARE, "fence_behind_db", NULL) \
	S(COMPARE_AHEAD, COMPARE, "fence_ahead_db", NULL) \
	S(COMPARE_PAYLOAD, COMPARE, "payload_differs", NULL) \
	S(COMPARE_PENDING, COMPARE, "pending", NULL) \
	S(COMPARE_MISSING, COMPARE, "missing", NULL) \
	S(ROWS_EXECUTOR, ROWS, "executor", NULL) \
	S(ROWS_TRIGGERS, ROWS, "triggers", NULL)

/* Series of the whole server: identifier, family, values of the labels. */
#define METRIC_SERVER_SERIES(S) \
	S(EPOCH_START, EPOCH_CHANGES, "start", NULL) \
	S(EPOCH_PROCESS, EPOCH_CHANGES, "redis_process", NULL) \
	S(EPOCH_BYPASS, EPOCH_CHANGES, "bypass", NULL) \
	S(EPOCH_BURNT, EPOCH_CHANGES, "burnt", NULL) \
	S(RESUMED, RESUMED, NULL, NULL) \
	S(STATE_OPEN, STATE_CHANGES, "OPEN", NULL) \
	S(STATE_CLOSED, STATE_CHANGES, "CLOSED", NULL) \
	S(BYPASSED, BYPASSED, NULL, NULL) \
	S(TOO_LARGE, TOO_LARGE, NULL, NULL) \
	S(TORN, TORN, NULL, NULL) \
	S(EFFECT_HOLD_HELD, EFFECTS, "hold", "held") \
	S(EFFECT_HOLD_REFUSED, EFFECTS, "hold", "refused") \
	S(EFFECT_HOLD_FAILED, EFFECTS, "hold", "failed") \
	S(EFFECT_APPLY_DONE, EFFECTS, "apply", "done") \
	S(EFFECT_APPLY_FAILED, EFFECTS, "apply", "failed") \
	S(EFFECT_UNDO_DONE, EFFECTS, "undo", "done") \
	S(EFFECT_UNDO_FAILED, EFFECTS, "undo", "failed") \
	S(EFFECT_SETTLE_APPLIED, EFFECTS, "settle", "applied") \
	S(EFFECT_SETTLE_UNDONE, EFFECTS, "settle", "undone") \
	S(EFFECT_SETTLE_FAILED, EFFECTS, "settle", "failed") \
	S(EFFECT_OUTBOX_DONE, EFFECTS, "outbox", "done") \
	S(EFFECT_OUTBOX_FAILED, EFFECTS, "outbox", "failed") \
	S(EFFECTS_HELD, EFFECTS_HELD, NULL, NULL) \
	S(BUCKETS_SET, BUCKETS_SET, NULL, NULL) \
	S(SWEPT, SWEPT, NULL, NULL) \
	S(OPEN, OPEN, NULL, NULL) \
	S(LEASE, LEASE, NULL, NULL) \
	S(HEARTBEAT, HEARTBEAT, NULL, NULL) \
	S(CLOCK_STEP, CLOCK_STEP, NULL, NULL)

typedef enum DomainMetric
{
#define METRIC_ENUM(id, family, one, two) METRIC_##id,
	METRIC_DOMAIN_SERIES(METRIC_ENUM)
	DOMAIN_METRICS
} DomainMetric;

typedef enum ServerMetric
{
#define SERVER_METRIC_ENUM(id, family, one, two) SERVER_METRIC_##id,
	METRIC_SERVER_SERIES(SERVER_METRIC_ENUM)
	SERVER_METRICS
} ServerMetric;

typedef enum MetricFamily
{
#define METRIC_FAMILY_ENUM(id, name, type, labels, help) FAMILY_##id,
	METRIC_FAMILIES(METRIC_FAMILY_ENUM)
	METRIC_FAMILY_COUNT
} MetricFamily;

/* Index of a domain's counters. All domains for which no slot was left share slot 0. */
typedef int MetricSlot;
#define METRIC_OTHER_SLOT 0
#define METRIC_EFFECTS (-1)			/* in MessageCount: effects, which belong to no domain */
#define METRIC_MAX_SLOTS 1024		/* domains of all databases since the server start */
#define METRIC_OTHER_NAME "(other)"	/* label "domain" of slot 0 */

/* Memory of this part. metrics_initialise is called once, with the memory of this part. */
extern Size metrics_size(void);
extern void metrics_initialise(void *memory);
extern void metrics_use(void *memory);

/*
 * Returns the slot of the domain with this name in Redis, and assigns one if it has none. Takes the lock, so do not
 * call it in COMMIT or ABORT.
 */
extern MetricSlot metrics_slot(const char *redis_name);

/* Count. Cheap, and safe in any process at any time. */
extern void metrics_add(MetricSlot slot, DomainMetric metric, uint64 n);
extern void metrics_add_server(ServerMetric metric, uint64 n);

/* Counts a write that fails with 40001, because another transaction has written the key first. */
extern void metrics_add_conflict(MetricSlot slot);

/*
 * Counts in the family's series whose first label after "domain" has this value. Searches by name, so it is not for hot
 * paths.
 */
extern void metrics_add_named(MetricSlot slot, MetricFamily family, const char *value, uint64 n);

/* Set gauges. metrics_raise_server keeps the highest value since the last reset. */
extern void metrics_set(MetricSlot slot, DomainMetric metric, uint64 value);
extern void metrics_set_server(ServerMetric metric, uint64 value);
extern void metrics_raise_server(ServerMetric metric, uint64 value);
extern uint64 metrics_value_server(ServerMetric metric);

/* Sets this gauge to 0 in every slot. */
extern void metrics_clear(DomainMetric metric);

/* Counts a commit whose message reached Redis this long after the commit. */
extern void metrics_window(int64 microseconds);

/* Returns the number of slots in use, for loops over all slots. */
extern int	metrics_slots(void);

/* What a message (send_queue.h) that ends reservations or effects contains, for counting. */
typedef struct MessageCount
{
	MetricSlot	slot;			/* METRIC_EFFECTS: commits counts applied effects, aborts undone ones */
	uint32		commits;		/* ended reservations of this domain, by outcome; a message that reserves counts as neither */
	uint32		aborts;
	int64		committed_at;	/* fence_clock() time of the transaction's commit; 0: the message contains no commit */
} MessageCount;

typedef enum MessageResult
{
	MESSAGE_WRITTEN,
	MESSAGE_UNARMED,				/* Redis is in a newer epoch, so no reservation was left to end */
	/* From here on the patrol ends the reservations instead. */
	MESSAGE_LOST,				/* it was not sent, or Redis answered with an error */
	MESSAGE_UNANSWERED			/* the time was up, or the connection broke */
} MessageResult;

/*
 * Counts a message that ends reservations or effects, once Redis has answered it or its carrier has given up. whole: it
 * is about reservations of whole domains.
 */
extern void metrics_count_end(const MessageCount *count, bool whole, MessageResult result);

#endif
