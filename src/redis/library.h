/*
 * redis/library.h
 *	  The function library inside Redis as keeper and patrol use it: loading it, and calls that wait for their answer.
 *
 * Every call takes a deadline in fence_clock() microseconds and a buffer for what went wrong, in words for people;
 * it returns false (or NULL) if something did. Interruptible. After a failure of the connection itself
 * (redis_error) the caller closes it.
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

/* Connects as the URL says, until call->deadline. False: call->error tells why not, and call->conn is NULL. */
extern bool library_open(LibraryCall *call, const RedisEndpoint *address);

/*
 * Makes sure that exactly this build's library is loaded: loads it if there is none, replaces an older one, refuses to
 * touch a newer one.
 */
extern bool library_ensure(LibraryCall *call);

/*
 * Whether a message of the kind that ends and makes reservations passes on this connection, and the node would carry it out: one is
 * sent that changes nothing, in an epoch that never is.
 */
extern bool library_probe_writes(LibraryCall *call);

/* The version of this build's function library. */
extern int library_version(void);

/* Asks the process who it is. found is false (and the result true) if the library is not loaded. */
extern bool library_hello(LibraryCall *call, Hello *hello, bool *found);

/* The server's version, for people: "Redis 7.0.15". */
extern bool library_server_version(LibraryCall *call, char *version, size_t size);

/*
 * key: of heartbeats, in one of the node's slots. until: milliseconds of the node's clock. slots: as slot_ranges tells.
 * grant: number of the grant that the slots are of; readers there are answered once their domain was announced for it.
 * arm and renew carry the settings that the functions go by, so that a reload takes effect with the next heartbeat.
 */
extern bool library_arm(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
						const char *slots, uint32 grant, uint32 timeline);

/*
 * slots: from now on these, in the same epoch; NULL: as they are. *back: slots that the process lost in this epoch are its
 * own again, and could be granted to it anew. *came: whether it has slots that it had not until now.
 */
extern bool library_renew(LibraryCall *call, const char *key, const char *identity, const char *epoch, int64 until,
						  const char *slots, uint32 grant, bool *back, bool *came);
extern bool library_disarm(LibraryCall *call, uint32 timeline);

/* domains: a List of DomainRef; those that Redis takes for attachments that have ended are marked as refused. grant: see library_arm. */
extern bool library_announce(LibraryCall *call, uint32 epoch, uint32 grant, List *domains);

/* Reserves a row, or a whole domain, for a transaction other than the present one. epoch: the number. */
extern bool library_reserve(LibraryCall *call, uint32 epoch, const char *stamp, const char *fence);
extern bool library_domain_reserve(LibraryCall *call, uint32 epoch, const char *redis_name, const char *stamp);

/* The reservations of a stamp as the process lists them: of a whole domain, or of rows. */
typedef struct ListedReservation
{
	bool		domain;
	char	   *name;			/* the domain's Redis name, or one of the fences */
	char	   *stamp;
	int			fences;			/* how many there are */
	int64		age_ms;			/* since the process was asked for its list first; of a domain since it was reserved */
} ListedReservation;

/*
 * One page of the reservations: appended to *list (palloc'd). cursor: "" to begin; palloc'd on return, "" at the end. epoch: of
 * the process; "" if it is not armed.
 */
extern bool library_pending(LibraryCall *call, int limit, char **cursor, char epoch[EPOCH_LEN], List **list);

/* What a process has counted of one domain since it was asked last; in the order of fence_counts' reply. */
#define COUNTED 7				/* permits told; get: hit, miss, pending, unarmed; put: stored, refused */
typedef struct DomainCounts
{
	char	   *redis_name;
	int64		counted[COUNTED];
} DomainCounts;

/* Takes what the process has counted: *list (palloc'd). Only domains of which there is something to tell. */
extern bool library_take_counts(LibraryCall *call, List **list);

/*
 * Sends without waiting; library_finish waits for all that was sent since the last one, library_next for the first of it.
 * False: an error, or no answer.
 */
extern bool library_send(LibraryCall *call, int argc, const char **argv);
extern bool library_next(LibraryCall *call);
extern bool library_finish(LibraryCall *call);

/* Sends and waits; NULL if the answer is an error or does not come. Caller: freeReplyObject. */
extern redisReply *library_call(LibraryCall *call, int argc, const char **argv);

/* The same two for calls of the fence functions. */
extern bool library_tell(LibraryCall *call, const Call *what);
extern redisReply *library_ask(LibraryCall *call, const Call *what);

/*
 * Whether a reply is an array of strings, of which all but the first `head` are groups of that size; if not, call->error says so, and
 * the reply is freed. what: the groups, for people.
 */
extern bool library_is_list(LibraryCall *call, redisReply *reply, size_t head, size_t group, const char *what);

/* This cluster's name in Redis: the system identifier. */
extern const char *library_owner(void);

#endif
