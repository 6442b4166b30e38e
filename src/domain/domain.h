/*
 * domain/domain.h
 *	  What a row of fence.domain (catalog.h) means for its table as it is now.
 *
 * A Domain is such a row with all names resolved against the table. domain_cache.c keeps the Domains of this backend
 * and frees them; whoever else holds one must not change it, and may use it until the end of the transaction.
 */
#ifndef FENCE_DOMAIN_H
#define FENCE_DOMAIN_H

#include "access/attnum.h"
#include "access/htup.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "utils/relcache.h"

#include "base/metrics.h"
#include "base/settings.h"
#include "domain/catalog.h"

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
	Oid			input_type;		/* base type of the column: it parses the texts that callers give */
	int32		input_typmod;	/* only for bpchar; else -1 */
	Oid			text_type;		/* its text is canonical: the input type of the operator class, see key.c */
	Oid			collation;
	Oid			equality;		/* the unique index's equality operator, for look-ups by key */
	int			place;			/* among the conditions of a look-up, from 0 on: the order of the index */
	bool		byval;
	int16		len;
	FmgrInfo	output;			/* of text_type; unused where key.c prints the type itself */
	FmgrInfo	input;			/* of input_type */
	Oid			input_ioparam;
} KeyColumn;

typedef struct Domain
{
	struct Domain *next;		/* the next attachment of the same table */
	int64		id;				/* fence.domain.id: this attachment; never reused */
	char	   *name;			/* as users see it */
	char	   *redis_name;		/* as Redis sees it: key_domain_name */
	char	   *fence_prefix;	/* "<namespace>:f:<redis_name>:{" */
	char	   *value_prefix;	/* "<namespace>:v:<redis_name>:{" */
	MetricSlot	metrics;		/* metrics of the domain */
	Oid			relid;			/* InvalidOid: a domain without a table. Of a partition: not the root */
	List	   *tables;			/* OIDs of all tables of the domain if it has several; else NIL */
	bool		partitioned;	/* relid is a partitioned table: rows are read by the Domains of its partitions */
	DomainScope scope;
	int			nkeys;			/* 0: the table has one key; without a table, keys have any number of values */
	KeyColumn  *keys;
	bool		nullable;		/* a key column may be null; a row in which one is has no key */
	bool		generated_key;	/* a key column is generated */
	Oid			key_index;		/* finds rows: the unique index on exactly the key columns; of a group, any
								 * that begins with them. InvalidOid: there is none */
	bool		version_aside;	/* versions are in fence.tombstone: of groups, or without a version column */
	char	   *version_name;
	AttrNumber	version_attnum;
	Oid			version_type;	/* INT2OID, INT4OID or INT8OID */
	int64		version_max;
	char	   *tag;			/* template, or NULL: the whole key is the hash tag */
	List	   *columns;		/* names (char *) of the columns that are cached; NIL: all */
	int			nwatched;		/* only_columns: an UPDATE counts if one of these changes; 0: every UPDATE counts */
	AttrNumber *watched;
	bool		builtin_types;	/* to_json runs no function of a user for any column (plain_json.h) */
	int64		ttl_ms;			/* time to live of values that readers and COMMIT store; 0: the default */
	bool		write_through;	/* COMMIT sends Redis the row, not only its version */
	bool		notify;			/* COMMIT sends NOTIFY */
	bool		events;			/* COMMIT sends Redis the version, and Redis publishes it */
	bool		cache_absent;	/* readers may also cache that there is no row */
	bool		inserts_reserve;	/* INSERT reserves: a new row may have a fence already, or Redis gets it */
	int			reserve;		/* ReserveWhen, or -1: the setting */
	int			policy;			/* FailurePolicy, or -1: the setting */
} Domain;

#define MAX_ATTACHMENTS 16		/* of one table */

/* Returns the Domain with this id in a chain of attachments (Domain.next); NULL if there is none. */
extern Domain *domain_of(Domain *domains, int64 id);

/*
 * Returns the interval in milliseconds, with months of 30 days and days of 24 hours; 0 for NULL. No interval overflows
 * it.
 */
extern int64 interval_ms(const Interval *interval);

#define TTL_MAX_MS	(INT64CONST(1000) * SECS_PER_DAY * 3660)	/* 10 years */

/*
 * domain_policy returns the failure policy in force: that of the attachment or, if it has none, the setting
 * on_redis_failure. domain_reserves_early returns whether a changed row is reserved at once and not only before the
 * commit: as the attachment says or, if it does not, the setting reserve.
 */
extern FailurePolicy domain_policy(const Domain *domain);
extern bool domain_reserves_early(const Domain *domain);

/*
 * Builds the Domains of these rows of fence.domain for a table, chained by next, in the current memory context. `rel`
 * is a table that the rows attach, or one of its partitions, and is locked; NULL builds a domain without a table.
 * Raises 42703 or 42804 if a key or version column is gone or has an unfit type. Does not check triggers.
 */
extern Domain *domain_build(List *rows, Relation rel);

/*
 * Returns a Domain with only what the ledger needs to reserve or to end the whole domain: id, names, metrics and what
 * COMMIT sends. It works even if the table is gone. In TopTransactionContext.
 */
extern Domain *domain_stub(const DomainRow *row);

/* Returns whether PostgreSQL has the versions of the domain's keys: in a version column, or in fence.tombstone. */
extern bool domain_has_versions(const Domain *domain);

/*
 * Returns whether the extension puts a version into each row that is written. Otherwise versions are in
 * fence.tombstone, or the application stores them.
 */
static inline bool
domain_sets_version(const Domain *domain)
{
	return domain->scope == SCOPE_ROW && domain->version_attnum != InvalidAttrNumber;
}

/*
 * Returns the version in a tuple of the domain's table; 0 without a version column. NULL and negative versions count as
 * 0: such rows are older than the attachment.
 */
extern int64 domain_row_version(const Domain *domain, HeapTuple tuple, TupleDesc desc);

#endif
