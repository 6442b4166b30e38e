/*
 * base/shared.h
 *	  Shared memory: whether fences may be used (the word), until when Redis may vouch for them, who is committing,
 *	  and what the keeper knows of the Redis processes.
 *
 * Lock protocol:
 *   - word, epoch_random, lease_bound, arming_until, bypassed, commit flags and counters are atomics; no lock.
 *     Every change of the word is a compare-and-swap on the exact word read (fence_word_change).
 *   - lock (an LWLock) protects reason, since and the table of nodes, the jobs and their reserves, and the repairs.
 *     Held for copies only, never while anything is sent or waited for, never in COMMIT or ABORT.
 *   - epoch_random and slot_node are changed only while the word is ARMING, so OPEN - read - the same OPEN reads what
 *     belongs together.
 *   - the nodes of an epoch keep their places in the table as long as it lasts; others may be added behind them.
 */
#ifndef FENCE_SHARED_H
#define FENCE_SHARED_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "base/slot.h"
#include "base/url.h"

typedef enum FenceState
{
	FENCE_CLOSED = 0,			/* no fence may be used; writers wait the lease out or raise */
	FENCE_ARMING = 1,			/* the keeper is opening; writers wait */
	FENCE_OPEN = 2				/* every writer reserves before it commits */
} FenceState;

/* state (2 bits), epoch number (30), count of changes (32): never the same twice, so a compare-and-swap knows */
typedef uint64 FenceWord;

#define WORD_STATE(w)	((FenceState) ((w) >> 62))
#define WORD_EPOCH(w)	((uint32) (((w) >> 32) & 0x3FFFFFFF))
#define WORD_MAX_EPOCH	0x3FFFFFFF

/* Commit flag of a backend, between its last look at the word and the end of its commit */
#define COMMIT_FLAG_NONE		UINT64CONST(0)
#define COMMIT_FLAG_BYPASS	PG_UINT64_MAX	/* commits without reservations */
/* any other value: the epoch number, commits with reservations of that epoch */

#define MAX_NODES		100		/* below SLOT_NOBODY */
#define IDENTITY_LEN	20
#define EPOCH_LEN		32		/* "<number>-<16 hex digits>" and NUL */
#define REASON_LEN		256
#define MAX_DATABASES	256
#define MAX_REPAIRS		256		/* that are remembered */
#define LOG_INTERVAL_MS	UINT64CONST(10000)	/* between two log lines of the same text */
#define LOG_TIMES		1024

typedef struct FenceNode
{
	RedisEndpoint address;		/* numeric or a socket path */
	uint32		serial;			/* changes whenever connections there are to be made anew */
	bool		reachable;
	bool		dismissed;		/* it had slots in this epoch, and has none any more: of interest to nobody */
	bool		granted;		/* it is armed in the word's epoch, for the slots that slot_node says */
	uint32		received;		/* number of the grant that gave it slots last */
	char		armed_identity[IDENTITY_LEN];	/* process that was armed last; keeper only */
	char		role[16];
	char		version[32];	/* of the server */
	char		identity[IDENTITY_LEN];
	char		epoch[EPOCH_LEN];
	int64		lease_until;	/* fence_clock() time until which it may answer, at the latest */
	char		error[REASON_LEN];
} FenceNode;

/* Who has work done inside databases, one job at a time; see jobs.h */
typedef enum JobsOf
{
	JOBS_OF_KEEPER,
	JOBS_OF_PATROL,
	JOBS_OF_COUNT
} JobsOf;

/* Work that needs a database, done by a worker that is connected to it for no longer than that. */
typedef struct FenceJob
{
	uint32		serial;			/* tells a job from a former one that was given up */
	int			kind;			/* JobKind */
	Oid			database;
	int			duties;			/* round: patrol.c */
	char		epoch[EPOCH_LEN];
	uint32		epoch_number;
	int			longest_lease;	/* ms; as stored, or to be stored */
	bool		lower;			/* no longer lease runs any more: longest_lease is stored even if the row has a longer one */
	bool		restored;		/* announce: an attachment that Redis takes for ended is there */
	uint32		grant;			/* announce: number of the present grant */
	uint32		carried;		/* and of the one for which this database was announced last in this epoch, 0: for none */

	bool		done;			/* false: the worker failed or is at it */
	bool		extension;		/* the database has the extension */
	bool		has_row;		/* and fence.cluster has its row */
} FenceJob;

/* A worker that has its slot whether it runs or not, for the job that finds no other one free; see jobs.h. */
typedef struct FenceReserve
{
	struct Latch *latch;		/* NULL: it is not running */
	pid_t		pid;
	bool		exists;			/* it has run: it was given a slot at the server start */
	uint32		wanted;			/* serial of the job that waits for it, or that it is at; 0: none */
	bool		at_work;
} FenceReserve;

/* A fence that was repaired */
typedef struct FenceRepair
{
	uint64		fence;			/* hash of its name */
	TimestampTz at;
	char		result[16];
} FenceRepair;

/* Whether the executor tells of changed rows (capture.c). */
typedef enum CaptureState
{
	CAPTURE_UNTRIED = 0,		/* not tried since the server start: triggers do */
	CAPTURE_WORKS,
	CAPTURE_FAILED,				/* it was tried, and did not: triggers do, until it is tried again */
	CAPTURE_BROKEN				/* a statement was told wrongly, or the trial crashed the server: triggers do, until the next start */
} CaptureState;

typedef struct FenceShared
{
	LWLock	   *lock;

	pg_atomic_uint64 word;
	pg_atomic_uint64 epoch_random;	/* with the word's number: the epoch */
	pg_atomic_uint64 lease_bound;	/* fence_clock() time; 0: not set, counts as not passed */
	pg_atomic_uint64 arming_until;	/* fence_clock() time after which ARMING may be ended by anybody */
	pg_atomic_uint32 bypassed;	/* somebody committed without reservations since the last new epoch */
	pg_atomic_uint32 writer_gave_up;	/* a writer cannot reserve: the fences stay CLOSED until it may bypass; keeper clears */
	pg_atomic_uint32 nodes_serial;	/* changes whenever a serial in nodes does */
	pg_atomic_uint32 standbys;	/* some follow this server: they ask who has committed last; keeper only */
	pg_atomic_uint32 catalog_serial;	/* changes whenever domains or databases may have changed */
	pg_atomic_uint32 patrol_wanted; /* there is something to settle at once; its latch alone is reset by any wait */
	pg_atomic_uint64 logged[LOG_TIMES]; /* when what was written to the log: fence_log_due */
	uint64		nonce;			/* of this server start; constant */
	pg_atomic_uint64 first_xid; /* xids from there on were issued in this start: stamp.c; 0: not known yet */
	pg_atomic_uint32 capture;	/* CaptureState */
	pg_atomic_uint32 outbox_wanted; /* transactions with durable effects have ended: fence.outbox is to be looked at */

	/*
	 * Which of the nodes was granted each slot under the word, SLOT_NOBODY if none was: then no process may answer
	 * readers there, and writers need no reservation. Not what a cluster says now.
	 */
	unsigned char slot_node[SLOTS];

	/* under lock */
	char		reason[REASON_LEN];
	TimestampTz since;
	char		capture_problem[REASON_LEN];	/* of CAPTURE_FAILED and CAPTURE_BROKEN */
	int			nnodes;
	FenceNode	nodes[MAX_NODES];
	uint32		nodes_settings;	/* hash of the settings that the table was made from; keeper only */
	bool		bound_known;	/* the keeper has set lease_bound from durable state since the server start */
	uint32		last_epoch;		/* highest number known to have been written; keeper only */
	int			longest_lease;	/* ms, none longer may run or be granted before that is durable; 0: none; keeper only */
	int			last_lease;		/* ms, the length of the leases that were granted last; 0: none yet; keeper only */
	int64		longer_until;	/* fence_clock() time at which all that are longer than last_lease are over; keeper only */
	bool		epoch_armed;	/* all processes were armed in the word's epoch; keeper only, outlives its restart */
	uint32		grant;			/* number of the last grant of slots: one each time that fences were opened; written by the keeper */
	FenceJob	jobs[JOBS_OF_COUNT];
	FenceReserve reserves[JOBS_OF_COUNT];
	int			ndatabases;
	Oid			databases[MAX_DATABASES];	/* known to have the extension: where patrols go */

	uint32		nrepairs;		/* ever: the last one is at (nrepairs - 1) % MAX_REPAIRS */
	FenceRepair repairs[MAX_REPAIRS];

	/* of keeper and patrol; each written by its owner only, read without lock; NULL: not running */
	struct Latch *latches[JOBS_OF_COUNT];

	int			ncommit_flags;
	pg_atomic_uint64 commit_flags[FLEXIBLE_ARRAY_MEMBER];	/* by process number */
} FenceShared;

extern FenceShared *fence_shared;	/* NULL: the library was not preloaded */

/* Its part of shared memory (shmem.c); shared_initialise is called once. */
extern Size shared_size(void);
extern void shared_initialise(void *memory);
extern void shared_use(void *memory);

/* Raises 55000 with a hint if the library was not preloaded. */
extern void shared_require(void);

/* Monotonic local time in microseconds, never 0. Not comparable with another machine's or with wall-clock time. */
extern int64 fence_clock(void);

/* Waits for so long. Interruptible. */
extern void fence_pause(int64 microseconds, uint32 wait_event);

/* The word; with a full barrier before and after, so that what is read next is not older. */
extern FenceWord fence_word(void);

/* A copy of the nodes; returns how many there are. */
extern int	fence_copy_nodes(FenceNode nodes[MAX_NODES]);

/* The epoch's text for an OPEN or ARMING word; false if the word is no longer the one given. */
extern bool fence_epoch_text(FenceWord word, char epoch[EPOCH_LEN]);

/*
 * The text of the epoch with that number, if it is the current one. Of a former epoch the random part is lost; nothing
 * said in its name has an effect any more, so a wrong text is as good.
 */
extern void fence_epoch_of(uint32 number, char epoch[EPOCH_LEN]);

/* Index in nodes of the process that was granted the fence's slot in the word's epoch, or SLOT_NOBODY. */
extern int	fence_node_of(const char *fence);

/*
 * Whether a log line about this is due: true once per LOG_INTERVAL_MS and text in the whole server. For what may happen again and
 * again. Neither raises nor allocates.
 */
extern bool fence_log_due(const char *text);

/* Notes whether a database has the extension; whether it is known to have it. Both take the lock. */
extern void fence_database_note(Oid database, bool has_extension);
extern bool fence_database_is_known(Oid database);

/* Wakes the keeper (a heartbeat at once) or the patrol (a round at once). Safe in COMMIT and ABORT. */
extern void fence_wake_keeper_process(void);
extern void fence_wake_patrol(void);

/* Wait events as pg_stat_activity shows them */
typedef enum FenceWait
{
	FENCE_WAIT_REDIS,
	FENCE_WAIT_LEASE,
	FENCE_WAIT_WORKER,
	FENCE_WAIT_COUNT
} FenceWait;

extern uint32 fence_wait_event(FenceWait what);

#define wait_event_redis() fence_wait_event(FENCE_WAIT_REDIS)
#define wait_event_lease() fence_wait_event(FENCE_WAIT_LEASE)
#define wait_event_worker() fence_wait_event(FENCE_WAIT_WORKER)

#endif
