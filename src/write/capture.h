/*
 * write/capture.h
 *	  Captures changed rows of fenced tables in the executor, which costs less than row triggers.
 *
 * changed_row.h handles a row in the same way, whether the executor or a trigger has reported it. A fenced table always
 * has the triggers. They are disabled only in the executor's state of a statement that is captured, and fire for all other
 * statements.
 */
#ifndef FENCE_CAPTURE_H
#define FENCE_CAPTURE_H

#include "write/changed_row.h"

/* Installs the hooks of the executor. Called once, when the library is loaded. */
extern void capture_install(void);

/* A trigger has reported a row. If a statement is being executed, its end sends the reservations of that row too. */
extern void capture_told_by_trigger(void);

/* The functions to which changed rows are reported; see changed_row_prepare and changed_row_stored. */
typedef struct CaptureListener
{
	int64		(*prepare) (RowChange *change);
	void		(*stored) (RowChange *change);
} CaptureListener;

/*
 * From now on, captures in this backend only statements on that domain's table, fenced or not, and reports their rows to
 * this listener. NULL restores the normal state. Only for capture_test.c.
 */
extern void capture_divert(const Domain *domain, const CaptureListener *listener);

/*
 * Why statements cannot be captured, so that only triggers report changed rows (palloc'd); NULL if they can. Ignores the
 * setting pgcache_fence.capture. Takes fence_shared->lock.
 */
extern const char *capture_problem(void);

#endif
