/*
 * redis/resp.h
 *	  Encodes strings in RESP, the protocol of Redis, into a buffer of fixed size. Backends encode most messages in
 *	  COMMIT and ABORT, where they must not allocate.
 */
#ifndef FENCE_REDIS_RESP_H
#define FENCE_REDIS_RESP_H

#include "utils/builtins.h"

#define RESP_BUFFER_BYTES (16 * 1024) /* a name is shorter than half of this */

typedef struct RespBuffer
{
	int			strings;
	size_t		len;
	bool		full;			/* a string did not fit */
	char		bytes[RESP_BUFFER_BYTES];
} RespBuffer;

static inline void
resp_clear(RespBuffer *buffer)
{
	buffer->strings = 0;
	buffer->len = 0;
	buffer->full = false;
}

/* Returns whether this many more bytes certainly fit, in one string or several. */
static inline bool
resp_has_room(const RespBuffer *buffer, size_t len)
{
	return buffer->len + len + 32 <= sizeof(buffer->bytes);
}

/* Writes a number, which is small most of the time. Returns its end. */
static inline char *
resp_digits(char *p, int64 number)
{
	if (number < 0 || number >= 100)
		return p + pg_lltoa(number, p);
	if (number >= 10)
		*p++ = '0' + number / 10;
	*p++ = '0' + number % 10;
	return p;
}

/* Writes a line with a count of strings ('*') or of bytes ('$'). Returns its end. */
static inline char *
resp_line(char *p, char what, int64 number)
{
	*p++ = what;
	p = resp_digits(p, number);
	*p++ = '\r';
	*p++ = '\n';
	return p;
}

/* Writes a bulk string, which needs up to 32 bytes more than its contents. Returns its end. */
static inline char *
resp_text(char *p, const char *string, size_t len)
{
	p = resp_line(p, '$', len);
	memcpy(p, string, len);
	p += len;
	*p++ = '\r';
	*p++ = '\n';
	return p;
}

static inline void
resp_bytes(RespBuffer *buffer, const char *string, size_t len)
{
	if (!resp_has_room(buffer, len))
	{
		buffer->full = true;
		return;
	}
	buffer->len = resp_text(buffer->bytes + buffer->len, string, len) - buffer->bytes;
	buffer->strings++;
}

static inline void
resp_string(RespBuffer *buffer, const char *string)
{
	resp_bytes(buffer, string, strlen(string));
}

/* Adds strings that are already encoded. The caller has checked that there is room. */
static inline void
resp_strings(RespBuffer *buffer, int strings, const char *bytes, size_t len)
{
	Assert(resp_has_room(buffer, len));
	memcpy(buffer->bytes + buffer->len, bytes, len);
	buffer->len += len;
	buffer->strings += strings;
}

/* Removes the strings that were added last. */
static inline void
resp_take_back(RespBuffer *buffer, int strings, size_t len)
{
	buffer->strings -= strings;
	buffer->len -= len;
}

#endif
