/*
 * redis/draft.h
 *	  Strings in Redis' protocol, in a buffer of fixed size: much of what is written runs in COMMIT and ABORT, where nothing
 *	  may be allocated.
 */
#ifndef FENCE_DRAFT_H
#define FENCE_DRAFT_H

#include "utils/builtins.h"

#define DRAFT_BYTES (16 * 1024) /* a name is shorter than half of it */

typedef struct Draft
{
	int			strings;
	size_t		len;
	bool		full;			/* something did not fit */
	char		bytes[DRAFT_BYTES];
} Draft;

static inline void
draft_clear(Draft *draft)
{
	draft->strings = 0;
	draft->len = 0;
	draft->full = false;
}

/* Whether so many bytes more, of one string or several, fit for certain. */
static inline bool
draft_has_room(const Draft *draft, size_t len)
{
	return draft->len + len + 32 <= sizeof(draft->bytes);
}

/* A line of the protocol that tells a number: of strings ('*') or of bytes ('$'). Returns where it ends. */
static inline char *
draft_line(char *p, char what, int64 number)
{
	*p++ = what;
	if (number >= 0 && number < 10)
		*p++ = '0' + number;
	else
		p += pg_lltoa(number, p);
	*p++ = '\r';
	*p++ = '\n';
	return p;
}

/* A string of the protocol, which needs 32 bytes more than itself. Returns where it ends. */
static inline char *
draft_text(char *p, const char *string, size_t len)
{
	p = draft_line(p, '$', len);
	memcpy(p, string, len);
	p += len;
	*p++ = '\r';
	*p++ = '\n';
	return p;
}

static inline void
draft_bytes(Draft *draft, const char *string, size_t len)
{
	if (!draft_has_room(draft, len))
	{
		draft->full = true;
		return;
	}
	draft->len = draft_text(draft->bytes + draft->len, string, len) - draft->bytes;
	draft->strings++;
}

static inline void
draft_string(Draft *draft, const char *string)
{
	draft_bytes(draft, string, strlen(string));
}

/* So many strings that are in the protocol already; there has to be room. */
static inline void
draft_strings(Draft *draft, int strings, const char *bytes, size_t len)
{
	Assert(draft_has_room(draft, len));
	memcpy(draft->bytes + draft->len, bytes, len);
	draft->len += len;
	draft->strings += strings;
}

/* Takes away what was added last. */
static inline void
draft_take_back(Draft *draft, int strings, size_t len)
{
	draft->strings -= strings;
	draft->len -= len;
}

#endif
