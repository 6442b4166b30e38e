/*
 * switches.h
 *	  The switches of a run of the model, given as NAME=NUMBER on the command line: its configuration, and the rules to leave out.
 *
 * SWITCH(name, default, what it is)
 */
#ifndef SWITCHES_H
#define SWITCHES_H

#define CONFIGURATION(SWITCH) \
	SWITCH(writers, 2, "transactions, each of which runs once") \
	SWITCH(readers, 1, "readers that fill the cache: they miss, read PostgreSQL, put") \
	SWITCH(fast_readers, 1, "readers that read the fence first and ask for the token afterwards; 0 or 1") \
	SWITCH(processes, 1, "maximum number of Redis processes") \
	SWITCH(keys, 1, "rows; with 2 a fast reader reads both with one MGET") \
	SWITCH(pipeline, 0, "a fast reader reads each row with a GET of its own, and asks for one token after the last") \
	SWITCH(lease, 1, "ticks that a lease lasts") \
	SWITCH(max_epoch, 2, "the highest number of an epoch") \
	SWITCH(ops0, 1, "what writer 0 may do: the sum of 1 UPDATE, 2 DELETE, 4 INSERT without a reservation, 8 bulk UPDATE, " \
		"16 INSERT with one, 32 bulk UPDATE that forgets its keys, 64 bulk UPDATE that holds buckets") \
	SWITCH(ops1, 1, "writer 1") \
	SWITCH(ops2, 1, "writer 2") \
	SWITCH(keys0, 1, "which rows writer 0 writes: 1 the first, 2 the second, 3 both") \
	SWITCH(keys1, 1, "writer 1") \
	SWITCH(keys2, 1, "writer 2") \
	SWITCH(row_absent, 0, "there is no row at the start") \
	SWITCH(late, 0, "messages are delayed or lost, or arrive after later ones") \
	SWITCH(repeated, 0, "the message that ends a transaction arrives twice") \
	SWITCH(half, 0, "a reserve fails between the record and the DEL") \
	SWITCH(early, 0, "reservations are sent before PRE_COMMIT") \
	SWITCH(savepoints, 0, "a writer rolls back to a savepoint and goes on") \
	SWITCH(write_through, 0, "a commit stores the row in the cache") \
	SWITCH(eviction, 0, "Redis evicts fences") \
	SWITCH(forgetting, 0, "the library forgets the numbers of ends, and which transaction committed a row last") \
	SWITCH(patrol, 0, "the patrol drops reservations whose transaction is over") \
	SWITCH(recent, 0, "the library remembers which transaction committed a row last, for standbys") \
	SWITCH(keeper, 0, "leases, epochs, the word, bypass") \
	SWITCH(restarts, 0, "how often a Redis process loses its memory") \
	SWITCH(snapshot, 0, "a replica or an RDB file has old keys, which come back") \
	SWITCH(failovers, 0, "how often a replica is promoted while its old master lives on") \
	SWITCH(demotions, 0, "whether the old master may become a replica by a partial resynchronisation and keep its memory; 0 or 1") \
	SWITCH(crashes, 0, "how often PostgreSQL crashes") \
	SWITCH(clean_restarts, 0, "how often PostgreSQL is shut down cleanly and started again") \
	SWITCH(copies, 0, "a cold copy of the data directory may be started in the place of the server; 0 or 1") \
	SWITCH(others, 0, "while the server is down, a session without the library may write; 0 or 1") \
	SWITCH(prepares, 0, "two-phase commit") \
	SWITCH(moves, 0, "how often the slot moves from one process to the other, in one epoch") \
	SWITCH(buckets, 0, "a permit to put is given only in open buckets, and who writes in a closed one reserves nothing; " \
		"the number of buckets; 0: none. Key k is in bucket k modulo that") \
	SWITCH(turns, 0, "how often a turn of the maps clears the bits") \
	SWITCH(standby, 0, "reader 0 reads on a standby, which replays commits later; it is told by marks, or who committed last") \
	SWITCH(deposed, 0, "whether another server may be promoted beside the primary, which lives on and is read; 0 or 1") \
	SWITCH(bypass, 1, "0: writers do not bypass; they wait until fences are OPEN") \
	SWITCH(quiet, 0, "fewer aborts, and no refusal without a reason, so that there are fewer states") \
	SWITCH(limit, 60, "maximum number of states, in millions")

/* Each switch leaves out one rule of doc/protocol.md. */
#define RULES_LEFT_OUT(SWITCH) \
	SWITCH(reserve_no_del, 0, "reserve does not delete the fence") \
	SWITCH(repeated_reserve_no_del, 0, "reserve does not delete the fence if this transaction has reserved it already") \
	SWITCH(reserve_any_epoch, 0, "reserve does not check the epoch") \
	SWITCH(reserve_any_slot, 0, "a process accepts reserve in a slot that it was never granted") \
	SWITCH(one_ack_for_all, 0, "one acknowledgement is enough for several keys") \
	SWITCH(no_ack, 0, "PRE_COMMIT waits for no acknowledgement") \
	SWITCH(acks_survive, 0, "an acknowledgement still counts after the word has changed") \
	SWITCH(end_drops_all, 0, "an end drops the reservations of other transactions too") \
	SWITCH(end_not_noted, 0, "the library does not remember ends of reservations") \
	SWITCH(commit_not_noted, 0, "the library does not remember ends of committed transactions") \
	SWITCH(abort_not_noted, 0, "the library does not remember ends of aborted transactions") \
	SWITCH(drop_not_noted, 0, "the library does not remember that the patrol has dropped a reservation") \
	SWITCH(end_any_epoch, 0, "an end does not check the epoch") \
	SWITCH(end_before_visible, 0, "the end is sent before the commit is visible") \
	SWITCH(put_any_token, 0, "put does not check the token") \
	SWITCH(put_any_since, 0, "put does not check whether a reservation has ended since the permit") \
	SWITCH(put_no_lease, 0, "put does not check the lease") \
	SWITCH(put_while_pending, 0, "put does not check whether the row is reserved") \
	SWITCH(row_while_pending, 0, "a commit stores its row although another transaction has reserved it") \
	SWITCH(row_any_since, 0, "a commit stores its row although a reservation may have ended since its own") \
	SWITCH(row_of_late_reserve, 0, "a commit names the number of a reserve whose answer it did not count") \
	SWITCH(row_of_delete, 0, "a DELETE stores its row") \
	SWITCH(absence_cached, 0, "the absence of a row is cached, although INSERT reserves nothing") \
	SWITCH(own_reads_fill, 0, "a transaction puts a row that it has written itself") \
	SWITCH(snapshot_before_since, 0, "a reader takes its snapshot before it gets its permit") \
	SWITCH(get_while_domain_pending, 0, "the slow read answers while the domain is reserved") \
	SWITCH(token_no_lease, 0, "fence_token does not check the lease") \
	SWITCH(heartbeat_of_another, 0, "the heartbeat key does not have the identity of the process in its name") \
	SWITCH(token_while_domain_pending, 0, "fence_token answers while the domain is reserved") \
	SWITCH(token_no_slot, 0, "fence_token does not check slots") \
	SWITCH(token_first, 0, "a fast reader asks for the token before it reads the fence") \
	SWITCH(client_moves, 0, "a fast reader asks another process for the token") \
	SWITCH(replica_get, 0, "a fast reader reads the fence from a replica") \
	SWITCH(split_get, 0, "a fast reader reads two fences one after the other") \
	SWITCH(domain_commit_keeps_token, 0, "the end of a domain reservation keeps the token") \
	SWITCH(drop_of_domain_keeps_token, 0, "the patrol drops a domain reservation and keeps the token") \
	SWITCH(token_at_reserve, 0, "a new token is drawn when the domain is reserved, not when the reservation ends") \
	SWITCH(new_token_keeps_proofs, 0, "acknowledgements still count after the domain has a new token") \
	SWITCH(token_is_epoch, 0, "the token is the number of the epoch") \
	SWITCH(new_epoch_keeps_token, 0, "a new epoch keeps the token") \
	SWITCH(token_survives_restart, 0, "a process that has lost its memory still has its token") \
	SWITCH(one_token_for_all, 0, "all processes have the same token") \
	SWITCH(recent_no_proof, 0, "the library remembers which transaction committed last without the proof") \
	SWITCH(recent_of_deletes, 0, "the library remembers it for a DELETE too") \
	SWITCH(recent_outlives_reserve, 0, "reserve does not forget it") \
	SWITCH(recent_outlives_token, 0, "a new token does not forget it") \
	SWITCH(patrol_log_alone, 0, "the patrol asks only the commit log, which has commits that are not visible yet") \
	SWITCH(patrol_ignores_prepared, 0, "the patrol drops reservations of prepared transactions") \
	SWITCH(patrol_timeout, 0, "the patrol drops old reservations, whatever became of their transaction") \
	SWITCH(patrol_drops_committed_only, 0, "the patrol does not drop reservations of aborted transactions") \
	SWITCH(patrol_drops_nothing, 0, "there is no patrol") \
	SWITCH(no_commit_flag_look, 0, "a writer does not look at the word after it has set its commit flag") \
	SWITCH(bypass_no_wait, 0, "bypass does not wait for the bound") \
	SWITCH(bypass_not_noted, 0, "the writer does not note that it bypasses") \
	SWITCH(same_epoch_after_bypass, 0, "the same epoch goes on after a bypass") \
	SWITCH(opens_beside_bypass, 0, "fences open while a writer bypasses") \
	SWITCH(new_epoch_beside_commit, 0, "a new epoch begins while a writer commits in the old one") \
	SWITCH(new_epoch_no_wait, 0, "a new epoch does not wait for the bound") \
	SWITCH(same_epoch_any_process, 0, "the same epoch goes on with another process") \
	SWITCH(renew_anybody, 0, "a renewal arms any process that gets it") \
	SWITCH(bound_not_raised, 0, "the keeper grants a lease before it raises the bound") \
	SWITCH(renew_while_closed, 0, "the keeper renews leases while CLOSED") \
	SWITCH(crash_forgets_bound, 0, "a crash forgets the bound") \
	SWITCH(epoch_survives_crash, 0, "the same epoch goes on after a crash") \
	SWITCH(resume_after_bypass, 0, "a clean shutdown after a bypass leaves the file by which the next start resumes the epoch") \
	SWITCH(resume_after_crash, 0, "the file is used again after a crash") \
	SWITCH(resume_after_others, 0, "the file is used though something has run since the shutdown that wrote it") \
	SWITCH(resume_of_copy, 0, "Redis does not check which server start resumes its epoch") \
	SWITCH(resume_keeps_permits, 0, "permits from before the restart still count") \
	SWITCH(bits_before_resume, 0, "the bits of the file count before Redis has agreed") \
	SWITCH(prepared_not_carried, 0, "rows of prepared transactions are not reserved in a new epoch") \
	SWITCH(arm_again_wipes, 0, "arming again in the same epoch forgets the reservations") \
	SWITCH(lost_not_noted, 0, "a process does not note that the slot was found elsewhere") \
	SWITCH(slot_keeps_token, 0, "a process that gets a slot back keeps its token") \
	SWITCH(move_beside_commit, 0, "a slot is granted to another process while a writer commits") \
	SWITCH(widen_first, 0, "the keeper tells the new owner of a slot before the old one") \
	SWITCH(put_in_closed, 0, "put does not check whether the bucket is open") \
	SWITCH(put_before_opening, 0, "put takes a permit that is older than the opening of the bucket") \
	SWITCH(row_in_closed, 0, "a commit stores its row in a closed bucket") \
	SWITCH(row_before_opening, 0, "a commit stores its row by a reservation that is older than the opening of the bucket") \
	SWITCH(recent_in_closed, 0, "the library tells which transaction committed last in a closed bucket") \
	SWITCH(recent_before_opening, 0, "the library tells which transaction committed last before the bucket opened") \
	SWITCH(bit_after_opening, 0, "the bucket opens in Redis before its bit is set") \
	SWITCH(open_no_wait, 0, "the bucket opens while a writer commits that may have looked before its bit was set") \
	SWITCH(open_when_logged, 0, "the courier waits only until such a transaction is in the commit log") \
	SWITCH(no_second_look, 0, "a writer does not look at the bits after it has set its commit flag") \
	SWITCH(prepare_by_bits, 0, "PREPARE goes by the bits") \
	SWITCH(open_any_epoch, 0, "an opening names no epoch") \
	SWITCH(open_any_turn, 0, "an opening names no turn") \
	SWITCH(open_survives_epoch, 0, "arming in a new epoch leaves the buckets open") \
	SWITCH(bits_cleared_early, 0, "the bits are cleared before the new epoch is OPEN") \
	SWITCH(crash_clears_bits, 0, "after a crash the bits count as clear") \
	SWITCH(forget_before_answer, 0, "a map is forgotten before Redis has closed its buckets") \
	SWITCH(forget_another, 0, "a map is forgotten when what was stored under another one has expired") \
	SWITCH(forget_before_expiry, 0, "a map is forgotten before what was stored under it has expired") \
	SWITCH(slot_keeps_buckets, 0, "a process that is given a slot keeps its buckets open") \
	SWITCH(look_before_hold, 0, "a bulk UPDATE looks at the bits before it holds the buckets") \
	SWITCH(open_beside_hold, 0, "the courier opens a bucket that is held") \
	SWITCH(hold_ends_early, 0, "a bulk UPDATE lets go before its commit is visible") \
	SWITCH(mark_position_first, 0, "the keeper reads the position in the WAL before it gets the number") \
	SWITCH(mark_any_since, 0, "a mark counts although a reservation has ended since its number") \
	SWITCH(mark_outlives_token, 0, "a mark counts although the domain got its token after the number") \
	SWITCH(mark_outlives_slots, 0, "a process that is given a slot keeps its mark") \
	SWITCH(mark_of_another, 0, "a mark names no epoch, so a process that has lost its memory takes the number of the process before it") \
	SWITCH(standby_any_position, 0, "a reader on a standby does not wait until the standby has replayed the mark's position") \
	SWITCH(standby_any_row, 0, "such a reader uses a row although its writer may not be visible on the primary") \
	SWITCH(standby_stamp_unseen, 0, "such a reader does not wait until it sees the commit of who committed last") \
	SWITCH(standby_no_proof, 0, "such a reader does not put by the number that it was told, but by a later one") \
	SWITCH(standby_while_pending, 0, "such a reader is told also while the row is reserved") \
	SWITCH(put_of_another_server, 0, "a put does not name the epoch of the server that was read, or Redis does not compare it") \
	SWITCH(retire_not_sticky, 0, "a higher timeline only ends the lease of the lower one, which may renew it") \
	SWITCH(arm_by_lower_timeline, 0, "a lower timeline may arm a process where no lease of the higher one runs") \
	SWITCH(retire_no_wait, 0, "the new primary bypasses, or opens, while a process has not heard of it") \
	SWITCH(old_reaches_first, 0, "a process that begins without memory hears of the old primary before it hears of the new one") \
	SWITCH(waits_for_few, 0, "the courier waits only for transactions that have not reserved all that they write") \
	SWITCH(skips_beside_commit, 0, "the keeper does not wait for commit flags of transactions that have reserved nothing")

#define DECLARE_SWITCH(name, value, what) extern int name;
CONFIGURATION(DECLARE_SWITCH)
RULES_LEFT_OUT(DECLARE_SWITCH)
#undef DECLARE_SWITCH

#endif
