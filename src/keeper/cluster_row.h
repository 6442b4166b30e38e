/*
 * keeper/cluster_row.h
 *	  The row of fence.cluster: the highest epoch number and the longest lease, which must survive a crash of the
 *	  server.
 */
#ifndef FENCE_CLUSTER_ROW_H
#define FENCE_CLUSTER_ROW_H

#include "base/shared.h"

/*
 * A worker that does the job calls these in a transaction, connected to SPI. cluster_row_load sets has_row,
 * epoch_number and longest_lease of the job; cluster_row_store writes the last two.
 */
extern void cluster_row_load(FenceJob *job);
extern void cluster_row_store(const FenceJob *job);

#endif
