/*
 * transaction.h
 *	  The fence's part in the life of a transaction.
 */
#ifndef FENCE_TRANSACTION_H
#define FENCE_TRANSACTION_H

/* Registers the transaction callbacks, once, at load. */
extern void transaction_install(void);

#endif
