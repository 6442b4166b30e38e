/*
 * read/reader.h
 *	  What the ways of reading through SQL share (reader.c, many.c, derived.c).
 */
#ifndef FENCE_READER_H
#define FENCE_READER_H

#include "datatype/timestamp.h"
#include "domain/domain.h"

typedef enum GetStatus
{
	GET_HIT,
	GET_MISS,
	GET_PENDING,				/* a write is on its way */
	GET_UNARMED,				/* Redis may not answer for the fence */
	GET_UNAVAILABLE				/* Redis did not answer */
} GetStatus;

/* What became known of a fence; strings are palloc'd, NULL where there is nothing to tell. */
typedef struct GetAnswer
{
	GetStatus	status;
	bool		answered;		/* by Redis */
	char	   *token;			/* of a hit or a miss */
	char	   *permit;			/* of a miss: to put what is read from PostgreSQL from now on. NULL on a standby */
	int			busy_ms;		/* of a miss: how long another reader has to put the value; 0: none has */
	bool		filler;			/* others have been told to wait until this reader has put the value */
	int64		version;		/* of a hit; else NO_VERSION */
	char	   *stamp;			/* of a hit; empty: not known */
	char	   *payload;		/* of a hit, in UTF-8 */
	size_t		payload_len;
} GetAnswer;

/*
 * Raises 42501 unless the current user may name the domain's table and read all of it: Redis knows neither columns nor policies. A
 * domain without a table is for those who may write it: who has EXECUTE on fence.put or fence.begin_write.
 */
extern void reader_require(const Domain *domain);

/* Raises 55000 during recovery. */
extern void reader_require_primary(void);

/* Raises 42809 for a domain whose versions PostgreSQL does not know. */
extern void reader_require_source(const Domain *domain);

/* The payload as a Datum; raises 22021 if it is no text in this database's encoding. */
extern Datum reader_payload_text(const GetAnswer *answer, bool *isnull);

/* A word of Redis, or a version, as a Datum: NULL if there is none. */
extern Datum reader_text(const char *s, bool *isnull);
extern Datum reader_version(int64 version, bool *isnull);

#define PAYLOAD_MAX_BYTES (4 * 1024 * 1024)	/* fence.lua refuses longer ones too */

/* fence_put of a payload in UTF-8: "stored", or "refused" and why. ttl_ms 0: the default. NULL: Redis could not be asked. */
extern const char *reader_put(const char *fence, const char *permit, int64 version, const char *payload, size_t payload_len,
							  int64 ttl_ms);

#endif
