/*
 * write/publish.c
 *	  Sends NOTIFY for the changes that a transaction commits; see publish.h.
 *
 * Owns: the channel, and the text of the notifications, which is the text that Redis publishes.
 * Locks: none of its own. But PostgreSQL serializes the commits of all transactions that send NOTIFY, with one lock for
 * the whole server.
 *
 * Nothing in the protocol relies on these notifications.
 */
#include "postgres.h"

#include "commands/async.h"

#include "base/settings.h"
#include "base/stamp.h"
#include "send/ledger.h"
#include "write/publish.h"

#define NOTIFY_CHANNEL "pgcache_fence"

/* Whether COMMIT sends a notification for this reservation. One for the whole domain replaces those for its rows. */
static bool
is_told(const Reservation *r)
{
	return r->notify && r->applied != NO_VERSION && (r->kind == RESERVE_DOMAIN || !ledger_whole_applied(r->domain_id));
}

/* "<domain> <fence> <version> <stamp>", or "<domain> - - <stamp>" */
static char *
event_text(const Reservation *r)
{
	const char *domain;

	if (r->kind == RESERVE_DOMAIN)
		return psprintf("%s - - %s", r->name, fence_stamp());
	domain = r->name + strlen(setting_namespace) + strlen(":f:");
	return psprintf("%.*s %s " INT64_FORMAT " %s", (int) strcspn(domain, ":"), domain, r->name, r->applied, fence_stamp());
}

void
publish_before_commit(void)
{
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (is_told(r))
			Async_Notify(NOTIFY_CHANNEL, event_text(r));
}

void
publish_before_prepare(void)
{
	for (Reservation *r = ledger_first(); r != NULL; r = r->next)
		if (is_told(r))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has changed a table with publish => 'notify'"),
					 errdetail("Its commit sends NOTIFY, which PostgreSQL cannot do for a prepared transaction."),
					 errhint("Commit in one phase, or attach the table with publish => 'pubsub' or 'stream'.")));
}
