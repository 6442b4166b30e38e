/*
 * test_slot.c
 *	  src/base/slot.c by itself. (Against a real Redis: test/t/topology/cluster.pl.)
 *
 * Build and run: sh test/unit/slot.sh. Prints "N passed, N failed"; exit status 0 only if nothing failed.
 */
#include "postgres.h"

#include "base/slot.h"

#include "check.h"

static int
slot(const char *key)
{
	return slot_of_key(key, strlen(key));
}

static void
test_keys(void)
{
	char		all[256];

	/* the check value of CRC16/XMODEM, and keys of the cluster specification */
	check(slot("123456789") == 0x31C3, "check value");
	check(slot("") == 0, "empty key");
	check(slot("foo") == 12182, "foo");
	check(slot("{user1000}.following") == slot("user1000"), "tag");
	check(slot("{user1000}.following") == slot("{user1000}.followers"), "the same tag");
	check(slot("foo{}{bar}") != slot("bar"), "an empty tag is none");
	check(slot("foo{{bar}}zap") == slot("{bar"), "the tag ends at the first brace");
	check(slot("foo{bar}{zap}") == slot("bar"), "the first tag counts");
	check(slot("foo}{bar}") == slot("bar"), "a brace that closes nothing");
	check(slot("foo{bar") != slot("bar"), "a brace that is not closed");
	check(slot_of_key("a\0b", 3) != slot_of_key("a", 1), "a zero byte");
	for (int i = 0; i < 256; i++)
		all[i] = (char) i;
	check(slot_of_key(all, 123) >= 0 && slot_of_key(all + 128, 128) < SLOTS, "all bytes");
}

static void
test_ranges(void)
{
	static unsigned char map[SLOTS];
	static char text[SLOT_RANGES_LEN];
	char		tag[12];

	check(slot_ranges(map, 0, text) == SLOTS && strcmp(text, "0-16383") == 0, "all");
	check(slot_ranges(map, 1, text) == 0 && strcmp(text, "none") == 0 && !slot_has_any(map, 1) && slot_has_any(map, 0), "none");
	check(!slot_some_tag(map, 1, tag), "no tag for nobody");
	map[0] = map[5] = map[6] = map[16383] = 1;
	check(slot_ranges(map, 1, text) == 4 && strcmp(text, "0,5-6,16383") == 0, "some");
	check(slot_ranges(map, 0, text) == SLOTS - 4 && strcmp(text, "1-4,7-16382") == 0, "the others");
	for (int i = 0; i < 100; i++)
		check(slot_some_tag(map, 1, tag) && map[slot(tag)] == 1, "a tag for four slots");
	for (int i = 0; i < SLOTS; i++)
		map[i] = i % 2;
	check(slot_ranges(map, 1, text) == SLOTS / 2 && strlen(text) < SLOT_RANGES_LEN, "every other one");
}

int
main(void)
{
	test_keys();
	test_ranges();
	return report_checks();
}
