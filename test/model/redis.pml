/*
 * redis.pml - the functions of src/redis/fence.lua, each one atomic step. p: the process, i: the stamp's writer.
 *
 * Callers are inside atomic and have checked what in_epoch and may_answer check. scratch: a token or ticket being drawn.
 */
byte scratch;
byte version_now;		/* result of read_fence */
byte each;
byte outcome;

#define GRANTED 1
#define FAILED 2

#define ROW_TOKEN(p, i, t) (R[p].pend_token[i] == t)
#if NW == 1
#define ANY_W(what) (what(0))
#elif NW == 2
#define ANY_W(what) (what(0) || what(1))
#elif NW == 3
#define ANY_W(what) (what(0) || what(1) || what(2))
#else
#define ANY_W(what) (what(0) || what(1) || what(2) || what(3))
#endif

#define PENDS0(i) (R[0].pend[i] != 0 || R[0].dpend[i])
#define HAS_TOKEN0(i) (R[0].pend_token[i] == scratch)
#define KEY_TOKEN(p) (R[p].token == scratch || R[p].ftoken == scratch || R[p].vtoken == scratch)
#if NP == 2
#define PENDS1(i) (R[1].pend[i] != 0 || R[1].dpend[i])
#define HAS_TOKEN1(i) (R[1].pend_token[i] == scratch)
#define PENDING(p) ((p) == 0 && ANY_W(PENDS0) || (p) == 1 && ANY_W(PENDS1))
#define PROCESS_TOKEN (KEY_TOKEN(0) || ANY_W(HAS_TOKEN0) || KEY_TOKEN(1) || ANY_W(HAS_TOKEN1))
#define PROCESS_TICKET (R[0].ticket == scratch || R[1].ticket == scratch)
#else
#define PENDING(p) ANY_W(PENDS0)
#define PROCESS_TOKEN (KEY_TOKEN(0) || ANY_W(HAS_TOKEN0))
#define PROCESS_TICKET (R[0].ticket == scratch)
#endif
#if NR == 2
#define READER_TOKEN (r_token[0] == scratch || r_token[1] == scratch)
#define READER_TICKET (r_ticket[0] == scratch || r_ticket[1] == scratch)
#else
#define READER_TOKEN (r_token[0] == scratch)
#define READER_TICKET (r_ticket[0] == scratch)
#endif
#ifdef SNAPSHOT
#define SAVED_TOKEN (saved.ftoken == scratch || saved.vtoken == scratch)
#define SAVED_TICKET (saved.ticket == scratch)
#else
#define SAVED_TOKEN false
#define SAVED_TICKET false
#endif

inline draw_token()
{
	scratch = 1;
	do
	:: PROCESS_TOKEN || READER_TOKEN || SAVED_TOKEN -> scratch++
	:: else -> break
	od
}

/* new_gen */
inline new_gen(p)
{
	draw_token();
	R[p].token = scratch;
	R[p].top = 0;
	scratch = 0
}

inline delete_fence(p)
{
	R[p].exists = 0;
	R[p].ftoken = 0;
	R[p].v = 0;
	R[p].ticket = 0
}

inline read_fence(p)
{
	version_now = (R[p].exists && R[p].ftoken == R[p].token -> R[p].v : 0)
}

inline write_version(p, version)
{
	R[p].exists = 1;
	R[p].ftoken = R[p].token;
	R[p].v = version;
	R[p].ticket = 0;
#if !defined(VERSIONS_RESTART) && !defined(MOVES) && !defined(LIES)
#ifdef WARM
	/* lower than a version that is lost by now only while the writer of that one is pending: see redis_get */
	R[p].top = (version > R[p].top -> version : R[p].top);
#else
	assert(version >= R[p].top);		/* a fence never lowers in one token */
	R[p].top = version;
#endif
#endif
}

inline drop_own(p, i)
{
	R[p].pend[i] = 0;
	R[p].pend_token[i] = 0;
	R[p].over[i] = 0;
	R[p].granted[i] = 0
}

/* A former rule: every reservation at or below the version goes as well. Versions that restart make it wrong. */
inline drop_up_to(p, version)
{
#ifndef DROP_SUPERSEDED
	skip
#else
	each = 0;
	do
	:: each == NW -> break
	:: else ->
		if
		:: R[p].pend[each] != 0 && R[p].pend[each] <= version -> drop_own(p, each)
		:: else
		fi;
		each++
	od;
	each = 0
#endif
}

#ifdef MOVES
/*
 * Whether the node carries out a command on the keys. Migrating: only if it has them all; importing, only if the other has
 * none (which is what the client was told there).
 */
#define KEYS_HERE(p, has, other_has_not) ((R[p].serves && (leaving != (p) + 1 || (has))) || \
										  (!R[p].serves && leaving == 2 - (p) && (other_has_not)))
#ifdef LOST_BY_RESERVE
#define FENCE_HERE(p) (R[p].granted_slot && !R[p].poisoned && KEYS_HERE(p, R[p].exists, !R[1 - (p)].exists))
#else
#define FENCE_HERE(p) KEYS_HERE(p, R[p].exists, !R[1 - (p)].exists)
#endif

/*
 * A commit finds the slot away, so the fence does not hear of it: what Redis says of the slot is not trusted when it comes
 * back (PENDING_POISONS: the reservation stays instead).
 */
inline poison(p)
{
#if !defined(MUTATION_slot_is_not_poisoned) && !defined(PENDING_POISONS)
	R[p].poisoned = R[p].granted_slot
#else
	skip
#endif
}
#endif

inline record(p, i, wanted)
{
	R[p].pend[i] = (R[p].pend[i] > wanted -> R[p].pend[i] : wanted);
#ifdef STORES
	/* another letter, another number; or the former one stays (either is right), but never under another gen */
	if
	:: R[p].granted[i] -> R[p].granted[i] = 0
#ifdef MUTATION_grant_number_outlives_the_gen
	:: R[p].granted[i]
#else
	:: R[p].granted[i] && R[p].pend_token[i] == R[p].token
#endif
	:: else
	fi;
#endif
	R[p].pend_token[i] = R[p].token;
	outcome = GRANTED
}

/* reserve_one */
inline redis_reserve(p, i, observed, wanted)
{
#ifdef MOVES
	if
#ifdef LOST_BY_RESERVE
	:: !FENCE_HERE(p) -> poison(p); outcome = GRANTED
#else
	:: !FENCE_HERE(p) -> record(p, i, wanted)		/* in memory only */
#endif
	:: else ->
#endif
	read_fence(p);
	if
	:: observed != 0 ->
		if
#ifndef MUTATION_reserve_drops_what_it_did_not_raise
		:: version_now != 0 && version_now < observed ->
			write_version(p, observed);
			version_now = observed
#endif
#ifdef MUTATION_reserve_creates_a_version
		:: version_now == 0 ->
			write_version(p, observed);
			version_now = observed
#endif
		:: else
		fi;
		drop_up_to(p, observed)
	:: else
	fi;
	record(p, i, wanted);
	R[p].over[i] = (version_now != 0 && wanted <= version_now);
#ifndef MUTATION_reserve_keeps_the_ticket
	if
	:: version_now == 0 && R[p].exists -> delete_fence(p)
	:: else
	fi;
#endif
#ifdef LIES
	lies_seen[i] = lies;
#endif
#ifdef MOVES
	fi;
#endif
	version_now = 0
}

inline redis_domain_reserve(p, i)
{
	R[p].dpend[i] = 1;
	outcome = GRANTED
}

/*
 * Write-through: a commit stores its value (STORES), and gives a version to a fence that has none (WARM), if its own
 * reservation is there, under the current gen, with the grant number of the reply that the writer counted. A number is
 * void as soon as somebody else's commit of that row has arrived: then a newer version may have come and gone.
 */
#ifdef MUTATION_stores_without_a_reservation
#define OWN_PENDS(p, i) true
#else
#define OWN_PENDS(p, i) (R[p].pend[i] != 0)
#endif
#ifdef MUTATION_stores_without_grant_number
#define SAME_GRANT(p, i) true
#else
#define SAME_GRANT(p, i) R[p].granted[i]
#endif
#ifdef MUTATION_stores_in_another_gen
#define SAME_GEN(p, i) true
#else
#define SAME_GEN(p, i) (R[p].pend_token[i] == R[p].token)
#endif
#define PROVES(p, i) (is_own && OWN_PENDS(p, i) && SAME_GRANT(p, i) && SAME_GEN(p, i))

inline store_own(p, i, version)
{
	R[p].vtoken = R[p].token;
	R[p].vversion = version;
	R[p].vauthor = i + 1
}

inline void_others(p, i)
{
#if !defined(STORES) || defined(MUTATION_warms_after_anothers_commit)
	skip
#else
	each = 0;
	do
	:: each == NW -> break
	:: else ->
		if
		:: each != i -> R[p].granted[each] = 0
		:: else
		fi;
		each++
	od;
	each = 0
#endif
}

/* commit_one, for commit (version: the writer's; is_own) and settle (version: the row's) */
inline redis_commit(p, i, version, is_own)
{
	read_fence(p);
#ifndef MUTATION_commit_keeps_what_was_ahead
	/* a fence that was not below what is written counts as one that was evicted just now */
	version_now = (R[p].over[i] -> 0 : version_now);
#endif
#ifdef LIES
	lies_ended = (R[p].pend[i] != 0 && lies_seen[i] > lies_ended -> lies_seen[i] : lies_ended);
#endif
	scratch = (version_now > version -> version_now : version);
	if
#ifdef WARM
	:: version_now == 0 && PROVES(p, i) ->
		write_version(p, version);
		store_own(p, i, version)
	:: else ->
	if
#endif
	:: R[p].exists && (version_now == 0 || (R[p].pend[i] != 0 && R[p].pend_token[i] != R[p].token)) ->
		delete_fence(p)
	:: else ->
		if
		:: version_now != 0 ->
			write_version(p, scratch);
#ifdef STORES
			if
			:: PROVES(p, i) && scratch == version -> store_own(p, i, version)
			:: else
			fi
#endif
#ifdef MUTATION_commit_creates_a_missing_fence
		:: version_now == 0 && !R[p].exists -> write_version(p, scratch)
#endif
		:: else
		fi
	fi
#ifdef WARM
	fi
#endif
	;
	void_others(p, i);
	drop_own(p, i);
	drop_up_to(p, scratch);
	scratch = 0;
	version_now = 0
}

inline redis_domain_commit(p, i)
{
#ifdef MUTATION_gen_is_the_stamp
	if
	:: R[p].dpend[i] ->
		R[p].token = 100 + i;
		R[p].top = 0;
		R[p].dpend[i] = 0
	:: else
	fi
#else
	if
	:: R[p].dpend[i] ->
		new_gen(p);
		R[p].dpend[i] = 0;
#ifdef MUTATION_bulk_commit_wipes_reservations
		drop_up_to(p, 254);
#endif
	:: else
	fi
#endif
}

#ifdef MOVES
#define READABLE(p) (KEYS_HERE(p, R[p].exists && R[p].vtoken != 0, !R[1 - (p)].exists && R[1 - (p)].vtoken == 0) && \
					 R[p].granted_slot && !R[p].poisoned && !R[p].silent)
#else
#define READABLE(p) true
#endif
#define MAY_ANSWER(p) (R[p].up && R[p].epoch != 0 && R[p].lease > 0 && R[p].announced && READABLE(p))

/* A hit is current at the very instant of the get: an instant that lies between the read's start and end. */
#ifdef LIES
#define FRESH(p) (R[p].vauthor == author || (R[p].vauthor == LIAR && lies > lies_ended))
#else
#define FRESH(p) (R[p].vauthor == author)
#endif

/* get; for a miss the reader holds token and ticket (0: none needed) afterwards, else token 0 */
inline redis_get(p, r)
{
	if
	:: !MAY_ANSWER(p) || PENDING(p)
	:: else ->
		read_fence(p);
#if !defined(VERSIONS_RESTART) && !defined(MOVES) && !defined(LIES)
		assert(version_now == 0 || version_now >= R[p].top);		/* nor does a reader see one that has */
#endif
		if
		:: version_now != 0 && R[p].vtoken == R[p].token && R[p].vversion == version_now ->
			assert(FRESH(p))
		:: version_now != 0 && !(R[p].vtoken == R[p].token && R[p].vversion == version_now) ->
			r_token[r] = R[p].token
		:: version_now == 0 ->
			if
			:: R[p].exists && R[p].ftoken == R[p].token
			:: else ->
				scratch = 1;
				do
				:: PROCESS_TICKET || READER_TICKET || SAVED_TICKET -> scratch++
				:: else -> break
				od;
				R[p].exists = 1;
				R[p].ftoken = R[p].token;
				R[p].v = 0;
				R[p].ticket = scratch;
				scratch = 0
			fi;
			r_token[r] = R[p].token;
			r_ticket[r] = R[p].ticket
		fi;
		version_now = 0
	fi
}

#ifdef MUTATION_put_needs_no_current_token
#define TOKEN_RIGHT(p, r) true
#else
#define TOKEN_RIGHT(p, r) (r_token[r] == R[p].token)
#endif
#ifdef MUTATION_seed_without_a_ticket
#define TICKET_RIGHT(p, r) true
#else
#ifdef MUTATION_ticket_of_an_older_gen
#define TICKET_RIGHT(p, r) (R[p].exists && R[p].v == 0 && R[p].ticket == r_ticket[r] && r_ticket[r] != 0)
#else
#define TICKET_RIGHT(p, r) (R[p].exists && R[p].ftoken == R[p].token && R[p].ticket == r_ticket[r] && r_ticket[r] != 0)
#endif
#endif

inline redis_put(p, r, version, by)
{
	read_fence(p);
	if
	:: MAY_ANSWER(p) && TOKEN_RIGHT(p, r) && (version_now != 0 -> version >= version_now : TICKET_RIGHT(p, r)) ->
		R[p].vtoken = R[p].token;
		R[p].vversion = version;
		R[p].vauthor = by;
		write_version(p, version);
		drop_up_to(p, version)
	:: else
#ifdef MUTATION_put_lowers_the_fence
		if
		:: MAY_ANSWER(p) && TOKEN_RIGHT(p, r) && version_now > version ->
			R[p].vtoken = R[p].token;
			R[p].vversion = version;
			R[p].vauthor = by;
			R[p].v = version
		:: else
		fi
#endif
	fi;
	version_now = 0
}
