/*
 * attach/ended.h
 *	  Tells that an attachment has ended although nobody called fence.detach.
 */
#ifndef FENCE_ENDED_H
#define FENCE_ENDED_H

#include "domain/catalog.h"

/*
 * Both tell the client that the attachment ends with this statement, and show the call that attaches the table again.
 * They change nothing. ended_unfit warns that the table cannot be fenced any more; the reason is a sentence.
 */
extern void ended_unfit(const DomainRow *row, const char *reason);
extern void ended_dropped(const DomainRow *row);

#endif
