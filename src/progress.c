/*
 * progress.c
 *	  How far long calls have come; see progress.h.
 *
 * Owns: its part of shared memory. An entry is valid while its pid is set: the owner clears the pid before it writes names,
 * and sets it afterwards; who reads looks at it again after copying.
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "progress.h"
#include "shared.h"
#include "utf8.h"

PG_FUNCTION_INFO_V1(fence_progress_view);

typedef struct Entry
{
	pg_atomic_uint32 pid;		/* 0: nothing goes on */
	Oid			database;
	char		command[NAMEDATALEN];
	char		domain[NAMEDATALEN];
	char		phase[NAMEDATALEN];
	TimestampTz started;
	pg_atomic_uint64 done;
	pg_atomic_uint64 total;		/* 0: not known */
} Entry;

static Entry *entries = NULL;	/* by process number */
static bool begun = false;

static int
entry_count(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

Size
progress_size(void)
{
	return MAXALIGN(mul_size(entry_count(), sizeof(Entry)));
}

void
progress_initialise(void *memory)
{
	Entry	   *all = memory;

	memset(memory, 0, progress_size());
	for (int i = 0; i < entry_count(); i++)
	{
		pg_atomic_init_u32(&all[i].pid, 0);
		pg_atomic_init_u64(&all[i].done, 0);
		pg_atomic_init_u64(&all[i].total, 0);
	}
}

void
progress_use(void *memory)
{
	entries = memory;
}

static Entry *
own_entry(void)
{
	return &entries[fence_process_number()];
}

/* Between hide and show the owner writes what is no atomic. */
static Entry *
hide(void)
{
	Entry	   *entry = own_entry();

	pg_atomic_write_u32(&entry->pid, 0);
	pg_memory_barrier();
	return entry;
}

static void
show(Entry *entry)
{
	pg_memory_barrier();
	pg_atomic_write_u32(&entry->pid, MyProcPid);
}

void
progress_begin(const char *command, const char *domain)
{
	char	   *utf8 = utf8_of_string(domain);
	Entry	   *entry = hide();

	entry->database = MyDatabaseId;
	strlcpy(entry->command, command, NAMEDATALEN);
	strlcpy(entry->domain, utf8, NAMEDATALEN);	/* read in databases of other encodings */
	strlcpy(entry->phase, "starting", NAMEDATALEN);
	entry->started = GetCurrentTimestamp();
	pg_atomic_write_u64(&entry->done, 0);
	pg_atomic_write_u64(&entry->total, 0);
	begun = true;
	show(entry);
}

void
progress_phase(const char *phase, uint64 total)
{
	Entry	   *entry;

	if (!begun)
		return;
	entry = hide();
	strlcpy(entry->phase, phase, NAMEDATALEN);
	pg_atomic_write_u64(&entry->done, 0);
	pg_atomic_write_u64(&entry->total, total);
	show(entry);
}

void
progress_done(uint64 n)
{
	Entry	   *entry;

	if (!begun)
		return;
	entry = own_entry();
	pg_atomic_write_u64(&entry->done, pg_atomic_read_u64(&entry->done) + n);
}

void
progress_end(void)
{
	if (!begun)
		return;
	begun = false;
	(void) hide();
}

/* A consistent copy of what is written while the entry is hidden; false: nothing goes on there. */
static bool
read_entry(Entry *shared, Entry *copy)
{
	uint32		pid = pg_atomic_read_u32(&shared->pid);

	if (pid == 0)
		return false;
	pg_read_barrier();
	memcpy(copy, shared, sizeof(Entry));
	pg_read_barrier();
	return pg_atomic_read_u32(&shared->pid) == pid && pg_atomic_read_u32(&copy->pid) == pid;
}

Datum
fence_progress_view(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	shared_require();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < entry_count(); i++)
	{
		Entry		entry;
		char	   *database;
		Datum		values[8];
		bool		nulls[8] = {false};

		if (!read_entry(&entries[i], &entry))
			continue;
		database = get_database_name(entry.database);
		values[0] = Int32GetDatum((int32) pg_atomic_read_u32(&entry.pid));
		nulls[1] = database == NULL;
		values[1] = database ? CStringGetTextDatum(database) : (Datum) 0;
		values[2] = CStringGetTextDatum(entry.command);
		values[3] = CStringGetTextDatum(utf8_to_display(entry.domain));
		values[4] = CStringGetTextDatum(entry.phase);
		values[5] = Int64GetDatum((int64) pg_atomic_read_u64(&entry.done));
		values[6] = Int64GetDatum((int64) pg_atomic_read_u64(&entry.total));
		nulls[6] = pg_atomic_read_u64(&entry.total) == 0;
		values[7] = TimestampTzGetDatum(entry.started);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
