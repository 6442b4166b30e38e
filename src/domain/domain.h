/*
 * domain/domain.h
 *	  Fenced tables: the catalogue fence.domain, cached per backend.
 *
 * Owns: the meaning of a row of fence.domain; the cache; attach and detach (attach.c).
 * The cache is emptied by invalidation messages (of the fenced table or of fence.domain); a Domain that somebody may
 * still hold is kept until the end of the transaction.
 */
#ifndef FENCE_DOMAIN_H
#define FENCE_DOMAIN_H

#include "access/attnum.h"
#include "access/htup.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "base/metrics.h"
#include "base/settings.h"

typedef enum DomainScope
{
	SCOPE_ROW,					/* one fence per row; triggers write it */
	SCOPE_GROUP,				/* one fence for all rows with the same key */
	SCOPE_MANUAL				/* fences are written by begin_write only; rows are guarded (write/manual.h) */
} DomainScope;

/* One key column. Without a table (manual domains): text, and no name. */
typedef struct KeyColumn
{
	char	   *name;			/* NULL without a table */
	AttrNumber	attnum;
	Oid			input_type;		/* base type of the column: parses what callers spell */
	int32		input_typmod;	/* only for bpchar; else -1 */
	Oid			text_type;		/* type whose text is canonical: the operator class's input type, see key.c */
	Oid			collation;
	Oid			equality;		/* the unique index's equality operator, for look-ups by key */
	int			place;			/* among the conditions of a look-up: from 0 on, in the order of the index' columns */
	bool		byval;
	int16		len;
	FmgrInfo	output;			/* of text_type; unused where key.c prints the type itself */
	FmgrInfo	input;			/* of input_type */
	Oid			input_ioparam;
} KeyColumn;

typedef struct Domain
{
	int64		id;				/* fence.domain.id: this attachment; never reused */
	char	   *name;			/* as users see it */
	char	   *wire_name;		/* "<database oid>.<percent-encoded name>": as Redis sees it */
	char	   *fence_prefix;	/* "<namespace>:f:<wire_name>:" */
	char	   *value_prefix;	/* "<namespace>:v:<wire_name>:" */
	MetricSlot	metrics;		/* where it is counted */
	Oid			relid;			/* InvalidOid: a domain without a table. Of a partition: that, not the root */
	bool		partitioned;	/* relid is a partitioned table: rows are read by the Domains of its partitions */
	DomainScope scope;
	int			nkeys;			/* 0: without a table, any number of parts */
	KeyColumn  *keys;
	Oid			key_index;		/* by which rows are found: the unique index on exactly the key columns; of a group any
								 * that begins with them. InvalidOid: there is none */
	bool		version_aside;	/* versions are in fence.tombstone: of groups, and of rows without a version column */
	char	   *version_name;
	AttrNumber	version_attnum;
	Oid			version_type;	/* INT2OID, INT4OID or INT8OID */
	int64		version_max;
	char	   *tag;			/* template, or NULL: the whole key is the hash tag */
	List	   *columns;		/* names (char *) that read returns; NIL: all */
	bool		builtin_types;	/* of all columns: to_json runs nobody's code for them (plain_json.h) */
	int64		ttl_ms;			/* of values that read and COMMIT store; 0: none */
	bool		write_through;	/* COMMIT tells Redis the row, not only its version */
	bool		notify;			/* COMMIT sends NOTIFY */
	bool		events;			/* COMMIT tells Redis the version, which publishes it there */
	bool		cache_absent;	/* that there is no row is cached, too */
	bool		inserts_reserve;	/* a new row may have a fence already, or Redis is to be told of it */
	int			reserve;		/* ReserveWhen, or -1: the setting */
	int			policy;			/* FailurePolicy, or -1: the setting */

	MemoryContext context;		/* holds all of this */
	bool		dead;			/* invalidated; freed at the end of the transaction */
} Domain;

/*
 * The domain of a fenced table, or NULL. Of a partition of one: the same domain, with its columns as they stand in the
 * partition. Reads the catalogue in a fresh snapshot when it is not cached.
 */
extern Domain *domain_by_relation(Oid relid);

/* The domain of that name; raises 42704 with a hint if there is none and missing_ok is false. */
extern Domain *domain_by_name(const char *name, bool missing_ok);

/* The domain whose wire_name this is (of this database), or NULL. */
extern Domain *domain_by_wire_name(const char *wire_name);

/* An interval, in months of 30 days and days of 24 hours; 0 for NULL. No interval overflows it. */
extern int64 interval_ms(const Interval *interval);

#define TTL_MAX_MS	(INT64CONST(1000) * SECS_PER_DAY * 3660)	/* 10 years */

/* The policy in force for the domain; whether its rows are reserved at once when they change. */
extern FailurePolicy domain_policy(const Domain *domain);
extern bool domain_reserves_early(const Domain *domain);

/* OID of the extension's table of that name in schema fence, InvalidOid if the extension is not installed. */
extern Oid	fence_table_oid(const char *relname);

/* Opens a table of the extension; NULL if the extension is not installed. Close it with table_close. */
extern Relation fence_table_open(const char *relname, LOCKMODE lock);

/* A copy of its row in which the column, of a unique index, has the value; NULL if there is none. In a new snapshot. */
extern HeapTuple fence_table_find(Relation table, AttrNumber column, RegProcedure equality, Datum value);

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
} DomainRow;

/* The row as of now, or NULL; palloc'd. */
extern DomainRow *domain_row_by_relation(Oid relid);
extern DomainRow *domain_row_by_name(const char *name);

/* The row of the table or, if that is a partition, of the nearest fenced table above it. */
extern DomainRow *domain_row_covering(Oid relid);

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
	char	   *wire_name;
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
 * Adds the row with the next id, which is stored in it; deletes the row, false: it is gone, another session was first. Both empty
 * every backend's cache at COMMIT. What was deleted is seen until the command counter is incremented.
 */
extern void domain_row_insert(DomainRow *row);
extern bool domain_row_delete(const DomainRow *row);

/* Writes the row again, found by its id. No later look-up in the same command sees it. */
extern void domain_row_update(const DomainRow *row);

/* Puts another name wherever the row names that column, the tag included; false if it nowhere does. */
extern bool domain_row_rename_column(DomainRow *row, const char *old, const char *new);

/*
 * Raises 55000 unless the triggers of the domain's table and of its partitions look as fence.attach makes them (shape.h). A Domain is
 * loaded only if they do.
 */
extern void domain_require_shape(const DomainRow *row);

/* "<database oid>.<percent-encoded name>", palloc'd. */
extern char *domain_wire_name(const char *name);

/* As much of a Domain as ledger_end_domain needs, in TopTransactionContext. */
extern Domain *domain_stub(const DomainRow *row);

/* How the values of a key column are compared: its operator class in the unique index, else the type's default. */
typedef struct KeyEquality
{
	Oid			opfamily;		/* InvalidOid: the type has no order, hence no unique index */
	Oid			input_type;		/* of the operator class */
	Oid			collation;
} KeyEquality;
extern KeyEquality domain_key_equality(Relation rel, Oid index, AttrNumber attnum);

/*
 * A plain btree index by which rows of a key are found; InvalidOid if there is none. unique: the one on exactly these columns, in any
 * order, that can be relied on at every moment. Else one whose first columns they are, in any order: for groups. *unfit tells of one
 * that it cannot be, and why, as a sentence; NULL: there is none of these columns.
 */
extern Oid	domain_key_index(Relation rel, int nkeys, const AttrNumber *attnums, bool unique, char **unfit);

/* Called once at load: invalidation callbacks. And at the end of each top-level transaction: frees dead domains. */
extern void domain_init(void);
extern void domain_at_transaction_end(void);

/* hooks.c, called once at load: whatever ends or changes a fenced table without its row triggers is seen. */
extern void attach_install_hooks(void);

/* hooks.c: refuses or reserves what a utility statement does to fenced tables and the object access hook does not see. */
extern void attach_check_utility(Node *stmt);

/*
 * hooks.c: reserves what a logical replication worker truncated past every hook; called in PRE_COMMIT and PRE_PREPARE,
 * before the ledger is read. The other forgets what was noticed; it neither raises nor allocates.
 */
extern void attach_before_commit(void);
extern void attach_at_transaction_end(void);

/* Whether PostgreSQL knows the versions of the domain's keys: in a version column, or in the groups' own rows. */
extern bool domain_has_versions(const Domain *domain);

/* Whether each write of a row is given its version here: else it is kept aside, or the application stores it. */
static inline bool
domain_sets_version(const Domain *domain)
{
	return domain->scope == SCOPE_ROW && domain->version_attnum != InvalidAttrNumber;
}

/*
 * Whether this transaction holds the lock that INSERT, UPDATE and DELETE take, or a stronger one, on the domain's table or one of
 * its partitions. Who has not has changed no row of it: the lock is taken before, and is kept as long as the change.
 */
extern bool domain_has_writer_lock(const Domain *domain);

/* The version in a tuple: NULL and negative count as 0 (such rows precede the attachment). */
extern int64 domain_row_version(const Domain *domain, HeapTuple tuple, TupleDesc desc);

#endif
