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
#define AHEAD 2
#define FAILED 3

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
#ifndef VERSIONS_RESTART
	assert(version >= R[p].top);		/* a fence never lowers in one token */
	R[p].top = version;
#endif
}

inline drop_own(p, i)
{
	R[p].pend[i] = 0;
	R[p].pend_token[i] = 0;
	granted_now[i] = 0
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

/* reserve_one */
inline redis_reserve(p, i, observed, wanted)
{
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
	if
	:: version_now != 0 && wanted <= version_now -> outcome = AHEAD
	:: else ->
		R[p].pend[i] = (R[p].pend[i] > wanted -> R[p].pend[i] : wanted);
#ifdef WARM
		if
		:: R[p].pend_token[i] == 0 -> R[p].pend_token[i] = R[p].token	/* the gen of the first grant stays */
		:: else
		fi;
#else
		R[p].pend_token[i] = R[p].token;
#endif
#ifndef MUTATION_reserve_keeps_the_ticket
		if
		:: version_now == 0 && R[p].exists -> delete_fence(p)
		:: else
		fi;
#endif
		outcome = GRANTED
	fi;
	version_now = 0
}

inline redis_domain_reserve(p, i)
{
	R[p].dpend[i] = 1;
	outcome = GRANTED
}

/*
 * Proposed: a commit may give a version to a fence that has none, and store its value, under three conditions. Not in
 * the code yet.
 */
#ifdef MUTATION_warm_without_grant_number
#define SAME_GRANT(i) true
#else
#define SAME_GRANT(i) granted_now[i]
#endif
#ifdef MUTATION_warm_below_own_reservation
#define OWN_AT_MOST(p, i, version) true
#else
#define OWN_AT_MOST(p, i, version) (R[p].pend[i] <= version)
#endif
#ifdef MUTATION_warm_in_another_gen
#define FIRST_GEN(p, i) true
#else
#define FIRST_GEN(p, i) (R[p].pend_token[i] == R[p].token)
#endif

/* commit_one, for commit (version: the writer's; is_own) and settle (version: the row's) */
inline redis_commit(p, i, version, is_own)
{
	read_fence(p);
	scratch = (version_now > version -> version_now : version);
	if
#ifdef WARM
	:: is_own && version_now == 0 && R[p].pend[i] != 0 && SAME_GRANT(i) && OWN_AT_MOST(p, i, version) && FIRST_GEN(p, i) ->
		write_version(p, version);
		R[p].vtoken = R[p].token;
		R[p].vversion = version;
		R[p].vauthor = i + 1
	:: else ->
	if
#endif
	:: R[p].exists && (version_now == 0 || (R[p].pend[i] != 0 && R[p].pend_token[i] != R[p].token)) ->
		delete_fence(p)
	:: else ->
		if
		:: version_now != 0 -> write_version(p, scratch)
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

#define MAY_ANSWER(p) (R[p].up && R[p].epoch != 0 && R[p].lease > 0 && R[p].announced)

/* A hit is current at the very instant of the get: an instant that lies between the read's start and end. */
#define FRESH(p) (R[p].vauthor == author)

/* get; for a miss the reader holds token and ticket (0: none needed) afterwards, else token 0 */
inline redis_get(p, r)
{
	if
	:: !MAY_ANSWER(p) || PENDING(p)
	:: else ->
		read_fence(p);
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
