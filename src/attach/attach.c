/*
 * attach/attach.c
 *	  The SQL function fence.attach: begins an attachment.
 *
 * Owns: the order of the steps. First attach_check.c checks the request, then attach_triggers.c makes the triggers and
 * records what they depend on, and the row of fence.domain comes last. It also owns the rules for several attachments
 * of one table, and for several tables in one domain. detach.c ends attachments.
 *
 * Locks: ShareRowExclusiveLock on the table, so that no writer is active when the triggers appear; and the lock on the
 * domain's name. Both are kept until the end of the transaction. Never waits for Redis: COMMIT tells it.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "attach/attach_check.h"
#include "attach/attach_triggers.h"
#include "base/shared.h"
#include "base/utf8.h"
#include "domain/catalog.h"
#include "domain/domain_cache.h"
#include "send/ledger.h"

PG_FUNCTION_INFO_V1(fence_attach);

/* -----------------------------------------------------------------------------------------------------------------
 * Arguments of fence.attach
 * -----------------------------------------------------------------------------------------------------------------
 */

/* In the order of the install script */
enum
{
	ARG_RELATION, ARG_KEY, ARG_VERSION, ARG_DOMAIN, ARG_TAG, ARG_SCOPE, ARG_CACHE, ARG_COLUMNS, ARG_TTL,
	ARG_ON_REDIS_FAILURE, ARG_PUBLISH, ARG_ADD_VERSION, ARG_CACHE_ABSENT, ARG_RESERVE, ARG_ONLY_COLUMNS
};

static char *
text_argument(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

static char *
choice_argument(FunctionCallInfo fcinfo, int i, const char *name)
{
	if (PG_ARGISNULL(i))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
	return text_to_cstring(PG_GETARG_TEXT_PP(i));
}

static List *
names_argument(FunctionCallInfo fcinfo, int i, const char *name)
{
	List	   *names = NIL;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	if (PG_ARGISNULL(i))
		return NIL;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(i), NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &elements, &nulls, &n);
	for (int e = 0; e < n; e++)
	{
		if (nulls[e])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not contain nulls", name)));
		names = lappend(names, pstrdup(NameStr(*DatumGetName(elements[e]))));
	}
	return names;
}

static void
read_arguments(FunctionCallInfo fcinfo, AttachRequest *request)
{
	DomainRow  *row = &request->row;

	row->relid = PG_ARGISNULL(ARG_RELATION) ? InvalidOid : PG_GETARG_OID(ARG_RELATION);
	request->key_given = !PG_ARGISNULL(ARG_KEY);
	row->key_columns = names_argument(fcinfo, ARG_KEY, "key");
	row->version_column = PG_ARGISNULL(ARG_VERSION) ? NULL : pstrdup(NameStr(*PG_GETARG_NAME(ARG_VERSION)));
	row->name = text_argument(fcinfo, ARG_DOMAIN);
	row->tag = text_argument(fcinfo, ARG_TAG);
	row->scope = choice_argument(fcinfo, ARG_SCOPE, "scope");
	/* without key columns, all rows have the same key */
	if (request->key_given && row->key_columns == NIL && OidIsValid(row->relid) && strcmp(row->scope, "row") == 0)
		row->scope = pstrdup("group");
	row->cache = choice_argument(fcinfo, ARG_CACHE, "cache");
	row->columns = names_argument(fcinfo, ARG_COLUMNS, "columns");
	row->ttl = PG_ARGISNULL(ARG_TTL) ? NULL : PG_GETARG_INTERVAL_P(ARG_TTL);
	row->on_redis_failure = text_argument(fcinfo, ARG_ON_REDIS_FAILURE);
	row->publish = choice_argument(fcinfo, ARG_PUBLISH, "publish");
	request->add_version = !PG_ARGISNULL(ARG_ADD_VERSION) && PG_GETARG_BOOL(ARG_ADD_VERSION);
	row->cache_absent = !PG_ARGISNULL(ARG_CACHE_ABSENT) && PG_GETARG_BOOL(ARG_CACHE_ABSENT);
	row->reserve = text_argument(fcinfo, ARG_RESERVE);
	row->only_columns = !PG_ARGISNULL(ARG_ONLY_COLUMNS) && PG_GETARG_BOOL(ARG_ONLY_COLUMNS);
}

/* -----------------------------------------------------------------------------------------------------------------
 * fence.attach
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Sets the default name if the caller gave none, and checks the name. Then locks it: until this transaction ends, no
 * other transaction can use it.
 */
static void
choose_name(DomainRow *row)
{
	if (row->name == NULL)
		row->name = domain_table_name(row->relid);
	if (row->name[0] == '\0' || strlen(row->name) >= NAMEDATALEN || strlen(utf8_of_string(row->name)) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("domain name \"%s\" is %s", row->name, row->name[0] == '\0' ? "empty" : "too long"),
				 errdetail("A name has 1 to %d bytes of UTF-8.", NAMEDATALEN - 1),
				 errhint("Pass another one with domain => '...'.")));
	domain_lock_name(row->name);
}

/*
 * Returns the rows of the domain of that name, NIL if there is none. Raises 42710 unless the table may join that
 * domain: both must be groups, and the domain must be of other tables.
 */
static List *
rows_to_join(const DomainRow *row)
{
	List	   *members = domain_rows_by_name(row->name);
	ListCell   *lc;

	foreach(lc, members)
	{
		const DomainRow *member = lfirst(lc);

		if (!OidIsValid(row->relid) || member->relid == row->relid ||
			strcmp(row->scope, "group") != 0 || strcmp(member->scope, "group") != 0)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("fence domain \"%s\" already exists", row->name),
					 errhint("Pass another name with domain => '...'.")));
	}
	return members;
}

/*
 * If the caller names no domain, he means the domain that has the table's name. Raises 42710 if one of the table's
 * attachments has it already.
 */
static void
check_own_name_free(Relation rel, const DomainRow *row, List *others)
{
	char	   *own = domain_table_name(RelationGetRelid(rel));
	ListCell   *lc;

	foreach(lc, others)
		if (row->name == NULL && strcmp(((DomainRow *) lfirst(lc))->name, own) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table \"%s\" is already attached, as domain \"%s\"", RelationGetRelationName(rel), own),
					 errhint("Use fence.detach first to change how it is fenced; or pass domain => '...', to fence it by another key as well.")));
}

/* Checks the number of attachments of one table, and that the new one is compatible with the others. */
static void
check_beside(Relation rel, const DomainRow *row, List *others)
{
	const char *table = RelationGetRelationName(rel);
	ListCell   *lc;

	if (list_length(others) >= MAX_ATTACHMENTS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("table \"%s\" is attached %d times, which is the limit", table, MAX_ATTACHMENTS)));
	foreach(lc, others)
	{
		DomainRow  *other = lfirst(lc);

		if (strcmp(row->scope, "manual") == 0 || strcmp(other->scope, "manual") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("table \"%s\" cannot have scope 'manual' and another attachment", table),
					 errdetail("The application would give versions, and so would the triggers of the other attachment."),
					 errhint("Detach domain \"%s\" first, or attach both with scope 'row' or 'group'.", other->name)));
		if (row->version_column != NULL && other->version_column != NULL && strcmp(row->version_column, other->version_column) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("table \"%s\" has its versions in column \"%s\", for domain \"%s\"", table, other->version_column, other->name),
					 errdetail("One version column serves all attachments of a table."),
					 errhint("Pass version => %s.", quote_literal_cstr(other->version_column))));
	}
}

/*
 * Locks the table, and checks it and the request. Adds the version column if the caller wants it and the table lacks
 * it.
 */
static void
prepare_table(AttachRequest *request)
{
	Oid			relid = request->row.relid;
	Relation	rel;

	attach_check_owner(relid);
	rel = relation_open(relid, ShareRowExclusiveLock);
	attach_check_owner(relid);	/* the owner may have changed while we waited for the lock */
	CheckTableNotInUse(rel, "fence.attach");
	attach_check_table(rel);
	request->others = domain_rows_by_relation(relid);
	check_own_name_free(rel, &request->row, request->others);
	choose_name(&request->row);
	request->members = rows_to_join(&request->row);
	attach_check_key(request, rel);
	attach_check_columns(request, rel);
	if (!attach_check_version(request, rel))
	{
		/* ALTER TABLE fails while somebody has the table open; a constant default rewrites nothing */
		relation_close(rel, NoLock);
		attach_run(psprintf("ALTER TABLE %s ADD COLUMN %s pg_catalog.int8 NOT NULL DEFAULT 0",
					 attach_quoted_table(relid), quote_identifier(request->row.version_column)));
		request->row.version_added = true;
		rel = relation_open(relid, NoLock);
		(void) attach_check_version(request, rel);
	}
	check_beside(rel, &request->row, request->others);
	if (request->members != NIL)
		attach_check_join(request, rel);
	relation_close(rel, NoLock);
}

Datum
fence_attach(PG_FUNCTION_ARGS)
{
	AttachRequest request = {0};

	shared_require();
	read_arguments(fcinfo, &request);
	attach_check_request(&request);
	if (OidIsValid(request.row.relid))
	{
		prepare_table(&request);
		if (request.others == NIL)
			attach_drop_triggers(request.row.relid);	/* left over from an attachment that a restore has lost */
		attach_shape_triggers(request.row.relid, lappend(list_copy(request.others), &request.row), request.others == NIL);
		attach_bind_triggers(&request);
	}
	else
	{
		request.row.version_column = NULL;
		choose_name(&request.row);
		(void) rows_to_join(&request.row);
	}
	if (request.members != NIL)
	{
		/* the cached values were made without this table, so COMMIT makes them invalid */
		request.row.id = ((DomainRow *) linitial(request.members))->id;
		ledger_apply_domain(domain_stub(&request.row));
	}
	/* the row comes last: until it is there, the object access hook ignores the new triggers */
	domain_row_insert(&request.row);
	domain_require_shape(&request.row);
	ledger_catalog_changed();
	PG_RETURN_TEXT_P(cstring_to_text(request.row.name));
}
