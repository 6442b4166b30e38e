/*
 * base/shared.h
 *	  The state that all processes share: whether fences may be used (the word), until when Redis may vouch for them,
 *	  which backends are committing, and what the keeper knows about the Redis processes.
 *
 * Lock protocol:
 *   - word, epoch_random, lease_bound, arming_until, bypassed, the commit flags and all other pg_atomic members need
 *     no lock. Each change of the word is a compare-and-swap from the exact word that was read (fence_word_change).
 *   - lock (an LWLock) protects the members below "protected by lock", the slots of metrics.c and the problem text of
 *     send_queue.c. A process holds it only to copy data. It never sends or waits meanwhile, and never takes the lock
 *     in COMMIT or ABORT.
 *   - the keeper changes epoch_random, slot_node and only_node only while the word is ARMING. So a process that reads OPEN, then
 *     these, then the same OPEN again has read values that belong together.
 *   - a node keeps its index in the table as long as the epoch lasts. New nodes are added behind the others.
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
	FENCE_CLOSED = 0,			/* no fence may be used; writers wait until the lease has ended, or raise */
	FENCE_ARMING = 1,			/* the keeper is arming Redis; writers wait */
	FENCE_OPEN = 2				/* every writer reserves before it commits */
} FenceState;

/*
 * State (2 bits), epoch number (30), count of changes (32). The count makes each word unique, so a compare-and-swap
 * notices every change.
 */
typedef uint64 FenceWord;

#define WORD_STATE(w)	((FenceState) ((w) >> 62))
#define WORD_EPOCH(w)	((uint32) (((w) >> 32) & 0x3FFFFFFF))
#define WORD_MAX_EPOCH	0x3FFFFFFF

/* The commit flag of a backend is set from its last look at the word until the end of its commit. */
#define COMMIT_FLAG_NONE		UINT64CONST(0)
#define COMMIT_FLAG_BYPASS	PG_UINT64_MAX	/* commits without reservations */
/*
 * Any other value is the number of the epoch whose reservations the commit has (0: it has none), COMMIT_FLAG_PART if it
 * has changed rows that it has not reserved (buckets.h), and above bit 32 a count, which differs from one transaction of
 * a backend to its next.
 */
#define COMMIT_FLAG_PART		(UINT64CONST(1) << 30)

#define MAX_NODES		100		/* must be less than SLOT_NOBODY */
#define IDENTITY_LEN	20
#define EPOCH_LEN		32		/* "<number>-<16 hex digits>" and NUL */
#define EPOCH_SHORT_DIGITS 6	/* of the hex digits in the epoch's short name; fence.lua knows it too */
#define REASON_LEN		256
#define MAX_DATABASES	256
#define MAX_REPAIRS		256		/* number of repairs that we remember */
#define LOG_INTERVAL_MS	UINT64CONST(10000)	/* between two log lines with the same text */
#define LOG_TIMES		1024

typedef struct FenceNode
{
	RedisEndpoint address;		/* numeric address or socket path */
	uint32		serial;			/* changes whenever processes must reconnect to this node */
	bool		reachable;
	bool		dismissed;		/* it had slots earlier in this epoch and has none now; no process needs it */
	bool		granted;		/* it is armed in the word's epoch, for its slots in slot_node */
	uint32		received;		/* number of the last grant that gave it new slots */
	char		armed_identity[IDENTITY_LEN];	/* process that the keeper armed last; keeper only */
	char		role[16];
	char		version[32];	/* version of the Redis server */
	char		identity[IDENTITY_LEN];
	char		epoch[EPOCH_LEN];
	int64		lease_until;	/* fence_clock() time at which its lease has certainly ended */
	char		error[REASON_LEN];
} FenceNode;

/* The process that starts jobs inside databases, one at a time; see jobs.h */
typedef enum JobsOf
{
	JOBS_OF_KEEPER,
	JOBS_OF_PATROL,
	JOBS_OF_COUNT
} JobsOf;

/* A job inside a database. The worker that executes it is connected to the database only for this job. */
typedef struct FenceJob
{
	uint32		serial;			/* distinguishes this job from an earlier one that was abandoned */
	int			kind;			/* JobKind */
	Oid			database;
	int			duties;			/* of a patrol round; see patrol.c */
	int			audit_rows;		/* round: the most rows that it may compare; afterwards, those that are left if it was not through */
	int64		audit_after;	/* round: the audit goes on after the domain with this id; 0: it begins anywhere */
	int			ndomains;		/* result of an audit: number of domains in this database */
	int			unfinished;		/* result of a round: the duties that go on in a further round */
	char		epoch[EPOCH_LEN];
	uint32		epoch_number;
	int			longest_lease;	/* ms; as read from fence.cluster, or to be stored there */
	bool		lower;			/* all longer leases have ended: store longest_lease even if the row has a longer one */
	bool		restored;		/* announce: a domain is attached that Redis believes to be detached */
	uint32		grant;			/* announce: number of the current grant */
	uint32		carried;		/* announce: number of the grant of this database's last announcement in this epoch; 0: none */

	bool		done;			/* false: the worker is still busy, or has failed */
	bool		extension;		/* the database has the extension */
	bool		has_row;		/* the table fence.cluster has its row */
} FenceJob;

/* A worker that keeps its slot even while it is not running. It gets the jobs for which no other slot is free; see jobs.h. */
typedef struct FenceReserve
{
	struct Latch *latch;		/* NULL: not running */
	pid_t		pid;
	bool		exists;			/* it has run, so it was given a slot at server start */
	uint32		wanted;			/* serial of the job that it shall execute or is executing; 0: none */
	bool		at_work;
} FenceReserve;

/* For which grant the domains of a database were announced last */
typedef struct FenceAnnounced
{
	Oid			database;
	uint32		grant;			/* 0: not yet in this epoch */
} FenceAnnounced;

/* A fence that was repaired */
typedef struct FenceRepair
{
	uint64		fence;			/* hash of the fence's name */
	TimestampTz at;
	char		result[16];
} FenceRepair;

/* Whether the executor reports changed rows (capture.c). */
typedef enum CaptureState
{
	CAPTURE_UNTRIED = 0,		/* not tested since the server start; the triggers report them */
	CAPTURE_WORKS,
	CAPTURE_FAILED,				/* the test failed; the triggers report them until the next test */
	CAPTURE_BROKEN				/* the executor reported a statement wrongly, or the test crashed the server; triggers until the next start */
} CaptureState;

typedef struct FenceShared
{
	LWLock	   *lock;

	pg_atomic_uint64 word;
	pg_atomic_uint64 epoch_random;	/* together with the word's number, the name of the epoch */
	pg_atomic_uint64 lease_bound;	/* fence_clock() time at which all leases have ended; 0: unknown, so not passed */
	pg_atomic_uint64 arming_until;	/* fence_clock() time after which any process may end ARMING */
	pg_atomic_uint32 bypassed;	/* a transaction committed without reservations since the last new epoch */
	pg_atomic_uint32 writer_gave_up;	/* a writer cannot reserve: fences stay CLOSED until it may bypass; the keeper clears it */
	pg_atomic_uint32 nodes_serial;	/* changes whenever a serial in nodes changes */
	pg_atomic_uint32 standbys;	/* 1: standbys follow this server, and ask Redis who committed last; keeper writes */
	pg_atomic_uint32 catalog_serial;	/* changes whenever domains or databases may have changed */
	pg_atomic_uint32 patrol_wanted; /* the patrol must run at once; the latch alone may be reset by any other wait */
	pg_atomic_uint32 audit_yields;	/* an urgent round waits, so the audit that is under way makes room */
	pg_atomic_uint64 logged[LOG_TIMES]; /* when each text was last logged; see fence_log_due */
	uint64		nonce;			/* of this server start; never changes */
	uint64		resume_from;	/* nonce of the start whose epoch may go on, until Redis has agreed; 0: none; keeper only */
	pg_atomic_uint64 first_xid; /* first xid of this server start, see stamp.c; 0: not known yet */
	pg_atomic_uint32 capture;	/* CaptureState */
	pg_atomic_uint32 outbox_wanted; /* transactions with durable effects have ended, so the patrol must read fence.outbox */

	/*
	 * Index of the node to which the keeper granted each slot in the word's epoch, or SLOT_NOBODY. In a slot of nobody
	 * no process may answer readers, and writers need no reservation. A cluster's current slot map may differ.
	 */
	unsigned char slot_node[SLOTS];
	int			only_node;		/* what all of slot_node says; -1: they differ. Most servers have one node, and need not look up a slot. */

	/* protected by lock, from here to the end of repairs */
	char		reason[REASON_LEN];
	TimestampTz since;
	char		capture_problem[REASON_LEN];	/* why capture is CAPTURE_FAILED or CAPTURE_BROKEN */
	int			nnodes;
	FenceNode	nodes[MAX_NODES];
	uint64		nodes_settings;	/* settings_of_connections() from which the table of nodes was built; keeper only */
	bool		bound_known;	/* the keeper has set lease_bound from durable state since the server start */
	uint32		last_epoch;		/* highest epoch number known to be durable; keeper only */
	int			longest_lease;	/* ms; a longer lease needs a durable record first; 0: none recorded; keeper only */
	int			last_lease;		/* ms; length of the leases granted last; 0: none yet; keeper only */
	int64		longer_until;	/* fence_clock() time at which all leases longer than last_lease have ended; keeper only */
	bool		epoch_armed;	/* all processes are armed in the word's epoch; keeper only, survives a restart of the keeper */
	uint32		grant;			/* number of the last grant of slots; goes up each time the fences open; written by the keeper */
	int			nannounced;		/* keeper only, as what follows */
	FenceAnnounced announced[MAX_DATABASES];
	FenceJob	jobs[JOBS_OF_COUNT];
	FenceReserve reserves[JOBS_OF_COUNT];
	int			ndatabases;
	Oid			databases[MAX_DATABASES];	/* databases with the extension, which the patrol visits */

	uint32		nrepairs;		/* total number; the last repair is at (nrepairs - 1) % MAX_REPAIRS */
	FenceRepair repairs[MAX_REPAIRS];

	/* Latches of keeper and patrol. Each process writes only its own; others read it without a lock. NULL: not running. */
	struct Latch *latches[JOBS_OF_COUNT];

	int			ncommit_flags;
	pg_atomic_uint64 commit_flags[FLEXIBLE_ARRAY_MEMBER];	/* indexed by process number */
} FenceShared;

extern FenceShared *fence_shared;	/* NULL: the library was not preloaded */

/* Memory of this part (shmem.c). shared_initialise is called once. */
extern Size shared_size(void);
extern void shared_initialise(void *memory);
extern void shared_use(void *memory);

/* Raises 55000 with a hint if the library was not preloaded. */
extern void shared_require(void);

/*
 * Returns monotonic local time in microseconds, never 0. Do not compare it with the time of another machine or with
 * wall-clock time.
 */
extern int64 fence_clock(void);

/* Waits this long. Interruptible. */
extern void fence_pause(int64 microseconds, uint32 wait_event);

/* Returns the word. There is a full barrier before and after the read, so later reads are not older than the word. */
extern FenceWord fence_word(void);

/* Copies the table of nodes; returns their number. */
extern int	fence_copy_nodes(FenceNode nodes[MAX_NODES]);

/*
 * Writes the short name of an OPEN word's epoch, with which its text and all tokens of the epoch begin. It has a part of the
 * random number, because two servers that have lost sight of each other may begin epochs of the same number. Returns false if
 * the word has changed.
 */
extern bool fence_epoch_short(FenceWord word, char epoch[EPOCH_LEN]);

/* Writes the epoch's text for an OPEN or ARMING word. Returns false if the word has changed. */
extern bool fence_epoch_text(FenceWord word, char epoch[EPOCH_LEN]);

/*
 * Writes the text of the epoch with this number, if it is the current one. For an earlier epoch the text is wrong,
 * because its random part is lost. That does no harm: a message in the name of an earlier epoch has no effect anyway.
 */
extern void fence_epoch_of(uint32 number, char epoch[EPOCH_LEN]);

/* Returns the index of the node to which the fence's slot was granted in the word's epoch, or SLOT_NOBODY. */
extern int	fence_node_of(const char *fence);

/*
 * Returns whether to log this text now. It is true once per LOG_INTERVAL_MS for each text in the whole server. Use it
 * for problems that may repeat often. Neither raises nor allocates.
 */
extern bool fence_log_due(const char *text);

/* Note whether a database has the extension, and return whether it is known to have it. Both take the lock. */
extern void fence_database_note(Oid database, bool has_extension);
extern bool fence_database_is_known(Oid database);

/* Wake the keeper for a heartbeat, or the patrol for a round. Safe in COMMIT and ABORT. */
extern void fence_wake_keeper_process(void);
extern void fence_wake_patrol(void);

/* Wait events, as pg_stat_activity shows them */
typedef enum FenceWait
{
	FENCE_WAIT_REDIS,
	FENCE_WAIT_LEASE,
	FENCE_WAIT_WORKER,
	FENCE_WAIT_STANDBY,
	FENCE_WAIT_COUNT
} FenceWait;

extern uint32 fence_wait_event(FenceWait what);

#define wait_event_redis() fence_wait_event(FENCE_WAIT_REDIS)
#define wait_event_lease() fence_wait_event(FENCE_WAIT_LEASE)
#define wait_event_worker() fence_wait_event(FENCE_WAIT_WORKER)
#define wait_event_standby() fence_wait_event(FENCE_WAIT_STANDBY)

#endif
