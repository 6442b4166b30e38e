/*
 * reader.c
 *	  The SQL-callable functions of readers, and what other ways of reading share with them (reader.h).
 *
 * Owns: the rules for those who read through SQL and fill (doc/clients.md, "Rules"): PostgreSQL is read after get
 * answered, in a snapshot taken after it; an older snapshot may be used, never put; a transaction that has written in
 * a domain fills no cache of it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "coordinator.h"
#include "functions.h"
#include "key.h"
#include "ledger.h"
#include "metrics.h"
#include "reader.h"
#include "row.h"
#include "settings.h"
#include "shared.h"
#include "standby.h"
#include "tombstone.h"
#include "utf8.h"
#include "version.h"

PG_FUNCTION_INFO_V1(fence_group_version);
PG_FUNCTION_INFO_V1(fence_get);
PG_FUNCTION_INFO_V1(fence_read);
PG_FUNCTION_INFO_V1(fence_put);
PG_FUNCTION_INFO_V1(fence_peek);

/*
 * Whether the user may call this function of schema fence, which has these arguments and then key values. Each such function is
 * there twice (argument.c), and who may call one of the two can do with it all that the other does. They are looked up by all of their types:
 * of other functions of the name, whoever made them, none counts.
 */
static bool
may_call(char *name, int ntypes, const Oid *types)
{
	static const Oid key_types[] = {TEXTARRAYOID, ANYOID};
	Oid			all[FUNC_MAX_ARGS];
	bool		may = false;

	memcpy(all, types, sizeof(Oid) * ntypes);
	for (int i = 0; i < (int) lengthof(key_types) && !may; i++)
	{
		Oid			function;

		all[ntypes] = key_types[i];
		function = LookupFuncName(list_make2(makeString("fence"), makeString(name)), ntypes + 1, all, true);
		may = OidIsValid(function) &&
			object_aclcheck(ProcedureRelationId, function, GetUserId(), ACL_EXECUTE) == ACLCHECK_OK;
	}
	return may;
}

static bool
may_write_anything(void)
{
	static const Oid put[] = {TEXTOID, TEXTOID, TEXTOID, INT8OID, TEXTOID, INTERVALOID};
	static const Oid begin_write[] = {TEXTOID, INT8OID};

	return may_call("put", lengthof(put), put) || may_call("begin_write", lengthof(begin_write), begin_write);
}

void
reader_require(const Domain *domain)
{
	Oid			schema;

	if (!OidIsValid(domain->relid))
	{
		if (!may_write_anything())
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for domain \"%s\"", domain->name),
					 errdetail("It has no table whose privileges could decide: who may write it may read it."),
					 errhint("GRANT EXECUTE ON FUNCTION fence.begin_write(text, bigint, text[]), or fence.put, to the role.")));
		return;
	}
	/* as if he named the table: who is not let into a schema may have SELECT on all that is in it */
	schema = get_rel_namespace(domain->relid);
	if (object_aclcheck(NamespaceRelationId, schema, GetUserId(), ACL_USAGE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, get_namespace_name(schema));
	if (pg_class_aclcheck(domain->relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(domain->relid));
	if (check_enable_rls(domain->relid, InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot read domain \"%s\" through the cache because row-level security applies to you", domain->name),
				 errhint("Read the table itself.")));
}

const char *
reader_closed_status(void)
{
	bool		reachable = false;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	for (int i = 0; i < fence_shared->nnodes; i++)
		reachable = reachable || fence_shared->nodes[i].reachable;
	LWLockRelease(fence_shared->lock);
	return reachable ? "unarmed" : "unavailable";
}

static char *
copy_element(const redisReply *reply, size_t i)
{
	return i < reply->elements && reply->element[i]->type == REDIS_REPLY_STRING ?
		pnstrdup(reply->element[i]->str, reply->element[i]->len) : NULL;
}

GetAnswer
reader_answer(redisReply **strings, size_t n)
{
	redisReply	reply = {.type = REDIS_REPLY_ARRAY, .elements = n, .element = strings};
	GetAnswer	answer = {.status = "unavailable"};
	char	   *first = copy_element(&reply, 0);

	if (first && strcmp(first, "hit") == 0 && n >= 4)
	{
		answer.status = "hit";
		answer.token = copy_element(&reply, 1);
		answer.version = copy_element(&reply, 2);
		answer.payload = copy_element(&reply, 3);
		answer.payload_len = strings[3]->len;
		answer.stamp = copy_element(&reply, 4);
	}
	else if (first && strcmp(first, "miss") == 0 && n >= 3)
	{
		answer.status = "miss";
		answer.token = copy_element(&reply, 1);
		answer.ticket = copy_element(&reply, 2);
		if (n == 5 && strings[4]->type == REDIS_REPLY_STRING)
			answer.busy_ms = atoi(strings[4]->str);
	}
	else if (first && strcmp(first, "pending") == 0)
		answer.status = "pending";
	else if (first && strcmp(first, "unarmed") == 0)
		answer.status = "unarmed";
	return answer;
}

/* Whether Redis is to be asked. While fences are not OPEN it is not: it may hang. On a standby that is the primary's word. */
static bool
may_ask(void)
{
	if (RecoveryInProgress())
		return strcmp(reader_closed_status(), "unarmed") == 0;
	return WORD_STATE(fence_word_expire()) == FENCE_OPEN;
}

void
reader_count_unanswered(const Domain *domain, const char *status)
{
	bool		unarmed = strcmp(status, "unarmed") == 0;

	metrics_add(domain->metrics, unarmed ? METRIC_GET_UNARMED : METRIC_GET_UNAVAILABLE, 1);
	metrics_add(domain->metrics, unarmed ? METRIC_FALLBACK_UNARMED : METRIC_FALLBACK_UNAVAILABLE, 1);
}

/* The strong get. On a standby a miss has neither token nor ticket: nobody may put what he reads there. */
static GetAnswer
strong_get(const Domain *domain, const char *key)
{
	GetAnswer	answer = {.status = "unavailable"};
	char	   *fence = key_fence_name(domain, key);
	char	   *value = key_value_name(domain, key);
	const char *argv[] = {"FCALL", "fence_get", "2", fence, value};
	size_t		argvlen[] = {5, 9, 1, strlen(fence), strlen(value)};
	bool		standby = RecoveryInProgress();
	redisReply *reply = NULL;

	if (!may_ask())
		answer.status = reader_closed_status();
	else if (fence_node_of(fence) == SLOT_NOBODY)
		answer.status = "unarmed";
	else if ((reply = coordinator_ask(fence, lengthof(argv), argv, argvlen)) != NULL)
	{
		if (reply->type == REDIS_REPLY_ARRAY)
			answer = reader_answer(reply->element, reply->elements);
		else if (coordinator_is_redirection(reply))
			answer.status = "unarmed";
	}
	if (reply == NULL || reply->type != REDIS_REPLY_ARRAY)
		reader_count_unanswered(domain, answer.status);
	if (reply != NULL)
		freeReplyObject(reply);
	if (standby && strcmp(answer.status, "miss") == 0)
		answer.token = answer.ticket = NULL;
	return answer;
}

const char *
reader_put(const char *fence, const char *value, const char *token, const char *ticket, int64 version,
		   const char *payload, size_t payload_len, int64 ttl_ms)
{
	char		version_text[24];
	char		ttl_text[24];
	const char *argv[] = {"FCALL", "fence_put", "2", fence, value, token, ticket, version_text, payload, ttl_text};
	size_t		argvlen[lengthof(argv)];
	redisReply *reply;
	StringInfoData answer;

	if (payload_len > PAYLOAD_MAX_BYTES)
		return "refused too large";
	pg_lltoa(version, version_text);
	pg_lltoa(ttl_ms, ttl_text);
	for (int i = 0; i < (int) lengthof(argv); i++)
		argvlen[i] = argv[i] == payload ? payload_len : strlen(argv[i]);
	reply = coordinator_ask(fence, lengthof(argv), argv, argvlen);
	if (reply == NULL)
		return NULL;
	initStringInfo(&answer);
	if (coordinator_is_redirection(reply))
		appendStringInfoString(&answer, "refused unarmed");
	else if (reply->type == REDIS_REPLY_ERROR)
		appendStringInfo(&answer, "refused %s", reply->str);
	else if (reply->type == REDIS_REPLY_ARRAY)
		for (size_t i = 0; i < reply->elements; i++)
			appendStringInfo(&answer, "%s%s", i ? " " : "", copy_element(reply, i));
	freeReplyObject(reply);
	return answer.data;
}

Datum
reader_payload_text(const GetAnswer *answer, bool *isnull)
{
	*isnull = answer->payload == NULL;
	return *isnull ? (Datum) 0 : CStringGetTextDatum(utf8_require_text(answer->payload, answer->payload_len));
}

Datum
reader_text(const char *s, bool *isnull)
{
	*isnull = s == NULL;
	return s ? CStringGetTextDatum(utf8_to_display(s)) : (Datum) 0;
}

Datum
reader_version(const char *s, bool *isnull)
{
	*isnull = s == NULL || *s == '\0';
	return *isnull ? (Datum) 0 : Int64GetDatum(strtoll(s, NULL, 10));
}

/* In the statement's snapshot, as the rows that are read beside it. */
Datum
fence_group_version(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 1, domain);

	reader_require(domain);
	if (!domain->version_aside)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("domain \"%s\" is no domain of groups", domain->name),
				 errhint("Read the version column of the row.")));
	PG_RETURN_INT64(tombstone_group_version(domain->id, key, GetActiveSnapshot()));
}

Datum
fence_get(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 1, domain);
	GetAnswer	answer;
	Datum		values[5];
	bool		nulls[5];
	TupleDesc	desc;

	reader_require(domain);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	answer = strong_get(domain, key);
	values[0] = reader_text(answer.status, &nulls[0]);
	values[1] = reader_text(answer.token, &nulls[1]);
	values[2] = reader_version(answer.version, &nulls[2]);
	values[3] = reader_text(answer.ticket, &nulls[3]);
	values[4] = reader_payload_text(&answer, &nulls[4]);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

bool
reader_payload(const GetAnswer *answer, Datum *jsonb)
{
	return row_value_as_jsonb(answer->payload, answer->payload_len, jsonb);
}

#define FILL_PAUSE_US	INT64CONST(1000)	/* between two looks for a value that another reader is about to put: at first */
#define FILLERS_AWAITED 2		/* if the first one dies, not all that waited for it shall read PostgreSQL at once */

/*
 * The strong get of a reader who has time: while another reader has been asked to put the value, looks again for it, for as
 * long as that reader has, and no longer. Interruptible.
 */
static GetAnswer
patient_get(const Domain *domain, const char *key)
{
	GetAnswer	answer = strong_get(domain, key);

	for (int filler = 0; filler < FILLERS_AWAITED && answer.busy_ms > 0; filler++)
	{
		int64		deadline = fence_clock() + Min(answer.busy_ms, FILL_LEASE_MAX_MS) * INT64CONST(1000);
		int64		pause = FILL_PAUSE_US;
		int64		left;

		while (answer.busy_ms > 0 && (left = deadline - fence_clock()) > 0)
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 (long) (Min(pause, left) / 1000 + 1), wait_event_redis());
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
			pause *= 2;
			answer = strong_get(domain, key);
		}
	}
	return answer;
}

/* This reader was asked to fill, and has nothing to put: others who were told to wait for it need not. */
static void
release_fill(const Domain *domain, const char *key, const GetAnswer *answer)
{
	char	   *fence = key_fence_name(domain, key);
	const char *argv[] = {"FCALL", "fence_release", "1", fence};
	size_t		argvlen[] = {5, 13, 1, strlen(fence)};
	redisReply *reply;

	if (strcmp(answer->status, "miss") != 0 || answer->busy_ms > 0 || setting_fill_lease == 0)
		return;
	reply = coordinator_ask(fence, lengthof(argv), argv, argvlen);
	if (reply != NULL)
		freeReplyObject(reply);
}

/* False: there is nothing that could be put, or it is too large. */
static bool
put_row(const Domain *domain, const char *key, const char *token, const char *ticket, int64 version, Datum jsonb)
{
	const char *payload = row_jsonb_as_value(jsonb);
	size_t		len = payload ? strlen(payload) : 0;

	if (payload == NULL)
		return false;
	(void) reader_put(key_fence_name(domain, key), key_value_name(domain, key), token, ticket, version, payload, len,
					  domain->ttl_ms);
	return len <= PAYLOAD_MAX_BYTES;
}

/* In which rows are read now */
static Snapshot
reading_snapshot(void)
{
	return RegisterSnapshot(IsolationUsesXactSnapshot() ? GetTransactionSnapshot() : GetLatestSnapshot());
}

/* The row itself, cached on the way back if that is allowed. */
static bool
read_row(const Domain *domain, const char *key, const GetAnswer *answer, Datum *jsonb)
{
	Snapshot	snapshot = reading_snapshot();
	int64		version;
	bool		found = row_as_jsonb(domain, key, snapshot, jsonb, &version, NULL);

	UnregisterSnapshot(snapshot);
	if (!found || !answer->token || !answer->ticket || IsolationUsesXactSnapshot() ||
		!put_row(domain, key, answer->token, answer->ticket, version, *jsonb))
		release_fill(domain, key, answer);
	return found;
}

/* The same on a standby, whose row may be old: false if it cannot be proven that it is not. It redeems no ticket. */
static bool
read_row_of_standby(const Domain *domain, const char *key, Datum *jsonb)
{
	FenceStatus status;
	Snapshot	snapshot;
	bool		proven;

	if (!may_ask() || !standby_ask(domain, key, &status))
		return false;
	snapshot = reading_snapshot();
	proven = standby_row(domain, key, &status, snapshot, jsonb);
	UnregisterSnapshot(snapshot);
	if (proven)
		(void) put_row(domain, key, status.token, "", status.fence_version, *jsonb);
	return proven;
}

void
reader_require_primary(void)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("strong reads of several keys are not possible during recovery"),
				 errhint("Read from the primary server, or one key at a time with fence.read.")));
}

void
reader_require_source(const Domain *domain)
{
	if (!domain_has_versions(domain))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("domain \"%s\" has no table with a version column to read from", domain->name),
				 errhint("Use fence.get and fence.put.")));
}

Datum
fence_read(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 1, domain);
	GetAnswer	answer = {.status = "unavailable"};
	bool		standby = RecoveryInProgress();
	Datum		row;

	reader_require_source(domain);
	reader_require(domain);
	if (ledger_has_written(domain))
		metrics_add(domain->metrics, METRIC_FALLBACK_OWN_WRITE, 1);
	else
		answer = patient_get(domain, key);
	if (answer.payload && reader_payload(&answer, &row))
		PG_RETURN_DATUM(row);
	if (answer.payload)
	{
		metrics_add(domain->metrics, METRIC_FALLBACK_UNREADABLE, 1);
		answer.token = NULL;	/* somebody else's value under this name: read past it, leave it alone */
	}
	if (standby)
	{
		if (answer.payload == NULL && strcmp(answer.status, "miss") == 0 && read_row_of_standby(domain, key, &row))
			PG_RETURN_DATUM(row);
		release_fill(domain, key, &answer);
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this standby cannot tell whether its row of key \"%s\" in domain \"%s\" is current", key, domain->name),
				 errdetail("The cache answered: %s.", answer.status),
				 errhint("Read from the primary server.")));
	}
	if (!read_row(domain, key, &answer, &row))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(row);
}

int64
reader_interval_ms(const Interval *ttl)
{
	int64		ms = ((int64) ttl->month * DAYS_PER_MONTH + ttl->day) * SECS_PER_DAY * INT64CONST(1000) + ttl->time / 1000;

	if (ms < 0 || ms > INT64CONST(1000) * SECS_PER_DAY * 3660)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a time to live must be between 0 and 10 years")));
	return ms;
}

Datum
fence_put(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 6, domain);
	char	   *payload;
	const char *answer;

	if (PG_ARGISNULL(1) || PG_ARGISNULL(3) || PG_ARGISNULL(4))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token, version and value must not be null")));
	if (PG_GETARG_INT64(3) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a version must not be negative")));
	if (ledger_has_written(domain))
		PG_RETURN_TEXT_P(cstring_to_text("refused this transaction has written in the domain"));
	if (RecoveryInProgress())
		PG_RETURN_TEXT_P(cstring_to_text("refused this server is a standby"));
	if (WORD_STATE(fence_word_expire()) != FENCE_OPEN)
		PG_RETURN_TEXT_P(cstring_to_text("refused unarmed"));
	payload = utf8_of_string(text_to_cstring(PG_GETARG_TEXT_PP(4)));
	answer = reader_put(key_fence_name(domain, key), key_value_name(domain, key), text_to_cstring(PG_GETARG_TEXT_PP(1)),
						PG_ARGISNULL(2) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(2)), PG_GETARG_INT64(3),
						payload, strlen(payload),
						PG_ARGISNULL(5) ? 0 : reader_interval_ms(PG_GETARG_INTERVAL_P(5)));
	PG_RETURN_TEXT_P(cstring_to_text(answer ? answer : "refused unavailable"));
}

/*
 * The eventual read: it also asks while fences are not OPEN, unless Redis is known to be away, and serves what it finds.
 */
Datum
fence_peek(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	char	   *key = key_argument(fcinfo, 1, domain);
	char	   *fence = key_fence_name(domain, key);
	char	   *value = key_value_name(domain, key);
	const char *argv[] = {"FCALL", "fence_peek", "2", fence, value};
	size_t		argvlen[] = {5, 10, 1, strlen(fence), strlen(value)};
	GetAnswer	found = {.status = "unavailable"};
	char	   *newest = NULL;
	redisReply *reply = NULL;
	Datum		values[6];
	bool		nulls[6];
	TupleDesc	desc;

	reader_require(domain);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (WORD_STATE(fence_word_expire()) == FENCE_OPEN || strcmp(reader_closed_status(), "unarmed") == 0)
		reply = coordinator_ask(fence, lengthof(argv), argv, argvlen);
	if (reply && reply->type == REDIS_REPLY_ARRAY)
		found.status = copy_element(reply, 0);
	if (reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 6)
	{
		found.token = copy_element(reply, 1);
		found.version = copy_element(reply, 2);
		found.payload = copy_element(reply, 3);
		found.payload_len = reply->element[3]->len;
		found.stamp = copy_element(reply, 4);
		newest = copy_element(reply, 5);
	}
	if (reply)
		freeReplyObject(reply);
	values[0] = reader_text(found.status, &nulls[0]);
	values[1] = reader_text(found.token, &nulls[1]);
	values[2] = reader_version(found.version, &nulls[2]);
	values[3] = reader_payload_text(&found, &nulls[3]);
	values[4] = reader_text(found.stamp, &nulls[4]);
	values[5] = reader_version(newest, &nulls[5]);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
