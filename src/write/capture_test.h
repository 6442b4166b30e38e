/*
 * write/capture_test.h
 *	  The trial that decides whether statements are captured in the executor.
 */
#ifndef FENCE_CAPTURE_TEST_H
#define FENCE_CAPTURE_TEST_H

/*
 * Tests in this database whether the executor reports changed rows as it should. Until one test after the server start has
 * succeeded, row triggers report them. Call it in a transaction that may write, connected to SPI. It leaves no changes.
 * It writes problems to the log and to capture_problem instead of raising them, and may be called again.
 */
extern void capture_test(void);

#endif
