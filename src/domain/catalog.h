/*
 * domain/catalog.h
 *	  The extension's own tables, and the rows of fence.domain as they stand there.
 */
#ifndef FENCE_CATALOG_H
#define FENCE_CATALOG_H

#include "access/htup.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

/* OID of the extension's table of that name in schema fence, InvalidOid if the extension is not installed. */
extern Oid	fence_table_oid(const char *relname);

/* Opens a table of the extension; NULL if the extension is not installed. Close it with table_close. */
extern Relation fence_table_open(const char *relname, LOCKMODE lock);

/* A copy of its row in which the column, of a unique index, has the value; NULL if there is none. In a new snapshot. */
extern HeapTuple fence_table_find(Relation table, AttrNumber column, RegProcedure equality, Datum value);

/*
 * For domain.c, which has the one callback of relation caches: whatever it is told of it passes on from catalog_init on. Returns
 * whether rows of fence.domain may have changed. Neither raises nor allocates.
 */
extern void catalog_init(void);
extern bool catalog_invalidated(Oid relid);

/*
 * A row of fence.domain as the table holds it; no name in it has been resolved. What works on broken attachments
 * (detach, DROP) uses this, all else a Domain.
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

/* The rows of that name: of a domain of several tables one of each, else one. NIL: there is none. */
extern List *domain_rows_by_name(const char *name);

/* Until the transaction ends nobody else attaches anything by that name, or ends an attachment of it. */
extern void domain_lock_name(const char *name);

/* The name that a table's own domain has if none is given; palloc'd. */
extern char *domain_table_name(Oid relid);

/* The rows of the table's attachments: those with a version column first, else in the order in which they were attached. */
extern List *domain_rows_by_relation(Oid relid);

/* The rows of the table or, if that is a partition, of the nearest fenced table above it. */
extern List *domain_rows_covering(Oid relid);

/* Of such a list the one with that id; NULL: it has none. */
extern DomainRow *domain_row_of(List *rows, int64 id);

/* All of them. */
extern List *domain_rows(void);

/*
 * A copy of the row with that oid in a catalogue of PostgreSQL's, found by the index on it; NULL if there is none. snapshot NULL: as the
 * catalogue was before this command.
 */
extern HeapTuple catalog_find_row(Relation catalog, Oid index, AttrNumber attnum, Oid object, Snapshot snapshot);

/* Every domain of this database, for announcing. A List of DomainRef in the caller's context. */
typedef struct DomainRef
{
	const DomainRow *row;
	char	   *redis_name;
	int64		id;
	const char *publish;		/* as in fence.domain, or PUBLISH_WITHDRAWN */
	bool		refused;		/* a Redis process takes the attachment for ended */
} DomainRef;
extern List *domain_list(void);

/* Those whose rows this transaction has written, and has not taken back. */
extern List *domain_list_own(void);

/* What must be told instead of publish of a domain whose triggers are not as they should be: it is not served. */
#define PUBLISH_WITHDRAWN "withdrawn"

/*
 * Adds the row with the next id, which is stored in it, unless it has one; deletes the row, false: it is gone, another session was first. Both empty
 * every backend's cache at COMMIT. What was deleted is seen until the command counter is incremented.
 */
extern void domain_row_insert(DomainRow *row);
extern bool domain_row_delete(const DomainRow *row);

/* Writes the row again, found by its id and its table. No later look-up in the same command sees it. */
extern void domain_row_update(const DomainRow *row);

/* Puts another name wherever the row names that column, the tag included; false if it nowhere does. */
extern bool domain_row_rename_column(DomainRow *row, const char *old, const char *new);

/* "<database oid>.<percent-encoded name>", palloc'd. */
extern char *domain_redis_name(const char *name);

#endif
