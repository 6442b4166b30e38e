#!/bin/sh
# idle.sh - measures what the background workers cost on a server that does nothing else, for a growing number of fenced tables.
# Installs what it needs (apt), changes nothing else on the machine.

top=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
. "$top/test/common.sh"

usage() {
	cat <<-TEXT
	usage: sh test/bench/idle.sh [--domains N,N,...] [--seconds N]

	Starts a private PostgreSQL and a private Redis with default settings, fences tables of 200 cached rows, and counts what
	Redis and PostgreSQL do while nobody uses them.

	  --domains N,N,...  how many fenced tables (10,300,1000)
	  --seconds N        how long each time (60)
	TEXT
}

parse_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		--domains | --seconds)
			case ${2:-} in '' | *[!0-9,]*) usage >&2; exit 2 ;; esac
			shift
			;;
		--help | -h) usage; exit 0 ;;
		*) usage >&2; exit 2 ;;
		esac
		shift
	done
}

parse_arguments "$@"
go_inside "$extension_packages python3 python3-psycopg2 python3-redis" bench/idle.sh "$@"
build || exit 1
start_redis || exit 1
cat >"$base/bench.conf" <<-CONF
	autovacuum = off
	log_min_messages = log
CONF
start_postgres "$base/bench.conf" || exit 1
say "$("$bindir/postgres" --version), $("$REDIS_SERVER" --version | cut -d' ' -f1-3), $(nproc) CPUs"
PGDATABASE=postgres
export PGDATABASE
/usr/bin/python3 test/bench/idle.py --redis "$REDIS_SOCKET" --redis-pid "$redis_pid" \
	--postmaster "$(head -n 1 "$postgres_data/postmaster.pid")" --log "$base/postgres.log" "$@"
