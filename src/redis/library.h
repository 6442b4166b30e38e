/*
 * redis/library.h
 *	  Loads the function library into Redis, and calls it and waits for the replies. The keeper and the patrol use it.
 *
 * A LibraryCall has a deadline in fence_clock() microseconds, and a buffer for an error message for users. Functions
 * return false or NULL on failure. They are interruptible. If the connection itself has failed (redis_error), the
 * caller must close it.
 */
#ifndef FENCE_REDIS_LIBRARY_H
#define FENCE_REDIS_LIBRARY_H

#include "nodes/pg_list.h"
#include "base/shared.h"
#include "redis/calls.h"

typedef struct LibraryCall
{
	RedisConnection *conn;
	int64		deadline;
	char		error[REASON_LEN];
} LibraryCall;

/*
 * Connects as the URL says, until call->deadline. On failure call->error says why, and call->conn is NULL. Fails if the
 * address was found with other settings: what the present URL has for its servers goes to no other.
 */
extern bool library_open(LibraryCall *call, const RedisEndpoint *address);

/*
 * Makes sure that exactly this build's library is loaded. Loads it if there is none, replaces an older one, and fails
 * if there is a newer one.
 */
extern bool library_ensure(LibraryCall *call);

/*
 * Asks which rights the user of the URL lacks in Redis, of all that the servers and the functions need; with `events` also
 * of those that publish commits. Returns an array of texts such as "+del", or NULL (see library_call). Free it.
 */
extern redisReply *library_missing_rights(LibraryCall *call, bool events);

/* Returns whether that user lacks no right but those for events. If not, the error names them all. */
extern bool library_has_rights(LibraryCall *call);

/* Returns the name of that user. */
extern const char *library_user(void);

/*
 * Tests whether this connection and this node accept messages that make and end reservations. Sends one in an epoch
 * that never exists, so it changes nothing.
 */
extern bool library_probe_writes(LibraryCall *call);

/* Returns the version of this build's function library. */
extern int library_version(void);

/* Asks the process for its identity. If the library is not loaded, sets *found to false and returns true. */
extern bool library_hello(LibraryCall *call, Hello *hello, bool *found);

/* Writes the server's version for people, such as "Redis 7.0.15". */
extern bool library_server_version(LibraryCall *call, char *version, size_t size);

/*
 * Arms the process. key: the heartbeat key, in one of the node's slots. until: milliseconds of the node's clock. slots:
 * in the form of slot_ranges. grant: number of the grant of these slots. Redis answers readers in these slots only
 * after their domain was announced for this grant. library_arm and library_renew also send the settings that the
 * functions use, so a changed setting takes effect with the next heartbeat.
 */
extern bool library_arm(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
						const char *slots, uint32 grant, uint32 timeline);

/*
 * Renews the lease. slots: the process has these slots from now on, in the same epoch; NULL: its slots stay as they
 * are. Sets *back if the process owns slots again that it lost in this epoch, so that they could be granted to it anew.
 * Sets *came if it got slots that it did not have before.
 */
extern bool library_renew(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
						  const char *slots, uint32 grant, bool *back, bool *came);

/*
 * Asks whether this run of the server may go on in the epoch that the run `before` has armed, or gone on in. *answered:
 * the process has answered, so a refusal is final.
 */
extern bool library_resume(LibraryCall *call, uint32 epoch, const char *identity, uint32 timeline, uint64 before, bool *answered);
extern bool library_disarm(LibraryCall *call, uint32 timeline);

/*
 * Announces the domains, a List of DomainRef, for a grant (see library_arm). Sets `refused` in those that Redis
 * considers as detached.
 */
extern bool library_announce(LibraryCall *call, uint32 epoch, uint32 grant, List *domains);

/* Reserve a row, or a whole domain, for a transaction other than the current one. epoch is the epoch's number. */
extern bool library_reserve(LibraryCall *call, uint32 epoch, const char *stamp, const char *fence);
extern bool library_domain_reserve(LibraryCall *call, uint32 epoch, const char *redis_name, const char *stamp);

/* The reservations of one stamp, as the process lists them: of a whole domain, or of rows. */
typedef struct ListedReservation
{
	bool		domain;
	char	   *name;			/* the domain's name in Redis, or the name of one of the fences */
	char	   *stamp;
	int			fences;			/* number of fences */
	int64		age_ms;			/* of rows: since this process first listed them; of a domain: since it was reserved */
} ListedReservation;

/*
 * Appends one page of the reservations to *list (palloc'd). *cursor is "" for the first page; it is palloc'd on return,
 * and "" after the last page. epoch is that of the process; "" if it is not armed.
 */
extern bool library_pending(LibraryCall *call, int limit, char **cursor, char epoch[EPOCH_LEN], List **list);

/* What a process has counted for one domain since the last question, in the order of fence_counts' reply. */
#define COUNTED 7				/* permits given; get: hit, miss, pending, unarmed; put: stored, refused */
typedef struct DomainCounts
{
	char	   *redis_name;
	int64		counted[COUNTED];
} DomainCounts;

/* Takes the counts from the process and appends them to *list (palloc'd). Domains without new counts are left out. */
extern bool library_take_counts(LibraryCall *call, List **list);

/*
 * The calls of readers and writers that the process has sampled: tokens and checks, gets, reservations. A list of what
 * they concern, and `all` of them.
 */
#define HOT_KINDS 3
typedef struct HotCalls
{
	char	   *name;			/* of a fence; NULL: of a slot */
	int			slot;
	int64		calls[HOT_KINDS];
} HotCalls;

typedef struct HotList
{
	int64		ms;				/* they were made in the last `ms` milliseconds */
	int64		all[HOT_KINDS];
	List	   *list;			/* of HotCalls; a name may be there twice, each time with a part of its calls */
} HotList;

extern bool library_hot(LibraryCall *call, HotList *hot);

/*
 * library_send sends without waiting. library_finish waits for all replies that are outstanding, library_next for the
 * first one. Return false on an error, or if no reply arrives.
 */
extern bool library_send(LibraryCall *call, int argc, const char **argv);
extern bool library_next(LibraryCall *call);
extern bool library_finish(LibraryCall *call);

/*
 * Tells the process a mark (marks.lua), for readers on standbys: gets a number, then reads the position of this server,
 * then sends both. Returns false if the process did not answer.
 */
extern bool library_mark(LibraryCall *call, uint32 epoch);

/* Sends and waits. Returns NULL if the reply is an error or does not arrive. The caller frees it with freeReplyObject. */
extern redisReply *library_call(LibraryCall *call, int argc, const char **argv);

/* The same two for calls of the fence functions. */
extern bool library_tell(LibraryCall *call, const Call *what);
extern redisReply *library_ask(LibraryCall *call, const Call *what);

/*
 * Returns whether the reply is an array of strings: `head` strings, then groups of `group` strings each. If it is not,
 * sets call->error and frees the reply. what: names the groups in that message.
 */
extern bool library_is_list(LibraryCall *call, redisReply *reply, size_t head, size_t group, const char *what);

/* Returns the name of this PostgreSQL cluster in Redis, which is its system identifier. */
extern const char *library_owner(void);

#endif
