/*
 * keeper.pml - keeper.c: renews while OPEN, opens again when CLOSED. `address` is the process that its URL leads to.
 *
 * One step of the keeper is one atomic statement wherever shared memory or Redis can tell the difference.
 */
bit keeper_killed;
byte address = 0;
byte reading;			/* ticks for which a lease computed from the last hello would run */

/* arm and renew whose sender gave up: they may arrive later */
byte late_identity;
byte late_number;
byte late_until;
bit late_is_arm;

#define MAX(a, b) ((a) > (b) -> (a) : (b))

/*
 * The setting changes (LENGTHS times), between LEASE ticks and one. The longest lease is in a row that outlives a crash [c6]: raised
 * before so long a lease is granted, lowered when all longer ones are over.
 */
#ifdef LENGTHS
byte setting = LEASE;
byte durable = LEASE;
byte last_lease = LEASE;	/* of the last grant */
byte longer = LEASE;		/* ticks until those that are longer are over */
#define SETTING setting
#ifdef MUTATION_longest_lease_is_stored_too_late
#define STORE_LEASE skip
#else
#define STORE_LEASE durable = MAX(durable, setting)
#endif
#ifdef MUTATION_longest_lease_falls_at_once
#define LONGER_OVER true
#else
#define LONGER_OVER (last_lease == setting && longer == 0)
#endif

inline note_lease()
{
	if
	:: setting < last_lease -> longer = bound
	:: else
	fi;
	last_lease = setting
}
#else
#define SETTING LEASE
#define STORE_LEASE skip
#define note_lease() skip
#endif

inline hello(p)
{
	if
	:: R[p].up -> STORE_LEASE; identity = R[p].identity; known = R[p].epoch; reading = SETTING
	:: true -> goto unreachable
	fi
}

/*
 * Proposed (DISARM): the leases are over, too, once each process that may hold one has said, by its identity, that it
 * gave its lease up and takes no grant of that epoch or an older one any more.
 */
#ifdef DISARM
#define HOLDS(id) (holders & (1 << (id)))
#ifdef MUTATION_disarmed_may_be_renewed
#define WOULD_TAKE(p, number) true
#else
#define WOULD_TAKE(p, number) ((number) > R[p].disarmed)
#endif
#ifdef MUTATION_whoever_answers_disarms
#define IS_HOLDER(p) true
#define CROSS_OUT(p) holders = 0
#else
#define IS_HOLDER(p) HOLDS(R[p].identity)
#define CROSS_OUT(p) holders = holders & (255 - (1 << R[p].identity))
#endif

inline disarm_at(p)
{
	R[p].lease = 0;
#ifdef MUTATION_unarmed_remembers_nothing
	R[p].disarmed = (R[p].epoch != 0 -> last_epoch : 0);
#else
	R[p].disarmed = last_epoch;
#endif
	if
	:: CROSS_OUT(p)
	:: true				/* the answer was lost */
	fi
}

#else
#define WOULD_TAKE(p, number) true
#endif

inline renew_at(p, number, id, until)
{
#ifdef MUTATION_renewal_does_not_ask_who
	if
	:: R[p].up && until > 0 ->
		R[p].epoch = number;
		R[p].lease = MAX(R[p].lease, until);
		R[p].announced = 1;
		if
		:: R[p].token == 0 -> new_gen(p)
		:: else
		fi;
		outcome = GRANTED
#else
	if
	:: R[p].up && R[p].identity == id && R[p].epoch == number && until > 0 && WOULD_TAKE(p, number) ->
		R[p].lease = MAX(R[p].lease, until);
		outcome = GRANTED
#endif
	:: else
	fi
}

inline forget_reservations(p)
{
	each = 0;
	do
	:: each == NW -> break
	:: else -> drop_own(p, each); R[p].dpend[each] = 0; each++
	od;
	each = 0
}

/* The same epoch again only extends the lease; a higher number begins with nothing; a lower one is refused [c9]. */
inline arm_at(p, number, id, until)
{
	if
	:: R[p].up && R[p].identity == id && until > 0 && R[p].epoch == number && WOULD_TAKE(p, number) ->
		R[p].lease = MAX(R[p].lease, until);
#ifdef MUTATION_arm_again_wipes
		forget_reservations(p);
#endif
		outcome = GRANTED
	:: R[p].up && R[p].identity == id && until > 0 && R[p].epoch < number && WOULD_TAKE(p, number) ->
		R[p].epoch = number;
		R[p].lease = until;
		forget_reservations(p);
#ifdef PREPARES
		R[p].announced = 0;
#else
		R[p].announced = 1;
#endif
		new_gen(p);
		outcome = GRANTED
	:: else
	fi
}

/* Sends arm or renew to the process at the address. outcome FAILED: no answer; it may still arrive. */
inline grant_at_address(is_arm)
{
	outcome = FAILED;
	if
	:: is_arm && address == 0 -> arm_at(0, number, identity, reading)
	:: !is_arm && address == 0 -> renew_at(0, number, identity, reading)
#if NP == 2
	:: is_arm && address == 1 -> arm_at(1, number, identity, reading)
	:: !is_arm && address == 1 -> renew_at(1, number, identity, reading)
#endif
	:: true				/* it was carried out and the answer lost, or it is under way */
		-> late_identity = identity; late_number = number; late_until = reading; late_is_arm = is_arm
	fi
}

#ifdef MUTATION_bound_is_not_raised
#define RAISE_BOUND skip
#else
#ifndef DISARM
#define RAISE_BOUND atomic { note_lease(); bound = MAX(bound, reading) }
#else
#ifdef MUTATION_holders_are_noted_too_late
#define RAISE_BOUND bound = MAX(bound, reading)
#else
#define RAISE_BOUND atomic { bound = MAX(bound, reading); holders = holders | (1 << identity) }
#endif
#endif
#endif

#ifdef MUTATION_renewal_while_closed
#define MAY_GRANT true
#else
#define MAY_GRANT keeper_same
#endif

#define BYPASSING(i) (marker[i] == BYPASS)
#define COMMITTING(i) (marker[i] != BYPASS && marker[i] != NO_MARKER)
#ifdef MUTATION_opens_beside_a_bypass
#define NOBODY_BYPASSES true
#else
#define NOBODY_BYPASSES (ANY_W(BYPASSING) == 0)
#endif
#ifdef MUTATION_new_epoch_beside_a_commit
#define NOBODY_COMMITS true
#else
#define NOBODY_COMMITS (ANY_W(COMMITTING) == 0)
#endif
#ifdef MUTATION_new_epoch_without_lease_wait
#define LEASES_OVER true
#else
#define LEASES_OVER (!bound_unset && bound == 0)
#endif
#ifdef MUTATION_same_epoch_after_bypass
#define NO_BYPASS true
#else
#define NO_BYPASS (!bypassed)
#endif
#ifdef MUTATION_same_epoch_for_any_process
#define SAME_PROCESS (epoch_armed)
#else
#define SAME_PROCESS (epoch_armed && armed_identity == identity && known == word_epoch)
#endif

#define SAME_AND_NO_BYPASS (SAME_PROCESS && NO_BYPASS)
#if defined(MUTATION_arm_again_wipes) || defined(MUTATION_same_epoch_for_any_process)
#define GRANT_AGAIN 1		/* by arm */
#else
#define GRANT_AGAIN 0		/* by renew */
#endif

#define GIVEN_UP (!epoch_armed)

proctype Keeper()
{
	byte identity;
	byte known;			/* epoch that the process named */
	byte number;		/* epoch that is being granted */
#ifdef LENGTHS
	byte changes;
#endif

start:
	{
end:
	do
#ifdef PREPARES
	:: atomic {
		/* announce: first what was prepared before the epoch is reserved, then readers may be answered [c8] */
		word == OPEN && R[0].up && R[0].epoch == word_epoch && R[0].announced == 0 ->
		number = word_epoch;
#ifndef MUTATION_prepared_are_not_carried
		each = 0;
		do
		:: each == NW -> break
		:: else ->
			if
			:: fate[each] == PREPARED || (fate[each] == LOGGED && marker[each] == NO_MARKER) -> R[0].dpend[each] = 1
			:: else
			fi;
			each++
		od;
		each = 0
#endif
	   }
	   atomic {
		if
		:: R[0].epoch == number -> R[0].announced = 1
		:: else
		fi;
		number = 0
	   }
#endif
#ifdef CRASHES
	:: atomic {
		/* c6: the longest lease ever granted may have been granted just before the crash */
		bound_unset ->
#ifndef MUTATION_crash_forgets_the_bound
#ifdef LENGTHS
		bound = MAX(durable, setting);
		longer = bound;
#else
		bound = LEASE;
#endif
#endif
		bound_unset = 0
	   }
#endif
	:: atomic {
		word == OPEN && !bound_unset ->
		/* heartbeat: hello */
		keeper_same = 1;
		number = word_epoch;
		if
		:: address == 0 -> hello(0)
#if NP == 2
		:: address == 1 -> hello(1)
#endif
		fi;
		if
		:: identity != armed_identity || known != word_epoch -> goto unreachable
		:: else -> goto renewing
		fi
	   }
	:: atomic { word == ARMING -> change_word(CLOSED, word_epoch) }		/* the keeper was restarted */
#ifdef LENGTHS
	:: atomic { changes < LENGTHS -> changes++; setting = (setting == 1 -> LEASE : 1) }
	:: atomic { word == OPEN && !bound_unset && setting < durable && LONGER_OVER -> durable = setting }
#endif
#ifdef DISARM
	/* for whatever reason the epoch is given up; who is asked may be reached by another way than the address */
	:: atomic { word == CLOSED && bound > 0 && epoch_armed -> epoch_armed = 0 }
	:: atomic { word == CLOSED && bound > 0 && GIVEN_UP && R[0].up && IS_HOLDER(0) -> disarm_at(0) }
#if NP == 2
	:: atomic { word == CLOSED && bound > 0 && GIVEN_UP && R[1].up && IS_HOLDER(1) -> disarm_at(1) }
#endif
	:: atomic { word == CLOSED && bound > 0 && GIVEN_UP && holders == 0 -> bound = 0 }
#endif
	:: atomic {
		word == CLOSED && !bound_unset ->
		keeper_same = 1;
		if
		:: address == 0 -> hello(0)
#if NP == 2
		:: address == 1 -> hello(1)
#endif
		fi;
		goto opening
	   }
	:: false ->
unreachable:
		atomic {
			if
			:: keeper_same && word == OPEN -> change_word(CLOSED, word_epoch)
			:: else
			fi;
			goto forget
		}
renewing:
		RAISE_BOUND;
		atomic {
			if
			:: MAY_GRANT -> grant_at_address(0)
			:: else -> goto forget
			fi;
			if
			:: outcome == FAILED -> goto unreachable
			:: else -> goto forget
			fi
		}
opening:
		/* what follows uses the hello from before ARMING: renew itself refuses another process */
		atomic {
			if
			:: SAME_AND_NO_BYPASS == 0 && LEASES_OVER == 0 -> goto forget
			:: else
			fi;
			if
			:: keeper_same && word == CLOSED
			:: else -> goto forget
			fi;
			change_word(ARMING, word_epoch);
			keeper_same = 1
		}
#ifdef MUTATION_bypassed_is_cleared_too_early
		atomic {
			if
			:: SAME_AND_NO_BYPASS == 0 -> bypassed = 0; goto new_epoch
			:: else
			fi
		}
#endif
		atomic {
			if
			:: NOBODY_BYPASSES == 0 -> goto close_again
			:: else
			fi
		}
		atomic {
			if
			:: SAME_AND_NO_BYPASS -> number = word_epoch; goto granting_same
			:: else
			fi
		}
new_epoch:
		atomic {
			if
			:: NOBODY_COMMITS
			:: else -> goto close_again
			fi
		}
		atomic {
			if
			:: LEASES_OVER
			:: else -> goto close_again
			fi;
			number = MAX(last_epoch, known) + 1;
			if
			:: number > MAX_EPOCH -> goto close_again		/* the model's end, not the protocol's */
			:: else -> last_epoch = number
			fi
#ifdef DISARM
			;
			last_holders = 1 << identity;		/* in the same record; those before it are over */
			holders = 0
#endif
		}
		atomic {
			if
			:: keeper_same
			:: else -> goto forget
			fi;
			epoch_armed = 0;
		}
		atomic {
			if
			:: keeper_same
			:: else -> goto forget
			fi;
			change_word(ARMING, number);
			keeper_same = 1
		}
#if !defined(MUTATION_bypassed_is_cleared_too_early) && !defined(MUTATION_bypassed_is_cleared_after_opening)
		bypassed = 0;
#endif
		/* clocks are read anew; a process that was replaced meanwhile burns the epoch [c2] */
		atomic {
			known = identity;
			if
			:: address == 0 && R[0].up -> identity = R[0].identity; reading = SETTING
#if NP == 2
			:: address == 1 && R[1].up -> identity = R[1].identity; reading = SETTING
#endif
			:: true -> goto close_again
			fi;
			if
			:: known != identity -> goto close_again
			:: else
			fi
		}
		RAISE_BOUND;
		atomic {
			if
			:: MAY_GRANT -> grant_at_address(1)
			:: else -> goto forget
			fi;
			if
			:: outcome == FAILED -> epoch_armed = 0; goto close_again		/* burnt */
			:: else
			fi;
			goto granted
		}
granting_same:
		RAISE_BOUND;
		atomic {
			if
			:: MAY_GRANT -> grant_at_address(GRANT_AGAIN)
			:: else -> goto forget
			fi;
			if
			:: outcome == FAILED -> epoch_armed = 0; goto close_again
			:: else
			fi
		}
granted:
#ifdef MUTATION_holders_are_noted_too_late
		holders = holders | (1 << identity);
#endif
		armed_identity = identity;
		epoch_armed = 1;
		atomic {
			if
			:: keeper_same ->
				change_word(OPEN, number)
			:: else
			fi;
#ifdef MUTATION_bypassed_is_cleared_after_opening
			goto clearing
#else
			goto forget
#endif
		}
#ifdef MUTATION_bypassed_is_cleared_after_opening
clearing:
		atomic { bypassed = 0; goto forget }
#endif
close_again:
		atomic {
			if
			:: keeper_same -> change_word(CLOSED, word_epoch)
			:: else
			fi
		}
forget:
		atomic {
			outcome = 0;
			keeper_same = 0;
			identity = 0;
			known = 0;
			number = 0;
			reading = 0
		}
	od
	}
#ifdef CRASHES
	unless {
		atomic { keeper_killed -> keeper_killed = 0; outcome = 0; keeper_same = 0; identity = 0; known = 0; number = 0; reading = 0; goto start }
	}
#endif
}


/* A grant that nobody waits for any more arrives: until is absolute, so it is over when its reading is. */
proctype LateGrant()
{
end:
	do
	:: atomic {
		late_until > 0 ->
		if
		:: late_is_arm -> arm_at(0, late_number, late_identity, late_until)
		:: !late_is_arm -> renew_at(0, late_number, late_identity, late_until)
#if NP == 2
		:: late_is_arm -> arm_at(1, late_number, late_identity, late_until)
		:: !late_is_arm -> renew_at(1, late_number, late_identity, late_until)
#endif
		fi;
		outcome = 0;
		late_identity = 0;
		late_number = 0;
		late_until = 0;
		late_is_arm = 0
	   }
	od
}

#if NP == 2
#define ANY_LEASE (R[0].lease > 0 || R[1].lease > 0)
#else
#define ANY_LEASE (R[0].lease > 0)
#endif
#ifdef LENGTHS
#define LENGTHS_RUN || longer > 0
#else
#define LENGTHS_RUN
#endif
#define LESS(x) x = ((x) > 0 -> (x) - 1 : 0)

/* Time passes; and a node may find its lease over earlier (its clock is ahead, or it was told to disarm). */
proctype Clock()
{
end:
	do
	:: atomic {
		bound > 0 || ANY_LEASE || reading > 0 || late_until > 0 LENGTHS_RUN ->
		LESS(bound);
#ifdef LENGTHS
		LESS(longer);
#endif
		LESS(reading);
		LESS(late_until);
		if
		:: late_until == 0 -> late_identity = 0; late_number = 0; late_is_arm = 0
		:: else
		fi;
		LESS(R[0].lease);
#if NP == 2
		LESS(R[1].lease);
#endif
	   }
#ifdef EARLY_END
	:: atomic { R[0].lease > 0 -> R[0].lease = 0 }
#endif
	od
}
