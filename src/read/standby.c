/*
 * read/standby.c
 *	  Strong reads on a hot standby; see standby.h.
 *
 * Owns: the rule of doc/protocol.md, "Reading on a standby". After a miss Redis tells how far a standby must be to have the
 * newest row of the fence: a position in the WAL, or the transaction that has committed the row last. A reader takes a
 * snapshot that has that, and puts the row from it by the permit that came with it. If Redis stores the row, and it then
 * counts as current, the row is the newest.
 * Locks: those of a SELECT on the table.
 *
 * The row's version proves nothing. Versions restart when a table is truncated, so an old row on a standby that lags may
 * have a higher version than the newest row. A position and a transaction's number are of one timeline. On another one (of
 * a standby that had received more than the one that was promoted) they mean something else.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "utils/snapmgr.h"

#include "base/position.h"
#include "base/settings.h"
#include "base/shared.h"
#include "domain/domain.h"
#include "read/standby.h"
#include "redis/library.h"

#define PAUSE_FIRST_US	INT64CONST(500)	/* first pause between two looks at what is replayed; it doubles each time, */
#define MAX_PAUSE_US	INT64CONST(10000)	/* up to this */
#define OLD_STAMP		(UINT64CONST(1) << 30)	/* a number that is so much older cannot be looked up in a snapshot */

/* -----------------------------------------------------------------------------------------------------------------
 * How far the standby must be
 * -----------------------------------------------------------------------------------------------------------------
 */

static int
make_newest(const Asked *asked, Call *calls)
{
	call_newest(calls, asked->items[0]->fence);
	return asked->items[0]->answer.status == GET_MISS ? 1 : 0;
}

/* Takes permit and token from the same answer as the rest, because what is read will be put by them. */
static void
take_newest(const Asked *asked)
{
	ManyItem   *item = asked->items[0];
	NewestReply newest;

	if (asked->replies == NULL || !calls_newest(asked->replies[0], &newest) || strcmp(newest.owner, library_owner()) != 0)
		return;
	item->answer.permit = pstrdup(newest.permit);
	item->answer.token = pnstrdup(newest.permit, calls_token_len(newest.permit));
	item->timeline = newest.timeline;
	if (!position_parse(newest.position, &item->position))
		item->position = InvalidXLogRecPtr;
	item->recent = strtoull(newest.recent, NULL, 10);
	item->running = strtoull(newest.running, NULL, 10);
}

static const Question newest_question = {.most = 1, .make = make_newest, .take = take_newest};

/* Whether the item needs no row of this standby, or may get one. */
static bool
is_possible(const ManyItem *item)
{
	return item->answer.status == GET_HIT || (item->answer.permit && (item->position != InvalidXLogRecPtr || item->recent != 0));
}

/* Whether the snapshot has what this transaction has committed. It has committed, on this timeline. */
static bool
sees_commit(uint64 xid, Snapshot snapshot)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

	return xid != 0 && xid < next && next - xid < OLD_STAMP && !XidInMVCCSnapshot((TransactionId) xid, snapshot);
}

/* -----------------------------------------------------------------------------------------------------------------
 * Waiting for it
 * -----------------------------------------------------------------------------------------------------------------
 */

/* replayed: what was replayed before the snapshot was taken; 0: not known. */
static bool
is_far_enough(ManyItem *item, XLogRecPtr replayed, TimeLineID timeline, Snapshot snapshot)
{
	if (item->answer.status == GET_HIT)
		return true;
	if (item->timeline != timeline)
		return false;
	item->by_commit = sees_commit(item->recent, snapshot);
	return item->by_commit || (item->position != InvalidXLogRecPtr && replayed >= item->position);
}

/* Takes a snapshot now. NULL: it is not far enough. */
static Snapshot
far_enough(int n, ManyItem *items, bool *is_new)
{
	TimeLineID	timeline;
	XLogRecPtr	replayed = GetXLogReplayRecPtr(&timeline);
	Snapshot	snapshot = many_snapshot(n, items, is_new);

	for (int i = 0; i < n; i++)
		if (!is_far_enough(&items[i], *is_new ? replayed : 0, timeline, snapshot))
		{
			UnregisterSnapshot(snapshot);
			return NULL;
		}
	return snapshot;
}

/* Whether this standby replays, and not with a delay that is longer than a reader waits. */
static bool
may_wait(void)
{
	return RecoveryInProgress() && GetRecoveryPauseState() != RECOVERY_PAUSED && recovery_min_apply_delay <= setting_standby_wait;
}

/* Counts the misses by who serves them, and releases the readers that wait for any of the items. */
static void
finish(int n, ManyItem *items, DomainMetric served)
{
	for (int i = 0; i < n; i++)
		if (items[i].answer.status == GET_MISS)
			metrics_add(items[i].domain->metrics, served, 1);
	many_release(n, items);
}

/* As standby_snapshot, but does not finish the reads. */
static Snapshot
find_snapshot(int n, ManyItem *items)
{
	int64		deadline = fence_clock() + setting_standby_wait * INT64CONST(1000);
	int64		pause = PAUSE_FIRST_US;
	int64		left;
	Snapshot	snapshot;
	bool		is_new;

	(void) many_ask(n, items, &newest_question, NULL);
	for (int i = 0; i < n; i++)
		if (!is_possible(&items[i]))
			return NULL;
	while ((snapshot = far_enough(n, items, &is_new)) == NULL)
	{
		left = deadline - fence_clock();
		if (left <= 0 || !is_new || !may_wait() || !reader_pause(Min(pause, left), wait_event_standby()))
			return NULL;
		pause = Min(pause * 2, MAX_PAUSE_US);
	}
	return snapshot;
}

Snapshot
standby_snapshot(int n, ManyItem *items)
{
	Snapshot	snapshot = find_snapshot(n, items);

	if (snapshot == NULL)
		finish(n, items, METRIC_STANDBY_PRIMARY);
	return snapshot;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Proving what was read
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * Whether the primary shows this row too. An INSERT need not reserve, and the standby may have replayed it before it is
 * visible there. Who committed last, or was over at the last mark, is visible. That there is no row is known only if INSERT
 * reserves.
 */
static bool
is_visible_on_primary(const ManyItem *item)
{
	if (!item->found)
		return item->domain->cache_absent;
	return item->by_commit || U64FromFullTransactionId(item->writer) < item->running;
}

bool
standby_prove(int n, ManyItem *items)
{
	bool		proven = true;

	for (int i = 0; i < n && proven; i++)
		proven = items[i].answer.status == GET_HIT || is_visible_on_primary(&items[i]);
	proven = proven && many_put_rows(n, items);
	for (int i = 0; i < n; i++)
		items[i].answer.version = items[i].version;	/* which the fence must have, also where it was there before */
	proven = proven && many_check(n, items, 0);
	finish(n, items, proven ? METRIC_STANDBY_SERVED : METRIC_STANDBY_PRIMARY);
	return proven;
}

bool
standby_read(int n, ManyItem *items)
{
	Snapshot	snapshot = standby_snapshot(n, items);

	if (snapshot == NULL)
		return false;
	for (int i = 0; i < n; i++)
		if (items[i].answer.status == GET_MISS)
			many_read_rows(1, &items[i], snapshot);
	UnregisterSnapshot(snapshot);
	return standby_prove(n, items);
}
