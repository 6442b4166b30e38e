/*
 * keeper.cpp
 *	  The keeper: leases, epochs, the word; and a slot that moves to another process within an epoch.
 *
 * The keeper raises the bound, then looks at the word, then grants a lease. It makes the number of a new epoch durable before it uses the number.
 */
#include <algorithm>

#include <cstring>

#include "state.h"

static bool
somebody_bypasses(const State &s)
{
	for (int i = 0; i < writers; i++)
		if (s.w[i].commit_flag == BYPASS)
			return true;
	return false;
}

static bool
somebody_commits(const State &s)
{
	for (int i = 0; i < writers; i++)
		if (s.w[i].commit_flag && s.w[i].commit_flag != BYPASS && !(s.w[i].commit_flag == SKIPS && skips_beside_commit))
			return true;
	return false;
}

/* Whether the process that was armed in the word's epoch is still there and has kept its memory. */
static bool
same_process(const State &s)
{
	return s.epoch_armed && (same_epoch_any_process || (s.armed_identity == s.keeper_identity && s.keeper_knows == s.word_epoch));
}

static bool
epoch_may_go_on(const State &s)
{
	return same_process(s) && (!s.bypassed || same_epoch_after_bypass);
}

static bool
bound_allows(const State &s)
{
	return (bound_has_passed(s) || new_epoch_no_wait) && all_are_retired(s);
}

static void
go_idle(State &s)
{
	s.keeper_step = K_IDLE;
	s.keeper_same_word = s.keeper_identity = s.keeper_knows = s.keeper_epoch = s.keeper_clock = 0;
}

static void
close_again(State &s)
{
	if (s.keeper_same_word)
		change_word(s, CLOSED, s.word_epoch);
	go_idle(s);
}

/* The keeper could not renew a lease. */
static void
unreachable(State &s)
{
	if (s.keeper_same_word && s.word == OPEN)
		change_word(s, CLOSED, s.word_epoch);
	go_idle(s);
}

bool
renew_at(State &s, int p, int epoch, int identity, int ticks)
{
	Process    &q = s.p[p];

	if (!takes_writes(s, p) || !ticks)
		return false;
	if (renew_anybody)
	{
		q.epoch = epoch;
		q.announced = 1;
		if (!q.token)
			new_token(s, p);
	}
	else if (q.identity != identity || q.epoch != epoch)
		return false;
	if (deposed && s.d.retired[p] && is_of_lower_timeline(s, epoch) && !retire_not_sticky)
		return false;
	q.lease = std::max<int>(q.lease, ticks);
	note_write(s, p);
	return true;
}

/* Whether a process refuses to be armed by this server start, because it knows a higher timeline of this cluster. */
static bool
refuses_timeline(const State &s, int p, int start)
{
	if (!deposed || !s.d.retired[p] || start > s.d.start)
		return false;
	return !arm_by_lower_timeline || (s.p[p].lease && !is_of_lower_timeline(s, s.p[p].epoch));
}

bool
arm_at(State &s, int p, int epoch, int identity, int ticks, int start)
{
	Process    &q = s.p[p];

	if (!takes_writes(s, p) || q.identity != identity || !ticks || number_of(q.epoch) > number_of(epoch) || refuses_timeline(s, p, start))
		return false;
	if (number_of(q.epoch) == number_of(epoch) && q.epoch != epoch)
		return false;
	if (deposed && s.d.there && start > s.d.start)
		s.d.retired[p] = 1;
	note_write(s, p);
	if (q.epoch == epoch)
	{
		q.lease = std::max<int>(q.lease, ticks);
		if (arm_again_wipes)
			q.domain_pending = q.pending[0] = q.pending[1] = 0;
		return true;
	}
	q.epoch = epoch;
	q.server = start;
	q.lease = ticks;
	q.domain_pending = 0;
	for (int k = 0; k < keys; k++)
		q.pending[k] = q.proven[k] = 0;
	q.announced = !prepares;
	if (!open_survives_epoch)
	{
		q.open = 0;
		memset(q.aged, 0, sizeof(q.aged));
	}
	q.turn = 0;
	if (!new_epoch_keeps_token || !q.token)
		new_token(s, p);
	return true;
}

/* Grants a lease to the process at Redis' address. The grant is executed and answered, or is still under way: outcome(state, granted). */
template<class Outcome> static void
grant(const State &from, bool arms, Outcome outcome)
{
	int			p = from.address;
	State	   &s = add(from, "keeper: %s P%d in epoch %d", arms ? "arms" : "renews", p, from.keeper_epoch);

	outcome(s, arms ? arm_at(s, p, s.keeper_epoch, s.keeper_identity, s.keeper_clock, s.start)
			: renew_at(s, p, s.keeper_epoch, s.keeper_identity, s.keeper_clock));
	State	   &t = add(from, "keeper: %s is under way, no answer", arms ? "arm" : "renew");

	t.late_grant_identity = t.keeper_identity;
	t.late_grant_epoch = t.keeper_epoch;
	t.late_grant_ticks = t.keeper_clock;
	t.late_grant_arms = arms;
	t.late_grant_start = t.start;
	outcome(t, false);
}

/*
 * Reserves the domain in the new epoch, before it is announced, for each transaction that is prepared, or has written its commit record and has no commit
 * flag.
 */
static void
announce(const State &from)
{
	State	   &s = add(from, "worker: reserves what is prepared, announces");

	for (int i = 0; i < writers && !prepared_not_carried; i++)
		if (s.w[i].fate == PREPARED || (s.w[i].fate == LOGGED && !s.w[i].commit_flag))
			reserve_domain(s, 0, i);
	s.p[0].announced = 1;
}

static void
greet(State &s)
{
	s.keeper_identity = s.p[s.address].identity;
	s.keeper_knows = s.p[s.address].epoch;
	s.keeper_clock = lease;
}

static void
idle_steps(const State &from)
{
	const Process &there = from.p[from.address];

	if (prepares && from.word == OPEN && from.p[0].up && from.p[0].epoch == from.word_epoch && !from.p[0].announced)
		announce(from);
	if (from.bound_unset)
	{
		State	   &s = add(from, "keeper: after the server start the bound is the longest lease");

		s.bound_unset = 0;
		if (!crash_forgets_bound)
			s.bound = lease;
		return;
	}
	if (from.word == OPEN)
	{
		State	   &failed = add(from, "keeper: the heartbeat fails");

		failed.keeper_same_word = 1;
		unreachable(failed);
		if (!there.up)
			return;
		State	   &s = add(from, "keeper: hello P%d", from.address);

		s.keeper_same_word = 1;
		s.keeper_epoch = s.word_epoch;
		greet(s);
		if (s.keeper_identity != s.armed_identity || s.keeper_knows != s.word_epoch)
			unreachable(s);
		else
			s.keeper_step = K_RENEW_BOUND;
	}
	else if (from.word == ARMING)
	{
		State	   &s = add(from, "the keeper was restarted: CLOSED");

		change_word(s, CLOSED, s.word_epoch);
	}
	else if (there.up)
	{
		State	   &s = add(from, "keeper: hello P%d, to open", from.address);

		s.keeper_same_word = 1;
		greet(s);
		s.keeper_step = s.resume_from && epoch_may_go_on(s) ? K_RESUME : K_OPEN;
	}
}

/* Redis agrees only if the start whose epoch it is was the last to arm the process, or to resume. */
static bool
resume_at(State &s, int p, int identity, int epoch, int resumed, int start)
{
	Process    &q = s.p[p];

	if (!q.up || q.identity != identity || q.epoch != epoch || (q.server != resumed && q.server != start && !resume_of_copy))
		return false;
	if (q.server != start)
		for (int k = 0; k < keys && !resume_keeps_permits; k++)
		{
			q.proven[k] = 0;
			forget_ends(s, p, k);
		}
	q.server = start;
	return true;
}

/* The keeper asks for leave to resume the epoch of before the clean shutdown. Until then the bits of the buckets count as set. */
static void
resume_steps(const State &from)
{
	State	   &s = add(from, "keeper: start %d asks P%d for leave to resume from start %d", from.start, from.address, from.resume_from);

	if (resume_at(s, s.address, s.keeper_identity, s.word_epoch, s.resume_from, s.start))
	{
		s.bits_epoch = s.word_epoch;
		s.keeper_step = K_OPEN;
	}
	else
	{
		s.epoch_armed = 0;
		go_idle(s);
	}
	s.resume_from = 0;

	State	   &t = add(from, "keeper: the question for leave to resume is under way, no answer");

	t.late_resume_from = t.resume_from;
	t.late_resume_to = t.start;
	t.late_resume_identity = t.keeper_identity;
	t.late_resume_epoch = t.word_epoch;
	go_idle(t);
}

static void
late_resume_steps(const State &from)
{
	for (int p = 0; p <= processes; p++)
	{
		State	   &s = add(from, p < processes ? "LATE question for leave to resume arrives at P%d" : "late question is lost", p);

		if (p < processes)
			resume_at(s, p, s.late_resume_identity, s.late_resume_epoch, s.late_resume_from, s.late_resume_to);
		s.late_resume_from = s.late_resume_to = s.late_resume_identity = s.late_resume_epoch = 0;
	}
}

static void
open_steps(const State &from)
{
	State	   &s = add(from, "keeper: tries to open");

	if (!epoch_may_go_on(s) && !bound_allows(s))
		go_idle(s);				/* a lease still runs; the keeper tries later */
	else if (!s.keeper_same_word || s.word != CLOSED)
		go_idle(s);
	else
	{
		change_word(s, ARMING, s.word_epoch);
		s.keeper_same_word = 1;
		s.keeper_step = K_LOOK_BYPASS;
	}
}

static void
look_steps(const State &from)
{
	if (from.keeper_step == K_LOOK_COMMIT)
	{
		bool		busy = somebody_commits(from) && !new_epoch_beside_commit;
		State	   &s = add(from, busy ? "keeper: somebody commits" : "keeper: nobody commits");

		if (busy)
			close_again(s);
		else
			s.keeper_step = K_NUMBER;
		return;
	}
	bool		busy = somebody_bypasses(from) && !opens_beside_bypass;
	State	   &s = add(from, busy ? "keeper: somebody bypasses" : "keeper: nobody bypasses");

	if (busy)
		close_again(s);
	else if (epoch_may_go_on(s))
	{
		s.keeper_epoch = s.word_epoch;
		s.keeper_step = K_AGAIN_BOUND;
	}
	else
		s.keeper_step = K_LOOK_COMMIT;
}

static void
number_steps(const State &from)
{
	int			number = std::max<int>(from.last_epoch, number_of(from.keeper_knows)) + 1;
	State	   &s = add(from, "keeper: epoch %d is written", number);

	if (!bound_allows(s) || number > max_epoch)
		close_again(s);
	else
	{
		s.keeper_epoch = s.last_epoch = number;
		s.keeper_step = K_NOT_ARMED;
	}
}

/* The number of the new epoch is durable, and nothing is armed in it yet. From here on the old epoch can never be opened again. */
static void
word_steps(const State &from)
{
	State	   &s = add(from, "keeper: %s", from.keeper_step == K_NOT_ARMED ? "no epoch is armed" : from.keeper_step == K_NEW_WORD ?
						"ARMING in the new epoch" : "nobody has bypassed in it");

	if (s.keeper_step != K_CLEAR_BYPASS && !s.keeper_same_word)
	{
		go_idle(s);
		return;
	}
	if (s.keeper_step == K_NOT_ARMED)
		s.epoch_armed = s.resume_from = 0;
	else if (s.keeper_step == K_NEW_WORD)
	{
		change_word(s, ARMING, s.keeper_epoch);
		s.keeper_same_word = 1;
	}
	else
		s.bypassed = 0;
	s.keeper_step++;
}

static void
clock_steps(const State &from)
{
	close_again(add(from, "keeper: the clock cannot be read"));
	if (!from.p[from.address].up)
		return;
	State	   &s = add(from, "keeper: reads the clock of P%d", from.address);
	int			before = s.keeper_identity;

	s.keeper_identity = s.p[s.address].identity;
	s.keeper_clock = lease;
	if (before != s.keeper_identity)
		close_again(s);
	else
		s.keeper_step = K_ARM_BOUND;
}

/* The keeper grants a lease: to renew in OPEN, to arm a new epoch, or to go on with the same epoch. */
static void
grant_steps(const State &from)
{
	bool		arms = from.keeper_step == K_ARM || (from.keeper_step == K_AGAIN && (arm_again_wipes || same_epoch_any_process));

	if (!from.keeper_same_word && !renew_while_closed)
	{
		go_idle(add(from, "keeper: another word"));
		return;
	}
	grant(from, arms, [&](State &s, bool granted) {
		if (from.keeper_step == K_RENEW && granted)
			go_idle(s);
		else if (from.keeper_step == K_RENEW)
			unreachable(s);
		else if (granted)
			s.keeper_step = K_ARMED;
		else
		{
			s.epoch_armed = 0;
			close_again(s);
		}
	});
}

static void
time_passes(const State &from)
{
	bool		any = from.bound || from.keeper_clock || from.late_grant_ticks;

	for (int p = 0; p < processes; p++)
		any = any || from.p[p].lease;
	if (!any)
		return;
	State	   &s = add(from, "time passes");

	s.bound -= s.bound > 0;
	s.keeper_clock -= s.keeper_clock > 0;
	s.late_grant_ticks -= s.late_grant_ticks > 0;
	if (!s.late_grant_ticks)
		s.late_grant_identity = s.late_grant_epoch = s.late_grant_arms = s.late_grant_start = 0;
	for (int p = 0; p < processes; p++)
		s.p[p].lease -= s.p[p].lease > 0;
}

static void
late_grant_steps(const State &from)
{
	for (int p = 0; p < processes; p++)
	{
		State	   &s = add(from, "LATE %s arrives at P%d", from.late_grant_arms ? "arm" : "renew", p);

		if (from.late_grant_arms)
			arm_at(s, p, from.late_grant_epoch, from.late_grant_identity, from.late_grant_ticks, from.late_grant_start);
		else
			renew_at(s, p, from.late_grant_epoch, from.late_grant_identity, from.late_grant_ticks);
		s.late_grant_identity = s.late_grant_epoch = s.late_grant_ticks = s.late_grant_arms = s.late_grant_start = 0;
	}
}

void
keeper_steps(const State &from)
{
	switch (from.keeper_step)
	{
		case K_IDLE: idle_steps(from); break;
		case K_RESUME: resume_steps(from); break;
		case K_OPEN: open_steps(from); break;
		case K_LOOK_BYPASS: case K_LOOK_COMMIT: look_steps(from); break;
		case K_NUMBER: number_steps(from); break;
		case K_NOT_ARMED: case K_NEW_WORD: case K_CLEAR_BYPASS: word_steps(from); break;
		case K_CLOCK: clock_steps(from); break;
		case K_RENEW: case K_ARM: case K_AGAIN: grant_steps(from); break;
		case K_RENEW_BOUND: case K_ARM_BOUND: case K_AGAIN_BOUND:
		{
			State	   &s = add(from, "keeper: raises the bound");

			if (!bound_not_raised)
				s.bound = std::max(s.bound, s.keeper_clock);
			s.keeper_step++;
			break;
		}
		case K_ARMED:
		{
			State	   &s = add(from, "keeper: armed");

			s.armed_identity = s.keeper_identity;
			s.epoch_armed = 1;
			s.keeper_step = K_TO_OPEN;
			break;
		}
		case K_TO_OPEN:
		{
			State	   &s = add(from, "keeper: OPEN %d", from.keeper_epoch);

			if (s.keeper_same_word)
				change_word(s, OPEN, s.keeper_epoch);
			go_idle(s);
			break;
		}
	}
	if (from.late_grant_ticks)
		late_grant_steps(from);
	if (from.late_resume_from)
		late_resume_steps(from);
	time_passes(from);
}

/* -----------------------------------------------------------------------------------------------------------------
 * A slot that moves from one process to the other, in one epoch. There are no leases here.
 * -----------------------------------------------------------------------------------------------------------------
 */

static void
cluster_steps(const State &from)
{
	for (int p = 0; p < 2 && from.moves_done < moves && !from.leaving; p++)
		if (from.p[p].serves && !from.p[1 - p].serves)
		{
			State	   &s = add(from, "cluster: the slot migrates away from P%d", p);

			s.moves_done++;
			s.leaving = p + 1;
		}
	if (!from.leaving)
		return;

	int			p = from.leaving - 1;
	int			other = 1 - p;

	if (from.p[p].fence[0] && from.p[p].serves)
	{
		State	   &s = add(from, "cluster: MIGRATE a to P%d", other);

		s.p[other].fence[0] = s.p[p].fence[0];
		s.p[other].content[0] = s.p[p].content[0];
		s.p[other].aged[0] = s.p[p].aged[0];
		remove_fence(s, p, 0);
	}
	if (!from.p[other].serves && !from.p[p].fence[0])
		add(from, "cluster: P%d owns the slot", other).p[other].serves = 1;
	if (from.p[other].serves)
	{
		State	   &s = add(from, "cluster: P%d has given the slot up", p);

		s.p[p].serves = 0;
		s.leaving = 0;
	}
}

static void
take_slot(State &s, int p)
{
	s.p[p].granted = s.p[p].lost = 0;
}

/* A process that had the slot before in this epoch, or has lost it, draws a new token. */
static void
give_slot(State &s, int p)
{
	Process    &q = s.p[p];

	if (q.granted && !q.lost)
		return;
	if (!slot_keeps_token && q.had)
		new_token(s, p);
	if (!slot_keeps_buckets)
		s.p[p].open = 0;
	if (!mark_outlives_slots)
		forget_mark(s, p);
	q.granted = q.had = 1;
	q.lost = 0;
}

static bool
map_differs(const State &s)
{
	return s.p[0].lost || s.p[1].lost || !((s.p[0].serves && s.p[0].granted) || (s.p[1].serves && s.p[1].granted));
}

void
move_steps(const State &from)
{
	int			owner = from.keeper_identity;	/* here keeper_identity is the process that is to have the slot */

	cluster_steps(from);
	switch (from.keeper_step)
	{
		case K_IDLE:
			if (from.word == OPEN && map_differs(from))
			{
				State	   &s = add(from, "keeper: the map differs: CLOSED");

				change_word(s, CLOSED, s.word_epoch);
			}
			for (int p = 0; p < 2 && from.word == CLOSED; p++)
				if (from.p[p].serves)
				{
					State	   &s = add(from, "keeper: ARMING, the slot goes to P%d", p);

					change_word(s, ARMING, s.word_epoch);
					s.keeper_same_word = 1;
					s.keeper_identity = p;
					s.keeper_step = M_LOOK_COMMIT;
				}
			break;
		case M_LOOK_COMMIT:
		{
			bool		busy = somebody_commits(from) && !move_beside_commit;
			State	   &s = add(from, busy ? "keeper: somebody commits: CLOSED" : "keeper: nobody commits");

			if (busy)
			{
				change_word(s, CLOSED, s.word_epoch);
				go_idle(s);
			}
			else
				s.keeper_step = M_FIRST;
			break;
		}
		case M_FIRST:
		{
			State	   &s = add(from, "keeper: P%d is told first", widen_first ? owner : 1 - owner);

			if (widen_first)
				give_slot(s, owner);
			else
				take_slot(s, 1 - owner);
			s.keeper_step = M_SECOND;
			if (widen_first)
				add(s, "keeper: does not wait for the other").keeper_step = M_TO_OPEN;
			break;
		}
		case M_SECOND:
		{
			State	   &s = add(from, "keeper: P%d %s", widen_first ? 1 - owner : owner, widen_first ? "gives the slot up" : "gets the slot");

			if (widen_first)
				take_slot(s, 1 - owner);
			else
				give_slot(s, owner);
			s.keeper_step = M_TO_OPEN;
			break;
		}
		case M_TO_OPEN:
		{
			State	   &s = add(from, "keeper: OPEN");

			if (s.keeper_same_word)
				change_word(s, OPEN, s.word_epoch);
			go_idle(s);
			break;
		}
	}
}
