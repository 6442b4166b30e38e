/*
 * base/utf8.h
 *	  Converts names and values between the encoding of the database and UTF-8, which Redis has in any case.
 *
 * All text of users passes through this file exactly once: keys, domains and names of derived values in key_text.c;
 * values of rows in row.c; texts that readers put in single.c and get in reader.c; keys and values of effects in
 * effect_functions.c, effect_row.c and effect_outbox.c. Percent-encoded text, and text that the extension itself makes,
 * is ASCII.
 *
 * Texts that differ in the database differ in Redis. Some encodings have a character twice (EUC_JP has several such).
 * Such a text is refused, because another text would have the same UTF-8. With database encoding UTF8, no text is
 * converted or copied.
 *
 * Needs a transaction, unless the text is ASCII.
 */
#ifndef FENCE_UTF8_H
#define FENCE_UTF8_H

/*
 * Converts a text of the database, of *len bytes, to UTF-8, and sets *len. Returns the text itself or a palloc'd copy.
 * A copy ends with a NUL; the text itself only if it had one. Returns NULL if no UTF-8 text stands for this text alone.
 */
extern const char *utf8_of_text(const char *text, size_t *len);

/* The same, but raises 22P05 with a hint instead of returning NULL. */
extern const char *utf8_require(const char *text, size_t *len);

/* The same as utf8_require, for a NUL-terminated string. */
extern char *utf8_of_string(const char *text);

/*
 * Returns a palloc'd copy of bytes from Redis, with a NUL behind them, for the functions below. Clients may store any bytes, and
 * pnstrdup would end the copy at the first NUL: whoever goes on with the length reads behind it.
 */
extern char *utf8_copy(const char *bytes, size_t len);

/*
 * Converts UTF-8 from Redis to text of the database. Returns utf8 itself or a palloc'd copy. Returns NULL if it is not
 * UTF-8, contains a NUL, or contains a character that the database's encoding lacks. A NUL must follow the len bytes.
 */
extern char *utf8_to_text(const char *utf8, size_t len);

/* The same, but raises 22021 instead of returning NULL. */
extern char *utf8_require_text(const char *utf8, size_t len);

/* The same, for display. If the conversion is impossible, writes each byte that is not printable ASCII as \xHH. */
extern char *utf8_to_display(const char *utf8);

#endif
