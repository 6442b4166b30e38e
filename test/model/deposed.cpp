/*
 * deposed.cpp
 *	  A second PostgreSQL server: a standby is promoted beside the primary, which lives on, because nobody has told it.
 *
 * No commit is lost, and the old primary takes no writes any more: other tools see to both (doc/protocol.md, "What it assumes"). But its keeper goes on, and
 * readers may still read it. Two rules follow. A put names the epoch of the server that was read (put_allowed). And the new primary, before it bypasses or
 * opens, retires the lower timeline at each process: the process ends the lease, and from then on refuses whatever the lower timeline asks for.
 *
 * The model takes one assumption as it is: the new primary's keeper reaches each process that the old primary's reaches, before the bound has passed
 * (retire_no_wait); and a process that begins later, before the old one does (old_reaches_first).
 */
#include <algorithm>
#include <cstring>

#include "state.h"

/* Epochs of two servers may have the same number, and differ in their random part. */
int
number_of(int epoch)
{
	return epoch & ~OLD_PRIMARY;
}

bool
is_of_lower_timeline(const State &s, int epoch)
{
	return s.d.there && ((epoch & OLD_PRIMARY) || epoch <= s.d.last_epoch);
}

bool
all_are_retired(const State &s)
{
	if (!deposed || !s.d.there || retire_no_wait)
		return true;
	for (int p = 0; p < processes; p++)
		if (s.p[p].up && !s.d.retired[p])
			return false;
	return true;
}

/* The commit record was replayed before the promotion, so the new primary has had the commit since then. */
void
become_visible_there(State &s, int i)
{
	Writer	   &w = s.w[i];

	for (int k = 0; k < keys; k++)
		if ((w.flags & APPLIED) && keys_of(i) >> k & 1)
			s.d.row[k] = w.op == DELETE ? (int) ABSENT : i + 1;
	w.step = W_VISIBLE;
}

/*
 * What is committing is committed on both servers, and its backend goes on on the old one. What runs there never commits, and what is prepared stays so.
 * The new primary starts as after a crash.
 */
static void
promote(const State &from)
{
	State	   &s = add(from, "a standby is promoted; the old primary lives on");

	s.d.there = 1;
	memcpy(s.d.row, s.row, sizeof(s.d.row));
	s.d.start = s.start;
	s.d.last_epoch = s.last_epoch;
	if (s.epoch_armed && !s.bypassed && !s.resume_from)
	{
		s.d.epoch = s.word_epoch;
		s.d.identity = s.armed_identity;
	}
	for (int i = 0; i < writers; i++)
	{
		Writer	   &w = s.w[i];

		if (w.fate == RUNNING)
			abort_writer(s, i);
		else if (w.fate == LOGGED)
			become_visible(s, i);
		if (w.step == W_LOGGED || w.step == W_VISIBLE || w.step == W_PREPARED)
			s.d.committing |= 1 << i;
		if (w.step == W_PREPARED && w.fate == COMMITTED)
			finish(s, i);
		w.commit_flag = w.acked = 0;
	}
	start_server(s, 0);
}

/*
 * What the old primary's keeper does. It is enough that Redis grants what it asks for: its word and its bound protect only its own writers, of which those
 * that are committing are left. To open in the same epoch again is to renew.
 */
static void
old_keeper_steps(const State &from)
{
	for (int p = 0; p < processes; p++)
	{
		const Process &q = from.p[p];
		int			number = std::max({(int) from.d.last_epoch, number_of(from.d.epoch), number_of(q.epoch)}) + 1;
		State		renewed = from;
		State		armed = from;

		if (from.d.epoch && renew_at(renewed, p, from.d.epoch, from.d.identity, lease))
			add(renewed, "old primary: renews P%d in epoch %d", p, from.d.epoch);
		if (number > max_epoch || from.d.committing || !arm_at(armed, p, number | OLD_PRIMARY, q.identity, lease, from.d.start))
			continue;
		State	   &s = add(armed, "old primary: arms P%d in an epoch %d of its own", p, number);

		s.d.epoch = number | OLD_PRIMARY;
		s.d.identity = q.identity;
	}
}

/* A replica takes this too, because it answers readers as long as its lease runs. */
static void
retire_steps(const State &from)
{
	for (int p = 0; p < processes; p++)
	{
		if (!from.p[p].up || from.d.retired[p])
			continue;
		State	   &s = add(from, "keeper: retires the lower timeline at P%d", p);

		s.d.retired[p] = 1;
		if (is_of_lower_timeline(s, s.p[p].epoch))
			s.p[p].lease = 0;
	}
}

void
deposed_steps(const State &from)
{
	if (!from.d.there)
		promote(from);
	else
	{
		old_keeper_steps(from);
		retire_steps(from);
	}
}
