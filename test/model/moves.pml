/*
 * moves.pml - (MOVES): the epoch goes on when slots move. Two processes of one epoch; the row's slot was granted to
 * the first, and wanders. No leases: what a grant that fails, a replaced process or a bypass does, is keeper.pml's.
 *
 * The keys move one by one. A node where the slot is has a key or, while it migrates, says that the other one has.
 */
byte moves_left = MOVES;

inline copy_fence(from, to)
{
	R[to].exists = R[from].exists;
	R[to].ftoken = R[from].ftoken;
	R[to].v = R[from].v;
	R[to].ticket = R[from].ticket;
	delete_fence(from)
}

inline copy_value(from, to)
{
	R[to].vtoken = R[from].vtoken;
	R[to].vversion = R[from].vversion;
	R[to].vauthor = R[from].vauthor;
	R[from].vtoken = 0;
	R[from].vversion = 0;
	R[from].vauthor = 0
}

/*
 * Nobody asks the keeper. Between the two ends of a move the slot is both nodes', but the old one still migrates: it knows
 * that a key which it has not is elsewhere.
 */
proctype Mover()
{
end:
	do
	:: atomic { moves_left > 0 && R[0].serves && !R[1].serves -> moves_left--; leaving = 1 }
	:: atomic { moves_left > 0 && R[1].serves && !R[0].serves -> moves_left--; leaving = 2 }
	:: atomic { leaving == 1 && R[0].exists -> copy_fence(0, 1) }
	:: atomic { leaving == 1 && R[0].vtoken != 0 -> copy_value(0, 1) }
	:: atomic { leaving == 2 && R[1].exists -> copy_fence(1, 0) }
	:: atomic { leaving == 2 && R[1].vtoken != 0 -> copy_value(1, 0) }
	:: atomic { leaving == 1 && !R[1].serves && !R[0].exists && R[0].vtoken == 0 -> R[1].serves = 1 }
	:: atomic { leaving == 2 && !R[0].serves && !R[1].exists && R[1].vtoken == 0 -> R[0].serves = 1 }
	:: atomic { leaving == 1 && R[1].serves -> R[0].serves = 0; leaving = 0 }
	:: atomic { leaving == 2 && R[0].serves -> R[1].serves = 0; leaving = 0 }
#ifdef MUTATION_owner_forgets_the_migration
	:: atomic { leaving != 0 && R[0].serves && R[1].serves -> leaving = 0 }
	:: atomic { leaving == 0 && R[0].serves && R[1].serves && !R[0].exists && R[0].vtoken == 0 -> R[0].serves = 0 }
	:: atomic { leaving == 0 && R[0].serves && R[1].serves && !R[1].exists && R[1].vtoken == 0 -> R[1].serves = 0 }
#endif
	od
}

#ifdef MUTATION_moves_beside_a_commit
#define NOBODY_COMMITS true
#else
#define BUSY(i) (marker[i] != NO_MARKER)
#define NOBODY_COMMITS (ANY_W(BUSY) == 0)
#endif

/* The slot is taken from it; what is reserved for rows of the slot may go. */
inline narrow(p)
{
	R[p].granted_slot = 0;
	R[p].poisoned = 0;
	R[p].silent = 0
}

/*
 * Readers are answered in a slot that was granted only once a job has reserved there for what is prepared, and has said so with
 * the number of that grant. It runs beside everything else; one that is late speaks of a former grant.
 */
#if defined(PREPARES) && !defined(MUTATION_speaks_at_once)
inline grow_silent(p)
{
	R[p].silent = 1;
	job_current = 0
}
#else
#define grow_silent(p) skip
#endif

inline widen(p)
{
	if
	:: R[p].granted_slot && !R[p].poisoned
	:: else ->
#ifndef MUTATION_slot_returns_under_its_old_gen
		if
		:: R[p].had_slot -> new_gen(p)
		:: else
		fi;
#endif
		R[p].granted_slot = 1;
		R[p].had_slot = 1;
		R[p].poisoned = 0;
		grow_silent(p)
	fi
}

#ifdef PREPARES
#ifdef MUTATION_prepared_are_not_carried
#define CARRY(p) skip
#else
inline CARRY(p)
{
	each = 0;
	do
	:: each == NW -> break
	:: else ->
		if
		:: listed[each] -> R[p].dpend[each] = 1
		:: else
		fi;
		each++
	od;
	each = 0
}
#endif

inline list_prepared()
{
	each = 0;
	do
	:: each == NW -> break
	:: else ->
		listed[each] = (fate[each] == PREPARED || (fate[each] == LOGGED && marker[each] == NO_MARKER));
		each++
	od;
	each = 0
}

inline list_nothing()
{
	each = 0;
	do
	:: each == NW -> break
	:: else -> listed[each] = 0; each++
	od;
	each = 0
}

#ifdef MUTATION_announced_for_a_former_grant
#define OF_THE_LAST_GRANT true
#else
#define OF_THE_LAST_GRANT job_current
#endif

proctype Announcer()
{
end:
	do
	:: atomic { word == OPEN && (R[0].silent || R[1].silent) -> job_current = 1 };
	   atomic { list_prepared() };
	   /* to which processes something was granted is looked up now, and the job ends if that is another grant's */
	   if
	   :: atomic { job_current && R[0].silent -> CARRY(0) }
	   :: atomic { job_current && R[1].silent -> CARRY(1) }
#ifdef MUTATION_announced_for_a_former_grant
	   :: atomic { !job_current -> skip }
#endif
	   :: atomic { !job_current -> goto over }
	   :: atomic { job_current && !R[0].silent && !R[1].silent -> goto over }
	   fi;
	   if
	   :: atomic { OF_THE_LAST_GRANT -> R[0].silent = 0; R[1].silent = 0 }
	   :: atomic { !job_current -> skip }
	   fi;
over:
	   atomic { list_nothing(); job_current = 0 }
	od
}
#endif

#define MAP_DIFFERS (R[0].poisoned || R[1].poisoned || !(R[0].serves && R[0].granted_slot || R[1].serves && R[1].granted_slot))

proctype Mapkeeper()
{
	byte to;

end:
	do
	:: atomic { word == OPEN && MAP_DIFFERS -> change_word(CLOSED, word_epoch) }
	:: atomic {
		word == CLOSED ->
		if
		:: R[0].serves -> to = 0
		:: R[1].serves -> to = 1
		fi;
		change_word(ARMING, word_epoch);
		keeper_same = 1
	   }
	   if
	   :: !NOBODY_COMMITS -> goto closing
	   :: else
	   fi;
#ifndef MUTATION_opens_before_narrowing
	   if
	   :: to == 0 -> atomic { narrow(1) }
	   :: else -> atomic { narrow(0) }
	   fi;
#endif
	   if
	   :: to == 0 -> atomic { widen(0) }
	   :: else -> atomic { widen(1) }
	   fi;
#ifdef MUTATION_opens_before_narrowing
	   atomic { if :: keeper_same -> change_word(OPEN, word_epoch) :: else fi; goto late };
late:
	   if
	   :: to == 0 -> atomic { narrow(1) }
	   :: else -> atomic { narrow(0) }
	   fi;
	   goto forget;
#endif
	   atomic {
		if
		:: keeper_same -> change_word(OPEN, word_epoch)
		:: else
		fi;
		goto forget
	   }
closing:
	   atomic {
		if
		:: keeper_same -> change_word(CLOSED, word_epoch)
		:: else
		fi
	   }
forget:
	   atomic { keeper_same = 0; to = 0 }
	od
}
