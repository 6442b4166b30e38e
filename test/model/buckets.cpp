/*
 * buckets.cpp
 *	  The courier opens buckets, and clears their bits.
 *
 * It alone changes the bits in PostgreSQL's shared memory. To open a bucket it sets the bit, waits for everybody whose
 * commit flag it finds set then, and tells Redis. A bucket that a large statement holds it leaves for later. To clear bits it
 * takes another map, and has Redis close everything. It forgets a former map once what was stored under it has run out, in
 * any order. In another epoch it forgets all maps: there nothing is open yet.
 */
#include <cstring>

#include "state.h"

static void
go_idle(State &s)
{
	s.courier_step = C_IDLE;
	s.courier_bucket = s.courier_epoch = s.courier_turn = s.courier_waits = 0;
}

static void
set_bit(State &s)
{
	s.bits[0] |= 1 << s.courier_bucket;
}

/* Any bucket may be wanted at any time. */
static void
want_steps(const State &from)
{
	for (int b = 0; b < buckets && from.bits_epoch; b++)
	{
		State	   &s = add(from, "courier: bucket %d is wanted%s", b, bit_after_opening ? "" : ": its bit is set");

		s.courier_step = bit_after_opening ? C_SETTLED : C_SET;
		s.courier_bucket = b;
		s.courier_epoch = s.bits_epoch;
		s.courier_turn = s.turn_of[0];
		if (!bit_after_opening)
			set_bit(s);
	}
}

/* It waits only for writers whose commit flag is set now. A writer that sets its flag later sees the bit. */
static void
look_at_commit_flags(const State &from)
{
	State	   &s = add(from, "courier: looks at the commit flags, and who holds the bucket");

	for (int i = 0; i < writers && !open_beside_hold; i++)
		for (int k = 0; k < keys; k++)
			if ((s.w[i].flags & HOLDS) && (keys_of(i) >> k & 1) && k % buckets == s.courier_bucket)
			{
				go_idle(s);
				return;
			}
	for (int i = 0; i < writers && !open_no_wait; i++)
		if (s.w[i].commit_flag && (!waits_for_few || !has_reserved_all(s, i)))
			s.courier_waits |= 1 << i;
	s.courier_step = s.courier_waits ? C_WAIT : C_SETTLED;
}

static void
wait_steps(const State &from)
{
	for (int i = 0; i < writers; i++)
	{
		bool		gone = !from.w[i].commit_flag || (open_when_logged && from.w[i].fate == LOGGED);

		if (!(from.courier_waits >> i & 1) || !gone)
			continue;
		State	   &s = add(from, "courier: T%d has another commit flag, or none", i + 1);

		s.courier_waits &= ~(1 << i);
		if (!s.courier_waits)
			s.courier_step = C_SETTLED;
		return;
	}
}

static void
send_steps(const State &from)
{
	auto		sent = [&](State &s) {
		if (bit_after_opening)
			set_bit(s);
		go_idle(s);
	};

	for (int p = 0; p < processes; p++)
		if (from.p[p].up)
		{
			State	   &s = add(from, "courier: open(%d) at P%d", from.courier_bucket, p);

			open_bucket(s, p, s.courier_bucket, s.courier_epoch, s.courier_turn);
			sent(s);
		}
	if (late && !from.late_open)
	{
		State	   &s = add(from, "courier: open(%d) is under way", from.courier_bucket);

		s.late_open = s.courier_bucket + 1;
		s.late_open_epoch = s.courier_epoch;
		s.late_open_turn = s.courier_turn;
		sent(s);
	}
}

static void
late_open_steps(const State &from)
{
	for (int p = 0; p <= processes; p++)
	{
		if (p < processes && !from.p[p].up)
			continue;
		State	   &s = add(from, p < processes ? "LATE open(%d) arrives at P%d" : "late open(%d) is lost", from.late_open - 1, p);

		if (p < processes)
			open_bucket(s, p, s.late_open - 1, s.late_open_epoch, s.late_open_turn);
		s.late_open = s.late_open_epoch = s.late_open_turn = 0;
	}
}

/* Those that may have buckets open in this epoch, and readers who believe them. */
static bool
must_answer(const State &s, int p)
{
	return s.p[p].up && s.p[p].epoch == s.bits_epoch && (!moves || s.p[p].granted);
}

/* Another map becomes the present one. There must be one that is empty. */
static void
take_turn(const State &from)
{
	for (int map = 1; map < MAPS; map++)
		if (!from.bits[map])
		{
			State	   &s = add(from, "courier: another map");

			s.bits[map] = s.bits[0];
			s.turn_of[map] = s.turn_of[0];
			s.bits[0] = s.turn_answered = 0;
			s.turn_of[0]++;
			return;
		}
}

/* Returns whether each process that must has closed its buckets in the present turn; makes the steps in which one does. */
static bool
close_steps(const State &from)
{
	bool		all = true;

	for (int p = 0; p < processes; p++)
	{
		if (!must_answer(from, p))
			continue;
		all = all && (from.turn_answered >> p & 1);
		for (int answered = 0; answered < 2 && !(from.turn_answered >> p & 1); answered++)
		{
			State	   &s = add(from, "courier: P%d closes its buckets%s", p, answered ? "" : ", no answer");

			if (s.p[p].turn < s.turn_of[0])
				close_for_turn(s, p, s.turn_of[0]);
			if (answered)
				s.turn_answered |= 1 << p;
		}
	}
	return all;
}

static void
forget_map(const State &from, int map)
{
	int			run_out = from.turn_of[forget_another ? MAPS - map : map];
	State	   &s = add(from, "what was stored in turn %d has run out; the map of turn %d is forgotten", run_out, from.turn_of[map]);

	s.bits[map] = s.turn_of[map] = 0;
	for (int p = 0; p < processes; p++)
		for (int k = 0; k < keys && !forget_before_expiry; k++)
			if (s.p[p].aged[k] == run_out + 1)
				remove_fence(s, p, k);
}

static void
turn_steps(const State &from)
{
	if (!from.bits_epoch)
		return;
	if (from.bits[0] && from.turn_of[0] < turns)
		take_turn(from);
	if (!from.bits[1] && !from.bits[2])
		return;

	bool		all = close_steps(from);

	for (int map = 1; map < MAPS; map++)
		if (from.bits[map] && (all || forget_before_answer))
			forget_map(from, map);
}

/* The buckets whose bits are set in any map */
int
bits_set(const State &s)
{
	int			found = 0;

	for (int map = 0; map < MAPS; map++)
		found |= s.bits[map];
	return found;
}

void
clear_bits(State &s)
{
	memset(s.bits, 0, sizeof(s.bits));
	memset(s.turn_of, 0, sizeof(s.turn_of));
	s.turn_answered = 0;
}

void
bucket_steps(const State &from)
{
	bool		another = from.bits_epoch != from.word_epoch && from.word == OPEN;

	if (another || (bits_cleared_early && from.word != OPEN && bits_set(from)))
	{
		State	   &s = add(from, "courier: all bits are cleared");

		clear_bits(s);
		if (another)
			s.bits_epoch = s.word_epoch;
		go_idle(s);
	}
	if (from.late_open)
		late_open_steps(from);
	switch (from.courier_step)
	{
		case C_IDLE: want_steps(from); turn_steps(from); break;
		case C_SET: look_at_commit_flags(from); break;
		case C_WAIT: wait_steps(from); break;
		case C_SETTLED: send_steps(from); break;
	}
}
