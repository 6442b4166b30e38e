/*
 * transaction.c
 *	  The fence's part in the life of a transaction: PRE_COMMIT, COMMIT, ABORT, PREPARE, savepoints.
 *
 * Owns: the conditions under which a transaction may commit (doc/protocol.md, "Writing"). Either every row that it
 * has changed is reserved under the present word, or no Redis process may vouch for the old values any more.
 *
 * PRE_COMMIT may wait and raise errors. It is interruptible, and has a deadline of its own, because statement_timeout
 * is not active then.
 * Never: COMMIT and ABORT neither wait nor raise nor palloc. PRE_COMMIT has prepared what they send, or they format
 * it in memory from malloc.
 * Locks: fence_shared->lock, for copies only, and never in COMMIT or ABORT.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "tcop/utility.h"

#include "attach/follow.h"
#include "attach/hooks.h"
#include "attach/loaders.h"
#include "base/buckets.h"
#include "base/metrics.h"
#include "base/settings.h"
#include "base/shared.h"
#include "base/test_hooks.h"
#include "base/word.h"
#include "domain/domain.h"
#include "domain/domain_cache.h"
#include "domain/tombstone.h"
#include "effects/effects.h"
#include "send/coordinator.h"
#include "send/ledger.h"
#include "transaction.h"
#include "write/detached.h"
#include "write/publish.h"

#define POLL_FIRST_US	1000	/* first pause of a waiting writer between two looks at the word; it doubles each time, */
#define MAX_POLL_US	20000		/* up to this */
#define MAX_FAILURES	2		/* this backend closes the fences after so many failed attempts under one word, */
#define MAX_TIMEOUTS	2		/* or after an attempt that fails when so many timeouts have passed in all */

static ProcessUtility_hook_type previous_utility = NULL;

/* The state of a commit that waits. The pauses between its looks at the word grow; raise_if_late ends the wait. */
typedef struct CommitWait
{
	int64		started;
	int64		pause;
	bool		asked_to_look;	/* it has asked the keeper to look whether this database has the extension */
} CommitWait;

/* Sleeps a moment; serves interrupts. */
static void
wait_a_moment(CommitWait *wait)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) Max(wait->pause / 1000, 1), wait_event_lease());
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	wait->pause = Min(wait->pause * 2, MAX_POLL_US);
}

/* The reason why fences are not OPEN, for people; palloc'd. */
static char *
current_reason(void)
{
	char		reason[REASON_LEN];

	LWLockAcquire(fence_shared->lock, LW_SHARED);
	strlcpy(reason, fence_shared->reason, sizeof(reason));
	LWLockRelease(fence_shared->lock);
	return pstrdup(reason);
}

/* The microseconds after which a lease that is granted now is certainly over. */
static int64
lease_takes(void)
{
	return (setting_lease + setting_clock_margin) * INT64CONST(1000);
}

/*
 * Raises an error after the deadline of the whole wait. With policy bypass, a writer can bypass before that deadline.
 * For if it could not reserve, or has waited for a quarter of a lease, it makes the keeper leave the fences CLOSED until
 * all leases are over. The deadline follows lease_bound, because leases that were granted before may be longer than the
 * present setting.
 */
static void
raise_if_late(const CommitWait *wait)
{
	int64		margin = lease_takes() + 4 * setting_timeout_us();
	int64		bound = (int64) pg_atomic_read_u64(&fence_shared->lease_bound);
	int64		longest = wait->started + LEASE_MAX_MS * INT64CONST(1000);

	if (fence_clock() <= Max(wait->started + lease_takes(), Min(bound, longest)) + margin)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("could not reserve the cache fences of this transaction in time"),
			 errdetail("Fences are %s: %s.", fence_state_name(fence_word()), current_reason()),
			 errhint("Try the transaction again; SELECT * FROM fence.state tells what is wrong.")));
}

static bool
policy_is_error(void)
{
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (r->applied != NO_VERSION && r->needed && r->policy == POLICY_ERROR)
			return true;
	return false;
}

/*
 * Sets the commit flag and looks at the bits again, because the courier waits only for flags that it finds set. Returns
 * false, without the flag, if something may be cached by now that is not reserved.
 */
static bool
flag_and_look(uint64 flag)
{
	fence_commit_flag_set(flag | (ledger_any(false) ? COMMIT_FLAG_PART : 0));
	fence_test_point("flag-set");
	if (!ledger_look_at_buckets())
		return true;
	fence_commit_flag_clear();
	return false;
}

/*
 * Tries to commit while the word is OPEN. The order matters. First Redis acknowledges every reservation under this
 * very word. Then the backend sets its commit flag. Then it checks that the word is still the same, and the bits are.
 * True: the transaction may commit. False: look at the word again.
 */
static bool
commit_open(FenceWord word, int *failures, CommitWait *wait)
{
	int64		give_up_at = wait->started + MAX_TIMEOUTS * setting_timeout_us();

	if (coordinator_reserve_all(word, give_up_at))
	{
		fence_test_point("before-commit-flag");
		if (!flag_and_look(WORD_EPOCH(word)))
			return false;
		if (fence_word() == word)
			return true;
		fence_commit_flag_clear();
		return false;
	}

	/*
	 * Wake the keeper, which may find the fault. If it does not, and this backend fails again, this backend closes
	 * the fences.
	 */
	fence_wake_keeper_process();
	if (fence_word() == word && (++*failures >= MAX_FAILURES || fence_clock() > give_up_at))
	{
		char		reason[REASON_LEN];

		snprintf(reason, sizeof(reason), "a writer could not reserve: %s", coordinator_problem());
		pg_atomic_write_u32(&fence_shared->writer_gave_up, 1);
		fence_word_change(word, FENCE_CLOSED, WORD_EPOCH(word), reason);
		fence_wake_keeper_process();
		*failures = 0;
		return false;
	}
	wait_a_moment(wait);
	return false;
}

static void
count_bypass(void)
{
	metrics_add_server(SERVER_METRIC_BYPASSED, 1);
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (r->applied != NO_VERSION)
			metrics_add(r->metrics, METRIC_COMMIT_BYPASSED, 1);
}

/*
 * Whether fences may be CLOSED only because the keeper does not know this database yet. That happens if the database
 * was cloned from one that has the extension, because nothing reports that to the keeper. This wakes the keeper to
 * look at once, and a writer with policy error waits two timeouts for it, at most.
 */
static bool
keeper_is_to_look(CommitWait *wait)
{
	if (!wait->asked_to_look && !fence_database_is_known(MyDatabaseId))
	{
		wait->asked_to_look = true;
		pg_atomic_fetch_add_u32(&fence_shared->catalog_serial, 1);
		fence_wake_keeper_process();
	}
	return wait->asked_to_look && fence_clock() < wait->started + MAX_TIMEOUTS * setting_timeout_us();
}

/*
 * Tries to commit while the word is CLOSED. With policy error this raises an error. With policy bypass it waits until
 * no Redis process may vouch for the old values. Then the transaction commits without reservations, if the word is
 * still exactly the same. (After CLOSED, OPEN, CLOSED the word is a different one [c4].) True: the transaction may
 * commit. False: look at the word again.
 */
static bool
commit_closed(FenceWord word, CommitWait *wait)
{
	if (policy_is_error() && keeper_is_to_look(wait))
	{
		wait_a_moment(wait);
		return false;
	}
	if (policy_is_error())
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not reserve the cache fences of this transaction"),
				 errdetail("Fences are CLOSED: %s.", current_reason()),
				 errhint("Try again when Redis is back, or set pgcache_fence.on_redis_failure (or the table's on_redis_failure) to bypass.")));

	fence_lease_bound_or_longest();
	if (!fence_lease_bound_passed())
	{
		/*
		 * Each opening raises the bound, so fences that open and close in turn would keep this writer waiting. It gives
		 * them a quarter of a lease to open and stay so, in which a short fault may pass. Then it waits for the bound.
		 */
		if (fence_clock() > wait->started + lease_takes() / 4)
			pg_atomic_write_u32(&fence_shared->writer_gave_up, 1);
		wait_a_moment(wait);
		return false;
	}
	fence_test_point("before-bypass");
	fence_commit_flag_set(COMMIT_FLAG_BYPASS);
	pg_atomic_write_u32(&fence_shared->bypassed, 1);
	pg_memory_barrier();
	if (fence_word() != word || !fence_lease_bound_passed())
	{
		fence_commit_flag_clear();
		return false;
	}
	count_bypass();
	if (fence_log_due("bypass"))
		ereport(LOG,
				(errmsg("pgcache_fence: transactions commit without cache fences: %s", current_reason()),
				 errdetail("Cached values of fenced tables are not served meanwhile. This line is written every %d seconds at most.",
						   (int) (LOG_INTERVAL_MS / 1000))));
	return true;
}

/* Waits until Redis has granted what is needed, or no Redis process may vouch for the old values. Sets the commit flag. */
static void
wait_for_redis(void)
{
	CommitWait	wait = {.started = fence_clock(), .pause = POLL_FIRST_US};
	FenceWord	failed_word = 0;
	int			failures = 0;
	bool		ready = false;

	(void) ledger_look_at_buckets();
	for (;;)
	{
		FenceWord	word = fence_word_expire();

		CHECK_FOR_INTERRUPTS();
		if (word != failed_word)
		{
			failed_word = word;
			failures = 0;
		}
		switch (WORD_STATE(word))
		{
			case FENCE_OPEN:
				ready = commit_open(word, &failures, &wait);
				break;
			case FENCE_CLOSED:
				ready = commit_closed(word, &wait);
				break;
			case FENCE_ARMING:
				wait_a_moment(&wait);
				break;
		}
		if (ready)
			return;
		raise_if_late(&wait);
	}
}

/*
 * Returns when the transaction may commit, with its commit flag set. If nothing of what it has changed may be cached, it
 * looks at no word, and commits whatever the state is.
 */
static void
wait_until_ready(void)
{
	if (ledger_any(true) || !flag_and_look(0))
		wait_for_redis();
}

static void
reserve_all(void)
{
	/*
	 * If no version was stored (a trigger suppressed it, or a savepoint rolled it back), reservations only need to be
	 * aborted.
	 */
	if (ledger_any_applied())
		wait_until_ready();
	coordinator_prepare_commit();
	fence_test_point("pre-commit-done");
}

static void
before_commit(void)
{
	publish_before_commit();
	reserve_all();
}

/*
 * PREPARE TRANSACTION leaves the reservations pending. COMMIT PREPARED may come from any session, or after a restart,
 * and then the patrol settles the reservations by the transaction's fate. A transaction that ends an attachment, or
 * that has explicit reservations, cannot be prepared.
 */
static void
before_prepare(void)
{
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (r->kind == RESERVE_DOMAIN && r->applied > WHOLE_DOMAIN)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has ended the fencing of a table"),
					 errhint("Commit detach, DROP and the like in one phase.")));
		else if ((r->manual || r->stamp) && r->applied != NO_VERSION)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has explicit reservations"),
					 errdetail("PostgreSQL could not find them again after a restart, because no lock on a table shows them.")));
	publish_before_prepare();
	/* the flag goes before COMMIT PREPARED, so nobody who opens a bucket would wait for that */
	ledger_need_all();
	reserve_all();
}

static void
after_commit(void)
{
	fence_test_point("before-commit-message");
	coordinator_commit();
	ledger_count_closed();
	fence_test_point("after-commit-message");
	fence_commit_flag_clear();
	if (ledger_catalog_has_changed())
	{
		pg_atomic_fetch_add_u32(&fence_shared->catalog_serial, 1);
		fence_wake_keeper_process();
	}
}

static void
transaction_callback(XactEvent event, void *arg)
{
	(void) arg;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			tombstone_write_all();
			hooks_before_commit();
			if (!effects_is_empty())
				effects_before_end();
			if (!ledger_is_empty())
				before_commit();
			if (ledger_catalog_has_changed())
				coordinator_prepare_announcement();
			ledger_close();
			break;
		case XACT_EVENT_PRE_PREPARE:
			tombstone_write_all();
			hooks_before_commit();
			if (!effects_is_empty())
				effects_before_end();
			if (!ledger_is_empty())
				before_prepare();
			ledger_close();
			break;
		case XACT_EVENT_PREPARE:
			if (!ledger_is_empty())
			{
				coordinator_forget();
				fence_commit_flag_clear();
			}
			break;
		case XACT_EVENT_COMMIT:
			if (!ledger_is_empty() || ledger_catalog_has_changed())
				after_commit();
			detached_after_commit();
			if (!effects_is_empty())
			{
				fence_test_point("before-effects-applied");
				effects_commit();
				fence_test_point("after-effects-applied");
			}
			break;
		case XACT_EVENT_ABORT:
			if (!ledger_is_empty())
			{
				fence_commit_flag_clear();
				fence_test_point("abort");
				coordinator_abort();
			}
			else if (ledger_catalog_has_changed())
				coordinator_forget();
			if (!effects_is_empty())
			{
				fence_test_point("before-effects-undone");
				effects_abort();
			}
			break;
		default:
			break;
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		ledger_forget();
		tombstone_at_transaction_end();
		effects_forget();
		domain_at_transaction_end();
		buckets_release();
		hooks_at_transaction_end();
		detached_at_transaction_end();
	}
}

static void
subtransaction_callback(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg)
{
	(void) id;
	(void) parent;
	(void) arg;
	if (event == SUBXACT_EVENT_PRE_COMMIT_SUB)
		tombstone_write_all();
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		tombstone_savepoint_rollback(GetCurrentTransactionNestLevel());
	if (ledger_is_empty() && effects_is_empty())
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		ledger_savepoint_release(GetCurrentTransactionNestLevel());
		effects_savepoint_release(GetCurrentTransactionNestLevel());
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		ledger_savepoint_rollback(GetCurrentTransactionNestLevel());
		effects_savepoint_rollback(GetCurrentTransactionNestLevel());
	}
}

/*
 * When a prepared transaction ends, PostgreSQL calls no callback that knows its reservations. So this wakes
 * the patrol after COMMIT PREPARED and ROLLBACK PREPARED. It also calls the hooks of attach/ before and after each
 * utility statement.
 */
static void
process_utility(PlannedStmt *statement, const char *query, bool read_only, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	TransactionStmt *stmt = (TransactionStmt *) statement->utilityStmt;
	bool		ends_prepared = IsA(stmt, TransactionStmt) &&
		(stmt->kind == TRANS_STMT_COMMIT_PREPARED || stmt->kind == TRANS_STMT_ROLLBACK_PREPARED);
	List	   *followed = NIL;
	bool		follows;

	statement = loaders_spare_ours(statement);
	hooks_check_utility(statement->utilityStmt);
	follows = follow_concerns(statement->utilityStmt);
	if (follows)
		followed = follow_begin(statement->utilityStmt);
	if (previous_utility)
		previous_utility(statement, query, read_only, context, params, environment, dest, completion);
	else
		standard_ProcessUtility(statement, query, read_only, context, params, environment, dest, completion);
	if (follows)
		follow_end(statement->utilityStmt, followed);
	if (ends_prepared)
		fence_wake_patrol();
}

void
transaction_install(void)
{
	RegisterXactCallback(transaction_callback, NULL);
	RegisterSubXactCallback(subtransaction_callback, NULL);
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
