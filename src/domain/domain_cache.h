/*
 * domain/domain_cache.h
 *	  Each backend's cache of fenced tables: finds a Domain (domain.h) by its table or its name.
 *
 * Owns: the cached Domains. Invalidation messages about a fenced table, or about fence.domain, empty the cache. A
 * Domain that a caller may still hold is kept until the end of the transaction.
 */
#ifndef FENCE_DOMAIN_CACHE_H
#define FENCE_DOMAIN_CACHE_H

#include "domain/domain.h"

/*
 * Returns the Domains of a fenced table, chained by next; NULL if the table is not fenced. Those with a version column
 * come first. For a partition, these are the Domains of the fenced table above it, with the columns of the partition.
 * If they are not cached, reads the catalogs in a new snapshot; then raises what domain_require_shape and domain_build
 * raise.
 */
extern Domain *domains_by_relation(Oid relid);

/* Returns a List of Domain: this domain for each of its tables. Tables that were dropped meanwhile are left out. */
extern List *domain_of_each_table(const Domain *domain);

/*
 * Returns the domain of that name, as users write it. If there is none, returns NULL or, unless missing_ok, raises
 * 42704 with a hint.
 */
extern Domain *domain_by_name(const char *name, bool missing_ok);

/*
 * Returns whether nothing has been heard of that may have changed the domain since it was looked up. If the name is
 * another table's by now, or its key is of another type, what was read is no row of the domain.
 */
extern bool domain_is_current(const Domain *domain);

/* Returns the domain of this database with that redis_name; NULL if there is none. */
extern Domain *domain_by_redis_name(const char *redis_name);

/*
 * Raises 55000 unless the triggers of the domain's table and of its partitions look as fence.attach makes them
 * (shape.h). A Domain is loaded only if they do: without its triggers, a table would change unnoticed, and readers
 * would get values that were replaced.
 */
extern void domain_require_shape(const DomainRow *row);

/*
 * domain_init registers the invalidation callbacks. Called once, when the library is loaded. domain_at_transaction_end
 * frees dead Domains at the end of each top-level transaction; it neither raises nor allocates.
 */
extern void domain_init(void);
extern void domain_at_transaction_end(void);

/*
 * Returns whether this transaction has an xid and holds the lock that INSERT, UPDATE and DELETE take, or a stronger
 * one, on a table of the domain or one of its partitions. If it does not, it has changed no row: a writer takes this
 * lock before the change and keeps it until the end of the transaction.
 */
extern bool domain_has_writer_lock(const Domain *domain);

#endif
