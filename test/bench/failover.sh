#!/bin/sh
# failover.sh - what a failover to a replica that lags costs: how long no read is a hit and a write waits, and how the load
# on PostgreSQL rises and falls while the cache is filled again. Installs what it needs (apt), changes nothing else.

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

case ${1:-} in
--help | -h) usage; exit 0 ;;
esac

for argument; do
	case $argument in
	--rows | --rate | --lag | --after | --lease) ;;
	'' | *[!0-9.]*) usage >&2; exit 2 ;;
	esac
done
go_inside "$extension_packages python3 python3-psycopg2 python3-redis" bench/failover.sh "$@"
build || exit 1
export base bindir
exec /usr/bin/python3 test/bench/failover.py "$@"
