/*
 * reader.h
 *	  What the ways of reading through SQL share (reader.c, many.c, derived.c).
 */
#ifndef FENCE_READER_H
#define FENCE_READER_H

#include <hiredis/hiredis.h>

#include "datatype/timestamp.h"
#include "domain.h"

/* What fence_get, or fence_get_many for one of its pairs, answered; strings are palloc'd, NULL where the status has none. */
typedef struct GetAnswer
{
	const char *status;			/* hit, miss, pending, unarmed, unavailable */
	char	   *token;
	char	   *version;
	char	   *ticket;
	char	   *payload;
	size_t		payload_len;
	char	   *stamp;			/* of fence_get_many only; empty: not known */
	int			busy_ms;		/* of a miss: how long another reader has to put the value; 0: none has */
} GetAnswer;

/* The answer in n strings of a reply; status unavailable if they are none. */
extern GetAnswer reader_answer(redisReply **strings, size_t n);

/* Counts a read that Redis was not asked for, or did not answer, with that status; Redis counts what it answers. */
extern void reader_count_unanswered(const Domain *domain, const char *status);

/* The status to give without asking Redis, while fences are not OPEN: unarmed, or unavailable if Redis is away. */
extern const char *reader_closed_status(void);

/*
 * Raises 42501 unless the current user may name the domain's table and read all of it: Redis knows neither columns nor policies. A
 * domain without a table is for those who may write it: who has EXECUTE on fence.put or fence.begin_write.
 */
extern void reader_require(const Domain *domain);

/* Raises 55000 during recovery. */
extern void reader_require_primary(void);

/* Raises 42809 for a domain whose versions PostgreSQL does not know. */
extern void reader_require_source(const Domain *domain);

/* The payload of a hit as jsonb. False: it is no JSON, or none that jsonb holds. */
extern bool reader_payload(const GetAnswer *answer, Datum *jsonb);

/* The payload of a hit as a Datum; raises 22021 if it is no text in this database's encoding. */
extern Datum reader_payload_text(const GetAnswer *answer, bool *isnull);

/* A word of Redis, or a version, as a Datum: NULL if there is none. */
extern Datum reader_text(const char *s, bool *isnull);
extern Datum reader_version(const char *s, bool *isnull);

/* A time to live in milliseconds; raises 22023 if it is below 0 or above 10 years. */
extern int64 reader_interval_ms(const Interval *ttl);

#define PAYLOAD_MAX_BYTES (4 * 1024 * 1024)	/* fence.lua refuses longer ones too */

/* fence_put of a payload in UTF-8; the answer's words joined by a blank. NULL: Redis could not be asked. */
extern const char *reader_put(const char *fence, const char *value, const char *token, const char *ticket, int64 version,
							  const char *payload, size_t payload_len, int64 ttl_ms);

#endif
