/*
 * attach/renumber.h
 *	  fence.renumber: the versions of a domain begin anew.
 */
#ifndef FENCE_RENUMBER_H
#define FENCE_RENUMBER_H

#include "domain/domain.h"

/*
 * Whether the rows of the table of these domains are being given their first version again: by one statement, with the whole domains
 * reserved. Row triggers then let everything pass.
 */
extern bool renumber_is_running(const Domain *domains);

#endif
