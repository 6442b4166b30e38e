/*
 * writer.pml - one transaction of one backend: trigger.c, transaction.c, coordinator.c.
 *
 * The connection leads to any process that is up: the backend may still hold one to an old master. What a process of
 * another epoch would refuse is left out.
 */

/* A change of the word. Callers have checked that they change the one they read. */
inline change_word(state, number)
{
	word = state;
	word_epoch = number;
	keeper_same = 0;
	each = 0;
	do
	:: each == NW -> break
	:: else ->
		same[each] = 0;
		ack_same[each] = 0;
		each++
	od;
	each = 0
}

/* fence_word_expire: expired leases are everybody's affair; arming_until may pass at any time */
inline expire_word()
{
#ifdef KEEPER
	if
	:: word == OPEN && !bound_unset && bound == 0 -> change_word(CLOSED, word_epoch)
	:: word == ARMING -> change_word(CLOSED, word_epoch)
	:: true
	fi
#else
	skip
#endif
}

#if !defined(MOVES) || defined(MUTATION_anybody_reserves)
#define HAS_SLOT(p) true
#else
#define HAS_SLOT(p) R[p].granted_slot
#endif
#define TAKES(p, e) (R[p].up && R[p].epoch == (e) && R[p].lease > 0 && HAS_SLOT(p))

#if NP == 2
#define NOBODY_TAKES(e) (!TAKES(0, e) && !TAKES(1, e))
#else
#define NOBODY_TAKES(e) (!TAKES(0, e))
#endif

inline reserve_at(p, i)
{
	if
	:: IS_BULK(i) -> redis_domain_reserve(p, i)
	:: else ->
		redis_reserve(p, i, observed, w[i]);
#ifdef STORES
		if
		:: outcome == GRANTED -> R[p].granted[i] = 1		/* the writer counts this answer, and its commit will name it */
		:: else
		fi
#endif
	fi
}

/* Sends reserve under an epoch. outcome: FAILED if no answer came, and then the message may arrive later. */
inline reserve(i, number)
{
	sent_epoch[i] = number;
	outcome = FAILED;
	if
	:: TAKES(0, number) -> reserve_at(0, i)
#if NP == 2
	:: TAKES(1, number) -> reserve_at(1, i)
#endif
#ifdef LATE
	:: true ->
		late_reserve[i] = 1;
		late_w[i] = w[i];
		late_observed[i] = observed;
		late_epoch[i] = number
#endif
#ifdef MOVES
	:: NOBODY_TAKES(number)
#endif
#ifdef KEEPER
#ifdef QUIET
	:: NOBODY_TAKES(number)
#else
	:: true
#endif
#endif
	fi;
#ifdef MUTATION_any_acknowledgement_counts
	if
	:: outcome == GRANTED && ack[i] == 0 -> ack[i] = w[i]; ack_same[i] = same[i]
	:: else
	fi
#else
	if
	:: outcome == GRANTED -> ack[i] = w[i]; ack_same[i] = same[i]
	:: else
	fi
#endif
}

#ifdef MUTATION_acknowledgements_survive_reopening
#define ACKNOWLEDGED(i) (ack[i] == w[i])
#else
#ifdef MUTATION_any_acknowledgement_counts
#define ACKNOWLEDGED(i) (ack[i] != 0 && ack_same[i])
#else
#define ACKNOWLEDGED(i) (ack[i] == w[i] && ack_same[i])
#endif
#endif

#ifdef MUTATION_no_look_after_the_marker
#define STILL(i) true
#else
#define STILL(i) same[i]
#endif

#ifdef MUTATION_bypass_without_waiting
#define BOUND_PASSED true
#else
#define BOUND_PASSED (!bound_unset && bound == 0)
#endif

#ifdef MUTATION_closed_is_closed
#define STILL_CLOSED(i) (word == CLOSED)
#else
#define STILL_CLOSED(i) same[i]
#endif

/* The version that a writer who has the row lock gives to the row; what it has observed. */
inline take_version(i)
{
	observed = row;
	w[i] = row + 1;
#ifdef TRUNCATES
	if
	:: IS_BULK(i) -> w[i] = 1			/* TRUNCATE and INSERT: nothing is kept of the versions there were */
	:: else
	fi
#endif
}

proctype Writer(byte i)
{
	byte observed;
	byte epoch;
	bit noted = 0;

	{
	atomic {
		locked == 0;
		locked = i + 1;
		fate[i] = RUNNING;
		take_version(i)
	}
early:
	/* BEFORE ROW: sent, not awaited */
	atomic {
		if
		:: true
#ifndef NO_EARLY
		:: word == OPEN ->
			same[i] = 1;
			reserve(i, word_epoch);
			outcome = 0
#endif
		fi;
#if !defined(KEEPER) && !defined(MOVES)
		same[i] = 1;
#endif
	}
#ifdef SAVEPOINTS
	atomic {
		if
		:: true
		:: w[i] < row + CHANGES ->
			/* another change of the row in the same transaction: its own version proves nothing [6d] */
#ifdef MUTATION_own_version_is_observed
			observed = w[i];
#else
			observed = 0;
#endif
			w[i] = w[i] + 1;
			goto early
		:: !noted ->
			/* ROLLBACK TO SAVEPOINT: the row lock is lost, what was sent stays sent; then the row is changed again */
			noted = 1;
			locked = 0;
			goto again
		fi
	}
	if
	:: false ->
again:	atomic {
			locked == 0;
			locked = i + 1;
			if
			:: row + 1 > w[i] -> take_version(i); goto early
			:: else -> w[i] = row + 1		/* not above what was wanted: nothing is sent before PRE_COMMIT */
			fi
		}
	:: true
	fi;
#endif
look:
	atomic {
		expire_word();
		epoch = word_epoch;
		same[i] = 1;
		if
		:: word == OPEN
		:: word == CLOSED -> goto closed
		:: word != OPEN -> same[i] = 0; goto look
#ifndef QUIET
		:: true -> goto aborting
#endif
		fi
	}
	atomic {
		if
		:: ACKNOWLEDGED(i)
		:: else ->
			reserve(i, epoch);
			if
			:: outcome == GRANTED -> outcome = 0
			:: outcome == FAILED ->
				outcome = 0;
#ifdef KEEPER
				if
				:: same[i] -> change_word(CLOSED, word_epoch)	/* a writer that fails closes for all */
				:: true
				fi;
#endif
				goto look
			fi
		fi
	}
	marker[i] = epoch;
	atomic {
		if
		:: STILL(i)
		:: !STILL(i) -> marker[i] = NO_MARKER; goto look
#ifndef QUIET
		:: true -> goto aborting
#endif
		fi;
		/* exact version: what is stored is what was reserved */
		assert(ack[i] == w[i]);
		goto commit
	}
closed:
#ifdef MOVES
	atomic { word == OPEN -> goto look }
#endif
#ifdef KEEPER
	atomic {
		if
		:: BOUND_PASSED
		:: else -> goto look
		fi;
		marker[i] = BYPASS;
#ifndef MUTATION_bypass_is_not_noted
		bypassed = 1;
#endif
	}
	atomic {
		if
		:: STILL_CLOSED(i) && BOUND_PASSED
		:: else -> marker[i] = NO_MARKER; goto look
		fi
	}
#endif
commit:
#ifdef PREPARES
	if
	:: true
	:: atomic { fate[i] = PREPARED; marker[i] = NO_MARKER; same[i] = 0; ack_same[i] = 0 };
		/* COMMIT PREPARED or ROLLBACK PREPARED, from anywhere and at any time: nobody tells Redis but the patrol */
		if
		:: fate[i] = LOGGED;
			atomic { fate[i] = COMMITTED; row = w[i]; author = i + 1; locked = 0; w[i] = 0; goto done }
		:: atomic { fate[i] = ABORTED; locked = 0; goto done }
		fi
	fi;
#endif
	fate[i] = LOGGED;
#ifdef MUTATION_marker_is_cleared_before_the_commit
	marker[i] = NO_MARKER;
#endif
	atomic { fate[i] = COMMITTED; row = w[i]; author = i + 1 }
	atomic {
		if
		:: sent_epoch[i] != 0 -> end_message[i] = COMMIT; end_epoch[i] = sent_epoch[i]
		:: else
		fi;
		goto done
	}
aborting:
	atomic {
		/* also a killed backend: then the message is one that never arrives */
		fate[i] = ABORTED;
		if
		:: sent_epoch[i] != 0 -> end_message[i] = ABORT; end_epoch[i] = sent_epoch[i]
		:: else
		fi
	}
done:
	atomic {
#ifdef IN_ORDER
		end_message[i] == NOTHING;		/* the courier: nobody's later message overtakes it, but it may be lost */
#endif
		marker[i] = NO_MARKER;
		same[i] = 0;
		ack_same[i] = 0;
		ack[i] = 0;
		if
		:: locked == i + 1 -> locked = 0
		:: else
		fi
	}
	}
#ifdef CRASHES
	unless { killed[i] }
#endif
}

/* commit or settle where the slot is not: only what the memory holds. */
inline end_away(p, i)
{
	poison(p);
#ifndef PENDING_POISONS
	drop_own(p, i)
#endif
}

#ifdef MOVES
#define COMMIT_AT(p, i, version, is_own) \
	if \
	:: FENCE_HERE(p) -> redis_commit(p, i, version, is_own) \
	:: else -> end_away(p, i) \
	fi
#else
#define COMMIT_AT(p, i, version, is_own) redis_commit(p, i, version, is_own)
#endif

/* Messages that arrive when nobody waits for them any more, in any order. */
#define KNOWS(p, e) (R[p].up && R[p].epoch == (e))

inline end_at(p, i)
{
	if
	:: end_message[i] == COMMIT && IS_BULK(i) -> redis_domain_commit(p, i)
	:: end_message[i] == COMMIT && !IS_BULK(i) -> COMMIT_AT(p, i, w[i], true)
	:: end_message[i] == ABORT && IS_BULK(i) -> R[p].dpend[i] = 0
	:: end_message[i] == ABORT && !IS_BULK(i) -> drop_own(p, i)
	fi
}

proctype Network(byte i)
{
end:
	do
#ifdef LATE
	:: atomic {
		late_reserve[i] ->
		outcome = FAILED;
		if
		:: TAKES(0, late_epoch[i]) ->
			if
			:: IS_BULK(i) -> redis_domain_reserve(0, i)
			:: else -> redis_reserve(0, i, late_observed[i], late_w[i])
			fi
#if NP == 2
		:: TAKES(1, late_epoch[i]) ->
			if
			:: IS_BULK(i) -> redis_domain_reserve(1, i)
			:: else -> redis_reserve(1, i, late_observed[i], late_w[i])
			fi
#endif
		:: true
		fi;
		late_reserve[i] = 0;
		late_w[i] = 0;
		late_observed[i] = 0;
		late_epoch[i] = 0;
		outcome = 0
	}
#endif
	:: atomic {
		end_message[i] != NOTHING ->
		if
		:: KNOWS(0, end_epoch[i]) -> end_at(0, i)
#if NP == 2
		:: KNOWS(1, end_epoch[i]) -> end_at(1, i)
#endif
		:: true			/* lost, or refused */
		fi;
		end_message[i] = NOTHING;
		end_epoch[i] = 0
	}
	od
}
