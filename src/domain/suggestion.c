/*
 * domain/suggestion.c
 *	  Which of the names that exist a caller may have meant; see suggestion.h.
 *
 * Owns: what "near" means. Everybody may read these names in fence.domain and fence.derived.
 * Locks: AccessShareLock on the table, released after the look-up. Runs only on the way to an error.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "domain/catalog.h"
#include "domain/suggestion.h"

#define MAX_NAMES		3		/* so many are suggested */
#define MAX_DISTANCE	3		/* letters that differ */
#define MAX_LENGTH		255		/* bytes that PostgreSQL compares */
#define FAR				(MAX_DISTANCE + 1)

/* The name without its schema */
static const char *
last_part(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot ? dot + 1 : name;
}

/* How far the two are from each other, at most FAR. The same name in another schema is the nearest. */
static int
distance(const char *name, const char *existing)
{
	int			len = strlen(name);
	int			existing_len = strlen(existing);

	if (pg_strcasecmp(last_part(name), last_part(existing)) == 0)
		return 0;
	if (len > MAX_LENGTH || existing_len > MAX_LENGTH)
		return FAR;
	return Min(varstr_levenshtein_less_equal(name, len, existing, existing_len, 1, 1, 1, Min(MAX_DISTANCE, len / 2), true), FAR);
}

static bool
contains(List *names, const char *name)
{
	ListCell   *cell;

	foreach(cell, names)
		if (strcmp(lfirst(cell), name) == 0)
			return true;
	return false;
}

/* The names that are nearest, in no order. A domain with several tables has as many rows. */
static List *
nearest(Relation table, const char *name)
{
	AttrNumber	column = get_attnum(RelationGetRelid(table), "name");
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	List	   *names = NIL;
	int			best = Min(MAX_DISTANCE, (int) strlen(name) / 2);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		char	   *existing = TextDatumGetCString(heap_getattr(tuple, column, RelationGetDescr(table), &isnull));
		int			d = distance(name, existing);

		if (d < best)
			names = NIL;
		best = Min(best, d);
		if (d == best && !contains(names, existing))
			names = lappend(names, existing);
	}
	systable_endscan(scan);
	return names;
}

static int
compare_names(const ListCell *a, const ListCell *b)
{
	return strcmp(lfirst(a), lfirst(b));
}

char *
suggestion(const char *table, const char *name, const char *otherwise)
{
	Relation	rel = fence_table_open(table, AccessShareLock);
	List	   *names = rel ? nearest(rel, name) : NIL;
	StringInfoData hint;

	if (rel != NULL)
		table_close(rel, AccessShareLock);
	if (names == NIL)
		return pstrdup(otherwise);
	list_sort(names, compare_names);
	initStringInfo(&hint);
	appendStringInfoString(&hint, "Perhaps you meant ");
	for (int i = 0; i < list_length(names) && i < MAX_NAMES; i++)
		appendStringInfo(&hint, "%s\"%s\"", i > 0 ? " or " : "", (char *) list_nth(names, i));
	appendStringInfoChar(&hint, '.');
	return hint.data;
}
