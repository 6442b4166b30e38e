/*
 * base/slot.h
 *	  Hash slots: which of several Redis processes holds a key.
 *
 * A key's slot is counted as the Redis Cluster specification says, also where there is no cluster: client-side shards
 * divide the same slots among themselves.
 */
#ifndef FENCE_SLOT_H
#define FENCE_SLOT_H

#define SLOTS 16384

/* In a map of slots to processes: nobody holds it. */
#define SLOT_NOBODY 255

/*
 * The slot of a key of len bytes: CRC16 (XMODEM) of what is between its first '{' and the first '}' after that, or of the
 * whole key if there is no such pair or nothing between them.
 */
extern int	slot_of_key(const char *key, size_t len);

/*
 * The slots of a process in a map, as "a-b,c,d-e"; "none" if it has none. The text has at most SLOT_RANGES_LEN bytes with its
 * NUL. Returns how many slots they are.
 */
#define SLOT_RANGES_LEN (SLOTS * 6 + 1)
extern int	slot_ranges(const unsigned char map[SLOTS], int process, char text[SLOT_RANGES_LEN]);

/* Whether a process has any slot in a map. */
extern bool slot_has_any(const unsigned char map[SLOTS], int process);

/* A hash tag in one of the slots of a process, not always the same one; false if it has none. tag: 12 bytes. */
extern bool slot_some_tag(const unsigned char map[SLOTS], int process, char tag[12]);

#endif
