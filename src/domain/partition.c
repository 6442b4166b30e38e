/*
 * domain/partition.c
 *	  Which tables may have the rows of a key; see partition.h.
 *
 * If the key has all columns by which a table is partitioned, its rows are in one partition, as in a SELECT by the key.
 * This is always so at the root of a domain of rows, because a unique index of a partitioned table has these columns.
 * The functions that compare or hash values are those of operator classes, which only superusers make.
 *
 * Locks: AccessShareLock on partitioned tables while it looks at their partitions.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/stratnum.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"

#include "domain/key.h"
#include "domain/partition.h"

/* Returns the number of the key column of that name; -1: it is not in the key. Partitions may have other attnums. */
static int
key_column_named(const Domain *domain, const char *name)
{
	for (int i = 0; i < domain->nkeys; i++)
		if (strcmp(domain->keys[i].name, name) == 0)
			return i;
	return -1;
}

/*
 * Returns whether values that are equal in the key are also equal in column i of the partition key. Collations do not
 * matter: those of keys are deterministic (attach_check.c), so equal values are the same.
 */
static bool
agrees(const KeyColumn *column, PartitionKey by, int i)
{
	int			equal = by->strategy == PARTITION_STRATEGY_HASH ? HTEqualStrategyNumber : BTEqualStrategyNumber;

	return get_op_opfamily_strategy(column->equality, by->partopfamily[i]) == equal;
}

/* Takes the values of the partition key from the key. Returns false if the key does not have them all. */
static bool
take_values(const Domain *domain, char **parts, Relation rel, PartitionKey by, Datum *values)
{
	for (int i = 0; i < by->partnatts; i++)
	{
		AttrNumber	attnum = by->partattrs[i];
		int			column = attnum == InvalidAttrNumber ? -1 :	/* an expression, which may run functions of users */
			key_column_named(domain, NameStr(TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attname));

		if (column < 0 || !agrees(&domain->keys[column], by, i))
			return false;
		values[i] = key_part_datum(&domain->keys[column], parts[column]);
	}
	return true;
}

/* Returns the index of the partition to which PostgreSQL routes these values; -1: there is none. */
static int
route(PartitionKey by, PartitionBoundInfo bounds, Datum *values)
{
	bool		nulls[PARTITION_MAX_KEYS] = {false};
	bool		equal;
	int			at;
	int			index = -1;

	switch (by->strategy)
	{
		case PARTITION_STRATEGY_HASH:
			index = bounds->indexes[compute_partition_hash_value(by->partnatts, by->partsupfunc, by->partcollation, values, nulls) %
									bounds->nindexes];
			break;
		case PARTITION_STRATEGY_LIST:
			at = partition_list_bsearch(by->partsupfunc, by->partcollation, bounds, values[0], &equal);
			if (at >= 0 && equal)
				index = bounds->indexes[at];
			break;
		case PARTITION_STRATEGY_RANGE:
			at = partition_range_datum_bsearch(by->partsupfunc, by->partcollation, bounds, by->partnatts, values, &equal);
			index = bounds->indexes[at + 1];
			break;
	}
	return index < 0 ? bounds->default_index : index;
}

/* Appends what partitions_of_key returns for one partitioned table. */
static List *
add_partitions(List *tables, const Domain *domain, char **parts, Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	PartitionDesc partitions;
	Datum		values[PARTITION_MAX_KEYS];
	int			first = 0;
	int			n;

	if (rel == NULL)
		return tables;
	check_stack_depth();
	/* another table may have the OID's place by now, if this one was dropped meanwhile */
	partitions = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ? RelationGetPartitionDesc(rel, true) : NULL;
	n = partitions ? partitions->nparts : 0;
	if (n > 0 && parts != NULL && take_values(domain, parts, rel, RelationGetPartitionKey(rel), values))
	{
		first = route(RelationGetPartitionKey(rel), partitions->boundinfo, values);
		n = first < 0 ? 0 : 1;
	}
	for (int i = first; i < first + n; i++)
		tables = partitions->is_leaf[i] ? lappend_oid(tables, partitions->oids[i]) :
			add_partitions(tables, domain, parts, partitions->oids[i]);
	relation_close(rel, AccessShareLock);
	return tables;
}

List *
partitions_of_key(const Domain *domain, char **parts)
{
	return domain->partitioned ? add_partitions(NIL, domain, parts, domain->relid) : list_make1_oid(domain->relid);
}
