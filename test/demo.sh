#!/bin/sh
# demo.sh - a demo with pgbench: pgbench writes, readers read through Redis, and the demo checks every value that they get
# against PostgreSQL. Installs what it needs (apt), says which services Debian has enabled with it, changes nothing else on the machine.

top=$(cd "$(dirname "$0")/.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/demo.sh [--seconds N] [--sabotage]

	Starts a private PostgreSQL and a private Redis, fences the three tables of pgbench that have a key, and runs
	pgbench's own script with 4 clients while 2 processes read random rows directly from Redis and check each value.

	  --seconds N   duration (60)
	  --sabotage    half-way, forge cached values of pgbench_tellers; the readers must notice, and the demo must fail

	Exit status 0: nothing stale was read, the history has no gap, and no reservation is left.
	TEXT
}

seconds=60
sabotage=

parse_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		--seconds)
			case ${2:-} in
			'' | *[!0-9]* | 0*) usage >&2; exit 2 ;;
			esac
			seconds=$2
			shift
			;;
		--sabotage) sabotage=--sabotage ;;
		--help | -h) usage; exit 0 ;;
		*) usage >&2; exit 2 ;;
		esac
		shift
	done
}

parse_arguments "$@"
go_inside "$extension_packages python3 python3-psycopg2 python3-redis" demo.sh "$@"

sql() { "$bindir/psql" -X -v ON_ERROR_STOP=1 "$@"; }
opened() { [ "$(sql -At -c "SELECT state FROM fence.state")" = OPEN ]; }

export PGDATABASE=demo

say 'building ...'
build || exit 1

say 'starting PostgreSQL and Redis ...'
start_redis || exit 1
start_postgres test/demo/demo.conf || exit 1
say "PostgreSQL $("$bindir/postgres" --version | sed 's/.*) //'), $("$REDIS_SERVER" --version | cut -d' ' -f1-3)"

say 'pgbench -i -s 10'
sql -q -d postgres -c 'CREATE DATABASE demo' || exit 1
"$bindir/pgbench" -i -s 10 -q >"$base/pgbench-init.log" 2>&1 || { cat "$base/pgbench-init.log"; exit 1; }
sql -a -q -f test/demo/attach.sql || exit 1
wait_until 20 opened || { sql -x -c 'TABLE fence.state' -c 'TABLE fence.nodes'; tail -n 20 "$base/postgres.log"; exit 1; }

/usr/bin/python3 test/demo/demo.py --pgbench "$bindir/pgbench" --redis "$REDIS_SOCKET" --seconds "$seconds" $sabotage
status=$?

sql -f test/demo/status.sql || status=1
if grep -E 'was terminated by signal|PANIC:' "$base/postgres.log"; then
	say 'FAIL: the server crashed'
	status=1
fi
exit $status
