#!/bin/sh
# standbys.sh - measures how many of the misses on hot standbys a standby serves itself, with and without delayed replay. Installs what it
# needs (apt), changes nothing else.

top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/bench/standbys.sh [--rows N] [--hot N] [--rate N] [--writes N] [--seconds N]

	Private servers: a PostgreSQL, two standbys, a Redis. Readers call fence.try_read on the standbys, and fence.read on the primary when the
	standby says so. Writers change rows on the primary. Prints a table: what became of the misses, for each delay of the replay
	and each pgcache_fence.standby_wait.

	  --rows N     rows of the table that is cold at first (20000)
	  --hot N      rows of the table that is read and written all the time (200)
	  --rate N     reads per second of each standby (300)
	  --writes N   writes per second (50)
	  --seconds N  length of each measurement (10)
	TEXT
}

check_numbers "--rows --hot --rate --writes --seconds" "$@"
go_inside "$extension_packages python3 python3-psycopg2 python3-redis" bench/standbys.sh "$@"
build || exit 1
export base bindir
exec /usr/bin/python3 test/bench/standbys.py "$@"
