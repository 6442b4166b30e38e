/*
 * attach/attach_check.c
 *	  What fence.attach refuses, and why; see attach_check.h.
 *
 * Owns: the requirements on a fenced table. The caller has locked the table. Changes nothing, and runs no function of a
 * user.
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "attach/attach_check.h"
#include "base/compat.h"
#include "domain/catalog.h"
#include "domain/key.h"
#include "domain/key_index.h"
#include "domain/sql_function.h"

/* -----------------------------------------------------------------------------------------------------------------
 * Arguments
 * -----------------------------------------------------------------------------------------------------------------
 */

static bool
is_group(const AttachRequest *request)
{
	return strcmp(request->row.scope, "group") == 0;
}

/* Raises 22023 unless the value is one of the choices, a list that ends with NULL. */
static void
check_choice(const char *argument, const char *value, const char *const *choices)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; choices[i] != NULL; i++)
	{
		if (strcmp(value, choices[i]) == 0)
			return;
		appendStringInfo(&list, "%s%s", i > 0 ? ", " : "", choices[i]);
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for %s: \"%s\"", argument, value),
			 errhint("Available values: %s.", list.data)));
}

/*
 * With cache => 'row', COMMIT sends Redis each row that was written. So each row needs a fence of its own, and must
 * contain its version.
 */
static void
check_cache(const DomainRow *row)
{
	if (strcmp(row->cache, "row") == 0 && strcmp(row->scope, "row") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cache => 'row' needs scope => 'row'"),
				 errdetail("COMMIT can send only rows that have a fence of their own."),
				 errhint("With scope => '%s', leave it to readers to store values.", row->scope)));
	if (strcmp(row->cache, "row") == 0 && row->version_column == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cache => 'row' needs a version column"),
				 errdetail("COMMIT sends each row with the version that is in it."),
				 errhint("Name a version column, or leave values to readers with cache => 'none'.")));
}

static void
check_without_table(const AttachRequest *request)
{
	const DomainRow *row = &request->row;

	if (strcmp(row->scope, "manual") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a domain without a table needs scope => 'manual'"),
				 errhint("Pass the table to fence, or scope => 'manual' and call fence.begin_write.")));
	if (row->name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a domain without a table needs a name"),
				 errhint("Pass domain => 'name'.")));
	if (request->key_given || request->add_version || row->tag != NULL || row->columns != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a domain without a table has no columns"),
				 errhint("Leave out key, tag, columns and add_version.")));
}

void
attach_check_request(const AttachRequest *request)
{
	const DomainRow *row = &request->row;

	check_choice("scope", row->scope, (const char *const[]) {"row", "group", "manual", NULL});
	check_choice("cache", row->cache, (const char *const[]) {"none", "row", NULL});
	check_choice("publish", row->publish, (const char *const[]) {"none", "pubsub", "stream", "notify", NULL});
	if (row->on_redis_failure != NULL)
		check_choice("on_redis_failure", row->on_redis_failure, (const char *const[]) {"bypass", "error", NULL});
	if (row->reserve != NULL)
		check_choice("reserve", row->reserve, (const char *const[]) {"early", "commit", NULL});
	if (row->cache_absent && strcmp(row->scope, "row") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cache_absent needs scope => 'row'"),
				 errdetail("A group is never absent, and only the application knows what is absent in a manual domain.")));
	if (row->only_columns && (row->columns == NIL || strcmp(row->scope, "manual") == 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only_columns needs columns, and scope 'row' or 'group'"),
				 errhint("Pass columns => ARRAY[...] with all columns that cached values are made of.")));
	check_cache(row);
	if (row->ttl != NULL)
		(void) value_ttl_ms_of(row->ttl);
	if (!OidIsValid(row->relid))
		check_without_table(request);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The table
 * -----------------------------------------------------------------------------------------------------------------
 */

void
attach_check_owner(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (!object_ownercheck(RelationRelationId, relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, name);
}

static void
raise_wrong_kind(Relation rel, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("\"%s\" cannot be fenced because it is %s", RelationGetRelationName(rel), what),
			 errhint("%s", hint)));
}

/*
 * Raises 42809 if a partition is a foreign table, or is not permanent. The lock keeps new partitions from being
 * attached.
 */
static void
check_partitions(Relation root)
{
	ListCell   *lc;

	foreach(lc, find_all_inheritors(RelationGetRelid(root), ShareRowExclusiveLock, NULL))
	{
		Relation	rel = table_open(lfirst_oid(lc), NoLock);

		if (rel->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
			raise_wrong_kind(root, "partly a foreign table", "Detach the partition that is a foreign table.");
		if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
			raise_wrong_kind(root, "partly unlogged or temporary", "Use ALTER TABLE ... SET LOGGED.");
		table_close(rel, NoLock);
	}
}

static void
check_kind(Relation rel)
{
	static const struct
	{
		char		relkind;
		const char *what;
		const char *hint;
	}			unfit[] = {
		{RELKIND_VIEW, "a view", "Fence the tables that the view reads."},
		{RELKIND_MATVIEW, "a materialized view", "Its rows fire no triggers. Fence the tables it reads."},
		{RELKIND_FOREIGN_TABLE, "a foreign table", "Its rows change elsewhere. Fence the table where it lives."},
		{RELKIND_SEQUENCE, "a sequence", "Only tables can be fenced."},
	};

	for (int i = 0; i < (int) lengthof(unfit); i++)
		if (rel->rd_rel->relkind == unfit[i].relkind)
			raise_wrong_kind(rel, unfit[i].what, unfit[i].hint);
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		check_partitions(rel);
	else if (rel->rd_rel->relkind != RELKIND_RELATION)
		raise_wrong_kind(rel, "not a table", "Only tables can be fenced.");

	if (rel->rd_rel->relispartition)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("\"%s\" cannot be fenced because it is a partition", RelationGetRelationName(rel)),
				 errhint("Fence the partitioned table; all its partitions are fenced with it.")));
	if (rel->rd_rel->relkind == RELKIND_RELATION && find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("\"%s\" cannot be fenced because it has inheritance children", RelationGetRelationName(rel)),
				 errdetail("No index keeps a key unique over a table and its children, so a key would not name one row."),
				 errhint("Fence the children, each as a domain of its own, or use a partitioned table.")));
	if (rel->rd_rel->relkind == RELKIND_RELATION && rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		raise_wrong_kind(rel, "not stored as a heap", "Use ALTER TABLE ... SET ACCESS METHOD heap.");
}

void
attach_check_table(Relation rel)
{
	check_kind(rel);
	if (IsSystemRelation(rel) || IsCatalogRelation(rel))
		raise_wrong_kind(rel, "a system catalog", "Only tables of users can be fenced.");
	if (RelationGetNamespace(rel) == get_namespace_oid("fence", true))
		raise_wrong_kind(rel, "a table of this extension", "Only tables of users can be fenced.");
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("\"%s\" cannot be fenced because it is temporary", RelationGetRelationName(rel)),
				 errdetail("Its rows are private to one session, and Redis is shared by all.")));
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("\"%s\" cannot be fenced because it is unlogged", RelationGetRelationName(rel)),
				 errdetail("Its rows vanish in a crash, while their versions live on in Redis and in tombstones."),
				 errhint("Use ALTER TABLE ... SET LOGGED.")));
}

/* -----------------------------------------------------------------------------------------------------------------
 * The key
 * -----------------------------------------------------------------------------------------------------------------
 */

/* A hint for whoever wants an expression as key, or a key whose equal values have different texts */
#define COMPUTED_KEY \
	"a generated column, such as name_key text GENERATED ALWAYS AS (lower(name::text)) STORED, with a unique index, and make that the key."

static Form_pg_attribute
attribute(Relation rel, AttrNumber attnum)
{
	return TupleDescAttr(RelationGetDescr(rel), attnum - 1);
}

static AttrNumber
existing_column(Relation rel, const char *name, const char *argument)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), name);

	if (attnum <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of table \"%s\" does not exist", name, RelationGetRelationName(rel)),
				 errdetail("It is named in %s.", argument),
				 strchr(name, '(') == NULL ? 0 : errhint("A key has columns, not expressions. Add " COMPUTED_KEY)));
	return attnum;
}

/* Returns the names of the primary key's columns, in its order. */
static List *
primary_key(Relation rel)
{
	List	   *names = NIL;
	Relation	index;

	/* making the list also sets rd_pkindex */
	list_free(RelationGetIndexList(rel));
	if (!OidIsValid(rel->rd_pkindex))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("table \"%s\" has no primary key", RelationGetRelationName(rel)),
				 errhint("Pass key => ARRAY[...] with the columns of a unique index, or add a primary key.")));
	index = index_open(rel->rd_pkindex, AccessShareLock);
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		names = lappend(names, pstrdup(NameStr(attribute(rel, index->rd_index->indkey.values[i])->attname)));
	index_close(index, AccessShareLock);
	return names;
}

static void
resolve_key_columns(AttachRequest *request, Relation rel)
{
	int			n = list_length(request->row.key_columns);

	if (n == 0 && !is_group(request))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("key must name at least one column")));
	request->key_attnums = palloc(sizeof(AttrNumber) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		const char *name = list_nth(request->row.key_columns, i);

		request->key_attnums[i] = existing_column(rel, name, "key");
		for (int j = 0; j < i; j++)
			if (request->key_attnums[j] == request->key_attnums[i])
				ereport(ERROR,
						(errcode(ERRCODE_DUPLICATE_COLUMN),
						 errmsg("column \"%s\" is named twice in key", name)));
	}
}

static void
find_key_index(AttachRequest *request, Relation rel)
{
	char	   *unfit;

	request->key_index = domain_key_index(rel, list_length(request->row.key_columns), request->key_attnums, true, &unfit);
	if (OidIsValid(request->key_index))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
			 errmsg("table \"%s\" has no usable unique index on exactly the key columns",
					RelationGetRelationName(rel)),
			 unfit ? errdetail("%s", unfit) : 0,
			 errhint("Add a UNIQUE or PRIMARY KEY constraint on these columns that is not deferrable.")));
}

/*
 * Returns whether values that the key's index considers equal always have the same canonical text: either they have the
 * same bytes, or key.c prints them alike.
 */
static bool
equal_means_same_text(const KeyEquality *eq)
{
	Oid			proc;

	if (eq->input_type == NUMERICOID || eq->input_type == BPCHAROID)
	{
		/*
		 * key.c trims the trailing zeros of numeric; equal bpchars differ only in blanks, if the collation is
		 * deterministic
		 */
		return !OidIsValid(eq->collation) || get_collation_isdeterministic(eq->collation);
	}
	/* '1 day' equals '24:00:00', but PostgreSQL before 15.5 and 16.0 claims equal image for interval */
	if (eq->input_type == INTERVALOID || !OidIsValid(eq->opfamily))
		return false;
	proc = get_opfamily_proc(eq->opfamily, eq->input_type, eq->input_type, BTEQUALIMAGE_PROC);
	return OidIsValid(proc) &&
		DatumGetBool(OidFunctionCall1Coll(proc, eq->collation, ObjectIdGetDatum(eq->input_type)));
}

/* Returns whether the type is a string type, such as citext. */
static bool
type_is_textual(Oid type)
{
	char		category;
	bool		preferred;

	get_type_category_preferred(type, &category, &preferred);
	return category == TYPCATEGORY_STRING;
}

static void
check_key_column(const AttachRequest *request, Relation rel, AttrNumber attnum)
{
	Form_pg_attribute att = attribute(rel, attnum);
	KeyEquality eq = domain_key_equality(rel, is_group(request) ? InvalidOid : request->key_index, attnum);
	const char *name = NameStr(att->attname);

	if (att->attgenerated != '\0' && att->attgenerated != ATTRIBUTE_GENERATED_STORED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("key column \"%s\" is a virtual generated column", name),
				 errdetail("PostgreSQL does not store its values and cannot index them."),
				 errhint("Make it GENERATED ALWAYS AS (...) STORED.")));
	if (!equal_means_same_text(&eq))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("key column \"%s\" of type %s cannot be used in cache keys",
						name, format_type_be(att->atttypid)),
				 errdetail("Equal values can have different texts, so one row would have several cache keys."),
				 OidIsValid(eq.collation) && !get_collation_isdeterministic(eq.collation) ?
				 errhint("Give the column or its index a deterministic collation, or add " COMPUTED_KEY) :
				 type_is_textual(att->atttypid) ? errhint("Add " COMPUTED_KEY) :
				 errhint("Use a key of another type, for example bigint, text, uuid, numeric or timestamptz.")));
}

void
attach_check_key(AttachRequest *request, Relation rel)
{
	int			n;
	const char **names;

	if (!request->key_given)
		request->row.key_columns = primary_key(rel);
	if (is_group(request) && !request->key_given)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("scope => 'group' needs a key"),
				 errhint("Pass key => ARRAY[...] with the columns that rows of one group have in common.")));
	resolve_key_columns(request, rel);
	if (!is_group(request))
		find_key_index(request, rel);
	n = list_length(request->row.key_columns);
	names = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		check_key_column(request, rel, request->key_attnums[i]);
		names[i] = list_nth(request->row.key_columns, i);
	}
	if (request->row.tag != NULL)
		key_check_tag(request->row.tag, n, names);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The version column, the other columns
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
check_version_column(const AttachRequest *request, Relation rel)
{
	Form_pg_attribute att = attribute(rel, request->version_attnum);
	const char *name = NameStr(att->attname);
	const char *why = NULL;

	if (att->atttypid != INT2OID && att->atttypid != INT4OID && att->atttypid != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("version column \"%s\" has type %s, not an integer type", name, format_type_be(att->atttypid)),
				 errhint("Name a column of type bigint, integer or smallint with version => '...'; "
						 "add_version => true adds it.")));
	if (att->attgenerated != '\0')
		why = "is generated";
	else if (att->attidentity != '\0')
		why = "is an identity column";
	for (int i = 0; i < list_length(request->row.key_columns); i++)
		if (request->key_attnums[i] == request->version_attnum)
			why = "is part of the key";
	if (why != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("version column \"%s\" %s", name, why),
				 errdetail("Each write of a row sets the version."),
				 errhint("Name another column with version => '...'; add_version => true adds it.")));
}

bool
attach_check_version(AttachRequest *request, Relation rel)
{
	const char *name = request->row.version_column;
	bool		manual = strcmp(request->row.scope, "manual") == 0;

	request->version_attnum = InvalidAttrNumber;
	if (is_group(request))
	{
		/* the version of a group is in fence.tombstone */
		request->row.version_column = NULL;
		return true;
	}
	if (name == NULL)
	{
		if (request->add_version)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("add_version needs a name for the version column"),
					 errhint("Leave out version, or add_version: with version => NULL the versions are kept in a table of the extension.")));
		return true;
	}
	request->version_attnum = get_attnum(RelationGetRelid(rel), name);
	if (request->version_attnum > 0)
	{
		check_version_column(request, rel);
		return true;
	}
	if (request->add_version)
		return false;
	/* the default name was not chosen by the caller, so the column need not exist */
	if (manual && strcmp(name, "version") == 0)
	{
		request->row.version_column = NULL;
		request->version_attnum = InvalidAttrNumber;
		return true;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("version column \"%s\" of table \"%s\" does not exist", name, RelationGetRelationName(rel)),
			 errhint("Pass add_version => true to add it, or name another one with version => '...'.")));
	return false;				/* not reached */
}

void
attach_check_columns(const AttachRequest *request, Relation rel)
{
	ListCell   *lc;

	foreach(lc, request->row.columns)
	{
		Form_pg_attribute att = attribute(rel, existing_column(rel, lfirst(lc), "columns"));

		if (request->row.only_columns && att->attgenerated != '\0')
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("only_columns is not possible with column \"%s\", because it is generated", NameStr(att->attname)),
					 errdetail("Generated columns are computed after it is decided whether a cached column changes."),
					 errhint("Name the columns that it is computed from instead, or leave out only_columns.")));
	}
}

/* -----------------------------------------------------------------------------------------------------------------
 * Several tables in one domain
 * -----------------------------------------------------------------------------------------------------------------
 */

static bool
same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/*
 * Raises 22023 unless both have the same options. Redis and the functions that reserve see only the domain, so all of
 * its tables must have the same options.
 */
static void
check_same_options(const DomainRow *row, const DomainRow *member)
{
	const char *differs = !same_text(row->tag, member->tag) || row->tag != NULL ? "tag" :
		!same_text(row->publish, member->publish) ? "publish" :
		!same_text(row->on_redis_failure, member->on_redis_failure) ? "on_redis_failure" :
		!same_text(row->reserve, member->reserve) ? "reserve" :
		interval_ms(row->ttl) != interval_ms(member->ttl) ? "ttl" : NULL;

	if (differs != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("table \"%s\" cannot join domain \"%s\" with another %s", get_rel_name(row->relid), row->name, differs),
				 errdetail("The domain has table \"%s\". All of its tables have publish, on_redis_failure, reserve and ttl in common, and none has a tag.",
						   get_rel_name(member->relid))));
}

void
attach_check_join(const AttachRequest *request, Relation rel)
{
	const DomainRow *member = linitial(request->members);
	int			n = list_length(request->row.key_columns);
	bool		fits = n == list_length(member->key_columns);

	check_same_options(&request->row, member);
	for (int i = 0; fits && i < n; i++)
	{
		AttrNumber	attnum = get_attnum(member->relid, list_nth(member->key_columns, i));

		fits = attnum > 0 && getBaseType(get_atttype(member->relid, attnum)) ==
			getBaseType(attribute(rel, request->key_attnums[i])->atttypid);
	}
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("the key of table \"%s\" has other types than the keys of domain \"%s\"", RelationGetRelationName(rel), member->name),
				 errdetail("Table \"%s\" is in the domain, and a key must have the same text in all tables of the domain.", get_rel_name(member->relid)),
				 errhint("Pass key => ARRAY[...] with columns of the same types, in the same order; or pass another domain.")));
}
