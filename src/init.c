/*
 * init.c
 *	  Loading the library: settings, shared memory, hooks, workers. Nothing else is decided here.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "attach/hooks.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/shmem.h"
#include "base/stamp.h"
#include "domain/domain.h"
#include "keeper/worker.h"
#include "transaction.h"
#include "write/capture.h"

FENCE_MODULE_MAGIC("pgcache_fence", "1.0");

void		_PG_init(void);

void
_PG_init(void)
{
	/* Loaded by a function call: shared_require tells the user, there is nothing to work with. */
	if (!process_shared_preload_libraries_in_progress)
		return;
	settings_define();
	shmem_install();
	domain_init();
	hooks_install();
	stamp_install();
	capture_install();
	transaction_install();
	/* pg_upgrade runs both clusters for a moment: neither may arm anything */
	if (!IsBinaryUpgrade)
		worker_install();
}
