/*
 * switches.h
 *	  What a run of the model is made of, as NAME=NUMBER on its command line: the configuration, and the rules that are left out.
 *
 * SWITCH(name, default, what it is)
 */
#ifndef SWITCHES_H
#define SWITCHES_H

#define CONFIGURATION(SWITCH) \
	SWITCH(writers, 2, "transactions, each of which runs once") \
	SWITCH(readers, 1, "readers that fill the cache: they miss, read PostgreSQL, put") \
	SWITCH(fast_readers, 1, "readers that read the fence first and ask for the token afterwards; 0 or 1") \
	SWITCH(processes, 1, "Redis processes, at most") \
	SWITCH(keys, 1, "rows; with 2 a fast reader reads both with one MGET") \
	SWITCH(pipeline, 0, "a fast reader reads each row with a GET of its own, and asks for one token after the last") \
	SWITCH(lease, 1, "ticks that a lease lasts") \
	SWITCH(max_epoch, 2, "no epoch has a higher number") \
	SWITCH(ops0, 1, "what writer 0 may do: the sum of 1 UPDATE, 2 DELETE, 4 INSERT without a reservation, 8 bulk UPDATE, " \
		"16 INSERT with one, 32 bulk UPDATE that forgets its keys, 64 bulk UPDATE that holds buckets") \
	SWITCH(ops1, 1, "writer 1") \
	SWITCH(ops2, 1, "writer 2") \
	SWITCH(keys0, 1, "which rows writer 0 writes: 1 the first, 2 the second, 3 both") \
	SWITCH(keys1, 1, "writer 1") \
	SWITCH(keys2, 1, "writer 2") \
	SWITCH(row_absent, 0, "there is no row at first") \
	SWITCH(late, 0, "messages are delayed, lost, and arrive after others") \
	SWITCH(repeated, 0, "the message that ends a transaction arrives twice") \
	SWITCH(half, 0, "a reserve fails between the record and the DEL") \
	SWITCH(early, 0, "reservations are sent before PRE_COMMIT") \
	SWITCH(savepoints, 0, "a writer rolls back to a savepoint and goes on") \
	SWITCH(write_through, 0, "a commit brings the row") \
	SWITCH(eviction, 0, "Redis evicts fences") \
	SWITCH(forgetting, 0, "the library throws away what it remembers of ends, and who wrote last") \
	SWITCH(patrol, 0, "the patrol drops reservations whose transaction is over") \
	SWITCH(recent, 0, "the library remembers who committed a row last, for standbys") \
	SWITCH(keeper, 0, "leases, epochs, the word, bypass") \
	SWITCH(restarts, 0, "so often a Redis process loses its memory") \
	SWITCH(snapshot, 0, "a replica or a file has old keys, and they come back") \
	SWITCH(failovers, 0, "so often a replica is promoted beside its old master") \
	SWITCH(demotions, 0, "the old master becomes a replica by a partial resynchronisation, and keeps its memory; 0 or 1") \
	SWITCH(crashes, 0, "so often PostgreSQL crashes") \
	SWITCH(prepares, 0, "two-phase commit") \
	SWITCH(moves, 0, "so often the slot moves from one process to the other, in one epoch") \
	SWITCH(buckets, 0, "a permit to put is given only in open buckets, and who writes in a closed one reserves nothing; " \
		"so many, 0: none. Key k is in bucket k modulo that") \
	SWITCH(turns, 0, "so often the bits are cleared by a turn of the maps") \
	SWITCH(quiet, 0, "fewer aborts, and no refusal without a reason: fewer states") \
	SWITCH(limit, 60, "million states at most")

/* Each leaves one rule out. The rules are those of doc/protocol.md. */
#define RULES_LEFT_OUT(SWITCH) \
	SWITCH(reserve_no_del, 0, "reserve leaves the fence where it is") \
	SWITCH(repeated_reserve_no_del, 0, "reserve leaves it if the own reservation is recorded already") \
	SWITCH(reserve_any_epoch, 0, "reserve looks at no epoch") \
	SWITCH(reserve_any_slot, 0, "reserve is taken in a slot that was never granted") \
	SWITCH(one_ack_for_all, 0, "one acknowledgement is enough for several keys") \
	SWITCH(no_ack, 0, "PRE_COMMIT waits for no acknowledgement") \
	SWITCH(acks_survive, 0, "an acknowledgement counts under another word") \
	SWITCH(end_drops_all, 0, "an end drops the reservations of others too") \
	SWITCH(end_not_noted, 0, "what ends is not remembered") \
	SWITCH(commit_not_noted, 0, "the end of a committed one is not remembered") \
	SWITCH(abort_not_noted, 0, "the end of an aborted one is not remembered") \
	SWITCH(drop_not_noted, 0, "what the patrol drops is not remembered") \
	SWITCH(end_any_epoch, 0, "an end looks at no epoch") \
	SWITCH(end_before_visible, 0, "the end is sent before the commit is visible") \
	SWITCH(put_any_token, 0, "put takes any token") \
	SWITCH(put_any_since, 0, "put does not look at what has ended since") \
	SWITCH(put_while_pending, 0, "put looks at no reservation") \
	SWITCH(row_while_pending, 0, "a commit stores its row beside a reservation of somebody else") \
	SWITCH(row_any_since, 0, "a commit stores its row without a look at what has ended since") \
	SWITCH(row_of_late_reserve, 0, "a commit names the number of a reserve whose answer it did not count") \
	SWITCH(row_of_delete, 0, "a DELETE stores its row") \
	SWITCH(absence_cached, 0, "that there is no row is cached, though INSERT reserves nothing") \
	SWITCH(own_reads_fill, 0, "a transaction fills in a row that it has written itself") \
	SWITCH(snapshot_before_since, 0, "a reader takes its snapshot before it has token and number") \
	SWITCH(get_while_domain_pending, 0, "the slow read answers beside a domain reservation") \
	SWITCH(token_no_lease, 0, "fence_token does not look at the lease") \
	SWITCH(heartbeat_of_another, 0, "the key that says that the lease runs has no identity in its name") \
	SWITCH(token_while_domain_pending, 0, "fence_token answers beside a domain reservation") \
	SWITCH(token_no_slot, 0, "fence_token does not look at slots") \
	SWITCH(token_first, 0, "a fast reader asks for the token first") \
	SWITCH(client_moves, 0, "a fast reader asks another process for the token") \
	SWITCH(replica_get, 0, "a fast reader reads the fence from a replica") \
	SWITCH(split_get, 0, "a fast reader reads two fences one after the other") \
	SWITCH(domain_commit_keeps_token, 0, "the end of a domain reservation keeps the token") \
	SWITCH(drop_of_domain_keeps_token, 0, "the patrol drops a domain reservation and keeps the token") \
	SWITCH(token_at_reserve, 0, "a domain reservation draws the token when it is made, not when it ends") \
	SWITCH(new_token_keeps_proofs, 0, "a new token of the domain leaves what was acknowledged before it") \
	SWITCH(token_is_epoch, 0, "the token is the number of the epoch") \
	SWITCH(new_epoch_keeps_token, 0, "a new epoch keeps the token") \
	SWITCH(token_survives_restart, 0, "a process that lost its memory has its token") \
	SWITCH(one_token_for_all, 0, "all processes have one token") \
	SWITCH(recent_no_proof, 0, "who committed last is remembered without the proof") \
	SWITCH(recent_of_deletes, 0, "of a DELETE too") \
	SWITCH(recent_outlives_reserve, 0, "reserve does not forget it") \
	SWITCH(recent_outlives_token, 0, "a new token does not forget it") \
	SWITCH(patrol_log_alone, 0, "the patrol goes by the commit log, which knows of commits that are not visible") \
	SWITCH(patrol_ignores_prepared, 0, "the patrol drops what is prepared") \
	SWITCH(patrol_timeout, 0, "the patrol drops what is old") \
	SWITCH(patrol_drops_committed_only, 0, "the patrol leaves what was aborted") \
	SWITCH(patrol_drops_nothing, 0, "there is no patrol") \
	SWITCH(no_marker_look, 0, "no look at the word after the marker is set") \
	SWITCH(bypass_no_wait, 0, "bypass does not wait for the bound") \
	SWITCH(bypass_not_noted, 0, "bypass is not noted") \
	SWITCH(same_epoch_after_bypass, 0, "the epoch goes on after a bypass") \
	SWITCH(opens_beside_bypass, 0, "fences open beside somebody who bypasses") \
	SWITCH(new_epoch_beside_commit, 0, "a new epoch begins beside somebody who commits in the old one") \
	SWITCH(new_epoch_no_wait, 0, "a new epoch does not wait for the bound") \
	SWITCH(same_epoch_any_process, 0, "the epoch goes on with another process") \
	SWITCH(renew_anybody, 0, "a renewal arms whoever gets it") \
	SWITCH(bound_not_raised, 0, "a lease is granted before the bound is raised") \
	SWITCH(renew_while_closed, 0, "leases are renewed while CLOSED") \
	SWITCH(crash_forgets_bound, 0, "a crash forgets the bound") \
	SWITCH(epoch_survives_crash, 0, "the epoch goes on after a crash") \
	SWITCH(prepared_not_carried, 0, "what is prepared is not reserved in a new epoch") \
	SWITCH(arm_again_wipes, 0, "arming in the same epoch forgets the reservations") \
	SWITCH(lost_not_noted, 0, "a slot that was found elsewhere is not noted as lost") \
	SWITCH(slot_keeps_token, 0, "a process that is given a slot again keeps its token") \
	SWITCH(move_beside_commit, 0, "a slot changes hands beside somebody who commits") \
	SWITCH(widen_first, 0, "the new owner is told before the old one") \
	SWITCH(put_in_closed, 0, "put does not look whether the bucket is open") \
	SWITCH(put_before_opening, 0, "put takes a permit that is older than the opening of the bucket") \
	SWITCH(row_in_closed, 0, "a commit stores its row in a closed bucket") \
	SWITCH(row_before_opening, 0, "a commit stores its row by a reservation that is older than the opening of the bucket") \
	SWITCH(recent_in_closed, 0, "who committed last is told in a closed bucket") \
	SWITCH(recent_before_opening, 0, "who committed last before the bucket opened is told") \
	SWITCH(bit_after_opening, 0, "the bucket opens in Redis before its bit is set") \
	SWITCH(open_no_wait, 0, "the bucket opens beside somebody who may have looked before its bit was set") \
	SWITCH(open_when_logged, 0, "the courier waits only until such a transaction is in the commit log") \
	SWITCH(no_second_look, 0, "no look at the bits after the marker is set") \
	SWITCH(prepare_by_bits, 0, "PREPARE goes by the bits") \
	SWITCH(open_any_epoch, 0, "an opening names no epoch") \
	SWITCH(open_any_turn, 0, "an opening names no turn") \
	SWITCH(open_survives_epoch, 0, "arming in a new epoch leaves the buckets open") \
	SWITCH(bits_cleared_early, 0, "the bits are cleared before the new epoch is OPEN") \
	SWITCH(crash_clears_bits, 0, "after a crash the bits count as clear") \
	SWITCH(forget_before_answer, 0, "a map is forgotten before Redis has closed its buckets") \
	SWITCH(forget_before_expiry, 0, "a map is forgotten before what was stored under it has run out") \
	SWITCH(slot_keeps_buckets, 0, "a process that is given a slot keeps its buckets open") \
	SWITCH(look_before_hold, 0, "a bulk UPDATE looks at the bits before it holds the buckets") \
	SWITCH(open_beside_hold, 0, "the courier opens a bucket that is held") \
	SWITCH(hold_ends_early, 0, "a bulk UPDATE lets go before its commit is visible") \
	SWITCH(waits_for_few, 0, "the courier waits only for transactions that have not reserved all that they write") \
	SWITCH(skips_beside_commit, 0, "the keeper does not wait for markers of transactions that have reserved nothing")

#define DECLARE_SWITCH(name, value, what) extern int name;
CONFIGURATION(DECLARE_SWITCH)
RULES_LEFT_OUT(DECLARE_SWITCH)
#undef DECLARE_SWITCH

#endif
