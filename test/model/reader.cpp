/*
 * reader.cpp
 *	  The slow reader, which fills the cache, and the fast reader, which reads the fence itself.
 */
#include "state.h"

static void
be_told(const State &from, int j, int p, int k)
{
	const Reader &before = from.r[j];
	const Process &q = from.p[p];
	State	   &s = add(from, "R%d misses %s at P%d: token %d and a number", j + 1, name_of(1 << k), p, q.token);
	Reader	   &r = s.r[j];

	r.process = p;
	r.key = k;
	r.token = q.token;
	r.since = 1;
	r.step = before.step == R_READ_FIRST ? R_READ : R_TOLD;
	if (q.token && q.fence[k] == q.token && !q.pending[k] && q.content[k] != from.row[k])
		violate("STALE: slow hit");
	if (recent && q.recent[k] && !q.pending[k] && !q.domain_pending && (is_open(q, k) || recent_in_closed) &&
		q.recent[k] - 1 != from.row[k])
		violate("STALE: who committed last is not who did");
}

static void
idle_steps(const State &from, int j)
{
	const Reader &r = from.r[j];

	if (snapshot_before_since && r.step == R_IDLE)
	{
		for (int k = 0; k < keys; k++)
			if (from.row[k] != ABSENT)
			{
				State	   &s = add(from, "R%d takes its snapshot: %s by %d", j + 1, name_of(1 << k), from.row[k]);

				s.r[j].key = k;
				s.r[j].content = from.row[k];
				s.r[j].step = R_READ_FIRST;
			}
		return;
	}
	for (int p = 0; p < processes; p++)
		for (int k = 0; k < keys; k++)
			if ((r.step == R_IDLE || k == r.key) && answers(from, p) && has_slot(from, p) && key_is_here(from, p, k) &&
				(!from.p[p].domain_pending || get_while_domain_pending))
			{
				if (j < standby)
					standby_told_steps(from, p, k);
				else
					be_told(from, j, p, k);
			}
}

/* The statement that reads the row also says in which epoch its server is OPEN. 0: in none, so there is nothing to put. */
static void
snapshot_of(const State &from, int j, const char *where, int row, int epoch)
{
	int			k = from.r[j].key;

	if ((row == ABSENT && !absence_cached) || (deposed && !epoch && !put_of_another_server))
		add(from, "R%d snapshot%s: nothing to put", j + 1, where).r[j] = {};
	else
	{
		State	   &s = add(from, "R%d snapshot%s: %s by %d", j + 1, where, name_of(1 << k), row);

		s.r[j].content = row;
		s.r[j].step = R_READ;
		if (deposed && !put_of_another_server)
			s.d.names[j] = epoch;
	}
}

static void
snapshot_steps(const State &from, int j)
{
	int			k = from.r[j].key;

	snapshot_of(from, j, "", from.row[k], from.word == OPEN ? from.word_epoch : 0);
	if (deposed && from.d.there)
		snapshot_of(from, j, " on the old primary", from.d.row[k], from.d.epoch);
	if (own_reads_fill && from.lock[k])
	{
		State	   &s = add(from, "T%d itself reads the row that it has written", from.lock[k]);

		s.r[j].content = from.lock[k];
		s.r[j].step = R_READ;
	}
}

static void
put_steps(const State &from, int j)
{
	const Reader &r = from.r[j];

	if (put_allowed(from, j))
	{
		State	   &s = add(from, "R%d put(%s by %d) at P%d", j + 1, name_of(1 << r.key), r.content, r.process);
		Process    &q = s.p[r.process];

		note_write(s, r.process);
		q.fence[r.key] = q.token;
		q.content[r.key] = r.content;
		q.aged[r.key] = 0;
		s.r[j] = {};
		s.d.names[j] = 0;
	}
	State	   &t = add(from, "R%d's put is lost or refused", j + 1);

	t.r[j] = {};
	t.d.names[j] = 0;
}

void
reader_steps(const State &from, int j)
{
	const Reader &r = from.r[j];

	if (r.step == R_IDLE || r.step == R_READ_FIRST)
		idle_steps(from, j);
	else if (r.step == R_TOLD && j < standby)
		standby_snapshot_steps(from);
	else if (r.step == R_TOLD)
		snapshot_steps(from, j);
	else
		put_steps(from, j);
	if (forgetting && r.step != R_IDLE && r.since)
		forget_ends(add(from, "what has ended is thrown away"), r.process, r.key);
}

/* -----------------------------------------------------------------------------------------------------------------
 * The fast reader: MGET, then fence_token, both at the same process
 * -----------------------------------------------------------------------------------------------------------------
 */

static bool
is_readable(const State &from, int p, int k)
{
	return from.p[p].fence[k] && (!moves || from.p[p].serves || from.leaving == 2 - p);
}

static void
read_fences(const State &from, int p)
{
	const Process &q = from.p[p];
	bool		all = true;
	bool		stale = false;

	for (int k = 0; k < keys; k++)
	{
		all = all && is_readable(from, p, k) && q.fence[k] == q.fence[0];
		stale = stale || q.content[k] != from.row[k];
	}
	if (!all || !stale)
		return;
	State	   &s = add(from, "F reads at P%d: token %d, a by %d: not current", p, q.fence[0], q.content[0]);

	s.f.step = F_HAS_DATA;
	s.f.process = p;
	s.f.token = q.fence[0];
}

/* In a pipeline each GET is judged by itself, so this ignores the other GETs. The token may be read at any time after this GET. */
static void
read_one_fence(const State &from, int p, int k)
{
	const Process &q = from.p[p];

	if (!is_readable(from, p, k) || q.content[k] == from.row[k])
		return;
	State	   &s = add(from, "F GET %s at P%d: token %d, by %d: not current", name_of(1 << k), p, q.fence[k], q.content[k]);

	s.f.step = F_HAS_DATA;
	s.f.process = p;
	s.f.token = q.fence[k];
}

static void
first_steps(const State &from)
{
	for (int p = 0; p < processes; p++)
	{
		const Process &q = from.p[p];

		if (!q.up)
			continue;
		if (token_first)
		{
			if (!answers(from, p) || q.domain_pending || from.row[0] == ABSENT)
				continue;
			State	   &s = add(from, "F asks P%d for the token first: %d", p, q.token);

			s.f.step = F_HAS_TOKEN;
			s.f.process = p;
			s.f.token = q.token;
			s.f.together = 1 << from.row[0];
		}
		else if (split_get)
		{
			if (!q.fence[0] || q.content[0] == ABSENT)
				continue;
			State	   &s = add(from, "F GET a at P%d: token %d, by %d", p, q.fence[0], q.content[0]);

			s.f.step = F_HAS_FIRST;
			s.f.process = p;
			s.f.token = q.fence[0];
			s.f.content = q.content[0];
		}
		else if (pipeline)
			for (int k = 0; k < keys; k++)
				read_one_fence(from, p, k);
		else
			read_fences(from, p);
	}
	if (replica_get && from.saved && from.saved_fence[0] && from.saved_content[0] != from.row[0])
	{
		State	   &s = add(from, "F GET a at a replica: token %d, by %d", from.saved_fence[0], from.saved_content[0]);

		s.f.step = F_HAS_DATA;
		s.f.process = 0;
		s.f.token = from.saved_fence[0];
	}
}

static void
token_steps(const State &from)
{
	for (int p = 0; p < processes; p++)
		if ((p == from.f.process || client_moves) && tells_token(from, p) && from.p[p].token == from.f.token)
		{
			add(from, "F fence_token at P%d: %d: HIT", p, from.p[p].token);
			violate("STALE: fast hit");
		}
	add(from, "F fence_token: no hit").f = {};
}

void
fast_reader_steps(const State &from)
{
	const FastReader &f = from.f;
	const Process &q = from.p[f.process];

	switch (f.step)
	{
		case F_IDLE:
			first_steps(from);
			break;
		case F_HAS_DATA:
			token_steps(from);
			break;
		case F_HAS_TOKEN:
			add(from, "F GET a: by %d", q.content[0]).f = {};
			if (q.fence[0] == f.token && !(f.together >> q.content[0] & 1))
				violate("STALE: the token was asked for first");
			break;
		case F_HAS_FIRST:
			if (q.fence[1] == f.token && q.content[1] != ABSENT && !(f.together >> q.content[1] & 1))
			{
				State	   &s = add(from, "F GET b: by %d: never current together", q.content[1]);

				s.f.step = F_HAS_DATA;
				s.f.content = s.f.together = 0;
			}
			add(from, "F gives up").f = {};
			break;
	}
}
