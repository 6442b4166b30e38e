#!/bin/sh
# bulk_threshold.sh - what the default of pgcache_fence.bulk_threshold rests on: what row by row costs the writer, and
# what a reservation of the whole domain costs the readers. Installs what it needs (apt), changes nothing else on the
# machine.

top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/bench/bulk_threshold.sh [--rounds N] [--slice SECONDS] [--readers-only]

	Starts a private PostgreSQL and a private Redis and times UPDATEs of 1 to 10000 rows per transaction in one run,
	alternating: an unfenced table, a fenced one row by row, a fenced one as a whole.

	  --rounds N       how often each is timed (5); the medians count
	  --slice SECONDS  how long each time (0.3)
	  --readers-only   leaves the table of writers out
	TEXT
}

rounds=5
slice=0.3
readers=

parse_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		--rounds | --slice)
			case ${2:-} in
			'' | *[!0-9.]*) usage >&2; exit 2 ;;
			esac
			if [ "$1" = --rounds ]; then rounds=$2; else slice=$2; fi
			shift
			;;
		--readers-only) readers=--readers-only ;;
		--help | -h) usage; exit 0 ;;
		*) usage >&2; exit 2 ;;
		esac
		shift
	done
}

parse_arguments "$@"
go_inside "$extension_packages python3 python3-psycopg2 python3-redis" bench/bulk_threshold.sh "$@"
build || exit 1
start_redis || exit 1
cat >"$base/bench.conf" <<-CONF
	autovacuum = off
	shared_buffers = 256MB
	max_wal_size = 4GB
	pgcache_fence.audit_rate = 0
CONF
start_postgres "$base/bench.conf" || exit 1
say "$("$bindir/postgres" --version), $("$REDIS_SERVER" --version | cut -d' ' -f1-3), $(nproc) CPUs"
PGDATABASE=postgres
export PGDATABASE
/usr/bin/python3 test/bench/bulk_threshold.py --redis "$REDIS_SOCKET" --rounds "$rounds" --slice "$slice" $readers
