/*
 * writer.cpp
 *	  Transactions, and their messages on the way to Redis.
 *
 * At PRE_COMMIT a writer looks at the word. If it is OPEN, the writer waits until every key that it has written is acknowledged under that word, sets its
 * commit flag, and checks that the word is still the same. If it is CLOSED, the writer waits for the bound, sets its commit flag to BYPASS, notes the
 * bypass, and checks the word too. Then it writes its commit record, then the commit becomes visible, then it sends the ends of its reservations.
 */
#include "state.h"

int
keys_of(int i)
{
	return i == 0 ? keys0 : i == 1 ? keys1 : keys2;
}

static int
ops_of(int i)
{
	return i == 0 ? ops0 : i == 1 ? ops1 : ops2;
}

bool
is_over(int fate)
{
	return fate == COMMITTED || fate == ABORTED;
}

const char *
name_of(int what)
{
	return what == DOMAIN ? "domain" : what == 1 ? "a" : "b";
}

static const char *
op_name(int op)
{
	switch (op)
	{
		case UPDATE: return "UPDATE";
		case DELETE: return "DELETE";
		case INSERT: return "INSERT (nothing is reserved)";
		case BULK: return "bulk UPDATE";
		case WATCHED_BULK: return "bulk UPDATE that forgets its keys";
		case HELD_BULK: return "bulk UPDATE that holds the buckets";
		default: return "INSERT";
	}
}

/* Whether the word matters. Without a keeper and without moves it never changes. */
static bool
word_matters()
{
	return keeper || moves;
}

/* Changes the word. An acknowledgement counts only under the word that was valid when it was requested. */
void
change_word(State &s, int word, int epoch)
{
	s.word = word;
	s.word_epoch = epoch;
	s.keeper_same_word = 0;
	for (int i = 0; i < writers; i++)
	{
		s.w[i].same_word = 0;
		if (!acks_survive)
			s.w[i].acked = 0;
	}
}

bool
bound_has_passed(const State &s)
{
	return !s.bound_unset && !s.bound;
}

/* Returns what the writer has changed. */
static int
changed_by(int i, const Writer &w)
{
	return !(w.flags & APPLIED) || w.op == INSERT ? 0 : w.op == BULK ? (int) DOMAIN : keys_of(i);
}

/* Returns the keys of the set whose bucket's bit is set, and the whole domain. After a crash all bits count as set. */
int
watched(const State &s, int what)
{
	int			found = what & DOMAIN;

	for (int k = 0; k < keys; k++)
		if ((what >> k & 1) && (!buckets || !s.bits_epoch || (bits_set(s) >> k % buckets & 1)))
			found |= 1 << k;
	return found;
}

/* Returns whether everything that the writer has changed is reserved, whatever the bits say. */
bool
has_reserved_all(const State &s, int i)
{
	return !(changed_by(i, s.w[i]) & ~s.w[i].acked);
}

/*
 * Returns the set of reservations that Redis must acknowledge before the writer commits. A writer that has changed many
 * rows by buckets no longer knows their keys.
 */
static int
needed(const State &s, int i)
{
	const Writer &w = s.w[i];
	int			changed = changed_by(i, w);

	if (!(w.flags & PREPARES) || prepare_by_bits)
		changed = w.op == HELD_BULK ? changed & w.seen : watched(s, changed);
	else if (w.op == HELD_BULK)
		return DOMAIN;
	return w.op == WATCHED_BULK && changed ? (int) DOMAIN : changed;
}

static void
unlock(State &s, int i)
{
	for (int k = 0; k < keys; k++)
		if (s.lock[k] == i + 1)
			s.lock[k] = 0;
}

void
finish(State &s, int i)
{
	Writer	   &w = s.w[i];

	w.step = W_OVER;
	w.commit_flag = w.same_word = w.acked = w.epoch = w.flags = w.sent = w.sent_epoch = w.seen = 0;
	unlock(s, i);
}

void
become_visible(State &s, int i)
{
	Writer	   &w = s.w[i];

	w.fate = COMMITTED;
	for (int k = 0; k < keys; k++)
		if ((w.flags & APPLIED) && keys_of(i) >> k & 1)
			s.row[k] = w.op == DELETE ? ABSENT : i + 1;
	unlock(s, i);
}

/* Whether the writer can lock its rows for this operation now: INSERT must find no row, all others must find one. */
static bool
can_lock(const State &s, int i, int op)
{
	for (int k = 0; k < keys; k++)
		if (keys_of(i) >> k & 1)
		{
			bool		inserts = op == INSERT || op == INSERT_RESERVED;

			if (s.lock[k] || inserts != (s.row[k] == ABSENT))
				return false;
		}
	return true;
}

static void
lock_rows(State &s, int i)
{
	for (int k = 0; k < keys; k++)
		if (keys_of(i) >> k & 1)
			s.lock[k] = i + 1;
}

static void
post_end(Writer &w, int what, int epoch, int kind)
{
	if (!what)
		return;
	w.end = what;
	w.end_kind = kind;
	w.end_epoch = epoch;
}

void
abort_writer(State &s, int i)
{
	Writer	   &w = s.w[i];
	int			sent = w.sent;
	int			epoch = w.sent_epoch;

	w.fate = ABORTED;
	finish(s, i);
	post_end(w, sent, epoch, END_ABORT);
}

static void
may_abort(const State &from, int i, const char *why)
{
	abort_writer(add(from, "T%d ABORT (%s)", i + 1, why), i);
}

static void
record_at(State &s, int p, int i, int what, bool counted, bool fails_half_way)
{
	if (what == DOMAIN)
		reserve_domain(s, p, i);
	else
		reserve(s, p, i, what >> 1, counted, fails_half_way);
}

/*
 * A request to reserve, in the epoch of the word that the writer has read. outcome(state, granted) is what the writer does next.
 */
template<class Outcome> static void
ask(const State &from, int i, int what, int epoch, Outcome outcome)
{
	bool		somebody = false;
	auto		sent = [&](State &s) -> Writer & {
		Writer	   &w = s.w[i];

		w.sent |= what;
		w.sent_epoch = epoch;
		return w;
	};

	for (int p = 0; p < processes; p++)
	{
		if (!takes_reserve(from, p, epoch))
			continue;
		somebody = true;
		State	   &s = add(from, "T%d reserve(%s) at P%d: acknowledged", i + 1, name_of(what), p);

		sent(s);
		record_at(s, p, i, what, true, false);
		outcome(s, true);
		if (half && what != DOMAIN)
		{
			State	   &t = add(from, "T%d reserve(%s) at P%d: recorded, fails before DEL", i + 1, name_of(what), p);

			sent(t);
			record_at(t, p, i, what, false, true);
			outcome(t, false);
		}
	}
	const Writer &w = from.w[i];

	if (late && !(w.late & what) && (!w.late || w.late_epoch == epoch))
	{
		State	   &s = add(from, "T%d reserve(%s): no answer; it may arrive later", i + 1, name_of(what));
		Writer	   &changed = sent(s);

		changed.late |= what;
		changed.late_epoch = epoch;
		outcome(s, false);
	}
	else if (keeper && (!quiet || !somebody))
	{
		State	   &s = add(from, "T%d reserve(%s): lost or refused", i + 1, name_of(what));

		sent(s);
		outcome(s, false);
	}
}

static void
ask_early(const State &from, int i, int what)
{
	State		begin = from;

	begin.w[i].same_word = 1;
	ask(begin, i, what, from.word_epoch, [&](State &s, bool granted) {
		s.w[i].flags |= SENT_EARLY;
		if (granted)
			s.w[i].acked |= what;
	});
}

static void
begin_steps(const State &from, int i)
{
	if (ops_of(i) & BULK)
	{
		State	   &s = add(from, "T%d bulk UPDATE begins", i + 1);
		Writer	   &w = s.w[i];

		w.op = BULK;
		w.fate = RUNNING;
		w.step = W_BULK_BEGUN;
		w.same_word = !word_matters();
	}
	for (int op = UPDATE; op <= HELD_BULK; op <<= 1)
	{
		if (!(ops_of(i) & op) || !can_lock(from, i, op))
			continue;
		State	   &s = add(from, "T%d %s, row locked", i + 1, op_name(op));
		Writer	   &w = s.w[i];

		lock_rows(s, i);
		w.op = op;
		w.fate = RUNNING;
		w.flags = APPLIED;
		w.step = op == HELD_BULK ? W_HOLDING : W_CHANGED;
		if (op == HELD_BULK && look_before_hold)
			w.seen = watched(s, keys_of(i));
		w.same_word = !word_matters();
	}
}

/*
 * While a statement holds a bucket whose bit was clear, the courier does not open it. The statement reserves what is in
 * buckets whose bit is set.
 */
static void
hold_steps(const State &from, int i)
{
	if (!(from.w[i].flags & HOLDS))
	{
		State	   &s = add(from, "T%d holds the buckets", i + 1);

		s.w[i].flags |= HOLDS;
		if (look_before_hold)
			s.w[i].step = W_CHANGED;
		return;
	}
	State	   &s = add(from, "T%d looks at their bits", i + 1);

	s.w[i].seen = watched(s, keys_of(i));
	s.w[i].step = W_CHANGED;
}

/* A statement that changes many rows reserves the domain before it reaches this row. */
static void
bulk_steps(const State &from, int i)
{
	const Writer &w = from.w[i];

	if (!(w.flags & SENT_EARLY) && from.word == OPEN)
		ask_early(from, i, DOMAIN);
	if ((w.flags & SENT_EARLY) && can_lock(from, i, BULK))
	{
		State	   &s = add(from, "T%d comes to the row and locks it", i + 1);

		lock_rows(s, i);
		s.w[i].flags |= APPLIED;
		s.w[i].step = W_CHANGED;
	}
	may_abort(from, i, "rollback or killed");
}

/* A writer that has nothing to reserve does not look at the word. It looks only at the bits, and again after it has set its commit flag. */
static void
pre_commit(State &s, int i)
{
	Writer	   &w = s.w[i];

	if (!changed_by(i, w) || (w.op == HELD_BULK && !needed(s, i)))
		w.step = W_COMMIT;
	else if (!needed(s, i))
	{
		w.step = W_SET_COMMIT_FLAG;
		w.epoch = SKIPS;
	}
	else if (word_matters())
		w.step = W_LOOK;
	else
	{
		w.step = W_RESERVE;
		w.epoch = s.word_epoch;
	}
}

static void
changed_steps(const State &from, int i)
{
	const Writer &w = from.w[i];

	if (early && from.word == OPEN && !(w.flags & SENT_EARLY))
		for (int what = 1; what <= DOMAIN; what <<= 1)
			if (needed(from, i) & what)
				ask_early(from, i, what);
	if (savepoints && !(w.flags & SAVEPOINT_USED))
	{
		State	   &s = add(from, "T%d ROLLBACK TO SAVEPOINT", i + 1);

		s.w[i].flags = (w.flags | SAVEPOINT_USED) & ~APPLIED;
		unlock(s, i);
		s.w[i].step = W_ROLLED_BACK_TO;
	}
	pre_commit(add(from, "T%d PRE_COMMIT", i + 1), i);
	if (buckets && prepares && w.op != INSERT)
	{
		State	   &s = add(from, "T%d PRE_PREPARE", i + 1);

		s.w[i].flags |= PREPARES;
		pre_commit(s, i);
	}
	may_abort(from, i, "rollback or killed");
}

static void
rolled_back_to_steps(const State &from, int i)
{
	for (int op = UPDATE; op <= INSERT_RESERVED; op <<= 1)
	{
		if (op == BULK || from.w[i].op == BULK || !(ops_of(i) & op) || !can_lock(from, i, op))
			continue;
		State	   &s = add(from, "T%d after the savepoint: %s", i + 1, op_name(op));

		lock_rows(s, i);
		s.w[i].op = op;
		s.w[i].flags |= APPLIED;
		s.w[i].step = W_CHANGED;
	}
	State	   &s = add(from, "T%d PRE_COMMIT, nothing is applied", i + 1);

	s.w[i].step = W_COMMIT;
	may_abort(from, i, "rollback");
}

static void
look_steps(const State &from, int i)
{
	if (buckets && !needed(from, i))
		pre_commit(add(from, "T%d: no bit is set any more", i + 1), i);
	if (keeper && from.word == OPEN && bound_has_passed(from))
	{
		State	   &s = add(from, "T%d finds the lease over: CLOSED", i + 1);

		change_word(s, CLOSED, s.word_epoch);
	}
	if (keeper && from.word == ARMING && !moves)
	{
		State	   &s = add(from, "arming took too long: CLOSED");

		change_word(s, CLOSED, s.word_epoch);
	}
	if (from.word == OPEN)
	{
		State	   &s = add(from, "T%d reads the word: OPEN %d", i + 1, from.word_epoch);

		s.w[i].epoch = s.word_epoch;
		s.w[i].same_word = 1;
		s.w[i].step = W_RESERVE;
	}
	else if (from.word == CLOSED && keeper)
	{
		State	   &s = add(from, "T%d reads the word: CLOSED", i + 1);

		s.w[i].same_word = 1;
		s.w[i].step = W_CLOSED;
	}
}

static void
look_again(Writer &w)
{
	w.step = W_LOOK;
	w.epoch = 0;
}

static void
reserve_steps(const State &from, int i)
{
	const Writer &w = from.w[i];
	int			missing = needed(from, i) & ~w.acked;

	if (no_ack || (one_ack_for_all && w.acked))
		missing = 0;
	if (!missing)
	{
		State	   &s = add(from, "T%d has all acknowledgements", i + 1);

		s.w[i].step = word_matters() || buckets ? W_SET_COMMIT_FLAG : W_COMMIT;
		if (!word_matters() && !buckets)
			s.w[i].commit_flag = s.w[i].epoch;
		return;
	}
	for (int what = 1; what <= DOMAIN; what <<= 1)
		if (missing & what)
			ask(from, i, what, w.epoch, [&](State &s, bool granted) {
				Writer	   &changed = s.w[i];

				if (granted)
				{
					if (changed.same_word || acks_survive)
						changed.acked |= what;
					return;
				}
				if (!word_matters())
					return;
				/* the writer tries again or, if the word has not changed, closes the fences for all */
				State		before = s;

				look_again(changed);
				changed.same_word = 0;
				if (keeper && before.w[i].same_word)
				{
					State	   &t = add(before, "T%d cannot reserve %s: CLOSED", i + 1, name_of(what));

					change_word(t, CLOSED, t.word_epoch);
					look_again(t.w[i]);
				}
			});
}

static void
commit_flag_steps(const State &from, int i)
{
	const Writer &w = from.w[i];

	if (w.step == W_SET_COMMIT_FLAG)
	{
		State	   &s = add(from, "T%d sets its commit flag", i + 1);

		s.w[i].commit_flag = w.epoch;
		s.w[i].step = W_COMMIT_FLAG_SET;
	}
	else if (w.epoch != SKIPS && !w.same_word && !no_commit_flag_look && word_matters())
	{
		State	   &s = add(from, "T%d: another word; again", i + 1);

		s.w[i].commit_flag = 0;
		look_again(s.w[i]);
	}
	else if (w.epoch == SKIPS ? needed(from, i) && !no_second_look : needed(from, i) & ~w.acked && buckets && w.same_word && !no_second_look)
	{
		State	   &s = add(from, "T%d: a bit is set by now; again", i + 1);

		s.w[i].commit_flag = 0;
		pre_commit(s, i);
	}
	else
		add(from, "T%d: still the same word, the same bits", i + 1).w[i].step = W_COMMIT;
}

static void
bypass_steps(const State &from, int i)
{
	const Writer &w = from.w[i];
	bool		may = bypass && (bound_has_passed(from) || bypass_no_wait) && all_are_retired(from);

	if (w.step == W_CLOSED && !w.same_word)
	{
		State	   &s = add(from, "T%d looks again", i + 1);

		s.w[i].step = W_LOOK;
	}
	else if (w.step == W_CLOSED && may)
	{
		State	   &s = add(from, "T%d: the bound has passed; sets its commit flag to bypass", i + 1);

		s.w[i].commit_flag = BYPASS;
		if (!bypass_not_noted)
			s.bypassed = 1;
		s.w[i].step = W_BYPASSING;
	}
	else if (w.step == W_BYPASSING)
	{
		bool		goes = w.same_word && may;
		State	   &s = add(from, goes ? "T%d bypasses" : "T%d: another word; again", i + 1);

		if (goes)
			s.w[i].step = W_COMMIT;
		else
		{
			s.w[i].commit_flag = 0;
			s.w[i].step = W_LOOK;
		}
	}
}

static void
commit_steps(const State &from, int i)
{
	const Writer &w = from.w[i];

	if (prepares && w.op != INSERT && (w.flags & APPLIED) && (!buckets || (w.flags & PREPARES)))
	{
		State	   &s = add(from, "T%d PREPARE TRANSACTION", i + 1);
		Writer	   &changed = s.w[i];

		changed.fate = PREPARED;
		changed.flags &= ~HOLDS;
		changed.commit_flag = changed.same_word = changed.acked = changed.epoch = changed.sent = changed.sent_epoch = 0;
		changed.step = W_PREPARED;
		if (buckets)
			return;
	}
	State	   &s = add(from, "T%d commit record", i + 1);
	Writer	   &changed = s.w[i];

	changed.fate = LOGGED;
	changed.step = W_LOGGED;
	log_commit(s, i);
	if (hold_ends_early)
		changed.flags &= ~HOLDS;
	if (end_before_visible)
	{
		post_end(changed, changed.sent, changed.sent_epoch, END_COMMIT);
		changed.sent = 0;
	}
}

static void
prepared_steps(const State &from, int i)
{
	if (from.w[i].fate != PREPARED)
	{
		State	   &s = add(from, "T%d COMMIT PREPARED is visible", i + 1);

		become_visible(s, i);
		finish(s, i);
		return;
	}
	State	   &s = add(from, "T%d COMMIT PREPARED: record", i + 1);

	s.w[i].fate = LOGGED;
	log_commit(s, i);
	State	   &t = add(from, "T%d ROLLBACK PREPARED", i + 1);

	t.w[i].fate = ABORTED;
	finish(t, i);
}

void
writer_steps(const State &from, int i)
{
	const Writer &w = from.w[i];

	switch (w.step)
	{
		case W_BEGIN: begin_steps(from, i); break;
		case W_BULK_BEGUN: bulk_steps(from, i); break;
		case W_HOLDING: hold_steps(from, i); break;
		case W_CHANGED: changed_steps(from, i); break;
		case W_ROLLED_BACK_TO: rolled_back_to_steps(from, i); break;
		case W_LOOK: look_steps(from, i); break;
		case W_RESERVE: reserve_steps(from, i); break;
		case W_SET_COMMIT_FLAG: case W_COMMIT_FLAG_SET: commit_flag_steps(from, i); break;
		case W_CLOSED: case W_BYPASSING: bypass_steps(from, i); break;
		case W_COMMIT: commit_steps(from, i); break;
		case W_PREPARED: prepared_steps(from, i); break;
		case W_LOGGED:
		{
			if (from.d.committing >> i & 1)
			{
				become_visible_there(add(from, "T%d COMMIT is visible on the old primary", i + 1), i);
				break;
			}
			State	   &s = add(from, "T%d COMMIT is visible", i + 1);

			become_visible(s, i);
			s.w[i].step = W_VISIBLE;
			break;
		}
		case W_VISIBLE:
		{
			State	   &s = add(from, "T%d posts its end%s", i + 1, w.sent ? "" : " (nothing was sent)");

			finish(s, i);
			s.d.committing &= ~(1 << i);
			post_end(s.w[i], w.sent, w.sent_epoch, w.flags & APPLIED ? END_COMMIT : END_ABORT);
			break;
		}
	}
	if (w.step >= W_LOOK && w.step <= W_CLOSED && !quiet)
		may_abort(from, i, "error");
}

/* -----------------------------------------------------------------------------------------------------------------
 * Messages that are under way
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
late_reserve_steps(const State &from, int i, int what)
{
	auto		taken = [&](State &s) {
		s.w[i].late &= ~what;
		if (!s.w[i].late)
			s.w[i].late_epoch = 0;
	};

	for (int p = 0; p < processes; p++)
		if (takes_reserve(from, p, from.w[i].late_epoch))
		{
			State	   &s = add(from, "LATE reserve(%s) of T%d arrives at P%d", name_of(what), i + 1, p);

			taken(s);
			record_at(s, p, i, what, false, false);
		}
	taken(add(from, "late reserve(%s) of T%d is lost", name_of(what), i + 1));
}

static void
end_steps(const State &from, int i, int what)
{
	const Writer &w = from.w[i];
	bool		committed = w.end_kind != END_ABORT;
	auto		taken = [&](State &s) {
		s.w[i].end &= ~what;
		if (!s.w[i].end)
			s.w[i].end_kind = s.w[i].end_epoch = 0;
	};

	for (int stays = 0; stays <= repeated; stays++)
		for (int p = 0; p < processes; p++)
			for (int with_row = 0; with_row <= (write_through && committed && what != DOMAIN); with_row++)
			{
				EndKind		kind = !committed ? END_ABORT : with_row ? END_ROW : END_COMMIT;

				if (!takes_end(from, p, w.end_epoch))
					continue;
				const char *how = kind == END_ABORT ? "abort" : kind == END_ROW ? "commit with the row" : "commit";
				State	   &s = add(from, "end(%s, %s) of T%d arrives at P%d%s", name_of(what), how, i + 1, p,
									stays ? " (and once more, later)" : "");

				if (!stays)
					taken(s);
				if (what == DOMAIN)
					end_domain(s, p, i, kind);
				else
					end(s, p, i, what >> 1, kind);
			}
	taken(add(from, "end(%s) of T%d is lost", name_of(what), i + 1));
}

void
message_steps(const State &from, int i)
{
	for (int what = 1; what <= DOMAIN; what <<= 1)
	{
		if (from.w[i].late & what)
			late_reserve_steps(from, i, what);
		if (from.w[i].end & what)
			end_steps(from, i, what);
	}
}
