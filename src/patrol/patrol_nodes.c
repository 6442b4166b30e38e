/*
 * patrol/patrol_nodes.c
 *	  The patrol's own connections to the Redis processes.
 *
 * Owns: these connections, one for each process, and a copy of the table of nodes.
 * Locks: fence_shared->lock, for a copy only.
 */
#include "postgres.h"

#include "base/settings.h"
#include "base/shared.h"
#include "patrol/patrol_nodes.h"

/* The connections, each opened on first use, and the nodes as patrol_look_at_nodes has seen them last */
static struct
{
	LibraryCall call;
	bool		granted;		/* other nodes are not asked: what they list is of an earlier epoch */
	RedisEndpoint address;
}			nodes[MAX_NODES];

void
patrol_look_at_nodes(void)
{
	static uint32 serial = 0;	/* value of nodes_serial at the last look */
	bool		changed;

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	changed = serial != pg_atomic_read_u32(&fence_shared->nodes_serial);
	serial = pg_atomic_read_u32(&fence_shared->nodes_serial);
	for (int i = 0; i < MAX_NODES; i++)
	{
		nodes[i].granted = i < fence_shared->nnodes && fence_shared->nodes[i].granted;
		nodes[i].address = fence_shared->nodes[i].address;
	}
	LWLockRelease(fence_shared->lock);
	for (int i = 0; i < MAX_NODES; i++)
		if (nodes[i].call.conn && (changed || redis_error(nodes[i].call.conn)))
		{
			redis_close(nodes[i].call.conn);
			nodes[i].call.conn = NULL;
		}
}

LibraryCall *
patrol_call_to(int node)
{
	LibraryCall *call;

	if (node >= MAX_NODES || !nodes[node].granted)
		return NULL;
	call = &nodes[node].call;
	call->deadline = fence_clock() + setting_timeout_us();
	if (call->conn == NULL && !library_open(call, &nodes[node].address))
		return NULL;
	return redis_error(call->conn) == NULL ? call : NULL;
}
