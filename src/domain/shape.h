/*
 * domain/shape.h
 *	  How the triggers of a fenced table look, and whether a table's look so.
 *
 * Owns: the names, functions, times and events of these triggers. One table says how each is made and by what it is known
 * again. A trigger that has our name or our function and looks otherwise would let writes pass unfenced: the hooks refuse it
 * (hooks.c), and where it is found nevertheless, nothing of the domain is served (domain.c, worker.c, doctor.c).
 */
#ifndef FENCE_SHAPE_H
#define FENCE_SHAPE_H

#include "access/htup.h"
#include "catalog/pg_trigger.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "domain/catalog.h"

typedef enum TriggerRole
{
	ROLE_NONE = 0,				/* not ours */
	ROLE_BEFORE,
	ROLE_TRUNCATE,
	ROLE_AFTER
} TriggerRole;

typedef struct TriggerShape
{
	TriggerRole role;
	const char *name;			/* which lets it fire after the table's other triggers of the same kind */
	const char *symbol;			/* of the C function */
	int16		type;			/* tgtype */
	const char *timing;			/* the same in CREATE TRIGGER */
	const char *level;
	const char *call;
} TriggerShape;

/* The shape of that role. */
extern const TriggerShape *shape_of(TriggerRole role);

/*
 * Whether a table with these attachments (rows of fence.domain, as domain_rows_by_relation returns them) has a trigger of this role, and
 * its partitions. One trigger serves all attachments.
 */
extern bool shape_is_wanted(List *rows, TriggerRole role, bool on_partition);

/* Which of our triggers runs this function: by its C symbol, which only superusers can use. ROLE_NONE: none of them. */
extern TriggerRole shape_role_of_function(Oid function);

/* Whether it is one of ours by its name and its function, which must go together. */
extern bool shape_is_ours(const FormData_pg_trigger *trigger);

/* A trigger's row of pg_trigger, a copy; NULL if there is none. snapshot NULL: as the catalogue was before this command. */
extern HeapTuple shape_find_trigger(Relation catalog, Oid trigger, Snapshot snapshot);

/*
 * What is wrong with a trigger on a relation that these rows cover, in words that follow its name ("has a WHEN condition"). NULL:
 * nothing, or it has nothing to do with us. is_new: PostgreSQL makes it just now, and it may be enabled by the next command.
 */
extern const char *shape_fault(List *rows, Relation catalog, HeapTuple trigger, bool is_new);

/* What is wrong with the triggers of a relation that these rows cover, as a sentence; palloc'd. NULL: nothing. */
extern char *shape_fault_of_table(List *rows, Oid relid);

/* The same of the table of these rows and all its partitions, whose kinds it looks at too. */
extern char *shape_fault_of_family(List *rows);

/* The same of all tables of that domain, as they are attached now. NULL also if it has no table (any more). */
extern char *shape_fault_of_domain(const DomainRow *row);

/* The table and all below it; nobody is waited for, so one may have been dropped meanwhile. The table comes first. */
extern List *shape_members(Oid relid);

/* Why this relation can be no partition of a fenced table, as a predicate ("is unlogged"); NULL: it can be one. */
extern const char *shape_unfit_partition(Oid relid);

#endif
