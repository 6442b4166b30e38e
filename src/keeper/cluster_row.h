/*
 * keeper/cluster_row.h
 *	  The row of fence.cluster: the highest epoch and the longest lease, which must outlive the server.
 */
#ifndef FENCE_CLUSTER_ROW_H
#define FENCE_CLUSTER_ROW_H

#include "base/shared.h"

/* Both in a transaction of a worker that does the job, connected to SPI. Loading sets has_row, epoch_number, longest_lease of the job. */
extern void cluster_row_load(FenceJob *job);
extern void cluster_row_store(const FenceJob *job);

#endif
