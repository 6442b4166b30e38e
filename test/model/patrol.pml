/*
 * patrol.pml - settling: the fate of the stamp [8], then the message, which goes to the process that listed the reservation. Rows
 * are not read: what was committed makes the fence go. Audit: a fence that differs from its row, with nothing pending.
 */
#ifdef MUTATION_fate_from_the_log_alone
#define IN_PROGRESS(i) (fate[i] == RUNNING || fate[i] == PREPARED)
#else
#ifdef MUTATION_prepared_is_not_asked
#define IN_PROGRESS(i) (fate[i] == RUNNING || fate[i] == LOGGED)
#else
#define IN_PROGRESS(i) (fate[i] == RUNNING || fate[i] == LOGGED || fate[i] == PREPARED)
#endif
#endif

#define LISTED(p, i) (R[p].up && R[p].epoch != 0 && (R[p].pend[i] != 0 || R[p].dpend[i]))

#define SETTLE(p, i) delete_fence(p); void_others(p, i); drop_own(p, i)
#ifdef MOVES
#define SETTLE_AT(p, i) \
	if \
	:: FENCE_HERE(p) -> SETTLE(p, i) \
	:: else -> end_away(p, i) \
	fi
#else
#define SETTLE_AT(p, i) SETTLE(p, i)
#endif

inline settle_at(p)
{
	if
	:: !R[p].up || R[p].epoch != epoch
	:: else ->
		if
		:: found == COMMITTED && R[p].dpend[i] -> redis_domain_commit(p, i)
#ifdef MUTATION_settling_keeps_the_fence
		:: found == COMMITTED && !R[p].dpend[i] -> void_others(p, i); drop_own(p, i)
#else
		:: found == COMMITTED && !R[p].dpend[i] -> SETTLE_AT(p, i)
#endif
		:: found == ABORTED && R[p].dpend[i] -> R[p].dpend[i] = 0
		:: found == ABORTED && !R[p].dpend[i] -> drop_own(p, i)
		fi
	fi
}

inline list_and_ask(p, n)
{
	i = n;
	at = p;
	epoch = R[p].epoch;
#ifdef MUTATION_settle_by_timeout
	found = (fate[i] == COMMITTED -> COMMITTED : ABORTED);
#else
	if
	:: IN_PROGRESS(i) -> goto next
	:: else -> found = (fate[i] == ABORTED -> ABORTED : COMMITTED)
	fi;
#endif
	goto settling
}

proctype Patrol()
{
	byte i;
	byte at;
	byte epoch;
	byte found;

end:
	do
	:: atomic { LISTED(0, 0) -> list_and_ask(0, 0) }
#if NW > 1
	:: atomic { LISTED(0, 1) -> list_and_ask(0, 1) }
#endif
#if NW > 2
	:: atomic { LISTED(0, 2) -> list_and_ask(0, 2) }
#endif
#if NP == 2
	:: atomic { LISTED(1, 0) -> list_and_ask(1, 0) }
#if NW > 1
	:: atomic { LISTED(1, 1) -> list_and_ask(1, 1) }
#endif
#endif
	:: false ->
settling:
		atomic {
#if NP == 2
			if
			:: at == 0 -> settle_at(0)
			:: else -> settle_at(1)
			fi;
#else
			settle_at(0);
#endif
next:
			i = 0;
			at = 0;
			epoch = 0;
			found = 0
		}
	od
}

#ifdef AUDIT
/* repair: reads the row, then the fence, then changes the fence if it is still the one seen */
proctype Audit()
{
	byte version;
	byte seen;

end:
	do
	:: atomic {
		R[0].up && R[0].epoch != 0 ->
		read_fence(0);
		seen = version_now;
		version_now = 0;
		if
		:: seen == 0 || PENDING(0) -> seen = 0; goto end
		:: else
		fi
	   }
	   version = row;
	   atomic {
		read_fence(0);
		if
		:: version_now == 0 || PENDING(0)
		:: version_now != 0 && !PENDING(0) && version != 0 && version_now < version -> write_version(0, version)
		:: version_now != 0 && !PENDING(0) && version_now == seen && (version == 0 || version < version_now) -> delete_fence(0)
		:: else
		fi;
		version_now = 0;
		version = 0;
		seen = 0
	   }
	od
}
#endif
