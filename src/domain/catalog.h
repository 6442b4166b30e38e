/*
 * domain/catalog.h
 *	  The extension's own tables, and the rows of fence.domain as they stand there.
 *
 * Everything here reads and writes these tables directly, without privileges and without firing triggers. Look-ups
 * return palloc'd copies in the current memory context.
 */
#ifndef FENCE_CATALOG_H
#define FENCE_CATALOG_H

#include "access/htup.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/*
 * Returns the OID of the extension's table or sequence of that name in schema fence; InvalidOid if the extension is not
 * installed.
 */
extern Oid	fence_table_oid(const char *relname);

/*
 * Opens and locks a table of the extension; close it with table_close. Returns NULL if the extension is not installed.
 */
extern Relation fence_table_open(const char *relname, LOCKMODE lock);

/* Returns a copy of the row in which this unique column has the value; NULL if there is none. Uses a new snapshot. */
extern HeapTuple fence_table_find(Relation table, AttrNumber column, RegProcedure equality, Datum value);

/*
 * Only for domain_cache.c, which has the callback of relation caches. It calls catalog_init once, and from then on
 * passes each invalidation to catalog_invalidated, which returns whether rows of fence.domain may have changed. Neither
 * raises nor allocates.
 */
extern void catalog_init(void);
extern bool catalog_invalidated(Oid relid);

/*
 * A row of fence.domain as it stands in the table, with no name resolved. Code that must work on broken attachments
 * (detach, DROP) uses it; all other code uses a Domain.
 */
typedef struct DomainRow
{
	int64		id;
	char	   *name;
	Oid			relid;			/* InvalidOid: NULL */
	List	   *key_columns;	/* of char *; NIL without a table */
	char	   *version_column; /* or NULL */
	char	   *tag;			/* or NULL */
	char	   *scope;
	char	   *cache;
	List	   *columns;		/* of char *; NIL: NULL */
	Interval   *ttl;			/* or NULL */
	char	   *on_redis_failure;	/* or NULL */
	char	   *publish;
	bool		cache_absent;
	char	   *reserve;		/* or NULL */
	bool		version_added;	/* fence.attach has added the version column */
	bool		only_columns;
} DomainRow;

/*
 * Returns the rows of the domain of that name (DomainRow): one for each of its tables, or one if it has no table. NIL
 * if there is no such domain.
 */
extern List *domain_rows_by_name(const char *name);

/*
 * Locks the name until the end of the transaction: no other transaction can attach a table to a domain of that name, or
 * detach one.
 */
extern void domain_lock_name(const char *name);

/* Returns the name that fence.attach gives to the domain of a table if the caller passes none; palloc'd. */
extern char *domain_table_name(Oid relid);

/*
 * Returns the rows of the table's attachments (DomainRow): first those with a version column, then the others, each in
 * the order in which they were attached.
 */
extern List *domain_rows_by_relation(Oid relid);

/*
 * Returns the rows of the table or, if that is a partition without rows of its own, of the nearest fenced table above
 * it.
 */
extern List *domain_rows_covering(Oid relid);

/* Returns the row with this id in such a list; NULL if there is none. */
extern DomainRow *domain_row_of(List *rows, int64 id);

/* Returns all rows of fence.domain (DomainRow). */
extern List *domain_rows(void);

/*
 * Returns a copy of the row with this OID in a catalog of PostgreSQL, found by that index of it; NULL if there is none.
 * snapshot NULL: as the catalog was before the current command.
 */
extern HeapTuple catalog_find_row(Relation catalog, Oid index, AttrNumber attnum, Oid object, Snapshot snapshot);

/* One domain of this database, as the keeper announces it to Redis */
typedef struct DomainRef
{
	const DomainRow *row;
	char	   *redis_name;
	int64		id;
	const char *publish;		/* what fence.domain has, or PUBLISH_WITHDRAWN */
	bool		refused;		/* a Redis process says that this attachment has ended */
} DomainRef;

/* Returns every domain of this database (DomainRef), once each, in the current memory context. */
extern List *domain_list(void);

/* Returns the domains (DomainRef) whose rows this transaction has written and not rolled back. */
extern List *domain_list_own(void);

/*
 * Announced instead of publish if the triggers of the domain's tables are not as they should be. Redis then serves
 * nothing of it.
 */
#define PUBLISH_WITHDRAWN "withdrawn"

/*
 * domain_row_insert adds the row. If row->id is 0, it draws the next id and stores it there. Raises 42P01 if the
 * extension is not installed. domain_row_delete deletes the row and returns false if another session has deleted it.
 * Nobody sees the deletion until the command counter is incremented. Both invalidate every backend's cache at COMMIT.
 */
extern void domain_row_insert(DomainRow *row);
extern bool domain_row_delete(const DomainRow *row);

/* Replaces the row with the same id and table. Later look-ups in the same command do not see the change. */
extern void domain_row_update(const DomainRow *row);

/*
 * Replaces the column's name wherever the row has it, also in the tag. Returns false if no list of columns and no
 * version column has it.
 */
extern bool domain_row_rename_column(DomainRow *row, const char *old, const char *new);

#endif
