/*
 * history.h
 *	  Shared by the files of the workload: the format of a history, the control block, a client, a strategy.
 *
 * A workload is a set of processes, each with one Client: writers change rows of table "item" in PostgreSQL, readers
 * read them through Redis by one Strategy (a way of caching). Each process appends what it did to a history file of its
 * own, with times of CLOCK_MONOTONIC, which all processes of a machine share. checker.py judges the histories.
 */
#ifndef HISTORY_H
#define HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <hiredis/hiredis.h>
#include <libpq-fe.h>

#define KEYS_MAX		200			/* keys are 1 .. keys; a key that moves goes to itself + keys, and back */
#define CHANGES_MAX		1024
#define WORKERS_MAX		64
#define GROUP_MAX		4			/* keys that are read together */
#define NONE			(-1)		/* no version, no row */

/*
 * One line of a history, as it stands in the file: 64 bytes, little-endian on the machines that this runs on. way: of a
 * read, how the cache was asked (WAY_*), else 0. row: of a read, the key of the row that the answer names; 0 if it names none.
 *
 *	 type  kind                     key    group        version  val       start    middle        end
 *	 'R'   how the read was         key    0 or number  found    found     invoked  PostgreSQL    answered
 *	       answered: see READ_*            of a group                               asked, or 0
 *	 'G'   h: from the cache, d:    size   its number   0        0         invoked  0             answered
 *	       from one snapshot
 *	 'T'   outcome: OUTCOME_*       rows   its number   strategy's work for  first   COMMIT sent   outcome known
 *	                                       it done at, or 0                 statement
 *	 'P'   outcome of what was      0      its number   sessions    0        0        0             0
 *	       prepared                                     it outlived
 *	 'W'   u: update, i: insert,    key    its          stored   written   0        0             0
 *	       d: delete                       transaction
 */
typedef struct Record
{
	uint8_t		type;
	uint8_t		kind;
	uint8_t		way;
	uint8_t		worker;
	int32_t		key;
	int32_t		row;
	int32_t		unused;
	int64_t		group;
	int64_t		version;
	int64_t		val;
	int64_t		start;
	int64_t		middle;
	int64_t		end;
} Record;

enum
{
	READ_HIT = 'h',
	READ_WRITTEN = 'w',				/* a hit on a value that its commit has stored */
	READ_MISS = 'm',				/* read from PostgreSQL, then put into the cache */
	READ_PENDING = 'p',				/* this and the next: read from PostgreSQL, not put */
	READ_UNARMED = 'u',
	READ_SQL = 's',					/* an SQL function or a program answered, and does not say where it read */
	READ_ERROR = 'e',				/* Redis did not answer */
	READ_NONE = 'n',				/* neither Redis nor PostgreSQL answered */
	READ_OLD = 'o',					/* an old primary may have answered, so this may be old */

	/* How readers of fenced strategies ask the cache; see doc/clients.md */
	WAY_BLOCK = 'm',				/* MULTI, MGET, fence_token, EXEC */
	WAY_PLAIN = 'p',				/* MGET, then fence_token, on one connection */
	WAY_PIPELINE = 'P',				/* GET of each of several keys, then one fence_token, on one connection */
	WAY_SLOW = 'g',					/* fence_get */
	WAY_BESIDE = 'v',				/* a value beside the fence: MULTI, MGET of both, fence_token, EXEC */
	WAY_SQL_GET = 'q',				/* fence.get and fence.put */
	WAY_SQL_READ = 'r',				/* fence.read */
	WAY_SQL_MANY = 'R',				/* fence.read_many */
	WAY_DERIVED = 'd',				/* fence_get_derived, and fence.read_derived after a miss */
	WAY_PROGRAM = 'B',				/* a program in any language, in its own way: one key, */
	WAY_PROGRAM_TOGETHER = 'T',		/* several keys at one moment, */
	WAY_PROGRAM_DERIVED = 'D',		/* a value derived from two */

	OUTCOME_COMMITTED = 'c',
	OUTCOME_ABORTED = 'a',
	OUTCOME_UNKNOWN = '?'
};

/* Shared memory between the workload and its runner: a file of this layout, mapped by both (run.py: CONTROL). */
typedef struct Control
{
	volatile uint32_t stop;
	volatile uint32_t endpoints;	/* increases when the file "endpoints" has changed */
	volatile uint32_t reader_stall_ppm; /* of a million fills, how many wait before the put ... */
	volatile uint32_t reader_stall_ms;	/* ... and how long on average */
	volatile uint32_t writer_stall_ppm; /* the same between COMMIT and what the strategy does after it */
	volatile uint32_t writer_stall_ms;
	volatile uint32_t writer_crash_ppm; /* how many die there; new clients replace them */
	volatile uint32_t gap_stall_ppm;	/* the same before COMMIT and before reserve, for slow transactions */
	volatile uint32_t gap_stall_ms;
	volatile uint32_t unused;
	struct
	{
		volatile uint64_t reads;
		volatile uint64_t hits;
		volatile uint64_t commits;
	}			counts[WORKERS_MAX];
} Control;

struct Strategy;

#define IS_HIT(kind)	((kind) == READ_HIT || (kind) == READ_WRITTEN)
#define IS_ANSWER(kind)	(IS_HIT(kind) || (kind) == READ_SQL)

typedef struct Options
{
	const char *directory;			/* where the control file, the endpoints and the histories are */
	const struct Strategy *strategy;
	uint64_t	seed;
	int			readers;
	int			writers;
	int			keys;
	int			pause_us;			/* of a writer between two transactions, on average */
	int			defects;			/* lease: bit mask */
	int			lease_ms;			/* lease: how long a reservation lasts */
} Options;

/* The present addresses of the servers, and how the table is attached: the lines of the file "endpoints". */
typedef struct Endpoints
{
	uint32_t	number;
	char		dsn[512];
	char		old_dsn[512];		/* of a former primary that is alive, with which some readers stay; or "-" */
	char		redis[512];			/* host:port, or a path; "shards" or "cluster" and several */
	char		old_redis[512];		/* of a former master that is alive, whose clients may stay connected; or of a replica */
	char		fence[128];			/* the names of a key's fence and value consist of these, the key and "}" */
	char		value[128];
	char		versions[16];		/* as the runner's option */
	char		capture[16];		/* likewise; mixed: each session draws it */
	bool		confused;			/* replies of Redis may be confused now, so that only blocks and calls with a nonce are safe */
	char		domain[32];			/* which of the table's domains this client reads */
} Endpoints;

#define SLOTS			16384
#define SERVERS_MAX		16
#define BACKOFF_MIN_MS	5
#define BACKOFF_MAX_MS	200

typedef struct Server
{
	char		address[512];
	redisContext *redis;			/* NULL: not connected */
	int64_t		retry_at;			/* backoff */
	int			backoff_ms;
} Server;

typedef struct Client
{
	int			worker;
	bool		reader;
	uint64_t	random;
	FILE	   *history;
	Endpoints	at;
	bool		stays;				/* with an old primary: at.dsn is at.old_dsn */
	bool		stayed;				/* when the present operation began */
	PGconn	   *pg;
	uint32_t	sessions;			/* number of sessions so far, with this one */
	enum
	{
		SINGLE,
		SHARDS,
		CLUSTER
	}			layout;
	Server		servers[SERVERS_MAX];
	int			servers_known;
	uint8_t		server_of_slot[SLOTS];	/* of a cluster: its number + 1, or 0 */
	Server		replica;			/* at.old_redis, for strategy token-elsewhere */
	int64_t		operations;
	char		nonce[24];			/* of the last question to Redis */
} Client;

typedef struct Row
{
	int64_t		version;			/* NONE: there is no such row */
	int64_t		val;
	int64_t		fenced;				/* the fence's version: the same, or kept aside; NONE: unknown */
	int			id;					/* as the payload says; 0: it does not say */
	char		word[48];			/* of a row that was read from PostgreSQL: its row version for a put; empty: nothing may be put */
} Row;

/* The result of a strategy's get. */
typedef struct Cached
{
	int			kind;				/* READ_* */
	int			way;				/* WAY_*, or 0 */
	Row			row;				/* of an answer */
	char		token[64];			/* of a hit, for check */
	char		permit[96];			/* of a miss, for fill */
	int64_t		start;				/* get_pipeline only: when this key was requested */
} Cached;

typedef struct Change
{
	int			key;
	Row			row;				/* version of a delete: the deleted row's + 1 */
	char		kind;				/* as in a record 'W' */
	char		token[40];			/* the strategy's token of its reservation */
} Change;

typedef struct Txn
{
	int64_t		id;
	int			statements;			/* each written value is id * 1000 + a number that only this transaction uses */
	int			n;
	Change		changes[CHANGES_MAX];
	bool		broken;				/* a statement failed */
	int64_t		start;
	int64_t		sent;
	int64_t		end;
} Txn;

/* One command to Redis: n words. */
typedef struct Command
{
	int			n;
	const char *const *words;
	int64_t		sent;				/* when; not of a block */
} Command;

#define COMMANDS_MAX	(GROUP_MAX + 1)	/* maximum number of commands that belong together */

/* A way of caching. Functions may be NULL. */
typedef struct Strategy
{
	const char *name;
	bool		fenced;				/* the table is attached */
	bool		plain;				/* writers use only UPDATE of single rows, with a version that reserve returns */

	void		(*get) (Client *c, int key, Cached *found);
	void		(*fill) (Client *c, int key, const Cached *found, const Row *row);
	bool		(*check) (Client *c, const int *keys, const Cached *found, int n);
	void		(*get_many) (Client *c, const int *keys, Cached *found, int n);	/* answers are one snapshot */
	int			(*get_pipeline) (Client *c, const int *keys, Cached *found, int n);	/* each answer is one snapshot; returns the number of keys read */

	void		(*before) (Client *c, int key);		/* before the statement that changes it */
	bool		(*reserve) (Client *c, Change *change); /* row: as observed; out: version to be written, token */
	void		(*committed) (Client *c, const Txn *txn);
	void		(*aborted) (Client *c, const Change *changes, int n);
	void		(*listen) (Client *c);				/* the life of one more process */
} Strategy;

extern const Strategy strategies[];
extern const Strategy *strategy_by_name(const char *name);

/* strategy.c */
extern bool is_last(const Txn *txn, int change);

/* fence.c, fence_wrong.c, lease.c, program.c */
typedef struct Names
{
	char		fence[160];
	char		value[160];			/* beside it */
} Names;

extern bool has_sql_read(const Client *c);
extern void names_of(const Client *c, int key, Names *names);
extern bool parse_payload(const char *payload, Row *row);
extern void take_both(char *payload, int kind, Cached *found);
extern void take_record(Client *c, const char *name, const char *record, const char *permit, Cached *found);
extern void fence_get(Client *c, int key, Cached *found);
extern void fence_fill(Client *c, int key, const Cached *found, const Row *row);
extern void fence_get_many(Client *c, const int *keys, Cached *found, int n);
extern int	fence_get_pipeline(Client *c, const int *keys, Cached *found, int n);
extern bool fence_check(Client *c, const int *keys, const Cached *found, int n);
extern void token_first_get(Client *c, int key, Cached *found);
extern void token_kept_get(Client *c, int key, Cached *found);
extern void token_elsewhere_get(Client *c, int key, Cached *found);
extern void permit_late_get(Client *c, int key, Cached *found);
extern void permit_late_fill(Client *c, int key, const Cached *found, const Row *row);
extern void epoch_of_permit_fill(Client *c, int key, const Cached *found, const Row *row);
extern void lease_get(Client *c, int key, Cached *found);
extern void lease_fill(Client *c, int key, const Cached *found, const Row *row);
extern bool lease_reserve(Client *c, Change *change);
extern void lease_committed(Client *c, const Txn *txn);
extern void lease_aborted(Client *c, const Change *changes, int n);
extern void program_get(Client *c, int key, Cached *found);
extern bool program_check(Client *c, const int *keys, const Cached *found, int n);
extern void program_get_many(Client *c, const int *keys, Cached *found, int n);

/* workload.c */
extern Options options;
extern Control *control;
extern int64_t now_ns(void);
extern void sleep_ms(int ms);
extern uint64_t draw(Client *c, uint64_t below);
extern bool chance(Client *c, uint32_t ppm);
extern int	draw_key(Client *c);
extern void record(Client *c, int type, int kind, int way, int key, int64_t group, int64_t version, int64_t val,
				   int64_t start, int64_t middle, int64_t end);
extern void record_read(Client *c, int kind, int way, int key, int64_t group, const Row *row, int64_t start, int64_t middle,
						int64_t end);

/* client.c */
extern bool pg_ready(Client *c);
extern void pg_leave(Client *c);
extern PGresult *pg_query(Client *c, const char *sql);
extern PGresult *pg_execute(Client *c, const char *prepared, int n, const char *const *values);
extern bool pg_ok(const PGresult *result);
extern int64_t pg_number(const PGresult *result, int row, int column);
extern void follow_endpoints(Client *c);

/* nodes.c */
extern void redis_servers(Client *c);
extern void redis_leave(Client *c);
extern redisReply *redis_call(Client *c, int n, const char *const *words);
extern bool redis_together(Client *c, bool block, Command *commands, int n, redisReply **replies);
extern redisReply *replica_call(Client *c, int n, const char *const *words);
extern void discard(redisReply *reply);
extern bool is_word(const redisReply *reply, size_t element, const char *word);

/* reader.c, writer.c */
extern bool read_row(Client *c, int key, Row *row);
extern void run_reader(Client *c);
extern void run_writer(Client *c);
extern void record_txn(Client *c, const Txn *txn, int outcome, int64_t done);
extern void txn_commit(Client *c, Txn *txn);
extern void txn_committed(Client *c, Txn *txn);
extern void txn_aborted(Client *c, Txn *txn);

/* prepared.c */
extern void txn_prepare(Client *c, Txn *txn, int most_ms);
extern void resolve_prepared(Client *c);
extern void leave_prepared(Client *c);

#endif
