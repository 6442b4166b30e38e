/*
 * fence.pml - a model of the fence protocol for spin. test/model/run.sh runs it; doc/protocol.md says what it covers.
 *
 * Which processes and failures there are is chosen by macros (configs/), which rule is left out by MUTATION_x.
 */
#include "state.pml"
#include "redis.pml"
#include "writer.pml"
#include "reader.pml"
#include "patrol.pml"
#ifdef KEEPER
#include "keeper.pml"
#endif
#ifdef MOVES
#include "moves.pml"
#endif
#include "faults.pml"

init {
	byte n;

	atomic {
		/* the first epoch is open, the fence has a version, the value is cached */
		R[0].up = 1;
		R[0].identity = 1;
		R[0].epoch = 1;
		R[0].lease = LEASE;
		R[0].announced = 1;
		R[0].token = 1;
		R[0].exists = 1;
		R[0].ftoken = 1;
		R[0].v = row;
		R[0].top = row;
		R[0].vtoken = 1;
		R[0].vversion = row;
#ifdef MOVES
		R[0].serves = 1;
		R[0].granted_slot = 1;
		R[0].had_slot = 1;
		R[1].up = 1;
		R[1].identity = 2;
		R[1].epoch = 1;
		R[1].lease = LEASE;
		R[1].announced = 1;
		R[1].token = 2;
#endif
		n = 0;
		do
		:: n == NW -> break
		:: else -> run Writer(n); run Network(n); n++
		od;
		n = 0;
#ifndef LIVENESS
		do
		:: n == NR -> break
		:: else -> run Reader(n); n++
		od;
#endif
		n = 0;
#if defined(PATROL) && !defined(MUTATION_nobody_settles)
		run Patrol();
#endif
#ifdef AUDIT
		run Audit();
#endif
#ifdef KEEPER
		run Keeper();
		run LateGrant();
		run Clock();
#endif
#ifdef MOVES
		run Mover();
		run Mapkeeper();
#ifdef PREPARES
		run Announcer();
#endif
#endif
#ifdef FAILOVERS
		run Failovers();
#endif
#ifdef CRASHES
		run Crashes();
#endif
#ifdef RESTARTS
		run Restarts();
#endif
	}
}

#ifdef LIVENESS
/* Every reservation ends: once the transactions are over and nothing is under way, without anybody's help. */
#define OVER(i) (fate[i] == COMMITTED || fate[i] == ABORTED)
#define UNDER_WAY(i) (late_reserve[i] || end_message[i] != NOTHING)
#define ALL_OVER (OVER(0) && OVER(1) && UNDER_WAY(0) == 0 && UNDER_WAY(1) == 0)
#define NOTHING_PENDING (PENDING(0) == 0)
/* the system never stops, so that an end in which something is pending is an infinite run, too */
bit beat;
active proctype Idle() { do :: beat = 1 - beat od }

ltl reservations_end { [] (ALL_OVER -> <> [] NOTHING_PENDING) }
#endif
