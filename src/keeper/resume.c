/*
 * keeper/resume.c
 *	  A clean restart: the same epoch goes on (doc/protocol.md, "A clean restart").
 *
 * After a restart the keeper finds in shared memory what it needs to go on in its epoch. A clean shutdown writes that
 * part of shared memory to a file, and the next start reads it. Then Redis must agree (resume_ask).
 *
 * Owns: the file, in the data directory. It exists only while the server is down.
 * Locks: none. The postmaster reads the file before it has children, and writes it when it has none any more.
 * Never: fails a start or a shutdown. Without the file a new epoch begins, as after a crash.
 *
 * The file counts only if nothing has run in this data directory since the shutdown that wrote it: the control file says
 * "shut down", and has the same last checkpoint. Any server start changes that before it can commit anything, also one
 * without this library, and also in single-user mode.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "base/buckets.h"
#include "base/settings.h"
#include "keeper/resume.h"
#include "redis/topology.h"

#define RESUME_FILE		"pgcache_fence.resume"
#define RESUME_NEW_FILE RESUME_FILE ".new"
#define RESUME_FORMAT	2		/* changes with whatever is in the file */

/* What must be the same at the start as it was at the shutdown. */
typedef struct Shutdown
{
	uint32		format;
	uint32		node_size;		/* tells apart builds that lay out FenceNode differently */
	uint64		system_identifier;
	XLogRecPtr	checkpoint;
	TimeLineID	timeline;
	int			watch_buckets;
	char		namespace[NAMEDATALEN];
} Shutdown;

static shmem_startup_hook_type previous_startup_hook = NULL;

/* -----------------------------------------------------------------------------------------------------------------
 * What is in the file
 * -----------------------------------------------------------------------------------------------------------------
 */

/* The contents of the file, as they are written or read. */
typedef struct Contents
{
	StringInfoData data;		/* its cursor is the place of the next part that is read */
	bool		writing;
	bool		complete;		/* false: the file is too short */
} Contents;

static void
part(Contents *file, void *memory, Size size)
{
	if (file->writing)
		appendBinaryStringInfo(&file->data, memory, size);
	else if ((Size) (file->data.len - file->data.cursor) < size)
		file->complete = false;
	else
	{
		memcpy(memory, file->data.data + file->data.cursor, size);
		file->data.cursor += size;
	}
}

/* Moves everything that outlives the restart between shared memory and the file. */
static void
all_parts(Contents *file)
{
	FenceShared *shared = fence_shared;
	uint64		word = (uint64) WORD_EPOCH(fence_word()) << 32;	/* CLOSED */
	uint64		random = pg_atomic_read_u64(&shared->epoch_random);
	uint64		server = shared->nonce;
	Size		size;
	void	   *kept = buckets_kept(&size);

	part(file, &word, sizeof(word));
	part(file, &random, sizeof(random));
	part(file, &server, sizeof(server));
	part(file, &shared->grant, sizeof(shared->grant));
	part(file, shared->slot_node, sizeof(shared->slot_node));
	part(file, &shared->only_node, sizeof(shared->only_node));
	part(file, &shared->nodes_settings, sizeof(shared->nodes_settings));
	part(file, &shared->nnodes, sizeof(shared->nnodes));
	part(file, shared->nodes, sizeof(shared->nodes));
	part(file, &shared->nannounced, sizeof(shared->nannounced));
	part(file, shared->announced, sizeof(shared->announced));
	part(file, kept, size);
	if (file->writing || !file->complete)
		return;
	pg_atomic_write_u64(&shared->word, word);
	pg_atomic_write_u64(&shared->epoch_random, random);
	shared->resume_from = server;
	shared->epoch_armed = true;
	for (int i = 0; i < shared->nnodes; i++)
		shared->nodes[i].lease_until = 0;	/* that clock may have begun anew */
}

/* Describes the last shutdown by the control file. Returns false if it was not a clean one of a primary. */
static bool
last_shutdown(Shutdown *shutdown)
{
	bool		valid;
	ControlFileData *control = get_controlfile(DataDir, &valid);

	memset(shutdown, 0, sizeof(*shutdown));
	shutdown->format = RESUME_FORMAT;
	shutdown->node_size = sizeof(FenceNode);
	shutdown->system_identifier = control->system_identifier;
	shutdown->checkpoint = control->checkPoint;
	shutdown->timeline = control->checkPointCopy.ThisTimeLineID;
	shutdown->watch_buckets = setting_watch_buckets;
	strlcpy(shutdown->namespace, setting_namespace, NAMEDATALEN);
	return valid && control->state == DB_SHUTDOWNED;
}

static pg_crc32c
checksum(const char *data, int len)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, data, len);
	FIN_CRC32C(crc);
	return crc;
}

/* -----------------------------------------------------------------------------------------------------------------
 * Shutdown and start, both in the postmaster
 * -----------------------------------------------------------------------------------------------------------------
 */

/*
 * An error in work must not fail the start of the server. At its end this would not help, because PostgreSQL makes every
 * error fatal while a process exits. So write_file raises none for what may happen.
 */
static void
guarded(void (*work) (void))
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "pgcache_fence resume", ALLOCSET_DEFAULT_SIZES);

	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		ereport(LOG, (errmsg("pgcache_fence: a new epoch is necessary after this restart: %s", error->message)));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}

static void
write_file(void)
{
	Contents	file = {.writing = true};
	Shutdown	shutdown;
	pg_crc32c	crc;
	int			fd;

	if (!last_shutdown(&shutdown))
		return;
	initStringInfo(&file.data);
	part(&file, &shutdown, sizeof(shutdown));
	all_parts(&file);
	crc = checksum(file.data.data, file.data.len);
	part(&file, &crc, sizeof(crc));

	fd = OpenTransientFile(RESUME_NEW_FILE, O_WRONLY | O_CREAT | O_TRUNC | PG_BINARY);
	if (fd < 0 || write(fd, file.data.data, file.data.len) != file.data.len || CloseTransientFile(fd) != 0)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("pgcache_fence: a new epoch is necessary after this restart: could not write file \"%s\": %m", RESUME_NEW_FILE)));
		return;
	}
	(void) durable_rename(RESUME_NEW_FILE, RESUME_FILE, LOG);	/* it makes the contents durable, too */
}

/*
 * Runs when the postmaster ends, and when it starts over after a crash. In both cases it has no children any more. A
 * clean shutdown has written its checkpoint by now.
 *
 * Without epoch_armed nobody knows what each process was granted. While resume_from is set, Redis has not agreed that
 * this server is the one that goes on.
 */
static void
at_exit(int code, Datum arg)
{
	(void) arg;
	if (code == 0 && !IsUnderPostmaster && fence_shared->epoch_armed && fence_shared->resume_from == 0 &&
		!pg_atomic_read_u32(&fence_shared->bypassed))
		guarded(write_file);
}

/* Reads the whole file. Returns false if there is none. */
static bool
read_contents(Contents *file)
{
	FILE	   *stream = AllocateFile(RESUME_FILE, PG_BINARY_R);
	struct stat status;

	if (stream == NULL && errno == ENOENT)
		return false;
	initStringInfo(&file->data);
	if (stream == NULL || fstat(fileno(stream), &status) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", RESUME_FILE)));
	enlargeStringInfo(&file->data, (int) status.st_size);
	file->data.len = (int) fread(file->data.data, 1, status.st_size, stream);
	FreeFile(stream);
	(void) durable_unlink(RESUME_FILE, LOG);
	return true;
}

static void
read_file(void)
{
	Contents	file = {.complete = true};
	Shutdown	written;
	Shutdown	last;
	pg_crc32c	crc;

	if (!read_contents(&file))
		return;
	if (file.data.len < (int) sizeof(crc))
		elog(ERROR, "\"%s\" is damaged", RESUME_FILE);
	file.data.len -= sizeof(crc);
	memcpy(&crc, file.data.data + file.data.len, sizeof(crc));
	if (!EQ_CRC32C(crc, checksum(file.data.data, file.data.len)))
		elog(ERROR, "\"%s\" is damaged", RESUME_FILE);
	part(&file, &written, sizeof(written));
	if (!last_shutdown(&last) || memcmp(&written, &last, sizeof(last)) != 0)
		ereport(LOG,
				(errmsg("pgcache_fence: a new epoch is necessary after this restart"),
				 errdetail("Something has run in this data directory since the clean shutdown of the last epoch, or settings have changed.")));
	else
		all_parts(&file);
}

static void
startup(void)
{
	if (previous_startup_hook)
		previous_startup_hook();
	if (IsUnderPostmaster)
		return;
	guarded(read_file);
	on_shmem_exit(at_exit, (Datum) 0);
}

void
resume_install(void)
{
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}

/* -----------------------------------------------------------------------------------------------------------------
 * What Redis says, in the keeper
 * -----------------------------------------------------------------------------------------------------------------
 */

ResumeAnswer
resume_ask(uint32 epoch, char *why)
{
	for (int i = 0; i < topology_size; i++)
	{
		LibraryCall call = {.conn = topology_nodes[i].conn, .deadline = fence_clock() + setting_timeout_us()};
		bool		answered;

		if (!fence_shared->nodes[i].granted ||
			library_resume(&call, epoch, topology_nodes[i].hello.identity, GetWALInsertionTimeLine(),
						   fence_shared->resume_from, &answered))
			continue;
		strlcpy(why, call.error, REASON_LEN);
		return answered ? RESUME_REFUSED : RESUME_UNKNOWN;
	}
	return RESUME_AGREED;
}
