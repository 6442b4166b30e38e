/*
 * base/slot.c
 *	  Hash slots; see slot.h. Knows no server and no shared memory. Takes no locks.
 */
#include "postgres.h"

#include "base/slot.h"

/* CRC16/XMODEM: polynomial x^16 + x^12 + x^5 + 1, initial value 0, not reflected */
static uint16
crc16(const char *bytes, size_t len)
{
	static uint16 table[256];
	uint16		crc = 0;

	if (table[1] == 0)
		for (int i = 0; i < 256; i++)
		{
			uint16		remainder = i << 8;

			for (int bit = 0; bit < 8; bit++)
				remainder = remainder & 0x8000 ? (remainder << 1) ^ 0x1021 : remainder << 1;
			table[i] = remainder;
		}
	for (size_t i = 0; i < len; i++)
		crc = (crc << 8) ^ table[(crc >> 8) ^ (unsigned char) bytes[i]];
	return crc;
}

int
slot_of_key(const char *key, size_t len)
{
	const char *open = memchr(key, '{', len);
	const char *close = open ? memchr(open, '}', len - (open - key)) : NULL;

	if (close != NULL && close > open + 1)
		return crc16(open + 1, close - open - 1) % SLOTS;
	return crc16(key, len) % SLOTS;
}

int
slot_ranges(const unsigned char map[SLOTS], int process, char text[SLOT_RANGES_LEN])
{
	int			count = 0;
	char	   *end = text;

	*end = '\0';
	for (int first = 0; first < SLOTS; first++)
	{
		int			last = first;

		if (map[first] != process)
			continue;
		while (last + 1 < SLOTS && map[last + 1] == process)
			last++;
		end += sprintf(end, last > first ? "%s%d-%d" : "%s%d", end > text ? "," : "", first, last);
		count += last - first + 1;
		first = last;
	}
	if (count == 0)
		strcpy(text, "none");
	return count;
}

bool
slot_has_any(const unsigned char map[SLOTS], int process)
{
	return memchr(map, process, SLOTS) != NULL;
}

bool
slot_some_tag(const unsigned char map[SLOTS], int process, char tag[12])
{
	static uint32 next = 0;

	/* a process with few slots takes many tries; one with a single slot takes 16384 on average */
	for (int tries = 0; tries < 16 * SLOTS; tries++)
	{
		snprintf(tag, 12, "%u", next++);
		if (map[slot_of_key(tag, strlen(tag))] == process)
			return true;
	}
	return false;
}
