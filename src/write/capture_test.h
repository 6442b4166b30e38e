/*
 * write/capture_test.h
 *	  The trial that decides whether the executor tells of changed rows.
 */
#ifndef FENCE_CAPTURE_TEST_H
#define FENCE_CAPTURE_TEST_H

/*
 * Tries in this database whether the executor tells of changed rows as it should; until that has been seen once after the server
 * start, triggers do. In a transaction that may write, connected to SPI; leaves nothing. Raises nothing: what is wrong is in the log
 * and in capture_problem, and it may be tried again.
 */
extern void capture_test(void);

#endif
