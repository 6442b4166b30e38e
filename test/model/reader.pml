/*
 * reader.pml - get; on a miss PostgreSQL is read with a snapshot taken afterwards; then put, however late.
 */
proctype Reader(byte r)
{
	byte p;
	byte version;
	byte by;

end:
	do
	:: atomic {
#if NP == 2
		if
		:: p = 0
		:: p = 1
		fi;
#endif
		redis_get(p, r);
		if
		:: r_token[r] == 0 -> p = 0
		:: else
#ifdef MUTATION_snapshot_before_get
			if
			:: version == 0 -> r_token[r] = 0; r_ticket[r] = 0; version = row; by = author
			:: else -> goto putting
			fi
#else
			goto reading
#endif
		fi
	  }
	:: false ->
reading:
		atomic {
			version = row;
			by = author;
			if
			:: version == 0 -> goto forget		/* neither row nor tombstone: nothing to put */
			:: else
			fi
		}
putting:
		atomic {
			redis_put(p, r, version, by);
forget:
			r_token[r] = 0;
			r_ticket[r] = 0;
			version = 0;
			by = 0;
			p = 0
		}
	od
}

#ifdef EVICTION
/* Any key may vanish at any time: eviction, FLUSHALL. */
active proctype Eviction()
{
end:
	do
	:: atomic { R[0].exists -> delete_fence(0) }
	:: atomic { R[0].vtoken != 0 -> R[0].vtoken = 0; R[0].vversion = 0; R[0].vauthor = 0 }
#ifdef MOVES
	:: atomic { R[1].exists -> delete_fence(1) }
	:: atomic { R[1].vtoken != 0 -> R[1].vtoken = 0; R[1].vversion = 0; R[1].vauthor = 0 }
#endif
	od
}
#endif

#ifdef LIES
/* Somebody who may put, or SET keys of the namespace, vouches for a version and a value of his own. */
active proctype Liar()
{
end:
	do
	:: atomic {
		R[0].up && lies < LIES ->
		lies++;
		write_version(0, LIE);
		R[0].vtoken = R[0].token;
		R[0].vversion = LIE;
		R[0].vauthor = LIAR
	   }
	od
}
#endif
