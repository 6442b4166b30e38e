/*
 * keeper/keeper.c
 *	  The keeper: a background worker that decides whether fences may be used.
 *
 * Owns: arming Redis processes, renewing their leases, beginning epochs, retiring lower timelines (doc/protocol.md, "The
 * keeper"). Any process may set the word to CLOSED, but only the keeper sets it to OPEN.
 * Locks: fence_shared->lock, for copies only. The keeper is connected to no database and takes no lock on a table.
 * Short-lived workers (worker.c) do what needs a database.
 * Never: grants a lease while the word is CLOSED.
 *
 * The order of the steps is part of the protocol. To grant a lease, the keeper raises lease_bound, then checks that
 * the word is unchanged, then calls Redis. To begin an epoch, it first makes the number of the epoch durable, then
 * writes it into the word.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/bgworker.h"
#include "base/buckets.h"
#include "base/jobs.h"
#include "base/metrics.h"
#include "base/send_queue.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/stamp.h"
#include "base/word.h"
#include "keeper/databases.h"
#include "keeper/resume.h"
#include "redis/topology.h"

/* Times are in microseconds. */
#define WATCH_EVERY		INT64CONST(250000)	/* on a standby, and while standbys follow: maximum pause between two steps */
#define RETRY_FIRST		INT64CONST(50000)	/* pause after the first failed try to open; each further one doubles it, */
#define MAX_RETRY_PAUSE	INT64CONST(1000000)	/* up to this */
#define FLAP_FIRST		INT64CONST(100000)	/* time in CLOSED after the first failure; each further one doubles it, */
#define MAX_FLAP_PAUSE	INT64CONST(30000000)	/* up to this */
#define FLAP_FORGET		INT64CONST(60000000)	/* after so long in OPEN, earlier failures count no more */
#define EPOCH_LEAP		1000000	/* the keeper does not open if Redis tells of an epoch number that is so far above its own */
#define COMMITS_TAKE	INT64CONST(100000)	/* how long to wait for in-flight commits before slots change hands */
#define BYPASS_TAKES	INT64CONST(200000)	/* time in CLOSED after the bound, in which waiting writers commit without reservations */

PGDLLEXPORT void fence_keeper_main(Datum arg);

static int64 opened_at = 0;		/* when OPEN began; 0: the word is not OPEN */
static int	flaps = 0;			/* failures that count for the next time in CLOSED */
static bool planned = false;	/* OPEN ends because of changed settings or an orderly change of processes: not a flap */
static int64 stay_closed_until = 0;
static int64 retry_pause = RETRY_FIRST;
static bool resumed = false;	/* the epoch goes on after a clean restart, and is not OPEN yet */

static int64
lease_us(void)
{
	return setting_lease * INT64CONST(1000);
}

/*
 * The local time at which a lease is certainly over. The lease begins at a reading of the node's clock, which arrived
 * here at heard_at.
 */
static int64
lease_end(int64 heard_at)
{
	return heard_at + lease_us() + setting_clock_margin * INT64CONST(1000);
}

/* -----------------------------------------------------------------------------------------------------------------
 * CLOSED -> ARMING -> OPEN
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Whether the node is still the same process that the keeper armed in that epoch. */
static bool
is_armed(int node, const char *epoch)
{
	const Hello *hello = &topology_nodes[node].hello;

	return fence_shared->nodes[node].granted && topology_nodes[node].present && strcmp(hello->epoch, epoch) == 0 &&
		strcmp(fence_shared->nodes[node].armed_identity, hello->identity) == 0;
}

/*
 * The one place that decides between the two ways to open.
 *
 * True: the epoch may go on. Every process that was armed in it is present with its identity and epoch, and nobody
 * has committed without reservations. There is at least one such process. (A standby that does not reach Redis knows of
 * none. If it was made of a cold copy and is promoted, there is nobody to ask for leave to resume.) Slots may then move:
 * the process that loses a slot confirms it, and the process that gets the slot need not have been armed before.
 *
 * False: the keeper must begin a new epoch, after the bound has passed.
 */
static bool
epoch_may_go_on(FenceWord word)
{
	char		epoch[EPOCH_LEN];
	bool		any_armed = false;

	fence_epoch_of(WORD_EPOCH(word), epoch);
	if (WORD_EPOCH(word) == 0 || !fence_shared->epoch_armed || pg_atomic_read_u32(&fence_shared->bypassed))
		return false;
	for (int i = 0; i < topology_size; i++)
	{
		if (fence_shared->nodes[i].granted && !is_armed(i, epoch))
			return false;
		any_armed = any_armed || fence_shared->nodes[i].granted;
	}
	return any_armed;
}

/*
 * The number of nodes that answer. *first_error tells why the first node that has slots and does not answer fails;
 * NULL: all answer.
 */
static int
count_present(const char **first_error)
{
	int			present = 0;

	*first_error = NULL;
	for (int i = 0; i < topology_size; i++)
		if (topology_nodes[i].present)
			present++;
		else if (*first_error == NULL && topology_has_slots(i))
			*first_error = topology_nodes[i].error;
	return present;
}

/*
 * Decides what the keeper will grant: to each process that answers, its slots. The slots of a process that does not
 * answer belong to nobody. No process may answer readers there, so they are told `unarmed`, and writers need no
 * reservation there. Call this only in ARMING, before anything is granted, or on a standby.
 */
static void
choose_slots(const unsigned char map[SLOTS])
{
	memcpy(fence_shared->slot_node, map, SLOTS);
	fence_shared->only_node = memcmp(map, map + 1, SLOTS - 1) == 0 ? map[0] : -1;
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < topology_size; i++)
		fence_shared->nodes[i].granted = slot_has_any(map, i);
	LWLockRelease(fence_shared->lock);
}

/*
 * Sets the word to CLOSED, with the reason. Does nothing if it is CLOSED for the same reason already. Always returns
 * false.
 */
static bool
back_to_closed(FenceWord from, const char *why)
{
	if (WORD_STATE(from) != FENCE_CLOSED || strcmp(fence_shared->reason, why) != 0)
		fence_word_change(from, FENCE_CLOSED, WORD_EPOCH(from), why);
	return false;
}

/*
 * The epoch of before a clean restart does not go on. The word then says, as after any other server start, that no epoch
 * has begun. Always returns false.
 */
static bool
give_up_epoch(FenceWord closed, const char *why)
{
	char		reason[REASON_LEN];

	fence_shared->epoch_armed = false;
	fence_shared->resume_from = 0;
	snprintf(reason, REASON_LEN, "the epoch of before the restart cannot go on: %s", why);
	fence_word_change(closed, FENCE_CLOSED, 0, reason);
	return false;
}

/*
 * The slots of a node in a map, as the argument of `arm`; palloc'd. A process that is not part of a cluster also gets
 * a range for "all".
 */
static char *
ranges_in(const unsigned char map[SLOTS], int node)
{
	char	   *text = palloc(SLOT_RANGES_LEN);

	if (slot_ranges(map, node, text) == SLOTS && topology_is_cluster())
		strcpy(text, "0,1-16383");
	return text;
}

/*
 * Raises the bound, then grants the node its lease. A node that is not armed in this epoch is armed. Any other node's
 * lease is renewed, for the given slots (NULL: for the slots that it has). If the node has received slots, this notes
 * the number of the grant that gave them. That grant counts only once it is complete (grant_and_open).
 *
 * False with *burnt set: the call failed, why tells the reason, and nobody knows what the process has been granted.
 * False without *burnt: somebody changed the word meanwhile, and nothing was granted.
 */
static bool
grant_lease(FenceWord word, int i, const char *slots, uint32 grant, bool *burnt, char *why)
{
	RedisNode  *node = &topology_nodes[i];
	LibraryCall call = {.conn = node->conn, .deadline = fence_clock() + setting_timeout_us()};
	int64		until = node->hello.time_ms + setting_lease;
	const char *key = topology_heartbeat_key(node);
	char		epoch[EPOCH_LEN];
	bool		came = true;
	bool		ok;

	fence_epoch_of(WORD_EPOCH(word), epoch);
	*burnt = false;
	databases_note_lease();
	fence_lease_bound_raise(lease_end(node->heard_at));
	if (fence_word() != word)
		return false;			/* c5: no lease in CLOSED */
	if (strcmp(node->hello.epoch, epoch) == 0)
		ok = library_renew(&call, key, node->hello.identity, epoch, until, slots, grant, &node->slots_back, &came);
	else
		ok = library_arm(&call, key, node->hello.identity, epoch, until, ranges_in(fence_shared->slot_node, i), grant,
						 GetWALInsertionTimeLine());
	if (!ok)
	{
		*burnt = true;
		strlcpy(node->error, call.error, REASON_LEN);
		strlcpy(why, call.error, REASON_LEN);
		return false;
	}
	strlcpy(node->hello.epoch, epoch, EPOCH_LEN);
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	if (came)
		fence_shared->nodes[i].received = grant;
	LWLockRelease(fence_shared->lock);
	return true;
}

/*
 * c2: burns the epoch, which means that it is never opened again. An epoch is burnt when some processes may be armed
 * in it and others not, or when nobody knows which process has a slot.
 */
static bool
burn_epoch(FenceWord arming, const char *why)
{
	fence_shared->epoch_armed = false;
	topology_publish(false);
	/*
	 * The bound was raised, though fences do not open. Stay CLOSED for a while after it, so that waiting writers can
	 * bypass.
	 */
	stay_closed_until = pg_atomic_read_u64(&fence_shared->lease_bound) + Min(FLAP_FIRST << Min(flaps, 10), MAX_FLAP_PAUSE);
	flaps++;
	return back_to_closed(arming, why);
}

/*
 * The last step of both ways to open: grants the leases, and with them the slots if these change hands; then sets
 * OPEN.
 */
static bool
grant_and_open(FenceWord arming, bool slots_change, const char *why)
{
	bool		burnt;
	char		error[REASON_LEN];

	for (int i = 0; i < topology_size; i++)
	{
		const char *slots = slots_change ? ranges_in(fence_shared->slot_node, i) : NULL;

		if (!fence_shared->nodes[i].granted)
			continue;
		if (!grant_lease(arming, i, slots, fence_shared->grant + 1, &burnt, error))
			return burnt ? burn_epoch(arming, error) : false;
		strlcpy(fence_shared->nodes[i].armed_identity, topology_nodes[i].hello.identity, IDENTITY_LEN);
	}
	fence_shared->epoch_armed = true;
	topology_publish(true);
	/* the grant is complete and counts from now on: domains may be announced for it */
	LWLockAcquire(fence_shared->lock, LW_EXCLUSIVE);
	fence_shared->grant++;
	LWLockRelease(fence_shared->lock);
	if (!fence_word_change(arming, FENCE_OPEN, WORD_EPOCH(arming), why))
		return false;
	opened_at = fence_clock();
	retry_pause = RETRY_FIRST;
	resumed = false;
	databases_announce_again();
	return true;
}

/*
 * Whether no transaction is committing. Waits for in-flight commits, because that takes less time than another try to
 * open.
 */
static bool
nobody_commits(void)
{
	int64		deadline = fence_clock() + COMMITS_TAKE;

	while (fence_commit_flag_exists(false))
	{
		if (fence_clock() > deadline)
			return false;
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1, wait_event_worker());
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * Takes from each process the slots that it does not keep. A process that has given up slots stays correct even if
 * the keeper then fails to open the epoch.
 */
static bool
take_slots(FenceWord arming, const unsigned char map[SLOTS])
{
	unsigned char kept[SLOTS];
	bool		burnt;
	char		error[REASON_LEN];

	for (int s = 0; s < SLOTS; s++)
		kept[s] = map[s] == fence_shared->slot_node[s] ? map[s] : SLOT_NOBODY;
	for (int i = 0; i < topology_size; i++)
	{
		bool		loses = false;

		for (int s = 0; s < SLOTS && !loses; s++)
			loses = fence_shared->slot_node[s] == i && kept[s] != i;
		if (loses && !grant_lease(arming, i, ranges_in(kept, i), fence_shared->grant + 1, &burnt, error))
			return burnt ? burn_epoch(arming, error) : false;
	}
	return true;
}

/*
 * Opens in the same epoch, with another map of slots if slots have moved. Two rules hold when slots move. No
 * transaction may be committing, because a process that has lost a slot can no longer vouch for a reservation that it
 * has acknowledged there. And the old owner gives up a slot before the new owner gets it.
 */
static bool
go_on(FenceWord arming)
{
	unsigned char map[SLOTS];
	bool		slots_change;

	topology_slots(map);
	slots_change = memcmp(map, fence_shared->slot_node, SLOTS) != 0;
	for (int i = 0; i < topology_size; i++)
		slots_change = slots_change || (fence_shared->nodes[i].granted && topology_nodes[i].slots_back);
	if (!slots_change)
		return grant_and_open(arming, false, resumed ? "PostgreSQL was shut down cleanly, and every process is there as it was: the epoch goes on" :
							  "every process is there as it was: the epoch goes on");
	if (!nobody_commits())
		return back_to_closed(arming, "waiting for transactions that are committing while slots move");
	/* The epoch does not count as armed until all slots are granted, even if this process ends in between. */
	fence_shared->epoch_armed = false;
	if (!take_slots(arming, map))
		return false;
	choose_slots(map);
	for (int i = 0; i < topology_size; i++)
		if (!topology_has_slots(i))
			topology_dismiss(&topology_nodes[i]);
	return grant_and_open(arming, true, "slots have moved, or come back: the epoch goes on");
}

/* Why a new epoch is necessary, for the metrics. */
static ServerMetric
why_new_epoch(FenceWord word)
{
	if (WORD_EPOCH(word) == 0 || fence_shared->resume_from != 0)
		return SERVER_METRIC_EPOCH_START;
	if (pg_atomic_read_u32(&fence_shared->bypassed))
		return SERVER_METRIC_EPOCH_BYPASS;
	return fence_shared->epoch_armed ? SERVER_METRIC_EPOCH_PROCESS : SERVER_METRIC_EPOCH_BURNT;
}

/*
 * Opens in a new epoch. It begins only when no transaction of the old epoch is committing, and no Redis process may
 * vouch for the old epoch any more.
 */
static bool
open_new_epoch(FenceWord arming)
{
	uint32		number = fence_shared->last_epoch;
	ServerMetric why = why_new_epoch(arming);
	uint64		random;
	unsigned char map[SLOTS];
	char		error[REASON_LEN];
	const char *missing;
	FenceWord	next;

	if (fence_commit_flag_exists(false))
		return back_to_closed(arming, "waiting for transactions of the last epoch that are committing");
	if (!fence_lease_bound_passed())
		return back_to_closed(arming, "waiting until the leases of the last epoch are over");
	for (int i = 0; i < topology_size; i++)
	{
		uint64		seen = topology_nodes[i].present ? strtoull(topology_nodes[i].hello.epoch, NULL, 10) : 0;

		/* The number is stored for ever. Whoever can write to Redis must not be able to use up all numbers. */
		if (seen > fence_shared->last_epoch + EPOCH_LEAP)
			return back_to_closed(arming, "Redis tells of an epoch far above those of this cluster");
		number = Max(number, (uint32) seen);
	}
	number++;
	if (number > WORD_MAX_EPOCH)
		return back_to_closed(arming, "epoch numbers are used up: choose another pgcache_fence.namespace");
	if (!databases_store(number, error))
		return back_to_closed(arming, error);

	if (!pg_strong_random(&random, sizeof(random)))
		return back_to_closed(arming, "could not draw a random number");
	if (fence_word() != arming)
		return false;
	/* from here on the old epoch can never be opened again [c11] */
	fence_shared->epoch_armed = false;
	fence_shared->resume_from = 0;
	pg_atomic_write_u64(&fence_shared->epoch_random, random);
	if (!fence_word_change(arming, FENCE_ARMING, number, NULL))
		return false;
	metrics_add_server(why, 1);
	/*
	 * c4b: Clear the flag after the new number is in the word, because the old epoch must not forget a bypass. And
	 * clear it before any process is armed.
	 */
	pg_atomic_write_u32(&fence_shared->bypassed, 0);
	next = fence_word();
	if (WORD_STATE(next) != FENCE_ARMING || WORD_EPOCH(next) != number)
		return false;

	/*
	 * A worker made the epoch durable, and that may have taken long. So read the clocks of the processes again, and
	 * check that none of them was replaced [c2].
	 */
	pg_atomic_write_u64(&fence_shared->arming_until, (uint64) fence_clock() + lease_us());
	topology_slots(map);
	choose_slots(map);
	databases_forget_announced();
	for (int i = 0; i < topology_size; i++)
	{
		char		before[IDENTITY_LEN];

		if (!fence_shared->nodes[i].granted)
			continue;
		strlcpy(before, topology_nodes[i].hello.identity, IDENTITY_LEN);
		if (!topology_greet(&topology_nodes[i], false))
			return back_to_closed(next, topology_nodes[i].error);
		if (strcmp(before, topology_nodes[i].hello.identity) != 0)
			return back_to_closed(next, "a Redis process was replaced while fences were opened");
	}
	(void) count_present(&missing);
	if (missing != NULL)
		snprintf(error, REASON_LEN, "a new epoch begins, without a process for some slots: %s", missing);
	return grant_and_open(next, false, missing ? error : "a new epoch begins");
}

/* Whether two nodes are the same process. It would be granted the slots of one node only. */
static bool
two_are_one(void)
{
	for (int i = 0; i < topology_size; i++)
		for (int j = 0; j < i; j++)
			if (topology_nodes[i].present && topology_nodes[j].present &&
				strcmp(topology_nodes[i].hello.identity, topology_nodes[j].hello.identity) == 0)
				return true;
	return false;
}

/*
 * After a clean restart: asks Redis whether the epoch may go on. Returns false if it may not, or if that is not known
 * yet; then the keeper tries again.
 */
static bool
resume_epoch(FenceWord closed)
{
	char		why[REASON_LEN];
	ResumeAnswer answer = resume_ask(WORD_EPOCH(closed), why);

	if (answer == RESUME_UNKNOWN)
		return back_to_closed(closed, why);
	if (answer == RESUME_REFUSED)
		return give_up_epoch(closed, why);
	/* Redis has agreed, so nobody else goes on in this epoch: from now on the bits of the buckets count. */
	buckets_resume(WORD_EPOCH(closed));
	fence_shared->resume_from = 0;
	resumed = true;
	metrics_add_server(SERVER_METRIC_RESUMED, 1);
	return true;
}

/*
 * Whether a process that would have to be armed says that it would refuse, and why. Without this question each try to
 * open would raise the bound for which waiting writers wait, although nothing is granted.
 */
static bool
would_refuse(FenceWord word, char why[REASON_LEN])
{
	char		epoch[EPOCH_LEN];

	fence_epoch_of(WORD_EPOCH(word), epoch);
	for (int i = 0; i < topology_size; i++)
	{
		const RedisNode *node = &topology_nodes[i];

		if (!node->present || !topology_has_slots(i) || node->hello.refusal[0] == '\0' || is_armed(i, epoch))
			continue;
		snprintf(why, REASON_LEN, "Redis refused: %s", node->hello.refusal);
		return true;
	}
	return false;
}

/*
 * Whether a server of a later timeline has replaced this one, as a process knows that it has armed or retired. This server is
 * then no longer the primary that readers and writers should use. The keeper remembers it, because a process that restarts
 * would let itself be armed by whoever comes first. An operator who wants this server to go on ends the keeper.
 */
static bool
was_replaced(char why[REASON_LEN])
{
	static uint32 newest = 0;
	TimeLineID	own = GetWALInsertionTimeLine();

	for (int i = 0; i < topology_size; i++)
		if (topology_nodes[i].present && strcmp(topology_nodes[i].hello.owner, library_owner()) == 0)
			newest = Max(newest, topology_nodes[i].hello.timeline);
	if (newest <= own)
		return false;
	snprintf(why, REASON_LEN, "timeline %u of this cluster has replaced timeline %u", newest, own);
	return true;
}

/*
 * Tries once to open: from CLOSED, or from OPEN when the map of slots has changed. If it fails, it sets CLOSED with
 * the reason, unless somebody else has changed the word.
 */
static bool
try_open(FenceWord closed)
{
	FenceWord	arming;
	char		error[REASON_LEN] = "";
	const char *missing;

	if (WORD_STATE(closed) == FENCE_ARMING)
		return false;
	if (send_queue_is_stuck(setting_timeout_us() + COURIER_RESTART_US))
		return back_to_closed(closed, "the courier does not carry the messages of writers");
	if (!databases_load(error))
		return back_to_closed(closed, error);
	if (databases_none())
		return back_to_closed(closed, "no database that pgcache_fence.databases names has the extension");
	if (fence_shared->resume_from != 0 && fence_shared->epoch_armed && !topology_resume(error))
		return give_up_epoch(closed, error);
	if (!topology_find(error))
		return back_to_closed(closed, error);
	for (int i = 0; i < topology_size; i++)
		if (topology_has_slots(i) || fence_shared->nodes[i].granted)
			(void) topology_greet(&topology_nodes[i], true);
		else
			topology_dismiss(&topology_nodes[i]);
	topology_publish(false);
	if (count_present(&missing) == 0)
		return back_to_closed(closed, missing ? missing : "no Redis process is known");
	if (was_replaced(error))
		return back_to_closed(closed, error);
	if (two_are_one())
		return back_to_closed(closed, "two addresses of pgcache_fence.redis_url are one Redis process");

	/* c6: before the keeper grants a lease that is longer than any before, it makes that length durable. */
	if (setting_lease > fence_shared->longest_lease && !databases_none() && !databases_store(fence_shared->last_epoch, error))
		return back_to_closed(closed, error);
	if (fence_word() != closed)
		return false;
	if (fence_shared->resume_from != 0 && epoch_may_go_on(closed) && !resume_epoch(closed))
		return false;

	if (!epoch_may_go_on(closed) && !fence_lease_bound_passed())
	{
		/* Only time can help, so do not keep writers waiting in ARMING. */
		(void) back_to_closed(closed, "waiting until the leases of the last epoch are over");
		for (int i = 0; i < topology_size; i++)
		{
			LibraryCall call = {.conn = topology_nodes[i].conn, .deadline = fence_clock() + setting_timeout_us()};

			if (topology_nodes[i].present)
				(void) library_disarm(&call, GetWALInsertionTimeLine());
		}
		return false;
	}
	if (would_refuse(closed, error))
		return back_to_closed(closed, error);

	pg_atomic_write_u64(&fence_shared->arming_until, (uint64) fence_clock() + lease_us());
	if (!fence_word_change(closed, FENCE_ARMING, WORD_EPOCH(closed), NULL))
		return false;
	arming = fence_word();
	if (WORD_STATE(arming) != FENCE_ARMING)
		return false;
	if (fence_commit_flag_exists(true))
		return back_to_closed(arming, "waiting for transactions that commit without reservations");
	return epoch_may_go_on(arming) ? go_on(arming) : open_new_epoch(arming);
}

/* -----------------------------------------------------------------------------------------------------------------
 * OPEN
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Only standbys ask Redis which transaction has committed last. Without standbys, commits need not tell Redis. */
static void
look_for_standbys(void)
{
	bool		any = false;

	for (int i = 0; i < max_wal_senders && !any; i++)
		any = WalSndCtl->walsnds[i].pid != 0;
	pg_atomic_write_u32(&fence_shared->standbys, any);
}

/*
 * Tells each process how far this server's WAL is, for readers on standbys. Nothing relies on it, so a process that does
 * not answer is only disconnected, and the next heartbeat sees what is the matter.
 */
static void
mark_positions(FenceWord word)
{
	if (pg_atomic_read_u32(&fence_shared->standbys) == 0)
		return;
	for (int i = 0; i < topology_size; i++)
	{
		LibraryCall call = {.conn = topology_nodes[i].conn, .deadline = fence_clock() + setting_timeout_us()};

		if (fence_shared->nodes[i].granted && call.conn && !library_mark(&call, WORD_EPOCH(word)) && redis_error(call.conn))
			topology_hang_up(&topology_nodes[i]);
	}
}

/* The pause between two heartbeats. Standbys need marks more often than leases must be renewed. */
static int64
heartbeat_pause(void)
{
	return Min(lease_us() / 4, pg_atomic_read_u32(&fence_shared->standbys) ? WATCH_EVERY : INT64_MAX);
}

/* Renews every lease. False: the fences must be closed, and error says why. */
static bool
heartbeat(FenceWord word, char *error)
{
	char		epoch[EPOCH_LEN];

	look_for_standbys();
	if (!fence_epoch_text(word, epoch))
		return true;
	if (send_queue_is_stuck(setting_timeout_us() + COURIER_RESTART_US))
	{
		strlcpy(error, "the courier does not carry the messages of writers", REASON_LEN);
		return false;
	}
	if (topology_is_outdated())
	{
		planned = true;
		strlcpy(error, "the settings of the connection to Redis were changed", REASON_LEN);
		return false;
	}
	/* After its own restart, the keeper reads again what it must know. */
	if (!topology_resume(error) || !databases_load(error))
		return false;
	if (setting_lease > fence_shared->longest_lease && !databases_store(fence_shared->last_epoch, error))
		return false;
	for (int i = 0; i < topology_size; i++)
	{
		RedisNode  *node = &topology_nodes[i];
		int64		started = fence_clock();
		bool		there;
		bool		renewed;
		bool		lost;

		if (!fence_shared->nodes[i].granted)
			continue;
		/*
		 * The keeper may replace a broken connection at once. It may not replace a process: is_armed checks that the
		 * same process answers.
		 */
		there = topology_greet(node, false) || (node->conn == NULL && topology_greet(node, false));
		metrics_raise_server(SERVER_METRIC_HEARTBEAT, fence_clock() - started);
		if (!there)
		{
			strlcpy(error, node->error, REASON_LEN);
			return false;
		}
		if (!is_armed(i, epoch))
		{
			strlcpy(error, "another Redis process answers, or it was armed by somebody else", REASON_LEN);
			return false;
		}
		renewed = grant_lease(word, i, NULL, fence_shared->grant, &lost, error);
		metrics_raise_server(SERVER_METRIC_HEARTBEAT, fence_clock() - started);
		if (!renewed)
			return !lost;
	}
	topology_publish(true);
	return true;
}

/* -----------------------------------------------------------------------------------------------------------------
 * The worker
 * -----------------------------------------------------------------------------------------------------------------
 */

/* OPEN has ended. The more often it ends by failure, the longer fences stay closed. A planned end does not count. */
static void
note_flap(void)
{
	int64		now = fence_clock();

	if (opened_at == 0)
		return;
	if (now - opened_at > FLAP_FORGET)
		flaps = 0;
	if (!planned)
	{
		stay_closed_until = now + Min(FLAP_FIRST << Min(flaps, 10), MAX_FLAP_PAUSE);
		flaps++;
	}
	planned = false;
	opened_at = 0;
	databases_stop_announcing();
}

/*
 * If a writer could not reserve, fences stay CLOSED until it can bypass. The keeper itself may see no fault. If it
 * opened at once, the same writer would fail again, and each opening would raise the bound for which that writer
 * waits.
 */
static void
let_writers_bypass(void)
{
	int64		bound = (int64) pg_atomic_read_u64(&fence_shared->lease_bound);

	if (pg_atomic_exchange_u32(&fence_shared->writer_gave_up, 0))
		stay_closed_until = Max(stay_closed_until, bound + BYPASS_TAKES);
}

/*
 * The keeper's step on a standby. It arms, renews and opens nothing. It only finds out where Redis is and whether
 * Redis answers, for the readers of this standby (standby.c). After a promotion the keeper looks up what a primary
 * must know at its start.
 */
static int64
watch(void)
{
	char		error[REASON_LEN] = "";
	unsigned char map[SLOTS];

	if (topology_find(error))
	{
		for (int i = 0; i < topology_size; i++)
			(void) topology_greet(&topology_nodes[i], false);
		topology_slots(map);
		choose_slots(map);		/* allowed without ARMING: on a standby the word is never OPEN */
	}
	topology_publish(false);
	(void) back_to_closed(fence_word(), "this server is a standby: only its primary opens fences");
	return Min(lease_us() / 4, WATCH_EVERY);
}

/*
 * One step of the keeper. Returns how long it may sleep until the next step, in microseconds; its latch may end the
 * sleep.
 */
static int64
keeper_step(void)
{
	FenceWord	word = fence_word_expire();
	char		error[REASON_LEN] = "";
	int64		bound_left;

	if (RecoveryInProgress())
		return watch();
	stamp_note_start();
	if (WORD_STATE(word) == FENCE_OPEN)
	{
		bool		moved;

		opened_at = opened_at ? opened_at : fence_clock();
		/*
		 * Renew the leases first, and ask for moved slots then: a cluster that does not answer must not cost a lease.
		 */
		if (heartbeat(word, error))
		{
			moved = topology_moved(lease_us() / 16, error);
			if (!moved)
			{
				databases_announce(word);
				mark_positions(word);
				/*
				 * While the keeper waited for Redis, a writer may have closed the fences and set the latch, and the
				 * wait has reset the latch. So compare the word before sleeping.
				 */
				return fence_word() == word ? heartbeat_pause() : 0;
			}
			planned = topology_size > 1 || topology_is_cluster();
			/*
			 * If the epoch can go on after slots have moved, writers wait a moment in ARMING, and nobody sees CLOSED.
			 */
			if (planned)
			{
				note_flap();
				if (try_open(word))
					return 0;
			}
		}
		topology_publish(false);
		topology_disconnect();
		fence_word_change(word, FENCE_CLOSED, WORD_EPOCH(word), error);
		return 0;
	}
	note_flap();
	if (WORD_STATE(word) == FENCE_ARMING)
		fence_word_change(word, FENCE_CLOSED, WORD_EPOCH(word), "the keeper was restarted");
	let_writers_bypass();
	if (fence_clock() < stay_closed_until)
		return stay_closed_until - fence_clock();
	databases_look_if_due();
	if (try_open(fence_word_expire()))
		return 0;
	retry_pause = Min(retry_pause * 2, MAX_RETRY_PAUSE);
	bound_left = (int64) pg_atomic_read_u64(&fence_shared->lease_bound) - fence_clock();
	return bound_left > 0 ? Min(retry_pause, bound_left + 1000) : retry_pause;
}

void
fence_keeper_main(Datum arg)
{
	MemoryContext loop;

	(void) arg;
	stamp_note_start();			/* before the keeper has a transaction of its own */
	jobs_begin(JOBS_OF_KEEPER);
	loop = AllocSetContextCreate(TopMemoryContext, "pgcache_fence keeper", ALLOCSET_DEFAULT_SIZES);

	for (;;)
	{
		int64		pause;

		if (worker_next_turn())
			databases_look_soon();
		MemoryContextSwitchTo(loop);
		pause = keeper_step();
		MemoryContextReset(loop);
		pgstat_report_activity(STATE_IDLE, fence_state_name(fence_word()));
		if (pause > 0 && !ConfigReloadPending)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 (long) (pause / 1000 + 1), wait_event_worker());
	}
}
