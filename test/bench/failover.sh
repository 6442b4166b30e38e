#!/bin/sh
# failover.sh - measures the cost of a failover to a lagging replica: how long there are no hits and writes wait, and how the load
# on PostgreSQL changes while readers fill the cache again. Installs what it needs (apt), changes nothing else.

top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/bench/failover.sh [--rows N] [--rate N] [--lag SECONDS] [--after SECONDS] [--lease SECONDS]

	Private servers: a PostgreSQL, a Redis with a replica, a sentinel. Readers ask at a fixed rate; the replica is cut off,
	some seconds later the master is killed, the sentinel promotes the replica. Prints a table by time.

	  --rows N         rows that are read, all of them alike often (1000)
	  --rate N         reads per second (400)
	  --lag SECONDS    how long the replica has been cut off when the master is killed (3)
	  --after SECONDS  how long is looked on after that (20)
	  --lease SECONDS  pgcache_fence.lease (3)
	TEXT
}

check_numbers "--rows --rate --lag --after --lease" "$@"
go_inside "$extension_packages python3 python3-psycopg2 python3-redis" bench/failover.sh "$@"
build || exit 1
export base bindir
exec /usr/bin/python3 test/bench/failover.py "$@"
