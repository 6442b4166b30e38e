/*
 * write/trigger.c
 *	  The triggers of fenced tables. They report to changed_row.c the changed rows that capture.c does not capture.
 *
 * Owns: the trigger functions fence.before_row, fence.after_row and fence.before_truncate.
 * Locks: none of its own; the statement has locked the table.
 *
 * BEFORE ROW puts the version into the row. Because of its name it runs after all other BEFORE triggers. If a row is
 * changed even later, AFTER ROW notices it, because it looks at the stored row.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "attach/renumber.h"
#include "base/metrics.h"
#include "base/shared.h"
#include "domain/domain.h"
#include "domain/domain_cache.h"
#include "domain/key.h"
#include "domain/tombstone.h"
#include "domain/version.h"
#include "send/wire.h"
#include "write/capture.h"
#include "write/changed_row.h"
#include "write/generated_key.h"

PG_FUNCTION_INFO_V1(fence_before_row);
PG_FUNCTION_INFO_V1(fence_after_row);
PG_FUNCTION_INFO_V1(fence_before_truncate);

static Domain *
trigger_domains(FunctionCallInfo fcinfo, TriggerEvent timing, TriggerEvent level)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Domain	   *domains;

	shared_require();
	if (!CALLED_AS_TRIGGER(fcinfo) || (data->tg_event & TRIGGER_EVENT_TIMINGMASK) != timing ||
		(data->tg_event & TRIGGER_EVENT_ROW) != level)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("this function can only be called by the triggers that fence.attach creates")));
	domains = domains_by_relation(RelationGetRelid(data->tg_relation));
	if (domains == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has the triggers of a fenced table, but is not attached",
						RelationGetRelationName(data->tg_relation)),
				 errhint("Drop its triggers named zzz_pgcache_fence_*, then use fence.attach.")));
	return domains;
}

static void
describe_change(RowChange *change, const Domain *domains, const TriggerData *data)
{
	change->domains = domains;
	change->old = TRIGGER_FIRED_BY_INSERT(data->tg_event) ? NULL : data->tg_trigslot;
	change->new = TRIGGER_FIRED_BY_DELETE(data->tg_event) ? NULL : change->old ? data->tg_newslot : data->tg_trigslot;
	change->prepared = false;
}

/* Computes the generated key columns of a row that is not stored yet. */
static void
compute_keys(RowChange *change, const TriggerData *data, FmgrInfo *function)
{
	if (change->new == NULL || !generated_key_any(change->domains))
		return;
	/* the executor keeps fn_extra for one relation during one statement */
	if (function->fn_extra == NULL)
		function->fn_extra = generated_key_prepare(change->domains, data->tg_relation, function->fn_mcxt);
	change->new = generated_key_compute(function->fn_extra, change->new);
}

static HeapTuple
stamp_version(const Domain *domain, HeapTuple row, TupleDesc desc, int64 w)
{
	int			attnum = domain->version_attnum;
	Datum		value = fence_version_datum(domain, w);
	bool		isnull = false;
	Datum		present = heap_getattr(row, attnum, desc, &isnull);

	if (!isnull && present == value)
		return row;				/* int8 is passed by value wherever these servers run */
	isnull = false;
	return heap_modify_tuple_by_cols(row, desc, 1, &attnum, &value, &isnull);
}

/*
 * Sets the tombstone of a key that is about to lose its row. Beyond bulk_threshold there is no reservation that remembers
 * the key until AFTER ROW sets the tombstone at the end of the statement, and the key may get another row before that.
 */
static void
remember_lost_key(const RowChange *change)
{
	const KeyChange *key = change->keys;

	for (const Domain *domain = change->domains; domain != NULL; domain = domain->next, key++)
	{
		char	   *text;

		if (domain->version_aside || !key->lost || key->of_old != NULL)
			continue;
		text = key_of_row(domain, change->old);
		tombstone_set(domain->id, text, fence_version_of_absence(domain, change->old));
		pfree(text);
	}
}

Datum
fence_before_row(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Domain	   *domains = trigger_domains(fcinfo, TRIGGER_EVENT_BEFORE, TRIGGER_EVENT_ROW);
	HeapTuple	row = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	RowChange	change;
	int64		w;

	if (renumber_is_running(domains))
		return PointerGetDatum(row);
	describe_change(&change, domains, data);
	compute_keys(&change, data, fcinfo->flinfo);
	w = changed_row_prepare(&change);
	remember_lost_key(&change);
	if (change.new != NULL && w != NO_VERSION)
		row = stamp_version(domains, row, RelationGetDescr(data->tg_relation), w);
	return PointerGetDatum(row);
}

Datum
fence_after_row(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Domain	   *domains = trigger_domains(fcinfo, TRIGGER_EVENT_AFTER, TRIGGER_EVENT_ROW);
	RowChange	change;

	if (renumber_is_running(domains))
		return PointerGetDatum(NULL);
	/* BEFORE ROW has seen all rows. If versions are aside, there is none, and more reservations follow. */
	wire_send(!domains->version_aside);
	describe_change(&change, domains, data);
	changed_row_stored(&change);
	capture_told_by_trigger();
	for (const Domain *domain = domains; domain != NULL; domain = domain->next)
		metrics_add(domain->metrics, METRIC_ROWS_TRIGGERS, 1);
	return PointerGetDatum(NULL);
}

/*
 * TRUNCATE removes rows without row triggers, so this reserves the whole domain. It keeps no versions of the removed rows.
 * A row that comes back may count from the beginning, because no fence of the domain's former generation is ever trusted
 * again.
 */
Datum
fence_before_truncate(PG_FUNCTION_ARGS)
{
	const Domain *domain = trigger_domains(fcinfo, TRIGGER_EVENT_BEFORE, 0 /* per statement */);

	for (; domain != NULL; domain = domain->next)
		changed_row_reserve_domain(domain);
	return PointerGetDatum(NULL);
}
