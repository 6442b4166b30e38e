/*
 * read/reader.c
 *	  What all SQL functions that read share: privileges, conversion of answers, putting a value; see reader.h.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"

#include "base/buckets.h"
#include "base/compat.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/tombstone.h"
#include "read/reader.h"
#include "read/row_version.h"
#include "send/coordinator.h"

/*
 * Whether the user may call this function of schema fence, whose arguments have these types and are followed by key
 * values. Each such function exists in two variants (argument.c). EXECUTE on either variant suffices, because both
 * can do the same. This looks them up by all of their argument types, so that a function of the same name that
 * somebody else has made does not count.
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
	static const Oid put[] = {TEXTOID, TEXTOID, INT8OID, TEXTOID, INTERVALOID};
	static const Oid begin_write[] = {TEXTOID, INT8OID};

	return may_call("put", lengthof(put), put) || may_call("begin_write", lengthof(begin_write), begin_write);
}

static void
require_table(const Domain *domain, Oid relid)
{
	Oid			schema = get_rel_namespace(relid);

	/* A query that names the table needs USAGE on its schema too. Without it, SELECT on the table does not suffice. */
	if (object_aclcheck(NamespaceRelationId, schema, GetUserId(), ACL_USAGE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, get_namespace_name(schema));
	if (pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE, get_rel_name(relid));
	if (check_enable_rls(relid, InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot read domain \"%s\" through the cache because row-level security applies to you", domain->name),
				 errhint("Read the table itself.")));
}

void
reader_require(const Domain *domain)
{
	ListCell   *lc;

	if (!OidIsValid(domain->relid))
	{
		if (!may_write_anything())
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for domain \"%s\"", domain->name),
					 errdetail("It has no table whose privileges could decide, so only roles that may write it may read it."),
					 errhint("GRANT EXECUTE ON FUNCTION fence.begin_write(text, bigint, text[]), or fence.put, to the role.")));
		return;
	}
	foreach(lc, domain->tables ? domain->tables : list_make1_oid(domain->relid))
		require_table(domain, lfirst_oid(lc));
}

bool
reader_pause(int64 microseconds, uint32 wait_event)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool slept = false;

	PG_TRY();
	{
		fence_pause(microseconds, wait_event);
		slept = true;
	}
	PG_CATCH();
	{
		/*
		 * Only a conflict with recovery raises this while we sleep. We may catch it without a subtransaction, because sleeping
		 * acquires nothing; in a subtransaction PostgreSQL would end the session instead.
		 */
		if (!RecoveryInProgress() || geterrcode() != ERRCODE_T_R_SERIALIZATION_FAILURE)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return slept;
}

int
reader_put_calls(Call calls[PUT_CALLS], const char *fence, const char *permit, int64 version, const char *payload, size_t payload_len,
				 int64 ttl_ms, const char **refusal)
{
	char	   *word = palloc(ROW_VERSION_LEN);
	uint64		nonce;

	*refusal = payload_len > PAYLOAD_MAX_BYTES ? "refused too large" :
		row_version_word(word, permit, version) ? NULL : "refused unarmed";
	if (*refusal != NULL)
		return 0;
	if (payload_len >= PUT_BESIDE_BYTES && pg_strong_random(&nonce, sizeof(nonce)))
	{
		call_put_beside(calls, fence, permit, word, payload, payload_len, ttl_ms, nonce);
		return 2;
	}
	call_put(&calls[0], fence, permit, word, payload, payload_len, ttl_ms);
	return 1;
}

const char *
reader_put_answer(const redisReply *reply)
{
	const char *answer = calls_put(reply);

	if (answer != NULL && strcmp(answer, "refused closed") == 0)
		buckets_hurry();
	if (answer != NULL)
		return pstrdup(answer);
	if (coordinator_is_redirection(reply))
		return "refused unarmed";
	return psprintf("refused %s", reply->type == REDIS_REPLY_ERROR ? reply->str : "an unknown answer");
}

const char *
reader_put(const char *fence, const char *permit, int64 version, const char *payload, size_t payload_len, int64 ttl_ms)
{
	Call		calls[PUT_CALLS];
	redisReply *replies[PUT_CALLS];
	const char *answer;
	int			n = reader_put_calls(calls, fence, permit, version, payload, payload_len, ttl_ms, &answer);

	if (n == 0)
		return answer;
	if (!coordinator_ask(fence, n, calls, replies))
		return NULL;
	answer = reader_put_answer(replies[n - 1]);
	for (int i = 0; i < n; i++)
		freeReplyObject(replies[i]);
	return answer;
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
reader_version(int64 version, bool *isnull)
{
	*isnull = version == NO_VERSION;
	return Int64GetDatum(version);
}

const char *
reader_source_name(ReadSource source)
{
	static const char *const names[] = {"cache", "database", "primary"};

	return names[source];
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
