/*
 * attach/ended.c
 *	  Tells that an attachment has ended although nobody called fence.detach; see ended.h.
 *
 * Owns: the call of fence.attach that would make the same attachment again.
 * Locks: none. Never: looks up columns, because some may be gone.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "attach/attach_triggers.h"
#include "attach/ended.h"

/* Appends an argument, unless it has its default. */
static void
append_text(StringInfo buf, const char *argument, const char *value, const char *by_default)
{
	if (value != NULL && (by_default == NULL || strcmp(value, by_default) != 0))
		appendStringInfo(buf, ", %s => %s", argument, quote_literal_cstr(value));
}

static void
append_names(StringInfo buf, const char *argument, List *names)
{
	ListCell   *lc;

	if (names == NIL)
		appendStringInfo(buf, ", %s => '{}'", argument);
	else
		foreach(lc, names)
			appendStringInfo(buf, "%s%s%s", lc == list_head(names) ? psprintf(", %s => ARRAY[", argument) : ", ",
							 quote_literal_cstr(lfirst(lc)), lnext(names, lc) == NULL ? "]" : "");
}

/* Returns the call of fence.attach that makes this attachment. The table must exist. */
static char *
attach_call(const DomainRow *row)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "fence.attach(%s", quote_literal_cstr(attach_quoted_table(row->relid)));
	append_names(&buf, "key", row->key_columns);
	if (row->version_column == NULL && strcmp(row->scope, "group") != 0)
		appendStringInfoString(&buf, ", version => NULL");
	append_text(&buf, "version", row->version_column, "version");
	append_text(&buf, "domain", row->name, domain_table_name(row->relid));
	append_text(&buf, "tag", row->tag, NULL);
	append_text(&buf, "scope", row->scope, "row");
	append_text(&buf, "cache", row->cache, "none");
	if (row->columns != NIL)
		append_names(&buf, "columns", row->columns);
	if (row->ttl != NULL)
		append_text(&buf, "ttl", DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(row->ttl))), NULL);
	append_text(&buf, "on_redis_failure", row->on_redis_failure, NULL);
	append_text(&buf, "publish", row->publish, "none");
	append_text(&buf, "reserve", row->reserve, NULL);
	appendStringInfo(&buf, "%s%s)", row->cache_absent ? ", cache_absent => true" : "", row->only_columns ? ", only_columns => true" : "");
	return buf.data;
}

/* The hint of both messages. The table must exist. */
static int
hint_at_call(const DomainRow *row)
{
	return errhint("Nothing that was cached is served any more. To attach the table again, if it fits: SELECT %s;", attach_call(row));
}

void
ended_unfit(const DomainRow *row, const char *reason)
{
	ereport(WARNING,
			(errmsg("the fencing of table \"%s\" as domain \"%s\" ends", get_rel_name(row->relid), row->name),
			 errdetail("%s", reason), hint_at_call(row)));
}

void
ended_dropped(const DomainRow *row)
{
	if (get_rel_name(row->relid) == NULL)
		return;
	ereport(NOTICE,
			(errmsg("the fencing of table \"%s\" as domain \"%s\" ends", get_rel_name(row->relid), row->name),
			 errdetail("The table, or something that its triggers rest on, is dropped."), hint_at_call(row)));
}
