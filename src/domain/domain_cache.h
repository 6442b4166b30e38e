/*
 * domain/domain_cache.h
 *	  Each backend's cache of fenced tables: finds a Domain (domain.h) by its table or its name.
 *
 * Owns: the cached Domains. Invalidation messages about a fenced table, or about fence.domain, empty the cache. A Domain
 * that a caller may still hold is kept until the end of the transaction.
 */
#ifndef FENCE_DOMAIN_CACHE_H
#define FENCE_DOMAIN_CACHE_H

#include "domain/domain.h"

/*
 * The domains of a fenced table, chained by next, or NULL. Those whose versions are in the version column come first. Of a partition:
 * those of the fenced table above it, with their columns as they stand in the partition. Reads the catalogue in a fresh snapshot when they
 * are not cached.
 */
extern Domain *domains_by_relation(Oid relid);

/* A List of Domain: the domain as each of its tables has it. Tables that were dropped meanwhile are left out. */
extern List *domain_of_each_table(const Domain *domain);

/* The domain of that name; raises 42704 with a hint if there is none and missing_ok is false. */
extern Domain *domain_by_name(const char *name, bool missing_ok);

/* The domain whose redis_name this is (of this database), or NULL. */
extern Domain *domain_by_redis_name(const char *redis_name);

/*
 * Raises 55000 unless the triggers of the domain's table and of its partitions look as fence.attach makes them (shape.h). A Domain is
 * loaded only if they do.
 */
extern void domain_require_shape(const DomainRow *row);

/* Called once at load: invalidation callbacks. And at the end of each top-level transaction: frees dead domains. */
extern void domain_init(void);
extern void domain_at_transaction_end(void);

/*
 * Whether this transaction holds the lock that INSERT, UPDATE and DELETE take, or a stronger one, on the domain's table or one of
 * its partitions. Who has not has changed no row of it: the lock is taken before, and is kept as long as the change.
 */
extern bool domain_has_writer_lock(const Domain *domain);

#endif
