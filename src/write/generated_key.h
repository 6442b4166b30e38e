/*
 * write/generated_key.h
 *	  The values of generated key columns of a new row, before PostgreSQL computes them.
 */
#ifndef FENCE_GENERATED_KEY_H
#define FENCE_GENERATED_KEY_H

#include "executor/tuptable.h"
#include "utils/relcache.h"

#include "domain/domain.h"

/* The expressions of a relation's generated key columns, ready to be evaluated for each row of a statement */
typedef struct GeneratedKeys GeneratedKeys;

/* Whether a key column of one of these attachments is generated. */
extern bool generated_key_any(const Domain *domains);

/* Prepares the expressions. All of it lives as long as the given context. */
extern GeneratedKeys *generated_key_prepare(const Domain *domains, Relation rel, MemoryContext context);

/* The row with its generated key columns computed. Valid until the next call. Raises what the expressions raise. */
extern TupleTableSlot *generated_key_compute(GeneratedKeys *keys, TupleTableSlot *row);

#endif
