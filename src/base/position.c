/*
 * base/position.c
 *	  Where a server is in its history; see position.h. Takes no lock of ours.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "storage/procarray.h"

#include "base/compat.h"
#include "base/position.h"
#include "base/stamp.h"

/*
 * The end of the WAL that is inserted. After a full page, PostgreSQL gives the place of the next record, which follows
 * that page's header. A standby that has replayed everything has come to the header only.
 */
static XLogRecPtr
end_of_wal(void)
{
	XLogRecPtr	end = GetXLogInsertRecPtr();

	if (XLogSegmentOffset(end, wal_segment_size) == SizeOfXLogLongPHD)
		return end - SizeOfXLogLongPHD;
	if (end % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		return end - SizeOfXLogShortPHD;
	return end;
}

void
position_now(char text[POSITION_LEN])
{
	XLogRecPtr	end = end_of_wal();

	/* a standby gets only what is on the disk; without this, the last records of a quiet server stay in memory for long */
	if (GetFlushRecPtr(NULL) < end)
		XLogSetAsyncXactLSN(end);
	snprintf(text, POSITION_LEN, "%X/%X", LSN_FORMAT_ARGS(end));
}

bool
position_parse(const char *text, XLogRecPtr *position)
{
	uint32		high;
	uint32		low;

	if (sscanf(text, "%X/%X", &high, &low) != 2)
		return false;
	*position = (uint64) high << 32 | low;
	return true;
}

uint64
position_running(void)
{
	return U64FromFullTransactionId(fence_full_xid(GetOldestActiveTransactionId()));
}
