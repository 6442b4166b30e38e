/*
 * faults.pml - what may go wrong, each a bounded number of times. Which of them happen is chosen by macros.
 */

inline lose_keys(p)
{
	delete_fence(p);
	R[p].vtoken = 0;
	R[p].vversion = 0;
	R[p].vauthor = 0
}

/* The locals of the library: a restart, FUNCTION FLUSH, DEBUG RELOAD, a full resync. */
inline lose_memory(p)
{
	R[p].identity = next_identity;
	next_identity++;
	R[p].epoch = 0;
	R[p].lease = 0;
	R[p].announced = 0;
	R[p].disarmed = 0;
	R[p].token = 0;
	R[p].top = 0;
	forget_reservations(p)
}

#ifdef KEEPER
byte next_identity = 2;
#endif

#ifdef RESTARTS
/* Redis comes back without its memory: with the keys it had, with none, or with older ones. */
proctype Restarts()
{
	byte n = 0;

end:
	do
	:: atomic { n < RESTARTS -> n++; lose_memory(0) }
	:: atomic { n < RESTARTS -> n++; lose_memory(0); lose_keys(0) }
#ifdef SNAPSHOT
	:: atomic {
		saved.ftoken == 0 && saved.vtoken == 0 ->
		saved.exists = R[0].exists;
		saved.ftoken = R[0].ftoken;
		saved.v = R[0].v;
		saved.ticket = R[0].ticket;
		saved.vtoken = R[0].vtoken;
		saved.vversion = R[0].vversion;
		saved.vauthor = R[0].vauthor
	   }
	:: atomic {
		n < RESTARTS && (saved.ftoken != 0 || saved.vtoken != 0) ->
		n++;
		lose_memory(0);
		R[0].exists = saved.exists;
		R[0].ftoken = saved.ftoken;
		R[0].v = saved.v;
		R[0].ticket = saved.ticket;
		R[0].vtoken = saved.vtoken;
		R[0].vversion = saved.vversion;
		R[0].vauthor = saved.vauthor
	   }
#endif
	od
}
#endif

#ifdef FAILOVERS
/* A replica is promoted: it has the keys as they were some time ago. The old master stays up, and may be promoted again. */
proctype Failovers()
{
	byte n = 0;

end:
	do
	:: atomic {
		n < FAILOVERS && address == 0 && !R[1].up ->
		n++;
		address = 1;
		R[1].up = 1;
		R[1].identity = next_identity;
		next_identity++;
		R[1].exists = R[0].exists;
		R[1].ftoken = R[0].ftoken;
		R[1].v = R[0].v;
		R[1].ticket = R[0].ticket;
		R[1].vtoken = R[0].vtoken;
		R[1].vversion = R[0].vversion;
		R[1].vauthor = R[0].vauthor
	   }
	:: atomic { n > 0 && n < FAILOVERS && R[1].up -> n++; address = 1 - address }
	od
}
#endif

#ifdef CRASHES
/* PostgreSQL crashes and comes back: transactions end by what the log has of them, shared memory is new. */
proctype Crashes()
{
	byte n = 0;
	byte i;

end:
	do
	:: atomic {
		n < CRASHES ->
		n++;
		i = 0;
		do
		:: i == NW -> break
		:: else ->
			if
			:: fate[i] == RUNNING -> fate[i] = ABORTED; killed[i] = 1
			:: fate[i] == LOGGED -> fate[i] = COMMITTED; row = w[i]; author = i + 1; killed[i] = 1
			:: fate[i] == LOGGED -> fate[i] = ABORTED; killed[i] = 1		/* the record had not reached the disk */
			:: (fate[i] == COMMITTED || fate[i] == ABORTED) && (locked == i + 1 || marker[i] != NO_MARKER) -> killed[i] = 1
			:: else
			fi;
			if
			:: killed[i] && locked == i + 1 -> locked = 0
			:: else
			fi;
			marker[i] = NO_MARKER;
			ack[i] = 0;
			i++
		od;
		i = 0;
		bypassed = 0;
#ifdef MUTATION_epoch_survives_a_crash
		change_word(CLOSED, word_epoch);
#else
		change_word(CLOSED, 0);
		epoch_armed = 0;
		armed_identity = 0;
#endif
		bound = 0;
		bound_unset = 1;
#ifdef LENGTHS
		last_lease = 0;
#endif
#ifdef MUTATION_crash_forgets_the_holders
		last_holders = 0;
#endif
#ifdef MUTATION_holders_from_a_backup
		last_holders = 2;		/* who it was at first: a promotion, a restored data directory */
#endif
		holders = last_holders;
		keeper_killed = 1
	   }
	od
}
#endif
