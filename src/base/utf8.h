/*
 * base/utf8.h
 *	  Names and values in Redis are UTF-8, whatever the encoding of the database: the way there and the way back.
 *
 * Everything that is text of a user passes here once: keys, domains and names of derived values in key_text.c, values of rows
 * in row.c, texts that readers put in single.c and get in reader.c, keys and values of effects in effect_functions.c,
 * effect_row.c and effect_outbox.c. What is percent-encoded, and what the extension itself makes, is ASCII.
 *
 * Texts that differ in the database differ in Redis: what two texts of an encoding would share (some characters of EUC_JP
 * are in it twice) is not converted. In a database with encoding UTF8 nothing is converted or copied on the way out.
 *
 * Needs a transaction, unless the text is ASCII.
 */
#ifndef FENCE_UTF8_H
#define FENCE_UTF8_H

/*
 * Text of the database, of *len bytes, as UTF-8: the text itself or palloc'd, with a NUL behind it only if palloc'd or if
 * there was one; sets *len. NULL: it has no UTF-8 that stands for it and for nothing else.
 */
extern const char *utf8_of_text(const char *text, size_t *len);

/* The same; raises 22P05 with a hint instead of returning NULL. */
extern const char *utf8_require(const char *text, size_t *len);

/* The same for a string. */
extern char *utf8_of_string(const char *text);

/*
 * What Redis holds, as text of the database: itself or palloc'd. NULL: it is not UTF-8, has a NUL in it, or a character
 * that the encoding lacks. utf8 must be followed by a NUL.
 */
extern char *utf8_to_text(const char *utf8, size_t len);

/* The same; raises 22021 instead of returning NULL. */
extern char *utf8_require_text(const char *utf8, size_t len);

/* The same for people: of what is no text each byte that is not printable ASCII is written as \xHH. */
extern char *utf8_to_display(const char *utf8);

#endif
