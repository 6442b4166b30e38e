/*
 * read/reader.h
 *	  What all SQL functions that read share (single.c, many.c, derived.c): privileges, conversion of answers, putting
 *	  a value.
 */
#ifndef FENCE_READER_H
#define FENCE_READER_H

#include <hiredis/hiredis.h>

#include "datatype/timestamp.h"
#include "domain/domain.h"
#include "redis/calls.h"

typedef enum GetStatus
{
	GET_HIT,
	GET_MISS,
	GET_PENDING,				/* a transaction is writing the row */
	GET_UNARMED,				/* Redis may not answer for the fence */
	GET_UNAVAILABLE				/* Redis did not answer */
} GetStatus;

/* What a read has learned about a fence. Strings are palloc'd; NULL: there is none. */
typedef struct GetAnswer
{
	GetStatus	status;
	bool		answered;		/* the status comes from Redis */
	char	   *token;			/* of a hit or a miss */
	char	   *permit;			/* of a miss: allows to put a row that is read from PostgreSQL from now on. NULL on a standby */
	int			busy_ms;		/* of a miss: the time that another reader still has to put the value; 0: no reader does */
	bool		filler;			/* Redis tells other readers to wait until this reader has put the value */
	int64		version;		/* of a hit; else NO_VERSION */
	char	   *stamp;			/* of a hit: the transaction that has written it; empty: not known */
	char	   *payload;		/* of a hit, in UTF-8 */
	size_t		payload_len;
} GetAnswer;

/*
 * Raises 42501 unless the current user may read the whole table of the domain, because Redis knows neither privileges
 * on columns nor row security. In a domain without a table, the user needs EXECUTE on fence.put or fence.begin_write
 * instead.
 */
extern void reader_require(const Domain *domain);

/* From where a strong read has its value */
typedef enum ReadSource
{
	SOURCE_CACHE,
	SOURCE_DATABASE,			/* this server, which on a standby has proven that it is the newest */
	SOURCE_PRIMARY				/* this standby has no value that is proven: its caller must ask the primary */
} ReadSource;

extern const char *reader_source_name(ReadSource source);

/*
 * Sleeps, as fence_pause does. False, on a standby only: replay does not wait for this statement any longer, and PostgreSQL
 * would have canceled it. It must read no row of its own any more, and end soon, or it is canceled at the next occasion.
 */
extern bool reader_pause(int64 microseconds, uint32 wait_event);

/* Raises 42809 for a domain whose rows and versions are not in PostgreSQL. */
extern void reader_require_source(const Domain *domain);

/* The payload as a text Datum. Raises 22021 if it is not valid text in this database's encoding. */
extern Datum reader_payload_text(const GetAnswer *answer, bool *isnull);

/* A word of Redis, or a version, as a Datum. *isnull: there is none. */
extern Datum reader_text(const char *s, bool *isnull);
extern Datum reader_version(int64 version, bool *isnull);

#define PAYLOAD_MAX_BYTES (4 * 1024 * 1024)	/* fence.lua refuses longer ones too */

/*
 * Puts a payload in UTF-8 into the cache. ttl_ms 0: the default. Returns "stored", or "refused" with the reason;
 * NULL: Redis could not be asked.
 */
extern const char *reader_put(const char *fence, const char *permit, int64 version, const char *payload, size_t payload_len,
							  int64 ttl_ms);

/*
 * The same in two steps, for callers that put several payloads in one round trip. reader_put_calls makes the calls, and
 * returns their number; 0: Redis need not be asked, because *refusal is its answer. Allocates what the calls point to.
 * reader_put_answer returns what the reply to the last of the calls says.
 */
#define PUT_CALLS 2
extern int reader_put_calls(Call calls[PUT_CALLS], const char *fence, const char *permit, int64 version, const char *payload,
							size_t payload_len, int64 ttl_ms, const char **refusal);
extern const char *reader_put_answer(const redisReply *reply);

#endif
