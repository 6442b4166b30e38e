/*
 * base/metrics.c
 *	  Counters and gauges in shared memory; see metrics.h.
 *
 * Owns: its part of shared memory. Takes the lock of shared memory only to assign slots. A slot is never released. A
 * table that is attached again gets its former slot by name, so its counters continue.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"

#include "base/key_text.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"

PG_FUNCTION_INFO_V1(fence_metrics_view);
PG_FUNCTION_INFO_V1(fence_reset_metrics);

#define MAX_REDIS_NAME	(17 + 3 * NAMEDATALEN)

typedef enum MetricType
{
	COUNTER,
	GAUGE,
	SECONDS
} MetricType;

static const struct
{
	const char *name;
	MetricType	type;
	const char *labels;			/* label names, separated by commas */
}			families[] = {
#define FAMILY_ENTRY(id, name, type, labels, help) {name, type, labels},
	METRIC_FAMILIES(FAMILY_ENTRY)
};

typedef struct Series
{
	MetricFamily family;
	const char *values[2];
} Series;

#define SERIES_ENTRY(id, family, one, two) {FAMILY_##family, {one, two}},
static const Series domain_series[] = {METRIC_DOMAIN_SERIES(SERIES_ENTRY)};
static const Series server_series[] = {METRIC_SERVER_SERIES(SERIES_ENTRY)};
static const int64 window_bounds[] = {METRIC_WINDOW_BUCKETS};

#define WINDOW_BUCKETS ((int) lengthof(window_bounds) + 1)

typedef struct Slot
{
	char		redis_name[MAX_REDIS_NAME];	/* never changes once nslots includes this slot */
	pg_atomic_uint64 values[DOMAIN_METRICS];
} Slot;

typedef struct Metrics
{
	pg_atomic_uint64 server[SERVER_METRICS];
	pg_atomic_uint64 window[lengthof(window_bounds) + 1];	/* commits per bucket, not cumulative */
	pg_atomic_uint64 window_sum;	/* in microseconds */
	pg_atomic_uint32 nslots;	/* changed only under the lock of shared memory */
	Slot		slots[METRIC_MAX_SLOTS];
} Metrics;

static Metrics *metrics = NULL;

Size
metrics_size(void)
{
	return MAXALIGN(sizeof(Metrics));
}

void
metrics_initialise(void *memory)
{
	Metrics    *new = memory;

	memset(new, 0, sizeof(Metrics));
	for (int i = 0; i < SERVER_METRICS; i++)
		pg_atomic_init_u64(&new->server[i], 0);
	for (int i = 0; i < WINDOW_BUCKETS; i++)
		pg_atomic_init_u64(&new->window[i], 0);
	pg_atomic_init_u64(&new->window_sum, 0);
	for (int s = 0; s < METRIC_MAX_SLOTS; s++)
		for (int i = 0; i < DOMAIN_METRICS; i++)
			pg_atomic_init_u64(&new->slots[s].values[i], 0);
	pg_atomic_init_u32(&new->nslots, METRIC_OTHER_SLOT + 1);
}

void
metrics_use(void *memory)
{
	metrics = memory;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Slots
 * -----------------------------------------------------------------------------------------------------------------
 */

int
metrics_slots(void)
{
	int			n = (int) pg_atomic_read_u32(&metrics->nslots);

	pg_read_barrier();			/* the names of all slots below n are complete */
	return n;
}

static MetricSlot
find_slot(const char *redis_name)
{
	int			n = metrics_slots();

	for (MetricSlot i = METRIC_OTHER_SLOT + 1; i < n; i++)
		if (strcmp(metrics->slots[i].redis_name, redis_name) == 0)
			return i;
	return METRIC_OTHER_SLOT;
}

MetricSlot
metrics_slot(const char *redis_name)
{
	MetricSlot	slot = find_slot(redis_name);

	if (slot != METRIC_OTHER_SLOT || strlen(redis_name) >= MAX_REDIS_NAME)
		return slot;
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	slot = find_slot(redis_name);	/* another process may have assigned the slot meanwhile */
	if (slot == METRIC_OTHER_SLOT && metrics_slots() < METRIC_MAX_SLOTS)
	{
		slot = metrics_slots();
		strlcpy(metrics->slots[slot].redis_name, redis_name, MAX_REDIS_NAME);
		pg_write_barrier();
		pg_atomic_write_u32(&metrics->nslots, slot + 1);
	}
	LWLockRelease(fence_shared->lock);
	return slot;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Counting
 * -----------------------------------------------------------------------------------------------------------------
 */

void
metrics_add(MetricSlot slot, DomainMetric metric, uint64 n)
{
	if (n > 0)
		pg_atomic_fetch_add_u64(&metrics->slots[slot].values[metric], n);
}

void
metrics_add_server(ServerMetric metric, uint64 n)
{
	pg_atomic_fetch_add_u64(&metrics->server[metric], n);
}

void
metrics_add_conflict(MetricSlot slot)
{
	metrics_add(slot, METRIC_RESERVE_CONFLICT, 1);
	metrics_add(slot, METRIC_STALE_POSTGRES, 1);
}

void
metrics_add_named(MetricSlot slot, MetricFamily family, const char *value, uint64 n)
{
	for (int i = 0; i < DOMAIN_METRICS; i++)
		if (domain_series[i].family == family && strcmp(domain_series[i].values[0], value) == 0)
		{
			metrics_add(slot, i, n);
			return;
		}
	Assert(false);
}

void
metrics_set(MetricSlot slot, DomainMetric metric, uint64 value)
{
	pg_atomic_write_u64(&metrics->slots[slot].values[metric], value);
}

void
metrics_set_server(ServerMetric metric, uint64 value)
{
	pg_atomic_write_u64(&metrics->server[metric], value);
}

void
metrics_raise_server(ServerMetric metric, uint64 value)
{
	uint64		current = pg_atomic_read_u64(&metrics->server[metric]);

	while (current < value && !pg_atomic_compare_exchange_u64(&metrics->server[metric], &current, value))
		;
}

uint64
metrics_value_server(ServerMetric metric)
{
	if (metric == SERVER_METRIC_OPEN)
		return WORD_STATE(fence_word()) == FENCE_OPEN;
	if (metric == SERVER_METRIC_LEASE)
		return (uint64) setting_lease * 1000;
	return pg_atomic_read_u64(&metrics->server[metric]);
}

void
metrics_clear(DomainMetric metric)
{
	int			n = metrics_slots();

	for (MetricSlot slot = 0; slot < n; slot++)
		metrics_set(slot, metric, 0);
}

void
metrics_window(int64 microseconds)
{
	int			bucket = 0;

	while (bucket < (int) lengthof(window_bounds) && microseconds > window_bounds[bucket])
		bucket++;
	pg_atomic_fetch_add_u64(&metrics->window[bucket], 1);
	pg_atomic_fetch_add_u64(&metrics->window_sum, (uint64) Max(microseconds, 0));
}

void
metrics_count_end(const MessageCount *count, bool whole, MessageResult result)
{
	DomainMetric commit = whole ? METRIC_DOMAIN_COMMIT_WRITTEN : METRIC_COMMIT_WRITTEN;
	DomainMetric abort = whole ? METRIC_DOMAIN_ABORT_WRITTEN : METRIC_ABORT_WRITTEN;

	StaticAssertStmt(METRIC_COMMIT_UNARMED == METRIC_COMMIT_WRITTEN + (int) MESSAGE_UNARMED &&
					 METRIC_COMMIT_TIMEOUT == METRIC_COMMIT_WRITTEN + (int) MESSAGE_UNANSWERED &&
					 METRIC_ABORT_TIMEOUT == METRIC_ABORT_WRITTEN + (int) MESSAGE_UNANSWERED &&
					 METRIC_DOMAIN_COMMIT_TIMEOUT == METRIC_DOMAIN_COMMIT_WRITTEN + (int) MESSAGE_UNANSWERED &&
					 METRIC_DOMAIN_ABORT_TIMEOUT == METRIC_DOMAIN_ABORT_WRITTEN + (int) MESSAGE_UNANSWERED,
					 "results are listed in the order of MessageResult");
	if (count->slot == METRIC_EFFECTS)
	{
		metrics_add_server(result >= MESSAGE_LOST ? SERVER_METRIC_EFFECT_APPLY_FAILED : SERVER_METRIC_EFFECT_APPLY_DONE,
						   count->commits);
		metrics_add_server(result >= MESSAGE_LOST ? SERVER_METRIC_EFFECT_UNDO_FAILED : SERVER_METRIC_EFFECT_UNDO_DONE,
						   count->aborts);
		return;
	}
	metrics_add(count->slot, commit + (int) result, count->commits);
	metrics_add(count->slot, abort + (int) result, count->aborts);
	if (result == MESSAGE_WRITTEN && count->committed_at != 0)
		metrics_window(fence_clock() - count->committed_at);
}

/* -----------------------------------------------------------------------------------------------------------------
 * fence.metrics
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
put_value(ReturnSetInfo *rsinfo, const char *name, const char *labels, double value)
{
	Datum		values[3];
	bool		nulls[3] = {false};

	values[0] = CStringGetTextDatum(name);
	values[1] = DirectFunctionCall1(jsonb_in, CStringGetDatum(labels));
	values[2] = Float8GetDatum(value);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Adds one series as a row. domain is NULL for a series of the whole server. The view adds the label "cache_type". */
static void
put_series(ReturnSetInfo *rsinfo, const Series *series, const char *domain, uint64 value)
{
	StringInfoData labels;
	const char *label = families[series->family].labels;
	const char *const *next = series->values;

	initStringInfo(&labels);
	appendStringInfoChar(&labels, '{');
	while (*label != '\0')
	{
		int			len = (int) strcspn(label, ",");

		if (strncmp(label, "cache_type", len) != 0)
		{
			appendStringInfo(&labels, "%s\"%.*s\": ", labels.len > 1 ? ", " : "", len, label);
			escape_json(&labels, domain != NULL && label == families[series->family].labels ? domain : *next++);
		}
		label += len + (label[len] == ',');
	}
	appendStringInfoChar(&labels, '}');
	put_value(rsinfo, families[series->family].name, labels.data,
			  families[series->family].type == SECONDS ? value / 1e6 : (double) value);
	pfree(labels.data);
}

static void
put_window(ReturnSetInfo *rsinfo)
{
	uint64		count = 0;

	for (int i = 0; i < WINDOW_BUCKETS; i++)
	{
		char	   *labels = i < (int) lengthof(window_bounds) ? psprintf("{\"le\": \"%g\"}", window_bounds[i] / 1e6) :
			pstrdup("{\"le\": \"+Inf\"}");

		count += pg_atomic_read_u64(&metrics->window[i]);
		put_value(rsinfo, METRIC_WINDOW_NAME "_bucket", labels, count);
	}
	put_value(rsinfo, METRIC_WINDOW_NAME "_sum", "{}", pg_atomic_read_u64(&metrics->window_sum) / 1e6);
	put_value(rsinfo, METRIC_WINDOW_NAME "_count", "{}", count);
}

/* Returns the domain's name as users know it, or NULL if the domain is in another database. */
static const char *
name_of_slot(MetricSlot slot)
{
	return slot == METRIC_OTHER_SLOT ? METRIC_OTHER_NAME : key_own_domain(metrics->slots[slot].redis_name);
}

/*
 * Shows the metrics of this database's domains and of the whole server. Shows slot 0 only once all other slots are taken.
 * With many domains most counters are 0 for ever, so these are shown only on demand. Gauges are always shown: that one is
 * 0 again means something to an alert.
 */
Datum
fence_metrics_view(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n;

	shared_require();
	InitMaterializedSRF(fcinfo, 0);
	n = metrics_slots();
	for (MetricSlot slot = n < METRIC_MAX_SLOTS ? METRIC_OTHER_SLOT + 1 : METRIC_OTHER_SLOT; slot < n; slot++)
	{
		const char *name = name_of_slot(slot);

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; name && i < DOMAIN_METRICS; i++)
		{
			uint64		value = pg_atomic_read_u64(&metrics->slots[slot].values[i]);

			if (value > 0 || setting_zero_counters || families[domain_series[i].family].type != COUNTER)
				put_series(rsinfo, &domain_series[i], name, value);
		}
	}
	for (int i = 0; i < SERVER_METRICS; i++)
	{
		/* a standby never opens its fences, so a 0 there must not raise an alert */
		if (i == SERVER_METRIC_OPEN && RecoveryInProgress())
			continue;
		put_series(rsinfo, &server_series[i], NULL, metrics_value_server(i));
	}
	put_window(rsinfo);
	return (Datum) 0;
}

/*
 * Resets all counters of the server and its highest values to 0. Gauges of domains keep their values. The gauge of held
 * effects is 0 until the patrol's next round sets it again.
 */
Datum
fence_reset_metrics(PG_FUNCTION_ARGS)
{
	int			n;

	(void) fcinfo;
	shared_require();
	n = metrics_slots();
	for (MetricSlot slot = 0; slot < n; slot++)
		for (int i = 0; i < DOMAIN_METRICS; i++)
			if (families[domain_series[i].family].type == COUNTER)
				metrics_set(slot, i, 0);
	for (int i = 0; i < SERVER_METRICS; i++)
		pg_atomic_write_u64(&metrics->server[i], 0);
	for (int i = 0; i < WINDOW_BUCKETS; i++)
		pg_atomic_write_u64(&metrics->window[i], 0);
	pg_atomic_write_u64(&metrics->window_sum, 0);
	PG_RETURN_VOID();
}
