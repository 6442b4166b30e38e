/*
 * base/position.h
 *	  Where a server is in its history, as text: what a primary has written, and what a standby must have replayed.
 */
#ifndef FENCE_POSITION_H
#define FENCE_POSITION_H

#include "access/xlogdefs.h"

#define POSITION_LEN 24			/* of its text, with NUL */

/*
 * Writes the end of this server's WAL. Not during recovery. Every commit record of a transaction that is over is before it.
 * The WAL up to there is soon on the disk.
 */
extern void position_now(char text[POSITION_LEN]);

/* Parses such a text. Returns false if it is malformed. */
extern bool position_parse(const char *text, XLogRecPtr *position);

/* Returns the full transaction id below which every transaction is over. Not during recovery. */
extern uint64 position_running(void);

#endif
