/*
 * domain/shape.h
 *	  How the triggers of a fenced table must look, and whether they do.
 *
 * Owns: the names, functions, timing and events of these triggers. One table says how each trigger is made and how it
 * is recognised. A trigger that has our name or our function but looks different would let writes pass unfenced. So the
 * hooks refuse it (hooks.c). If one is found nevertheless, nothing of the domain is served (domain_cache.c, worker.c),
 * and fence.doctor reports it (doctor.c).
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
	ROLE_NONE = 0,				/* not one of our triggers */
	ROLE_BEFORE,
	ROLE_TRUNCATE,
	ROLE_AFTER
} TriggerRole;

typedef struct TriggerShape
{
	TriggerRole role;
	const char *name;			/* sorts last, so the trigger fires after the others of its kind */
	const char *symbol;			/* of the C function */
	int16		type;			/* tgtype */
	const char *timing;			/* timing and events in the syntax of CREATE TRIGGER */
	const char *level;
	const char *call;
} TriggerShape;

/* Returns the shape of that role; NULL for ROLE_NONE. */
extern const TriggerShape *shape_of(TriggerRole role);

/*
 * Returns whether a table with these attachments (DomainRows of one table) needs a trigger of this role or, if
 * on_partition, whether each of its partitions does. One trigger serves all attachments.
 */
extern bool shape_is_wanted(List *rows, TriggerRole role, bool on_partition);

/*
 * Returns which of our triggers runs this function; ROLE_NONE if none does. The C symbol decides, because only
 * superusers can create a function with it.
 */
extern TriggerRole shape_role_of_function(Oid function);

/* Returns whether the trigger is one of ours: name and function must both be those of one role. */
extern bool shape_is_ours(const FormData_pg_trigger *trigger);

/*
 * Returns a copy of a trigger's row of pg_trigger; NULL if there is none. snapshot NULL: as the catalog was before the
 * current command.
 */
extern HeapTuple shape_find_trigger(Relation catalog, Oid trigger, Snapshot snapshot);

/*
 * Returns what is wrong with a trigger on a relation that these rows cover, as words that follow its name ("has a WHEN
 * condition"). Returns NULL if it is right, or is not ours. is_new: PostgreSQL is just creating the trigger, and the
 * next command may enable it.
 */
extern const char *shape_fault(List *rows, Relation catalog, HeapTuple trigger, bool is_new);

/*
 * Returns what is wrong with the triggers of a relation that these rows cover, as a palloc'd sentence; NULL if nothing
 * is.
 */
extern char *shape_fault_of_table(List *rows, Oid relid);

/*
 * The same for the table of these rows and all of its partitions. Also checks that the partitions are permanent tables.
 */
extern char *shape_fault_of_family(List *rows);

/*
 * The same for all tables of that domain, as they are attached now. Returns NULL if the domain has no table any more,
 * too.
 */
extern char *shape_fault_of_domain(const DomainRow *row);

/*
 * Returns the OIDs of the table, which comes first, and of all partitions and inheritance children below it. Takes no
 * locks on them, so one may have been dropped meanwhile.
 */
extern List *shape_members(Oid relid);

/*
 * Returns why this table and its partitions cannot be fenced, whatever triggers they have, as a palloc'd sentence; NULL
 * if they can. They must be permanent heap tables, and only partitions may be below the table. Locks none of them.
 */
extern char *shape_unfit_family(Oid relid);

#endif
