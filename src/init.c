/*
 * init.c
 *	  Loading the library.
 *
 * Owns: the order in which the parts of the extension install their settings, shared memory, hooks and workers.
 * Never: does anything else; each part decides for itself what it installs.
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
#include "domain/domain_cache.h"
#include "keeper/resume.h"
#include "keeper/worker.h"
#include "transaction.h"
#include "write/capture.h"

FENCE_MODULE_MAGIC("pgcache_fence", "1.0");

void		_PG_init(void);

void
_PG_init(void)
{
	/* A function call has loaded the library, so there is no shared memory. shared_require tells that to the user. */
	if (!process_shared_preload_libraries_in_progress)
		return;
	settings_define();
	shmem_install();
	resume_install();
	domain_init();
	hooks_install();
	stamp_install();
	capture_install();
	transaction_install();
	/* pg_upgrade runs the old and the new cluster for a moment. Neither may arm a Redis process. */
	if (!IsBinaryUpgrade)
		worker_install();
}
