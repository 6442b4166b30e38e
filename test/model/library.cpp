/*
 * library.cpp
 *	  The function library inside Redis: each function is one atomic step.
 */
#include <cstring>

#include "state.h"

/* The lowest number that is not in use as a token anywhere. */
static int
draw_token(const State &s)
{
	for (int token = 1;; token++)
	{
		bool		known = s.f.token == token;

		for (int p = 0; p < processes; p++)
		{
			known = known || s.p[p].token == token;
			for (int k = 0; k < keys; k++)
				known = known || s.p[p].fence[k] == token;
		}
		for (int j = 0; j < readers; j++)
			known = known || s.r[j].token == token;
		for (int k = 0; k < keys; k++)
			known = known || (s.saved && s.saved_fence[k] == token);
		if (!known)
			return token;
	}
}

/* A replica refuses every function that may write, whatever it remembers (READONLY). */
bool
takes_writes(const State &s, int p)
{
	return s.p[p].up && !s.p[p].follows;
}

/* Notes that the process changes its keys. After that the old master of a failover cannot be resynchronised partially. */
void
note_write(State &s, int p)
{
	if (p != s.address)
		s.level = 0;
}

void
remove_fence(State &s, int p, int key)
{
	if (s.p[p].fence[key])
		note_write(s, p);
	s.p[p].fence[key] = s.p[p].content[key] = 0;
	s.p[p].aged[key] = 0;
}

void
new_token(State &s, int p)
{
	Process    &q = s.p[p];

	if (!mark_outlives_token && !s.b.mark_foreign)
		forget_mark(s, p);
	q.token = 0;
	q.token = token_is_epoch ? q.epoch : draw_token(s);
	for (int k = 0; k < keys; k++)
	{
		if (!new_token_keeps_proofs)
			q.proven[k] = 0;
		if (!recent_outlives_token)
			q.recent[k] = 0;
	}
}

/* From now on a put with a permit from before is refused. */
void
forget_ends(State &s, int p, int key)
{
	for (int j = 0; j < readers; j++)
		if (s.r[j].step != R_IDLE && s.r[j].process == p && s.r[j].key == key && !(standby_no_proof && j < standby))
			s.r[j].since = 0;
	if (s.b.mark_step && s.b.mark_process == p && !s.b.mark_foreign && !mark_any_since)
		s.b.mark_clean &= ~(1 << key);
}

/* ended[F] = ++counter. Numbers from before, of readers and of other writers, prove nothing any more. */
static void
note_end(State &s, int p, int key)
{
	s.p[p].proven[key] = 0;
	forget_ends(s, p, key);
}

/* Whether the node executes a command on the key, according to the cluster while the slot moves. */
bool
key_is_here(const State &s, int p, int key)
{
	const Process &q = s.p[p];

	if (!moves)
		return true;
	if (q.serves)
		return s.leaving != p + 1 || q.fence[key];
	return s.leaving == 2 - p && !s.p[1 - p].fence[key];
}

bool
has_slot(const State &s, int p)
{
	return !moves || (s.p[p].granted && !s.p[p].lost);
}

/*
 * Whether the process is armed, its lease runs, and the domain is announced. The heartbeat key says that the lease runs. A replica has the keys of its
 * master, so the name of the heartbeat key contains the identity of the process.
 */
bool
answers(const State &s, int p)
{
	const Process &q = s.p[p];
	bool		runs = q.lease || (heartbeat_of_another && q.follows && s.p[1 - p].lease);

	return q.up && q.epoch && runs && q.announced;
}

bool
takes_reserve(const State &s, int p, int epoch)
{
	const Process &q = s.p[p];

	return takes_writes(s, p) && q.epoch && (q.epoch == epoch || reserve_any_epoch) && (!moves || q.granted || reserve_any_slot);
}

bool
takes_end(const State &s, int p, int epoch)
{
	const Process &q = s.p[p];

	return takes_writes(s, p) && q.epoch && (q.epoch == epoch || end_any_epoch);
}

/* counted: the writer has received the answer, so its commit names the number of this reservation. */
void
reserve(State &s, int p, int i, int key, bool counted, bool fails_half_way)
{
	Process    &q = s.p[p];
	int			own = 1 << i;
	bool		had = q.pending[key] & own;

	if (moves && (q.lost || !key_is_here(s, p, key)))
	{
		/* the writer gets its reservation although none is recorded, because this process answers no reader for the slot */
		if (lost_not_noted)
			q.pending[key] |= own;
		else
			q.lost = 1;
		return;
	}
	q.pending[key] |= own;
	if (counted || row_of_late_reserve)
		q.proven[key] |= own;
	if (fails_half_way)
		return;
	if (!recent_outlives_reserve)
		q.recent[key] = 0;
	if (!reserve_no_del && !(repeated_reserve_no_del && had))
		remove_fence(s, p, key);
}

/* The conditions that a put shares with a commit that stores its row. except: the bit of the writer itself, 0 for a reader. */
static bool
others_pending(const Process &q, int key, int except)
{
	return q.pending[key] & ~except;
}

/* A put, and a commit with the row, are refused in a closed bucket. */
bool
is_open(const Process &q, int key)
{
	return !buckets || (q.open >> key % buckets & 1);
}

/* A new turn. From now on nothing is stored. What was lives on for its time, also where a slot has taken it meanwhile. */
void
close_for_turn(State &s, int p, int turn)
{
	for (int at = 0; at < processes; at++)
		for (int k = 0; k < keys; k++)
			if (s.p[at].fence[k] && s.p[at].fence[k] == s.p[p].token && !s.p[at].aged[k])
				s.p[at].aged[k] = s.p[p].turn + 1;
	s.p[p].open = 0;
	s.p[p].turn = turn;
}

/* An opening names its epoch and turn. From it on nothing counts that was said before: no permit, no number of a reservation. */
void
open_bucket(State &s, int p, int bucket, int epoch, int turn)
{
	Process    &q = s.p[p];

	if (!q.up || !q.epoch || (q.epoch != epoch && !open_any_epoch) || (q.turn > turn && !open_any_turn))
		return;
	if (q.turn < turn)
		close_for_turn(s, p, turn);
	if (q.open >> bucket & 1)
		return;
	q.open |= 1 << bucket;
	for (int k = 0; k < keys; k++)
	{
		if (k % buckets != bucket)
			continue;
		if (!put_before_opening)
			forget_ends(s, p, k);
		if (!row_before_opening)
			q.proven[k] = 0;
		if (!recent_before_opening)
			q.recent[k] = 0;
	}
}

static bool
row_is_proven(const State &s, int p, int i, int key)
{
	const Process &q = s.p[p];

	return ((q.proven[key] & 1 << i) || row_any_since) && (!others_pending(q, key, 1 << i) || row_while_pending) && q.token &&
		has_slot(s, p) && key_is_here(s, p, key) && (is_open(q, key) || row_in_closed);
}

void
end(State &s, int p, int i, int key, EndKind kind)
{
	Process    &q = s.p[p];
	int			own = 1 << i;
	bool		was_pending = q.pending[key] & own;
	bool		proven = row_is_proven(s, p, i, key);
	bool		is_delete = s.w[i].op == DELETE;
	bool		committed = kind == END_COMMIT || kind == END_ROW;
	bool		noted = kind == END_ABORT || kind == DROP_ABORTED ? !abort_not_noted : !commit_not_noted;

	if (kind == END_ROW && proven && (!is_delete || row_of_delete))
	{
		note_write(s, p);
		q.fence[key] = q.token;
		q.content[key] = i + 1;
		q.aged[key] = 0;
	}
	if (recent && committed && (proven || (recent_no_proof && was_pending)) && (!is_delete || recent_of_deletes))
		q.recent[key] = (is_delete ? ABSENT : i + 1) + 1;
	q.pending[key] &= end_drops_all ? 0 : ~own;
	q.proven[key] &= ~own;
	if (kind == DROP_ABORTED || kind == DROP_COMMITTED)
		noted = noted && !drop_not_noted;
	if (was_pending && noted && !end_not_noted)
		note_end(s, p, key);
}

void
reserve_domain(State &s, int p, int i)
{
	s.p[p].domain_pending |= 1 << i;
	if (token_at_reserve)
		new_token(s, p);
}

void
end_domain(State &s, int p, int i, EndKind kind)
{
	Process    &q = s.p[p];
	bool		committed = kind == END_COMMIT || kind == END_ROW || (kind == DROP_COMMITTED && !drop_of_domain_keeps_token);

	if (!(q.domain_pending & 1 << i))
		return;
	q.domain_pending &= ~(1 << i);
	if (committed && !domain_commit_keeps_token && !token_at_reserve)
		new_token(s, p);
}

/*
 * Whether the library stores a reader's put: the token must be the domain's, the row must not be pending, no reservation of it may have ended since the
 * reader got its permit, and the lease must run. The put names the epoch of the server that was read: another server may have other rows.
 */
bool
put_allowed(const State &s, int j)
{
	const Reader &r = s.r[j];
	const Process &q = s.p[r.process];

	if (deposed && s.d.names[j] != q.epoch && !put_of_another_server)
		return false;

	return takes_writes(s, r.process) && q.epoch && q.announced && has_slot(s, r.process) && key_is_here(s, r.process, r.key) && q.token &&
		(!keeper || q.lease || put_no_lease) && (q.token == r.token || put_any_token) && (!others_pending(q, r.key, 0) || put_while_pending) &&
		(r.since || put_any_since) && (is_open(q, r.key) || put_in_closed);
}

/* Whether fence_token returns a token; otherwise it returns ''. */
bool
tells_token(const State &s, int p)
{
	const Process &q = s.p[p];

	return (answers(s, p) || (token_no_lease && q.up && q.epoch && q.announced)) && (!q.domain_pending || token_while_domain_pending) &&
		(has_slot(s, p) || token_no_slot) && q.token;
}

void
lose_memory(State &s, int p)
{
	Process    &q = s.p[p];

	if (mark_of_another && s.b.mark_step == MARK_SENT && s.b.mark_process == p)
		s.b.mark_foreign = 1;
	else
		forget_mark(s, p);
	q.identity = s.next_identity++;
	if (deposed)
		s.d.retired[p] = s.d.there && !old_reaches_first;
	q.epoch = q.lease = q.announced = q.domain_pending = q.follows = q.open = q.turn = 0;
	memset(q.aged, 0, sizeof(q.aged));
	if (!token_survives_restart)
		q.token = 0;
	for (int k = 0; k < keys; k++)
	{
		q.pending[k] = q.proven[k] = q.recent[k] = 0;
		for (int j = 0; j < readers; j++)
			if (s.r[j].step != R_IDLE && s.r[j].process == p)
				s.r[j].since = 0;
	}
}
