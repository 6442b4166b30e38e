/*
 * attach/renumber.h
 *	  fence.renumber: begins the versions of a domain anew.
 */
#ifndef FENCE_RENUMBER_H
#define FENCE_RENUMBER_H

#include "domain/domain.h"

/*
 * Returns whether fence.renumber is just now updating the table of these domains. The caller then ignores the changed
 * rows: the whole domains are reserved.
 */
extern bool renumber_is_running(const Domain *domains);

#endif
