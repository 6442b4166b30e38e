/*
 * domain/partition.h
 *	  Which tables may have the rows of a key.
 */
#ifndef FENCE_PARTITION_H
#define FENCE_PARTITION_H

#include "domain/domain.h"

/*
 * Returns the OIDs of the tables that may have rows of the key: the domain's table or, if that is partitioned, those of
 * its partitions that have no partitions themselves. parts: the values of the key, as key_parts returns them; NULL:
 * any key. Does not lock the tables that it returns. So whoever opens one must look afterwards whether it still is one
 * of the domain.
 */
extern List *partitions_of_key(const Domain *domain, char **parts);

#endif
