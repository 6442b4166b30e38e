/*
 * faults.cpp
 *	  The patrol, and the faults: eviction, lost memory, old keys, replicas that are promoted, crashes of PostgreSQL.
 */
#include <cstring>

#include "state.h"

/* The patrol looks up the fate of a transaction, and then sends a message. The message may arrive much later. */
static void
patrol_looks(const State &from, int p, int i, int what)
{
	const Process &q = from.p[p];
	int			fate = from.w[i].fate;
	int			set = what == DOMAIN ? q.domain_pending : q.pending[what >> 1];
	bool		elsewhere = (from.d.committing >> i & 1) && is_of_lower_timeline(from, q.epoch);	/* this is the old primary's patrol */
	bool		over = is_over(fate) && !elsewhere;
	bool		drops = over || (patrol_log_alone && fate == LOGGED) || (patrol_ignores_prepared && fate == PREPARED) || patrol_timeout;

	if (!q.up || !q.epoch || !(set >> i & 1) || !drops || (patrol_drops_committed_only && fate != COMMITTED))
		return;
	State	   &s = add(from, "patrol: %s of T%d at P%d: its transaction is %s", name_of(what), i + 1, p, fate == ABORTED ? "aborted" : "over");

	s.patrol_on = 1;
	s.patrol_writer = i;
	s.patrol_process = p;
	s.patrol_what = what;
	s.patrol_epoch = q.epoch;
	s.patrol_kind = fate == COMMITTED || fate == LOGGED ? DROP_COMMITTED : DROP_ABORTED;
}

static void
forget_patrol(State &s)
{
	s.patrol_on = s.patrol_writer = s.patrol_process = s.patrol_what = s.patrol_kind = s.patrol_epoch = 0;
}

void
patrol_steps(const State &from)
{
	int			p = from.patrol_process;

	if (patrol_drops_nothing)
		return;
	if (!from.patrol_on)
	{
		for (p = 0; p < processes; p++)
			for (int i = 0; i < writers; i++)
				for (int what = 1; what <= DOMAIN; what <<= 1)
					if (what == DOMAIN || what >> 1 < keys)
						patrol_looks(from, p, i, what);
		return;
	}
	if (takes_writes(from, p) && from.p[p].epoch == from.patrol_epoch)
	{
		State	   &s = add(from, "the patrol's drop(%s of T%d) arrives at P%d", name_of(from.patrol_what), from.patrol_writer + 1, p);

		forget_patrol(s);
		if (from.patrol_what == DOMAIN)
			end_domain(s, p, from.patrol_writer, (EndKind) from.patrol_kind);
		else
			end(s, p, from.patrol_writer, from.patrol_what >> 1, (EndKind) from.patrol_kind);
	}
	forget_patrol(add(from, "the patrol's drop is lost"));
}

static void
eviction_steps(const State &from)
{
	for (int p = 0; p < processes; p++)
		for (int k = 0; k < keys; k++)
		{
			if (eviction && from.p[p].fence[k])
				remove_fence(add(from, "%s is evicted at P%d", name_of(1 << k), p), p, k);
			if (recent && forgetting && from.p[p].recent[k])
				add(from, "who committed last is thrown away").p[p].recent[k] = 0;
		}
}

/* The process gets the old keys that a replica or an RDB file has. */
static void
restore_saved(State &s, int p)
{
	for (int k = 0; k < keys; k++)
	{
		s.p[p].fence[k] = s.saved_fence[k];
		s.p[p].content[k] = s.saved_content[k];
		s.saved_fence[k] = s.saved_content[k] = 0;
		s.p[p].aged[k] = 0;
	}
	s.saved = 0;
}

static void
restart_steps(const State &from)
{
	enum {WITH_KEYS, WITHOUT_KEYS, OLD_KEYS};

	for (int how = WITH_KEYS; how <= (from.saved ? OLD_KEYS : WITHOUT_KEYS); how++)
	{
		State	   &s = add(from, "Redis P0 restarts%s", how == WITH_KEYS ? " with its keys" : how == WITHOUT_KEYS ? " without keys" :
							" (or is synchronised) with old keys");

		s.restarts_done++;
		lose_memory(s, 0);
		for (int k = 0; k < keys && how == WITHOUT_KEYS; k++)
			remove_fence(s, 0, k);
		if (how == OLD_KEYS)
			restore_saved(s, 0);
	}
}

static void
copy_keys(State &s, int from, int to)
{
	memcpy(s.p[to].fence, s.p[from].fence, sizeof(s.p[to].fence));
	memcpy(s.p[to].content, s.p[from].content, sizeof(s.p[to].content));
	memcpy(s.p[to].aged, s.p[from].aged, sizeof(s.p[to].aged));
}

/* The old master becomes a replica and keeps its memory. Writes of the new master reach it late, or never. */
static void
demotion_steps(const State &from)
{
	int			master = from.address;
	int			old = 1 - master;

	if (!from.p[0].up || !from.p[1].up)
		return;
	if (from.level && !from.p[old].follows)
		add(from, "P%d follows P%d, and keeps its memory", old, master).p[old].follows = 1;
	else if (from.p[old].follows)
		copy_keys(add(from, "P%d has the keys of P%d as they are now", old, master), master, old);
}

static void
failover_steps(const State &from)
{
	if (from.p[1].up)
	{
		if (from.failovers_done > 0)
		{
			State	   &s = add(from, "P%d is master again", 1 - from.address);

			s.failovers_done++;
			s.address = 1 - from.address;
			s.p[s.address].follows = s.level = 0;
		}
		return;
	}
	for (int old = 0; from.address == 0 && old <= from.saved; old++)
	{
		State	   &s = add(from, "replica P1 is promoted%s; its old master P0 lives on", old ? " with older keys" : "");

		s.failovers_done++;
		s.address = 1;
		s.p[1].up = 1;
		s.p[1].identity = s.next_identity++;
		if (deposed)
			s.d.retired[1] = s.d.there && !old_reaches_first;
		copy_keys(s, 0, 1);
		s.level = demotions && !old;
		if (old)
			restore_saved(s, 1);
	}
}

/*
 * A server start. With the file of a clean shutdown the same epoch may be resumed, if Redis agrees: the caller has set
 * word_epoch, armed_identity and the bits as they are in the file. start_of_file: which start has written it; 0: there
 * is no such file, and a new epoch is necessary.
 */
void
start_server(State &s, int start_of_file)
{
	bool		resumes = start_of_file != 0;

	s.start = s.next_start++;
	s.resume_from = start_of_file;
	s.bypassed = 0;
	change_word(s, CLOSED, resumes ? s.word_epoch : 0);
	s.epoch_armed = resumes;
	if (!resumes)
	{
		s.armed_identity = 0;
		clear_bits(s);
	}
	s.bound = 0;
	s.bound_unset = 1;
	if (buckets)
		s.bits_epoch = resumes && bits_before_resume ? s.word_epoch : 0;
	s.courier_step = s.courier_bucket = s.courier_epoch = s.courier_turn = s.courier_waits = 0;
	s.keeper_step = K_IDLE;
	s.keeper_same_word = s.keeper_identity = s.keeper_knows = s.keeper_epoch = s.keeper_clock = 0;
}

/* PostgreSQL crashes. lost: the set of writers whose commit record has not reached the disk. */
static void
crash(const State &from, int lost)
{
	for (int i = 0; i < writers; i++)
		if ((lost >> i & 1) && from.w[i].fate != LOGGED)
			return;
	if (!may_lose(from, lost))
		return;
	State	   &s = add(from, "PostgreSQL crashes and comes back");

	lose_commits(s, lost);
	s.crashes_done++;
	for (int i = 0; i < writers; i++)
	{
		Writer	   &w = s.w[i];
		int			fate = w.fate;

		if (fate == RUNNING || (fate == LOGGED && (lost >> i & 1)))
		{
			w.fate = ABORTED;
			finish(s, i);
		}
		else if (fate == LOGGED)
		{
			become_visible(s, i);
			finish(s, i);
		}
		else if (w.step == W_VISIBLE)
			finish(s, i);
		w.commit_flag = w.acked = 0;
	}
	forget_patrol(s);

	int			bits_epoch = s.bits_epoch;
	int			epoch = s.word_epoch;
	int			armed = s.epoch_armed;
	int			identity = s.armed_identity;

	start_server(s, resume_after_crash ? s.resume_from : 0);
	if (crash_clears_bits)
		s.bits_epoch = bits_epoch;
	if (!epoch_survives_crash)
		return;
	s.word_epoch = epoch;
	s.epoch_armed = armed;
	s.armed_identity = identity;
}

static void
copy_directory(State &s, int start_of_file)
{
	s.copied = 1;
	memcpy(s.copy_row, s.row, sizeof(s.copy_row));
	for (int i = 0; i < writers; i++)
		s.copy_over |= is_over(s.w[i].fate) << i;
	s.copy_start = start_of_file;
	s.copy_epoch = s.word_epoch;
	s.copy_identity = s.armed_identity;
	memcpy(s.copy_bits, s.bits, sizeof(s.copy_bits));
	memcpy(s.copy_turn_of, s.turn_of, sizeof(s.copy_turn_of));
}

/* No lease runs, and none can begin: neither the server nor a session without the library writes before that. */
static bool
leases_are_over(const State &s)
{
	bool		over = !s.late_grant_ticks;

	for (int p = 0; p < processes; p++)
		over = over && !s.p[p].lease;
	return over;
}

/*
 * A clean shutdown ends what runs, and waits for what is committing. It leaves the file if the epoch could go on.
 * outsider: a writer that runs while the server is down, and reserves nothing; -1: none.
 */
static void
clean_restart(const State &from, int outsider, bool copies_too)
{
	for (int i = 0; i < writers; i++)
		if (from.w[i].fate == LOGGED || from.w[i].step == W_VISIBLE)
			return;
	State	   &s = add(from, "PostgreSQL is shut down cleanly%s%s, and started again", copies_too ? ", copied" : "",
						outsider >= 0 ? ", written to without the library" : "");
	int			start = s.epoch_armed && !s.resume_from && (!s.bypassed || resume_after_bypass) ? s.start : 0;

	s.clean_restarts_done++;
	for (int i = 0; i < writers; i++)
		if (s.w[i].fate == RUNNING)
			abort_writer(s, i);
	if (copies_too)
		copy_directory(s, start);
	if (outsider >= 0)
	{
		s.w[outsider].op = UPDATE;
		s.w[outsider].flags = APPLIED;
		become_visible(s, outsider);
		finish(s, outsider);
	}
	start_server(s, outsider < 0 || resume_after_others ? start : 0);
}

/*
 * The copy takes the place of the server. What was committed after the copy was made is lost. That takes longer than a
 * lease: until then readers may get the lost values (doc/protocol.md, "What it assumes").
 */
static void
start_copy(const State &from)
{
	State	   &s = add(from, "the server ends, and the copy is started in its place");

	for (int i = 0; i < writers; i++)
	{
		if (s.w[i].fate == NOT_BEGUN || s.w[i].step == W_OVER)
		{
			if (s.w[i].fate == COMMITTED && !(s.copy_over >> i & 1))
				s.w[i].fate = ABORTED;
			continue;
		}
		s.w[i].fate = ABORTED;
		finish(s, i);
	}
	memcpy(s.row, s.copy_row, sizeof(s.row));
	memcpy(s.bits, s.copy_bits, sizeof(s.bits));
	memcpy(s.turn_of, s.copy_turn_of, sizeof(s.turn_of));
	s.turn_answered = 0;
	s.word_epoch = s.copy_epoch;
	s.armed_identity = s.copy_identity;
	s.f = {};					/* what it has read was judged by commits that are lost */
	forget_patrol(s);

	int			start = s.copy_start;

	s.copied = s.copy_over = s.copy_start = s.copy_epoch = s.copy_identity = 0;
	memset(s.copy_row, 0, sizeof(s.copy_row));
	memset(s.copy_bits, 0, sizeof(s.copy_bits));
	memset(s.copy_turn_of, 0, sizeof(s.copy_turn_of));
	start_server(s, start);
}

static void
clean_restart_steps(const State &from)
{
	if (from.copied && leases_are_over(from))
		start_copy(from);
	if (from.clean_restarts_done >= clean_restarts)
		return;
	for (int copy = 0; copy <= (copies && !from.copied); copy++)
		clean_restart(from, -1, copy);
	for (int i = 0; i < writers && others && leases_are_over(from); i++)
		if (from.w[i].fate == NOT_BEGUN)
			clean_restart(from, i, false);
}

void
fault_steps(const State &from)
{
	eviction_steps(from);
	if (snapshot && !from.saved && from.p[0].up)
	{
		State	   &s = add(from, "a replica or a file has the keys of P0 as they are now");

		s.saved = 1;
		memcpy(s.saved_fence, s.p[0].fence, sizeof(s.saved_fence));
		memcpy(s.saved_content, s.p[0].content, sizeof(s.saved_content));
	}
	if (from.restarts_done < restarts)
		restart_steps(from);
	if (from.failovers_done < failovers)
		failover_steps(from);
	if (demotions)
		demotion_steps(from);
	if (from.crashes_done < crashes)
		for (int lost = 0; lost < 1 << writers; lost++)
			crash(from, lost);
	if (clean_restarts)
		clean_restart_steps(from);
}
