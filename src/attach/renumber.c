/*
 * attach/renumber.c
 *	  The SQL function fence.renumber: begins the versions of a domain anew.
 *
 * It is for a domain whose versions have reached the largest value. The rows change without a word to other attachments of
 * their table, so a table that has others is refused; except where the domain's versions are not in the rows.
 *
 * Owns: the rule that rows get version 1, while tombstones and floor are deleted. The whole domain is reserved, so the
 * commit changes every token of the domain. Versions are compared only under the same token, so they may be used again,
 * as after TRUNCATE (doc/protocol.md, "Writing").
 *
 * The UPDATE runs as the table's owner, in a security-restricted operation, with session_replication_role = replica, so
 * that it fires neither ordinary triggers nor foreign keys. row_security = off makes it an error if row-level
 * security would hide rows.
 *
 * Locks: ShareRowExclusiveLock on the table and its partitions until the end of the transaction, so that no writer is
 * active.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "attach/attach_check.h"
#include "attach/renumber.h"
#include "domain/domain_cache.h"
#include "domain/sql_function.h"
#include "domain/tombstone.h"
#include "send/ledger.h"

#define FIRST_VERSION	"1"

PG_FUNCTION_INFO_V1(fence_renumber);

static int64 running = 0;		/* id of one domain of the table that is being updated; 0: none */

bool
renumber_is_running(const Domain *domains)
{
	return running != 0 && domain_of(unconstify(Domain *, domains), running) != NULL;
}

static void
set_for_this_call(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Updates all rows, and returns how many. Raises 27000 if a row does not have the new version afterwards, for example
 * because of a trigger that is ENABLED ALWAYS.
 */
static uint64
update_rows(const Domain *domain)
{
	const char *table = quote_qualified_identifier(get_namespace_name(get_rel_namespace(domain->relid)),
												   get_rel_name(domain->relid));
	const char *column = quote_identifier(domain->version_name);
	const char *others = psprintf("%s IS NULL OR %s OPERATOR(pg_catalog.<>) " FIRST_VERSION, column, column);
	/* inheritance children are tables of their own, while partitions belong to the table */
	const char *only = get_rel_relkind(domain->relid) == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ";
	uint64		updated = execute_now(psprintf("UPDATE %s%s SET %s = " FIRST_VERSION " WHERE %s", only, table, column, others),
								SPI_OK_UPDATE, 0, NULL, NULL);

	CommandCounterIncrement();
	if (execute_now(psprintf("SELECT FROM %s%s WHERE %s LIMIT 1", only, table, others), SPI_OK_SELECT, 0, NULL, NULL) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("could not renumber all rows of domain \"%s\"", domain->name),
				 errdetail("A trigger or a rule that is enabled ALWAYS has set another version in a row."),
				 errhint("Disable it, renumber, and enable it again.")));
	return updated;
}

/* Calls update_rows as the table's owner, with fixed settings. */
static uint64
update_rows_as_owner(const Domain *domain)
{
	int			nest_level = NewGUCNestLevel();
	volatile uint64 updated = 0;
	Relation	rel = table_open(domain->relid, NoLock);	/* the caller holds the lock */
	Oid			owner = rel->rd_rel->relowner;
	Oid			user;
	int			context;

	table_close(rel, NoLock);
	GetUserIdAndSecContext(&user, &context);
	running = domain->id;
	PG_TRY();
	{
		SetUserIdAndSecContext(owner, context | SECURITY_RESTRICTED_OPERATION | SECURITY_LOCAL_USERID_CHANGE);
		set_for_this_call("search_path", "pg_catalog, pg_temp");
		set_for_this_call("session_replication_role", "replica");
		set_for_this_call("row_security", "off");
		SPI_connect();
		updated = update_rows(domain);
		SPI_finish();
	}
	PG_FINALLY();
	{
		running = 0;
	}
	PG_END_TRY();
	SetUserIdAndSecContext(user, context);
	AtEOXact_GUC(true, nest_level);
	return updated;
}

/* What other attachments have cached would have the versions, and what triggers that are enabled ALWAYS do to the rows. */
static void
refuse_others(const Domain *domain, Oid relid)
{
	const Domain *other = domains_by_relation(relid);

	if (other->id == domain->id)
		other = other->next;
	if (other != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not renumber domain \"%s\" because its table has other attachments", domain->name),
				 errdetail("Domain \"%s\" would keep what it has cached of the rows, with their former versions.", other->name),
				 errhint("End the other attachments with fence.detach, renumber, and make them again in the same transaction.")));
}

/* fence.renumber(domain) → number of updated rows. If the domain has a table, the caller must own it. */
Datum
fence_renumber(PG_FUNCTION_ARGS)
{
	Domain	   *domain = domain_argument(fcinfo, 0);
	Oid			relid = domain->relid;
	uint64		updated = 0;

	PreventCommandIfReadOnly("fence.renumber()");
	PreventCommandDuringRecovery("fence.renumber()");
	if (OidIsValid(relid))
	{
		attach_check_owner(relid);
		LockRelationOid(relid, ShareRowExclusiveLock);
		(void) find_all_inheritors(relid, ShareRowExclusiveLock, NULL);	/* locks only the partitions */
		domain = domain_argument(fcinfo, 0);	/* the domain may have changed while we waited for the lock */
		if (domain->relid != relid)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("domain \"%s\" was attached again in the meantime", domain->name)));
		attach_check_owner(relid);
	}
	if (domain->version_name != NULL)
		refuse_others(domain, relid);
	ledger_apply_domain(domain);
	tombstone_forget_domain(domain->id);
	if (domain->version_name != NULL)
		updated = update_rows_as_owner(domain);
	PG_RETURN_INT64(updated);
}
