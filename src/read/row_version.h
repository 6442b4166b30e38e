/*
 * read/row_version.h
 *	  The version of a row as a put names it; see row_version.c.
 */
#ifndef FENCE_ROW_VERSION_H
#define FENCE_ROW_VERSION_H

#include "base/shared.h"

#define ROW_VERSION_LEN (EPOCH_LEN + 24)

/*
 * Writes the row version of a row that this server has read. On a standby the epoch is that of the permit: the caller has
 * proven that the row is the newest (standby.c). Returns false if this server is not OPEN. Then nothing may be put.
 */
extern bool row_version_word(char word[ROW_VERSION_LEN], const char *permit, int64 version);

/*
 * Returns whether this server is a primary that is OPEN in the epoch in which the token was drawn. Then versions that it has
 * read may be stored beside the token.
 */
extern bool row_version_may_store(const char *token);

#endif
