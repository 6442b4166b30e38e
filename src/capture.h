/*
 * capture.h
 *	  Changed rows of fenced tables, told by the executor itself instead of row triggers.
 *
 * Which of them tells of a row makes no difference to what becomes of it (changed_row.h). The triggers are always there; for a statement
 * that is captured they are switched off in its own state, and they fire for all else.
 */
#ifndef FENCE_CAPTURE_H
#define FENCE_CAPTURE_H

/* Called once at load: the hooks of the executor. */
extern void capture_install(void);

#endif
