/*
 * standby.cpp
 *	  A standby, which replays commits in the order of their records, and a reader there that fills the cache; the marks that tell this reader how far the
 *	  standby must be.
 *
 * The reader is told a position (by a mark) or who committed last. It waits for a snapshot that has that, takes the row from it, and puts it by the number
 * that it was told. What it puts and then finds current is its answer, so the fast reader, which checks what is in the cache, checks this reader too.
 */
#include "state.h"

void
log_commit(State &s, int i)
{
	if (standby && (s.w[i].flags & APPLIED))
		s.b.wal[s.b.logged++] = i + 1;
}

/* A crash loses the end of the WAL, and nothing that the standby has: only what is on the disk is sent to it. */
bool
may_lose(const State &s, int lost)
{
	bool		all_from_here = false;

	for (int n = 0; standby && n < s.b.logged; n++)
	{
		bool		is_lost = lost >> (s.b.wal[n] - 1) & 1;

		if ((is_lost && n < s.b.replayed) || (all_from_here && !is_lost))
			return false;
		all_from_here = is_lost;
	}
	return true;
}

void
lose_commits(State &s, int lost)
{
	while (s.b.logged > 0 && (lost >> (s.b.wal[s.b.logged - 1] - 1) & 1))
		s.b.wal[--s.b.logged] = 0;
}

static void
no_mark(State &s)
{
	s.b.mark_step = s.b.mark_process = s.b.mark_position = s.b.mark_clean = s.b.mark_foreign = 0;
}

/* The process has lost its numbers, or they say nothing about what it has now. */
void
forget_mark(State &s, int p)
{
	if (s.b.mark_step && s.b.mark_process == p)
		no_mark(s);
}

static void
mark_steps(const State &from)
{
	int			all = (1 << keys) - 1;

	if (from.b.mark_step == MARK_NONE || from.b.mark_step == MARK_TOLD)
		for (int p = 0; p < processes; p++)
		{
			if (!from.p[p].up || !from.p[p].epoch)
				continue;
			State	   &s = add(from, "keeper: gets a number from P%d", p);

			no_mark(s);
			s.b.mark_step = MARK_NUMBER;
			s.b.mark_process = p;
			s.b.mark_clean = all;
			if (mark_position_first)
				s.b.mark_position = s.b.logged;
		}
	if (from.b.mark_step == MARK_NUMBER)
	{
		State	   &s = add(from, "keeper: the WAL ends at %d", from.b.logged);

		s.b.mark_step = MARK_SENT;
		if (mark_position_first)
			s.b.mark_clean = all;
		else
			s.b.mark_position = s.b.logged;
	}
	if (from.b.mark_step == MARK_SENT && from.p[from.b.mark_process].epoch)
		add(from, "keeper: the mark arrives at P%d", from.b.mark_process).b.mark_step = MARK_TOLD;
}

void
standby_steps(const State &from)
{
	if (from.b.replayed < from.b.logged)
		add(from, "the standby replays the commit of T%d", from.b.wal[from.b.replayed]).b.replayed++;
	mark_steps(from);
}

static State &
tell(const State &from, int p, int k, const char *how)
{
	State	   &s = add(from, "R1 on the standby misses %s at P%d: token %d and %s", name_of(1 << k), p, from.p[p].token, how);
	Reader	   &r = s.r[0];

	r = {};
	r.step = R_TOLD;
	r.process = p;
	r.key = k;
	r.token = from.p[p].token;
	r.since = 1;
	s.b.position = s.b.over = s.b.stamp = 0;
	return s;
}

void
standby_told_steps(const State &from, int p, int k)
{
	const Process &q = from.p[p];

	if (q.pending[k] && !standby_while_pending)
		return;
	if (from.b.mark_step == MARK_TOLD && from.b.mark_process == p && (from.b.mark_clean >> k & 1))
	{
		State	   &s = tell(from, p, k, "a mark");

		s.b.position = s.b.mark_position;
		s.b.over = 0;
		for (int i = 0; i < writers; i++)
			if (is_over(s.w[i].fate))
				s.b.over |= 1 << i;
	}
	if (recent && q.recent[k] && q.recent[k] - 1 != ABSENT && (is_open(q, k) || recent_in_closed))
		tell(from, p, k, "who committed last").b.stamp = q.recent[k] - 1;
}

/* The row as the standby has it. The first content is 0. */
static int
replayed_row(const State &s, int k)
{
	int			row = row_absent ? (int) ABSENT : 0;

	for (int n = 0; n < s.b.replayed; n++)
	{
		int			i = s.b.wal[n] - 1;

		if (keys_of(i) >> k & 1)
			row = s.w[i].op == DELETE ? (int) ABSENT : i + 1;
	}
	return row;
}

static bool
sees_commit(const State &s, int stamp)
{
	for (int n = 0; n < s.b.replayed; n++)
		if (s.b.wal[n] == stamp)
			return true;
	return standby_stamp_unseen;
}

void
standby_snapshot_steps(const State &from)
{
	const Standby &b = from.b;
	int			row = replayed_row(from, from.r[0].key);
	bool		newest = b.stamp ? sees_commit(from, b.stamp) : b.replayed >= b.position || standby_any_position;
	bool		over = b.stamp || row == 0 || row == ABSENT || (b.over >> (row - 1) & 1) || standby_any_row;

	if (newest && over && (row != ABSENT || absence_cached))
	{
		State	   &s = add(from, "R1 snapshot on the standby: %s by %d", name_of(1 << from.r[0].key), row);

		s.r[0].content = row;
		s.r[0].step = R_READ;
	}
	add(from, "R1 sends its caller to the primary").r[0] = {};
}
