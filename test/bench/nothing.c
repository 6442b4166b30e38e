/*
 * nothing.c
 *	  A row trigger that does nothing: what any pair of row triggers costs, whatever is in them.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(nothing);

Datum
nothing(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	PG_RETURN_POINTER(trigger->tg_newtuple);
}
