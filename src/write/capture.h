/*
 * write/capture.h
 *	  Changed rows of fenced tables, told by the executor itself instead of row triggers.
 *
 * Which of them tells of a row makes no difference to what becomes of it (changed_row.h). The triggers are always there; for a statement
 * that is captured they are switched off in its own state, and they fire for all else.
 */
#ifndef FENCE_CAPTURE_H
#define FENCE_CAPTURE_H

#include "write/changed_row.h"

/* Called once at load: the hooks of the executor. */
extern void capture_install(void);

/* A trigger was told of a row: what is reserved for it is sent at the end of the statement, if one of the executor's is under way. */
extern void capture_told_by_trigger(void);

/* Who is told of changed rows: see changed_row_prepare and changed_row_stored. */
typedef struct CaptureListener
{
	int64		(*prepare) (RowChange *change);
	void		(*stored) (RowChange *change);
} CaptureListener;

/*
 * From here on statements of this backend are captured on that domain's table only, fenced or not, and tell this listener; NULL: as ever
 * again. For capture_test.c.
 */
extern void capture_divert(const Domain *domain, const CaptureListener *listener);

/* Why triggers alone tell of changed rows, a text of the caller's memory; NULL: they do not. The setting does not matter here. */
extern const char *capture_problem(void);

#endif
