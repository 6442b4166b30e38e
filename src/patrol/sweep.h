/*
 * patrol/sweep.h
 *	  Removes fences that nobody may have stored.
 */
#ifndef FENCE_PATROL_SWEEP_H
#define FENCE_PATROL_SWEEP_H

/*
 * Looks at the next names in each Redis process, as many as pgcache_fence.sweep_rate allows since the last call, and removes the fences
 * among them that are in a closed bucket and would be served. Call patrol_look_at_nodes before it.
 */
extern void sweep_nodes(void);

#endif
