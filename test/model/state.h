/*
 * state.h
 *	  One state of the model, and the functions that add the next states.
 *
 * The content of a row is the number of its writer: 0 is the first content, i + 1 means that writer i wrote it, and ABSENT that there is no row. So
 * "current" means equality. The model has no versions, because the protocol compares none. A token is a number of which only equality counts; a new
 * token is the lowest number that no process, fence or reader has. The library compares the number of a permit or a reservation with the number of the
 * last end. The model has a bit instead, which says that no reservation has ended since.
 */
#ifndef STATE_H
#define STATE_H

#include <cstdint>

#include "switches.h"

typedef uint8_t byte;

enum {MAX_WRITERS = 3, MAX_KEYS = 2, MAX_PROCESSES = 2, MAX_READERS = 2, MAPS = 3};
enum {ABSENT = 15};

enum Op {UPDATE = 1, DELETE = 2, INSERT = 4, BULK = 8, INSERT_RESERVED = 16, WATCHED_BULK = 32, HELD_BULK = 64};

/* The value of `what` that means the whole domain. Other values, and sets, have the bits 1 << key. */
enum {DOMAIN = 4};

enum Fate {NOT_BEGUN, RUNNING, LOGGED, COMMITTED, ABORTED, PREPARED};
enum Word {CLOSED, ARMING, OPEN};
/* A commit flag. SKIPS: its writer has reserved nothing. BYPASS: its writer bypasses. Else the epoch in which the writer commits */
enum {BYPASS = 7, SKIPS = 6};

enum WriterStep
{
	W_BEGIN, W_CHANGED, W_BULK_BEGUN, W_HOLDING, W_ROLLED_BACK_TO, W_LOOK, W_RESERVE, W_SET_COMMIT_FLAG, W_COMMIT_FLAG_SET, W_CLOSED, W_BYPASSING, W_COMMIT,
	W_LOGGED, W_VISIBLE, W_PREPARED, W_OVER
};

/* A transaction, and its messages that are under way. A "set" below is a set of keys, or DOMAIN. */
struct Writer
{
	byte		step;
	byte		op;
	byte		fate;
	byte		acked;			/* set: Redis has acknowledged these reservations under the word that the writer has read */
	byte		same_word;		/* the word has not changed since the writer read it */
	byte		sent;			/* set: the reservations that it has requested */
	byte		sent_epoch;		/* the epoch of those requests */
	byte		epoch;			/* of the word that the writer has read */
	byte		commit_flag;	/* 0: not set */
	byte		late;			/* set: requests to reserve that may still arrive */
	byte		late_epoch;		/* their epoch */
	byte		end;			/* set: ends of reservations that may still arrive */
	byte		end_kind;		/* their EndKind */
	byte		end_epoch;		/* their epoch */
	byte		flags;
	byte		seen;			/* set: keys whose bit was set when it held their buckets */
};
enum {APPLIED = 1, SAVEPOINT_USED = 2, SENT_EARLY = 4, PREPARES = 8, HOLDS = 16};

/* A Redis process: the function library's memory, and its keys */
struct Process
{
	byte		up;
	byte		follows;		/* a replica of the other process, with the memory of a master */
	byte		identity;
	byte		epoch;			/* 0: not armed */
	byte		server;			/* the server start that armed it, or resumed its epoch */
	byte		lease;			/* ticks left */
	byte		announced;
	byte		token;			/* of the domain; 0: none */
	byte		domain_pending; /* set of writers */
	byte		pending[MAX_KEYS];	/* sets of writers */
	byte		proven[MAX_KEYS];	/* writers whose acknowledgement counted, with nothing ended and no other token since */
	byte		fence[MAX_KEYS];	/* token in the fence; 0: there is none */
	byte		content[MAX_KEYS];
	byte		recent[MAX_KEYS];	/* content + 1 */
	byte		serves;			/* it owns the slot in the cluster */
	byte		granted;		/* the keeper has granted it the slot */
	byte		had;			/* it has had the slot in this epoch */
	byte		lost;			/* the keeper has found the slot elsewhere */
	byte		open;			/* set of buckets */
	byte		turn;			/* in which they were opened */
	byte		aged[MAX_KEYS]; /* fences that were stored before the process that stored them closed its buckets: the turn + 1 */
};

enum ReaderStep {R_IDLE, R_TOLD, R_READ, R_READ_FIRST};

/* A reader that fills the cache */
struct Reader
{
	byte		step;
	byte		key;
	byte		process;
	byte		token;
	byte		since;			/* no reservation has ended since it got its permit */
	byte		content;
};

enum FastStep {F_IDLE, F_HAS_DATA, F_HAS_TOKEN, F_HAS_FIRST};

/* A fast reader. The state has it only if it has read a value that is not current, because no other read can become a violation. */
struct FastReader
{
	byte		step;
	byte		process;
	byte		token;
	byte		content;
	byte		together;		/* the set of contents that were current at the same time as the value that it read first */
};

enum KeeperStep
{
	K_IDLE, K_RENEW_BOUND, K_RENEW, K_RESUME, K_OPEN, K_LOOK_BYPASS, K_LOOK_COMMIT, K_NUMBER, K_NOT_ARMED, K_NEW_WORD, K_CLEAR_BYPASS, K_CLOCK, K_ARM_BOUND,
	K_ARM, K_AGAIN_BOUND, K_AGAIN, K_ARMED, K_TO_OPEN, M_LOOK_COMMIT, M_FIRST, M_SECOND, M_TO_OPEN
};

enum MarkStep {MARK_NONE, MARK_NUMBER, MARK_SENT, MARK_TOLD};

/*
 * A standby, on which reader 0 reads; and a mark: the keeper gets a number from a process, then reads the position in the WAL, then tells the process
 * both. A position is the number of commit records before it.
 */
struct Standby
{
	byte		wal[MAX_WRITERS];	/* writer + 1, in the order of the commit records */
	byte		logged;			/* how many there are */
	byte		replayed;		/* how many of them the standby has replayed */
	byte		mark_step;
	byte		mark_process;
	byte		mark_position;
	byte		mark_clean;		/* set of keys: no reservation has ended since the number */
	byte		mark_foreign;	/* the number is of a process that has lost its memory since */
	byte		position;		/* reader 0 needs a snapshot that has this position, */
	byte		over;			/* in which it uses a row if its writer is one of these, which are over; */
	byte		stamp;			/* or a snapshot that has the commit of this writer + 1 */
};

/*
 * The old primary: another server was promoted beside it, and it lives on. It takes no writes any more, but its keeper goes on, and readers read it. What
 * State has of PostgreSQL is from then on the new primary's. Two servers never draw the same epoch, even if the number is the same: the epochs of the old
 * primary have the bit OLD_PRIMARY instead of another random part.
 */
enum {OLD_PRIMARY = 8};

struct Deposed
{
	byte		there;
	byte		row[MAX_KEYS];	/* committed content, as it has it */
	byte		committing;		/* set of writers that here have not ended yet: the commit is on both servers, or what was prepared is */
	byte		epoch;			/* in which it is OPEN, or believes itself OPEN; 0: none */
	byte		identity;		/* of the process that it has armed in it */
	byte		start;			/* its server start; this one and those before have the lower timeline */
	byte		last_epoch;		/* the last number before the promotion; numbers up to it are of the lower timeline too */
	byte		retired[MAX_PROCESSES]; /* the process has heard of the higher timeline */
	byte		names[MAX_READERS]; /* the epoch in which the server was OPEN that this reader has read. This is so before the promotion, too */
};

enum CourierStep {C_IDLE, C_SET, C_WAIT, C_SETTLED};

struct State
{
	byte		row[MAX_KEYS];	/* committed content */
	byte		lock[MAX_KEYS]; /* writer + 1 */

	byte		word;
	byte		word_epoch;
	byte		bound;			/* ticks until lease_bound has passed */
	byte		bound_unset;	/* after a server start, until the keeper has set it */
	byte		bypassed;
	byte		epoch_armed;
	byte		armed_identity;
	byte		last_epoch;		/* durable */
	byte		start;			/* number of this server start */
	byte		next_start;
	byte		resume_from;	/* the start whose epoch this one may resume, until Redis has agreed; 0: none */

	byte		keeper_step;
	byte		keeper_same_word;
	byte		keeper_identity;	/* of the process that answered its hello */
	byte		keeper_knows;	/* the epoch of that process */
	byte		keeper_epoch;
	byte		keeper_clock;	/* ticks left of a lease that began when the keeper read the clock */
	byte		late_grant_identity;	/* of a grant of a lease that is under way */
	byte		late_grant_epoch;
	byte		late_grant_ticks;
	byte		late_grant_arms;
	byte		late_grant_start;
	byte		late_resume_from;	/* of a question for leave to resume that is under way */
	byte		late_resume_to;
	byte		late_resume_identity;
	byte		late_resume_epoch;

	byte		restarts_done;
	byte		failovers_done;
	byte		crashes_done;
	byte		clean_restarts_done;
	byte		moves_done;
	byte		level;			/* the old master has written nothing since the failover */
	byte		address;		/* the process where the keeper finds Redis */
	byte		next_identity;
	byte		saved;			/* old keys exist: */
	byte		saved_fence[MAX_KEYS];
	byte		saved_content[MAX_KEYS];
	byte		leaving;		/* 1 + the process from which the slot is moving away */

	byte		copied;			/* a cold copy exists: */
	byte		copy_row[MAX_KEYS];
	byte		copy_over;		/* set of writers that were over, */
	byte		copy_start;		/* and its file: 0: it has none */
	byte		copy_epoch;
	byte		copy_identity;
	byte		copy_bits[MAPS];
	byte		copy_turn_of[MAPS];

	byte		patrol_on;		/* the patrol's message, under way */
	byte		patrol_writer;
	byte		patrol_process;
	byte		patrol_what;
	byte		patrol_kind;
	byte		patrol_epoch;

	byte		bits[MAPS];		/* sets of buckets, in PostgreSQL: the present map, and the former ones */
	byte		turn_of[MAPS];	/* in which each was, or is, the present one */
	byte		bits_epoch;		/* of which they are; 0: after a crash, all count as set */
	byte		turn_answered;	/* set of processes that have closed their buckets in the present turn */
	byte		courier_step;
	byte		courier_bucket;
	byte		courier_epoch;	/* in which it opens the bucket, */
	byte		courier_turn;	/* and turn */
	byte		courier_waits;	/* for these writers */
	byte		late_open;		/* an opening that is under way: bucket + 1, */
	byte		late_open_epoch;	/* in this epoch, */
	byte		late_open_turn; /* and turn */

	Writer		w[MAX_WRITERS];
	Process		p[MAX_PROCESSES];
	Reader		r[MAX_READERS];
	FastReader	f;
	Standby		b;
	Deposed		d;
};

/* Adds a next state, a copy of `from` that the caller then changes. The label is kept only while a trace is printed. */
extern State &add(const State &from, const char *label, ...) __attribute__((format(printf, 2, 3)));

/* Says that the state that was added last is a violation. */
extern void violate(const char *what);

/* Each of these adds the states that one kind of step may lead to from `s`. */
extern void writer_steps(const State &s, int i);
extern void message_steps(const State &s, int i);
extern void reader_steps(const State &s, int j);
extern void fast_reader_steps(const State &s);
extern void patrol_steps(const State &s);
extern void fault_steps(const State &s);
extern void keeper_steps(const State &s);
extern void move_steps(const State &s);
extern void bucket_steps(const State &s);
extern int	bits_set(const State &s);
extern void clear_bits(State &s);
extern void standby_steps(const State &s);
extern void deposed_steps(const State &s);

/* The violation in this state; NULL if there is none. */
extern const char *invariant(const State &s);

/* -----------------------------------------------------------------------------------------------------------------
 * The function library (library.cpp)
 * -----------------------------------------------------------------------------------------------------------------
 */

enum EndKind {END_ABORT, END_COMMIT, END_ROW, DROP_ABORTED, DROP_COMMITTED};

extern bool takes_reserve(const State &s, int p, int epoch);
extern bool takes_end(const State &s, int p, int epoch);
extern void reserve(State &s, int p, int i, int key, bool counted, bool fails_half_way);
extern void end(State &s, int p, int i, int key, EndKind kind);
extern void reserve_domain(State &s, int p, int i);
extern void end_domain(State &s, int p, int i, EndKind kind);
extern bool put_allowed(const State &s, int j);
extern bool takes_writes(const State &s, int p);
extern void note_write(State &s, int p);
extern bool answers(const State &s, int p);
extern bool tells_token(const State &s, int p);
extern bool key_is_here(const State &s, int p, int key);
extern bool has_slot(const State &s, int p);
extern void new_token(State &s, int p);
extern void remove_fence(State &s, int p, int key);
extern void forget_ends(State &s, int p, int key);
extern void lose_memory(State &s, int p);
extern bool is_open(const Process &q, int key);
extern void close_for_turn(State &s, int p, int turn);
extern void open_bucket(State &s, int p, int bucket, int epoch, int turn);

/* -----------------------------------------------------------------------------------------------------------------
 * The standby (standby.cpp)
 * -----------------------------------------------------------------------------------------------------------------
 */

extern void log_commit(State &s, int i);
extern bool may_lose(const State &s, int lost);
extern void lose_commits(State &s, int lost);
extern void forget_mark(State &s, int p);
extern void standby_told_steps(const State &s, int p, int key);
extern void standby_snapshot_steps(const State &s);

/* -----------------------------------------------------------------------------------------------------------------
 * The old primary (deposed.cpp)
 * -----------------------------------------------------------------------------------------------------------------
 */

extern int	number_of(int epoch);
extern bool is_of_lower_timeline(const State &s, int epoch);
extern bool all_are_retired(const State &s);
extern void become_visible_there(State &s, int i);

/* -----------------------------------------------------------------------------------------------------------------
 * Leases and server starts
 * -----------------------------------------------------------------------------------------------------------------
 */

extern bool renew_at(State &s, int p, int epoch, int identity, int ticks);
extern bool arm_at(State &s, int p, int epoch, int identity, int ticks, int start);
extern void start_server(State &s, int start_of_file);

/* -----------------------------------------------------------------------------------------------------------------
 * PostgreSQL's shared memory
 * -----------------------------------------------------------------------------------------------------------------
 */

extern void change_word(State &s, int word, int epoch);
extern bool bound_has_passed(const State &s);
extern void become_visible(State &s, int i);
extern void finish(State &s, int i);
extern void abort_writer(State &s, int i);
extern int	watched(const State &s, int what);
extern bool has_reserved_all(const State &s, int i);
extern int	keys_of(int i);
extern bool is_over(int fate);
extern const char *name_of(int what);

#endif
