/*
 * base/stamp.c
 *	  Stamps of writing transactions; see stamp.h.
 *
 * Owns: first_xid in shared memory, which it sets once. Takes no lock of ours.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/xid8.h"

#include "base/shared.h"
#include "base/stamp.h"

const char *
fence_stamp(void)
{
	static char stamp[48];
	static char nonce[16] = "";
	static uint64 stamped = 0;
	uint64		xid = U64FromFullTransactionId(GetTopFullTransactionIdIfAny());

	if (xid == 0)
	{
		/* in COMMIT and ABORT the transaction state may have lost the xid; the last stamp made is then the one meant */
		if (!IsTransactionState())
			return stamp;
		stamp_note_start();
		xid = U64FromFullTransactionId(GetTopFullTransactionId());
	}
	if (xid != stamped)
	{
		/* every writing transaction comes here, and snprintf would take longer than all the rest */
		if (nonce[0] == '\0')
			snprintf(nonce, sizeof(nonce), ".%08x", (uint32) fence_shared->nonce);
		strcpy(stamp + pg_ulltoa_n(xid, stamp), nonce);
		stamped = xid;
	}
	return stamp;
}

FullTransactionId
fence_full_xid(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	return FullTransactionIdFromEpochAndXid(xid > XidFromFullTransactionId(next) ? epoch - 1 : epoch, xid);
}

char *
fence_stamp_of(TransactionId xid)
{
	return psprintf("%llu.%08x", (unsigned long long) U64FromFullTransactionId(fence_full_xid(xid)), (uint32) fence_shared->nonce);
}

bool
fence_stamp_is_detached(const char *stamp, int64 *id)
{
	const char *at = strchr(stamp, '.');
	char	   *end;
	long long	number;

	at = at ? strchr(at + 1, '.') : NULL;
	if (at == NULL || !isdigit((unsigned char) at[1]))
		return false;
	number = strtoll(at + 1, &end, 10);
	if (id)
		*id = number;
	return *end == '\0';
}

/* Asks pg_xact_status, which looks for running and prepared transactions before it reads the commit log. */
static StampFate
logged_fate(FullTransactionId xid)
{
	LOCAL_FCINFO(fcinfo, 1);
	Datum		result;
	char	   *status;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = FullTransactionIdGetDatum(xid);
	fcinfo->args[0].isnull = false;
	result = pg_xact_status(fcinfo);
	if (fcinfo->isnull)
		return FATE_UNKNOWN;
	status = TextDatumGetCString(result);
	return strcmp(status, "in progress") == 0 ? FATE_IN_PROGRESS :
		strcmp(status, "committed") == 0 ? FATE_COMMITTED : FATE_ABORTED;
}

StampFate
fence_stamp_fate(const char *stamp, int *pid)
{
	unsigned long long xid;
	unsigned int nonce;
	int			end = 0;
	StampFate	fate;

	if (pid)
		*pid = 0;
	if (sscanf(stamp, "%llu.%8x%n", &xid, &nonce, &end) != 2 ||
		(stamp[end] != '\0' && !fence_stamp_is_detached(stamp, NULL)) || xid < FirstNormalTransactionId)
		return FATE_ABORTED;

	/*
	 * The xid was not issued yet in this history. So an earlier start issued it and crashed before it reached the disk,
	 * or it belongs to a lost timeline.
	 */
	if (xid >= U64FromFullTransactionId(ReadNextFullTransactionId()))
		return FATE_ABORTED;

	fate = logged_fate(FullTransactionIdFromU64(xid));
	if (fate == FATE_IN_PROGRESS)
	{
		int			owner = BackendXidGetPid((TransactionId) xid);

		/*
		 * A backend runs with this xid, but the nonce is of an earlier start, which had issued the same xid. (A
		 * prepared transaction has no backend, and survives a restart with its nonce.)
		 */
		if (owner != 0 && nonce != (uint32) fence_shared->nonce)
			return FATE_ABORTED;
		if (pid)
			*pid = owner;
	}
	return fate;
}

StampFate
fence_stamp_own_fate(const char *stamp)
{
	unsigned long long xid;
	unsigned int nonce;
	uint64		first = pg_atomic_read_u64(&fence_shared->first_xid);

	if (sscanf(stamp, "%llu.%8x", &xid, &nonce) == 2 && nonce != (uint32) fence_shared->nonce)
	{
		if (first == 0)
			return FATE_IN_PROGRESS;	/* a standby was promoted and no process has noted it yet; the caller asks again later */
		if (xid >= first)
			return FATE_ABORTED;
	}
	return fence_stamp_fate(stamp, NULL);
}

const char *
fence_fate_name(StampFate fate)
{
	static const char *const names[] = {"in progress", "committed", "aborted", "unknown"};

	return names[fate];
}

/*
 * Declared as in libpq/auth.h. We cannot include that file: it needs the headers of everything the server was built
 * with (GSSAPI).
 */
struct Port;
typedef void (*AuthenticationHook) (struct Port *, int);
extern PGDLLIMPORT AuthenticationHook ClientAuthentication_hook;

static AuthenticationHook previous_authentication = NULL;

void
stamp_note_start(void)
{
	uint64		unknown = 0;

	if (!RecoveryInProgress() && pg_atomic_read_u64(&fence_shared->first_xid) == 0)
		(void) pg_atomic_compare_exchange_u64(&fence_shared->first_xid, &unknown,
											  U64FromFullTransactionId(ReadNextFullTransactionId()));
}

static void
authenticated(struct Port *port, int status)
{
	if (previous_authentication)
		previous_authentication(port, status);
	stamp_note_start();
}

void
stamp_install(void)
{
	previous_authentication = ClientAuthentication_hook;
	ClientAuthentication_hook = authenticated;
}
