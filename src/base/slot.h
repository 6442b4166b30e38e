/*
 * base/slot.h
 *	  Hash slots: they decide which of several Redis processes holds a key.
 *
 * We compute a key's slot as the Redis Cluster specification says, even without a cluster: client-side shards divide
 * the same slots among themselves.
 */
#ifndef FENCE_SLOT_H
#define FENCE_SLOT_H

#define SLOTS 16384

/* In a map of slots to processes: no process holds this slot. */
#define SLOT_NOBODY 255

/*
 * Returns the slot of a key of len bytes: the CRC16 (XMODEM) of its hash tag, or of the whole key if it has none. The
 * hash tag is the text between the first '{' and the first '}' after it, unless it is empty.
 */
extern int	slot_of_key(const char *key, size_t len);

/*
 * Writes the slots of a process in a map as "a-b,c,d-e", or "none". The text has at most SLOT_RANGES_LEN bytes
 * including its NUL. Returns the number of slots.
 */
#define SLOT_RANGES_LEN (SLOTS * 6 + 1)
extern int	slot_ranges(const unsigned char map[SLOTS], int process, char text[SLOT_RANGES_LEN]);

/* Returns whether a process has any slot in a map. */
extern bool slot_has_any(const unsigned char map[SLOTS], int process);

/*
 * Finds a hash tag (12 bytes) in one of the slots of a process. Repeated calls find different tags. Returns false if it
 * finds none.
 */
extern bool slot_some_tag(const unsigned char map[SLOTS], int process, char tag[12]);

#endif
